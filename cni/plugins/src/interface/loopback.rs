// SPDX-License-Identifier: GPL-2.0-or-later

//! `loopback`: sets the container's `lo` up.
//!
//! The kernel gives `lo` 127.0.0.1/8 and ::1/128 when it comes up. The plugin has no keys of its own, and
//! ignores `CNI_IFNAME`.

use std::path::Path;

use cni_kernel::netns::{Netns, NetnsError};
use cni_kernel::route::{Link, LinkChange, RouteSocket};
use cni_spec::{AddResult, CniError, ErrorCode, Interface, IpConfig};
use ipnet::IpNet;

use crate::plugin::{Place, Plugin, Request};

/// The `loopback` plugin.
#[derive(Debug)]
pub struct Loopback;

const NAME: &str = "lo";

impl Plugin for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn summary(&self) -> &'static str {
        "sets the container's lo up"
    }

    fn place(&self) -> Place {
        Place::Link
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let (netns, socket) = open(request)?;
        let link = lo(&socket)?;
        socket.change_link(&link, &LinkChange::new().up()).map_err(failed)?;
        let addresses = match addresses(&socket, &link) {
            Ok(addresses) => addresses,
            Err(error) => {
                // A link that was down goes down again; the first error is returned.
                if !link.up {
                    let _ = socket.change_link(&link, &LinkChange::new().down());
                }
                return Err(error);
            }
        };
        // In a chain, the previous result is passed on.
        Ok(match &request.config.prev_result {
            Some(previous) => previous.clone(),
            None => result(&netns, &addresses),
        })
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        let Some(path) = request.netns.as_deref() else { return Ok(()) };
        let netns = match Netns::open(path) {
            Ok(netns) => netns,
            Err(error) if error.is_gone() => return Ok(()),
            Err(error) => return Err(bad_netns(path, &error)),
        };
        let socket = RouteSocket::open_in(&netns).map_err(failed)?;
        let link = lo(&socket)?;
        if !link.up {
            return Ok(());
        }
        socket.change_link(&link, &LinkChange::new().down()).map_err(failed)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let (_, socket) = open(request)?;
        match lo(&socket)?.up {
            true => Ok(()),
            false => Err(CniError::internal("loopback interface is down")),
        }
    }
}

fn open(request: &Request<'_>) -> Result<(Netns, RouteSocket), CniError> {
    let path = request.netns.as_deref().unwrap_or(Path::new(""));
    let netns = Netns::open(path).map_err(|error| bad_netns(path, &error))?;
    let socket = RouteSocket::open_in(&netns).map_err(failed)?;
    Ok((netns, socket))
}

/// The code is 4, because the path comes from the environment.
fn bad_netns(path: &Path, error: &NetnsError) -> CniError {
    CniError::new(ErrorCode::InvalidEnvironment, format!("failed to open netns {path:?}: {error}"))
}

fn lo(socket: &RouteSocket) -> Result<Link, CniError> {
    socket.link(NAME).map_err(failed)
}

#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn failed(error: cni_kernel::route::RouteError) -> CniError {
    CniError::internal(error.to_string())
}

/// The addresses of `lo`. All must be loopback addresses, as the result must not have others.
fn addresses(socket: &RouteSocket, link: &Link) -> Result<Vec<IpNet>, CniError> {
    let mut nets = Vec::new();
    for address in socket.addresses(link).map_err(failed)? {
        let net = address.net;
        if !net.addr().is_loopback() {
            let msg = format!("loopback interface found with non-loopback address {:?}", net.to_string());
            return Err(CniError::internal(msg));
        }
        nets.push(net);
    }
    // IPv4 comes first, whatever the order of the kernel's list.
    nets.sort();
    Ok(nets)
}

fn result(netns: &Netns, addresses: &[IpNet]) -> AddResult {
    let interface = Interface {
        name: NAME.to_owned(),
        mac: "00:00:00:00:00:00".to_owned(),
        sandbox: netns.path().display().to_string(),
        ..Interface::default()
    };
    let ips = addresses.iter().map(|&address| IpConfig { interface: Some(0), address, gateway: None });
    AddResult { interfaces: vec![interface], ips: ips.collect(), ..AddResult::default() }
}
