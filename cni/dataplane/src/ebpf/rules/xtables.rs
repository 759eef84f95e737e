// SPDX-License-Identifier: GPL-2.0-or-later

//! Matches and targets of iptables: in rules of the legacy tables, and in those that `iptables-nft` makes.
//!
//! The layouts of their data are in `linux/netfilter/xt_*.h`.

use super::judge::Reader;

fn byte(info: &[u8], at: usize) -> u8 {
    info.get(at).copied().unwrap_or_default()
}

fn short(info: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([byte(info, at), byte(info, at + 1)])
}

/// Matches whose result is the same for all packets of a flow that are carried.
const BY_FLOW: [&str; 26] = [
    "addrtype",
    "cgroup",
    "cluster",
    "comment",
    "connlabel",
    "connmark",
    "devgroup",
    "dscp",
    "helper",
    "iprange",
    "ipvs",
    "mac",
    "mark",
    "multiport",
    "nfacct",
    "owner",
    "physdev",
    "pkttype",
    "policy",
    "realm",
    "rpfilter",
    "set",
    "socket",
    "tcpmss",
    "time",
    "tos",
];
/// Matches that no carried packet has.
const OF_OTHERS: [&str; 15] = [
    "ah",
    "dccp",
    "dst",
    "esp",
    "eui64",
    "frag",
    "hbh",
    "icmp",
    "icmp6",
    "ipcomp",
    "ipv6header",
    "mh",
    "osf",
    "rt",
    "sctp",
];
/// Targets that neither decide about packets nor change any.
const WITHOUT_EFFECT: [&str; 7] = ["AUDIT", "LED", "LOG", "NFLOG", "RATEEST", "TRACE", "ULOG"];
/// Targets that do the same to all packets of a flow that are carried, or something that shows when a packet comes out.
const BY_FLOW_TARGETS: [&str; 24] = [
    "",
    "CHECKSUM",
    "CLASSIFY",
    "CONNMARK",
    "CONNSECMARK",
    "DNAT",
    "DSCP",
    "ERROR",
    "HL",
    "HMARK",
    "IDLETIMER",
    "MARK",
    "MASQUERADE",
    "NETMAP",
    "NOTRACK",
    "REDIRECT",
    "REJECT",
    "SECMARK",
    "SET",
    "SNAT",
    "SYNPROXY",
    "TCPMSS",
    "TOS",
    "TPROXY",
];

pub(super) fn judge_match(reader: &mut Reader<'_>, name: &str, info: &[u8]) {
    match name {
        "tcp" => tcp(reader, info),
        "udp" | "udplite" => {
            reader.only_protocol(if name == "udp" { 17 } else { 136 });
            ports(reader, info, byte(info, 8));
        }
        "conntrack" => conntrack(reader, info),
        // `struct xt_state_info`: a mask.
        "state" => {
            let mask = u32::from(short(info, 0));
            reader.state(u32::MAX, mask, true);
        }
        _ if OF_OTHERS.contains(&name) => reader.applies_to_none(),
        _ if BY_FLOW.contains(&name) => {}
        _ => reader.looks_at_each(format!("-m {name}")),
    }
}

/// Source and destination ports, first and last each, and the flags that negate them.
fn ports(reader: &mut Reader<'_>, info: &[u8], negation: u8) {
    for (at, flag) in [(0, 1), (4, 2)] {
        if negation & flag == 0 {
            reader.only_port(short(info, at), short(info, at + 2));
        }
    }
}

/// `struct xt_tcp`.
fn tcp(reader: &mut Reader<'_>, info: &[u8]) {
    const NOT_FLAGS: u8 = 4;
    reader.only_protocol(6);
    let [option, mask, flags, negation] = [8, 9, 10, 11].map(|at| byte(info, at));
    ports(reader, info, negation);
    if mask != 0 {
        reader.tcp_flags(mask, flags, negation & NOT_FLAGS == 0);
    }
    if option != 0 {
        reader.looks_at_each(format!("--tcp-option {option}"));
    }
}

/// `struct xt_conntrack_mtinfo3`, and earlier ones, whose fields are at the same places: 136 bytes of addresses and limits,
/// five numbers, then the flags of what is asked for and of what is negated, and the states.
fn conntrack(reader: &mut Reader<'_>, info: &[u8]) {
    const STATE: u16 = 1;
    const EXPIRES: u16 = 1 << 7;
    let [asked, negated, state] = [146, 148, 150].map(|at| short(info, at));
    if asked & EXPIRES != 0 {
        reader.looks_at_each("-m conntrack --ctexpire");
    }
    if asked & STATE != 0 && negated & STATE == 0 {
        // The first revision has 8 bits.
        reader.state(u32::MAX, u32::from(state & 0xff), true);
    }
}

pub(super) fn judge_target(reader: &mut Reader<'_>, name: &str, info: &[u8]) {
    /// Offset of the helper's name in `struct xt_ct_target_info`.
    const HELPER: usize = 12;
    match name {
        _ if WITHOUT_EFFECT.contains(&name) => {}
        _ if BY_FLOW_TARGETS.contains(&name) => reader.has_effect = true,
        "CT" => {
            reader.has_effect = true;
            if byte(info, HELPER) != 0 {
                reader.acts_on_each("CT --helper");
            }
        }
        _ => reader.acts_on_each(name),
    }
}
