// SPDX-License-Identifier: GPL-2.0-or-later

//! Matches and targets of iptables, as `iptables-nft` puts them into rules and as the legacy tables contain them. The
//! layouts of their data are in `linux/netfilter/xt_*.h`.

use cni_kernel::AddressFamily;

use super::{Action, Applies, Probe, address};
use crate::stmt::Verdict;

/// `RTN_LOCAL` as a bit of a mask.
const LOCAL_BIT: u16 = 1 << 2;

/// A match or a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension<'a> {
    pub name: &'a str,
    pub revision: u32,
    pub data: &'a [u8],
}

impl Extension<'_> {
    /// Whether a match applies to a packet whose protocol is the one that the rule asks for.
    #[must_use]
    pub fn applies(&self, probe: &Probe) -> Applies {
        let half = |at: usize| Some(u16::from_ne_bytes(*self.data.get(at..)?.first_chunk()?));
        match self.name {
            "comment" => Applies::Yes,
            // The source ports and the destination ports, each a pair; and the flags for inversion, of which 2 is the
            // destination.
            "tcp" | "udp" => {
                let inverted_at = if self.name == "tcp" { 11 } else { 8 };
                let inverted = self.data.get(inverted_at).copied().unwrap_or_default();
                match (half(0), half(2), half(4), half(6)) {
                    (Some(0), Some(u16::MAX), Some(first), Some(last)) if inverted & !2 == 0 => {
                        Applies::of((first..=last).contains(&probe.port) == (inverted & 2 == 0))
                    }
                    _ => Applies::Maybe,
                }
            }
            // The source and the destination as masks of `RTN_*`. The second revision is followed by flags, of which
            // 1 and 2 invert these.
            "addrtype" => match (half(0), half(2), self.data.get(4).copied().unwrap_or_default() & 3) {
                (Some(0), Some(types), 0) => Applies::of(types & LOCAL_BIT != 0),
                (Some(0), Some(types), 2) => Applies::of(types & LOCAL_BIT == 0),
                _ => Applies::Maybe,
            },
            "multiport" => multiport(self.data, probe.port),
            _ => Applies::Maybe,
        }
    }

    /// What a target does that ends the chain. None if it does no such thing.
    #[must_use]
    pub fn action(&self, family: AddressFamily) -> Option<Action> {
        let is_v4 = family == AddressFamily::V4;
        let field = |at: usize| self.data.get(at..);
        // `nf_nat_ipv4_multi_range_compat` has a number, then flags, two addresses and two ports. `nf_nat_range2` has
        // flags, two addresses of 16 bytes and two ports.
        let (flags_at, address_at, port_at) =
            if self.revision == 0 && is_v4 { (4, 8, 16) } else { (0, 4, 36) };
        let flags = field(flags_at).and_then(<[u8]>::first_chunk).map_or(0, |four| u32::from_ne_bytes(*four));
        let port = field(port_at).and_then(<[u8]>::first_chunk).map(|two| u16::from_be_bytes(*two));
        let port = port.filter(|_| flags & 2 != 0);
        let len = if is_v4 { 4 } else { 16 };
        let to = self.data.get(address_at..address_at + len).and_then(address).filter(|_| flags & 1 != 0);
        match self.name {
            "DNAT" => Some(Action::Translate(to, port)),
            "REDIRECT" => Some(Action::Redirect(port)),
            "MASQUERADE" | "SNAT" => Some(Action::Verdict(Verdict::Accept)),
            _ => None,
        }
    }
}

/// `struct xt_multiport_v1`: flags (1 is the destination), a number, 15 ports, 15 marks for ranges, and an inversion.
fn multiport(data: &[u8], wanted: u16) -> Applies {
    let [1, count, rest @ ..] = data else { return Applies::Maybe };
    let port = |at: usize| Some(u16::from_ne_bytes(*rest.get(at * 2..)?.first_chunk()?));
    let is_begin = |at: usize| rest.get(30 + at).is_some_and(|mark| *mark != 0);
    let (mut at, mut inside) = (0, false);
    while at < usize::from(*count) {
        let Some(first) = port(at) else { return Applies::Maybe };
        let last = if is_begin(at) { port(at + 1).unwrap_or(first) } else { first };
        at += if is_begin(at) { 2 } else { 1 };
        inside |= (first..=last).contains(&wanted);
    }
    Applies::of(inside == rest.get(45).is_none_or(|inverted| *inverted == 0))
}
