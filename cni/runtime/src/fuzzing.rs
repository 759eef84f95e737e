// SPDX-License-Identifier: MIT OR Apache-2.0

//! The private parsers, for fuzzing. Each takes arbitrary bytes and returns what it has read.

use std::fmt::Debug;

use crate::exec::output::shown;
use crate::verbs::versions;
use crate::{cache, invoke};

/// A file of the cache. An accepted file describes a container and the input of each of its plugins.
pub fn cache_file(bytes: &[u8]) -> impl Debug {
    let read = cache::parse(bytes);
    read.map(|cached| {
        let (network, container) = (cached.network(), cached.container());
        assert_eq!(network.name(), cached.attachment.network());
        assert_eq!(container.id, cached.attachment.container_id());
        let configs = cached.configs().map_err(|error| error.to_string());
        (network.list().plugins.len(), container, configs.map(|configs| configs.len()))
    })
}

/// The output of a plugin: the list of versions, and the error of a call that failed.
pub fn plugin_output(bytes: &[u8]) -> impl Debug {
    let (stdout, stderr) = bytes.split_at(bytes.len() / 2);
    let failure = invoke::failure("exit status 1", stdout, stderr);
    // The error must be printed in the form of the specification.
    assert!(serde_json::from_str::<serde_json::Value>(&failure.print()).is_ok());
    (versions::decode(bytes), failure, shown(bytes).len())
}

/// A file with the pending attachments of the sandbox `s1`.
#[cfg(feature = "pods")]
pub fn pending_attachments(bytes: &[u8]) -> impl Debug {
    crate::pods::journal::parse("s1", bytes)
}

/// What a network plugin of kubelet's `exec` interface prints for a pod.
#[cfg(feature = "kubelet")]
pub fn pod_status(bytes: &[u8]) -> impl Debug {
    let read = crate::kubelet::status::PodNetworkStatus::decode(bytes, "pod");
    read.map_err(|error| error.to_string())
}
