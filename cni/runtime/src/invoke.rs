// SPDX-License-Identifier: MIT OR Apache-2.0

//! Finds a plugin, and decodes the error of one that failed, with the reference library's messages.

use std::fs;
use std::path::PathBuf;

use cni_spec::{CniError, text};

use crate::exec;

/// The first regular file with this name, searching the directories in their order.
///
/// # Errors
/// Code 7 if the name is empty or is a path; code 999 if there are no directories, or if none contains the file.
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

/// The error that a plugin printed, or an error made from its exit status and output.
#[must_use]
pub fn failure(status: &str, stdout: &[u8], stderr: &[u8]) -> CniError {
    let shown = |bytes: &[u8]| text::quote(&exec::shown(bytes));
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
