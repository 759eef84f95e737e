// SPDX-License-Identifier: GPL-2.0-or-later

//! The environment of a call: which variables a verb needs, and whether they are well formed.

use std::ffi::OsString;
use std::path::PathBuf;

use cni_spec::{CniError, ErrorCode, check_container_id, check_ifname};

use crate::plugin::{Delegates, Env, Plugins};

/// Reads an environment variable; none if it is not set.
pub type Vars<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The variable for the number of delegations above this call. Other plugins pass it on with the rest of the
/// environment.
pub(super) const DEPTH: &str = "SLIPWAY_DELEGATION_DEPTH";

/// Reads and checks the variables, in the reference's order. One message names all that are missing; the
/// first malformed one is an error before that.
pub(super) fn read(vars: Vars<'_>, plugins: Plugins, delegates: Delegates) -> Result<Env, CniError> {
    let command = string(vars, "CNI_COMMAND")?;
    let (attachment, netns, path) = match command.as_str() {
        "ADD" | "CHECK" => (true, true, true),
        "DEL" => (true, false, true),
        "GC" | "STATUS" => (false, false, true),
        _ => (false, false, false),
    };
    let mut env = Env { command, plugins, delegates, ..Env::default() };
    let mut missing = Vec::new();
    let mut take = |name: &'static str, required: bool| {
        let value = string(vars, name)?;
        if value.is_empty() && required {
            missing.push(name);
        }
        Ok::<String, CniError>(value)
    };
    env.container_id = take("CNI_CONTAINERID", attachment)?;
    if attachment && !env.container_id.is_empty() {
        check_container_id(&env.container_id)?;
    }
    env.netns = take("CNI_NETNS", netns)?;
    env.ifname = take("CNI_IFNAME", attachment)?;
    if attachment && !env.ifname.is_empty() {
        check_ifname(&env.ifname)?;
    }
    env.args = take("CNI_ARGS", false)?;
    env.netns_override = take("CNI_NETNS_OVERRIDE", false)?;
    let folders = vars("CNI_PATH").unwrap_or_default();
    if folders.is_empty() && path && delegates == Delegates::Files {
        missing.push("CNI_PATH");
    }
    env.path = split(&folders);
    // Only this plugin set writes the variable, as a number.
    let depth = vars(DEPTH).and_then(|text| text.to_str()?.parse().ok());
    env.depth = depth.unwrap_or_default();
    if missing.is_empty() {
        return Ok(env);
    }
    let msg = format!("required env variables [{}] missing", missing.join(","));
    Err(CniError::new(ErrorCode::InvalidEnvironment, msg))
}

/// Splits `CNI_PATH`. An empty part would mean the working directory, where no plugin may be looked for.
fn split(folders: &OsString) -> Vec<PathBuf> {
    std::env::split_paths(folders).filter(|folder| !folder.as_os_str().is_empty()).collect()
}

/// The variable as text; empty when it is not set.
fn string(vars: Vars<'_>, name: &str) -> Result<String, CniError> {
    vars(name).unwrap_or_default().into_string().map_err(|bytes| {
        CniError::new(ErrorCode::InvalidEnvironment, format!("{name} is not UTF-8"))
            .with_details(bytes.to_string_lossy().into_owned())
    })
}
