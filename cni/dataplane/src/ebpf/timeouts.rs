// SPDX-License-Identifier: GPL-2.0-or-later

//! The programs' timeouts of idle flows: those of conntrack on this node.

use cni_kernel::sysctl;
use slipway_ebpf_abi::{Config, State, Timeouts, ticks};

/// The settings below `net.netfilter.nf_conntrack_`, in seconds
/// (Documentation/networking/nf_conntrack-sysctl.rst). Pings are one state here: the longer of their two
/// settings counts.
const SETTINGS: &[(State, &str)] = &[
    (State::SynSent, "tcp_timeout_syn_sent"),
    (State::SynReceived, "tcp_timeout_syn_recv"),
    (State::Established, "tcp_timeout_established"),
    (State::FinWait, "tcp_timeout_fin_wait"),
    (State::CloseWait, "tcp_timeout_close_wait"),
    (State::LastAck, "tcp_timeout_last_ack"),
    (State::TimeWait, "tcp_timeout_time_wait"),
    (State::Close, "tcp_timeout_close"),
    (State::Unreplied, "udp_timeout"),
    (State::Replied, "udp_timeout"),
    (State::Stream, "udp_timeout_stream"),
    (State::Echo, "icmp_timeout"),
    (State::Echo, "icmpv6_timeout"),
];

/// Reads the timeouts of this network namespace; conntrack's defaults where they cannot be read.
pub(super) fn of_this_node() -> Timeouts {
    read(|name| sysctl::get(&format!("net/netfilter/nf_conntrack_{name}")).ok())
}

fn read(setting: impl Fn(&str) -> Option<String>) -> Timeouts {
    let mut timeouts = Config::DEFAULT_SECONDS.map(ticks);
    let mut is_set = [false; slipway_ebpf_abi::STATES];
    for (state, name) in SETTINGS {
        let Some(seconds) = setting(name).and_then(|text| text.trim().parse().ok()) else { continue };
        let state = *state as usize;
        timeouts[state] = if is_set[state] { timeouts[state].max(ticks(seconds)) } else { ticks(seconds) };
        is_set[state] = true;
    }
    timeouts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_a_setting() {
        for state in State::ALL {
            assert!(SETTINGS.iter().any(|(own, _)| *own == state), "{state:?}");
        }
    }

    #[test]
    fn the_nodes_settings_count_and_defaults_where_it_has_none() {
        let setting = |name: &str| match name {
            "tcp_timeout_established" => Some("3600".to_owned()),
            "udp_timeout" => Some("10".to_owned()),
            "icmp_timeout" => Some("5".to_owned()),
            "icmpv6_timeout" => Some("7".to_owned()),
            "tcp_timeout_close" => Some("nonsense".to_owned()),
            _ => None,
        };
        let (read, usual) = (read(setting), Config::DEFAULT_SECONDS.map(ticks));
        let mut expected = usual;
        expected[State::Established as usize] = ticks(3600);
        expected[State::Unreplied as usize] = ticks(10);
        expected[State::Replied as usize] = ticks(10);
        expected[State::Echo as usize] = ticks(7);
        assert_eq!(read, expected);
        assert_eq!(super::read(|_| None), usual);
        assert_eq!(super::read(|_| Some("0".to_owned()))[State::Echo as usize], 0);
    }
}
