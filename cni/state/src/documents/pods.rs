// SPDX-License-Identifier: MIT OR Apache-2.0

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `slipwayd pod up` and `slipwayd pod status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedPod {
    pub pod: Pod,
    /// The pod's networks, in the order of the set-up.
    pub attachments: Vec<PodAttachment>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    #[serde(flatten)]
    pub sandbox: PodSandbox,
    /// The UID in Kubernetes, if it was given.
    pub uid: Option<String>,
    /// The path of the network namespace; null if the namespace is gone.
    pub netns: Option<String>,
}

/// A pod's names in Kubernetes, and the ID of its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSandbox {
    /// The namespace in Kubernetes.
    pub namespace: String,
    /// The name in Kubernetes.
    pub name: String,
    /// The ID of the pod's sandbox.
    pub sandbox: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAttachment {
    /// The network's name.
    pub network: String,
    /// The interface in the pod.
    pub interface: String,
    /// The result of the ADD, in the network's version of the CNI specification.
    pub result: Map<String, Value>,
}

/// The same of a pod that a network plugin of kubelet has set up.
///
/// With [`--network-plugin`](kubenet.md): such plugins report addresses and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAddresses {
    pub pod: PodSandbox,
    /// The primary address comes first.
    pub addresses: Vec<IpAddr>,
}

/// `slipwayd pod status` without a pod: the node can take one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReady {
    /// The default network; null with [`--network-plugin`](kubenet.md).
    pub network: Option<String>,
    /// The network plugin of kubelet.
    pub network_plugin: Option<String>,
    /// Always true: if the node cannot take a pod, there is an error and no document.
    pub ready: bool,
}

/// `slipwayd pod list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachments {
    /// The attachments in the cache, then the pending ones.
    pub attachments: Vec<ListedAttachment>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedAttachment {
    /// `NAMESPACE/NAME`; null for a container of another runtime.
    pub pod: Option<String>,
    /// The container ID.
    pub sandbox: String,
    /// The network's name.
    pub network: String,
    /// The interface in the container.
    pub interface: String,
    /// As `10.22.0.2/24`.
    pub addresses: Vec<String>,
    /// The path of the network namespace, if it is known.
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
