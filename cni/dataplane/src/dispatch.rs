// SPDX-License-Identifier: GPL-2.0-or-later

//! All backends together: an ADD uses the chosen backend, and every other call finds an attachment in any of them.

use cni_spec::Attachment;

use crate::ebpf::{Ebpf, Settings};
use crate::foreign_nat;
use crate::iptables::Iptables;
use crate::nftables::FlowSearch;
use crate::nftables::offload::Offload;
use crate::nftables::owner_entry;
use crate::nftables::schema::{KIND_MASQUERADE, KIND_PORTS};
use crate::nftables::{Nftables, session::Session};
use crate::other_backends::OtherBackends as Elsewhere;
use crate::owned_table::unless_no_nf_tables;
use crate::reference::Reference;
use crate::{
    Backend, BackendName, Before, ContainerNetworks, Error, Flows, Kinds, Listed, MasqueradeRequest,
    PortRequest, Traffic, Withdrawal, ebpf, iptables, nftables,
};

#[derive(Debug)]
pub struct Dataplane {
    /// None means nftables if the kernel has it, and iptables otherwise.
    choice: Option<BackendName>,
    nftables: Nftables,
    iptables: Iptables,
    /// nftables with the BPF programs on top.
    ebpf: Ebpf,
}

impl Default for Dataplane {
    fn default() -> Self {
        Self::new(None)
    }
}

/// Where an attachment's ports or masqueraded addresses are. Those of the nftables and the eBPF backend are both in
/// the table.
enum Holder {
    Table,
    Chains,
    Reference(Reference),
    None,
}

impl Dataplane {
    /// New objects are made with the backend that the configuration chooses, which by default is nftables if the
    /// kernel has it, and iptables otherwise.
    #[must_use]
    pub fn new(choice: Option<BackendName>) -> Self {
        Self {
            choice,
            nftables: Nftables::new(),
            iptables: Iptables::new(),
            ebpf: over_nftables(Settings::default(), FlowSearch::default()),
        }
    }

    /// Sets how established flows are handled in nftables.
    #[must_use]
    pub fn offload(mut self, offload: Offload) -> Self {
        self.nftables = self.nftables.offload(offload);
        self
    }

    /// Sets what an administrator has configured: the settings of the eBPF backend, and when conntrack is searched.
    #[must_use]
    pub fn with_settings(self, settings: Settings, search: FlowSearch) -> Self {
        Self { nftables: self.nftables.flow_search(search), ebpf: over_nftables(settings, search), ..self }
    }

    /// Reads the traffic through each of these mappings, in their order.
    pub fn traffic(&self, listed: &[Listed]) -> Result<Vec<Traffic>, Error> {
        Ok(self.flows(listed, 0)?.traffic)
    }

    /// Reads the flows through these mappings, returning at most `most` of them, and the traffic of all.
    pub fn flows(&self, listed: &[Listed], most: usize) -> Result<Flows, Error> {
        let mut all = self.nftables.flows(listed, most)?;
        ebpf::add_traffic(listed, &mut all)?;
        Ok(all)
    }

    /// Prepares the host's end of a new veth pair for the BPF programs, before the link is set up.
    pub fn prepare_link(&self, name: &str) {
        if self.choice == Some(BackendName::Ebpf) {
            self.ebpf.prepare_link(name);
        }
    }

    /// Adapts the published ports of a container, in whichever backend they are, to the networks that the container
    /// has now. Called for a container with ports on one network after an interface to another network was added or
    /// removed.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel refuses, [`Error::Busy`] if other processes change the ruleset at every attempt.
    pub fn set_networks(container: &ContainerNetworks) -> Result<(), Error> {
        unless_no_nf_tables(
            Session::open().and_then(|session| nftables::networks::set(&session, container)),
        )?;
        iptables::networks::set(container)
    }

    fn backend(&self, name: BackendName) -> &dyn Backend {
        match name {
            BackendName::Nftables => &self.nftables,
            BackendName::Iptables => &self.iptables,
            BackendName::Ebpf => &self.ebpf,
        }
    }

    /// Runs a call on the chosen backend.
    fn make<T>(&self, work: impl Fn(&dyn Backend) -> Result<T, Error>) -> Result<(BackendName, T), Error> {
        match self.choice {
            Some(name) => Ok((name, work(self.backend(name))?)),
            None => match work(&self.nftables) {
                Err(Error::NoNfTables(why)) => {
                    log::debug!("{why}: the iptables backend is used");
                    Ok((BackendName::Iptables, work(&self.iptables)?))
                }
                other => Ok((BackendName::Nftables, other?)),
            },
        }
    }

