// SPDX-License-Identifier: GPL-2.0-or-later

//! The features of the kernel, probed in a network namespace of their own.

use std::io;
use std::path::Path;

use cni_dataplane::ebpf::{self, Status};
use cni_dataplane::node::{self, Feature, Need};
use cni_dataplane::{BackendName, Error};
use cni_kernel::is_transient;
use cni_kernel::netns::Netns;
use cni_kernel::route::{NewBridge, NewVeth, RouteError, RouteSocket, VlanFiltering};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use nix::sys::utsname::uname;

use super::{Finding, State, existing, exists, judged};
use cni_plugins::node_defaults::NodeDefaults;

/// Kinds of links that single plugins need, and these plugins.
const OPTIONAL_KINDS: [(&str, &str, &str); 6] = [
    ("macvlan", "the macvlan plugin", "MACVLAN"),
    ("ipvlan", "the ipvlan plugin", "IPVLAN"),
    ("vlan", "the vlan plugin", "VLAN_8021Q"),
    ("dummy", "the dummy plugin", "DUMMY"),
    ("vrf", "the vrf plugin", "NET_VRF"),
    ("ifb", "the bandwidth plugin", "IFB"),
];

/// All findings about the kernel.
pub(super) fn findings(settings: &NodeDefaults, programs: &Result<Status, Error>) -> Vec<Finding> {
    let mut found = judged("kernel", uname(), |name| {
        let (release, machine) = (name.release().to_string_lossy(), name.machine().to_string_lossy());
        [Finding::new("kernel", State::Note, format!("Linux {release} {machine}"))]
    });
    let tried = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, in_own_namespace);
        thread.map_or_else(
            |error| Ok(Err(Errno::from_raw(error.raw_os_error().unwrap_or_default()))),
            std::thread::ScopedJoinHandle::join,
        )
    });
    match tried {
        Ok(Ok(more)) => found.extend(more),
        Ok(Err(errno)) if is_transient(errno) => found.push(
            Finding::unread("a network namespace for probes", &errno)
                .reason("without one the kernel cannot be probed")
                .fix("run this again when the system has more memory, descriptors or threads"),
        ),
        Ok(Err(errno)) => found.push(
            Finding::new("a network namespace for probes", State::Missing, errno.to_string())
                .reason("without one the kernel cannot be probed, and no container can have one")
                .fix("run this as root, outside of containers that forbid it; CONFIG_NET_NS"),
        ),
        Err(_) => found.push(Finding::new("kernel features", State::Missing, "the probe failed")),
    }
    found.extend(bpf(settings, programs));
    found
}

fn in_own_namespace() -> Result<Vec<Finding>, Errno> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    let mut found = match node::features() {
        Ok(features) => features.iter().map(feature).collect(),
        Err(error) => vec![
            Finding::new("nf_tables", State::Missing, error.to_string())
                .reason("published ports and masquerade are rules and elements of it")
                .fix("run this as root"),
        ],
    };
    match links() {
        Ok(links) => found.extend(links),
        Err(error) => found.push(Finding::new("links", State::Missing, error.to_string())),
    }
    Ok(found)
}

fn feature(feature: &Feature) -> Finding {
    let Some(failure) = &feature.failure else {
        return Finding::ok(feature.name, "works").reason(feature.why);
    };
    let state = if feature.need == Need::Required { State::Missing } else { State::Warning };
    Finding::new(feature.name, state, failure)
        .reason(feature.why)
        .fix(format!("a kernel (or its modules) with {}", feature.options))
}

fn links() -> Result<Vec<Finding>, RouteError> {
    let socket = RouteSocket::open()?;
    let netns = Netns::current().map_err(|source| RouteError::Netns {
        action: "open the probes' own namespace".to_owned(),
        source,
    })?;
    let veth = NewVeth {
        name: "probe0",
        mac: None,
        peer_name: "probe1",
        peer_mac: None,
        peer_netns: &netns,
        mtu: None,
    };
    let bridge = NewBridge { name: "probe2", mac: None, mtu: None, vlan_filtering: VlanFiltering::Off };
    let filtering = NewBridge { name: "probe3", vlan_filtering: VlanFiltering::On, ..bridge };
    let mut found = vec![
        made(
            "veth links",
            State::Missing,
            "every container's link to the node",
            "VETH",
            socket.create_veth(&veth),
        ),
        made("bridges", State::Missing, "the bridge plugin", "BRIDGE", socket.create_bridge(&bridge)),
        made(
            "bridges, VLAN filtering",
            State::Warning,
            "the bridge plugin's keys vlan and vlanTrunk",
            "BRIDGE_VLAN_FILTERING",
            socket.create_bridge(&filtering),
        ),
    ];
    for (kind, why, option) in OPTIONAL_KINDS {
        let what = format!("{kind} links");
        found.push(match socket.knows_kind(kind) {
            Ok(true) => Finding::ok(what, "works").reason(why),
            Ok(false) => Finding::new(what, State::Note, "not in this kernel")
                .reason(format!("only {why} needs them"))
                .fix(format!("a kernel (or its modules) with {option}")),
            Err(error) => Finding::new(what, State::Note, error.to_string()).reason(why),
        });
    }
    found.push(tun());
    Ok(found)
}

