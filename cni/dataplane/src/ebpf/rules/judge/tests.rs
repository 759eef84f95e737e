// SPDX-License-Identifier: GPL-2.0-or-later

use cni_netlink::message::Attributes;
use slipway_ebpf_abi::IPPROTO_UDP;

use super::*;
use crate::ebpf::rules::tables::EXTENSIONS;

type Body = Box<dyn Fn(&mut Attributes)>;

/// An expression: its name, and its attributes.
fn expr(name: &'static str, body: impl Fn(&mut Attributes) + 'static) -> (&'static str, Body) {
    (name, Box::new(body))
}

fn plain(name: &'static str) -> (&'static str, Body) {
    expr(name, |_| {})
}

/// `payload` into register 1.
fn load(base: u32, offset: u32, len: u32) -> (&'static str, Body) {
    expr("payload", move |body| {
        body.be32(1, 1).be32(2, base).be32(3, offset).be32(4, len);
    })
}

fn meta(key: u32) -> (&'static str, Body) {
    expr("meta", move |body| {
        body.be32(2, key);
    })
}

fn ct(key: u32) -> (&'static str, Body) {
    expr("ct", move |body| {
        body.be32(2, key);
    })
}

fn cmp(operator: u32, value: &'static [u8]) -> (&'static str, Body) {
    expr("cmp", move |body| {
        body.be32(1, 1).be32(2, operator).nest(3, |data| {
            data.attr(1, value);
        });
    })
}

fn and(mask: &'static [u8]) -> (&'static str, Body) {
    expr("bitwise", move |body| {
        body.nest(4, |data| {
            data.attr(1, mask);
        });
        body.nest(5, |data| {
            data.attr(1, &[0; 4][..mask.len()]);
        });
    })
}

/// A verdict: `NF_DROP` is 0, `NFT_CONTINUE` -1, `NFT_JUMP` -3.
fn verdict(code: i32, chain: Option<&'static str>) -> (&'static str, Body) {
    expr("immediate", move |body| {
        body.be32(1, 0).nest(2, |data| {
            data.nest(2, |verdict| {
                verdict.be32(1, code.cast_unsigned());
                if let Some(chain) = chain {
                    verdict.text(2, chain);
                }
            });
        });
    })
}

fn drop() -> (&'static str, Body) {
    verdict(0, None)
}

fn object(kind: u32) -> (&'static str, Body) {
    expr("objref", move |body| {
        body.be32(1, kind);
    })
}

