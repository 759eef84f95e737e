// SPDX-License-Identifier: GPL-3.0-or-later

//! A comparison of the node with its desired state, and the changes that follow from it. Kernel and files are read each
//! time. Each comparison tells the next one who holds pod CIDRs and keys, and nothing else.
//!
//! The order: the tunnel's guard, the device of VXLAN or WireGuard, its peers and the routes (`paths`); the bridge with
//! its gateways, and forwarding; the file of subnets; last the configuration for the container runtime, which is ready
//! for pods from then on. A failure keeps back only what depends on it.

mod paths;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni_dataplane::iptables::forward;
use cni_dataplane::node::forward_chains;
use cni_kernel::AddressFamily;
use cni_kernel::forwarding::{self, ForwardingError};
use cni_kernel::mac::Mac;
use cni_kernel::route::{Link, LinkKind, RouteError, RouteSocket};
use cni_state::subnet_env::{EnvError, SubnetEnv};
use cni_state::subnet_file::{SubnetFile, SubnetFileError};
use ipnet::IpNet;

use paths::Devices;

use super::annotations::Annotations;
use super::conflist::{ConflistError, Network};
use super::desired::{self, Claims, Desired, LocalView, OwnSubnets, Uplink, desired};
use super::key;
use super::node_name::NodeName;
use super::nodes::Nodes;
use super::problem::Problem;
use super::routes::Conflict;
use super::tunnel::{self, TunnelError};
use super::wireguard::{self, WireGuardError};
use crate::host::bridge::{self, BridgeError, BridgeSpec, OtherAddresses};
use crate::host::mounts;

/// Names, paths and addresses of a node's agent.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of this node.
    pub node: NodeName,
    /// The settings of routes and tunnels.
    pub paths: desired::Settings,
    /// The network's name.
    pub network: String,
    /// The bridge of the pods.
    pub bridge: String,
    /// The configuration for the container runtime.
    pub conflist: PathBuf,
    /// The file of the node's subnets.
    pub subnet_file: PathBuf,
    /// The file of the node's subnets for the plugin flannel, if wanted.
    pub flannel_file: Option<PathBuf>,
    /// The directory of the kernel's settings: `/proc/sys`, or the host's in a container.
    pub sysctl_dir: PathBuf,
    /// Other destinations to which pods keep their addresses: nodes, Services.
    pub without_masquerade: Vec<IpNet>,
    /// True to accept the pods' packets where iptables' chain FORWARD drops by default.
    pub accepts_forwarded: bool,
    /// True to run iptables in the mount namespace of process 1, because the agent is in a container whose image has no
    /// iptables.
    pub in_host_mounts: bool,
}

impl Settings {
    /// Does work that may run the node's iptables.
    ///
    /// # Errors
    /// [`Failure::Mounts`] if the node's mount namespace cannot be entered; the work's own as [`Failure::Accept`].
    pub fn with_iptables<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, cni_dataplane::Error> + Send,
    ) -> Result<T, Failure> {
        let done = if self.in_host_mounts { mounts::run(work).map_err(Failure::Mounts)? } else { work() };
        Ok(done?)
    }
}

/// The result of a comparison.
#[derive(Debug, Default)]
pub struct Report {
    /// The desired state.
    pub desired: Desired,
    /// The changes that were made, for people.
    pub changes: Vec<String>,
    /// The changes that failed.
    pub errors: Vec<Failure>,
    /// Routes of other programs.
    pub conflicts: Vec<Conflict>,
    /// The annotations for this node's own Node.
    pub announce: Annotations,
    /// True if routes, tunnel and configuration are in place.
    pub is_ready: bool,
    /// The indexes of the uplinks, and of the bridge and the devices of VXLAN and WireGuard if they exist.
    pub links: BTreeSet<u32>,
    /// The time that the comparison took, with its changes.
    pub took: Duration,
}

impl Report {
    /// The reason why the node's network is not ready; none if it is.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        if self.is_ready {
            return None;
        }
        let first = self.errors.first().map(Failure::to_string);
        Some(first.unwrap_or_else(|| match &self.desired.own {
            None => "this node has no pod CIDR".to_owned(),
            Some(_) => "the network is not complete".to_owned(),
        }))
    }

    /// All troubles, a line each: unusable Nodes, routes of other programs, failed changes.
    pub fn troubles(&self) -> impl Iterator<Item = String> {
        let problems = self.desired.problems.iter().map(Problem::to_string);
        let conflicts = self.conflicts.iter().map(Conflict::to_string);
        problems.chain(conflicts).chain(self.errors.iter().map(Failure::to_string))
    }
}

