// SPDX-License-Identifier: MIT OR Apache-2.0

//! Finding and calling a plugin: the specification's section "Execution", with the reference's messages.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_spec::{CniError, ErrorCode, text};

use crate::exec::{self, CallOptions, Group};
use crate::verbs::{Command, PluginCall};

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

/// Runs a delegate in the process group of this process, with `env` added to this process's environment and
/// `config` on standard input, and returns its output. Its standard error is copied to this process's. There is
/// no time limit: the runtime kills the group of the plugin that delegates.
///
/// # Errors
/// The error that the plugin printed, or one with its exit status and output.
pub fn exec(path: &Path, env: &[(&str, OsString)], config: &[u8]) -> Result<Vec<u8>, CniError> {
    let command = env.iter().find(|(name, _)| *name == "CNI_COMMAND").and_then(|(_, value)| value.to_str());
    let command = command.unwrap_or_default();
    let call = PluginCall {
        plugin: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        command: Command::parse(command).ok_or_else(|| {
            CniError::new(ErrorCode::InvalidEnvironment, format!("unknown CNI_COMMAND: {command}"))
        })?,
        env: env.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        stdin: config.to_vec(),
        undo: false,
    };
    let options = CallOptions::new().limit(Duration::MAX);
    exec::run(path, &call, &options, Group::Caller).map_err(|error| error.to_cni())
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
