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

use cni_nftables::{Policy, Socket};

use super::batch::Batch;
use super::filter::FORWARD;
use super::legacy;
use super::listing::Listing;
use super::names::TableName;
use super::rule::Rule;
use super::tools::{Place, Tools, Variant, table_id};
use crate::{AddressFamily, Error};

const COMMENT: &str = "made by slipway";

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
            let operation = "delete the rules of a bridge";
            update(place, operation, &mut changed, |listing| present(listing, link))?;
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
    fn the_policy_is_read() {
        assert_eq!(policy(DOCKER), Some(Policy::Drop));
        assert_eq!(policy(":FORWARD ACCEPT [0:0]"), Some(Policy::Accept));
        assert_eq!(policy("*nat"), None);
    }
}
