// SPDX-License-Identifier: MIT OR Apache-2.0

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `slipwayd pod up` and `slipwayd pod status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedPod {
    pub pod: Pod,
    /// In the order of the set-up.
    pub attachments: Vec<PodAttachment>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    #[serde(flatten)]
    pub sandbox: PodSandbox,
    pub uid: Option<String>,
    /// None if the network namespace is gone.
    pub netns: Option<String>,
}

/// A pod's names in Kubernetes, and the ID of its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSandbox {
    pub namespace: String,
    pub name: String,
    pub sandbox: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAttachment {
    pub network: String,
    pub interface: String,
    /// The result of the ADD, in the form of the network's version of the specification.
    pub result: Map<String, Value>,
}

/// The same of a pod that a network plugin of kubelet has set up: such a plugin reports addresses and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAddresses {
    pub pod: PodSandbox,
    /// The primary address is the first.
    pub addresses: Vec<IpAddr>,
}

/// `slipwayd pod status` without a pod: the node can take one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReady {
    /// The default network; none with a network plugin of kubelet.
    pub network: Option<String>,
    pub network_plugin: Option<String>,
    /// Always true: otherwise there is an error and no document.
    pub ready: bool,
}

/// `slipwayd pod list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachments {
    pub attachments: Vec<ListedAttachment>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedAttachment {
    /// `NAMESPACE/NAME`; none for a container of another runtime.
    pub pod: Option<String>,
    /// The container ID.
    pub sandbox: String,
    pub network: String,
    pub interface: String,
    /// With the lengths of their prefixes.
    pub addresses: Vec<String>,
    pub netns: Option<String>,
    pub state: AttachmentState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachmentState {
    Attached,
    /// Its set-up runs or was killed.
    Pending,
}

impl AttachmentState {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Pending => "pending",
        }
    }
}
