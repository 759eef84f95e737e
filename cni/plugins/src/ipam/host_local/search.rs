// SPDX-License-Identifier: GPL-2.0-or-later

//! The search for a free address.
//!
//! Taken addresses are bits in blocks of 256: a full /16 has 256 blocks to check, and an IPv6 range has no
//! more blocks with bits set than reservations.

use std::net::IpAddr;

use cni_kernel::AddressFamily;

use cni_state::host_local::{Range, from_number, number};

use super::range::RangeSet;

/// 256 addresses that differ only in their last eight bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Block {
    pub(super) family: AddressFamily,
    /// The address without its last eight bits.
    pub(super) prefix: u128,
}

/// A bit for each address of a block, set if the address is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Bits(pub(super) [u64; 4]);

impl Block {
    /// The block of an address, and the address's place in it.
    pub(super) fn of(address: IpAddr) -> (Self, u8) {
        let number = number(address);
        (Self { family: AddressFamily::of(address), prefix: number >> 8 }, number.to_le_bytes()[0])
    }
}

impl Bits {
    pub(super) fn set(&mut self, at: u8) {
        self.0[usize::from(at / 64)] |= 1 << (at % 64);
    }

    pub(super) fn clear(&mut self, at: u8) {
        self.0[usize::from(at / 64)] &= !(1 << (at % 64));
    }

    pub(super) fn has(&self, at: u8) -> bool {
        self.0[usize::from(at / 64)] >> (at % 64) & 1 == 1
    }

    fn first_clear(&self, from: u8, to: u8) -> Option<u8> {
        // At most 256 steps over four words, so masks are not worth the effort.
        (from..=to).find(|at| !self.has(*at))
    }
}

impl std::ops::BitOr for Bits {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        let mut both = self;
        for (word, more) in both.0.iter_mut().zip(other.0) {
            *word |= more;
        }
        both
    }
}

/// Finds the next free address of a set, round robin: from the one after `last` if the set has it, else from
/// the first; the ranges in their order; `last` itself at the end. Skips addresses in `never`.
///
/// `taken` returns the taken addresses of a block; its error ends the search.
pub(super) fn next_free<'a, E>(
    set: &'a RangeSet,
    last: Option<IpAddr>,
    never: &[IpAddr],
    mut taken: impl FnMut(Block) -> Result<Bits, E>,
) -> Result<Option<(IpAddr, &'a Range)>, E> {
    for Span { range, first, last: to } in spans(set, last) {
        let mut at = first;
        while at <= to {
            let block = Block { family: set.family(), prefix: at >> 8 };
            let mut bits = taken(block)?;
            for address in never {
                let (its_block, place) = Block::of(*address);
                if its_block == block {
                    bits.set(place);
                }
            }
            let end = if to >> 8 == block.prefix { to.to_le_bytes()[0] } else { u8::MAX };
            if let Some(place) = bits.first_clear(at.to_le_bytes()[0], end) {
                let found = from_number(set.family(), block.prefix << 8 | u128::from(place));
                return Ok(Some((found, range)));
            }
            match (block.prefix << 8 | 0xff).checked_add(1) {
                Some(next) => at = next,
                None => break, // The end of the IPv6 address space.
            }
        }
    }
    Ok(None)
}

/// A part of a range, by the numbers of its addresses.
struct Span<'a> {
    range: &'a Range,
    first: u128,
    last: u128,
}

