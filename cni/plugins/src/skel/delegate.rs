//! Calls another plugin, as the specification's section "Execution of delegated plugins" says: by
//! exec from `CNI_PATH`, with the same standard input and environment.
//!
//! Where the file found there is this very binary, the plugin is called in process: same contract,
//! no exec.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use cni_spec::{AddResult, CniError, NetConf, text};

use super::Io;
use crate::plugin::{Env, NodeRequest, Plugin, Request};
use crate::registry;

/// Asks the configured IPAM plugin for addresses.
///
/// If anything fails afterwards, the caller takes them back with [`ipam_del`].
///
/// # Errors
/// There is no such plugin, or its own error.
pub fn ipam_add(request: &Request<'_>) -> Result<AddResult, CniError> {
    let output = call(request.config, request.env, "ADD")?;
    AddResult::from_output(request.config.version, &output).map_err(|e| CniError::internal(e.to_string()))
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
    let env = Env { command: command.to_owned(), ..env.clone() };
    delegate(plugin, &env, config, registry::PLUGINS)
}

/// Says whether there is a plugin of that name to call.
///
/// # Errors
/// There is none, or the name is not valid.
pub fn look_for(plugin: &str, env: &Env) -> Result<(), CniError> {
    find(plugin, &env.path).map(drop)
}

fn call(config: &NetConf, env: &Env, command: &str) -> Result<Vec<u8>, CniError> {
    let env = Env { command: command.to_owned(), ..env.clone() };
    delegate(&config.ipam, &env, &config.bytes, registry::PLUGINS)
}

/// Calls plugin `name` with `env` and the configuration, and gives what it printed.
fn delegate(name: &str, env: &Env, config: &[u8], own: &[&dyn Plugin]) -> Result<Vec<u8>, CniError> {
    let path = find(name, &env.path)?;
    match own.iter().find(|plugin| plugin.name() == name) {
        Some(plugin) if is_this_binary(&path) => in_process(*plugin, env, config),
        _ => exec(&path, env, config),
    }
}

/// The first regular file of that name.
fn find(name: &str, folders: &[PathBuf]) -> Result<PathBuf, CniError> {
    if name.is_empty() {
        return Err(CniError::config("no plugin name provided"));
    }
    if name.contains('/') || name == "." || name == ".." {
        return Err(CniError::config(format!("invalid plugin name: {name}")));
    }
    if folders.is_empty() {
        return Err(CniError::internal("no paths provided"));
    }
    let is_file = |path: &PathBuf| fs::metadata(path).is_ok_and(|data| data.is_file());
    folders.iter().map(|folder| folder.join(name)).find(is_file).ok_or_else(|| {
        let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        let msg = format!("failed to find plugin {} in path [{}]", text::quote(name), folders.join(" "));
        CniError::internal(msg)
    })
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
            name => variables(env).into_iter().find(|(n, _)| *n == name)?.1.into(),
        })
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut stdin = config;
    let io = Io { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
    match super::run(plugin, &vars, &super::is_own_netns, io) {
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

fn exec(path: &Path, env: &Env, config: &[u8]) -> Result<Vec<u8>, CniError> {
    let output = spawn_patiently(path, env, config)
        .map_err(|e| failure(&format!("run {}: {e}", path.display()), &[], &[]))?;
    if output.status.success() {
        // What it had to say to people is not lost.
        if let Err(error) = io::stderr().write_all(&output.stderr) {
            log::debug!("pass on the standard error of {}: {error}", path.display());
        }
        return Ok(output.stdout);
    }
    Err(failure(&status_text(output.status), &output.stdout, &output.stderr))
}

/// Tries again while the file is being written, as during an upgrade: six times, a second apart.
fn spawn_patiently(path: &Path, env: &Env, config: &[u8]) -> io::Result<Output> {
    const PAUSES: u32 = 5;
    for _ in 0..PAUSES {
        match spawn(path, env, config) {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                log::warn!("{} is being written, trying again", path.display());
                std::thread::sleep(Duration::from_secs(1));
            }
            done => return done,
        }
    }
    spawn(path, env, config)
}

/// The delegate inherits the whole environment. The variables of the call are this process's own
/// but for the command; they are set all the same, because `env` is what the call is about.
fn spawn(path: &Path, env: &Env, config: &[u8]) -> io::Result<Output> {
    let mut command = Command::new(path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(variables(env).into_iter().filter(|(_, value)| !value.is_empty()));
    if let Ok(folders) = std::env::join_paths(&env.path) {
        command.env("CNI_PATH", folders);
    }
    let mut child = command.spawn()?;
    let stdin = child.stdin.take();
    // From a thread of its own: a delegate may write before it has read everything.
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // One that does not read its input at all is free to do so; its answer counts.
            if let Some(Err(error)) = stdin.map(|mut pipe| pipe.write_all(config)) {
                log::debug!("write the configuration to {}: {error}", path.display());
            }
        });
        child.wait_with_output()
    })
}

/// As Go prints it, which users and tools know.
fn status_text(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// The error that a delegate printed, or one that says what it did instead.
fn failure(status: &str, stdout: &[u8], stderr: &[u8]) -> CniError {
    let shown = |bytes: &[u8]| text::quote(&String::from_utf8_lossy(bytes));
    if stdout.is_empty() && stderr.is_empty() {
        return CniError::internal(format!("netplugin failed with no error message: {status}"));
    }
    if stdout.is_empty() {
        return CniError::internal(format!("netplugin failed: {}: {status}", shown(stderr)));
    }
    CniError::parse(stdout).unwrap_or_else(|error| {
        let diagnostic = shown(stdout);
        CniError::internal(format!(
            "netplugin failed but error parsing its diagnostic message {diagnostic}: {error}"
        ))
    })
}

#[cfg(test)]
#[path = "delegate_tests.rs"]
mod tests;
