// SPDX-License-Identifier: MIT OR Apache-2.0

//! Inspects and changes a pod's network namespace over netlink: the loopback, and interfaces whose result is not
//! cached.

use std::path::Path;

use cni_kernel::netns::Netns;
use cni_kernel::route::{Address, Link, LinkChange, RouteSocket};
use cni_spec::{AddResult, Interface, IpConfig};

use super::error::SandboxError;

const LOOPBACK: &str = "lo";

/// The state in which the loopback was before [`loopback_up`].
#[derive(Debug)]
pub(crate) enum Loopback {
    Up,
    /// The loopback was down and had these addresses. When a loopback is set up, the kernel adds 127.0.0.1 to it.
    Down(Vec<Address>),
}

/// Sets the loopback up. Blocks.
pub(crate) fn loopback_up(netns: &str) -> Result<Loopback, SandboxError> {
    let socket = open(netns)?;
    let link = socket.link(LOOPBACK)?;
    if link.up {
        return Ok(Loopback::Up);
    }
    let before = socket.addresses(&link)?;
    socket.change_link(&link, &LinkChange::new().up())?;
    Ok(Loopback::Down(before))
}

/// Undoes [`loopback_up`]. Blocks.
pub(crate) fn restore_loopback(netns: &str, state: &Loopback) -> Result<(), SandboxError> {
    let Loopback::Down(before) = state else { return Ok(()) };
    let socket = open(netns)?;
    let link = socket.link(LOOPBACK)?;
    socket.change_link(&link, &LinkChange::new().down())?;
    let is_new = |address: &&Address| before.iter().all(|known| known.net != address.net);
    for address in socket.addresses(&link)?.iter().filter(is_new) {
        socket.delete_address(&link, address.net)?;
    }
    Ok(())
}

/// Fails if the loopback is down. Blocks.
pub(crate) fn check_loopback(netns: &str) -> Result<(), SandboxError> {
    if open(netns)?.link(LOOPBACK)?.up { Ok(()) } else { Err(SandboxError::LoopbackDown(netns.to_owned())) }
}

/// The addresses and the Ethernet address of an interface, in the form of a result. Blocks.
pub(crate) fn read_back(netns: &str, ifname: &str) -> Result<AddResult, SandboxError> {
    let socket = open(netns)?;
    let link = socket.link(ifname)?;
    let addresses = socket.addresses(&link)?;
    let addresses: Vec<_> =
        addresses.into_iter().filter(|address| address.global).map(|address| address.net).collect();
    if addresses.is_empty() {
        return Err(SandboxError::NoAddress { netns: netns.to_owned(), ifname: ifname.to_owned() });
    }
    let Link { name, mac, mtu, .. } = link;
    let mac = mac.map(|mac| mac.to_string()).unwrap_or_default();
    let interface = Interface { name, mac, mtu, sandbox: netns.to_owned(), ..Interface::default() };
    let ip = |address| IpConfig { interface: Some(0), address, gateway: None };
    Ok(AddResult {
        interfaces: vec![interface],
        ips: addresses.into_iter().map(ip).collect(),
        ..AddResult::default()
    })
}

fn open(netns: &str) -> Result<RouteSocket, SandboxError> {
    let netns = Netns::open(Path::new(netns))?;
    Ok(RouteSocket::open_in(&netns)?)
}
