// SPDX-License-Identifier: GPL-2.0-or-later

//! Keeps the flowtable as an administrator has configured it (see `schema::flowtable`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_kernel::AddressFamily;
use cni_kernel::route::{LinkKind, RouteError, RouteSocket};
use cni_nftables::conntrack::{Conntrack, Filter, Flow};
use cni_nftables::{Chain, Flowtable, FlowtableInfo, Links, Rule, Table, TableId, Transaction};

use super::schema::flowtable::{CHAIN, FLOWTABLE, chain, flowtable};
use super::schema::{self, Fixed, Kernel, Layout, Protocols, SharedChain};
use super::session::Session;
use super::state::State;
use crate::Error;
use crate::owned_table::{unchanged, unless_no_nf_tables};

/// The prefix of the names of containers' links.
const VETHS: &str = "veth";
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Offload {
    /// The table stays as it is.
    #[default]
    AsItIs,
    /// Every packet goes through all chains; an existing flowtable is removed.
    Off,
    /// Established flows bypass the chains through a flowtable.
    Through(Uplinks),
}

/// The node's links on which flows of containers arrive, in addition to the containers' bridges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Uplinks {
    /// The links of the default routes of the main table.
    OfDefaultRoutes,
    /// The links with these names, as far as they exist.
    Named(Vec<String>),
}

/// Builds the batch that adds the flowtable.
pub(crate) fn switch_on(shared: &[SharedChain], layout: Layout, flowtable: Flowtable) -> Transaction {
    let mut batch = Transaction::new();
    batch.add_flowtable(flowtable);
    batch.append(schema::repair(shared, layout));
    batch
}

/// Builds the batch that removes the flowtable. Connections keep their mark, which no longer has any effect.
pub(crate) fn switch_off(shared: &[SharedChain], layout: Layout) -> Transaction {
    let table = schema::table();
    let mut batch = schema::repair(shared, Layout { offloading: None, ..layout });
    batch.flush_chain(&table, CHAIN).delete_chain(&table, CHAIN).delete_flowtable(&table, FLOWTABLE);
    batch
}

/// Sets how established flows are handled. If there is a flowtable, it has to contain the bridges of these
/// containers.
///
/// # Errors
/// [`Error::Kernel`] if links or the table cannot be read, or the kernel refuses the flowtable; [`Error::Busy`] if
/// other processes change the ruleset at every attempt. The containers' elements stay as they are.
pub(crate) fn settle(session: &Session, wanted: &Offload, containers: &[IpAddr]) -> Result<(), Error> {
    let uplinks = match wanted {
        Offload::AsItIs => return Ok(()),
        Offload::Off => None,
        Offload::Through(uplinks) => Some(uplinks),
    };
    let devices = match uplinks {
        Some(uplinks) => devices(uplinks, containers).map_err(|e| Error::kernel("choose links", e))?,
        None => BTreeSet::new(),
    };
    session.transact("change the flowtable", |_| {
        // In the usual case, the reads below show that there is nothing to do.
        let layout = session.layout()?;
        let batch = match (uplinks, layout.offloading) {
            (None, None) => return unchanged(()),
            (None, Some(_)) => switch_off(&session.shared_chains()?, layout),
            (Some(_), None) => {
                let devices: Vec<Links> = devices.iter().cloned().collect();
                let flowtable = flowtable(&session.table, &devices);
                switch_on(&session.shared_chains()?, layout.offloading(), flowtable)
            }
            (Some(_), Some(_)) => {
                let Some(flowtable) = missing_links(session.flowtable()?, &devices) else {
                    return unchanged(());
                };
                let mut batch = Transaction::new();
                batch.add_flowtable(flowtable);
                batch
            }
        };
        if !matches!(session.state()?, State::Ready) {
            // Another process has just damaged the table. The next ADD repairs it, and calls this function again.
            return unchanged(());
        }
        Ok((batch, ()))
    })
}

/// A flowtable with the missing links, which is added to the existing one. None if no link is missing.
fn missing_links(present: Option<FlowtableInfo>, devices: &BTreeSet<Links>) -> Option<Flowtable> {
    let links = present.map_or_else(Vec::new, |found| found.devices);
    let missing: Vec<Links> = devices.iter().filter(|device| !links.contains(device)).cloned().collect();
    (!missing.is_empty()).then(|| Flowtable::new(&schema::table(), FLOWTABLE, &missing))
}

