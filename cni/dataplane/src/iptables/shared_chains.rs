// SPDX-License-Identifier: GPL-2.0-or-later

//! The chains that all containers share, for published ports and for the firewall plugin. They are removed when no
//! container has rules in them. The reference plugins never remove them.

use super::batch::Batch;
use super::detect;
use super::filter;
use super::listing::Listing;
use super::names::{self, OUTPUT, POSTROUTING, PREROUTING, TableName};
use super::tools::{Place, Tools};
use crate::Error;

/// What shared chains are used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Published ports, in the nat table.
    Ports,
    /// The firewall plugin's rules, in the filter table.
    Firewall,
}

/// Where shared chains are in the ruleset.
struct Layout {
    table: TableName,
    /// The built-in chains that jump to the shared chains.
    leading: &'static [&'static str],
    shared: &'static [&'static str],
}

impl Purpose {
    const fn layout(self) -> Layout {
        match self {
            Self::Ports => Layout {
                table: TableName::Nat,
                leading: &[PREROUTING, OUTPUT, POSTROUTING],
                shared: &[names::HOSTPORT_DNAT, names::HOSTPORT_SETMARK, names::HOSTPORT_MASQ],
            },
            Self::Firewall => Layout {
                table: TableName::Filter,
                leading: &[filter::FORWARD],
                shared: &[filter::CONTAINERS, filter::ADMIN, filter::STAGE_1, filter::STAGE_2],
            },
        }
    }

    /// Why the chains must be kept: rules of a container or of an administrator need them.
    fn needed(self, listing: &Listing) -> Option<&'static str> {
        match self {
            Self::Ports if listing.rules(names::HOSTPORT_DNAT).is_empty() => None,
            Self::Ports => Some("ports are published there"),
            Self::Firewall => filter::needed(listing),
        }
    }

    fn removal(self, listing: &Listing) -> Batch {
        let Layout { table, leading, shared } = self.layout();
        let mut batch = Batch::new(table);
        for from in leading {
            batch.delete_jumps(listing, from, shared);
        }
        batch.delete_chains(listing, shared);
        batch
    }
}

/// The shared chains of one purpose in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedChains {
    pub purpose: Purpose,
    pub place: Place,
}

impl SharedChains {
    /// The existing shared chains for this purpose.
    pub fn all(purpose: Purpose) -> Result<Vec<Self>, Error> {
        let places = match purpose {
            Purpose::Ports => {
                let Layout { table, shared, .. } = purpose.layout();
                detect::places_with_chain(table, shared)?
            }
            Purpose::Firewall => filter::places()?,
        };
        Ok(places.into_iter().map(|place| Self { purpose, place }).collect())
    }

    /// Why the chains must be kept, or none if nothing needs them.
    pub fn needed(&self) -> Result<Option<&'static str>, Error> {
        let Layout { table, shared, .. } = self.purpose.layout();
        Ok(self.purpose.needed(&Tools::new(self.place, table).read(shared)?))
    }

    /// Removes the chains with one input of the tool, unless something needs them. In that case, returns the reason.
    pub fn remove(&self) -> Result<Option<&'static str>, Error> {
        let Layout { table, leading, shared } = self.purpose.layout();
        let chains = [leading, shared].concat();
        let mut needed = None;
        let operation = "remove the chains that containers shared";
        Tools::new(self.place, table).update(operation, &chains, None, |listing| {
            needed = self.purpose.needed(listing);
            if needed.is_some() { Batch::new(table) } else { self.purpose.removal(listing) }
        })?;
        Ok(needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n\
        :CNI-HOSTPORT-DNAT - [0:0]\n:CNI-HOSTPORT-MASQ - [0:0]\n:CNI-HOSTPORT-SETMARK - [0:0]\n\
        -A PREROUTING -j THEIRS\n\
        -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
        -A POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ\n\
        -A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE\nCOMMIT\n";

    #[test]
    fn rules_that_jump_to_the_chains_go_and_those_of_others_stay() {
        let listing = Listing::parse(EMPTY, TableName::Nat);
        assert_eq!(Purpose::Ports.needed(&listing), None);
        assert_eq!(
            Purpose::Ports.removal(&listing).to_string(),
            "*nat\n-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
             -D POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ\n\
             -F CNI-HOSTPORT-DNAT\n-F CNI-HOSTPORT-SETMARK\n-F CNI-HOSTPORT-MASQ\n\
             -X CNI-HOSTPORT-DNAT\n-X CNI-HOSTPORT-SETMARK\n-X CNI-HOSTPORT-MASQ\nCOMMIT\n"
        );
        assert!(Purpose::Ports.removal(&Listing::default()).is_empty());
    }

    #[test]
    fn one_entry_rule_keeps_the_chains() {
        let entry = "-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 80 -j CNI-DN-x\nCOMMIT\n";
        let listing = Listing::parse(&EMPTY.replace("COMMIT\n", entry), TableName::Nat);
        assert_eq!(Purpose::Ports.needed(&listing), Some("ports are published there"));
    }

    /// What is left of the chains of the firewall plugin after its last container.
    const IDLE: &str = "*filter\n:FORWARD DROP [0:0]\n:CNI-ADMIN - [0:0]\n:CNI-FORWARD - [0:0]\n\
        -A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD\n\
        -A FORWARD -j THEIRS\n\
        -A CNI-FORWARD -m comment --comment \"CNI firewall plugin admin overrides\" -j CNI-ADMIN\nCOMMIT\n";

    #[test]
    fn chains_of_the_firewall_go_unless_they_have_rules() {
        let parse = |text: &str| Listing::parse(text, TableName::Filter);
        let listing = parse(IDLE);
        assert_eq!(Purpose::Firewall.needed(&listing), None);
        assert_eq!(
            Purpose::Firewall.removal(&listing).to_string(),
            "*filter\n-D FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD\n\
             -F CNI-FORWARD\n-F CNI-ADMIN\n-X CNI-FORWARD\n-X CNI-ADMIN\nCOMMIT\n"
        );
        for (rule, why) in [
            ("CNI-FORWARD -s 10.1.2.3/32 -j ACCEPT", "containers' rules are there"),
            ("CNI-ADMIN -p tcp --dport 80 -j DROP", "an administrator's rules are there"),
            ("CNI-ISOLATION-STAGE-1 -i br0 -o br0 -j DROP", "a bridge is kept apart there"),
        ] {
            let rule = format!("-A {rule}\nCOMMIT\n");
            assert_eq!(Purpose::Firewall.needed(&parse(&IDLE.replace("COMMIT\n", &rule))), Some(why));
        }
    }
}
