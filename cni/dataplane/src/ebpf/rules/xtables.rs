// SPDX-License-Identifier: GPL-2.0-or-later

//! Judges the matches and targets of iptables, in rules of the legacy tables and in those of `iptables-nft`.
//!
//! The layouts of their data are in `linux/netfilter/xt_*.h`.

use super::judge::Reader;

fn byte(info: &[u8], at: usize) -> u8 {
    info.get(at).copied().unwrap_or_default()
}

fn short(info: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([byte(info, at), byte(info, at + 1)])
}

/// Matches whose result is the same for all carried packets of a flow.
const BY_FLOW: [&str; 23] = [
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
    "owner",
    "physdev",
    "pkttype",
    "policy",
    "realm",
    "rpfilter",
    "socket",
    "tcpmss",
    "time",
];
/// Matches that apply to no carried packet.
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
/// Targets that neither decide about packets nor change them.
const WITHOUT_EFFECT: [&str; 7] = ["AUDIT", "LED", "LOG", "NFLOG", "RATEEST", "TRACE", "ULOG"];
/// Targets that treat all carried packets of a flow alike, or whose effect the programs see when a packet comes out
/// of the stack.
const BY_FLOW_TARGETS: [&str; 23] = [
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
    "TPROXY",
];

/// Handles a match. An object of `nfacct` may have a quota, which the rule does not show. From `struct
/// xt_set_info_match_v3` on, these bytes of `set` contain limits for an element's counters.
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
        // `struct xt_tos_match_info`: the mask comes first.
        "tos" if byte(info, 0) & CONGESTION != 0 => reader.looks_at_each("-m tos with bits of ecn"),
        "tos" => {}
        "set" if (8..40).any(|at| byte(info, at) != 0) => reader.looks_at_each("-m set with counters"),
        "set" => {}
        _ if OF_OTHERS.contains(&name) => reader.applies_to_none(),
        _ if BY_FLOW.contains(&name) => {}
        _ => reader.looks_at_each(format!("-m {name}")),
    }
}

/// The bits of the type of service that report congestion (RFC 3168), which differ between the packets of a flow.
const CONGESTION: u8 = 0x03;

/// Handles ports: the first and last source port, the first and last destination port, and the flags that negate
/// them.
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

/// Handles `struct xt_conntrack_mtinfo3`. Earlier revisions have these fields at the same offsets: 136 bytes of
/// addresses and limits, five numbers, then the flags that say what is matched and what is negated, and the states.
fn conntrack(reader: &mut Reader<'_>, info: &[u8]) {
    const STATE: u16 = 1;
    const EXPIRES: u16 = 1 << 7;
    let [asked, negated, state] = [146, 148, 150].map(|at| short(info, at));
    if asked & EXPIRES != 0 {
        reader.looks_at_each("-m conntrack --ctexpire");
    }
    if asked & STATE != 0 && negated & STATE == 0 {
        // The first revision has only 8 bits.
        reader.state(u32::MAX, u32::from(state & 0xff), true);
    }
}

pub(super) fn judge_target(reader: &mut Reader<'_>, name: &str, info: &[u8]) {
    /// Offset of the helper's name in `struct xt_ct_target_info`.
    const HELPER: usize = 12;
    match name {
        _ if WITHOUT_EFFECT.contains(&name) => {}
        _ if BY_FLOW_TARGETS.contains(&name) => reader.has_effect = true,
        // `struct xt_tos_target_info`: a value and a mask.
        "TOS" if (byte(info, 0) | byte(info, 1)) & CONGESTION != 0 => {
            reader.acts_on_each("TOS with bits of ecn");
        }
        "TOS" => reader.has_effect = true,
        "CT" => {
            reader.has_effect = true;
            if byte(info, HELPER) != 0 {
                reader.acts_on_each("CT --helper");
            }
        }
        _ => reader.acts_on_each(name),
    }
}

#[cfg(test)]
mod tests {
    use cni_kernel::AddressFamily;
    use cni_kernel::xtables::{RawExtension, RawRule};

    use super::super::hold::{Flows, Hold};
    use super::super::tables::judge_legacy;

    const TCP: u8 = 6;
    const UDP: u8 = 17;

    fn extension(name: &str, data: &[u8]) -> RawExtension {
        RawExtension { name: name.to_owned(), revision: 0, data: data.to_vec() }
    }

    /// The judgement of a rule with an IPv4 protocol, one match and a target.
    fn judged(protocol: u8, of_match: (&str, &[u8]), target: (&str, &[u8])) -> Option<Hold> {
        let rule = RawRule {
            protocol,
            matches: vec![extension(of_match.0, of_match.1)],
            target: extension(target.0, target.1),
            ..RawRule::default()
        };
        judge_legacy(AddressFamily::V4, &rule)
    }

    /// `struct xt_tcp` of a destination port, or of all.
    fn tcp(port: Option<u16>, [option, mask, flags, negation]: [u8; 4]) -> Vec<u8> {
        let ports = [0, u16::MAX, port.unwrap_or_default(), port.unwrap_or(u16::MAX)];
        ports.into_iter().flat_map(u16::to_ne_bytes).chain([option, mask, flags, negation]).collect()
    }

