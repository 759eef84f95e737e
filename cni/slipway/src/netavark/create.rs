// SPDX-License-Identifier: GPL-2.0-or-later

//! `create`: checks a new network and completes it. podman stores it, and chooses addresses from then on.

use cni_spec::{check_ifname, check_network};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::error::{CreateError, DriverError};
use super::isolate;
use super::options::{Mode, Options};
use super::subnets::{Used, first, unique_v6};
use super::types::{Network, Subnet};

/// Completes a network. Keys that the driver does not read are returned unchanged.
pub(super) fn create(input: Map<String, Value>) -> Result<Map<String, Value>, DriverError> {
    complete(input, &Used::read()?, isolate::of_new_network())
}

/// `isolate` is the value of a network that has none.
pub(super) fn complete(
    mut input: Map<String, Value>,
    used: &Used,
    isolate: Option<&str>,
) -> Result<Map<String, Value>, DriverError> {
    let network: Network = serde_json::from_value(Value::Object(input.clone())).map_err(DriverError::Json)?;
    check_network(&network.name)?;
    let options = Options::of(network.options.as_ref())?;
    let bridge = bridge(&network, &options, used)?;
    let longest = options.vlan.map_or_else(|| bridge.clone(), |vlan| format!("{bridge}.{vlan}"));
    check_ifname(&longest)?;
    let given = network.subnets();
    // An unmanaged bridge has an address in its subnet.
    for subnet in given.iter().filter(|_| options.mode == Mode::Managed) {
        if let Some(other) = used.overlapping(subnet.subnet) {
            return Err(CreateError::SubnetInUse { subnet: subnet.subnet, other }.into());
        }
    }
    let subnets = match network.ipam_driver() {
        "host-local" => chosen(&network, used)?,
        "none" => Vec::new(),
        other => return Err(CreateError::Ipam(other.to_owned()).into()),
    };
    let has_v6 = subnets.iter().chain(given).any(|one| one.subnet.addr().is_ipv6());
    let mut all = match input.remove("subnets") {
        Some(Value::Array(all)) => all,
        _ => Vec::new(),
    };
    all.extend(subnets.iter().map(|one| json!({ "subnet": one.subnet, "gateway": one.gateway })));
    if !all.is_empty() {
        input.insert("subnets".to_owned(), all.into());
    }
    input.insert("network_interface".to_owned(), bridge.into());
    input.insert("ipv6_enabled".to_owned(), has_v6.into());
    // netavark starts no name server for drivers' networks.
    input.insert("dns_enabled".to_owned(), false.into());
    let ipam = input.entry("ipam_options").or_insert_with(|| json!({}));
    if ipam.is_null() {
        *ipam = json!({});
    }
    ipam["driver"] = network.ipam_driver().into();
    let isolate = isolate.filter(|_| options.isolate.is_none() && options.mode == Mode::Managed);
    if let Some(value) = isolate {
        let words = input.entry("options").or_insert_with(|| json!({}));
        if words.is_null() {
            *words = json!({});
        }
        words[isolate::KEY] = value.into();
    }
    Ok(input)
}

/// The bridge: as named by `--interface-name`, else after the network's ID. Networks with VLANs, and those that only
/// join a bridge, may share it.
fn bridge(network: &Network, options: &Options, used: &Used) -> Result<String, CreateError> {
    let may_share = options.mode == Mode::Unmanaged || options.vlan.is_some();
    match network.network_interface.as_deref().filter(|name| !name.is_empty()) {
        Some(name) if !may_share && used.bridges.iter().any(|other| other == name) => {
            Err(CreateError::BridgeInUse(name.to_owned()))
        }
        Some(name) => Ok(name.to_owned()),
        None if options.mode == Mode::Unmanaged => Err(CreateError::NoBridge),
        None => Ok(network.default_bridge()),
    }
}

/// The subnets that the network lacks: of IPv4 if it has none at all, and with `--ipv6` one of each family.
fn chosen(network: &Network, used: &Used) -> Result<Vec<Subnet>, CreateError> {
    let given = network.subnets();
    let has = |v6: bool| given.iter().any(|one| one.subnet.addr().is_ipv6() == v6);
    let mut subnets = Vec::new();
    if given.is_empty() || (network.ipv6_enabled && !has(false)) {
        subnets.push(used.free_v4().ok_or(CreateError::NoSubnet)?);
    }
    if network.ipv6_enabled && !has(true) {
        subnets.push(unique_v6(&format!("{}{}", network.id, network.name)));
    }
    let gateway = |subnet: IpNet| if network.internal { None } else { first(subnet) };
    Ok(subnets.into_iter().map(|subnet| Subnet { subnet, gateway: gateway(subnet) }).collect())
}

#[cfg(test)]
mod tests {
    use cni_spec::text::hex;
    use sha2::{Digest as _, Sha256};

    use super::*;

    const ID: &str = "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9";

    fn used() -> Used {
        Used {
            subnets: vec!["10.89.0.0/24".parse().unwrap()],
            bridges: vec!["podman1".to_owned()],
            ..Used::default()
        }
    }

    fn with(keys: &Value) -> Result<Value, String> {
        with_isolate(keys, None)
    }