fn judged(rule: &[(&'static str, Body)]) -> Judgement {
    let bytes = Attributes::encode(|list| {
        for (name, body) in rule {
            list.nest(1, |element| {
                element.text(1, name).nest(2, body);
            });
        }
    });
    judge(&bytes, Flows::all(), &BTreeSet::from(["limited".to_owned()]), EXTENSIONS)
}

#[track_caller]
fn holds(rule: &[(&'static str, Body)], what: &str, flows: Flows, port: Option<u16>) {
    assert_eq!(judged(rule).hold, Some(Hold { what: what.to_owned(), flows, port }));
}

fn tcp() -> Flows {
    Flows::of_protocol(IPPROTO_TCP)
}

fn udp() -> Flows {
    Flows::of_protocol(IPPROTO_UDP)
}

fn lookup(set: &'static str) -> (&'static str, Body) {
    expr("lookup", move |body| {
        body.text(1, set);
    })
}

/// Nothing in these rules differs between packets of a flow that are carried.
#[test]
fn rules_about_flows_hold_none() {
    let state = |value: &'static [u8], operator| {
        vec![ct(0), and(&[0xff; 4]), cmp(operator, value), plain("limit"), drop()]
    };
    let new = const { &8_u32.to_ne_bytes() };
    let rules: Vec<Vec<(&str, Body)>> = vec![
        vec![drop()],
        // An address, its type by fib, an interface, a mark: then the verdict.
        vec![load(1, 12, 4), cmp(0, &[10, 0, 0, 1]), plain("fib"), meta(6), meta(3), drop()],
        // A limit that only counts and logs.
        vec![plain("limit"), plain("log"), plain("counter"), verdict(-1, None)],
        // A limit of SYNs, of another protocol, of a set's elements that limit nothing.
        vec![load(2, 13, 1), and(&[0x17]), cmp(0, &[0x02]), plain("limit"), drop()],
        vec![meta(16), cmp(0, &[1]), plain("limit"), drop()],
        vec![load(2, 2, 2), lookup("plain"), drop()],
        vec![object(1), drop()],
    ];
    for (number, rule) in rules.iter().enumerate() {
        assert_eq!(judged(rule).hold, None, "rule {number}");
    }
    // New connections: of UDP a new flow may be carried, as conntrack calls it new until the reply.
    holds(&state(new, 0), "limit", udp(), None);
}

#[test]
fn rules_about_packets_hold_the_flows_to_which_they_can_apply() {
    let v4_udp = udp().and(Flows::of_family(AddressFamily::V4));
    holds(&[plain("limit"), drop()], "limit", Flows::all(), None);
    holds(&[plain("dup")], "dup", Flows::all(), None);
    holds(&[plain("queue")], "queue", Flows::all(), None);
    holds(&[plain("something new")], "something new", Flows::all(), None);
    holds(
        &[
            meta(15),
            cmp(0, &[2]),
            meta(16),
            cmp(0, &[17]),
            load(2, 2, 2),
            cmp(0, &[0, 53]),
            plain("quota"),
            drop(),
        ],
        "quota",
        v4_udp,
        Some(53),
    );
    holds(&[meta(16), cmp(1, &[6]), plain("numgen"), drop()], "numgen", udp(), None);
    // A port that is excluded, or a range of them, restricts nothing.
    holds(&[load(2, 2, 2), cmp(1, &[0, 53]), plain("limit"), drop()], "limit", Flows::all(), None);
    holds(&[load(2, 2, 2), plain("range"), plain("limit"), drop()], "limit", Flows::all(), None);
    holds(&[meta(0), cmp(4, &[0, 0, 5, 0]), drop()], "meta length", Flows::all(), None);
    holds(&[ct(15), cmp(4, &[0; 8]), drop()], "ct bytes", Flows::all(), None);
    holds(
        &[load(1, 2, 2), cmp(4, &[5, 0]), drop()],
        "bytes 2 to 3 of the network header",
        Flows::all(),
        None,
    );
    // PSH, of which packets with ACK may have both.
    holds(&[load(2, 13, 1), and(&[0x08]), cmp(0, &[0x08]), drop()], "tcp flags", tcp(), None);
    holds(&[lookup("limited"), drop()], "elements of set limited that limit packets", Flows::all(), None);
    for (kind, what) in [(2, "quota"), (3, "ct helper"), (4, "limit"), (5, "ct count"), (9, "ct expectation")]
    {
        holds(&[object(kind), drop()], what, Flows::all(), None);
    }
    let window = expr("exthdr", |body| {
        body.be32(1, 1).attr(2, &[3]).be32(6, 1);
    });
    holds(&[window, drop()], "tcp option 3", tcp(), None);
    let meter = expr("dynset", |body| {
        body.nest(7, |expression| {
            expression.text(1, "limit");
        });
    });
    holds(&[meter, drop()], "a meter with limit", Flows::all(), None);
    let time_to_live = expr("payload", |body| {
        body.be32(5, 1).be32(2, 1).be32(3, 8).be32(4, 1);
    });
    holds(&[time_to_live], "a change of bytes 8 to 8 of the network header", Flows::all(), None);
}

/// Of the type of service, the packets of a carried flow have one DSCP, but not the same report of congestion.
#[test]
fn rules_about_congestion_hold_the_flows() {
    let of_family = |number: &'static [u8], rule: Vec<(&'static str, Body)>| {
        [meta(15), cmp(0, number)].into_iter().chain(rule).collect::<Vec<_>>()
    };
    let write = |offset: u32, len: u32| {
        expr("payload", move |body| {
            body.be32(5, 1).be32(2, 1).be32(3, offset).be32(4, len);
        })
    };
    let (v4, v6) = (Flows::of_family(AddressFamily::V4), Flows::of_family(AddressFamily::V6));
    for rule in [
        of_family(&[2], vec![load(1, 1, 1), and(&[0xfc]), cmp(0, &[0x48]), drop()]),
        of_family(&[10], vec![load(1, 0, 2), and(&[0x0f, 0xc0]), cmp(0, &[0x04, 0x80]), drop()]),
        // `ip dscp set`
        of_family(&[2], vec![load(1, 0, 2), and(&[0xff, 0x03]), write(0, 2)]),
    ] {
        assert_eq!(judged(&rule).hold, None);
    }
    // `ip ecn ce`, `ip6 ecn ce`, the whole byte.
    holds(&of_family(&[2], vec![load(1, 1, 1), and(&[0x03]), cmp(0, &[3]), drop()]), "ecn", v4, None);
    holds(&of_family(&[10], vec![load(1, 1, 1), and(&[0x30]), cmp(0, &[0x30]), drop()]), "ecn", v6, None);
    holds(&of_family(&[2], vec![load(1, 1, 1), cmp(0, &[3]), drop()]), "ecn", v4, None);
    // `ip ecn set` to zero, and the whole byte.
    let change = "a change of ecn";
    holds(&of_family(&[2], vec![load(1, 0, 2), and(&[0xff, 0xfc]), write(0, 2)]), change, v4, None);
    holds(&of_family(&[2], vec![write(1, 1)]), change, v4, None);
}

#[test]
fn chains_and_maps_are_followed() {
    let map = expr("lookup", |body| {
        body.text(1, "services").be32(3, 0);
    });
    let found = judged(&[plain("limit"), verdict(-3, Some("slow")), map]);
    assert_eq!(found.chains, BTreeSet::from(["slow".to_owned()]));
    assert_eq!(found.maps, BTreeSet::from(["services".to_owned()]));
    assert_eq!(found.hold.map(|hold| hold.what).as_deref(), Some("limit"));
}

#[test]
fn extensions_of_iptables_are_judged_by_their_name() {
    let extension = |kind: &'static str, name: &'static str| {
        expr(kind, move |body| {
            body.text(1, name).attr(3, &[0; 16]);
        })
    };
    holds(&[extension("target", "TEE")], "TEE", Flows::all(), None);
    holds(&[extension("match", "statistic"), drop()], "-m statistic", Flows::all(), None);
    assert_eq!(judged(&[extension("match", "comment"), extension("target", "MARK")]).hold, None);
}
