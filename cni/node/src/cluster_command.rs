// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd run`: the options, and the parts of the agent put together.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;

use cni_dataplane::iptables::forward;
use cni_kernel::sysctl;
use cni_kernel::unix::bind;
use cni_spec::Attachment;
use cni_state::report;
use ipnet::IpNet;
use slipwayd::cluster::access::{Access, own_name};
use slipwayd::cluster::agent::{self, AgentError};
use slipwayd::cluster::announce::{self, Announcement};
use slipwayd::cluster::conflist;
use slipwayd::cluster::desired::{self, Encryption, TunnelMode};
use slipwayd::cluster::events::{self, Notice};
use slipwayd::cluster::reconcile::{Failure, Report, Settings};
use slipwayd::cluster::source::{self, Snapshot};
use slipwayd::cluster::taint::StartupTaint;
use slipwayd::garbage::{self, Sweep};
use slipwayd::host::run_dir::{RunDir, RunDirError};
use slipwayd::observe::{Change, Observer, SLIPWAY, server};
use slipwayd::repair::program::Program;
use slipwayd::repair::{self, Repair, RepairError};
use tokio::net::UnixDatagram;
use tokio::sync::{mpsc, watch};

use crate::garbage_options;

/// The largest VNI (RFC 7348, section 5).
const LARGEST_VNI: u32 = (1 << 24) - 1;
/// The port of VXLAN (RFC 7348, section 8).
const VXLAN_PORT: u16 = 4789;
/// The port in WireGuard's own documentation, and of flannel's backend for it.
const WIREGUARD_PORT: u16 = 51820;
/// The least and the largest packet that IPv4 allows between nodes (RFC 791, section 3.2).
const PATH_MTU: std::ops::RangeInclusive<u32> = 576..=65535;

/// Notices that wait to be sent as Events.
const NOTICES: usize = 32;

/// The arguments of `slipwayd run`.
#[derive(Debug)]
pub(crate) struct Given {
    settings: Settings,
    access: Access,
    program: Program,
    removes_conflist: bool,
    startup_taints: Vec<StartupTaint>,
    /// None: no address.
    listen: Option<SocketAddr>,
    /// None: the container runtime's garbage is left.
    pub(crate) garbage: Option<garbage::Settings>,
}

impl Given {
    /// Locks the agent's directory: that of the file of subnets.
    ///
    /// # Errors
    /// [`RunDirError`] if another agent runs, or the directory cannot be made.
    pub(crate) fn lock(&self) -> Result<RunDir, RunDirError> {
        let dir = self.settings.subnet_file.parent().filter(|dir| !dir.as_os_str().is_empty());
        RunDir::lock(dir.unwrap_or(Path::new(".")))
    }
}

