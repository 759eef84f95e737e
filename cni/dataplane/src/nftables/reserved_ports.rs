// SPDX-License-Identifier: GPL-2.0-or-later

//! Keeps netfilter's masquerade away from the source ports of the BPF programs: see
//! [`schema::reserved_ports`].

use cni_nftables::{ChainInfo, Transaction};

use super::schema::reserved_ports::{CHAIN, chain, range_of};
use super::schema::{self, Fixed, Layout, SharedChain};
use super::session::{Session, State};
use crate::owned_table::unchanged;
use crate::{Error, PortRange};

/// Builds the batch that makes these chains' masquerade avoid the layout's reserved ports, or none.
fn change(shared: &[SharedChain], layout: Layout, was_there: Option<&ChainInfo>) -> Transaction {
    let table = schema::table();
    let mut batch = Transaction::new();
    let masquerading = || shared.iter().filter(|chain| matches!(chain, SharedChain::Masquerade { .. }));
    for chain in masquerading() {
        batch.flush_chain(&table, &chain.name());
    }
    if was_there.is_some() {
        batch.flush_chain(&table, CHAIN).delete_chain(&table, CHAIN);
    }
    if let Some(Fixed { chain, rules }) = layout.spared.map(chain) {
        batch.add_chain(chain.exclusive());
        schema::add_rules(&mut batch, CHAIN, rules);
    }
    for chain in masquerading() {
        schema::add_rules(&mut batch, &chain.name(), chain.rules(layout));
    }
    batch
}

/// Makes the table's masquerade avoid these ports, or none. A table that is missing or damaged is left as it
/// is: the process that makes it calls this afterwards.
///
/// # Errors
/// [`Error::Kernel`] if the table cannot be read or changed; [`Error::Busy`] if other processes change the
/// ruleset at every attempt. The containers' elements are unchanged.
pub(crate) fn settle(session: &Session, wanted: Option<PortRange>) -> Result<(), Error> {
    session.transact("reserve ports for the BPF programs' masquerade", |_| {
        let found = session.chain(CHAIN)?;
        let as_wanted = match &found {
            None => wanted.is_none(),
            Some(chain) => wanted.is_some() && range_of(chain) == wanted,
        };
        if as_wanted || !matches!(session.state()?, State::Ready) {
            return unchanged(());
        }
        let layout = Layout { spared: wanted, ..session.layout()? };
        Ok((change(&session.shared_chains()?, layout, found.as_ref()), ()))
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;

    use super::*;

    fn range(first: u16, last: u16) -> PortRange {
        PortRange { first, last }
    }

    #[test]
    fn on_another_range_and_off() {
        let shared = [
            SharedChain::Masquerade { network: "10.88.0.0/16".parse().unwrap(), exempt: None },
            SharedChain::Hairpin { network: "10.88.0.0/16".parse().unwrap(), bit: 13 },
            SharedChain::Masquerade { network: "fd00::/64".parse().unwrap(), exempt: None },
        ];
        let spared = |range| Layout { spared: range, ..Layout::PLAIN };
        let there = |range| {
            let comment = chain(range).chain.comment;
            ChainInfo {
                table: schema::table(),
                name: CHAIN.to_owned(),
                handle: 1,
                base: None,
                uses: 3,
                comment,
            }
        };
        let default = PortRange::default();
        assert_eq!(range_of(&there(default)), Some(default));
        let on = change(&shared, spared(Some(default)), None).to_string();
        let other = change(&shared, spared(Some(range(40000, 40099))), Some(&there(default))).to_string();
        let off = change(&shared, Layout::PLAIN, Some(&there(default))).to_string();
        expect_file!["../../golden/spare-ports.nft"].assert_eq(&[on, other, off].join("\n"));
    }
}