/// Chooses the links: the existing uplinks, the containers' bridges and, where the kernel needs them, the containers'
/// own links by a prefix of their names. They are not added one by one, because the kernel cannot list a flowtable of
/// more than some two hundred links, not even for `nft list ruleset`. Packets that arrive on another link, such as
/// that of a ptp container, go through the chains.
fn devices(uplinks: &Uplinks, containers: &[IpAddr]) -> Result<BTreeSet<Links>, RouteError> {
    let socket = RouteSocket::open()?;
    let mut devices = BTreeSet::new();
    if Kernel::this().looks_through_bridges() {
        devices.insert(Links::Beginning(VETHS.to_owned()));
    }
    match uplinks {
        Uplinks::Named(names) => {
            for name in names {
                match socket.find_link(name)? {
                    Some(link) => drop(devices.insert(Links::Named(link.name))),
                    None => log::warn!("flowtable: there is no link {name}"),
                }
            }
        }
        Uplinks::OfDefaultRoutes => {
            let mut indices = BTreeSet::new();
            for family in AddressFamily::BOTH {
                let routes = RouteSocket::open()?.default_routes(family)?;
                indices.extend(routes.iter().filter_map(|route| route.link));
            }
            for index in indices {
                devices.insert(Links::Named(socket.link_by_index(index)?.name));
            }
        }
    }
    let mut seen = BTreeSet::new();
    for container in containers {
        let Some(index) = socket.link_to(*container).ok().flatten() else { continue };
        if !seen.insert(index) {
            continue;
        }
        let link = socket.link_by_index(index)?;
        if link.kind == LinkKind::Bridge {
            devices.insert(Links::Named(link.name));
        }
    }
    Ok(devices)
}