/// A part that could not be brought to its desired state.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The kernel refused a call.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The tunnel's device could not be made.
    #[error("tunnel: {0}")]
    Tunnel(#[from] TunnelError),
    /// Pods could not be kept from sending to VXLAN devices, or other hosts from sending in place of encrypted pods.
    #[error("guard of the tunnel: {0}")]
    Guard(cni_dataplane::Error),
    /// The WireGuard device could not be made.
    #[error("WireGuard: {0}")]
    WireGuard(#[from] WireGuardError),
    /// The bridge could not be made.
    #[error("bridge: {0}")]
    Bridge(#[from] BridgeError),
    /// Forwarding could not be switched on.
    #[error("forwarding: {0}")]
    Forwarding(#[from] ForwardingError),
    /// The node's iptables cannot be run.
    #[error("chain FORWARD: enter the mount namespace of process 1: {0}")]
    Mounts(io::Error),
    /// Forwarded packets could not be accepted.
    #[error("chain FORWARD: {0}")]
    Accept(#[from] cni_dataplane::Error),
    /// A chain that is not iptables' drops by default.
    #[error("chain {0} drops forwarded packets by default: accept those from and to {1} there")]
    Drops(String, String),
    /// The file of subnets could not be written.
    #[error("subnets: {0}")]
    Subnets(#[from] SubnetFileError),
    /// The file of subnets for flannel could not be written.
    #[error("subnets for flannel: {0}")]
    Flannel(#[from] EnvError),
    /// The configuration could not be written.
    #[error("configuration: {0}")]
    Conflist(#[from] ConflistError),
}

/// Compares the node with its desired state, and changes what differs. Without a complete list of Nodes nothing is
/// deleted. `claims` are those of the last comparison; the first one reads from the kernel who holds what.
///
/// # Errors
/// The kernel's links, addresses or routes cannot be read: nothing was changed.
pub fn reconcile(
    nodes: &Nodes,
    is_complete: bool,
    settings: &Settings,
    claims: Option<&Claims>,
) -> Result<Report, Failure> {
    let begin = Instant::now();
    let socket = RouteSocket::open()?;
    let links = socket.links()?;
    let mut here = here(&socket, &links, &settings.bridge)?;
    // The desired state depends on the node's public key.
    let encrypted = settings
        .paths
        .encryption
        .is_some()
        .then(|| wireguard::prepare(&socket, &key::directory(&settings.subnet_file)));
    here.wireguard_key = encrypted.as_ref().and_then(|ready| ready.as_ref().ok()).map(|ready| ready.key);
    let claims = match claims {
        Some(claims) => Cow::Borrowed(claims),
        None => Cow::Owned(Claims::of_installed(&paths::installed(&socket, encrypted.as_ref())?, nodes)),
    };
    let desired = desired(nodes, &settings.node, &here, &settings.paths, &claims);
    let mut run = Reconciliation {
        socket,
        settings,
        may_delete: is_complete && desired.prune,
        families: desired.own.iter().flat_map(|own| &own.prefixes).map(family).collect(),
        report: Report::default(),
        unneeded: Vec::new(),
    };
    run.report.links = here.uplinks.iter().map(|uplink| uplink.index).collect();
    let guard = tunnel::guard(&desired, settings.paths.port, &links, &here.uplinks, &settings.bridge);
    // Before the device is made, and after it is removed.
    run.set_guard(guard.as_ref());
    let devices = Devices { vxlan: run.tunnel(&desired), wireguard: run.wireguard(&desired, encrypted) };
    run.report.links.extend(devices.all().map(|device| device.index));
    if guard.is_none() {
        run.release_guard();
    }
    run.routes(&desired, &devices)?;
    // Up to here, only changes of devices, peers and routes can have failed.
    let has_paths = run.report.errors.is_empty();
    if let (Some(own), Some(mtu)) = (&desired.own, desired.mtu) {
        let has_bridge = run.bridge(own, mtu);
        // Pods are useless on a node that other nodes cannot reach.
        run.report.is_ready = has_bridge && run.files(own, mtu) && has_paths;
    }
    let mut report = run.report;
    // The first failure is the reason why a node is not ready, which these cannot be.
    report.errors.extend(run.unneeded);
    report.is_ready &= desired.tunnel.is_none() || devices.vxlan.is_some();
    report.is_ready &= desired.wireguard.is_none() || devices.wireguard.is_some();
    report.desired = desired;
    report.took = begin.elapsed();
    Ok(report)
}

/// The uplinks: links that are up and have a global address in a subnet that other hosts may be in. The loopback, the
/// bridge of the pods and the devices of VXLAN and WireGuard do not count, nor does a link with a route or address that
/// leads to one host only.
fn here(socket: &RouteSocket, links: &[Link], bridge: &str) -> Result<LocalView, RouteError> {
    let addresses = socket.all_addresses()?;
    let others = ["lo", bridge, tunnel::DEVICE, wireguard::DEVICE];
    let is_uplink = |link: &&Link| link.up && !others.contains(&link.name.as_str());
    let uplinks = links.iter().filter(is_uplink).filter_map(|link| {
        let own = addresses.iter().filter(|address| address.link == link.index && address.global);
        let nets = own.filter(|address| !address.deprecated && !address.duplicate).map(|address| address.net);
        let addresses: Vec<IpNet> = nets.filter(|net| net.prefix_len() < net.max_prefix_len()).collect();
        // Another network's bridge does not lead to other nodes.
        let is_of_pods = link.kind == LinkKind::Bridge && link.alias == cni_dataplane::owner::MADE;
        (!addresses.is_empty() && !is_of_pods).then_some(Uplink {
            index: link.index,
            mtu: link.mtu,
            addresses,
        })
    });
    let uplinks = uplinks.collect();
    let usable = addresses.iter().filter(|address| !address.duplicate);
    let own_v6 = usable.map(|address| address.net.addr()).filter(IpAddr::is_ipv6).collect();
    Ok(LocalView { uplinks, own_v6, wireguard_key: None })
}

struct Reconciliation<'a> {
    socket: RouteSocket,
    settings: &'a Settings,
    may_delete: bool,
    /// The families of this node's pods.
    families: BTreeSet<AddressFamily>,
    report: Report,
    /// The failures that keep no pod of this node from others.
    unneeded: Vec<Failure>,
}

impl Reconciliation<'_> {
    fn failed(&mut self, failure: impl Into<Failure>) {
        self.report.errors.push(failure.into());
    }

    /// A part of a path to pods of this family failed. If this node's pods have no address of the family, the node is
    /// ready nevertheless: IPv6 may be switched off on it, while newer nodes have pods with both families.
    fn path_failed(&mut self, family: AddressFamily, failure: impl Into<Failure>) {
        if self.families.contains(&family) {
            self.failed(failure);
        } else {
            self.unneeded.push(failure.into());
        }
    }

    /// Makes the bridge of the pods, and enables forwarding. Returns true if both are in place.
    fn bridge(&mut self, own: &OwnSubnets, mtu: u32) -> bool {
        let gateways: Vec<IpNet> = own.prefixes.iter().filter_map(gateway).collect();
        let Some(mac) = bridge_mac(&gateways) else { return false };
        let wanted = BridgeSpec {
            name: &self.settings.bridge,
            mac,
            mtu,
            gateways: &gateways,
            others: OtherAddresses::Keep,
            takes_foreign: false,
        };
        match bridge::ensure(&self.socket, &wanted) {
            Ok(bridge) => self.report.links.insert(bridge.index),
            Err(error) => {
                self.failed(error);
                return false;
            }
        };
        let families: BTreeSet<AddressFamily> = own.prefixes.iter().map(family).collect();
        for family in &families {
            match forwarding::enable_below(&self.settings.sysctl_dir, &self.socket, *family) {
                Ok(links) => self.report.changes.extend(links.iter().map(|link| {
                    format!("set accept_ra of {link} to 2, so that it keeps its routes from advertisements")
                })),
                Err(error) => {
                    self.failed(error);
                    return false;
                }
            }
        }
        if self.settings.accepts_forwarded
            && let Err(error) = self.accept_forwarded(&Vec::from_iter(families))
        {
            self.report.errors.push(error);
        }
        true
    }

    /// Accepts the pods' packets where the chain FORWARD of Docker or ufw drops them, and reports other chains that drop.
    fn accept_forwarded(&mut self, families: &[AddressFamily]) -> Result<(), Failure> {
        let bridge = &self.settings.bridge;
        for place in self.settings.with_iptables(|| forward::accept(bridge, families))? {
            let change = format!(
                "accepted packets of {bridge} in FORWARD, {}, iptables-{}",
                place.family, place.variant
            );
            self.report.changes.push(change);
        }
        for chain in forward_chains()?.into_iter().filter(|chain| chain.drops) {
            if !matches!(chain.name.as_str(), "ip filter FORWARD" | "ip6 filter FORWARD") {
                self.report.errors.push(Failure::Drops(chain.name, bridge.clone()));
            }
        }
        Ok(())
    }

    /// Writes the files. Returns true if they are in place.
    fn files(&mut self, own: &OwnSubnets, mtu: u32) -> bool {
        let settings = self.settings;
        let file = SubnetFile {
            subnets: own.prefixes.clone(),
            cluster_cidrs: settings.paths.cluster_cidrs.clone(),
            mtu,
        };
        // An unreadable file is replaced, too.
        if SubnetFile::read(&settings.subnet_file).ok().as_ref() != Some(&file) {
            if let Err(error) = file.write(&settings.subnet_file) {
                self.failed(error);
                return false;
            }
            self.report.changes.push(format!("wrote {}", settings.subnet_file.display()));
        }
        if let Some(path) = &settings.flannel_file
            && let Err(error) = self.flannel_file(path, &file)
        {
            self.failed(error);
            return false;
        }
        let without_masquerade = settings.paths.cluster_cidrs.iter().chain(&settings.without_masquerade);
        let network = Network {
            name: settings.network.clone(),
            bridge: settings.bridge.clone(),
            mtu,
            subnet_file: settings.subnet_file.clone(),
            families: own.prefixes.iter().map(family).collect(),
            without_masquerade: without_masquerade.copied().collect(),
        };
        match network.write(&settings.conflist) {
            Ok(true) => self.report.changes.push(format!("wrote {}", settings.conflist.display())),
            Ok(false) => {}
            Err(error) => {
                self.failed(error);
                return false;
            }
        }
        true
    }

    fn flannel_file(&mut self, path: &Path, file: &SubnetFile) -> Result<(), EnvError> {
        // A reader returns IPv4 first.
        let sorted = |nets: &[IpNet]| {
            let mut nets = nets.to_vec();
            nets.sort_by_key(|net| net.addr().is_ipv6());
            nets
        };
        let file = SubnetEnv {
            networks: sorted(&file.cluster_cidrs),
            subnets: sorted(&file.subnets),
            mtu: file.mtu,
            // The delegate's bridge masquerades.
            masquerades: false,
        };
        let present = SubnetEnv::read(path).ok().map(|mut present| {
            // The file has the bridge's address in place of the subnet's network address.
            present.subnets.iter_mut().for_each(|subnet| *subnet = subnet.trunc());
            present
        });
        if present.as_ref() != Some(&file) {
            file.write(path)?;
            self.report.changes.push(format!("wrote {}", path.display()));
        }
        Ok(())
    }
}

fn family(net: &IpNet) -> AddressFamily {
    AddressFamily::of(net.addr())
}

/// The gateway of a subnet: its first address, with the length of its prefix.
fn gateway(net: &IpNet) -> Option<IpNet> {
    let first = net.hosts().next()?;
    // An IPv6 subnet's hosts begin with its network address, which all routers have (RFC 4291, section 2.6.1).
    let first = match (first, net.network()) {
        (IpAddr::V6(first), IpAddr::V6(network)) if first == network => {
            IpAddr::V6(u128::from(first).checked_add(1)?.into())
        }
        (first, _) => first,
    };
    IpNet::new(first, net.prefix_len()).ok()
}

/// The bridge's address, as kubenet chooses it: 0a:58 and the first gateway's last four bytes.
fn bridge_mac(gateways: &[IpNet]) -> Option<Mac> {
    let v4 = gateways.iter().find(|net| net.addr().is_ipv4());
    let [a, b, c, d] = match v4.or(gateways.first())?.addr() {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            [a, b, c, d]
        }
    };
    Some(Mac([0x0a, 0x58, a, b, c, d]))
}
