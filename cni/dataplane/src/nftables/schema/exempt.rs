// SPDX-License-Identifier: GPL-2.0-or-later

//! The sets of networks that are exempt from masquerade (`nonMasqueradeCIDRs`).
//!
//! ```text
//! set   exempt4-0123456789abcdef                   { 10.0.0.0/8, 172.16.0.0/12 }
//! chain masquerade-10.22.0.0/16-0123456789abcdef   ip daddr { 10.22.0.0/16, 224.0.0.0/4 } return
//!                                                  ip daddr @exempt4-0123456789abcdef return
//!                                                  masquerade
//! ```
//!
//! The name contains a hash of the networks. A set is made once and never changed, and containers with another list
//! use another set and another chain. So a container keeps the list of its ADD while others are added with a new one.
//! When the rules are flushed, the set stays, and with it the list, which the chain's name does not contain.
//!
//! A container without a list uses the chain without a hash.

use std::net::IpAddr;

use cni_nftables::{DataType, Element, ElementId, Field, Set, Stmt, Transaction, Value};
use ipnet::IpNet;
use sha2::{Digest, Sha256};

use super::base::{address_fields, table};
use crate::AddressFamily;
use cni_spec::text::hex;

const PREFIX: &str = "exempt";
/// How many bytes of the hash a name contains.
const HASH: usize = 8;

/// The networks of one family, by their hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ExemptId {
    family: AddressFamily,
    hash: u64,
}

impl ExemptId {
    /// The ID of these networks, which must be in canonical form.
    pub(crate) fn of(family: AddressFamily, networks: &[IpNet]) -> Self {
        let mut hasher = Sha256::new();
        for network in networks {
            hasher.update(format!("{network}\n"));
        }
        let mut bytes = [0; HASH];
        bytes.iter_mut().zip(hasher.finalize()).for_each(|(to, from)| *to = from);
        Self { family, hash: u64::from_be_bytes(bytes) }
    }

    /// The ID with this hash, in the form in which names contain it.
    pub(super) fn from_word(family: AddressFamily, word: &str) -> Option<Self> {
        let hash = u64::from_str_radix(word, 16).ok()?;
        let id = Self { family, hash };
        (id.word() == word).then_some(id)
    }

    /// The ID in the name of a set. None for the name of any other set.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        AddressFamily::BOTH.into_iter().find_map(|family| {
            let word = name.strip_prefix(&format!("{PREFIX}{}-", family.version()))?;
            Self::from_word(family, word)
        })
    }

    pub(crate) fn family(self) -> AddressFamily {
        self.family
    }

    /// The hash, in the form in which names contain it.
    pub(super) fn word(self) -> String {
        hex(&self.hash.to_be_bytes())
    }

    pub(crate) fn name(self) -> String {
        format!("{PREFIX}{}-{}", self.family.version(), self.word())
    }

    /// The definition of the set, without elements.
    pub(super) fn set(self) -> Set {
        let key = match self.family {
            AddressFamily::V4 => DataType::Ipv4Addr,
            AddressFamily::V6 => DataType::Ipv6Addr,
        };
        Set::new(&table(), &self.name(), &[key]).intervals()
    }

    pub(super) fn matches(self) -> Stmt {
        let (_, daddr): (Field, Field) = address_fields(self.family);
        Stmt::in_set(&[daddr], &self.name())
    }
}

/// Makes a set that is missing or whose elements differ.
pub(crate) fn fill(batch: &mut Transaction, id: ExemptId, networks: &[IpNet]) {
    batch.add_set(id.set()).flush_set(&table(), &id.name());
    for (first, last) in ranges(networks) {
        let key = ElementId::new(&table(), &id.name(), vec![Value::address(first)]);
        batch.add_element(Element::new(key.to(vec![Value::address(last)])));
    }
}

/// The first and last addresses of networks in canonical form. Networks that touch become one range, because not
/// every kernel allows a set in which the end of one range is the beginning of another.
fn ranges(networks: &[IpNet]) -> Vec<(IpAddr, IpAddr)> {
    let mut ranges: Vec<(IpAddr, IpAddr)> = Vec::new();
    for network in networks {
        match ranges.last_mut() {
            Some((_, last)) if follows(*last, network.network()) => *last = network.broadcast(),
            _ => ranges.push((network.network(), network.broadcast())),
        }
    }
    ranges
}

/// True if the second address is the next one after the first.
pub(crate) fn follows(last: IpAddr, next: IpAddr) -> bool {
    match (last, next) {
        (IpAddr::V4(last), IpAddr::V4(next)) => u32::from(last).checked_add(1) == Some(next.into()),
        (IpAddr::V6(last), IpAddr::V6(next)) => u128::from(last).checked_add(1) == Some(next.into()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(all: &[&str]) -> Vec<IpNet> {
        all.iter().map(|one| one.parse().unwrap()).collect()
    }

    #[test]
    fn names_are_read_back() {
        for (family, all) in [(AddressFamily::V4, "10.0.0.0/8"), (AddressFamily::V6, "fd00::/8")] {
            let id = ExemptId::of(family, &networks(&[all]));
            assert_eq!(ExemptId::from_name(&id.name()), Some(id), "{}", id.name());
        }
        for other in ["exempt4", "exempt4-", "exempt5-0123456789abcdef", "exempt4-0123", "hostports4"] {
            assert_eq!(ExemptId::from_name(other), None, "{other}");
        }
    }

    #[test]
    fn networks_that_touch_are_one_range() {
        let range = |first: &str, last: &str| (first.parse().unwrap(), last.parse().unwrap());
        assert_eq!(
            ranges(&networks(&["10.0.1.0/24", "10.0.2.0/23", "192.0.2.0/24"])),
            [range("10.0.1.0", "10.0.3.255"), range("192.0.2.0", "192.0.2.255")]
        );
        assert_eq!(ranges(&networks(&["0.0.0.0/0"])), [range("0.0.0.0", "255.255.255.255")]);
        assert_eq!(ranges(&networks(&["::/0"])).len(), 1);
    }
}
