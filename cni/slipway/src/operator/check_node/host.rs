// SPDX-License-Identifier: GPL-2.0-or-later

//! The state of the host: our own table, rules of other programs, settings, directories.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;
use std::{fs, io};

use cni_dataplane::Error as DataplaneError;
use cni_dataplane::iptables::{self, Variant};
use cni_dataplane::nftables::FlowSearch;
use cni_dataplane::nftables::exempt;
use cni_dataplane::nftables::offload::{self, FlowtableState};
use cni_dataplane::node::{self, OwnTable};
use cni_kernel::AddressFamily;
use cni_kernel::sysctl::{self, SysctlError};
use cni_kernel::tables::{Fill, Neighbours};
use cni_runtime::config::FileVerdict;
use cni_spec::Attachment;
use cni_state::documents::KernelLimit;
use nix::errno::Errno;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access};

use super::sysctls::{self, value_of};
use super::{Finding, State, existing, exists, forward, judged, owners};
use crate::operator::limits::{self, Room};
use crate::operator::restore::{self, Difference, Differences};
use cni_plugins::node_defaults::NodeDefaults;

/// The directory of host-local's reservations, without `dataDir`.
const STATE_DIR: &str = "/var/lib/cni/networks";
/// The fill of a kernel's table that is worth a warning, in percent.
const FULL_PERCENT: u64 = 80;
/// Free bytes and inodes below which a reservation may soon fail.
const LITTLE_SPACE: u64 = 16 << 20;
const FEW_INODES: u64 = 1000;

/// The subject of the findings about neighbours.
const NEIGHBOURS: &str = "neighbours of all namespaces";

/// The number of containers that a finding names.
const NAMED: usize = 3;

/// All findings about the host.
pub(super) fn findings(settings: &NodeDefaults, networks: &[FileVerdict]) -> Vec<Finding> {
    let mut found = Vec::new();
    let unread = |subject: &str, error: &dyn Display| {
        Finding::unread(subject, &error)
            .reason("it is unknown whether something that running containers need is missing")
            .fix("see the error")
    };
    // Without the runtime's cache the table itself can still be judged.
    let differences = restore::differences().unwrap_or_else(|error| {
        found.push(unread("running containers", &error));
        Differences::default()
    });
    found.extend(differences.unread.iter().map(|(subject, error)| unread(subject, error)));
    found.push(own_table(&differences));
    found.extend(unexpected(&differences));
    found.extend(owners::gone());
    found.extend(flowtable(settings));
    found.extend(not_masqueraded(settings));
    found.extend(forward::findings());
    found.push(iptables());
    found.extend(foreign_tables());
    found.extend(sysctls::findings(Path::new(sysctl::DIRECTORY)));
    found.extend(flows());
    found.extend(room(&Room::of(networks), Path::new(sysctl::DIRECTORY)));
    found.extend(neighbours());
    found.extend(flow_writer(Path::new("/proc"), settings.flow_search));
    found.push(state_dir(Path::new(STATE_DIR)));
    found
}

fn own_table(differences: &Differences) -> Finding {
    let (name, schema) = node::own_table_name();
    let what = format!("table {name}");
    let table = node::own_table();
    let lost = match &table {
        Ok(OwnTable::Ready) => lost(differences, None).map(|lost| format!("lacks {lost}")),
        Ok(OwnTable::Absent) => {
            lost(differences, Some("the guard of the node's loopback")).map(|lost| format!("missing: {lost}"))
        }
        _ => None,
    };
    if let Some(lost) = lost {
        return Finding::new(what, State::Warning, lost)
            .reason("published ports do not answer, or containers are not masqueraded")
            .fix("`slipway restore`");
    }
    match table {
        Ok(OwnTable::Ready) => Finding::ok(what, format!("exists, schema {schema}")),
        Ok(OwnTable::Absent) => Finding::ok(what, "does not exist yet")
            .reason("the first container with a published port creates it"),
        Ok(OwnTable::Damaged) => {
            Finding::new(what, State::Warning, "changed by another program, or of an older version")
                .reason("published ports may not answer")
                .fix("`slipway restore`, or the next container that is added, repairs it")
        }
        Err(error) => {
            let found = match error {
                DataplaneError::Kernel { .. } => Finding::unread(what, &error),
                _ => Finding::new(what, State::Missing, error.to_string()),
            };
            found.reason("published ports and masquerade are its elements").fix("see the error")
        }
    }
}

