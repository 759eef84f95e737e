// SPDX-License-Identifier: MIT OR Apache-2.0

//! The addresses of a pod, read from its namespace.

use std::net::IpAddr;
use std::path::Path;

use cni_kernel::netns::{Netns, NetnsError};
use cni_kernel::route::{RouteError, RouteSocket};

use super::{BoxError, Host, INTERFACE, Pod, blocking};

/// The addresses of an interface could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The namespace cannot be opened or entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The kernel has no such interface, or cannot list its addresses.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The interface has no address of global scope.
    #[error("interface {0} has no address")]
    None(String),
}

/// The first IPv4 address and the first IPv6 address of global scope on an interface.
///
/// # Errors
/// [`AddressError`] if the namespace, the interface or its addresses are missing.
pub fn addresses_of(netns: &Path, ifname: &str) -> Result<Vec<IpAddr>, AddressError> {
    let route = RouteSocket::open_in(&Netns::open(netns)?)?;
    let present = route.addresses(&route.link(ifname)?)?;
    let first = |wanted: fn(&IpAddr) -> bool| {
        let mut global = present.iter().filter(|address| address.global).map(|address| address.net.addr());
        global.find(wanted)
    };
    let found: Vec<IpAddr> = first(IpAddr::is_ipv4).into_iter().chain(first(IpAddr::is_ipv6)).collect();
    if found.is_empty() {
        return Err(AddressError::None(ifname.to_owned()));
    }
    Ok(found)
}

/// The addresses of a pod's interface. If the runtime does not know the namespace, the message begins with `driver`.
///
/// # Errors
/// The runtime's error or an empty path, if the namespace is unknown; [`AddressError`] if the interface has no
/// address or cannot be read.
pub async fn pod_addresses(driver: &str, host: &dyn Host, pod: &Pod) -> Result<Vec<IpAddr>, BoxError> {
    let netns = host
        .netns(&pod.sandbox_id)
        .map_err(|error| format!("{driver} failed to retrieve network namespace path: {error}"))?;
    if netns.as_os_str().is_empty() {
        let id = cni_spec::text::quote(&pod.sandbox_id);
        let message =
            format!("cannot find the network namespace, skipping pod network status for container {id}");
        return Err(message.into());
    }
    blocking(move || Ok(addresses_of(&netns, INTERFACE)?)).await
}
