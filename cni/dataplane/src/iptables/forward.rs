// SPDX-License-Identifier: GPL-2.0-or-later

//! Rules that accept the packets of a bridge in the chain FORWARD of either variant, if that chain drops by default.
//! Docker and ufw set that policy.
//!
//! ```text
//! FORWARD    -i BRIDGE -m comment --comment "made by slipway" -j ACCEPT
//!            -o BRIDGE -m comment --comment "made by slipway" -j ACCEPT
//! ```
//!
//! The rules are appended to the chain, so packets that another program's rule drops or rejects are still dropped.

use std::collections::BTreeSet;

use cni_nftables::{Policy, Socket};

use super::batch::Batch;
use super::detect;
use super::filter::FORWARD;
use super::legacy;
use super::listing::Listing;
use super::names::TableName;
use super::rule::Rule;
use super::tools::{Place, Tools, Variant, table_id};
use crate::{AddressFamily, Error};

const COMMENT: &str = "made by slipway";
/// The operation in error messages about [`withdraw`] and [`AcceptedLink::withdraw`].
const WITHDRAWAL: &str = "delete the rules of a bridge";

/// A link for which [`accept`] has added rules to the chain FORWARD of one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedLink {
    pub place: Place,
    /// The link's name. The link need not exist.
    pub link: String,
}

impl AcceptedLink {
    /// All such links. Runs a program of iptables only where a rule may be one of ours.
    pub fn all() -> Result<Vec<Self>, Error> {
        let mut all = Vec::new();
        for place in Place::all() {
            let comment = COMMENT.as_bytes().to_vec();
            if detect::has_rule(place, TableName::Filter, FORWARD, &[comment])? {
                let listing = Tools::new(place, TableName::Filter).read(&[FORWARD])?;
                all.extend(accepted(&listing).into_iter().map(|link| Self { place, link }));
            }
        }
        Ok(all)
    }

    /// Deletes the rules.
    pub fn withdraw(&self) -> Result<(), Error> {
        update(self.place, WITHDRAWAL, &mut Vec::new(), |listing| present(listing, &self.link))
    }
}

/// Accepts the packets from and to a link in every chain FORWARD of these families that drops by default. Returns the
/// places where rules were missing. The link need not exist.
pub fn accept(link: &str, families: &[AddressFamily]) -> Result<Vec<Place>, Error> {
    let mut changed = Vec::new();
    for place in Place::all().filter(|place| families.contains(&place.family)) {
        if chain(place)? == Some(Policy::Drop) {
            let operation = "accept the packets of a bridge";
            update(place, operation, &mut changed, |listing| missing(listing, link))?;
        }
    }
    Ok(changed)
}

/// Deletes the rules of [`accept`] for a link. Returns the places where rules existed.
pub fn withdraw(link: &str) -> Result<Vec<Place>, Error> {
    let mut changed = Vec::new();
    for place in Place::all() {
        if chain(place)?.is_some() {
            update(place, WITHDRAWAL, &mut changed, |listing| present(listing, link))?;
        }
    }
    Ok(changed)
}

fn update(
    place: Place,
    operation: &str,
    changed: &mut Vec<Place>,
    changes: impl Fn(&Listing) -> Batch,
) -> Result<(), Error> {
    let mut differs = false;
    Tools::new(place, TableName::Filter).update(operation, &[FORWARD], None, |listing| {
        let batch = changes(listing);
        differs |= !batch.is_empty();
        batch
    })?;
    changed.extend(differs.then_some(place));
    Ok(())
}

/// The policy of the chain, or none if the chain does not exist.
fn chain(place: Place) -> Result<Option<Policy>, Error> {
    match place.variant {
        Variant::Nft => {
            let table = table_id(place.family, TableName::Filter);
            let chain = Socket::open().and_then(|socket| socket.chain(&table, FORWARD));
            let chain =
                chain.map_err(|error| Error::kernel(format!("read chain {table} {FORWARD}"), error))?;
            Ok(chain.and_then(|chain| chain.base).map(|base| base.policy))
        }
        Variant::Legacy if !legacy::has_table(place.family, TableName::Filter)? => Ok(None),
        Variant::Legacy => {
            let table = Tools::new(place, TableName::Filter).print_table()?;
            Ok(policy(&table))
        }
    }
}

