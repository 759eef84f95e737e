// SPDX-License-Identifier: MIT OR Apache-2.0

//! A container as the runtime knows it.

use serde_json::{Map, Value};

/// A container and its interface, with the runtime's parameters.
///
/// ```
/// use cni_runtime::Container;
///
/// let container = Container::new("c1", "eth0")
///     .netns("/run/netns/c1")
///     .arg("IgnoreUnknown", "1")
///     .capability("portMappings", serde_json::json!([{"hostPort": 8080, "containerPort": 80}]));
/// assert_eq!(container.ifname, "eth0");
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Container {
    /// `CNI_CONTAINERID`.
    pub id: String,
    /// `CNI_NETNS`, which may be empty for DEL.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS` as pairs of keys and values.
    pub args: Vec<(String, String)>,
    /// Capability arguments, by capability.
    pub capabilities: Map<String, Value>,
}

impl Container {
    /// A container without a namespace, without arguments and without capability arguments.
    #[must_use]
    pub fn new(id: impl Into<String>, ifname: impl Into<String>) -> Self {
        Self { id: id.into(), ifname: ifname.into(), ..Self::default() }
    }

    /// Sets the path of the network namespace, `CNI_NETNS`.
    #[must_use]
    pub fn netns(self, path: impl Into<String>) -> Self {
        Self { netns: path.into(), ..self }
    }

    /// Adds a pair to `CNI_ARGS`.
    #[must_use]
    pub fn arg(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.args.push((key.into(), value.into()));
        self
    }

    /// Sets the argument of a capability. It is passed to the plugins that declare the capability.
    #[must_use]
    pub fn capability(mut self, name: impl Into<String>, argument: impl Into<Value>) -> Self {
        self.capabilities.insert(name.into(), argument.into());
        self
    }
}
