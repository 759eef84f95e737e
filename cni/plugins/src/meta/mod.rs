//! Plugins that are called after an interface plugin and add to what it made.

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

/// What is there need not be added.
fn there(added: Result<(), RouteError>) -> Result<(), RouteError> {
    match added {
        Err(error) if !error.already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// What is not there need not be deleted or changed.
fn gone(done: Result<(), RouteError>) -> Result<(), RouteError> {
    match done {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
