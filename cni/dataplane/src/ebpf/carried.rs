// SPDX-License-Identifier: GPL-2.0-or-later

//! Flows that netfilter checks and the BPF programs carry (`ebpf/programs/src/carried`).
//!
//! nftables has every published port and masquerade. The programs learn from the packets that come out of the
//! kernel's stack, so user space writes no ports and addresses: it attaches the programs, and increments the
//! epoch when rules may have changed.

use std::fs;
use std::path::{Path, PathBuf};

use aya::maps::{Array, Map, MapData};
use aya::programs::tc::SchedClassifierLink;
use aya::programs::{Link as _, SchedClassifier, TcAttachType};
use aya::{EbpfLoader, VerifierLogLevel};
use cni_kernel::route::RouteSocket;
use cni_kernel::sysctl;
use slipway_ebpf_abi::{carried, maps};

use super::{attach, config, error, load, pins, pods, uplinks};
use crate::{ContainerNetns, Error};

/// The folder of the pins.
const FOLDER: &str = "/sys/fs/bpf/slipway-flows";
/// Priority of the filters: after those of programs that decide, which do not run on the same interfaces.
const PRIORITY: u16 = 0x534d;

/// Settings of connection tracking that sees one packet of a direction in each tick. The window check would
/// find such packets invalid, and the shorter timeout of connections with unacknowledged data would apply to
/// idle connections whose last acknowledgment was carried.
const LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";
/// The acknowledgment that conntrack compares a RST with is that of a packet it saw.
const ANY_RST: &str = "net/netfilter/nf_conntrack_tcp_ignore_invalid_rst";
const UNACKNOWLEDGED: &str = "net/netfilter/nf_conntrack_tcp_timeout_unacknowledged";
const ESTABLISHED: &str = "net/netfilter/nf_conntrack_tcp_timeout_established";

/// The administrator's settings, as far as these programs have some.
pub(super) struct Wanted<'a> {
    /// Names of the uplinks; empty: they are found by address and route.
    pub(super) uplinks: &'a [String],
    /// The size of the maps of flows.
    pub(super) flows: u32,
}

