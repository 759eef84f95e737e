// SPDX-License-Identifier: GPL-2.0-or-later

//! Plugins that run after an interface plugin and change the links that it made.

pub mod bandwidth;
pub mod firewall;
pub mod flannel;
mod layer3;
pub mod noop;
pub mod portmap;
mod probe;
pub mod sbr;
pub mod tuning;
pub mod vrf;

use cni_kernel::route::RouteError;

/// Treats the error that an object exists already as success.
fn there(added: Result<(), RouteError>) -> Result<(), RouteError> {
    match added {
        Err(error) if !error.already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// Treats the error that an object to delete or change is missing as success.
fn gone(done: Result<(), RouteError>) -> Result<(), RouteError> {
    match done {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
