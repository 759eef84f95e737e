// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls a delegate, as in the specification's section "Execution of delegated plugins".

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use cni_spec::{CniError, ErrorCode};

use crate::event_loop::block_on;
use crate::exec::{self, CallOptions, Group};
use crate::verbs::{Command, PluginCall};

/// Runs a delegate in the process group of this process, with `env` added to this process's environment and `config`
/// on standard input, and returns its output. The delegate's standard error is copied to that of this process. There
/// is no time limit, because the runtime kills the whole process group of the plugin that delegates.
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
    let outcome = block_on(exec::run(path, &call, &options, Group::Caller))
        .map_err(|error| CniError::internal(format!("start the event loop: {error}")))?;
    outcome.map_err(|error| error.to_cni())
}
