// SPDX-License-Identifier: MIT OR Apache-2.0

//! Finding and calling a plugin: the specification's section "Execution", with the reference's messages.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use cni_spec::{CniError, text};

/// The first regular file of this name in the directories, in their order.
///
/// # Errors
/// Code 7 if the name is empty or a path; code 999 without directories, or if none has the file.
pub fn find(name: &str, folders: &[PathBuf]) -> Result<PathBuf, CniError> {
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

/// Runs a plugin with `env` added to this process's environment and `config` on standard input, and returns
/// its output. Its standard error is copied to this process's.
///
/// # Errors
/// The error that the plugin printed, or one with its exit status and output.
pub fn exec(path: &Path, env: &[(&str, OsString)], config: &[u8]) -> Result<Vec<u8>, CniError> {
    let begin = Instant::now();
    let output = spawn_with_retries(path, env, config);
    let took = begin.elapsed().as_secs_f64() * 1e3;
    let status = |output: &Output| status_text(output.status);
    log::debug!(
        "exec {}: {} in {took:.1} ms",
        path.display(),
        output.as_ref().map_or_else(ToString::to_string, status)
    );
    let output = output.map_err(|e| failure(&format!("run {}: {e}", path.display()), &[], &[]))?;
    if output.status.success() {
        // Messages for people are not lost.
        if let Err(error) = io::stderr().write_all(&output.stderr) {
            log::debug!("copy the standard error of {}: {error}", path.display());
        }
        return Ok(output.stdout);
    }
    Err(failure(&status_text(output.status), &output.stdout, &output.stderr))
}

/// Retries while the file is being written, as during an upgrade: six attempts, a second apart.
fn spawn_with_retries(path: &Path, env: &[(&str, OsString)], config: &[u8]) -> io::Result<Output> {
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

fn spawn(path: &Path, env: &[(&str, OsString)], config: &[u8]) -> io::Result<Output> {
    let mut command = Command::new(path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(env.iter().map(|(name, value)| (name, value)));
    let mut child = command.spawn()?;
    let stdin = child.stdin.take();
    // On another thread: a plugin may write before it has read all input.
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A plugin need not read its input; only its output counts.
            if let Some(Err(error)) = stdin.map(|mut pipe| pipe.write_all(config)) {
                log::debug!("write the configuration to {}: {error}", path.display());
            }
        });
        child.wait_with_output()
    })
}

/// Formats a status as Go does, which users and tools know.
fn status_text(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// The error that a plugin printed, or one with its exit status and output.
#[must_use]
pub fn failure(status: &str, stdout: &[u8], stderr: &[u8]) -> CniError {
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
