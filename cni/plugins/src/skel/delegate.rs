//! Calls another plugin, as the specification's section "Execution of delegated plugins" says: by
//! exec from `CNI_PATH`, with the same standard input and environment.
//!
//! Where the file found there is this very binary, the plugin is called in process: same contract,
//! no exec.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cni_runtime::invoke::{self, failure, find};
use cni_spec::{AddResult, CniError, NetConf};

use super::env::DEPTH;
use super::{Callee, Io};
use crate::plugin::{Env, NodeRequest, Plugin, Request};

/// Delegations below each other that are allowed. `flannel`, `bridge` and `host-local` have two; the rest is for
/// plugins of others in between. A configuration that delegates in a circle has no end otherwise.
const DEEPEST: u32 = 8;

/// Whether the configured IPAM plugin works through the container's link (RFC 2131): the link must be there
/// when it is asked for an address, and still be there when it gives it back (DHCPRELEASE).
#[must_use]
pub fn ipam_needs_link(config: &NetConf) -> bool {
    config.ipam == "dhcp"
}

/// Asks the configured IPAM plugin for addresses.
///
/// If anything fails afterwards, the caller takes them back with [`ipam_del`].
///
/// # Errors
/// There is no such plugin, or its own error; code 7 for an address that no container can have. Nothing stays
/// reserved either when its result is refused.
pub fn ipam_add(request: &Request<'_>) -> Result<AddResult, CniError> {
    let output = call(request.config, request.env, "ADD")?;
    believed(request.config, &output).inspect_err(|_| {
        // It succeeded: it has reserved something.
        if let Err(undo) = ipam_del(request) {
            log::warn!("release the addresses of {}: {undo}", request.attachment);
        }
    })
}

/// The result that an IPAM plugin printed, checked.
fn believed(config: &NetConf, output: &[u8]) -> Result<AddResult, CniError> {
    let result = AddResult::from_output(config.version, output)
        .map_err(|error| CniError::internal(error.to_string()))?;
    result.check_addresses()?;
    Ok(result)
}

/// Gives the addresses of the attachment back.
///
/// # Errors
/// There is no such plugin, or its own error.
pub fn ipam_del(request: &Request<'_>) -> Result<(), CniError> {
    call(request.config, request.env, "DEL").map(drop)
}

/// Asks whether the addresses are still the attachment's.
///
/// # Errors
/// There is no such plugin, or its own error.
pub fn ipam_check(request: &Request<'_>) -> Result<(), CniError> {
    call(request.config, request.env, "CHECK").map(drop)
}

/// Hands a GC on.
///
/// # Errors
/// There is no such plugin, or its own error.
pub fn ipam_gc(request: &NodeRequest<'_>) -> Result<(), CniError> {
    call(request.config, request.env, "GC").map(drop)
}

/// Hands a STATUS on.
///
/// # Errors
/// There is no such plugin, or its own error: code 50 when there is no address left.
pub fn ipam_status(request: &NodeRequest<'_>) -> Result<(), CniError> {
    call(request.config, request.env, "STATUS").map(drop)
}

/// Calls another plugin than IPAM's with a configuration made for it, and gives what it printed.
///
/// # Errors
/// There is no such plugin, or its own error.
pub fn other(plugin: &str, env: &Env, command: &str, config: &[u8]) -> Result<Vec<u8>, CniError> {
    delegate(plugin, &below(env, command), config, |_| Ok(()))
}

/// Says whether there is a plugin of that name to call.
///
/// # Errors
/// There is none, or the name is not valid.
pub fn look_for(plugin: &str, env: &Env) -> Result<(), CniError> {
    find(plugin, &env.path).map(drop)
}

fn call(config: &NetConf, env: &Env, command: &str) -> Result<Vec<u8>, CniError> {
    delegate(&config.ipam, &below(env, command), &config.bytes, must_be_ipam)
}

/// Refuses a plugin that gives no addresses: it would delegate to itself with the same configuration.
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

/// Calls plugin `name` with `env` and the configuration, and gives what it printed. `may` judges a plugin of
/// this binary; another file of the same name is free to be anything.
fn delegate(
    name: &str,
    env: &Env,
    config: &[u8],
    may: impl Fn(&dyn Plugin) -> Result<(), CniError>,
) -> Result<Vec<u8>, CniError> {
    let path = find(name, &env.path)?;
    let own = env.plugins.iter().find(|plugin| plugin.name() == name && is_this_binary(&path));
    if let Err(error) = within_depth(name, env).and_then(|()| own.map_or(Ok(()), |plugin| may(*plugin))) {
        // No ADD has succeeded with this configuration, so that nothing is to be removed; and a runtime
        // would repeat a DEL that fails without end.
        if ["DEL", "GC"].contains(&env.command.as_str()) {
            log::warn!("{} is not passed on: {error}", env.command);
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
    if env.depth <= DEEPEST {
        return Ok(());
    }
    Err(CniError::config(format!("plugin {name:?}: more than {DEEPEST} plugins delegate to each other")))
}

/// Whether a path leads, over any number of links, to the file that this process runs.
fn is_this_binary(path: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|data| (data.dev(), data.ino()));
    matches!((id(path), id(Path::new("/proc/self/exe"))), (Ok(theirs), Ok(own)) if theirs == own)
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
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut stdin = config;
    let io = Io { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
    match super::run(&Callee { plugin, script: None, plugins: env.plugins }, &vars, &super::is_own_netns, io)
    {
        0 => Ok(stdout),
        code => Err(failure(&format!("exit status {code}"), &stdout, &stderr)),
    }
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

/// The variables of the call are this process's own but for the command, or what the call is about. They are
/// all set: what is empty here may not be so in this process's environment.
fn exec(path: &Path, env: &Env, config: &[u8]) -> Result<Vec<u8>, CniError> {
    let mut all: Vec<(&str, OsString)> =
        variables(env).into_iter().map(|(name, value)| (name, value.into())).collect();
    if let Ok(folders) = std::env::join_paths(&env.path) {
        all.push(("CNI_PATH", folders));
    }
    all.push((DEPTH, env.depth.to_string().into()));
    invoke::exec(path, &all, config)
}

#[cfg(test)]
#[path = "delegate_tests.rs"]
mod tests;