    /// Removes what the table has of the attachment. If nothing was removed, returns the socket, so that the caller
    /// can use it for the next read.
    fn withdraw_from_table(&self, withdrawal: &Withdrawal<'_>) -> Result<Option<Session>, Error> {
        let unused = self.nftables.take_away(withdrawal)?;
        if unused.is_none() {
            ebpf::rules_changed();
        }
        Ok(unused)
    }

    /// Like [`Self::withdraw_from_others`]. If that fails and the attachment had nothing `before`, also removes what
    /// was made, because an ADD makes everything or nothing.
    fn clear_others(
        &self,
        (made, before): (BackendName, Before),
        attachment: &Attachment,
        kinds: Kinds,
    ) -> Result<Before, Error> {
        let cleared = self.withdraw_from_others(made, attachment, kinds);
        if cleared.is_err()
            && before == Before::Nothing
            && let Err(left) = self.backend(made).withdraw(&Withdrawal::of(attachment, kinds))
        {
            log::warn!("undo what was made for {attachment}: {left}");
        }
        Ok(before.or(cleared?))
    }

    /// Removes what an earlier ADD of the same attachment made in other backends, when its configuration was
    /// different. Returns whether there was anything.
    fn withdraw_from_others(
        &self,
        made: BackendName,
        attachment: &Attachment,
        kinds: Kinds,
    ) -> Result<Before, Error> {
        let (withdrawal, elsewhere) = (Withdrawal::of(attachment, kinds), Elsewhere::look()?);
        let before = match made {
            BackendName::Iptables => Before::of(self.withdraw_from_table(&withdrawal)?.is_none()),
            BackendName::Nftables | BackendName::Ebpf => {
                self.withdraw_from_iptables(&withdrawal, &elsewhere)?
            }
        };
        Self::withdraw_from_reference(&withdrawal, &elsewhere)?;
        Ok(before)
    }

    /// Runs no iptables program if the attachment has nothing in iptables.
    fn withdraw_from_iptables(
        &self,
        withdrawal: &Withdrawal<'_>,
        elsewhere: &Elsewhere,
    ) -> Result<Before, Error> {
        let kinds = decisive(withdrawal.kinds);
        let there = elsewhere.is_recorded(withdrawal.attachment, kinds)?
            || (elsewhere.iptables && self.iptables.holds(withdrawal.attachment, kinds)?);
        if there {
            self.iptables.withdraw(withdrawal)?;
        }
        Ok(Before::of(there))
    }

    fn withdraw_from_reference(withdrawal: &Withdrawal<'_>, elsewhere: &Elsewhere) -> Result<(), Error> {
        if !elsewhere.reference {
            return Ok(());
        }
        // Ports and masquerade are in different tables, so removing both in one call would save nothing.
        let kinds = decisive(withdrawal.kinds);
        Reference::find()?.map_or(Ok(()), |found| found.withdraw(withdrawal.attachment, kinds))
    }

    fn holder(&self, attachment: &Attachment, kind: u32) -> Result<Holder, Error> {
        let kinds = if kind == KIND_PORTS { Kinds::Ports } else { Kinds::Masquerade };
        match Session::open().and_then(|session| owner_entry::holds(&session, attachment, kind)) {
            Ok(true) => return Ok(Holder::Table),
            Ok(false) | Err(Error::NoNfTables(_)) => {}
            Err(error) => return Err(error),
        }
        let elsewhere = Elsewhere::look()?;
        if elsewhere.iptables && self.iptables.holds(attachment, kinds)? {
            return Ok(Holder::Chains);
        }
        if elsewhere.reference
            && let Some(reference) = Reference::find()?
            && reference.holds(attachment, kinds)?
        {
            return Ok(Holder::Reference(reference));
        }
        Ok(Holder::None)
    }
}

fn over_nftables(settings: Settings, search: FlowSearch) -> Ebpf {
    Ebpf::over(Nftables::new().flow_search(search), settings)
}

/// The kinds whose presence decides whether anything is removed.
fn decisive(kinds: Kinds) -> Kinds {
    if kinds == Kinds::AllIfPorts { Kinds::Ports } else { kinds }
}