/// Removes the offloaded flows to and from these containers' addresses, which would bypass every chain as long as a
/// client keeps sending. A failure is logged and does not fail the DEL, because an idle flow ends by itself.
pub(crate) fn cut(containers: &BTreeSet<IpAddr>) {
    if containers.is_empty() {
        return;
    }
    let all = Filter { status: Flow::OFFLOADED, ..Filter::all(None) };
    let theirs =
        |flow: &Flow| containers.contains(&flow.original.source) || containers.contains(&flow.reply.source);
    let cut = Conntrack::open().and_then(|conntrack| conntrack.delete_if(&all, theirs));
    match cut {
        Ok(count) => log::debug!("removed {count} offloaded flows"),
        Err(error) => log::warn!("remove the offloaded flows of a container: {error}"),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowtableState {
    /// There is no flowtable, so established flows go through the chains.
    None,
    /// There is a flowtable for flows that arrive on these links. `veth*` means all names with that prefix.
    At(Vec<String>),
}

pub fn state() -> Result<FlowtableState, Error> {
    unless_no_nf_tables(Session::open().and_then(|session| session.flowtable())).map(|found| {
        found.map_or(FlowtableState::None, |found| {
            FlowtableState::At(found.devices.iter().map(Links::to_string).collect())
        })
    })
}

/// Checks that this kernel can have a flowtable, without making one.
pub fn try_out() -> Result<(), Error> {
    let session = Session::open()?;
    let id = TableId::new(cni_nftables::Family::Inet, "probe");
    let mut batch = Transaction::new();
    batch.add_table(Table::new(&id)).add_flowtable(flowtable(&id, &[]));
    if let Some(Fixed { chain, rules }) = Layout::PLAIN.offloading().offloading.map(chain) {
        batch.add_chain(Chain { table: id.clone(), ..chain });
        for stmts in rules {
            batch.add_rule(Rule::new(&id, CHAIN, stmts));
        }
    }
    session.socket.dry_run(&batch).map_err(|e| Error::kernel("try a flowtable", e))
}

/// Names the protocols that this kernel offloads, for people.
#[must_use]
pub fn protocols() -> &'static str {
    match Protocols::of(Kernel::this()) {
        Protocols::Tcp => "TCP",
        Protocols::TcpAndUdp => "TCP and UDP",
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;

    use super::*;

    fn offloading(protocols: Protocols) -> Layout {
        Layout { offloading: Some(protocols), ..Layout::PLAIN }
    }

    #[test]
    fn switching_on_and_off() {
        let shared = [
            SharedChain::Masquerade { network: "10.88.0.0/16".parse().unwrap(), exempt: None },
            SharedChain::Hairpin { network: "fd00::/64".parse().unwrap(), others: Vec::new(), bit: 5 },
            SharedChain::HairpinNone { family: crate::AddressFamily::V4, bit: 13 },
        ];
        let devices = ["cni0", "eth0"].map(|name| Links::Named(name.to_owned()));
        let devices = [&devices[..], &[Links::Beginning(VETHS.to_owned())]].concat();
        let flowtable = Flowtable::new(&schema::table(), FLOWTABLE, &devices).counter(true);
        let on = switch_on(&shared, offloading(Protocols::TcpAndUdp), flowtable);
        expect_file!["../../golden/flowtable-on.nft"].assert_eq(&on.to_string());
        let off = switch_off(&shared, Layout::PLAIN).to_string();
        expect_file!["../../golden/flowtable-off.nft"].assert_eq(&off);
        assert!(!off.contains("ct mark"), "{off}");
    }

    #[test]
    fn only_missing_links_are_added() {
        let link = |name: &str| Links::Named(name.to_owned());
        let wanted = BTreeSet::from([link("cni0"), link("eth0")]);
        let lacks = |devices: &[Links]| {
            let (table, name) = (schema::table(), FLOWTABLE.to_owned());
            let present =
                FlowtableInfo { table, name, handle: 1, uses: 1, devices: devices.to_vec(), counter: true };
            missing_links(Some(present), &wanted).map(|addition| addition.devices)
        };
        assert_eq!(lacks(&[link("cni0"), link("eth0")]), None);
        assert_eq!(lacks(&[link("cni0")]), Some(vec![link("eth0")]));
    }

    #[test]
    fn a_flowtable_counts_from_linux_5_7_on() {
        assert!(!Kernel(5, 6).counts() && Kernel(5, 7).counts() && Kernel(6, 12).counts());
    }

    #[test]
    fn every_chain_has_as_many_rules_as_without() {
        let offloading = offloading(Protocols::Tcp);
        let fixed = |layout| -> Vec<_> {
            let chains = schema::fixed_chains(layout).into_iter();
            chains.map(|fixed| (fixed.chain.name, fixed.rules.len())).collect()
        };
        let (plain, with) = (fixed(Layout::PLAIN), fixed(offloading));
        assert_eq!(plain.iter().filter(|of| !with.contains(of)).count(), 0);
        assert_eq!(with.len(), plain.len() + 1);
        let network = "10.88.0.0/16".parse().unwrap();
        let family = crate::AddressFamily::V4;
        for chain in [
            SharedChain::Masquerade { network, exempt: None },
            SharedChain::Hairpin { network, others: Vec::new(), bit: 13 },
            SharedChain::HairpinAll { family, bit: 13 },
            SharedChain::HairpinNone { family, bit: 13 },
        ] {
            let (plain, with) = (chain.rules(Layout::PLAIN), chain.rules(offloading));
            assert_eq!(plain.len(), with.len(), "{chain:?}");
            assert_ne!(plain, with, "{chain:?}");
        }
    }

    #[test]
    fn udp_is_offloaded_where_its_flows_can_be_removed() {
        for release in ["5.10.0-46-cloud-amd64", "6.1.0", "6.3.13", "", "mine", "6"] {
            assert_eq!(Protocols::of(Kernel::of_release(release)), Protocols::Tcp, "{release}");
        }
        for release in ["6.4", "6.12.117+deb12-cloud-amd64", "7.0.1", "10.2"] {
            assert_eq!(Protocols::of(Kernel::of_release(release)), Protocols::TcpAndUdp, "{release}");
        }
    }

    #[test]
    fn containers_links_are_in_the_flowtable_where_the_kernel_needs_them() {
        for (release, does) in [("6.18.15+deb13", false), ("7.0.0", true), ("7.2.13+deb14-cloud-amd64", true)]
        {
            assert_eq!(Kernel::of_release(release).looks_through_bridges(), does, "{release}");
        }
    }
}
