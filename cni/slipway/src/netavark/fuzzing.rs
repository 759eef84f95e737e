// SPDX-License-Identifier: GPL-2.0-or-later

//! netavark's requests, up to the first system call.

use std::fmt::Debug;

use serde_json::{Map, Value};

use super::create::complete;
use super::subnets::Used;
use super::translate::{self, Circumstances, METRIC, NfTables};
use super::types::Exec;

/// The request for a new network. A network that was completed can be completed again.
pub fn create(bytes: &[u8]) -> Result<impl Debug, String> {
    let input: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let made = complete(input, &Used::default(), Some("strict")).map_err(|error| error.to_string())?;
    let again = complete(made.clone(), &Used::default(), Some("strict")).map_err(|error| error.to_string());
    assert_eq!(again.as_ref(), Ok(&made), "a complete network is completed");
    Ok(made)
}

/// The request for a set-up, and for a teardown without a record of the set-up.
pub fn set_up(bytes: &[u8]) -> Result<impl Debug, String> {
    let exec: Exec = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let on = Circumstances { netns: "/run/netns/c1", metric: METRIC, nf_tables: NfTables::Present };
    let made = translate::of(&exec, on).map_err(|error| error.to_string());
    let least = translate::least(&exec, on.netns).map_err(|error| error.to_string());
    // A range of ports is short in the request, and long in the configuration.
    let made =
        made.map(|made| (made.bridge, made.mode, made.no_forwarding, made.network.list().plugins.len()));
    Ok((made, least))
}
