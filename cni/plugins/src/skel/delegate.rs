// SPDX-License-Identifier: GPL-2.0-or-later

//! Calls another plugin, by the specification's section "Execution of delegated plugins": by exec from
//! `CNI_PATH`, with the same standard input and environment.
//!
//! If the file found there is this binary, the plugin is called in process: same contract, no exec.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cni_runtime::delegate;
use cni_runtime::invoke::find;
use cni_spec::{AddResult, CniError, NetConf};

use super::Callee;
use super::env::DEPTH;
use crate::plugin::{Delegates, Env, NodeRequest, Plugin, Request};

/// The limit of nested delegations, against a configuration that delegates in a circle. `flannel`, `bridge`
/// and `host-local` need two; the rest is for foreign plugins in between.
const MAX_DEPTH: u32 = 8;
/// The executable of this process.
const OWN: &str = "/proc/self/exe";

/// True if the configured IPAM plugin uses the container's link (RFC 2131): the link must exist when the
/// plugin requests an address and when it releases it (DHCPRELEASE).
#[must_use]
pub(crate) fn ipam_needs_link(config: &NetConf) -> bool {
    config.ipam == "dhcp"
}

/// Calls ADD of the configured IPAM plugin. If a later step fails, the caller releases the addresses with [`ipam_del`].
///
/// # Errors
/// The plugin is missing or fails, or it returns an address that no container can have (code 7). If the result is
/// refused, the addresses are released.
pub(crate) fn ipam_add(request: &Request<'_>) -> Result<AddResult, CniError> {
    let output = call(request.config, request.env, "ADD")?;
    checked(request.config, &output).inspect_err(|_| {
        // The plugin succeeded, so it has reserved addresses.
        if let Err(undo) = ipam_del(request) {
            log::warn!("release the addresses of {}: {undo}", request.attachment);
        }
    })
}

/// Parses and checks the result of an IPAM plugin.
fn checked(config: &NetConf, output: &[u8]) -> Result<AddResult, CniError> {
    let result = AddResult::from_output(config.version, output)
        .map_err(|error| CniError::internal(error.to_string()))?;
    result.check_addresses()?;
    Ok(result)
}

/// Calls the IPAM plugin's DEL.
pub(crate) fn ipam_del(request: &Request<'_>) -> Result<(), CniError> {
    call(request.config, request.env, "DEL").map(drop)
}

/// Calls the IPAM plugin's CHECK.
pub(crate) fn ipam_check(request: &Request<'_>) -> Result<(), CniError> {
    call(request.config, request.env, "CHECK").map(drop)
}

/// Calls the IPAM plugin's GC.
pub(crate) fn ipam_gc(request: &NodeRequest<'_>) -> Result<(), CniError> {
    call(request.config, request.env, "GC").map(drop)
}

/// Calls the IPAM plugin's STATUS.
///
/// # Errors
/// There is no such plugin, or the plugin itself returns an error: code 50 if no address is free.
pub(crate) fn ipam_status(request: &NodeRequest<'_>) -> Result<(), CniError> {
    call(request.config, request.env, "STATUS").map(drop)
}

/// Calls a plugin with a configuration of its own, and returns its output.
pub fn other(plugin: &str, env: &Env, command: &str, config: &[u8]) -> Result<Vec<u8>, CniError> {
    delegate(plugin, &below(env, command), config, |_| Ok(()))
}

/// Checks that there is a plugin of that name.
pub(crate) fn look_for(plugin: &str, env: &Env) -> Result<(), CniError> {
    find(plugin, &env.path).map(drop)
}

fn call(config: &NetConf, env: &Env, command: &str) -> Result<Vec<u8>, CniError> {
    delegate(&config.ipam, &below(env, command), &config.bytes, must_be_ipam)
}