/// Reads the options.
///
/// # Errors
/// The option and the reason, in words.
pub(crate) fn read(words: &slipway_cli::Given) -> Result<Given, String> {
    let text = |name: &str, default: &str| words.value(name).unwrap_or(default).to_owned();
    let node = own_name(words.value("--node-name")).map_err(|error| error.to_string())?;
    let cidrs = |name: &str| -> Result<Vec<IpNet>, String> {
        let parts = words.values(name).flat_map(|list| list.split(','));
        parts.map(|part| cidr(part).map_err(|error| format!("{name} {part:?}: {error}"))).collect()
    };
    let bad = |name: &str| format!("{name} {:?} is no such number", words.value(name).unwrap_or_default());
    let vni = text("--vxlan-vni", "1").parse().ok().filter(|vni| (1..=LARGEST_VNI).contains(vni));
    let path_mtu = match words.value("--path-mtu") {
        None => Some(None),
        Some(text) => text.parse().ok().filter(|mtu| PATH_MTU.contains(mtu)).map(Some),
    };
    let cluster_cidrs = cidrs("--cluster-cidr")?;
    let paths = desired::Settings {
        tunnel: match words.value("--tunnel") {
            Some("always") => TunnelMode::Always,
            Some("never") => TunnelMode::Never,
            _ => TunnelMode::Auto,
        },
        vni: vni.ok_or_else(|| bad("--vxlan-vni"))?,
        port: text("--vxlan-port", &VXLAN_PORT.to_string()).parse().map_err(|_| bad("--vxlan-port"))?,
        pod_cidrs: cidrs("--pod-cidr")?,
        path_mtu: path_mtu.ok_or_else(|| bad("--path-mtu"))?,
        encryption: encryption(words, &cluster_cidrs)?,
        cluster_cidrs,
    };
    let mut without_masquerade = cidrs("--service-cidr")?;
    without_masquerade.extend(cidrs("--node-cidr")?);
    let bridge = text("--bridge", "slipway0");
    if bridge.is_empty()
        || bridge.len() > 15
        || bridge.contains(['/', ':'])
        || bridge.contains(char::is_whitespace)
    {
        return Err(format!("--bridge {bridge:?} is no name of a link"));
    }
    let settings = Settings {
        node,
        paths,
        network: text("--network-name", "slipway"),
        bridge,
        conflist: text("--conflist", "/etc/cni/net.d/10-slipway.conflist").into(),
        subnet_file: text("--subnet-file", "/run/slipway/subnet.json").into(),
        flannel_file: words.value("--flannel-file").map(Into::into),
        sysctl_dir: text("--sysctl-dir", sysctl::DIRECTORY).into(),
        without_masquerade,
        accepts_forwarded: words.value("--forward-rules") != Some("never"),
        in_host_mounts: words.has("--host-mounts"),
    };
    if settings.flannel_file.is_some() && settings.paths.cluster_cidrs.is_empty() {
        return Err("--flannel-file needs --cluster-cidr: the file names the cluster's network".to_owned());
    }
    let access = Access::new(words.value("--kubeconfig").map(Into::into));
    let program = Program {
        path: text("--slipway", SLIPWAY).into(),
        in_host_mounts: settings.in_host_mounts,
        loads_programs: words.has("--node-setup"),
        cache: None,
    };
    let taint = |text: &str| -> Result<StartupTaint, String> {
        text.parse().map_err(|error| format!("--remove-taint {text:?}: {error}"))
    };
    let startup_taints = words.values("--remove-taint").map(taint).collect::<Result<_, _>>()?;
    let listen = match text("--listen", server::ADDRESS).as_str() {
        "none" => None,
        address => {
            Some(address.parse().map_err(|_| format!("--listen {address:?} is not ADDRESS:PORT or none"))?)
        }
    };
    let removes_conflist = words.has("--remove-conflist");
    let garbage = garbage_options::read(words, &settings)?;
    Ok(Given { settings, access, program, removes_conflist, startup_taints, listen, garbage })
}

/// The settings of encryption; none without it.
fn encryption(words: &slipway_cli::Given, cluster_cidrs: &[IpNet]) -> Result<Option<Encryption>, String> {
    const PATH: &str = "WireGuard is the path to all nodes";
    /// Options that have no effect with WireGuard, or that would break the traffic of nodes with pods.
    const EXCLUDED: [(&str, &str); 4] = [
        ("--tunnel", PATH),
        ("--vxlan-vni", PATH),
        ("--vxlan-port", PATH),
        (
            "--node-cidr",
            "a node's replies to pods come by WireGuard, which accepts the addresses of pods only",
        ),
    ];
    if words.value("--encrypt") != Some("wireguard") {
        return match words.has("--wireguard-port") {
            true => Err("--wireguard-port is only for --encrypt wireguard".to_owned()),
            false => Ok(None),
        };
    }
    if let Some((name, reason)) = EXCLUDED.iter().find(|(name, _)| words.has(name)) {
        return Err(format!("{name} and --encrypt wireguard exclude each other: {reason}"));
    }
    if cluster_cidrs.is_empty() {
        return Err("--encrypt wireguard needs --cluster-cidr: packets to pods without an encrypted path are refused \
                    there"
            .to_owned());
    }
    let port = match words.value("--wireguard-port") {
        None => NonZeroU16::new(WIREGUARD_PORT),
        Some(text) => text.parse().ok(),
    };
    let bad = || {
        format!(
            "--wireguard-port {:?} is no such number",
            words.value("--wireguard-port").unwrap_or_default()
        )
    };
    Ok(Some(Encryption { port: port.ok_or_else(bad)? }))
}

/// Why the agent ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The node cannot be compared.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The dataplane cannot be watched.
    #[error(transparent)]
    Repair(#[from] RepairError),
}

/// A prefix without host bits.
fn cidr(text: &str) -> Result<IpNet, String> {
    let net: IpNet = text.parse().map_err(|_| "not an address with a prefix length".to_owned())?;
    if net.trunc() == net { Ok(net) } else { Err(format!("it has host bits: {}", net.trunc())) }
}