    fn with_isolate(keys: &Value, isolate: Option<&str>) -> Result<Value, String> {
        let mut input = json!({
            "name": "web", "id": ID, "driver": "slipway", "created": "2026-01-02T03:04:05Z", "dns_enabled": true,
            "internal": false, "ipv6_enabled": false, "ipam_options": {}, "labels": {"a": "b"},
        });
        input.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let Value::Object(input) = input else { unreachable!("an object") };
        complete(input, &used(), isolate).map(Value::Object).map_err(|error| error.to_string())
    }

    #[test]
    fn a_network_gets_a_bridge_and_a_free_subnet() {
        let made = with(&json!({})).unwrap();
        let expected = json!({
            "name": "web", "id": ID, "driver": "slipway", "created": "2026-01-02T03:04:05Z", "dns_enabled": false,
            "internal": false, "ipv6_enabled": false, "ipam_options": {"driver": "host-local"}, "labels": {"a": "b"},
            "network_interface": "sw2f259bab", "subnets": [{"subnet": "10.89.1.0/24", "gateway": "10.89.1.1"}],
        });
        assert_eq!(made, expected);
    }

    #[test]
    fn both_families_are_completed() {
        let made = with(&json!({"ipv6_enabled": true})).unwrap();
        let nets: Vec<&str> =
            made["subnets"].as_array().unwrap().iter().filter_map(|one| one["subnet"].as_str()).collect();
        assert_eq!((nets.len(), nets[0]), (2, "10.89.1.0/24"));
        assert!(nets[1].starts_with("fd") && nets[1].ends_with("::/64"), "{nets:?}");
        let given = json!({"subnet": "fd00:7::/64", "gateway": "fd00:7::9", "lease_range": {"start_ip": "fd00:7::100"}});
        let made = with(&json!({"subnets": [given], "ipv6_enabled": true})).unwrap();
        assert_eq!(made["subnets"][0], given, "what was given stays as it is");
        assert_eq!(
            (made["subnets"][1]["gateway"].as_str(), made["ipv6_enabled"].as_bool()),
            (Some("10.89.1.1"), Some(true))
        );
        assert_eq!(with(&json!({"subnets": [given]})).unwrap()["ipv6_enabled"], true);
    }

    #[test]
    fn an_internal_network_has_no_gateway_of_our_choice() {
        let made = with(&json!({"internal": true})).unwrap();
        assert_eq!(made["subnets"], json!([{"subnet": "10.89.1.0/24", "gateway": null}]));
    }

    #[test]
    fn without_ipam_there_are_no_subnets() {
        let made = with(&json!({"ipam_options": {"driver": "none"}, "network_interface": "br-x"})).unwrap();
        assert_eq!((made.get("subnets"), made["network_interface"].as_str()), (None, Some("br-x")));
    }

    #[test]
    fn bridges_of_vlans_and_of_other_programs_are_shared() {
        let shared = |options: Value| json!({"network_interface": "podman1", "options": options, "subnets": [{"subnet": "10.89.0.0/24"}]});
        let made = with(&shared(json!({"mode": "unmanaged"}))).unwrap();
        assert_eq!(made["subnets"][0]["subnet"], "10.89.0.0/24");
        let error = with(&shared(json!({"vlan": "5"}))).unwrap_err();
        assert_eq!(error, "subnet 10.89.0.0/24 is in use: 10.89.0.0/24");
    }

    #[test]
    fn a_network_records_that_it_is_strict_unless_it_says_otherwise() {
        let isolate = |keys: &Value| {
            let made = with_isolate(keys, Some("strict")).unwrap();
            made["options"].get("isolate").and_then(Value::as_str).map(str::to_owned)
        };
        for keys in [json!({}), json!({"options": null}), json!({"options": {"mtu": "1400"}})] {
            assert_eq!(isolate(&keys).as_deref(), Some("strict"), "{keys}");
        }
        assert_eq!(isolate(&json!({"options": {"isolate": "false"}})).as_deref(), Some("false"));
        let unmanaged = json!({"network_interface": "br0", "options": {"mode": "unmanaged"}});
        assert_eq!(isolate(&unmanaged), None);
        assert!(with(&json!({})).unwrap().get("options").is_none());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (keys, text) in [
            (json!({"ipam_options": {"driver": "dhcp"}}), "IPAM driver \"dhcp\" is not supported"),
            (json!({"network_interface": "podman1"}), "bridge podman1 is another network's"),
            (
                json!({"subnets": [{"subnet": "10.89.0.128/25"}]}),
                "subnet 10.89.0.128/25 is in use: 10.89.0.0/24",
            ),
            (json!({"options": {"isolate": "yes"}}), "option isolate=\"yes\" is not true, false or strict"),
            (
                json!({"options": {"mode": "unmanaged"}}),
                "mode=unmanaged needs a bridge: name it with --interface-name",
            ),
            (
                json!({"network_interface": "a-long-bridge", "options": {"vlan": "100"}}),
                "interface name is too long: \"a-long-bridge.100\"",
            ),
        ] {
            assert_eq!(with(&keys).unwrap_err(), text, "{keys}");
        }
    }

    #[test]
    fn a_network_without_an_id_has_a_bridge_of_its_name() {
        let network: Network = serde_json::from_value(json!({"name": "web"})).unwrap();
        let name = network.default_bridge();
        assert_eq!((name.len(), name), (10, format!("sw{}", &hex(&Sha256::digest("web"))[..8])));
    }
}
