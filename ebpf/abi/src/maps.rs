// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Names and default sizes of the pinned maps, and names of the BPF programs. The object file and the pins
//! use the same names. The kernel limits the name of a map to 15 bytes (BPF_OBJ_NAME_LEN, less the final
//! zero).

/// Array of `u32`. The element [`EPOCH_AT`] is the epoch. It is 0 until the set-up is complete. When the
/// rules may have changed, user space writes another value, and netfilter then checks each flow again. The
/// element [`HELD_AT`] says which flows stay with netfilter.
pub const EPOCH: &str = "epoch";
pub const EPOCH_AT: u32 = 0;
/// The flows that stay with netfilter: bits of [`held_bit`], and [`HELD_PORTS`].
pub const HELD_AT: u32 = 1;
pub const EPOCH_SIZE: u32 = 2;
/// Array with a single `[u64; KEYS]`: the random keys of the [hash](crate::Keyed).
pub const HASH_KEYS: &str = "hashkeys";

/// The bit of [`HELD_AT`] that makes the programs look into [`PORTS`].
pub const HELD_PORTS: u32 = 1 << 4;

/// The bit of [`HELD_AT`] for all flows of a protocol in one IP family.
#[inline(always)]
#[must_use]
pub const fn held_bit(is_v6: bool, protocol: u32) -> u32 {
    let bit = if protocol == crate::IPPROTO_TCP as u32 { 1 } else { 2 };
    if is_v6 { bit << 2 } else { bit }
}

/// Hash: [`held_port`] → 1. Flows with such a port, before or after translation, stay with netfilter.
pub const PORTS: &str = "heldports";
pub const PORTS_SIZE: u32 = 4096;

/// The key of a port in [`PORTS`]; the port is in network byte order.
#[inline(always)]
#[must_use]
pub const fn held_port(protocol: u32, port: crate::Port) -> u32 {
    protocol << 16 | port.0 as u32
}

/// Array of `u64` that only user space uses. The element [`GENERATION_AT`] is the generation of the ruleset
/// that was read last. The element [`FOLLOWED_AT`] is the time at which slipwayd last looked at the rules, in
/// seconds since the boot.
pub const RULES_READ: &str = "rulesread";
pub const GENERATION_AT: u32 = 0;
pub const FOLLOWED_AT: u32 = 1;
pub const RULES_READ_SIZE: u32 = 2;

/// LRU hash: index of the host's end of a container's link → [`Container`](crate::Container).
pub const CONTAINERS: &str = "containers";
pub const CONTAINERS_SIZE: u32 = 8192;
/// LRU hash: [`FlowKey4`](crate::FlowKey4) → [`Entry4`](crate::Entry4).
pub const CARRIED4: &str = "carried4";
/// LRU hash: [`FlowKey6`](crate::FlowKey6) → [`Entry6`](crate::Entry6).
pub const CARRIED6: &str = "carried6";
/// Per-CPU array with a single `[u64; COUNTERS]`, indexed by [`Counter`](crate::Counter).
pub const COUNTS: &str = "carriedcounts";
/// Hash: index of an uplink → 1. The list of the uplinks with programs, by which an ADD notices that one of
/// them has lost its programs, and the programs tell an uplink from a container's link.
pub const UPLINKS: &str = "flowuplinks";
/// Array with a single `u64` that only user space uses: the cookie of the network namespace that the programs
/// serve, or 0 if the kernel does not return it (before Linux 5.14).
pub const HOME: &str = "flowhome";
/// Array: [`Record4`](crate::Record4).
pub const PENDING4: &str = "pending4";
/// Array: [`Record6`](crate::Record6).
pub const PENDING6: &str = "pending6";
/// Per-CPU array with a single `u32`: which of its records the processor used last.
pub const CURSORS: &str = "cursors";
/// Array of [`Young`](crate::Young): counts of the packets of flows without an entry, and of the entries of
/// TCP.
pub const YOUNG: &str = "young";
/// The pinned maps. Because the maps are pinned, all programs share them, even if one process loaded some of
/// the programs and was killed, and another process loaded the rest.
pub const ALL: [&str; 14] = [
    EPOCH, CARRIED4, CARRIED6, COUNTS, UPLINKS, HOME, PENDING4, PENDING6, CURSORS, YOUNG, HASH_KEYS, PORTS,
    RULES_READ, CONTAINERS,
];

/// Default size of [`CARRIED4`] and [`CARRIED6`]. Each flow takes two elements, one for each direction.
pub const CARRIED_SIZE: u32 = 131_072;
/// The number of records of each processor; a power of two. A packet usually passes the kernel's stack in the
/// softirq in which it arrived, so only a few records are in use at a time.
pub const PENDING_EACH: u32 = 1024;
/// The number of processors with records of their own; a power of two. Further processors share these
/// records, because `tc_index` has only 16 bits for the processor and the record.
pub const PENDING_CPUS: u32 = 64;
pub const UPLINKS_SIZE: u32 = 1024;
/// A power of two, because the programs use some bits of the hash as the index.
pub const YOUNG_SIZE: u32 = 32_768;

/// The names of the BPF programs.
pub mod programs {
    /// tc ingress of uplinks.
    pub const INGRESS: &str = "flow_ingress";
    /// tc ingress of the host's ends of pods' links.
    pub const INGRESS_POD: &str = "flow_ingress_pod";
    /// tc egress of uplinks, and of the host's ends of pods' links whose queueing discipline must see all
    /// packets.
    pub const EGRESS: &str = "flow_egress";
    /// tc egress of the host's ends of pods' links.
    pub const EGRESS_POD: &str = "flow_egress_pod";
    /// tc ingress of uplinks whose packets begin with the IP header.
    pub const INGRESS_L3: &str = "flow_ingress_l3";
    /// tc egress of such uplinks.
    pub const EGRESS_L3: &str = "flow_egress_l3";
    pub const ALL: [&str; 6] = [INGRESS, INGRESS_POD, EGRESS, EGRESS_POD, INGRESS_L3, EGRESS_L3];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_enough_and_unique() {
        for (index, name) in ALL.iter().enumerate() {
            assert!(name.len() <= 15, "{name}");
            assert!(!ALL[..index].contains(name), "{name} twice");
        }
    }
}
