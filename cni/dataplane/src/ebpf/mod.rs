// SPDX-License-Identifier: GPL-2.0-or-later

//! The eBPF fast path: BPF programs on the node's interfaces that translate host ports and masquerade.
//!
//! The programs are in `ebpf/programs`. `cargo xtask ebpf` builds them, this crate's build script finds the
//! object, and the binary carries it. A binary without the object has no such backend.
//!
//! The nftables table holds the ownership, and serves what the programs do not. The entries of the BPF maps
//! are written after the table's elements and removed before them (`entries`). If the programs fail, nftables
//! serves the ports.

mod attach;
mod carried;
mod cgroup;
mod config;
mod conntrack_export;
mod conntrack_import;
pub(crate) mod entries;
mod error;
mod exempt;
mod fill;
mod flows;
mod kube_proxy;
mod links;
mod load;
pub(crate) mod migrate;
mod netns_cookie;
mod node;
mod object;
mod other_versions;
mod pins;
mod pods;
mod tables;
mod timeouts;
mod uplinks;

use cni_spec::Attachment;

pub use crate::PortRange;
use crate::nftables::Nftables;
use crate::{Backend, ContainerNetns, Error, Kinds, Listed, MasqueradeRequest, PortRequest, Withdrawal};
pub use cgroup::{ControlGroup, Sockets};
pub use entries::Left;
pub(crate) use entries::{Programs, name_served};
pub use entries::{leave_addresses, leave_link};
pub use fill::Fill;
pub(crate) use flows::add_traffic;
pub use flows::{Direction, Ends, KnownFlow, Plane, flows};
pub(crate) use kube_proxy::engine;
pub use links::Without;
pub use load::{Sizes, try_object};
pub use node::{
    FlowSource, Settings, Status, is_there, served_in_other_namespace, setup_node, status, teardown_node,
    try_out,
};
pub use object::object;
use pins::Pins;
pub use slipway_ebpf_abi::carried::CarriedCounter;
pub use slipway_ebpf_abi::{Counter, Reason, State};

/// The eBPF backend: a decorator of [`Nftables`], which holds the ownership and serves all that the programs
/// do not.
#[derive(Debug)]
pub struct Ebpf {
    nftables: Nftables,
    settings: Settings,
}

impl Ebpf {
    /// Puts the programs on top of nftables, with what an administrator has set.
    #[must_use]
    pub(crate) fn over(nftables: Nftables, settings: Settings) -> Self {
        Self { nftables, settings }
    }

    /// Adds clsact to a link that is not up yet. To one that is up, the kernel adds it under the lock of all network
    /// configuration while it waits for a grace period (`dev_deactivate`): ADDs at once would wait for each other. A failure
    /// is of no matter, as the programs are attached later.
    pub(crate) fn prepare_link(&self, name: &str) {
        if (Pins::is_there() || carried::is_there())
            && let Err(error) = attach::add_clsact(name)
        {
            log::debug!("{error}");
        }
    }

    /// Attaches the programs that carry checked flows to an attachment's link. A failure is no failure of the
    /// ADD, as in [`Self::on_top`].
    fn carry(&self, attachment: &Attachment, netns: &ContainerNetns) {
        let attached = node::ready_to_carry(&self.settings)
            .and_then(|store| carried::attach(&store, netns, attachment.ifname()));
        match attached {
            Ok(true) => {}
            Ok(false) => log::info!("{attachment} is left to nftables: {}", Left::NoVeth),
            Err(error) => log::warn!("{attachment} is left to nftables: {error}"),
        }
    }

    /// Updates the BPF maps for an attachment. A failure is logged and is no failure of the ADD: nftables
    /// serves the ports already.
    fn on_top(&self, attachment: &Attachment, work: impl Fn(&Pins) -> Result<Option<Left>, Error>) {
        let done = node::ready(&self.settings).and_then(|pins| {
            node::yield_to_services(&pins)?;
            work(&pins)
        });
        match done {
            Ok(None) => {}
            Ok(Some(left)) => log::info!("{attachment} is left to nftables: {left}"),
            Err(error) => log::warn!("{attachment} is left to nftables: {error}"),
        }
    }
}

impl Backend for Ebpf {
    fn publish(&self, request: &PortRequest) -> Result<(), Error> {
        self.nftables.publish(request)?;
        if self.settings.flows == FlowSource::Netfilter {
            self.carry(&request.attachment, &request.netns);
            return Ok(());
        }
        self.on_top(&request.attachment, |pins| {
            let left = entries::unserved(request);
            let done = if left.is_none() { entries::publish(pins, request) } else { Ok(left) };
            if !matches!(done, Ok(None)) {
                entries::leave_ports(request);
            }
            done
        });
        Ok(())
    }

    fn masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error> {
        self.nftables.masquerade(request)?;
        if self.settings.flows == FlowSource::Netfilter {
            self.carry(&request.attachment, &request.netns);
            return Ok(());
        }
        self.on_top(&request.attachment, |pins| {
            let done = entries::masquerade(pins, request);
            // An earlier ADD may have had other exempt networks.
            if done.is_err() {
                entries::leave_masquerade(request);
            }
            done
        });
        Ok(())
    }

    fn withdraw(&self, withdrawal: &Withdrawal<'_>) -> Result<(), Error> {
        self.nftables.withdraw(withdrawal)
    }

    fn check_ports(&self, request: &PortRequest) -> Result<(), Error> {
        self.nftables.check_ports(request)?;
        match config::at_home() {
            Some(pins) if object().is_some() && entries::unserved(request).is_none() => {
                entries::check_ports(&pins, request)
            }
            _ => Ok(()),
        }
    }

    fn check_masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error> {
        self.nftables.check_masquerade(request)?;
        match config::at_home() {
            Some(pins) if object().is_some() => entries::check_masquerade(&pins, request),
            _ => Ok(()),
        }
    }

    fn retain(&self, network: &str, valid: &[Attachment], kinds: Kinds) -> Result<(), Error> {
        self.nftables.retain(network, valid, kinds)
    }

    fn list(&self) -> Result<Vec<Listed>, Error> {
        self.nftables.list()
    }

    fn status(&self) -> Result<(), Error> {
        self.nftables.status()?;
        // kube-proxy may start after the last ADD.
        if let Some(Err(error)) = config::at_home().map(|pins| node::yield_to_services(&pins)) {
            log::warn!("look for engines that translate Services: {error}");
        }
        Ok(())
    }
}
