//! Finding a plugin and calling it: the specification's section "Execution", in the reference's words.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use cni_spec::{CniError, text};

/// The first regular file of that name in the folders, in their order.
///
/// # Errors
/// Code 7: no name, or one that is a path. Code 999: no folders, or nothing there.
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

/// Runs a plugin with `env` on top of this process's own environment and `config` on standard input, and
/// gives what it printed. What it wrote to standard error is written to this process's own.
///
/// # Errors
/// The plugin's own, or one that says what it did instead of printing one.
pub fn exec(path: &Path, env: &[(&str, OsString)], config: &[u8]) -> Result<Vec<u8>, CniError> {
    let begin = Instant::now();
    let output = spawn_patiently(path, env, config);
    let took = begin.elapsed().as_secs_f64() * 1e3;
    let ended = |output: &Output| status_text(output.status);
    log::debug!(
        "exec {}: {} in {took:.1} ms",
        path.display(),
        output.as_ref().map_or_else(ToString::to_string, ended)
    );
    let output = output.map_err(|e| failure(&format!("run {}: {e}", path.display()), &[], &[]))?;
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
fn spawn_patiently(path: &Path, env: &[(&str, OsString)], config: &[u8]) -> io::Result<Output> {
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
    // From a thread of its own: a plugin may write before it has read everything.
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

/// The error that a plugin printed, or one that says what it did instead.
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
