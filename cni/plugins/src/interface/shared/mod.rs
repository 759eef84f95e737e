// SPDX-License-Identifier: GPL-2.0-or-later

//! The common code of the plugins that connect a container to the node by a veth pair: `bridge` and `ptp`.
//!
//! One end is in the container, under the runtime's name; the other one is on the host, with a name derived
//! from the attachment and the owner as its alias. So DEL and GC find it without the container, and
//! [`remove`] is the same for both plugins.

pub(crate) mod advertisements;
pub(crate) mod check;
pub(crate) mod container;
pub(crate) mod container_side;
pub(crate) mod expected;
pub(crate) mod failures;
pub(crate) mod host;
pub(crate) mod keys;
pub(crate) mod layer3;
pub(crate) mod masquerade;
pub(crate) mod networks;
pub(crate) mod remove;
pub(crate) mod renamed;
pub(crate) mod single;

use std::fmt::Display;

use cni_kernel::route::Link;
use cni_kernel::sysctl::SysctlError;
use cni_spec::{CniError, Interface};

/// A link as an interface of the result; `sandbox` is empty on the host.
///
/// The MTU is left out, as in the reference.
pub(crate) fn interface(link: &Link, sandbox: String) -> Interface {
    Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        sandbox,
        ..Interface::default()
    }
}

/// Converts an error of the kernel to a CNI error.
#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
pub(crate) fn failed(error: impl Display) -> CniError {
    CniError::internal(error.to_string())
}

/// Accepts that a setting is missing, as in kernels without IPv6 and in older ones.
pub(crate) fn optional<T>(result: Result<T, SysctlError>) -> Result<(), CniError> {
    match result {
        Err(error) if !error.is_not_found() => Err(failed(error)),
        _ => Ok(()),
    }
}

/// Accepts that a setting which only saves time or packets cannot be made, as in a read-only `/proc/sys`.
pub(crate) fn spare(result: Result<(), SysctlError>) {
    if let Err(error) = result
        && !error.is_not_found()
    {
        log::warn!("{error}");
    }
}
