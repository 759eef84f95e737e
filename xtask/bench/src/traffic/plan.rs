// SPDX-License-Identifier: MIT OR Apache-2.0

//! Assigns a number of published ports to pods.

use xtask_base::error::{Error, Result};

/// Published ports up to this number belong to pods that publish one each.
pub(super) const SINGLES: u32 = 1_000;
/// Ports of a pod beyond that number, as of a media server.
pub(super) const PER_POD: u16 = 250;
/// The largest number: ports 1000 to 60999, below those that masquerade uses by default.
pub(super) const MOST: u32 = 60_000;
const FIRST: u16 = 1_000;
/// The first container port. It differs from the host port, so that no port is published as part of a range.
pub(super) const INSIDE: u16 = 80;

/// A pod's published ports: consecutive TCP ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ports {
    pub(super) first: u16,
    /// The number of ports.
    pub(super) count: u16,
}

/// The pods for a number of published ports, in the order of their ADDs. Those for fewer ports are the first
/// of them.
pub(super) fn pods(ports: u32) -> Result<Vec<Ports>> {
    let many = ports.saturating_sub(SINGLES);
    if ports == 0 || ports > MOST || !many.is_multiple_of(u32::from(PER_POD)) {
        return Err(Error::Failed(format!(
            "{ports} ports: from 1 to {MOST}, and above {SINGLES} a multiple of {PER_POD}"
        )));
    }
    let singles = (0..ports.min(SINGLES)).map(|n| (n, 1));
    let many = (0..many / u32::from(PER_POD)).map(|n| (SINGLES + n * u32::from(PER_POD), PER_POD));
    let ports = |(offset, count)| {
        let first = u16::try_from(offset).ok().and_then(|offset| FIRST.checked_add(offset));
        Ok(Ports { first: first.ok_or_else(|| Error::Failed("a port above 65535".to_owned()))?, count })
    };
    singles.chain(many).map(ports).collect()
}

/// The index of the measured pod, which is in the middle of those with one port. If rules are walked in order, it
/// stands for the mean of all.
pub(super) fn measured(attached: usize) -> usize {
    attached.min(SINGLES as usize) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_publish_what_was_asked_for_and_grow_by_addition() {
        let mut before = Vec::new();
        for ports in [1, 250, 1_000, 10_000, 60_000] {
            let pods = pods(ports).unwrap();
            assert_eq!(pods.iter().map(|pod| u32::from(pod.count)).sum::<u32>(), ports);
            assert!(pods.starts_with(&before));
            for pair in pods.windows(2) {
                assert_eq!(pair[0].first + pair[0].count, pair[1].first, "one after the other");
            }
            before = pods;
        }
        assert_eq!(before.len(), 1_236);
        assert_eq!(before.last().map(|pod| pod.first + (pod.count - 1)), Some(60_999));
        assert!(before.iter().all(|pod| pod.first > INSIDE + PER_POD), "no number is kept");
    }

    #[test]
    fn other_numbers_are_refused() {
        for ports in [0, 1_001, 60_001, 70_000] {
            assert!(pods(ports).is_err(), "{ports}");
        }
    }

    #[test]
    fn the_middle_of_the_single_ones_is_measured() {
        assert_eq!([1, 2, 500, 1_236].map(measured), [0, 1, 250, 500]);
    }
}
