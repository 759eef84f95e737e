// SPDX-License-Identifier: GPL-3.0-or-later

//! The network namespaces of sandboxes, by their names below `/run/netns`.

use std::path::PathBuf;

use cni_kernel::named_netns;
pub(super) use cni_kernel::named_netns::NamedNetnsError as NetnsError;

/// The beginning of the names: namespaces of other programs are left alone.
const PREFIX: &str = "slipwayd-";

fn name(sandbox: &str) -> String {
    format!("{PREFIX}{sandbox}")
}

/// The path of a sandbox's namespace.
pub(super) fn path_of(sandbox: &str) -> PathBuf {
    named_netns::path_of(&name(sandbox))
}

/// Makes the namespace of a sandbox. The ID is checked by the caller: it is a part of a path.
///
/// # Errors
/// [`NetnsError`], also if it exists already.
pub(super) fn create(sandbox: &str) -> Result<PathBuf, NetnsError> {
    named_netns::create(&name(sandbox))
}

/// Deletes the namespace of a sandbox, if it exists. The kernel frees it with its last process and socket.
///
/// # Errors
/// [`NetnsError`] if the namespace cannot be unmounted, or its file cannot be removed.
pub(super) fn delete(sandbox: &str) -> Result<(), NetnsError> {
    named_netns::delete(&name(sandbox))
}

/// The sandboxes that have a namespace of [`create`].
///
/// # Errors
/// [`NetnsError`] if the directory cannot be listed.
pub(super) fn sandboxes() -> Result<Vec<String>, NetnsError> {
    named_netns::names(PREFIX)
}
