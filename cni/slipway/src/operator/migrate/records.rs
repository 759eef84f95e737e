// SPDX-License-Identifier: GPL-2.0-or-later

//! Records of the firewall plugin for containers that the reference attached. Their rules are not moved.

use std::net::IpAddr;

use cni_dataplane::firewall::{self, FirewallLock, FirewallRequest};
use cni_dataplane::migrate::{Mode, Place, Row, State};
use cni_runtime::Cached;
use cni_spec::CniError;

use super::{MigrateError, Options, hints};
use crate::operator::restore::liveness::{Liveness, Node};
use crate::operator::restore::request;
use cni_plugins::meta::firewall::unrecorded;
use cni_plugins::plugin::Env;

/// Writes a record for each running container in a cache that has the plugin's rules, but no record.
pub(super) fn write(options: &Options) -> Result<Vec<Row>, MigrateError> {
    let node = Node::open()?;
    let networks = &options.networks;
    let selected =
        |one: &Cached| networks.is_empty() || networks.iter().any(|name| name == one.attachment.network());
    let mut rows = Vec::new();
    for cached in hints::cached(&options.cache_dirs)?.into_iter().filter(selected) {
        // The address of a dead container may belong to another one now.
        if node.liveness(&cached)? != Liveness::Attached {
            continue;
        }
        rows.extend(wanted(&cached).map(|wanted| record(&wanted, options.mode)));
    }
    Ok(rows)
}

/// The container's rules, if they have no record.
fn wanted(cached: &Cached) -> Option<FirewallRequest> {
    let warn = |error: &CniError| log::warn!("{}: {error}", cached.attachment);
    let configs = cached.configs().inspect_err(warn).ok()?;
    let config = configs.iter().find(|config| config.plugin == "firewall")?;
    unrecorded(&request(cached, config, &Env::default())).inspect_err(warn).ok()?
}

fn record(wanted: &FirewallRequest, mode: Mode) -> Row {
    let (state, reason) = match mode {
        Mode::DryRun => (State::ToRecord, String::new()),
        Mode::Migrate => {
            match FirewallLock::for_add(wanted).and_then(|turn| firewall::adopt(wanted, &turn)) {
                Ok(()) => (State::Recorded, String::new()),
                Err(error) => (State::Failed, error.to_string()),
            }
        }
    };
    let addresses: Vec<String> = wanted.addresses.iter().map(IpAddr::to_string).collect();
    let item = format!("firewall rules of {}", addresses.join(", "));
    let owner = Some(wanted.attachment.clone());
    Row { owner, item, from: Place::Iptables, state, reason, ports: None }
}