/// The policy in the output of `iptables-save`.
fn policy(table: &str) -> Option<Policy> {
    let line = table.lines().find_map(|line| line.strip_prefix(":FORWARD "))?;
    Some(if line.starts_with("DROP") { Policy::Drop } else { Policy::Accept })
}

fn rules(link: &str) -> [Rule; 2] {
    ["-i", "-o"].map(|side| Rule::new().with([side, link]).with_comment(COMMENT).jump("ACCEPT"))
}

fn missing(listing: &Listing, link: &str) -> Batch {
    let mut batch = Batch::new(TableName::Filter);
    for rule in rules(link).iter().filter(|rule| !listing.contains(FORWARD, rule)) {
        batch.append(FORWARD, rule);
    }
    batch
}

fn present(listing: &Listing, link: &str) -> Batch {
    let mut batch = Batch::new(TableName::Filter);
    let wanted = rules(link);
    for rule in listing.rules(FORWARD).iter().filter(|rule| wanted.contains(rule)) {
        batch.delete(FORWARD, rule);
    }
    batch
}

/// The links for which a chain has one of our rules or both.
fn accepted(listing: &Listing) -> BTreeSet<String> {
    let link = |rule: &Rule| {
        let link = rule.value("-i").or_else(|| rule.value("-o"))?;
        rules(link).contains(rule).then(|| link.to_owned())
    };
    listing.rules(FORWARD).iter().filter_map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCKER: &str = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [7:420]\n:DOCKER-USER - [0:0]\n\
                          -A FORWARD -j DOCKER-USER\nCOMMIT\n";

    fn lines(batch: &Batch) -> Vec<String> {
        batch.to_string().lines().map(str::to_owned).collect()
    }

    #[test]
    fn missing_rules_are_appended_and_found_again() {
        let listing = Listing::parse(DOCKER, TableName::Filter);
        let batch = lines(&missing(&listing, "slipway0"));
        let rule = |side: &str| {
            format!("-A FORWARD {side} slipway0 -m comment --comment \"made by slipway\" -j ACCEPT")
        };
        assert!(batch.contains(&rule("-i")) && batch.contains(&rule("-o")), "{batch:?}");
        let both = DOCKER.replace("COMMIT", &format!("{}\n{}\nCOMMIT", rule("-i"), rule("-o")));
        let listing = Listing::parse(&both, TableName::Filter);
        assert!(missing(&listing, "slipway0").is_empty());
        assert_eq!(lines(&missing(&listing, "other0")).len(), batch.len());
        assert!(present(&listing, "other0").is_empty());
        let deleted = lines(&present(&listing, "slipway0"));
        assert_eq!(deleted.iter().filter(|line| line.starts_with("-D FORWARD")).count(), 2, "{deleted:?}");
    }

    #[test]
    fn links_are_found_by_rules_of_exactly_our_form() {
        let foreign = [
            "-i mine0 -j ACCEPT",
            "-i mine1 -m comment --comment \"made by somebody\" -j ACCEPT",
            "-i mine2 -p tcp -m comment --comment \"made by slipway\" -j ACCEPT",
            "-i mine3 -m comment --comment \"made by slipway\" -j DROP",
            "! -i mine4 -m comment --comment \"made by slipway\" -j ACCEPT",
            "-m comment --comment \"made by slipway\" -j ACCEPT",
        ];
        let ours = ["-i slipway0", "-o slipway0", "-o pods0"]
            .map(|side| format!("{side} -m comment --comment \"made by slipway\" -j ACCEPT"));
        let all = foreign.iter().map(|rule| (*rule).to_owned()).chain(ours);
        let lines: String = all.map(|rule| format!("-A FORWARD {rule}\n")).collect();
        let listing = Listing::parse(&DOCKER.replace("COMMIT", &lines), TableName::Filter);
        assert_eq!(accepted(&listing), ["pods0", "slipway0"].map(str::to_owned).into());
        assert!(accepted(&Listing::parse(DOCKER, TableName::Filter)).is_empty());
    }

    #[test]
    fn the_policy_is_read() {
        assert_eq!(policy(DOCKER), Some(Policy::Drop));
        assert_eq!(policy(":FORWARD ACCEPT [0:0]"), Some(Policy::Accept));
        assert_eq!(policy("*nat"), None);
    }
}
