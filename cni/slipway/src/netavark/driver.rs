// SPDX-License-Identifier: GPL-2.0-or-later

//! `setup` and `teardown`: an ADD and a DEL, with what netavark expects besides.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cni_dataplane::firewall;
use cni_dataplane::owner::{AttachmentHash, Owner};
use cni_kernel::AddressFamily;
use cni_kernel::netns::Netns;
use cni_kernel::route::{MAIN_TABLE, RouteError, RouteSocket};
use cni_runtime::exec::{CallFuture, CallOptions, Exec as Plugins};
use cni_runtime::verbs::PluginCall;
use cni_runtime::{Cached, CallError, Network, NetworkError, Runtime};
use cni_spec::{Attachment, AttachmentError, CniError};

use super::bridge;
use super::error::DriverError;
use super::options::{Mode, Options};
use super::store::{self, CACHE, Store};
use super::translate::{self, Circumstances, METRIC, NfTables};
use super::types::{Exec, Status};
use cni_plugins::plugin::{Env, Request};
use cni_plugins::registry;
use cni_plugins::skel::{self, Callee};

/// The plugins of this binary, called in this process.
struct InProcess;

impl Plugins for InProcess {
    fn exec<'a>(
        &'a self,
        _directories: &'a [PathBuf],
        call: &'a PluginCall,
        _options: &'a CallOptions,
    ) -> CallFuture<'a> {
        Box::pin(async {
            let variables = |name: &str| call.var(name).cloned();
            skel::call(&own(&call.plugin)?, &variables, &call.stdin).map_err(CallError::Failed)
        })
    }
}

fn own(plugin: &str) -> Result<Callee<'static>, CallError> {
    let unknown = || CniError::config(format!("{plugin:?} is not a plugin of this binary"));
    registry::in_process(plugin).ok_or_else(|| CallError::NotFound(unknown()))
}

/// Calls the plugins of this binary in this process, without files.
#[must_use]
pub(crate) fn in_process() -> Arc<dyn Plugins> {
    Arc::new(InProcess)
}

fn runtime() -> Runtime {
    let runtime = Runtime::builder().cache(CACHE).exec(in_process());
    runtime.undo_failed_add().keep_deleting().build()
}

/// Sets up a container's interface in a network: completely, or not at all.
pub(super) fn setup(netns: &str, exec: &Exec) -> Result<Status, DriverError> {
    let nf_tables =
        if firewall::has_nf_tables().unwrap_or(true) { NfTables::Present } else { NfTables::Missing };
    let on = Circumstances { netns, metric: METRIC, nf_tables };
    let mut wanted = translate::of(exec, on)?;
    let namespace = Netns::open(Path::new(netns))?;
    let attachment = attachment(exec)?;
    let store = Store::open()?;
    let _lock = store.lock(&wanted.bridge)?;
    if store.begin(&attachment)? {
        log::info!("{attachment} was not torn down: removing what is left of it");
        delete(netns, exec, &attachment)?;
    }
    if wanted.mode == Mode::Unmanaged {
        bridge::must_exist(&wanted.bridge)?;
    }
    let inside = RouteSocket::open_in(&namespace).map_err(DriverError::Node)?;
    match next_metric(&inside).map_err(DriverError::Node)? {
        METRIC => {}
        metric => wanted = translate::of(exec, Circumstances { metric, ..on })?,
    }
    let result = match runtime().add(&wanted.network, &wanted.container) {
        Ok(result) => result,
        Err(error) => {
            // If the undo failed, the note stays, so that the next set-up removes what is left.
            if !matches!(error, NetworkError::Undone { undo: Some(_), .. }) {
                store.end(&attachment)?;
            }
            if let Err(error) = remove_bridge(&wanted.bridge, wanted.mode) {
                log::warn!("{error}");
            }
            return Err(error.into());
        }
    };
    if let Some(link) = &wanted.no_forwarding
        && let Err(error) = bridge::do_not_forward(link)
    {
        delete(netns, exec, &attachment)?;
        store.end(&attachment)?;
        return Err(error.into());
    }
    store.end(&attachment)?;
    let ifname = &exec.network_options.interface_name;
    Ok(translate::status(ifname, &result))
}

/// Removes what a set-up has made, whether or not there was one. All steps are tried.
pub(super) fn teardown(netns: &str, exec: &Exec) -> Result<(), DriverError> {
    let attachment = attachment(exec)?;
    let store = Store::open()?;
    let bridge = exec.network.network_interface.as_deref().filter(|name| !name.is_empty());
    let _lock = bridge.map(|bridge| store.lock(bridge)).transpose()?;
    let mut errors = Vec::new();
    match delete(netns, exec, &attachment) {
        Ok(()) => errors.extend(store.end(&attachment).err().map(DriverError::from)),
        Err(error) => errors.push(error),
    }
    if let Some(name) = bridge {
        let mode = Options::of(exec.network.options.as_ref()).map_or(Mode::Managed, |options| options.mode);
        errors.extend(remove_bridge(name, mode).err());
    }
    errors.extend(publish_on_others(&attachment));
    match errors.len() {
        0 | 1 => errors.pop().map_or(Ok(()), Err),
        _ => Err(DriverError::Several(errors)),
    }
}

