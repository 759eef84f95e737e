// SPDX-License-Identifier: MIT OR Apache-2.0

//! Golden texts of every version, conversions, and properties.

use std::net::{Ipv4Addr, Ipv6Addr};

use expect_test::{Expect, expect};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::text::parse_canonical_net;
use crate::{Args, CniError, NetConf, NetConfList};

/// A result with a value for every key.
fn full() -> AddResult {
    let object = json!({
        "interfaces": [
            {"name": "cni0", "mac": "02:00:00:00:00:01", "mtu": 1450, "socketPath": "/run/s", "pciID": "0000:00:01.0"},
            {"name": "eth0", "sandbox": "/run/netns/x"},
        ],
        "ips": [
            {"interface": 1, "address": "10.1.2.3/24", "gateway": "10.1.2.1"},
            {"interface": 1, "address": "fd00::3/64"},
            {"address": "10.1.2.4/24"},
        ],
        "routes": [
            {"dst": "10.9.1.1/8", "gw": "10.1.2.254", "mtu": 1400, "advmss": 1300, "priority": 7, "table": 0, "scope": 253},
            {"dst": "::/0"},
        ],
        "dns": {"nameservers": ["10.0.0.1"], "domain": "<a>", "search": ["b"], "options": ["c"]},
    });
    AddResult::from_object(Version::V1_1_0, object.as_object().unwrap()).unwrap()
}

fn printed(result: &AddResult, version: Version, expected: &Expect) {
    expected.assert_eq(&result.print(version).unwrap());
}