impl Backend for Dataplane {
    fn publish(&self, request: &PortRequest) -> Result<Before, Error> {
        // The socket is closed at once, because none may be open while a batch is committed.
        let Elsewhere { iptables, tables, .. } = Elsewhere::look()?;
        // The iptables backend checks this itself.
        if self.choice != Some(BackendName::Iptables) && iptables {
            self.iptables.refuse_taken(request)?;
        }
        let (made, before) = self.make(|backend| backend.publish(request))?;
        let before = self.clear_others((made, before), &request.attachment, Kinds::Ports)?;
        foreign_nat::warn(&request.ports, || match made {
            // The call may have made tables.
            BackendName::Iptables => Elsewhere::look().map_or(tables, |found| found.tables),
            BackendName::Nftables | BackendName::Ebpf => tables,
        });
        Ok(before)
    }

    fn masquerade(&self, request: &MasqueradeRequest) -> Result<Before, Error> {
        let made = self.make(|backend| backend.masquerade(request))?;
        self.clear_others(made, &request.attachment, Kinds::Masquerade)
    }

    fn withdraw(&self, withdrawal: &Withdrawal<'_>) -> Result<(), Error> {
        // A failure must not keep the other backends from being cleared.
        let (withdrawn, session) = match self.withdraw_from_table(withdrawal) {
            Ok(session) => (Ok(()), session),
            Err(error) => (Err(error), None),
        };
        let elsewhere = match Elsewhere::look_by(session) {
            Ok(found) => found,
            Err(error) => return withdrawn.and(Err(error)),
        };
        let results = [
            withdrawn,
            self.withdraw_from_iptables(withdrawal, &elsewhere).map(drop),
            Self::withdraw_from_reference(withdrawal, &elsewhere),
        ];
        if elsewhere.iptables || elsewhere.reference {
            // A migration may have copied the objects into the table after this call looked there. Before the
            // migration removes the originals, it checks that they still exist.
            return results
                .into_iter()
                .collect::<Result<(), _>>()
                .and(self.withdraw_from_table(withdrawal).map(drop));
        }
        results.into_iter().collect()
    }

    fn check_ports(&self, request: &PortRequest) -> Result<(), Error> {
        match self.holder(&request.attachment, KIND_PORTS)? {
            Holder::Table => self.nftables.check_ports(request),
            Holder::Chains => self.iptables.check_ports(request),
            Holder::Reference(reference) => reference.check_ports(request),
            Holder::None => self.make(|backend| backend.check_ports(request)).map(|_| ()),
        }
    }

    fn check_masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error> {
        match self.holder(&request.attachment, KIND_MASQUERADE)? {
            Holder::Table => self.nftables.check_masquerade(request),
            Holder::Chains => self.iptables.check_masquerade(request),
            // The reference plugin checks no more than this either.
            Holder::Reference(_) => Ok(()),
            Holder::None => self.make(|backend| backend.check_masquerade(request)).map(|_| ()),
        }
    }

    fn retain(&self, network: &str, valid: &[Attachment], kinds: Kinds) -> Result<(), Error> {
        let reference = || match Reference::find()? {
            Some(found) => found.retain(network, valid, kinds),
            None => Ok(()),
        };
        // The reference comes first, because only its masquerade rules name the networks of its ports.
        let reference = reference();
        let results = [
            reference,
            self.nftables.retain(network, valid, kinds),
            self.iptables.retain(network, valid, kinds),
        ];
        ebpf::rules_changed();
        results.into_iter().collect()
    }

    fn list(&self) -> Result<Vec<Listed>, Error> {
        let mut all = match self.nftables.list() {
            Err(Error::NoNfTables(_)) => Vec::new(),
            other => other?,
        };
        all.extend(self.iptables.list()?);
        // For a process that may not read the maps, all of these ports are listed as those of nftables.
        if let Err(error) = ebpf::name_served(&mut all) {
            log::warn!("read which ports the BPF programs serve: {error}");
        }
        all.sort_by(|a, b| (a.port, &a.owner, a.backend).cmp(&(b.port, &b.owner, b.backend)));
        // While a container is being migrated, its ports are in both backends for a moment.
        all.dedup_by(|a, b| (a.port, &a.owner) == (b.port, &b.owner));
        Ok(all)
    }

    fn status(&self) -> Result<(), Error> {
        self.make(|backend| backend.status()).map(|_| ())
    }
}
