// SPDX-License-Identifier: GPL-2.0-or-later

//! The names of the BPF programs' counters and reasons: an interface, in text and JSON. Short container IDs.

use cni_dataplane::ebpf::{CarriedCounter, Counter, Reason};

/// The name of a counter.
pub(super) const fn of_counter(counter: Counter) -> &'static str {
    match counter {
        Counter::ToPodPackets => "to_container_packets",
        Counter::ToPodBytes => "to_container_bytes",
        Counter::FromPodPackets => "from_container_packets",
        Counter::FromPodBytes => "from_container_bytes",
        Counter::Published => "published_flows",
        Counter::Masqueraded => "masqueraded_flows",
        Counter::Passed => "netfilter_flows",
        Counter::Established => "established_flows",
        Counter::Restored => "restored_directions",
        Counter::Errors => "icmp_errors",
        Counter::PortChanged => "changed_source_ports",
        Counter::Sockets => "redirected_sockets",
        Counter::DropTooBig => "too_big",
        Counter::DropWrite => "write_failed",
        Counter::DropNoPort => "no_free_port",
    }
}

/// A counter in words; for one of dropped packets, the reason.
pub(super) const fn about_counter(counter: Counter) -> &'static str {
    match counter {
        Counter::ToPodPackets => "packets put into containers",
        Counter::ToPodBytes => "their bytes, with the link layer's header",
        Counter::FromPodPackets => "packets of containers that were translated and sent",
        Counter::FromPodBytes => "their bytes",
        Counter::Published => "new flows to published ports",
        Counter::Masqueraded => "new flows that are masqueraded",
        Counter::Passed => "new flows that were left to netfilter",
        Counter::Established => "flows that became established",
        Counter::Restored => "directions of flows that had been evicted from the map and were put back",
        Counter::Errors => "translated ICMP errors about translated packets",
        Counter::PortChanged => "flows with another source port, as the container's end was in use",
        Counter::Sockets => "sockets of the node connected to containers: TCP connections, UDP messages",
        Counter::DropTooBig => {
            "larger than the route takes, and may be fragmented, which translated packets cannot be"
        }
        Counter::DropWrite => "the kernel refused to change the packet",
        Counter::DropNoPort => "no source port is free",
    }
}

/// The name of a counter of the programs that carry checked flows.
pub(super) const fn of_carried(counter: CarriedCounter) -> &'static str {
    match counter {
        CarriedCounter::Carried => "carried_packets",
        CarriedCounter::Asked => "recorded_packets",
        CarriedCounter::Checked => "checked_packets",
        CarriedCounter::Unlike => "changed_packets",
        CarriedCounter::DroppedFar => "forged_end",
        CarriedCounter::DroppedWrite => "write_failed",
    }
}

/// A counter of the programs that carry checked flows in words.
pub(super) const fn about_carried(counter: CarriedCounter) -> &'static str {
    match counter {
        CarriedCounter::Carried => "packets that the BPF programs carried",
        CarriedCounter::Asked => "packets that were recorded before they passed the kernel's stack",
        CarriedCounter::Checked => "recorded packets that came out of the kernel's stack",
        CarriedCounter::Unlike => {
            "recorded packets that came out changed in another way than the BPF programs can"
        }
        CarriedCounter::DroppedFar => "FIN and RST whose sequence number is far from the connection's",
        CarriedCounter::DroppedWrite => "the kernel refused to change the packet",
    }
}

/// The name of a reason to leave a flow or a packet to netfilter.
pub(super) const fn of_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Direct => "direct",
        Reason::Mtu => "mtu",
        Reason::Full => "map_full",
        Reason::PortCollision => "source_port_collision",
        Reason::NoPort => "no_free_port",
        Reason::NodeSocket => "node_socket",
        Reason::UnknownAddress => "unknown_address",
        Reason::NotForwarding => "forwarding_off",
        Reason::PodGone => "container_gone",
        Reason::NoAddress => "no_masquerade_address",
        Reason::Route => "no_uplink_route",
        Reason::TooBig => "too_big",
        Reason::Ttl => "ttl",
        Reason::Fragment => "fragment",
        Reason::Headers => "extension_headers",
        Reason::Pod => "container_policy",
        Reason::Earlier => "tracked_by_conntrack",
        Reason::Router => "other_router",
    }
}

/// A reason in words.
pub(super) const fn why_left(reason: Reason) -> &'static str {
    match reason {
        Reason::Direct => "sent to the container's own address: nothing to translate",
        Reason::Mtu => "the uplink's MTU and the container's differ",
        Reason::Full => "the map of flows is full",
        Reason::PortCollision => "source port collision: no free port",
        Reason::NoPort => "no port for masquerade is free towards this destination",
        Reason::NodeSocket => "a socket of the node has this port",
        Reason::UnknownAddress => {
            "an address of the node that the programs do not know: `slipway node setup` fixes it"
        }
        Reason::NotForwarding => "forwarding is off at the interface",
        Reason::PodGone => "the container is gone",
        Reason::NoAddress => "no address to masquerade with: the uplink has none, several, or a new one",
        Reason::Route => "the route leads to no uplink",
        Reason::TooBig => "larger than the route takes: the kernel answers with an ICMP error",
        Reason::Ttl => "the time to live ends here: the kernel answers with an ICMP error",
        Reason::Fragment => "a fragment without its first fragment",
        Reason::Headers => "extension headers that the programs do not read",
        Reason::Pod => "the container has a rate limit or is isolated",
        Reason::Earlier => "conntrack had the flow before the programs served the container",
        Reason::Router => "the container sent it to another router on its link",
    }
}

/// The first twelve characters of a container ID, as container tools show it.
pub(super) fn short(container_id: &str) -> String {
    container_id.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipway_cli::checks;

    #[test]
    fn the_page_has_each_name_and_no_other() {
        let cells = |name: &str, about: &str| vec![format!("`{name}`"), about.to_owned()];
        let reasons: Vec<_> =
            Reason::ALL.into_iter().map(|one| cells(of_reason(one), why_left(one))).collect();
        assert_eq!(checks::rows("Reasons"), reasons);
        let of = |counter| cells(of_counter(counter), about_counter(counter));
        let (dropped, counted): (Vec<Counter>, Vec<Counter>) =
            Counter::ALL.into_iter().partition(|one| one.is_drop());
        let carried = |counter| cells(of_carried(counter), about_carried(counter));
        let (lost, carried): (Vec<_>, Vec<_>) =
            CarriedCounter::ALL.map(|one| (one.is_drop(), carried(one))).into_iter().partition(|one| one.0);
        let rows = |first: Vec<Counter>, second: Vec<(bool, Vec<String>)>| {
            let mut rows: Vec<_> = first.into_iter().map(of).collect();
            // Both kinds of programs have some counters.
            for (_, row) in second {
                if !rows.contains(&row) {
                    rows.push(row);
                }
            }
            rows
        };
        assert_eq!(checks::rows("Counters"), rows(counted, carried));
        assert_eq!(checks::rows("Counters of dropped packets"), rows(dropped, lost));
    }

    #[test]
    fn names_differ() {
        let mut reasons: Vec<&str> = Reason::ALL.into_iter().map(of_reason).collect();
        let mut counters: Vec<&str> = Counter::ALL.into_iter().map(of_counter).collect();
        for (names, count) in [(&mut reasons, Reason::ALL.len()), (&mut counters, Counter::ALL.len())] {
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }
}