#[test]
fn the_newest_form_has_its_keys_sorted() {
    let expected = expect![[r#"
        {
            "cniVersion": "1.1.0",
            "dns": {
                "domain": "\u003ca\u003e",
                "nameservers": [
                    "10.0.0.1"
                ],
                "options": [
                    "c"
                ],
                "search": [
                    "b"
                ]
            },
            "interfaces": [
                {
                    "mac": "02:00:00:00:00:01",
                    "mtu": 1450,
                    "name": "cni0",
                    "pciID": "0000:00:01.0",
                    "socketPath": "/run/s"
                },
                {
                    "name": "eth0",
                    "sandbox": "/run/netns/x"
                }
            ],
            "ips": [
                {
                    "address": "10.1.2.3/24",
                    "gateway": "10.1.2.1",
                    "interface": 1
                },
                {
                    "address": "fd00::3/64",
                    "interface": 1
                },
                {
                    "address": "10.1.2.4/24"
                }
            ],
            "routes": [
                {
                    "advmss": 1300,
                    "dst": "10.9.1.1/8",
                    "gw": "10.1.2.254",
                    "mtu": 1400,
                    "priority": 7,
                    "scope": 253,
                    "table": 0
                },
                {
                    "dst": "::/0"
                }
            ]
        }"#]];
    printed(&full(), Version::V1_1_0, &expected);
    let older = full().print(Version::V1_0_0).unwrap();
    assert_eq!(older, full().print(Version::V1_1_0).unwrap().replace("1.1.0", "1.0.0"));
}

#[test]
fn the_form_with_lists_has_its_keys_in_the_order_of_the_reference() {
    let expected = expect![[r#"
        {
            "cniVersion": "0.4.0",
            "interfaces": [
                {
                    "name": "cni0",
                    "mac": "02:00:00:00:00:01"
                },
                {
                    "name": "eth0",
                    "sandbox": "/run/netns/x"
                }
            ],
            "ips": [
                {
                    "version": "4",
                    "interface": 1,
                    "address": "10.1.2.3/24",
                    "gateway": "10.1.2.1"
                },
                {
                    "version": "6",
                    "interface": 1,
                    "address": "fd00::3/64"
                },
                {
                    "version": "4",
                    "address": "10.1.2.4/24"
                }
            ],
            "routes": [
                {
                    "dst": "10.9.1.1/8",
                    "gw": "10.1.2.254",
                    "mtu": 1400,
                    "advmss": 1300,
                    "priority": 7,
                    "table": 0,
                    "scope": 253
                },
                {
                    "dst": "::/0"
                }
            ],
            "dns": {
                "nameservers": [
                    "10.0.0.1"
                ],
                "domain": "\u003ca\u003e",
                "search": [
                    "b"
                ],
                "options": [
                    "c"
                ]
            }
        }"#]];
    printed(&full(), Version::V0_4_0, &expected);
}

#[test]
fn the_oldest_form_has_one_address_per_family() {
    let expected = expect![[r#"
        {
            "cniVersion": "0.2.0",
            "ip4": {
                "ip": "10.1.2.3/24",
                "gateway": "10.1.2.1",
                "routes": [
                    {
                        "dst": "10.9.1.1/8",
                        "gw": "10.1.2.254"
                    }
                ]
            },
            "ip6": {
                "ip": "fd00::3/64",
                "routes": [
                    {
                        "dst": "::/0"
                    }
                ]
            },
            "dns": {
                "nameservers": [
                    "10.0.0.1"
                ],
                "domain": "\u003ca\u003e",
                "search": [
                    "b"
                ],
                "options": [
                    "c"
                ]
            }
        }"#]];
    printed(&full(), Version::V0_2_0, &expected);
}

#[test]
fn an_empty_result() {
    let empty = AddResult::default();
    printed(
        &empty,
        Version::V1_1_0,
        &expect![[r#"
            {
                "cniVersion": "1.1.0"
            }"#]],
    );
    printed(
        &empty,
        Version::V0_3_0,
        &expect![[r#"
            {
                "cniVersion": "0.3.0",
                "dns": {}
            }"#]],
    );
    for version in [Version::V0_1_0, Version::V0_2_0] {
        let error = empty.print(version).unwrap_err().to_string();
        assert_eq!(error, "cannot convert: no valid IP addresses");
    }
}

#[test]
fn routes_of_a_family_without_an_address_are_lost_in_the_oldest_form() {
    let mut result = full();
    result.ips.retain(|ip| matches!(ip.address, IpNet::V6(_)));
    let object = Value::Object(result.to_object(Version::V0_1_0).unwrap());
    assert_eq!(object["ip4"], Value::Null);
    assert_eq!(object["ip6"], json!({"ip": "fd00::3/64", "routes": [{"dst": "::/0"}]}));
}

#[test]
fn the_oldest_form_is_decoded_into_lists() {
    let output = br#"{"cniVersion":"0.2.0","IP6":{"ip":"fd00::3/64","gateway":""},
        "ip4":{"ip":"10.1.2.3/24","gateway":"10.1.2.1","routes":[{"dst":"0.0.0.0/0"}]}}"#;
    let result = AddResult::from_output(Version::V1_1_0, output).unwrap();
    let ip = |interface, address: &str, gateway: Option<&str>| IpConfig {
        interface,
        address: address.parse().unwrap(),
        gateway: gateway.map(|g| g.parse().unwrap()),
    };
    assert_eq!(result.ips, [ip(None, "10.1.2.3/24", Some("10.1.2.1")), ip(None, "fd00::3/64", None)]);
    assert_eq!(result.routes, [Route::new("0.0.0.0/0".parse().unwrap(), None)]);
}

#[test]
fn the_output_of_a_delegate_has_its_own_version() {
    let read = |version, output: &str| AddResult::from_output(version, output.as_bytes());
    assert_eq!(read(Version::V0_3_1, "null"), Ok(AddResult::default()));
    assert_eq!(read(Version::V0_2_0, "{}"), Ok(AddResult::default()));
    // A result without a version has the configuration's version.
    let lists = r#"{"ips":[{"version":"6","address":"10.1.2.3/24"}]}"#;
    assert_eq!(read(Version::V0_4_0, lists).map(|r| r.ips.len()), Ok(1));
    assert_eq!(read(Version::V0_2_0, lists).map(|r| r.ips.len()), Ok(0));
    assert_eq!(read(Version::V1_1_0, r#"{"cniVersion":"","ip4":{}}"#), Ok(AddResult::default()));
    let rows = [
        ("", "failed to unmarshal raw result: unexpected end of JSON input"),
        (r#"{"cniVersion":"7.0.0"}"#, r#"unsupported CNI result version "7.0.0""#),
        (r#"{"ips":[{"address":"10.1.2.3"}]}"#, "ips[0].address: invalid CIDR address: 10.1.2.3"),
        (r#"{"ips":[{"address":"fd00::/64","gateway":"x"}]}"#, "ips[0].gateway: invalid IP address: x"),
        (r#"{"ips":[{}]}"#, "ips[0]: missing key `address`"),
        (r#"{"ips":[{"address":"10.1.2.3/24","interface":-1}]}"#, "integer `-1`"),
    ];
    for (output, want) in rows {
        let error = read(Version::V1_1_0, output).unwrap_err().to_string();
        assert!(error.contains(want), "{output}: {error}");
    }
}

#[test]
fn a_declared_version_of_another_form_is_refused() {
    let read = |version, declared: &str| {
        let object = json!({ "cniVersion": declared });
        AddResult::from_object(version, object.as_object().unwrap()).map_err(|e| e.to_string())
    };
    assert_eq!(read(Version::V1_1_0, "1.0.0"), Ok(AddResult::default()));
    assert_eq!(read(Version::V0_1_0, "0.2.0"), Ok(AddResult::default()));
    let rows = [
        (Version::V1_0_0, "0.2.0", r#"[1.0.0 1.1.0] but unmarshalled CNIVersion is "0.2.0""#),
        (Version::V0_3_1, "1.0.0", r#"[0.3.0 0.3.1 0.4.0] but unmarshalled CNIVersion is "1.0.0""#),
        (Version::V0_1_0, "x\"", r#"[ 0.1.0 0.2.0] but unmarshalled CNIVersion is "x\"""#),
    ];
    for (version, declared, want) in rows {
        assert_eq!(read(version, declared), Err(format!("result type supports {want}")));
    }
}

#[test]
fn mapped_addresses_are_ipv4() {
    let read = |text: &str| parse_canonical_net(text).map(|net| net.to_string());
    assert_eq!(read("::ffff:10.1.2.3/120").as_deref(), Some("10.1.2.3/24"));
    assert_eq!(read("::ffff:10.1.2.3/90"), None);
    assert_eq!(read("10.1.2.3/33"), None);
}

fn any_net() -> impl Strategy<Value = IpNet> {
    let v4 = (any::<u32>(), 0..=32u8).prop_map(|(a, p)| IpNet::new(Ipv4Addr::from(a).into(), p).unwrap());
    // Addresses in ::ffff:0:0/96 are excluded, because they are decoded as IPv4.
    let v6 = (any::<u128>(), 0..=128u8)
        .prop_map(|(a, p)| IpNet::new(Ipv6Addr::from(a | 1 << 127).into(), p).unwrap());
    prop_oneof![v4, v6]
}

fn any_address() -> impl Strategy<Value = Option<IpAddr>> {
    proptest::option::of(any_net().prop_map(|net| net.addr()))
}

/// Short texts, some of which contain characters that are escaped.
fn any_text() -> impl Strategy<Value = String> {
    "[a-c<>&\"\\\\\u{0}\n\u{2028}\u{2029}é\u{10000}]{0,6}"
}

fn any_interface() -> impl Strategy<Value = Interface> {
    (proptest::array::uniform5(any_text()), any::<u32>()).prop_map(
        |([name, mac, sandbox, socket_path, pci_id], mtu)| Interface {
            name,
            mac,
            mtu,
            sandbox,
            socket_path,
            pci_id,
        },
    )
}

fn any_route() -> impl Strategy<Value = Route> {
    (any_net(), any_address(), any::<[u32; 3]>(), any::<Option<u32>>(), any::<Option<u8>>()).prop_map(
        |(dst, gw, [mtu, advmss, priority], table, scope)| Route {
            dst,
            gw,
            mtu,
            advmss,
            priority,
            table,
            scope,
        },
    )
}

fn any_result() -> impl Strategy<Value = AddResult> {
    let ip = (any::<Option<u8>>(), any_net(), any_address()).prop_map(|(interface, address, gateway)| {
        IpConfig { interface: interface.map(usize::from), address, gateway }
    });
    let texts = || vec(any_text(), 0..3);
    let dns = (texts(), any_text(), texts(), texts())
        .prop_map(|(nameservers, domain, search, options)| Dns { nameservers, domain, search, options });
    (vec(any_interface(), 0..4), vec(ip, 0..4), vec(any_route(), 0..4), dns)
        .prop_map(|(interfaces, ips, routes, dns)| AddResult { interfaces, ips, routes, dns })
}

fn any_version() -> impl Strategy<Value = Version> {
    proptest::sample::select(Version::ALL)
}

/// JSON whose keys are often valid ones, in varying case.
fn any_json() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        Just("10.1.2.3/24".to_owned()),
        Just("fd00::1".to_owned()),
        Just("0.4.0".to_owned()),
        Just("1.1.0".to_owned()),
        any_text(),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..70_000u32).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    let keys = proptest::sample::select(
        &[
            "cniVersion",
            "cniVersions",
            "name",
            "type",
            "ipam",
            "IPAM",
            "prevResult",
            "interfaces",
            "ips",
            "address",
            "gateway",
            "routes",
            "dst",
            "gw",
            "dns",
            "ip4",
            "ip6",
            "ip",
            "runtimeConfig",
            "portMappings",
            "HostPort",
            "hostIP",
            "ipRanges",
            "subnet",
            "bandwidth",
            "plugins",
            "capabilities",
            "disableCheck",
            "containerID",
            "ifname",
            "cni.dev/valid-attachments",
            "code",
            "msg",
        ][..],
    );
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((keys.clone(), inner), 0..8).prop_map(|entries| {
                entries.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<_, _>>().into()
            }),
        ]
    })
}

/// Decodes bytes in every way; failures are ignored.
fn read_all(bytes: &[u8]) {
    if let Ok(conf) = NetConf::parse(bytes) {
        drop(conf.runtime_config());
    }
    for version in Version::ALL {
        drop(AddResult::from_output(*version, bytes));
    }
    if let Ok(list) = NetConfList::parse(bytes) {
        for plugin in &list.plugins {
            drop(list.input(plugin, Some(&full()), &Map::new()));
        }
    }
    drop(NetConfList::of_single(bytes));
    drop(CniError::parse(bytes));
    drop(Args::parse(&String::from_utf8_lossy(bytes), &["IP"]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_newest_form_loses_nothing(result in any_result()) {
        let text = result.print(Version::V1_1_0).unwrap();
        let escaped = !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']);
        prop_assert!(escaped);
        prop_assert_eq!(AddResult::from_output(Version::V0_1_0, text.as_bytes()), Ok(result));
    }

    /// A result that has been converted to a version does not change when it is converted to that or a later version.
    #[test]
    fn a_converted_result_stays_the_same(result in any_result(), version in any_version(), later in any_version()) {
        let Ok(text) = result.print(version) else {
            prop_assert!(result.ips.is_empty() && version <= Version::V0_2_0);
            return Ok(());
        };
        let settled = AddResult::from_output(version, text.as_bytes()).unwrap();
        prop_assert_eq!(settled.print(version).unwrap(), text);
        let (later, text) = (later.max(version), settled.print(later.max(version)).unwrap());
        prop_assert_eq!(AddResult::from_output(later, text.as_bytes()), Ok(settled));
    }

    #[test]
    fn the_forms_with_lists_keep_addresses_and_routes(result in any_result(), version in any_version()) {
        if version >= Version::V0_3_0 {
            let object = result.to_object(version).unwrap();
            let read = AddResult::from_object(version, &object).unwrap();
            prop_assert_eq!((read.ips, read.routes, read.dns), (result.ips, result.routes, result.dns));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        read_all(&bytes);
    }

    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        read_all(text.as_bytes());
    }

    #[test]
    fn arbitrary_json_never_panics(value in any_json()) {
        read_all(value.to_string().as_bytes());
        // The name and the version are valid, so that the rest is decoded.
        if let Value::Object(mut object) = value {
            object.insert("name".to_owned(), "n".into());
            object.insert("cniVersion".to_owned(), "1.1.0".into());
            read_all(Value::Object(object).to_string().as_bytes());
        }
    }

    /// A result is decoded in the same way, whatever the case of its keys is.
    #[test]
    fn the_case_of_keys_does_not_matter(result in any_result(), upper in any::<bool>()) {
        fn recase(value: Value, upper: bool) -> Value {
            let case = |k: &str| if upper { k.to_ascii_uppercase() } else { k.to_ascii_lowercase() };
            match value {
                Value::Object(map) => {
                    Value::Object(map.into_iter().map(|(k, v)| (case(&k), recase(v, upper))).collect())
                }
                Value::Array(items) => items.into_iter().map(|v| recase(v, upper)).collect(),
                other => other,
            }
        }
        let object = Value::Object(result.to_object(Version::V1_1_0).unwrap());
        let output = recase(object, upper).to_string();
        prop_assert_eq!(AddResult::from_output(Version::V1_1_0, output.as_bytes()), Ok(result));
    }
}
