// SPDX-License-Identifier: GPL-2.0-or-later

//! Configurations for the unit tests of plugins.

use cni_spec::NetConf;
use serde_json::{Value, json};

/// The configuration of a plugin in the network `net`, with these keys.
pub(crate) fn configuration(plugin: &str, keys: &Value) -> NetConf {
    let mut all = json!({"cniVersion": "1.1.0", "name": "net", "type": plugin});
    all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    NetConf::parse(all.to_string()).unwrap()
}
