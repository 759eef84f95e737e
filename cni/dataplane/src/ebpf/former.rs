// SPDX-License-Identifier: GPL-2.0-or-later

//! Removes the programs that decided about flows themselves, which versions before the first release had.
//!
//! Their flows end, except TCP connections to published ports, which conntrack picks up.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;

use aya::maps::{Array, Map, MapData, MapError};
use aya::programs::tc::{SchedClassifierLink, TcHandle};
use aya::programs::{Link as _, ProgramInfo, SchedClassifier, TcAttachType, loaded_programs};
use cni_kernel::bpf;
use cni_kernel::route::{Link, RouteSocket};
use cni_nftables::Transaction;

use super::{error, netns_cookie};
use crate::Error;
use crate::nftables::schema::{self, SharedChain};
use crate::nftables::session::Session;
use crate::owned_table::{unchanged, unless_no_nf_tables};

/// Their pins: maps, programs, and links to control groups, which end with their pins.
const FOLDER: &str = "/sys/fs/bpf/slipway";
/// The map in the folder of each layout that begins with the cookie of the network namespace.
const CONFIG: &str = "config";
const CONFIG_SIZE: usize = 88;
/// Priority and handle of their filters.
const PRIORITY: u16 = 0x534c;
const NUMBER: u16 = 1;
/// The program at containers' links.
const OF_CONTAINER: &str = "pod_ingress";
/// The programs at uplinks.
const OF_UPLINK: [&str; 2] = ["uplink_ingress", "uplink_l3"];
/// The chain that kept their source ports free.
const CHAIN: &str = "spare-ports";

/// True if this node has pins of such programs.
pub(super) fn is_there() -> bool {
    Path::new(FOLDER).is_dir()
}

/// Removes the programs, and returns the links of their containers by index. One system call where there are none.
///
/// # Errors
/// [`Error::Kernel`] if links cannot be listed, or something cannot be removed; [`Error::NoEbpf`] if the programs serve
/// another network namespace.
pub(super) fn remove() -> Result<Vec<u32>, Error> {
    if !is_there() {
        return Ok(Vec::new());
    }
    refuse_abroad()?;
    let failed = |e| Error::kernel("look for links with former BPF programs", e);
    let socket = RouteSocket::open().map_err(failed)?;
    let mut containers = Vec::new();
    for link in socket.links().map_err(failed)? {
        let Some(program) = detach(&socket, &link)? else { continue };
        log::info!("detached the former BPF program {program} from {}", link.name);
        if program == OF_CONTAINER {
            containers.push(link.index);
        }
    }
    if let Err(error) = remove_chain() {
        log::warn!("{error}");
    }
    // Last: a call that was killed before is continued by the next one.
    match fs::remove_dir_all(FOLDER) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::kernel(format!("remove {FOLDER}"), e)),
        _ => Ok(containers),
    }
}

/// Refuses to work from another network namespace than the programs' own.
///
/// # Errors
/// [`Error::NoEbpf`] with a remedy.
pub(super) fn refuse_abroad() -> Result<(), Error> {
    let here = netns_cookie::of_this_namespace();
    let layouts = fs::read_dir(FOLDER).into_iter().flatten().filter_map(Result::ok);
    // An interrupted set-up has made no such map.
    let mut homes = layouts.filter_map(|layout| cookie(&layout.path().join(CONFIG)).ok());
    if here == 0 || homes.all(|home| home == 0 || home == here) {
        return Ok(());
    }
    Err(Error::NoEbpf(format!(
        "former BPF programs serve another network namespace, from which they have to be removed (if that one is \
         gone, `rm -r {FOLDER}` removes them)"
    )))
}

fn cookie(config: &Path) -> Result<u64, MapError> {
    let map = Map::from_map_data(MapData::from_pin(config)?)?;
    let config: [u8; CONFIG_SIZE] = Array::try_from(map)?.get(&0, 0)?;
    Ok(config.first_chunk().map_or(0, |cookie| u64::from_ne_bytes(*cookie)))
}

/// Detaches such a program from an interface, and returns its name; none if there is none.
fn detach(socket: &RouteSocket, link: &Link) -> Result<Option<String>, Error> {
    let gone = |e| Error::kernel(format!("look for former BPF programs at {}", link.name), e);
    match socket.program_at(link.index, PRIORITY, NUMBER.into()) {
        Ok(None) => {}
        Ok(Some(id)) => {
            let program = loaded_programs().filter_map(Result::ok).find(|program| program.id() == id);
            let Some(name) = program.as_ref().and_then(name_of) else { return Ok(None) };
            let handle = TcHandle::new(0, NUMBER);
            SchedClassifierLink::attached(&link.name, TcAttachType::Ingress, PRIORITY, handle, None)
                .map_err(|e| Error::kernel(format!("find interface {}", link.name), e))?
                .detach()
                .map_err(|e| error::failed(format!("detach {name} from {}", link.name), e))?;
            return Ok(Some(name));
        }
        // A link may be removed at any time.
        Err(e) if e.is_not_found() => return Ok(None),
        Err(e) => return Err(gone(e)),
    }
    // Fails before Linux 6.6.
    let Ok((_, all)) = SchedClassifier::query_tcx(&link.name, TcAttachType::Ingress) else { return Ok(None) };
    let Some((program, name)) = all.into_iter().find_map(|one| name_of(&one).map(|name| (one, name))) else {
        return Ok(None);
    };
    let fd = program.fd().map_err(|e| error::failed(format!("open {name} of {}", link.name), e))?;
    bpf::detach_ingress(link.index, fd.as_fd())
        .map_err(|e| Error::kernel(format!("detach {name} from {}", link.name), e))?;
    Ok(Some(name))
}

/// The name of a program, if it is one of them.
fn name_of(program: &ProgramInfo) -> Option<String> {
    let name = program.name_as_str().filter(|name| *name == OF_CONTAINER || OF_UPLINK.contains(name))?;
    Some(name.to_owned())
}

/// Removes the chain from our table.
fn remove_chain() -> Result<(), Error> {
    let removed = Session::open().and_then(|session| {
        session.transact(&format!("remove chain {CHAIN}"), |_| {
            if session.chain(CHAIN)?.is_none() {
                return unchanged(());
            }
            let (shared, layout) = (session.shared_chains()?, session.layout()?);
            let masquerading =
                || shared.iter().filter(|chain| matches!(chain, SharedChain::Masquerade { .. }));
            let mut batch = Transaction::new();
            for chain in masquerading() {
                batch.flush_chain(&session.table, &chain.name());
            }
            batch.flush_chain(&session.table, CHAIN).delete_chain(&session.table, CHAIN);
            for chain in masquerading() {
                schema::add_rules(&mut batch, &chain.name(), chain.rules(layout));
            }
            Ok((batch, ()))
        })
    });
    unless_no_nf_tables(removed)
}
