// SPDX-License-Identifier: GPL-2.0-or-later

//! A backend that keeps everything in memory, for tests of code that calls backends.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cni_spec::Attachment;

use crate::{
    Backend, BackendName, Before, Cause, Difference, Error, Kinds, Listed, MasqueradeRequest, Owner,
    PortRequest, Withdrawal,
};

#[derive(Debug, Default)]
pub struct Fake {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ports: BTreeMap<Attachment, PortRequest>,
    masquerades: BTreeMap<Attachment, MasqueradeRequest>,
    calls: Vec<String>,
    failing: Option<&'static str>,
}

impl Fake {
    /// An empty backend.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes later calls of `method` fail.
    pub fn fail(&self, method: &'static str) {
        self.state().failing = Some(method);
    }

    /// The calls so far, one per line.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// True if nothing is published and nothing masqueraded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let state = self.state();
        state.ports.is_empty() && state.masquerades.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(
        &self,
        method: &'static str,
        object: &dyn std::fmt::Display,
    ) -> Result<MutexGuard<'_, State>, Error> {
        let mut state = self.state();
        state.calls.push(format!("{method} {object}"));
        if state.failing == Some(method) {
            return Err(Error::kernel(format!("{method} {object}"), Cause::Injected));
        }
        Ok(state)
    }
}

impl Backend for Fake {
    fn publish(&self, request: &PortRequest) -> Result<Before, Error> {
        let mut state = self.enter("publish", &request.attachment)?;
        let same_container = |other: &PortRequest| {
            other.attachment.container_id() == request.attachment.container_id()
                && other.netns == request.netns
        };
        let others = state.ports.values().filter(|o| o.attachment != request.attachment);
        for other in others.filter(|other| !same_container(other)) {
            for wanted in &request.ports {
                if other.ports.iter().any(|has| has.host.overlaps(&wanted.host)) {
                    let owner = Box::new(Owner::of(&other.attachment));
                    return Err(Error::Conflict { what: wanted.host.to_string(), owner });
                }
            }
        }
        let earlier = state.ports.insert(request.attachment.clone(), request.clone());
        Ok(Before::of(earlier.is_some()))
    }

    fn masquerade(&self, request: &MasqueradeRequest) -> Result<Before, Error> {
        let mut state = self.enter("masquerade", &request.attachment)?;
        for other in state.masquerades.values().filter(|o| o.attachment != request.attachment) {
            for wanted in &request.addresses {
                if other.addresses.iter().any(|has| has.addr() == wanted.addr()) {
                    let owner = Box::new(Owner::of(&other.attachment));
                    return Err(Error::Conflict { what: wanted.addr().to_string(), owner });
                }
            }
        }
        let earlier = state.masquerades.insert(request.attachment.clone(), request.clone());
        Ok(Before::of(earlier.is_some()))
    }

    fn withdraw(&self, withdrawal: &Withdrawal<'_>) -> Result<(), Error> {
        let mut state = self.enter("withdraw", withdrawal.attachment)?;
        if withdrawal.kinds == Kinds::AllIfPorts && !state.ports.contains_key(withdrawal.attachment) {
            return Ok(());
        }
        if withdrawal.kinds.ports() {
            state.ports.remove(withdrawal.attachment);
        }
        if withdrawal.kinds.masquerade() {
            state.masquerades.remove(withdrawal.attachment);
        }
        Ok(())
    }

    fn check_ports(&self, request: &PortRequest) -> Result<(), Error> {
        let state = self.enter("check_ports", &request.attachment)?;
        match state.ports.get(&request.attachment) {
            Some(has) if has == request => Ok(()),
            _ => Err(Difference::Ports(request.attachment.clone()).into()),
        }
    }

    fn check_masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error> {
        let state = self.enter("check_masquerade", &request.attachment)?;
        match state.masquerades.get(&request.attachment) {
            Some(has) if has == request => Ok(()),
            _ => Err(Difference::Masquerade(request.attachment.clone()).into()),
        }
    }

    fn retain(&self, network: &str, valid: &[Attachment], kinds: Kinds) -> Result<(), Error> {
        let mut state = self.enter("retain", &network)?;
        let keep = |a: &Attachment| a.network() != network || valid.contains(a);
        if kinds.ports() {
            state.ports.retain(|attachment, _| keep(attachment));
        }
        if kinds.masquerade() {
            state.masquerades.retain(|attachment, _| keep(attachment));
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<Listed>, Error> {
        let state = self.enter("list", &"all")?;
        let all = state.ports.values().flat_map(|request| {
            let owner = Owner::of(&request.attachment);
            request.ports.iter().map(move |port| Listed {
                owner: Some(owner.clone()),
                port: *port,
                backend: BackendName::Nftables,
            })
        });
        Ok(all.collect())
    }

    fn status(&self) -> Result<(), Error> {
        self.enter("status", &"node").map(|_| ())
    }
}
