//! The chains that all containers share, taken away when no container has anything in them: those of
//! published ports, and those of the firewall plugin. The reference leaves them for ever.

use super::apply::settle;
use super::filter;
use super::listing::{ListedRule, Listing};
use super::names;
use super::presence;
use super::rule::{Batch, Op, TableName};
use super::tools::{Tools, Variant};
use crate::{AddressFamily, Error};

/// What chains are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Published ports, in the nat table.
    Ports,
    /// What the firewall plugin lets through and keeps apart, in the filter table.
    Firewall,
}

impl Purpose {
    /// Those chains.
    const fn shared(self) -> &'static [&'static str] {
        match self {
            Self::Ports => &[names::HOSTPORT_DNAT, names::HOSTPORT_SETMARK, names::HOSTPORT_MASQ],
            Self::Firewall => &[filter::CONTAINERS, filter::ADMIN, filter::STAGE_1, filter::STAGE_2],
        }
    }

    /// Those that lead to them.
    const fn leading(self) -> &'static [&'static str] {
        match self {
            Self::Ports => &["PREROUTING", "OUTPUT", "POSTROUTING"],
            Self::Firewall => &[filter::FORWARD],
        }
    }

    const fn table(self) -> TableName {
        match self {
            Self::Ports => TableName::Nat,
            Self::Firewall => TableName::Filter,
        }
    }

    /// What keeps them there: something of a container's, whoever made it, or of an administrator's.
    fn needed(self, listing: &Listing) -> Option<&'static str> {
        match self {
            Self::Ports if listing.rules(names::HOSTPORT_DNAT).is_empty() => None,
            Self::Ports => Some("ports are published there"),
            Self::Firewall => filter::needed(listing),
        }
    }
}

/// The shared chains of one purpose, variant and family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// What they are for.
    pub purpose: Purpose,
    /// Whose table they are in.
    pub variant: Variant,
    /// And of which family.
    pub family: AddressFamily,
}

impl Frame {
    /// All that there are for that purpose.
    ///
    /// # Errors
    /// What could not be read.
    pub fn all(purpose: Purpose) -> Result<Vec<Self>, Error> {
        let places: Vec<_> = match purpose {
            Purpose::Ports => presence::any_chain_of(purpose.shared())?.places().collect(),
            Purpose::Firewall => filter::places()?,
        };
        Ok(places.into_iter().map(|(variant, family)| Self { purpose, variant, family }).collect())
    }

    fn tools(&self) -> Tools {
        Tools::of(self.variant, self.purpose.table())
    }

    /// What keeps them there; none if nothing does.
    ///
    /// # Errors
    /// What could not be read.
    pub fn needed(&self) -> Result<Option<&'static str>, Error> {
        Ok(self.purpose.needed(&self.tools().read(self.family, self.purpose.shared())?))
    }

    /// Removes them, in one input of the tool, unless something keeps them there: returns what.
    ///
    /// # Errors
    /// What could not be read or removed.
    pub fn remove(&self) -> Result<Option<&'static str>, Error> {
        let tools = self.tools();
        let chains = [self.purpose.leading(), self.purpose.shared()].concat();
        let mut needed = None;
        settle(
            &tools,
            "remove the chains that containers shared",
            || tools.read(self.family, &chains),
            |listing| {
                needed = self.purpose.needed(listing);
                Ok(match needed {
                    Some(_) => Batch::of(self.family, self.purpose.table()),
                    None => self.removal(listing),
                })
            },
        )?;
        Ok(needed)
    }

    fn removal(&self, listing: &Listing) -> Batch {
        let shared = self.purpose.shared();
        let mut batch = Batch::of(self.family, self.purpose.table());
        let leads = |rule: &&ListedRule| rule.target().is_some_and(|target| shared.contains(&target));
        for from in self.purpose.leading() {
            for rule in listing.rules(from).iter().filter(leads) {
                batch.push(Op::Delete((*from).to_owned(), rule.0.clone()));
            }
        }
        let present: Vec<&str> = shared.iter().copied().filter(|chain| listing.has(chain)).collect();
        for chain in &present {
            batch.push(Op::Flush((*chain).to_owned()));
        }
        for chain in present {
            batch.push(Op::DeleteChain(chain.to_owned()));
        }
        batch
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
    fn what_leads_there_goes_and_what_others_have_stays() {
        let listing = Listing::parse(EMPTY);
        assert_eq!(Purpose::Ports.needed(&listing), None);
        assert_eq!(
            frame(Purpose::Ports).removal(&listing).to_string(),
            "*nat\n-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
             -D POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ\n\
             -F CNI-HOSTPORT-DNAT\n-F CNI-HOSTPORT-SETMARK\n-F CNI-HOSTPORT-MASQ\n\
             -X CNI-HOSTPORT-DNAT\n-X CNI-HOSTPORT-SETMARK\n-X CNI-HOSTPORT-MASQ\nCOMMIT\n"
        );
        assert!(frame(Purpose::Ports).removal(&Listing::default()).is_empty());
    }

    #[test]
    fn one_entry_is_enough_to_need_them() {
        let entry = "-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 80 -j CNI-DN-x\nCOMMIT\n";
        let listing = Listing::parse(&EMPTY.replace("COMMIT\n", entry));
        assert_eq!(Purpose::Ports.needed(&listing), Some("ports are published there"));
    }

    /// What the firewall plugin leaves when its last container has gone.
    const IDLE: &str = "*filter\n:FORWARD DROP [0:0]\n:CNI-ADMIN - [0:0]\n:CNI-FORWARD - [0:0]\n\
        -A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD\n\
        -A FORWARD -j THEIRS\n\
        -A CNI-FORWARD -m comment --comment \"CNI firewall plugin admin overrides\" -j CNI-ADMIN\nCOMMIT\n";

    #[test]
    fn what_the_firewall_left_goes_unless_somebody_has_rules_there() {
        let parse = |text: &str| Listing::parse_table(text, TableName::Filter);
        let listing = parse(IDLE);
        assert_eq!(Purpose::Firewall.needed(&listing), None);
        assert_eq!(
            frame(Purpose::Firewall).removal(&listing).to_string(),
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

    fn frame(purpose: Purpose) -> Frame {
        Frame { purpose, variant: Variant::Nft, family: AddressFamily::V4 }
    }
}
