// SPDX-License-Identifier: GPL-2.0-or-later

//! The eBPF backend: nftables, with BPF programs on top that carry flows which netfilter has already checked.
//!
//! The programs are in `ebpf/programs`. `cargo xtask ebpf` builds them, this crate's build script finds the object,
//! and the object is embedded in the binary. A binary without the object has no eBPF backend.
//!
//! The nftables table contains every published port and masquerade. The programs learn flows from the packets that
//! come out of the kernel's stack, so user space writes no ports or addresses: it only attaches the programs, and
//! increments the epoch when rules may have changed. A link without the programs loses nothing but speed.

mod conntrack;
mod containers;
mod error;
mod file_system;
mod fill;
mod follower;
mod foreign_filter;
mod links;
mod load;
pub(crate) mod migrate;
mod names;
mod object;
mod port_packets;
pub(crate) mod rules;
mod setup;
mod store;
mod traffic;
mod udp_gro;
mod uplinks;

use cni_spec::Attachment;

use crate::nftables::Nftables;
use crate::{
    Backend, Before, ContainerNetns, Error, Kinds, Listed, MasqueradeRequest, PortRequest, Withdrawal,
};
pub use fill::Fill;
pub use follower::Follower;
pub use foreign_filter::{ForeignFilter, programs_before_filters};
pub use links::{PREFERENCE, UnservedLink};
pub use load::try_object;
pub use names::{about_counter, of_counter};
pub use object::object;
pub use port_packets::CarriedPackets;
pub use rules::HoldingRule;
pub(crate) use setup::rules_changed;
pub use setup::{
    Settings, Status, is_there, limit_link, served_in_other_namespace, setup_node, status, teardown_node,
    try_out,
};
pub use slipway_ebpf_abi::Counter;
pub(crate) use traffic::{add_traffic, name_served};
pub use udp_gro::{Merging, merging, switch_merging};

/// The programs' counters that are not zero. Empty without programs.
pub fn counters() -> Result<Vec<(Counter, u64)>, Error> {
    setup::find()?.map_or(Ok(Vec::new()), |store| store.counters())
}

/// The rules that decide about single packets, so that the programs do not carry the flows that match them; empty
/// without programs.
pub fn holding_rules() -> Result<Vec<HoldingRule>, Error> {
    setup::find()?.map_or(Ok(Vec::new()), |_| rules::holding())
}

/// The eBPF backend: a decorator of [`Nftables`].
#[derive(Debug)]
pub struct Ebpf {
    nftables: Nftables,
    settings: Settings,
}

impl Ebpf {
    /// Puts the programs on top of nftables, with an administrator's settings.
    #[must_use]
    pub(crate) fn over(nftables: Nftables, settings: Settings) -> Self {
        Self { nftables, settings }
    }

    /// Adds clsact to a link that is not up yet. If the link were up, the kernel would add it while holding the lock
    /// of all network configuration and waiting for a grace period (`dev_deactivate`), so concurrent ADDs would wait
    /// for each other. A failure does not matter, because the programs are attached later.
    pub(crate) fn prepare_link(&self, name: &str) {
        let prepared =
            store::is_there().and_then(|there| if there { links::add_clsact(name) } else { Ok(()) });
        if let Err(error) = prepared {
            log::debug!("{error}");
        }
    }

    /// Attaches the programs to an attachment's link. A failure is logged but does not fail the ADD, because nftables
    /// already serves the container.
    fn carry(&self, attachment: &Attachment, netns: &ContainerNetns) {
        let attached =
            setup::ready(&self.settings).and_then(|store| setup::attach(&store, netns, attachment.ifname()));
        match attached {
            Ok(true) => {}
            Ok(false) => log::info!("{attachment} is left to nftables: {}", migrate::LinkError::NoVeth),
            Err(error) => log::warn!("{attachment} is left to nftables: {error}"),
        }
    }
}

impl Backend for Ebpf {
    fn publish(&self, request: &PortRequest) -> Result<Before, Error> {
        let before = self.nftables.publish(request)?;
        self.carry(&request.attachment, &request.netns);
        Ok(before)
    }

    fn masquerade(&self, request: &MasqueradeRequest) -> Result<Before, Error> {
        let before = self.nftables.masquerade(request)?;
        self.carry(&request.attachment, &request.netns);
        Ok(before)
    }

    fn withdraw(&self, withdrawal: &Withdrawal<'_>) -> Result<(), Error> {
        self.nftables.withdraw(withdrawal)
    }

    fn check_ports(&self, request: &PortRequest) -> Result<(), Error> {
        self.nftables.check_ports(request)
    }

    fn check_masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error> {
        self.nftables.check_masquerade(request)
    }

    fn retain(&self, network: &str, valid: &[Attachment], kinds: Kinds) -> Result<(), Error> {
        self.nftables.retain(network, valid, kinds)
    }

    fn list(&self) -> Result<Vec<Listed>, Error> {
        self.nftables.list()
    }

    fn status(&self) -> Result<(), Error> {
        self.nftables.status()
    }
}
