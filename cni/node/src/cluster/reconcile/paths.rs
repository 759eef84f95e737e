// SPDX-License-Identifier: GPL-3.0-or-later

//! The paths to other nodes' pods: the devices of VXLAN and WireGuard with their peers, and the routes.

use cni_dataplane::owner::MADE;
use cni_dataplane::tunnel_guard::{self, Others, TunnelGuard};
use cni_kernel::route::{Link, RouteError, RouteSocket};

use super::{Failure, Reconciliation};
use crate::cluster::annotations::vxlan_mac_of;
use crate::cluster::desired::{Desired, InstalledPaths};
use crate::cluster::key;
use crate::cluster::routes::{self, PROTOCOL};
use crate::cluster::tunnel::{self, DEVICE};
use crate::cluster::wireguard::{self, PreparedDevice, WireGuardError};

/// The devices that exist.
pub(super) struct Devices {
    pub(super) vxlan: Option<Link>,
    pub(super) wireguard: Option<Link>,
}

impl Devices {
    pub(super) fn all(&self) -> impl Iterator<Item = &Link> {
        self.vxlan.iter().chain(&self.wireguard)
    }
}

/// The paths that an earlier agent has left.
///
/// # Errors
/// [`RouteError`] if the kernel cannot list them.
pub(super) fn installed(
    socket: &RouteSocket,
    encrypted: Option<&Result<PreparedDevice, WireGuardError>>,
) -> Result<InstalledPaths, RouteError> {
    let routes = routes::shown(socket)?;
    let own = routes.iter().filter(|route| route.protocol == PROTOCOL);
    let device = socket.find_link(DEVICE)?.filter(|link| link.alias == MADE);
    let neighbours = device.map_or_else(|| Ok(Vec::new()), |device| socket.neighbours(&device))?;
    Ok(InstalledPaths {
        gateways: own.filter_map(|route| Some((route.dst, route.gateway?))).collect(),
        macs: neighbours.iter().map(|neighbour| (neighbour.address, neighbour.mac)).collect(),
        keys: encrypted.and_then(|ready| ready.as_ref().ok()).map(PreparedDevice::keys).unwrap_or_default(),
    })
}

impl Reconciliation<'_> {
    /// Keeps pods from sending to VXLAN devices, and other hosts from sending in place of encrypted pods. Without a
    /// complete list of Nodes, nothing is taken out of the table.
    pub(super) fn set_guard(&mut self, guard: Option<&TunnelGuard>) {
        let Some(guard) = guard else { return };
        let others = if self.may_delete { Others::Remove } else { Others::Keep };
        match tunnel_guard::set(guard, others) {
            Ok(()) => {}
            Err(error @ cni_dataplane::Error::NoNfTables(_)) => {
                log::debug!("no guard of the tunnel: {error}");
            }
            Err(error) => self.unneeded.push(Failure::Guard(error)),
        }
    }

    /// Removes the guard, as there is neither encryption nor a VXLAN device.
    pub(super) fn release_guard(&mut self) {
        if self.may_delete
            && let Err(error) = tunnel_guard::release()
        {
            self.unneeded.push(Failure::Guard(error));
        }
    }

    /// Makes the tunnel's device with its peers, or removes it if no tunnel is wanted. None without a tunnel, or if the
    /// device could not be made.
    pub(super) fn tunnel(&mut self, desired: &Desired) -> Option<Link> {
        let (Some(tunnel), Some(own), Some(mtu)) = (&desired.tunnel, &desired.own, desired.mtu) else {
            if desired.tunnel.is_none() && self.may_delete {
                match tunnel::remove(&self.socket) {
                    Ok(true) => self.report.changes.push(format!("removed the tunnel {DEVICE}")),
                    Ok(false) => {}
                    Err(error) => self.failed(error),
                }
            }
            return None;
        };
        let mac = vxlan_mac_of(&self.settings.node);
        match tunnel::ensure(&self.socket, tunnel, mac, mtu, &own.prefixes) {
            Ok(device) => {
                self.report.announce.vxlan_mac = Some(mac);
                self.report.announce.vxlan_port = Some(tunnel.port);
                for (family, error) in tunnel::set_peers(&self.socket, &device, tunnel, self.may_delete) {
                    match family {
                        Some(family) => self.path_failed(family, error),
                        None => self.failed(error),
                    }
                }
                Some(device)
            }
            Err(error) => {
                self.failed(error);
                None
            }
        }
    }

    /// Sets up the WireGuard device with its peers. None if there is no device, or if it could not be made.
    pub(super) fn wireguard(
        &mut self,
        desired: &Desired,
        encrypted: Option<Result<PreparedDevice, WireGuardError>>,
    ) -> Option<Link> {
        let Some(encrypted) = encrypted else {
            if self.may_delete {
                let directory = key::directory(&self.settings.subnet_file);
                match wireguard::remove(&self.socket, &directory) {
                    Ok(true) => self.report.changes.push(format!("removed {}", wireguard::DEVICE)),
                    Ok(false) => {}
                    Err(error) => self.failed(error),
                }
            }
            return None;
        };
        let ready = match encrypted {
            Ok(ready) => ready,
            Err(error) => {
                self.failed(error);
                return None;
            }
        };
        let (Some(wanted), Some(own), Some(mtu)) = (&desired.wireguard, &desired.own, desired.mtu) else {
            return None;
        };
        match wireguard::set_up(&self.socket, &ready, wanted, mtu, &own.prefixes) {
            Ok(device) => {
                self.report.announce.wireguard_key = Some(ready.key);
                self.report.announce.wireguard_port = Some(wanted.port);
                match wireguard::set_peers(&ready, wanted, self.may_delete) {
                    Ok((0, 0)) => {}
                    Ok((set, removed)) => self
                        .report
                        .changes
                        .push(format!("{}: set {set} peers, removed {removed}", wireguard::DEVICE)),
                    Err(error) => self.failed(error),
                }
                Some(device)
            }
            Err(error) => {
                self.failed(error);
                None
            }
        }
    }

    pub(super) fn routes(&mut self, desired: &Desired, devices: &Devices) -> Result<(), RouteError> {
        let index = |device: &Option<Link>| device.as_ref().map(|device| device.index);
        let mut wanted = routes::wanted(desired, index(&devices.vxlan), index(&devices.wireguard));
        // A route whose tunnel could not be made stays: the next comparison may make it.
        let keep_others = !self.may_delete || wanted.len() != desired.routes.len();
        wanted.extend(desired.refused.iter().map(|prefix| routes::refusal(*prefix)));
        let shown = routes::shown(&self.socket)?;
        let mut plan = routes::plan(&wanted, &shown, keep_others);
        if keep_others && desired.wireguard.is_some() {
            plan.changes.splice(0..0, routes::without_clear_text(&wanted, &shown));
        }
        for (change, made) in plan.changes.iter().zip(routes::apply(&self.socket, &plan.changes)) {
            match made {
                Ok(true) => self.report.changes.push(change.to_string()),
                Ok(false) => {}
                Err(error) => self.path_failed(change.family(), error),
            }
        }
        self.report.conflicts = plan.conflicts;
        Ok(())
    }
}