/// The spans to search, in order.
fn spans(set: &RangeSet, last: Option<IpAddr>) -> Vec<Span<'_>> {
    let whole = |range| Span { range, first: number(range.first), last: number(range.last) };
    let start = last.and_then(|last| {
        let at = set.ranges().iter().position(|range| range.contains(last))?;
        Some((at, number(last)))
    });
    let ranges = set.ranges();
    let Some((at, last)) = start else {
        return ranges.iter().map(whole).collect();
    };
    let mut spans = Vec::with_capacity(ranges.len() + 1);
    for (index, range) in ranges.iter().enumerate().cycle().skip(at).take(ranges.len()) {
        let span = whole(range);
        if index != at {
            spans.push(span);
        } else if last < span.last {
            spans.push(Span { first: last + 1, ..span });
        }
    }
    if let Some(range) = ranges.get(at) {
        spans.push(Span { last, ..whole(range) });
    }
    spans
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;
    use cni_state::host_local::RawRange;

    fn set(ranges: &[(&str, &str, &str)]) -> RangeSet {
        let resolve = |(subnet, first, last): &(&str, &str, &str)| {
            RawRange {
                subnet: subnet.parse().ok(),
                first: first.parse().ok(),
                last: last.parse().ok(),
                gateway: None,
            }
            .resolve()
            .unwrap()
        };
        RangeSet::new(ranges.iter().map(resolve).collect()).unwrap()
    }

    fn bits(taken: &BTreeSet<IpAddr>, block: Block) -> Result<Bits, Infallible> {
        let mut bits = Bits::default();
        for (its_block, place) in taken.iter().map(|address| Block::of(*address)) {
            if its_block == block {
                bits.set(place);
            }
        }
        Ok(bits)
    }

    /// Searches as the reference does: one address after the other.
    fn one_by_one(set: &RangeSet, last: Option<IpAddr>, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let all: Vec<IpAddr> = (set.ranges().iter())
            .flat_map(|r| (number(r.first)..=number(r.last)).map(|n| from_number(set.family(), n)))
            .collect();
        let start = last.and_then(|last| all.iter().position(|a| *a == last)).map_or(0, |at| at + 1);
        all.iter().cycle().skip(start).take(all.len()).find(|a| !taken.contains(a)).copied()
    }

    proptest! {
        #[test]
        fn blocks_give_the_same_address_as_one_by_one(
            taken in proptest::collection::btree_set(0u32..1100, 0..1024),
            last in proptest::option::of(0u32..1100),
            six: bool,
        ) {
            let (base, set) = if six {
                (0xfd00 << 112, set(&[("fd00::/118", "fd00::190", "fd00::3f0"), ("fd00::/118", "fd00::5", "fd00::120")]))
            } else {
                (0x0a00_0000, set(&[("10.0.0.0/22", "10.0.1.200", "10.0.3.250"), ("10.0.0.0/22", "", "10.0.0.255")]))
            };
            let address = |n: u32| from_number(set.family(), base + u128::from(n));
            let taken: BTreeSet<IpAddr> = taken.into_iter().map(address).collect();
            let last = last.map(address);
            let found = next_free(&set, last, &[], |block| bits(&taken, block)).unwrap();
            prop_assert_eq!(found.map(|(address, _)| address), one_by_one(&set, last, &taken));
        }
    }

    #[test]
    fn a_full_set_has_none_and_the_gateway_is_skipped() {
        let set = set(&[("10.0.0.0/29", "", "")]);
        let mut taken = BTreeSet::new();
        let never = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        for expected in 2..=6 {
            let found = next_free(&set, None, &never, |block| bits(&taken, block)).unwrap().unwrap().0;
            assert_eq!(found.to_string(), format!("10.0.0.{expected}"));
            taken.insert(found);
        }
        assert_eq!(next_free(&set, None, &never, |block| bits(&taken, block)).unwrap(), None);
        // The address reserved last is found at the end.
        let last: IpAddr = "10.0.0.4".parse().unwrap();
        taken.remove(&last);
        let found = next_free(&set, Some(last), &never, |block| bits(&taken, block)).unwrap().unwrap();
        assert_eq!(found.0, last);
    }

    #[test]
    fn the_ends_of_the_address_space_do_not_overflow() {
        let last: IpAddr = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap();
        // Built without `RawRange`, which refuses multicast addresses.
        let subnet: ipnet::IpNet = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/124".parse().unwrap();
        let first = from_number(AddressFamily::V6, number(subnet.network()) + 1);
        let set = RangeSet::new(vec![Range { subnet, first, last, gateway: first }]).unwrap();
        let full = |_: Block| Ok::<_, Infallible>(Bits([u64::MAX; 4]));
        assert_eq!(next_free(&set, Some(last), &[], full).unwrap(), None);
        let empty = |_: Block| Ok::<_, Infallible>(Bits::default());
        let found = next_free(&set, Some(last), &[], empty).unwrap().unwrap().0;
        assert_eq!(found.to_string(), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff1");
    }

    #[test]
    fn a_full_16_reads_256_blocks() {
        let set = set(&[("10.0.0.0/16", "", "")]);
        let mut asked = 0;
        let full = |_: Block| {
            asked += 1;
            Ok::<_, Infallible>(Bits([u64::MAX; 4]))
        };
        assert_eq!(next_free(&set, None, &[], full).unwrap(), None);
        assert_eq!(asked, 256);
    }
}
