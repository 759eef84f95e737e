// SPDX-License-Identifier: GPL-2.0-or-later

//! The source ports that the BPF programs masquerade with.
//!
//! Nothing else on the node may choose one of them: a reply to such a port belongs to a container. The node's
//! own sockets choose from `net.ipv4.ip_local_port_range`, except `net.ipv4.ip_local_reserved_ports`
//! (Documentation/networking/ip-sysctl.rst).

use std::fmt;
use std::str::FromStr;

use cni_kernel::sysctl;
use slipway_ebpf_abi::Config;

/// A range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// First.
    pub first: u16,
    /// Last, not less than the first.
    pub last: u16,
}

/// A text that is no port range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no range of ports from 1024 on, as 61000-65535")]
pub struct InvalidRange(String);

impl Default for PortRange {
    fn default() -> Self {
        let (first, last) = Config::DEFAULT_PORTS;
        Self { first, last }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for PortRange {
    type Err = InvalidRange;

    /// Reads `61000-65535`.
    fn from_str(text: &str) -> Result<Self, InvalidRange> {
        let wrong = || InvalidRange(text.to_owned());
        let (first, last) = text.split_once('-').ok_or_else(wrong)?;
        let (Ok(first), Ok(last)) = (first.trim().parse(), last.trim().parse()) else { return Err(wrong()) };
        if first < 1024 || last < first { Err(wrong()) } else { Ok(Self { first, last }) }
    }
}

impl PortRange {
    /// Explains why the node's own sockets may choose ports of this range; none if they may not.
    pub(crate) fn clash(self) -> Option<String> {
        // Where the setting cannot be read, the kernel's default holds, which ends below 61000.
        let local = sysctl::get("net/ipv4/ip_local_port_range").ok()?;
        let reserved = sysctl::get("net/ipv4/ip_local_reserved_ports").unwrap_or_default();
        let port = self.first_unreserved(&local, &reserved)?;
        let local = local.split_whitespace().collect::<Vec<_>>().join("-");
        Some(format!(
            "port {port} of {self} is among the ports of the node's own sockets \
             (net.ipv4.ip_local_port_range {local}) and not in net.ipv4.ip_local_reserved_ports"
        ))
    }

    /// The first port that is in a range such as `32768 60999` and not in a list such as `8080,61000-65535`.
    fn first_unreserved(self, local: &str, reserved: &str) -> Option<u16> {
        let mut bounds = local.split_whitespace().filter_map(|word| word.parse::<u16>().ok());
        let (from, to) = (bounds.next()?, bounds.next()?);
        let mut reserved: Vec<(u16, u16)> = reserved
            .split(',')
            .filter_map(|run| {
                let (first, last) = run.split_once('-').unwrap_or((run, run));
                Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
            })
            .collect();
        reserved.sort_unstable();
        let (mut port, last) = (self.first.max(from), self.last.min(to));
        for (begin, end) in reserved {
            if begin <= port && port <= end {
                port = end.checked_add(1)?;
            }
        }
        (port <= last).then_some(port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_and_written() {
        assert_eq!("61000-65535".parse(), Ok(PortRange::default()));
        assert_eq!(PortRange::default().to_string(), "61000-65535");
        for wrong in ["", "61000", "1-2000", "62000-61000", "61000-65536", "a-b"] {
            assert!(wrong.parse::<PortRange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ports_that_the_nodes_sockets_may_choose_are_found() {
        let range = PortRange::default();
        assert_eq!(range.first_unreserved("32768\t60999", ""), None);
        assert_eq!(range.first_unreserved("1024\t65535", ""), Some(61000));
        assert_eq!(range.first_unreserved("1024\t62000", "8080,61000-65535"), None);
        assert_eq!(range.first_unreserved("1024\t65535", "61500-65535,61000-61200,61201"), Some(61202));
        assert_eq!(range.first_unreserved("65000\t65535", "65000-65535"), None);
    }
}
