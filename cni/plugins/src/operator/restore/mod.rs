// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway restore`: puts back what running containers have in the ruleset, after a flush.
//!
//! After a flush, only the runtime's cache has what a container asked for. The kernel shows whether the
//! container still runs. Where the two do not agree, nothing is done.

pub(super) mod liveness;
mod report;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni_dataplane::nftables::addresses::{self, Answering};
use cni_dataplane::node::{self, OwnTable};
use cni_runtime::{Cache, Cached, cache};
use cni_spec::{Attachment, NetConf};

use super::cli::{Failure, Given};
use super::json;
use crate::plugin::{Env, Request, Restorable as Belonging};
use crate::registry;
use liveness::{Liveness, Node};
use report::{Row, State};

/// A DEL runs the plugins one after the other, each in its own process, the interface's last. A container
/// that is still attached this long after its ports were restored was not in the middle of one.
const GRACE: Duration = Duration::from_secs(1);
/// The exit code of a dry run that found something missing.
const SOMETHING_MISSING: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Restore,
    DryRun,
}

/// Restores what is missing and prints the outcome. The exit code is 1 if something failed, and 3 if a dry
/// run found something missing.
pub(super) fn run(given: &Given, out: &mut dyn Write, _err: &mut dyn Write) -> Result<u8, Failure> {
    let mode = if given.has("--dry-run") { Mode::DryRun } else { Mode::Restore };
    let directories: Vec<PathBuf> = given.values("--cache-dir").map(PathBuf::from).collect();
    let mut restoration = Restoration::begin(mode, &directories).map_err(Failure::Failed)?;
    restoration.run().map_err(Failure::Failed)?;
    let rows = restoration.rows;
    if given.json() {
        json::print(report::document(&rows), out)?;
    } else {
        report::print(&rows, out)?;
    }
    let is_missing = rows.iter().any(|row| row.state == State::Missing);
    Ok(match (report::is_ok(&rows), is_missing) {
        (false, _) => 1,
        (true, true) => SOMETHING_MISSING,
        (true, false) => 0,
    })
}

/// Something that was restored, to be checked again.
struct Restored {
    /// The index of its row.
    row: usize,
    /// The index of its container.
    container: usize,
    belonging: Box<dyn Belonging>,
}

/// One run of the command.
struct Restoration {
    mode: Mode,
    node: Node,
    caches: Vec<Cache>,
    /// The cached attachments in the order of their ADDs, each with the index of its cache.
    containers: Vec<(usize, Cached)>,
    rows: Vec<Row>,
    restored: Vec<Restored>,
}

impl Restoration {
    /// Reads the caches: those that are named, or else those in the usual places.
    fn begin(mode: Mode, directories: &[PathBuf]) -> Result<Self, String> {
        let node = Node::open()?;
        let (mut caches, mut rows) = (Vec::new(), Vec::new());
        for directory in directories {
            let cache = Cache::open(directory).map_err(|e| e.to_string())?;
            caches.push(cache.ok_or_else(|| no_cache(&[directory.as_path()]))?);
        }
        if directories.is_empty() {
            let usual = cache::DIRECTORIES.map(Path::new);
            for directory in usual {
                caches.extend(Cache::open(directory).map_err(|e| e.to_string())?);
            }
            if caches.is_empty() {
                let reason = format!("{}: no container is known", no_cache(&usual));
                rows.push(Row::new(None, "containers", State::Skipped, reason));
            }
        }
        let mut containers = Vec::new();
        for (number, cache) in caches.iter().enumerate() {
            let (cached, faults) = cache.read().map_err(|e| e.to_string())?;
            containers.extend(cached.into_iter().map(|one| (number, one)));
            rows.extend(faults.into_iter().map(|fault| {
                let file = format!("cache file {}", fault.path.display());
                Row::new(None, file, State::Skipped, fault.error.to_string())
            }));
        }
        Ok(Self { mode, node, caches, containers: newest(containers), rows, restored: Vec::new() })
    }

    fn run(&mut self) -> Result<(), String> {
        let row = self.table()?;
        self.rows.extend(row);
        for place in 0..self.containers.len() {
            self.container(place);
        }
        if !self.restored.is_empty() {
            let since = Instant::now();
            self.check_again();
            std::thread::sleep(GRACE.saturating_sub(since.elapsed()));
            self.check_again();
        }
        Ok(())
    }