fn pin(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// Loads the programs, and attaches them to the uplinks, unless that was done; attaches them to a container's
/// link. Returns false if the container's interface is no veth.
///
/// # Errors
/// [`Error::Kernel`] if a program cannot be loaded or attached.
pub(super) fn attach(wanted: &Wanted<'_>, netns: &ContainerNetns, ifname: &str) -> Result<bool, Error> {
    set_up(wanted)?;
    let Some((link, _)) = pods::host_end(netns, ifname)? else { return Ok(false) };
    // A queueing discipline that limits the rate must see all packets.
    let out = if pods::is_limited(&link)? { carried::EGRESS } else { carried::EGRESS_POD };
    attach_both(&link.name, carried::INGRESS_POD, out)?;
    next_epoch().map(|()| true)
}

/// Loads the programs and attaches them to the uplinks, unless that was done.
fn set_up(wanted: &Wanted<'_>) -> Result<(), Error> {
    // The last pin: a process that is killed before leaves the work to the next ADD.
    if !pin(carried::EGRESS_POD).exists() {
        prepare_conntrack()?;
        load_all(wanted.flows)?;
    }
    let socket = RouteSocket::open().map_err(|e| Error::kernel("reach rtnetlink", e))?;
    let around = uplinks::look(wanted.uplinks).map_err(|e| Error::kernel("look for uplinks", e))?;
    for (index, (name, _)) in around.uplinks {
        let found = socket.program_at(index, PRIORITY, 1);
        if !matches!(found, Ok(Some(_))) {
            attach_both(&name, carried::INGRESS, carried::EGRESS)?;
        }
    }
    Ok(())
}

/// Lets conntrack miss packets, before it misses any. Without connection tracking loaded there are no such settings;
/// nftables has loaded it.
fn prepare_conntrack() -> Result<(), Error> {
    let set = |name: &str, value: &str| {
        sysctl::ensure(name, value).map_err(|e| Error::kernel("let conntrack miss packets", e))
    };
    set(LIBERAL, "1")?;
    // Missing before Linux 5.14.
    if sysctl::get(ANY_RST).is_ok() {
        set(ANY_RST, "1")?;
    }
    if let Ok(timeout) = sysctl::get(ESTABLISHED) {
        set(UNACKNOWLEDGED, &timeout)?;
    }
    Ok(())
}

fn load_all(flows: u32) -> Result<(), Error> {
    let object = config::programs_of_this_binary()?;
    pins::mount_file_system()?;
    pins::make(Path::new(FOLDER))?;
    load::lift_memory_limit();
    let mut loader = EbpfLoader::new();
    loader.verifier_log_level(VerifierLogLevel::DEBUG | VerifierLogLevel::STATS);
    for name in carried::ALL {
        loader.map_pin_path(name, pin(name));
    }
    for name in [carried::CARRIED4, carried::CARRIED6] {
        loader.map_max_entries(name, flows);
    }
    // The maps of the programs that decide, which stay unused.
    for name in
        [maps::FLOWS4, maps::FLOWS6, maps::HALF_OPEN4, maps::HALF_OPEN6, maps::SOCKETS4, maps::SOCKETS6]
    {
        loader.map_max_entries(name, 1);
    }
    let mut ebpf = loader.load(object).map_err(|e| error::failed("load the BPF programs", e))?;
    for name in carried::PROGRAMS {
        let program =
            ebpf.program_mut(name).ok_or_else(|| Error::NoEbpf(format!("no BPF program {name}")))?;
        load::load_one(program)
            .map_err(|e| Error::kernel(format!("load the BPF program {name}"), load::explain(&e)))?;
        match program.pin(pin(name)) {
            Ok(()) => {}
            Err(e) if load::pin_exists(&e) => {}
            Err(e) => return Err(Error::kernel(format!("pin the BPF program {name}"), e)),
        }
    }
    Ok(())
}

fn attach_both(interface: &str, ingress: &str, egress: &str) -> Result<(), Error> {
    attach::add_clsact(interface)?;
    for (name, side) in [(ingress, TcAttachType::Ingress), (egress, TcAttachType::Egress)] {
        let attached = SchedClassifier::from_pin(pin(name))
            .and_then(|mut program| attach::attach_filter(&mut program, interface, side, PRIORITY));
        attached.map_err(|e| error::failed(format!("attach {name} to {interface}"), e))?;
    }
    Ok(())
}

/// True if the programs are loaded.
pub(super) fn is_there() -> bool {
    Path::new(FOLDER).is_dir()
}

/// Detaches the programs from all links, and removes them; true if they were loaded. conntrack has every flow, so none
/// ends; its settings stay.
///
/// # Errors
/// [`Error::Kernel`] if the links cannot be listed, or a pin cannot be removed.
pub(super) fn remove() -> Result<bool, Error> {
    if !is_there() {
        return Ok(false);
    }
    let failed = |e| Error::kernel("list the links with BPF programs", e);
    let links = RouteSocket::open().and_then(|socket| socket.links()).map_err(failed)?;
    for link in links {
        for side in [TcAttachType::Ingress, TcAttachType::Egress] {
            // Most links have none.
            if let Ok(filter) =
                SchedClassifierLink::attached(&link.name, side, PRIORITY, attach::HANDLE, None)
            {
                let _ = filter.detach();
            }
        }
    }
    fs::remove_dir_all(FOLDER).map_err(|e| Error::kernel(format!("remove {FOLDER}"), e))?;
    Ok(true)
}

/// Has netfilter check each flow again. Does nothing on a node without the programs.
///
/// # Errors
/// [`Error::Kernel`] if the map cannot be written: flows are carried for two more ticks then.
pub(super) fn next_epoch() -> Result<(), Error> {
    let path = pin(carried::EPOCH);
    if !path.exists() {
        return Ok(());
    }
    let failed = |e: &dyn std::fmt::Display| Error::kernel("increment the epoch", e.to_string());
    let map = MapData::from_pin(&path).map_err(|e| failed(&e))?;
    let mut map = Array::<_, u32>::try_from(Map::Array(map)).map_err(|e| failed(&e))?;
    // Concurrent processes may write the same number: each has changed the rules before it.
    let next = map.get(&0, 0).map_err(|e| failed(&e))?.wrapping_add(1).max(1);
    map.set(0, next, 0).map_err(|e| failed(&e))
}