/// Describes the missing rules of running containers; none if nothing is missing. `of_table` describes what is lost
/// with the table itself.
fn lost(differences: &Differences, of_table: Option<&str>) -> Option<String> {
    let of_table = of_table.filter(|_| differences.table).map(str::to_owned);
    let rules = differences.objects.iter().filter(|object| object.is_rules);
    let owners: BTreeSet<&Attachment> = rules.flat_map(|object| &object.owners).collect();
    let rules = (!owners.is_empty()).then(|| format!("the rules of {}", named(&owners)));
    let parts: Vec<String> = of_table.into_iter().chain(rules).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The first of some containers, and the number of the others.
fn named(owners: &BTreeSet<&Attachment>) -> String {
    let names: Vec<String> = owners.iter().take(NAMED).map(ToString::to_string).collect();
    match owners.len() - names.len() {
        0 => names.join(", "),
        more => format!("{}, and of {more} others", names.join(", ")),
    }
}

/// A finding for each object that running containers need besides their rules, and that is missing or different.
fn unexpected(differences: &Differences) -> Vec<Finding> {
    let objects = differences.objects.iter().filter(|object| !object.is_rules);
    let finding = |object: &Difference| {
        let owners: BTreeSet<&Attachment> = object.owners.iter().collect();
        Finding::new(&object.item, State::Warning, &object.found)
            .reason(format!("needed by {}", named(&owners)))
            .fix(object.remedy.as_str())
    };
    objects.map(finding).collect()
}

/// The flowtable, if the node's settings ask for one or one exists.
fn flowtable(settings: &NodeDefaults) -> Vec<Finding> {
    const WHAT: &str = "flowtable";
    judged(WHAT, offload::state(), |present| match (settings.flowtable.is_some(), present) {
        (false, FlowtableState::None) => None,
        (false, FlowtableState::At(_)) => Some(
            Finding::new(WHAT, State::Note, "exists, but slipway.json no longer asks for it")
                .reason("the next container that is added removes it"),
        ),
        (true, FlowtableState::At(links)) => {
            Some(Finding::ok(WHAT, format!("for {}, at {}", offload::protocols(), links.join(", "))))
        }
        (true, FlowtableState::None) => Some(match offload::try_out().err() {
            None => {
                Finding::ok(WHAT, "does not exist yet").reason("the next container that is added creates it")
            }
            Some(error) => Finding::new(WHAT, State::Warning, error.to_string())
                .reason("slipway.json asks for it; without it every packet goes through all chains")
                .fix("a kernel (or its modules) with NF_FLOW_TABLE, NF_FLOW_TABLE_INET, NFT_FLOW_OFFLOAD"),
        }),
    })
}

/// The node's networks that are exempt from masquerade, and the containers that were added with another list.
fn not_masqueraded(settings: &NodeDefaults) -> Vec<Finding> {
    const WHAT: &str = "networks that are not masqueraded";
    let networks = &settings.non_masquerade;
    if networks.is_empty() {
        return Vec::new();
    }
    let names: Vec<String> = networks.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    judged(WHAT, exempt::containers_without(networks), |others| {
        [match others {
            0 => Finding::ok(WHAT, names),
            count => {
                Finding::new(WHAT, State::Warning, format!("{names}; containers with another list: {count}"))
                    .reason("they reach these networks with an address of the node")
                    .fix("`slipway restore`")
            }
        }]
    })
}

/// The variant of iptables that the iptables backend uses here. It is tried, as STATUS does.
fn iptables() -> Finding {
    let what = "backend iptables";
    let why = "published ports, masquerade and firewall with \"backend\": \"iptables\"";
    let note = |error: DataplaneError| {
        let found = match error {
            DataplaneError::Kernel { .. } => Finding::unread(what, &error),
            _ => Finding::new(what, State::Note, error.to_string()),
        };
        found
            .reason(why)
            .fix("nothing to do unless a network uses that backend; without a choice, nftables is used")
    };
    let (variant, chains) = match (iptables::working_variant(), iptables::containers_places()) {
        (Ok(variant), Ok(chains)) => (variant, chains),
        (Err(error), _) | (_, Err(error)) => return note(error),
    };
    let mut with: Vec<Variant> = chains.iter().map(|place| place.variant).collect();
    with.sort_unstable();
    with.dedup();
    match with.as_slice() {
        [] => Finding::ok(what, format!("iptables-{variant}")),
        [one] => Finding::ok(what, format!("iptables-{one}, which has chains of containers")),
        _ => Finding::new(what, State::Warning, "chains of containers in both iptables-nft and iptables-legacy")
            .reason("new ones are created with iptables-nft; both see every packet")
            .fix("none needed if the older containers are removed; until then use both iptables-nft-save and iptables-legacy-save"),
    }
}

/// Reports conntrackd, because it writes flows into conntrack that our table has not seen.
fn flow_writer(processes: &Path, search: FlowSearch) -> Vec<Finding> {
    const NAME: &str = "conntrackd";
    judged(NAME, runs(processes, NAME), |runs| {
        runs.then(|| match search {
            FlowSearch::Always => Finding::ok(NAME, "runs; conntrack is searched for each UDP port"),
            FlowSearch::Seen => Finding::new(NAME, State::Warning, "runs")
                .reason(
                    "UDP flows that it writes into conntrack may keep their translation when a port is published",
                )
                .fix("\"searchUdpFlows\": \"always\" in /etc/cni/slipway.json"),
        })
    })
}

/// True if one of the processes has this name.
fn runs(processes: &Path, name: &str) -> io::Result<bool> {
    let mut unread = None;
    for entry in fs::read_dir(processes)? {
        let file = entry?.path().join("comm");
        match existing(fs::read(&file)) {
            Ok(Some(found)) if found.trim_ascii_end() == name.as_bytes() => return Ok(true),
            Ok(_) => {}
            // The process ended after its file was opened.
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => {}
            Err(error) => unread = Some(io::Error::new(error.kind(), format!("{}: {error}", file.display()))),
        }
    }
    unread.map_or(Ok(false), Err)
}

fn foreign_tables() -> Vec<Finding> {
    judged("tables of other programs", node::foreign_tables(), |tables| of_tables(&tables))
}

fn of_tables(tables: &[String]) -> Vec<Finding> {
    let known = [
        (
            "inet firewalld",
            "firewalld",
            "its forward chain rejects packets that no zone allows",
            "put the bridge into a zone: firewall-cmd --permanent --zone=trusted --add-interface=BRIDGE",
        ),
        (
            "ip cni_hostport",
            "the reference portmap plugin",
            "its published ports stay when slipway deletes their containers",
            "drain the node before switching it over, or delete the table afterwards",
        ),
        (
            "ip6 cni_hostport",
            "the reference portmap plugin",
            "its published ports stay when slipway deletes their containers",
            "drain the node before switching it over, or delete the table afterwards",
        ),
        (
            "inet cni_plugins_masquerade",
            "the reference plugins",
            "their masquerade stays when slipway deletes their containers",
            "drain the node before switching it over, or delete the table afterwards",
        ),
    ];
    let present = known.into_iter().filter(|(name, ..)| tables.iter().any(|table| table == name));
    present
        .map(|(name, who, why, fix)| {
            Finding::new(format!("table {name}"), State::Note, format!("exists, made by {who}"))
                .reason(why)
                .fix(fix)
        })
        .collect()
}

fn flows() -> Vec<Finding> {
    const WHAT: &str = "tracked flows";
    judged(WHAT, Fill::of_flows(), |fill| {
        fill.map(|fill| {
            let state = if fill.reaches(FULL_PERCENT) { State::Warning } else { State::Ok };
            let Fill { entries, limit } = fill;
            Finding::new(WHAT, state, format!("{entries} of at most {limit}"))
                .reason("when the table is full, new connections are dropped")
                .fix("raise net.netfilter.nf_conntrack_max")
        })
    })
}

/// The containers that the networks have room for, and the kernel limit that is reached first.
fn room(room: &Room, settings: &Path) -> Vec<Finding> {
    const WHAT: &str = "room for containers";
    if room.networks.is_empty() {
        return Vec::new();
    }
    let read = || {
        let flows = value_of(settings, "net/netfilter/nf_conntrack_max")?;
        Ok::<_, SysctlError>((
            limits::read(settings, room)?,
            flows.and_then(|flows| flows.parse::<u64>().ok()),
        ))
    };
    judged(WHAT, read(), |(limits, flows)| [of_room(WHAT, room, &limits, flows)])
}

fn of_room(what: &str, room: &Room, limits: &[KernelLimit], flows: Option<u64>) -> Finding {
    let words = format!("{} ({})", room.containers, room.words());
    let first = limits
        .iter()
        .filter_map(|limit| Some((limit.enough_for?, limit)))
        .filter(|(enough_for, limit)| *enough_for < room.containers && limit.value < limit.wanted)
        .min_by_key(|(enough_for, _)| *enough_for);
    let flows = flows
        .map(|flows| format!("conntrack has room for {} flows of each", flows / room.containers.max(1)))
        .unwrap_or_default();
    match first {
        None => Finding::ok(what, words).reason(flows),
        Some((enough_for, limit)) => Finding::new(
            what,
            State::Warning,
            format!("{words}; {} = {} is enough for {enough_for}", limit.setting, limit.value),
        )
        .reason(limits::consequence(limit))
        .fix(format!(
            "`slipway node limits`; to keep it after a reboot, {} = {} in a file below /etc/sysctl.d",
            limit.setting, limit.wanted
        )),
    }
}

/// The tables of neighbours, if one is almost full or was.
fn neighbours() -> Vec<Finding> {
    let of = |family| {
        judged(NEIGHBOURS, Neighbours::of(family), |table| {
            table.and_then(|table| neighbour_table(table, Neighbours::setting(family)))
        })
    };
    AddressFamily::BOTH.into_iter().flat_map(of).collect()
}

fn neighbour_table(table: Neighbours, setting: &str) -> Option<Finding> {
    let Neighbours { fill, refused } = table;
    if refused == 0 && !fill.reaches(FULL_PERCENT) {
        return None;
    }
    let Fill { entries, limit } = fill;
    let setting = setting.replace('/', ".");
    let found =
        format!("{entries} of at most {limit}; {refused} packets had no room since the node has booted");
    Some(
        Finding::new(NEIGHBOURS, State::Warning, found)
            .reason("each running container of a bridge takes one on the node, and each pair of containers that talk two")
            .fix(format!("sysctl -w {setting}={}, and set it in /etc/sysctl.d", (limit * 4).max(16_384))),
    )
}

fn state_dir(path: &Path) -> Finding {
    let what = format!("state directory {}", path.display());
    let why = "host-local's reservations are there";
    // host-local creates the directory for the first container, hence its parent counts.
    let existing = path.ancestors().find_map(|ancestor| match exists(ancestor) {
        Ok(there) => there.then_some(Ok(ancestor)),
        Err(error) => Some(Err(error)),
    });
    let existing = match existing {
        Some(Ok(existing)) => existing,
        Some(Err(error)) => return Finding::unread(what, &error).reason(why),
        None => return Finding::new(what, State::Missing, "no parent directory"),
    };
    if let Err(errno) = access(existing, AccessFlags::W_OK | AccessFlags::X_OK) {
        return Finding::new(
            what,
            State::Missing,
            format!("{} cannot be written: {errno}", existing.display()),
        )
        .reason(why)
        .fix("mount it writable, or set ipam.dataDir");
    }
    let status = match statvfs(existing) {
        Ok(status) => status,
        Err(errno) => return Finding::unread(what, &errno).reason(why),
    };
    if status.flags().contains(FsFlags::ST_RDONLY) {
        return Finding::new(what, State::Missing, "on a read-only file system")
            .reason(why)
            .fix("mount it writable, or set ipam.dataDir");
    }
    let bytes = status.blocks_available().saturating_mul(status.fragment_size());
    let inodes = status.files_available();
    // Some file systems create inodes when they need them, and report none.
    if bytes < LITTLE_SPACE || (status.files() > 0 && inodes < FEW_INODES) {
        let found = format!("{} KiB and {inodes} inodes are free", bytes >> 10);
        return Finding::new(what, State::Warning, found)
            .reason(why)
            .fix("free some space on that file system");
    }
    let found = if existing == path { "writable" } else { "does not exist yet, can be created" };
    Finding::ok(what, found).reason(why)
}

#[cfg(test)]
mod tests {
    use cni_state::documents::NetworkRoom;

    use super::*;
    use crate::operator::check_node::tests::is_unread;

    #[test]
    fn a_directory_that_can_be_created_is_ok() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(state_dir(dir.path()).state, State::Ok);
        let inner = state_dir(&dir.path().join("a/b"));
        assert_eq!((inner.state, inner.found.as_str()), (State::Ok, "does not exist yet, can be created"));
        std::os::unix::fs::symlink("circle", dir.path().join("circle")).unwrap();
        is_unread(&[state_dir(&dir.path().join("circle/a"))]);
    }

    #[test]
    fn a_table_of_neighbours_that_is_almost_full_or_was_is_named() {
        let judge = |entries, refused| {
            neighbour_table(
                Neighbours { fill: Fill { entries, limit: 1024 }, refused },
                "net/ipv4/neigh/default/gc_thresh3",
            )
        };
        // 820 of 1,024 are 80 %.
        let full = judge(820, 1).unwrap();
        assert!(full.found.starts_with("820 of at most 1024; 1 packets"), "{full:?}");
        assert!(full.fix.contains("net.ipv4.neigh.default.gc_thresh3=16384"), "{full:?}");
        assert_eq!(judge(76, 2).unwrap().state, State::Warning);
        assert_eq!(judge(76, 0), None);
    }

    #[test]
    fn a_running_conntrackd_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("17")).unwrap();
        fs::write(dir.path().join("17/comm"), "conntrack\n").unwrap();
        fs::create_dir_all(dir.path().join("sys")).unwrap();
        let found = || flow_writer(dir.path(), FlowSearch::Seen);
        assert_eq!(found(), []);
        fs::write(dir.path().join("17/comm"), "conntrackd\n").unwrap();
        assert_eq!((found()[0].state, found()[0].found.as_str()), (State::Warning, "runs"));
        fs::write(dir.path().join("17/comm"), "other\n").unwrap();
        fs::create_dir_all(dir.path().join("18/comm")).unwrap();
        is_unread(&found());
        is_unread(&flow_writer(&dir.path().join("none"), FlowSearch::Seen));
    }

    #[test]
    fn a_limit_that_cannot_be_read_does_not_count_as_enough() {
        let dir = tempfile::tempdir().unwrap();
        let networks = vec![NetworkRoom { name: "a".to_owned(), addresses: Some(9), bridge: None }];
        let small = Room { networks, containers: 9, on_one_bridge: 0 };
        assert_eq!(room(&small, dir.path())[0].state, State::Ok);
        for name in ["net/ipv4/neigh/default/gc_thresh3", "net/netfilter/nf_conntrack_max"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            is_unread(&room(&small, dir.path()));
            fs::remove_dir(dir.path().join(name)).unwrap();
        }
    }
}
