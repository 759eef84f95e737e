// SPDX-License-Identifier: MIT OR Apache-2.0

//! A container as the runtime knows it.

use serde_json::{Map, Value};

/// A container and its interface, with the runtime's parameters.
#[derive(Debug, Clone, Default)]
pub struct Container {
    /// `CNI_CONTAINERID`.
    pub id: String,
    /// `CNI_NETNS`; may be empty for DEL.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS` as pairs of key and value.
    pub args: Vec<(String, String)>,
    /// Capability arguments, by capability.
    pub capabilities: Map<String, Value>,
}