/// Runs the agent in its directory until `stop` is ready.
///
/// # Errors
/// [`RunError`].
pub(crate) async fn run(
    given: Given,
    run_dir: &RunDir,
    stop: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let Given { settings, access, program, removes_conflist, startup_taints, listen, garbage } = given;
    let settings = Arc::new(settings);
    log::info!("node {}: watching the Nodes of the cluster", settings.node);
    if !settings.accepts_forwarded {
        match settings.with_iptables(|| forward::withdraw(&settings.bridge)) {
            Ok(places) if places.is_empty() => {}
            Ok(_) => log::info!("deleted the rules for {} in FORWARD", settings.bridge),
            Err(error) => log::warn!("delete the rules for {} in FORWARD: {error}", settings.bridge),
        }
    }
    let (snapshots, counters, follow) = source::follow(access.clone());
    let observer = Arc::new(Observer::new(Arc::clone(&settings), counters, program.clone()));
    let (announce, announcements) = watch::channel(Announcement::default());
    let (notices, noticed) = mpsc::channel(NOTICES);
    let mut known = BTreeSet::new();
    let log = RefCell::new(Log::default());
    let done = |snapshot: &Snapshot, report: Result<Report, Failure>| {
        observer.compared(snapshot, &report);
        log.borrow_mut().report(snapshot.synced(), &report);
        if let Ok(report) = report
            && snapshot.synced()
        {
            let now = events::notices(&report, snapshot.nodes(), &settings.node);
            for notice in now.difference(&known) {
                // A full queue has more than may be sent.
                let _dropped = notices.try_send(notice.clone());
            }
            known = now;
            let own = snapshot.nodes().get(&settings.node);
            let new = Announcement::new(own.map(AsRef::as_ref), &report);
            announce.send_if_modified(|old| {
                let differs = *old != new;
                *old = new;
                differs
            });
        }
    };
    let mut repairs = Troubles::default();
    let (own, failed) = (settings.node.clone(), notices.clone());
    let repaired = |repair: &Repair| {
        // A change of iptables may be kube-proxy's, or that of our own plugin.
        let level = if repair.was_needed() { log::Level::Warn } else { log::Level::Debug };
        repair.damages.iter().for_each(|damage| log::log!(level, "{damage}"));
        observer.repaired(repair);
        let restored = repair.restored.iter().flat_map(|done| &done.restored);
        restored.for_each(|line| log::info!("restored {line}"));
        for text in repairs.report(repair.failures().map(|failure| format!("repair: {failure}")).collect()) {
            let _dropped =
                failed.try_send(Notice { node: own.clone(), reason: "RepairFailed".to_owned(), text });
        }
    };
    // A full queue has more Events than may be sent.
    let notice = |reason: &str, text: String| {
        let _dropped =
            notices.try_send(Notice { node: settings.node.clone(), reason: reason.to_owned(), text });
    };
    let mut leftovers = Troubles::default();
    let looked = |sweep: &Sweep| {
        observer.swept(sweep);
        for text in sweep.deleted.iter().map(deleted) {
            log::warn!("{text}");
            notice("GarbageDeleted", text);
        }
        leftovers.report(sweep.troubles.clone());
    };
    let addresses = |change: &Change| match change {
        Change::Exhausted(_) => {
            log::warn!("{change}");
            notice("AddressesExhausted", change.to_string());
        }
        Change::Free(_) | Change::Former(_) => log::info!("{change}"),
    };
    let collect = async {
        match garbage {
            Some(garbage) => garbage::run(garbage, program.clone(), looked).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = agent::run(Arc::clone(&settings), snapshots, stop, done) => ended.map_err(RunError::from),
        // They end with the agent.
        ended = repair::run(program.clone(), std::future::pending(), repaired) => ended.map_err(RunError::from),
        () = follow => Ok(()),
        () = events::follow(access.clone(), settings.node.clone(), noticed) => Ok(()),
        () = announce::follow(access, settings.node.clone(), announcements, startup_taints) => Ok(()),
        () = observe(&observer, run_dir, listen) => Ok(()),
        () = observer.follow_addresses(addresses) => Ok(()),
        () = collect => Ok(()),
    };
    if removes_conflist {
        match conflist::remove(&settings.conflist) {
            Ok(true) => log::info!("removed {}", settings.conflist.display()),
            Ok(false) => {}
            Err(error) => log::warn!("{error}"),
        }
    }
    ended
}

/// The message about an attachment that was deleted.
fn deleted(attachment: &Attachment) -> String {
    let (network, id, interface) = (attachment.network(), attachment.container_id(), attachment.ifname());
    format!(
        "deleted what pod sandbox {id} had in network {network} ({interface}): its runtime no longer lists it"
    )
}

/// Receives reports of plugins and replies to requests, without end.
async fn observe(observer: &Arc<Observer>, run_dir: &RunDir, listen: Option<SocketAddr>) {
    let receive = async {
        match bind(Path::new(report::SOCKET), |path| UnixDatagram::bind(path)) {
            Ok(socket) => observer.receive(socket).await,
            Err(error) => log::warn!("calls of plugins are not counted: bind {}: {error}", report::SOCKET),
        }
    };
    let socket = run_dir.socket();
    let address = async {
        if let Some(address) = listen {
            server::serve_address(Arc::clone(observer), address).await;
        }
    };
    tokio::join!(receive, address, server::serve_socket(Arc::clone(observer), &socket));
}

/// Logs each trouble once until it is gone.
#[derive(Debug, Default)]
struct Troubles(BTreeSet<String>);

impl Troubles {
    /// Takes the present troubles, and returns the new ones.
    fn report(&mut self, now: BTreeSet<String>) -> Vec<String> {
        let new: Vec<String> = now.difference(&self.0).cloned().collect();
        new.iter().for_each(|trouble| log::warn!("{trouble}"));
        self.0.difference(&now).for_each(|trouble| log::info!("no longer: {trouble}"));
        self.0 = now;
        new
    }
}

/// Logs comparisons.
#[derive(Debug, Default)]
struct Log {
    troubles: Troubles,
    is_synced: bool,
}

impl Log {
    fn report(&mut self, synced: bool, report: &Result<Report, Failure>) {
        if synced && !self.is_synced {
            log::info!("the list of Nodes is complete");
        }
        self.is_synced = synced;
        let _new = self.troubles.report(match report {
            Ok(report) => {
                report.changes.iter().for_each(|change| log::info!("{change}"));
                // An incomplete list is no reason to complain.
                report.troubles().filter(|_| synced).collect()
            }
            Err(failure) => [failure.to_string()].into(),
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cli::PROGRAM;

    pub(crate) fn given(words: &str) -> Result<Given, String> {
        let args: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let words = slipway_cli::parse(PROGRAM.find(crate::RUN).unwrap(), &args);
        read(&words.map_err(|stop| format!("{stop:?}"))?)
    }

    #[test]
    fn the_server_listens_where_it_is_asked_to() {
        let listen = |words: &str| given(words).map(|given| given.listen.map(|address| address.to_string()));
        assert_eq!(listen("--node-name a"), Ok(Some("127.0.0.1:9254".to_owned())));
        assert_eq!(listen("--node-name a --listen none"), Ok(None));
        assert_eq!(listen("--node-name a --listen [::]:80"), Ok(Some("[::]:80".to_owned())));
        let error = "--listen \"localhost:80\" is not ADDRESS:PORT or none";
        assert_eq!(listen("--node-name a --listen localhost:80"), Err(error.to_owned()));
    }

    #[test]
    fn encryption_has_its_port_and_excludes_other_paths() {
        let paths = |words: &str| given(&format!("--node-name a {words}")).map(|given| given.settings.paths);
        let plain = paths("--encrypt none --tunnel always --path-mtu 1400").unwrap();
        assert_eq!((plain.encryption, plain.path_mtu), (None, Some(1400)));
        let wireguard =
            |words: &str| paths(&format!("--encrypt wireguard --cluster-cidr 10.244.0.0/16 {words}"));
        let encryption = |port: u16| Some(Encryption { port: port.try_into().unwrap() });
        assert_eq!(wireguard("").unwrap().encryption, encryption(51820));
        assert_eq!(wireguard("--wireguard-port 7").unwrap().encryption, encryption(7));
        for option in ["--tunnel auto", "--vxlan-vni 1", "--vxlan-port 4789", "--node-cidr 192.168.50.0/24"] {
            let (name, error) = (option.split(' ').next().unwrap(), wireguard(option).unwrap_err());
            assert!(
                error.starts_with(&format!("{name} and --encrypt wireguard exclude each other: ")),
                "{error}"
            );
        }
        for (words, want) in [
            ("--encrypt wireguard", "--encrypt wireguard needs --cluster-cidr"),
            ("--wireguard-port 7", "--wireguard-port is only for --encrypt wireguard"),
            (
                "--encrypt wireguard --cluster-cidr 10.0.0.0/8 --wireguard-port 0",
                "--wireguard-port \"0\" is no",
            ),
            ("--path-mtu 575", "--path-mtu \"575\" is no such number"),
            ("--path-mtu 65536", "--path-mtu \"65536\" is no such number"),
        ] {
            let error = paths(words).unwrap_err();
            assert!(error.starts_with(want), "{words}: {error}");
        }
    }

    #[test]
    fn the_lock_is_next_to_the_file_of_subnets() {
        let temp = tempfile::tempdir().unwrap();
        let given = || given(&format!("--node-name a --subnet-file {}/run/a.json", temp.path().display()));
        let held = given().unwrap().lock().unwrap();
        assert_eq!(held.socket(), temp.path().join("run/slipwayd.sock"));
        assert!(matches!(given().unwrap().lock(), Err(RunDirError::Running(_))));
    }
}
