//! The chains that all containers share, taken away when no container has ports published by them.
//! The reference leaves them for ever.

use super::apply::settle;
use super::listing::{ListedRule, Listing};
use super::names;
use super::presence;
use super::rule::{Batch, Op};
use super::tools::{Tools, Variant};
use crate::{AddressFamily, Error};

/// Those chains, and those that lead to them.
const SHARED: [&str; 3] = [names::HOSTPORT_DNAT, names::HOSTPORT_SETMARK, names::HOSTPORT_MASQ];
const LEADING: [&str; 3] = ["PREROUTING", "OUTPUT", "POSTROUTING"];

/// The shared chains of one variant and family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Whose nat table they are in.
    pub variant: Variant,
    /// And of which family.
    pub family: AddressFamily,
}

impl Frame {
    /// All that there are.
    ///
    /// # Errors
    /// What could not be read.
    pub fn all() -> Result<Vec<Self>, Error> {
        let found = presence::any_chain_of(&SHARED)?;
        Ok(found.places().map(|(variant, family)| Self { variant, family }).collect())
    }

    /// Whether ports of a container, whoever published them, are in them.
    ///
    /// # Errors
    /// What could not be read.
    pub fn is_used(&self) -> Result<bool, Error> {
        let listing = Tools::new(self.variant).read(self.family, &[names::HOSTPORT_DNAT])?;
        Ok(is_used(&listing))
    }

    /// Removes them, in one input of the tool, unless they are used. Returns whether they were.
    ///
    /// # Errors
    /// What could not be read or removed.
    pub fn remove(&self) -> Result<bool, Error> {
        let tools = Tools::new(self.variant);
        let chains: Vec<&str> = LEADING.into_iter().chain(SHARED).collect();
        let mut used = false;
        settle(
            &tools,
            "remove the chains that containers shared",
            || tools.read(self.family, &chains),
            |listing| {
                used = is_used(listing);
                Ok(if used { Batch::new(self.family) } else { removal(listing, self.family) })
            },
        )?;
        Ok(used)
    }
}

fn is_used(listing: &Listing) -> bool {
    !listing.rules(names::HOSTPORT_DNAT).is_empty()
}

fn removal(listing: &Listing, family: AddressFamily) -> Batch {
    let mut batch = Batch::new(family);
    let leads = |rule: &&ListedRule| rule.target().is_some_and(|target| SHARED.contains(&target));
    for from in LEADING {
        for rule in listing.rules(from).iter().filter(leads) {
            batch.push(Op::Delete(from.to_owned(), rule.0.clone()));
        }
    }
    let present: Vec<&str> = SHARED.into_iter().filter(|chain| listing.has(chain)).collect();
    for chain in &present {
        batch.push(Op::Flush((*chain).to_owned()));
    }
    for chain in present {
        batch.push(Op::DeleteChain(chain.to_owned()));
    }
    batch
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
        assert!(!is_used(&listing));
        assert_eq!(
            removal(&listing, AddressFamily::V4).to_string(),
            "*nat\n-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
             -D POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ\n\
             -F CNI-HOSTPORT-DNAT\n-F CNI-HOSTPORT-SETMARK\n-F CNI-HOSTPORT-MASQ\n\
             -X CNI-HOSTPORT-DNAT\n-X CNI-HOSTPORT-SETMARK\n-X CNI-HOSTPORT-MASQ\nCOMMIT\n"
        );
        assert!(removal(&Listing::default(), AddressFamily::V4).is_empty());
    }

    #[test]
    fn one_entry_is_enough_to_need_them() {
        let entry = "-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 80 -j CNI-DN-x\nCOMMIT\n";
        assert!(is_used(&Listing::parse(&EMPTY.replace("COMMIT\n", entry))));
    }
}
