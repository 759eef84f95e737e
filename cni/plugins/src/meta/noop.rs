// SPDX-License-Identifier: GPL-2.0-or-later

//! noop: the plugin that the CNI project's own tests use in place of others. A file, named by `DEBUG=` in
//! `CNI_ARGS` or by the key `debugFile`, holds its output; noop writes into the same file how it was called.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cni_kernel::bounded;
use cni_spec::Declared;
use cni_spec::{AddResult, Args, CniError, ErrorCode, NetConf, fold, incompatible, text};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::plugin::{Env, Plugin, Request};
use crate::skel::{self, Output};

/// The plugin `noop`.
#[derive(Debug)]
pub struct Noop;

impl Plugin for Noop {
    fn name(&self) -> &'static str {
        "noop"
    }

    fn summary(&self) -> &'static str {
        "does nothing, or prints what a file holds, for tests of runtimes"
    }

    /// Tests of runtimes use noop as an IPAM plugin, too.
    fn is_ipam(&self) -> bool {
        true
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        crate::keys::probe::fields::<Keys>()
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        debug_file(request.args).map(drop)
    }

    /// The previous result, or an empty one.
    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        Ok(request.config.prev_result.clone().unwrap_or_default())
    }

    fn del(&self, _request: &Request<'_>) -> Result<(), CniError> {
        Ok(())
    }

    fn check(&self, _request: &Request<'_>) -> Result<(), CniError> {
        Ok(())
    }
}

/// The output that the file holds.
#[derive(Debug)]
pub struct Script;

impl skel::Script for Script {
    fn output(&self, env: &Env, config: &NetConf) -> Result<Option<Output>, CniError> {
        let keys: Keys = config.decode()?;
        if !keys.command_log.is_empty() {
            append(&keys.command_log, entry(env, config))?;
        }
        let Some(path) = debug_file(&env.args)?.or(Some(keys.debug_file)).filter(|path| !path.is_empty())
        else {
            return Ok(None);
        };
        let (mut file, debug) = read(&path)?;
        if let Some(versions) = &debug.report_version_support
            && !versions.iter().any(|version| version == config.version.as_str())
        {
            let declared = Declared::new(config.version.as_str());
            let details = format!(
                "config is {}, plugin supports {}",
                text::quote(declared.as_str()),
                text::quote_all(versions)
            );
            return Err(incompatible(&declared, &[]).with_details(details));
        }
        if let Value::Object(called) = entry(env, config) {
            file.extend(called);
        }
        write(&path, &Value::Object(file))?;
        debug.output(config).map(Some)
    }

    fn versions(&self, env: &Env) -> Option<Vec<String>> {
        let path = debug_file(&env.args).ok()??;
        let (_, debug) = read(&path).ok()?;
        debug.report_version_support
    }
}

/// The plugin's own keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    debug_file: String,
    command_log: String,
}

/// The keys that are read from the file. Its other keys, `Command` and `CmdArgs`, are only written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Debug {
    report_result: String,
    report_error: String,
    report_error_code: u32,
    report_stderr: String,
    report_version_support: Option<Vec<String>>,
    exit_with_code: u8,
}

impl Debug {
    fn output(self, config: &NetConf) -> Result<Output, CniError> {
        if !self.report_error.is_empty() {
            let code = match self.report_error_code {
                0 => ErrorCode::Internal,
                code => ErrorCode::from(code),
            };
            let error = CniError::new(code, self.report_error);
            return Ok(Output { stdout: error.print(), stderr: self.report_stderr, code: 1 });
        }
        let stdout = match self.report_result.as_str() {
            "PASSTHROUGH" => previous(config, |_| {})?,
            "INJECT-DNS" => previous(config, |result| result.dns.nameservers = vec!["1.2.3.4".to_owned()])?,
            _ => self.report_result,
        };
        Ok(Output { stdout, stderr: self.report_stderr, code: self.exit_with_code })
    }
}

fn previous(config: &NetConf, change: impl FnOnce(&mut AddResult)) -> Result<String, CniError> {
    let Some(mut result) = config.prev_result.clone() else { return Ok("null".to_owned()) };
    change(&mut result);
    result.print(config.version).map_err(|e| CniError::internal(e.to_string()))
}

/// `DEBUG` of `CNI_ARGS`; other keys are ignored.
fn debug_file(args: &str) -> Result<Option<String>, CniError> {
    // The reference has no list of known keys here.
    let ignoring_others = if args.is_empty() { String::new() } else { format!("IgnoreUnknown=1;{args}") };
    let parsed = Args::parse(&ignoring_others, &["DEBUG"])?;
    Ok(parsed.get("DEBUG").map(str::to_owned))
}

/// The call, with the fields of the reference library's `CmdArgs`.
fn entry(env: &Env, config: &NetConf) -> Value {
    let path = std::env::join_paths(&env.path).unwrap_or_default();
    json!({
        "Command": env.command,
        "CmdArgs": {
            "ContainerID": env.container_id,
            "Netns": env.netns,
            "IfName": env.ifname,
            "Args": env.args,
            "Path": path.to_string_lossy(),
            "NetnsOverride": env.netns_override,
            "StdinData": STANDARD.encode(&config.bytes),
        },
    })
}

fn read(path: &str) -> Result<(Map<String, Value>, Debug), CniError> {
    let bytes =
        bounded::read(Path::new(path), bounded::CONFIGURATION).map_err(|e| failed("read", path, &e))?;
    let file: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|e| failed("decode", path, &e))?;
    let debug = fold::from_map(&file).map_err(|e| failed("decode", path, &e))?;
    Ok((file, debug))
}

fn write(path: &str, value: &Value) -> Result<(), CniError> {
    std::fs::write(path, value.to_string()).map_err(|e| failed("write", path, &e))
}

/// Appends to the list in a file, which is made if missing.
fn append(path: &str, entry: Value) -> Result<(), CniError> {
    let mut list: Vec<Value> = match bounded::read(Path::new(path), bounded::CONFIGURATION) {
        Ok(bytes) if bytes.is_empty() => Vec::new(),
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| failed("decode", path, &e))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed("read", path, &error)),
    };
    list.push(entry);
    write(path, &Value::Array(list))
}

fn failed(operation: &str, path: &str, error: &dyn std::fmt::Display) -> CniError {
    CniError::new(ErrorCode::Io, format!("noop: {operation} {path:?}: {error}"))
}