    /// Restores the table itself, and with it the guard of the node's loopback: it must exist while
    /// `route_localnet` is on for a link, whatever the containers have.
    fn table(&self) -> Result<Option<Row>, String> {
        let row = |state, reason: String| {
            Some(Row::new(None, format!("table {}", node::own_table_name().0), state, reason))
        };
        let reason = match node::own_table() {
            Ok(OwnTable::Ready) if matches!(addresses::answering(), Ok(Answering::Outdated)) => {
                "the list of the addresses that published ports answer at was not up to date"
            }
            Ok(OwnTable::Ready) => return Ok(row(State::Present, String::new())),
            Ok(OwnTable::Absent) if !self.node.opens_its_loopback()? => return Ok(None),
            Ok(OwnTable::Absent) => {
                "it was gone, and with it the guard of the node's loopback, while route_localnet is on"
            }
            Ok(OwnTable::Damaged) => {
                "its chains were emptied, changed or unhooked, or it is of an older version"
            }
            Err(cni_dataplane::Error::NoNfTables(_)) => return Ok(None),
            Err(error) => return Ok(row(State::Failed, error.to_string())),
        };
        if self.mode == Mode::DryRun {
            return Ok(row(State::Missing, reason.to_owned()));
        }
        Ok(match node::repair_own_table() {
            Ok(()) => row(State::Restored, reason.to_owned()),
            Err(error) => row(State::Failed, error.to_string()),
        })
    }

    /// Restores what one container has, if it still runs.
    fn container(&mut self, place: usize) {
        let Some((_, cached)) = self.containers.get(place) else { return };
        let owner = cached.attachment.clone();
        let row = |state, reason| Row::new(Some(owner), "container", state, reason);
        let belongings = match self.node.liveness(cached) {
            Err(reason) => return self.rows.push(row(State::Failed, reason)),
            Ok(Liveness::Gone(reason)) => return self.rows.push(row(State::Skipped, reason)),
            Ok(Liveness::Attached) => match belongings(cached) {
                Err(reason) => return self.rows.push(row(State::Failed, reason)),
                Ok(belongings) => belongings,
            },
        };
        for belonging in belongings {
            let row = self.restore(place, belonging.as_ref());
            let is_restored = row.state == State::Restored;
            self.rows.push(row);
            if is_restored {
                let row = self.rows.len() - 1;
                self.restored.push(Restored { row, container: place, belonging });
            }
        }
    }

    fn restore(&self, place: usize, belonging: &dyn Belonging) -> Row {
        let owner = self.containers.get(place).map(|(_, cached)| cached.attachment.clone());
        let row = |state, reason| Row::new(owner, belonging.name(), state, reason);
        let Err(difference) = belonging.check() else { return row(State::Present, String::new()) };
        if self.mode == Mode::DryRun {
            return row(State::Missing, difference.to_string());
        }
        match belonging.put_back() {
            Ok(()) => row(State::Restored, difference.to_string()),
            Err(error) => row(State::Failed, error.to_string()),
        }
    }

    /// Removes what was restored for containers that were deleted concurrently.
    fn check_again(&mut self) {
        let Self { node, caches, containers, rows, restored, .. } = self;
        restored.retain(|one| {
            let Some((number, cached)) = containers.get(one.container) else { return false };
            let is_cached = caches.get(*number).map(|cache| cache.remembers(&cached.attachment));
            let is_attached = matches!(is_cached, Some(Ok(true) | Err(_)))
                && !matches!(node.liveness(cached), Ok(Liveness::Gone(_)));
            if is_attached {
                return true;
            }
            let Some(row) = rows.get_mut(one.row) else { return false };
            (row.state, row.reason) = match one.belonging.take_away() {
                Ok(()) => {
                    (State::Skipped, "the container was deleted concurrently: removed again".to_owned())
                }
                Err(error) => (State::Failed, format!("the container was deleted concurrently: {error}")),
            };
            false
        });
    }
}

/// Sorts attachments by the time of their ADD. Of two caches with the same attachment the newer one counts.
fn newest(mut containers: Vec<(usize, Cached)>) -> Vec<(usize, Cached)> {
    containers.sort_by_key(|(_, cached)| cached.written);
    let owners: Vec<_> = containers.iter().map(|(_, cached)| cached.attachment.clone()).collect();
    let mut next = 0;
    containers.retain(|(_, cached)| {
        next += 1;
        !owners.get(next..).unwrap_or_default().contains(&cached.attachment)
    });
    containers
}

/// The things that a container has, by the plugins of its network that this binary has.
fn belongings(cached: &Cached) -> Result<Vec<Box<dyn Belonging>>, String> {
    let mut all = Vec::new();
    for config in cached.configs().map_err(|e| e.to_string())? {
        let Some(plugin) = registry::find(&config.plugin) else { continue };
        let env = Env { plugins: registry::PLUGINS, ..Env::default() };
        let of_plugin = plugin.restorable(&request(cached, &config, &env));
        all.extend(of_plugin.map_err(|e| format!("{}: {e}", config.plugin))?);
    }
    Ok(all)
}

/// The request of a CHECK.
pub(super) fn request<'a>(cached: &'a Cached, config: &'a NetConf, env: &'a Env) -> Request<'a> {
    let (attachment, netns): (Attachment, _) = (cached.attachment.clone(), cached.netns.clone());
    Request { attachment, netns, args: &cached.args, config, env }
}

fn no_cache(directories: &[&Path]) -> String {
    let names: Vec<String> = directories.iter().map(|d| d.join("results").display().to_string()).collect();
    format!("no runtime's cache in {}", names.join(" or "))
}
