// SPDX-License-Identifier: GPL-3.0-or-later

//! Renewed lifetimes of addresses (DHCP, router advertisements), which the kernel reports like changes.

use std::collections::BTreeMap;

use cni_kernel::route::Address;
use ipnet::IpNet;

/// The addresses as they were last reported.
#[derive(Debug, Default)]
pub(crate) struct Seen(BTreeMap<(u32, IpNet), Address>);

impl Seen {
    /// Takes a notification. False if it reports what is known.
    pub(crate) fn differs(&mut self, address: &Address, deleted: bool) -> bool {
        let key = (address.link, address.net);
        if deleted {
            self.0.remove(&key);
            return true;
        }
        self.0.insert(key, address.clone()).as_ref() != Some(address)
    }
}

impl FromIterator<Address> for Seen {
    fn from_iter<T: IntoIterator<Item = Address>>(all: T) -> Self {
        Self(all.into_iter().map(|address| ((address.link, address.net), address)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_what_is_known_is_no_difference() {
        let address = Address {
            link: 2,
            net: "192.0.2.1/24".parse().unwrap(),
            tentative: false,
            duplicate: false,
            secondary: false,
            deprecated: false,
            global: true,
        };
        let mut seen: Seen = [address.clone()].into_iter().collect();
        assert!(!seen.differs(&address, false));
        let others = [
            Address { link: 3, ..address.clone() },
            Address { net: "192.0.2.1/25".parse().unwrap(), ..address.clone() },
            Address { deprecated: true, ..address.clone() },
        ];
        for other in &others {
            assert!(seen.differs(other, false) && !seen.differs(other, false), "{other:?}");
        }
        assert!(seen.differs(&address, false), "no longer deprecated");
        assert!(seen.differs(&address, true) && seen.differs(&address, false));
    }
}