/// Refuses a plugin that is not an IPAM plugin, because it would delegate to itself with the same configuration.
fn must_be_ipam(plugin: &dyn Plugin) -> Result<(), CniError> {
    if plugin.is_ipam() {
        return Ok(());
    }
    let name = plugin.name();
    Err(CniError::config(format!("key \"ipam.type\": plugin {name:?} is not an IPAM plugin")))
}

/// The environment of a delegate.
fn below(env: &Env, command: &str) -> Env {
    Env { command: command.to_owned(), depth: env.depth.saturating_add(1), ..env.clone() }
}

/// Calls the plugin `name` with `env` and the configuration, and returns its output. `may` is asked only about a plugin
/// of this binary, not about a foreign file of the same name.
fn delegate(
    name: &str,
    env: &Env,
    config: &[u8],
    may: impl Fn(&dyn Plugin) -> Result<(), CniError>,
) -> Result<Vec<u8>, CniError> {
    let path = match env.delegates {
        Delegates::Files => find(name, &env.path)?,
        Delegates::InProcess => PathBuf::from(OWN),
    };
    let own = env.plugins.iter().find(|plugin| plugin.name() == name && is_this_binary(&path));
    if own.is_none() && env.delegates == Delegates::InProcess {
        return Err(CniError::config(format!("plugin {name:?} is not a plugin of this binary")));
    }
    if let Err(error) = within_depth(name, env).and_then(|()| own.map_or(Ok(()), |plugin| may(*plugin))) {
        // No ADD can have succeeded with this configuration, so there is nothing to remove. A runtime would
        // repeat a failing DEL forever.
        if ["DEL", "GC"].contains(&env.command.as_str()) {
            log::warn!("{} is not delegated: {error}", env.command);
            return Ok(Vec::new());
        }
        return Err(error);
    }
    match own {
        Some(plugin) => in_process(*plugin, env, config),
        None => exec(&path, env, config),
    }
}

fn within_depth(name: &str, env: &Env) -> Result<(), CniError> {
    if env.depth <= MAX_DEPTH {
        return Ok(());
    }
    Err(CniError::config(format!("plugin {name:?}: more than {MAX_DEPTH} plugins delegate to each other")))
}

/// True if a path leads, through any symbolic links, to the file that this process runs.
fn is_this_binary(path: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|data| (data.dev(), data.ino()));
    matches!((id(path), id(Path::new(OWN))), (Ok(theirs), Ok(own)) if theirs == own)
}

fn in_process(plugin: &dyn Plugin, env: &Env, config: &[u8]) -> Result<Vec<u8>, CniError> {
    let path = std::env::join_paths(&env.path).unwrap_or_default();
    let vars = |name: &str| {
        Some(match name {
            "CNI_PATH" => path.clone(),
            "CNI_NETNS_OVERRIDE" => env.netns_override.clone().into(),
            DEPTH => env.depth.to_string().into(),
            name => variables(env).into_iter().find(|(n, _)| *n == name)?.1.into(),
        })
    };
    let callee = Callee { plugin, script: None, plugins: env.plugins, delegates: env.delegates };
    super::call(&callee, &vars, config)
}

fn variables(env: &Env) -> [(&'static str, &str); 5] {
    [
        ("CNI_COMMAND", &env.command),
        ("CNI_CONTAINERID", &env.container_id),
        ("CNI_NETNS", &env.netns),
        ("CNI_IFNAME", &env.ifname),
        ("CNI_ARGS", &env.args),
    ]
}

/// Runs a plugin's file. All variables are set, even empty ones, because this process's environment may have others.
fn exec(path: &Path, env: &Env, config: &[u8]) -> Result<Vec<u8>, CniError> {
    let mut all: Vec<(&str, OsString)> =
        variables(env).into_iter().map(|(name, value)| (name, value.into())).collect();
    if let Ok(folders) = std::env::join_paths(&env.path) {
        all.push(("CNI_PATH", folders));
    }
    all.push((DEPTH, env.depth.to_string().into()));
    delegate::exec(path, &all, config)
}

#[cfg(test)]
#[path = "delegate_tests.rs"]
mod tests;
