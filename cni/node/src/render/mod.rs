// SPDX-License-Identifier: GPL-3.0-or-later

//! The files of a deployment: `slipwayd render`.
//!
//! [`objects`] has the objects of Kubernetes, [`pod`] the DaemonSet's pods with all rights that they have on a node.
//! [`version`] is that of the API server, on which the objects' fields depend.
//! [`files`] has everything but objects of the API server: container file, kustomize base, kind configuration, systemd unit.
//!
//! There is no ConfigMap. The agent's settings are arguments in the DaemonSet: a change of one replaces the pods node by
//! node, where a changed ConfigMap would reach running agents at no defined time.

pub mod files;
pub mod objects;
pub mod pod;
#[cfg(test)]
mod schema;
pub mod version;

use ipnet::IpNet;
use serde::Serialize;

pub use files::File;
pub use version::KubernetesVersion;

/// The name of all objects.
pub const NAME: &str = "slipwayd";

/// The choices of a deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// The namespace of the pods.
    pub namespace: String,
    /// The container image.
    pub image: String,
    /// Options of `slipwayd run`.
    pub options: Vec<String>,
    /// The addresses of all pods.
    pub cluster_cidrs: Vec<IpNet>,
    /// The addresses of Services.
    pub service_cidrs: Vec<IpNet>,
    /// The taints that the agent removes from its Node, in the form that `--remove-taint` takes.
    pub startup_taints: Vec<String>,
    /// The oldest API server that takes the objects.
    pub kubernetes: KubernetesVersion,
}

impl Deployment {
    /// The words behind the program's name, for a container (with further options) or a service.
    fn arguments(&self, more: &[&str]) -> Vec<String> {
        let taints = self.startup_taints.iter().map(|taint| format!("--remove-taint={taint}"));
        let first = ["run"].iter().chain(more).map(|word| (*word).to_owned());
        first.chain(self.options.iter().cloned()).chain(taints).collect()
    }
}

/// A file could not be written as YAML.
#[derive(Debug, thiserror::Error)]
#[error("write YAML: {0}")]
pub struct RenderError(#[from] serde_saphyr::ser::Error);

/// A YAML stream of these values.
///
/// # Errors
/// [`RenderError`] if YAML has no form for a value.
fn yaml<T: Serialize>(values: &[T]) -> Result<String, RenderError> {
    // Each text stays on a line, because block scalars would fold arguments.
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    Ok(serde_saphyr::to_string_multiple_with_options(values, options)?)
}

/// A deployment for tests.
#[cfg(test)]
pub(crate) fn sample() -> Deployment {
    Deployment {
        namespace: "kube-system".to_owned(),
        image: "registry.example/slipway:1".to_owned(),
        options: vec!["--cluster-cidr=10.244.0.0/16,fd44::/32".to_owned(), "--tunnel=always".to_owned()],
        cluster_cidrs: ["10.244.0.0/16", "fd44::/32"].map(|net| net.parse().unwrap()).into(),
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        startup_taints: vec!["node.example/starting:NoSchedule".to_owned()],
        kubernetes: KubernetesVersion::default(),
    }
}
