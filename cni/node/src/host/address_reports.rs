// SPDX-License-Identifier: GPL-3.0-or-later

//! Renewed lifetimes of addresses (DHCP, router advertisements), which the kernel reports like changes.

use std::collections::BTreeMap;

use cni_kernel::route::Address;
use ipnet::IpNet;

/// The addresses as they were last reported.
#[derive(Debug, Default)]
pub(crate) struct AddressReports(BTreeMap<(u32, IpNet), Address>);

impl AddressReports {
    /// Takes a notification. False if it reports what is known.
    pub(crate) fn is_change(&mut self, address: &Address, deleted: bool) -> bool {
        let key = (address.link, address.net);
        if deleted {
            self.0.remove(&key);
            return true;
        }
        let address = without_lifetime(address);
        self.0.insert(key, address.clone()) != Some(address)
    }
}

impl FromIterator<Address> for AddressReports {
    fn from_iter<T: IntoIterator<Item = Address>>(all: T) -> Self {
        let entry = |address: Address| ((address.link, address.net), without_lifetime(&address));
        Self(all.into_iter().map(entry).collect())
    }
}

/// A lifetime, also the first or none, does not change what an address is used for.
fn without_lifetime(address: &Address) -> Address {
    Address { expires: false, ..address.clone() }
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
            expires: false,
        };
        let mut reports: AddressReports = [address.clone()].into_iter().collect();
        assert!(!reports.is_change(&address, false));
        assert!(!reports.is_change(&Address { expires: true, ..address.clone() }, false), "a lease");
        let others = [
            Address { link: 3, ..address.clone() },
            Address { net: "192.0.2.1/25".parse().unwrap(), ..address.clone() },
            Address { deprecated: true, ..address.clone() },
        ];
        for other in &others {
            assert!(reports.is_change(other, false) && !reports.is_change(other, false), "{other:?}");
        }
        assert!(reports.is_change(&address, false), "no longer deprecated");
        assert!(reports.is_change(&address, true) && reports.is_change(&address, false));
    }
}