    /// `struct xt_conntrack_mtinfo3` that asks for these things, with a state.
    fn conntrack(asked: u16, negated: u16, state: u16) -> Vec<u8> {
        let mut data = vec![0; 164];
        for (at, value) in [(146, asked), (148, negated), (150, state)] {
            data[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        }
        data
    }

    const DROP: (&str, &[u8]) = ("", &[]);

    #[test]
    fn what_is_the_same_for_a_flow_holds_none() {
        for name in ["addrtype", "comment", "mark", "set", "tos", "multiport", "icmp", "esp"] {
            assert_eq!(judged(0, (name, &[0; 64]), DROP), None, "{name}");
        }
        for name in ["MARK", "DNAT", "TCPMSS", "REJECT", "LOG", "CT"] {
            assert_eq!(judged(0, ("comment", &[]), (name, &[0; 64])), None, "{name}");
        }
        // A limit that only logs, one of SYNs (`--syn`), and one of new connections.
        assert_eq!(judged(0, ("limit", &[0; 40]), ("LOG", &[])), None);
        let syn = [extension("tcp", &tcp(None, [0, 0x17, 0x02, 0])), extension("limit", &[0; 40])];
        let rule =
            RawRule { protocol: TCP, matches: syn.into(), target: extension("", &[]), ..RawRule::default() };
        assert_eq!(judge_legacy(AddressFamily::V4, &rule), None);
        assert_eq!(judged(TCP, ("conntrack", &conntrack(1, 0, 8)), ("TEE", &[])), None);
    }

    #[test]
    fn what_differs_between_packets_holds_the_flows() {
        let of = |protocol: u8| Flows::of_family(AddressFamily::V4).and(Flows::of_protocol(protocol));
        let all = Flows::of_family(AddressFamily::V4);
        let hold = |what: &str, flows, port| Some(Hold { what: what.to_owned(), flows, port });
        assert_eq!(judged(0, ("comment", &[]), ("TEE", &[])), hold("TEE", all, None));
        assert_eq!(judged(UDP, ("length", &[0; 8]), DROP), hold("-m length", of(UDP), None));
        assert_eq!(judged(0, ("hashlimit", &[]), DROP), hold("-m hashlimit", all, None));
        assert_eq!(judged(0, ("a new one", &[]), DROP), hold("-m a new one", all, None));
        assert_eq!(judged(0, ("comment", &[]), ("NFQUEUE", &[])), hold("NFQUEUE", all, None));
        assert_eq!(
            judged(TCP, ("tcp", &tcp(Some(80), [0; 4])), ("TEE", &[])),
            hold("TEE", of(TCP), Some(80))
        );
        // Packets and bytes that an object counts, and the bits that report congestion.
        assert_eq!(judged(0, ("nfacct", &[0; 40]), DROP), hold("-m nfacct", all, None));
        let mut counters = [0; 48];
        counters[16] = 3;
        assert_eq!(judged(0, ("set", &counters), DROP), hold("-m set with counters", all, None));
        assert_eq!(judged(0, ("tos", &[0xfc, 0x10, 0]), DROP), None);
        assert_eq!(judged(0, ("tos", &[0x03, 0x03, 0]), DROP), hold("-m tos with bits of ecn", all, None));
        assert_eq!(judged(0, ("comment", &[]), ("TOS", &[0, 0xfc])), None);
        assert_eq!(judged(0, ("comment", &[]), ("TOS", &[0, 0x03])), hold("TOS with bits of ecn", all, None));
        // A negated port (`! --dport`), flags that some packets with ACK have, an option.
        assert_eq!(
            judged(TCP, ("tcp", &tcp(Some(80), [0, 0, 0, 2])), ("TEE", &[])),
            hold("TEE", of(TCP), None)
        );
        assert_eq!(
            judged(TCP, ("tcp", &tcp(None, [0, 0x08, 0x08, 0])), DROP),
            hold("tcp flags", of(TCP), None)
        );
        assert_eq!(
            judged(TCP, ("tcp", &tcp(None, [8, 0, 0, 0])), DROP),
            hold("--tcp-option 8", of(TCP), None)
        );
        // Established connections, all but new ones, and those that expire.
        let established = judged(TCP, ("conntrack", &conntrack(1, 0, 2)), ("TEE", &[]));
        assert_eq!(established, hold("TEE", of(TCP), None));
        assert_eq!(judged(TCP, ("conntrack", &conntrack(1, 1, 8)), ("TEE", &[])), hold("TEE", of(TCP), None));
        let expiring = judged(0, ("conntrack", &conntrack(1 << 7, 0, 0)), DROP);
        assert_eq!(expiring, hold("-m conntrack --ctexpire", all, None));
        let mut helper = [0; 32];
        helper[12..15].copy_from_slice(b"ftp");
        assert_eq!(judged(0, ("comment", &[]), ("CT", &helper)), hold("CT --helper", all, None));
    }

    /// Data that is shorter than its structure counts as zeros.
    #[test]
    fn short_data_is_read_as_zeros() {
        for name in ["tcp", "udp", "conntrack", "state"] {
            assert_eq!(judged(0, (name, &[]), DROP), None, "{name}");
        }
    }
}
