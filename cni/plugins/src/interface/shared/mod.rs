//! What the plugins that join a container to the node by a pair of links have in common: `bridge`
//! and `ptp`.
//!
//! One end of the pair is in the container, under the name that the runtime chose; the other one is
//! the host's, under a name that follows from the attachment and with its owner written on it. So
//! DEL and GC find it without the container, and [`remove`] is the same for both plugins.

pub(crate) mod check;
pub(crate) mod container;
pub(crate) mod host;
pub(crate) mod keys;
pub(crate) mod layer3;
pub(crate) mod masquerade;
pub(crate) mod remove;
pub(crate) mod single;

use std::fmt::Display;

use cni_kernel::route::Link;
use cni_kernel::sysctl::SysctlError;
use cni_spec::{CniError, Interface};

/// A link as the result tells it; `sandbox` is empty on the host.
///
/// The MTU is left out, as by the reference: its results for old and new versions stay the same.
pub(crate) fn interface(link: &Link, sandbox: String) -> Interface {
    Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        sandbox,
        ..Interface::default()
    }
}

/// An error of the kernel's side as the specification's.
#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
pub(crate) fn failed(error: impl Display) -> CniError {
    CniError::internal(error.to_string())
}

/// A setting that a kernel without IPv6, or an older one, does not have.
pub(crate) fn optional<T>(result: Result<T, SysctlError>) -> Result<(), CniError> {
    match result {
        Err(error) if !error.is_not_found() => Err(failed(error)),
        _ => Ok(()),
    }
}