/// Tap devices, which are created through a file, not through netlink.
fn tun() -> Finding {
    const DEVICE: &str = "/dev/net/tun";
    let (what, why) = ("tun and tap links", "the tap plugin");
    match exists(Path::new(DEVICE)) {
        Ok(true) => Finding::ok(what, DEVICE).reason(why),
        Ok(false) => Finding::new(what, State::Note, format!("no {DEVICE}"))
            .reason(format!("only {why} needs them"))
            .fix("a kernel (or its modules) with TUN"),
        Err(error) => Finding::unread(what, &error).reason(format!("only {why} needs them")),
    }
}

fn made(what: &str, otherwise: State, why: &str, option: &str, result: Result<(), RouteError>) -> Finding {
    match result {
        Ok(()) => Finding::ok(what, "works").reason(why),
        Err(error) => Finding::new(what, otherwise, error.to_string())
            .reason(why)
            .fix(format!("a kernel (or its modules) with {option}")),
    }
}

/// The BPF programs. Without them nftables serves the containers of the eBPF backend.
fn programs(settings: &NodeDefaults, found: &Result<Status, Error>) -> Vec<Finding> {
    let wanted = [settings.backend, settings.ip_masq_backend].contains(&Some(BackendName::Ebpf));
    let at_uplinks = found.as_ref().ok().and_then(at_uplinks);
    let loaded = programs_loaded(found, if wanted { State::Warning } else { State::Note });
    [Some(loaded), at_uplinks].into_iter().flatten().collect()
}

/// Uplinks that have no program.
fn at_uplinks(status: &Status) -> Option<Finding> {
    let (what, why) = ("BPF programs at uplinks", "nftables serves the flows of the others");
    let left: Vec<String> =
        status.uplinks_without.iter().map(|left| format!("{}: {}", left.name, left.why)).collect();
    if left.is_empty() || !status.is_set_up {
        return None;
    }
    let fix = "`slipway node setup`; or name the uplinks as \"uplinks\" in /etc/cni/slipway.json";
    Some(Finding::new(what, State::Warning, left.join("; ")).reason(why).fix(fix))
}

/// The loaded programs. `otherwise` is the state if there are none.
fn programs_loaded(found: &Result<Status, Error>, otherwise: State) -> Finding {
    let (what, why) = ("BPF programs", "the eBPF backend; nftables serves without them");
    match found {
        Err(error @ Error::NoEbpf(_)) => {
            let fix = "run plugins in the network namespace that the programs serve";
            Finding::new(what, State::Warning, error.to_string()).reason(why).fix(fix)
        }
        // All other findings about the programs come from the same state.
        Err(error) => {
            let fix = "`slipway node teardown`, then `slipway node setup`";
            Finding::unread(what, error).reason(why).fix(fix)
        }
        _ if ebpf::object().is_none() => {
            let fix = "build with `cargo xtask build`, which fetches the compiler";
            Finding::new(what, otherwise, "not in this binary").reason(why).fix(fix)
        }
        Ok(status) if !status.is_set_up => {
            let fix = "the first container with backend ebpf, or `slipway node setup`, loads them";
            match ebpf::try_out() {
                Ok(()) => Finding::new(what, State::Note, "not loaded; this kernel accepts them")
                    .reason(why)
                    .fix(fix),
                Err(error) => Finding::new(what, otherwise, format!("cannot be loaded: {error}"))
                    .reason("containers with backend ebpf are served by nftables")
                    .fix("a kernel of 5.10 or later that lets root load BPF programs"),
            }
        }
        Ok(status) if status.uplinks.is_empty() => {
            let fix =
                "name the interfaces as \"uplinks\" in /etc/cni/slipway.json, then `slipway node setup`";
            Finding::new(what, State::Warning, "loaded, but there is no uplink").reason(why).fix(fix)
        }
        Ok(status) if !status.is_current => {
            let fix = "`slipway node setup` replaces them; flows are kept";
            Finding::new(what, State::Note, "loaded, of another version").reason(why).fix(fix)
        }
        Ok(status) => {
            let found = format!("{} containers, uplinks {}", status.containers, status.uplinks.join(", "));
            Finding::ok(what, found).reason(why)
        }
    }
}

/// The requirements of BPF programs. The nftables backend needs none of them.
fn bpf(settings: &NodeDefaults, status: &Result<Status, Error>) -> Vec<Finding> {
    const WHY: &str = "only the eBPF backend needs it";
    const MOUNT: &str = "/sys/fs/bpf";
    const BTF: &str = "/sys/kernel/btf/vmlinux";
    let finding = |what: &str, path: &str, is_there: io::Result<bool>, fix: &str| match is_there {
        Ok(true) => Finding::ok(what, path).reason(WHY),
        Ok(false) => Finding::new(what, State::Note, "not found").reason(WHY).fix(fix),
        Err(error) => Finding::unread(what, &error).reason(WHY),
    };
    let kind = existing(statfs(MOUNT).map(|status| status.filesystem_type()).map_err(io::Error::from));
    let is_mounted = kind.map(|kind| kind == Some(BPF_FS_MAGIC));
    let mut found = programs(settings, status);
    found.extend([
        finding("BPF file system", MOUNT, is_mounted, "mount -t bpf bpf /sys/fs/bpf"),
        finding(
            "type information of the kernel (BTF)",
            BTF,
            exists(Path::new(BTF)),
            "a kernel with DEBUG_INFO_BTF",
        ),
    ]);
    found
}