/// Removes what is left of a container whose namespace is gone, and its bridge if no other container is on it. netavark
/// before version 2.1 tears nothing down then, and podman forgets the container. Returns false if the namespace may
/// exist: the path alone proves nothing in another mount namespace, but the node's end of the container's link goes
/// with it.
pub(crate) fn remove_gone(cached: &Cached) -> Result<bool, DriverError> {
    let is_gone = |path: &Path| Netns::open(path).is_err_and(|error| error.is_gone());
    if !cached.netns.as_deref().is_some_and(is_gone) {
        return Ok(false);
    }
    let store = Store::open()?;
    let network = cached.network();
    let bridge = bridge_of(&network);
    let _lock = bridge.map(|bridge| store.lock(bridge)).transpose()?;
    // A set-up that held the lock may have given the attachment another namespace.
    let is_same = store::cached(&cached.attachment).is_some_and(|now| now.netns == cached.netns);
    if !is_same || has_link(&cached.attachment).map_err(DriverError::Node)? {
        return Ok(false);
    }
    let mut container = cached.container();
    container.netns.clear();
    runtime().del(&network, &container)?;
    store.end(&cached.attachment)?;
    bridge.map_or(Ok(()), bridge::remove_unused).map_err(DriverError::Bridge)?;
    Ok(true)
}

/// True if a link of the node is the attachment's, by the owner in its alias.
fn has_link(attachment: &Attachment) -> Result<bool, RouteError> {
    let hash = AttachmentHash::of(attachment);
    let is_its = |alias: &str| Owner::from_comment(alias).is_some_and(|owner| owner.attachment_hash == hash);
    Ok(RouteSocket::open()?.links()?.iter().any(|link| is_its(&link.alias)))
}

/// The bridge of a network that [`translate`] has made.
fn bridge_of(network: &Network) -> Option<&str> {
    let plugin =
        network.list().plugins.iter().find(|plugin| plugin.get("type").is_some_and(|name| name == "bridge"));
    plugin?.get("bridge")?.as_str()
}

/// Deletes a bridge without containers, unless another program manages it.
fn remove_bridge(name: &str, mode: Mode) -> Result<(), DriverError> {
    match mode {
        Mode::Managed => bridge::remove_unused(name).map_err(DriverError::Bridge),
        Mode::Unmanaged => Ok(()),
    }
}

fn attachment(exec: &Exec) -> Result<Attachment, AttachmentError> {
    Attachment::new(&exec.network.name, &exec.container_id, &exec.network_options.interface_name)
}

/// A DEL with the network of the set-up, which podman may have changed since, else with that of the request.
fn delete(netns: &str, exec: &Exec, attachment: &Attachment) -> Result<(), DriverError> {
    let netns = if Netns::open(Path::new(netns)).is_err_and(|error| error.is_gone()) { "" } else { netns };
    let on = Circumstances { netns, metric: METRIC, nf_tables: NfTables::Present };
    let (network, container) = match (store::cached(attachment), translate::of(exec, on)) {
        (Some(cached), _) => {
            let mut container = cached.container();
            netns.clone_into(&mut container.netns);
            (cached.network(), container)
        }
        (None, Ok(wanted)) => (wanted.network, wanted.container),
        (None, Err(error)) => {
            log::warn!("{attachment}: {error}");
            translate::least(exec, netns)?
        }
    };
    Ok(runtime().del(&network, &container)?)
}

/// A metric above those of the container's default routes. Packets then leave through the network that was joined
/// first, which has the published ports. When the container leaves that network, the next one takes over.
fn next_metric(inside: &RouteSocket) -> Result<u32, RouteError> {
    let mut metric = METRIC;
    for family in AddressFamily::BOTH {
        let routes = inside.routes(family, MAIN_TABLE)?;
        let taken = routes.iter().filter(|route| route.is_default()).map(|route| route.metric).max();
        metric = metric.max(taken.map_or(0, |taken| taken.saturating_add(1)));
    }
    Ok(metric)
}

/// Publishes the container's ports on another of its networks, if they went away with this one (`podman network
/// disconnect`). If the whole container is being torn down, the teardown of its next network withdraws them again.
fn publish_on_others(gone: &Attachment) -> Vec<DriverError> {
    let others = match store::of_container(gone.container_id()) {
        Ok(others) => others,
        Err(error) => return vec![error.into()],
    };
    others.iter().filter_map(|other| publish(other).err()).collect()
}

/// True if a namespace exists and has such a link.
fn has(netns: &Path, ifname: &str) -> Result<bool, DriverError> {
    let netns = match Netns::open(netns) {
        Err(error) if error.is_gone() => return Ok(false),
        opened => opened?,
    };
    let link = RouteSocket::open_in(&netns).and_then(|route| route.find_link(ifname));
    Ok(link.map_err(DriverError::Node)?.is_some())
}

fn publish(cached: &Cached) -> Result<(), DriverError> {
    match cached.netns.as_deref() {
        Some(netns) if has(netns, cached.attachment.ifname())? => {}
        _ => return Ok(()),
    }
    let failed =
        |error: CniError| DriverError::Ports { network: cached.attachment.network().to_owned(), error };
    for config in cached.configs().map_err(failed)? {
        let Some(callee) = registry::in_process(&config.plugin).filter(|_| config.plugin == "portmap") else {
            continue;
        };
        let env = Env { plugins: callee.plugins, delegates: callee.delegates, ..Env::default() };
        let request = Request {
            attachment: cached.attachment.clone(),
            netns: cached.netns.clone(),
            args: &cached.args,
            config: &config,
            env: &env,
        };
        for ports in callee.plugin.expected(&request).map_err(failed)? {
            if ports.check().is_err() {
                ports.put_back().map_err(failed)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_cannot_be_opened_is_not_taken_for_gone() {
        let temp = tempfile::tempdir().unwrap();
        let (plain, looped) = (temp.path().join("plain"), temp.path().join("loop"));
        std::fs::write(&plain, "").unwrap();
        std::os::unix::fs::symlink(&looped, &looped).unwrap();
        for gone in [temp.path().join("none"), plain] {
            assert!(!has(&gone, "eth0").unwrap(), "{gone:?}");
        }
        assert!(has(&looped, "eth0").unwrap_err().to_string().starts_with("failed to open netns"));
    }
}
