// SPDX-License-Identifier: GPL-2.0-or-later

//! Sets of ranges.

use std::fmt;
use std::net::IpAddr;

use cni_kernel::AddressFamily;
use cni_state::host_local::{Range, RangeError, same_family};

/// Ranges of one family; each ADD takes one address from each set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<Range>);

/// The reason why a set cannot be used. The texts are the reference's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SetError {
    #[error("empty range set")]
    Empty,
    #[error("mixed address families")]
    MixedFamilies,
    #[error("subnets {0} and {1} overlap")]
    Overlap(String, String),
    #[error(transparent)]
    Range(#[from] RangeError),
}

impl RangeSet {
    /// Checks that the ranges are of one family and do not overlap.
    pub(super) fn new(ranges: Vec<Range>) -> Result<Self, SetError> {
        let Some(first) = ranges.first() else { return Err(SetError::Empty) };
        if ranges.iter().any(|range| !same_family(range.first, first.first)) {
            return Err(SetError::MixedFamilies);
        }
        for (at, range) in ranges.iter().enumerate() {
            if let Some(other) = ranges.iter().skip(at + 1).find(|other| range.overlaps(other)) {
                return Err(SetError::Overlap(range.to_string(), other.to_string()));
            }
        }
        Ok(Self(ranges))
    }

    pub(super) fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// The family of its addresses.
    pub(super) fn family(&self) -> AddressFamily {
        // `new` refuses an empty set.
        self.0.first().map_or(AddressFamily::V4, |range| AddressFamily::of(range.first))
    }

    pub(super) fn range_of(&self, address: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(address))
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|a| other.0.iter().any(|b| a.overlaps(b)))
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, range) in self.0.iter().enumerate() {
            write!(f, "{}{range}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cni_state::host_local::RawRange;

    use super::*;

    #[test]
    fn sets_are_of_one_family_and_do_not_overlap() {
        let range =
            |subnet: &str| RawRange { subnet: subnet.parse().ok(), ..RawRange::default() }.resolve().unwrap();
        assert_eq!(RangeSet::new(vec![]), Err(SetError::Empty));
        assert_eq!(
            RangeSet::new(vec![range("10.1.2.0/24"), range("fd00::/64")]),
            Err(SetError::MixedFamilies)
        );
        assert_eq!(
            RangeSet::new(vec![range("10.1.2.0/24"), range("10.1.0.0/16")]).unwrap_err().to_string(),
            "subnets 10.1.2.1-10.1.2.254 and 10.1.0.1-10.1.255.254 overlap"
        );
        let set = RangeSet::new(vec![range("10.1.2.0/24"), range("10.1.3.0/24")]).unwrap();
        assert_eq!(set.to_string(), "10.1.2.1-10.1.2.254,10.1.3.1-10.1.3.254");
        assert_eq!(set.range_of("10.1.3.7".parse().unwrap()), Some(&range("10.1.3.0/24")));
        assert_eq!(set.range_of("10.1.3.255".parse().unwrap()), None);
    }
}
