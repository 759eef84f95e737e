// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway restore`: puts back what running containers need on the node, after other programs have changed it.
//!
//! Only the runtime's cache has a container's request, and only the kernel shows that the container still runs. If the two
//! disagree, nothing is done. What a container needs is what its plugins expect ([`Expected`]).

pub(super) mod liveness;
mod report;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cni_dataplane::nftables::addresses::{self, AnsweringAddresses};
use cni_dataplane::node::{self, OwnTable};
use cni_dataplane::owner::AttachmentHash;
use cni_kernel::AddressFamily;
use cni_kernel::dir::DirError;
use cni_kernel::lock::FileLock;
use cni_runtime::{Cache, Cached};
use cni_spec::{Attachment, CniError, NetConf};

use super::directories::{self, CacheDirs};
use super::migration_lock::{self, MigrationLockError};
use crate::netavark;
use cni_plugins::expected::{Expected, Whose};
use cni_plugins::plugin::{Env, Request};
use cni_plugins::registry;
use liveness::{Liveness, LivenessError, Node};
use report::{Row, State};
use slipway_cli::json;
use slipway_cli::{Failure, Output};

/// Put back what running containers need on the node, and other programs changed
///
/// Restores the links, addresses and routes on the node, forwarding, published ports, masquerade and all other rules of each
/// container that is in a runtime's cache and that the kernel shows to be running. Does nothing where nothing is missing. A
/// setting that is not Slipway's to change is named, with its remedy.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Exit codes:
  1  something could not be read or restored; everything else was restored
  3  with --dry-run: something is missing

Examples:
  slipway restore
  slipway restore --dry-run --output json
  slipway restore --cache-dir /var/lib/containers/cni")]
pub(super) struct Args {
    /// Only report what is missing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    caches: CacheDirs,
    #[command(flatten)]
    output: Output,
}

impl Args {
    /// Reports, and changes nothing.
    pub(super) fn dry_run() -> Self {
        Self { dry_run: true, ..Self::default() }
    }
}

/// The time between the two checks for a concurrent DEL. The DELs of chained plugins leave a mark (`deletion`). The DEL of
/// the link's plugin leaves none, but it removes rules and link in one process, which has ended after this time.
const GRACE: Duration = Duration::from_secs(1);
/// How often containers that are attached anew again and again are looked at.
const ROUNDS: u32 = 3;
/// The time limit for the end of a migration, or of another restoration.
const PATIENCE: Duration = Duration::from_secs(30);
/// The exit code of a dry run that found something missing.
const SOMETHING_MISSING: u8 = 3;

/// A restoration cannot begin, or a container's objects cannot be determined.
#[derive(Debug, thiserror::Error)]
pub(super) enum RestoreError {
    #[error("no runtime's cache in {}", results(directories))]
    NoCache { directories: Vec<PathBuf> },
    #[error(transparent)]
    Cache(#[from] DirError),
    #[error(transparent)]
    Node(#[from] LivenessError),
    #[error(transparent)]
    Configuration(#[from] CniError),
    #[error("{plugin}: {source}")]
    Plugin { plugin: String, source: CniError },
}

fn results(directories: &[PathBuf]) -> String {
    let names: Vec<String> = directories.iter().map(|d| d.join("results").display().to_string()).collect();
    names.join(" or ")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Restore,
    DryRun,
}

/// Restores what is missing and prints the outcome. The exit code is 1 if something failed, and 3 if a dry
/// run found something missing.
pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let mode = if args.dry_run { Mode::DryRun } else { Mode::Restore };
    let mut restoration = Restoration::begin(mode, &args.caches.cache_dirs).map_err(Failure::failed)?;
    restoration.run().map_err(Failure::failed)?;
    let rows = restoration.rows;
    if args.output.json() {
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

/// The differences between what running containers need and what is there, as a dry run finds them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Differences {
    /// True if the table itself is to be restored.
    pub(super) table: bool,
    /// One for each object, of which the containers of a network share some.
    pub(super) objects: Vec<Difference>,
    /// What could not be read, and why: files of a cache, and containers that may or may not run, or whose objects are
    /// unknown.
    pub(super) unread: Vec<(String, String)>,
}

/// An object that is missing or different.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Difference {
    /// The object: "port veth1 of bridge cni0".
    pub(super) item: String,
    /// What is wrong with it.
    pub(super) found: String,
    /// What helps: a command, or a setting of somebody else.
    pub(super) remedy: String,
    /// True for rules, which a flush of the ruleset deletes.
    pub(super) is_rules: bool,
    /// True if packets pass nevertheless.
    pub(super) passes: bool,
    /// The containers that need it.
    pub(super) owners: Vec<Attachment>,
}

/// Finds all differences, and changes nothing.
///
/// # Errors
/// [`RestoreError`] if the runtime's cache or the node's links cannot be read.
pub(super) fn differences() -> Result<Differences, RestoreError> {
    let mut restoration = Restoration::begin(Mode::DryRun, &[])?;
    restoration.run()?;
    let mut found = Differences { unread: restoration.unread, ..Differences::default() };
    found.table = restoration.rows.iter().any(|row| row.state == State::Missing && row.owner.is_none());
    for difference in restoration.differences {
        // Containers may lack a route of the same name, each with a command for its own namespace.
        let same = |one: &&mut Difference| {
            (&one.item, &one.found, &one.remedy) == (&difference.item, &difference.found, &difference.remedy)
        };
        match found.objects.iter_mut().find(same) {
            Some(known) => known.owners.extend(difference.owners),
            None => found.objects.push(difference),
        }
    }
    Ok(found)
}

/// The differences of the running container whose attachment has this hash that stop its packets of a family, or let them
/// pass otherwise than they should. Nothing for a container that is in no runtime's cache, or whose objects cannot be determined.
pub(super) fn obstacles(of: AttachmentHash, family: AddressFamily, is_forwarded: bool) -> Vec<Difference> {
    let caches = directories::CACHES.iter().filter_map(|directory| Cache::open(directory.as_ref()).ok()?);
    let all = caches.filter_map(|cache| cache.read().ok()).flat_map(|(all, _)| all);
    let ours = all.filter(|cached| AttachmentHash::of(&cached.attachment) == of).map(|cached| (0, cached));
    let Some((_, cached)) = newest(ours.collect()).pop() else { return Vec::new() };
    let objects = expected_of(&cached).unwrap_or_default();
    let difference = |object: &dyn Expected| {
        let stops = object.stops(family, is_forwarded);
        if !stops && !object.alters() {
            return None;
        }
        let difference = object.check().err()?;
        Some(Difference { passes: !stops, ..Difference::of(&cached.attachment, object, &difference) })
    };
    objects.iter().filter_map(|object| difference(object.as_ref())).collect()
}

impl Difference {
    fn of(owner: &Attachment, object: &dyn Expected, difference: &CniError) -> Self {
        Self {
            item: object.name(),
            found: difference.to_string(),
            remedy: object.remedy(),
            is_rules: object.is_rules(),
            passes: object.alters(),
            owners: vec![owner.clone()],
        }
    }
}

/// The exclusion of migrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exclusion {
    /// For this object.
    New,
    /// Since an earlier object.
    Held,
}

/// A row that is wrong if its container was deleted while the command restored it.
struct Doubtful {
    /// The index of the row.
    row: usize,
    /// The index of the container.
    container: usize,
    /// The object that was restored. None if something failed, or if the object is not to be removed any more.
    restored: Option<Box<dyn Expected>>,
}

/// One run of the command.
struct Restoration {
    mode: Mode,
    node: Node,
    caches: Vec<Cache>,
    /// The cached attachments in the order of their ADDs, each with the index of its cache.
    containers: Vec<(usize, Cached)>,
    rows: Vec<Row>,
    doubtful: Vec<Doubtful>,
    /// The objects that differ.
    differences: Vec<Difference>,
    /// As in [`Differences`].
    unread: Vec<(String, String)>,
    /// Excludes migrations from the first missing object to the last container.
    lock: Option<FileLock>,
    /// The time limit for the lock: all objects together wait once.
    patience: Duration,
}

impl Restoration {
    /// Reads the caches in these directories, or else in the usual ones.
    fn begin(mode: Mode, directories: &[PathBuf]) -> Result<Self, RestoreError> {
        let node = Node::open()?;
        let (mut caches, mut rows) = (Vec::new(), Vec::new());
        for directory in directories {
            let none = || RestoreError::NoCache { directories: vec![directory.clone()] };
            caches.push(Cache::open(directory)?.ok_or_else(none)?);
        }
        if directories.is_empty() {
            let usual = directories::CACHES.map(PathBuf::from);
            for directory in &usual {
                caches.extend(Cache::open(directory)?);
            }
            if caches.is_empty() {
                let none = RestoreError::NoCache { directories: usual.to_vec() };
                let reason = format!("{none}: no container is known");
                rows.push(Row::new(None, "containers", State::Skipped, reason));
            }
        }
        let (mut containers, mut unread) = (Vec::new(), Vec::new());
        for (number, cache) in caches.iter().enumerate() {
            let (cached, faults) = cache.read()?;
            containers.extend(cached.into_iter().map(|one| (number, one)));
            rows.extend(faults.into_iter().map(|fault| {
                let file = format!("cache file {}", fault.path.display());
                unread.push((file.clone(), fault.error.to_string()));
                let state = if fault.error.is_transient() { State::Failed } else { State::Skipped };
                Row::new(None, file, state, fault.error.to_string())
            }));
        }
        Ok(Self {
            mode,
            node,
            caches,
            containers: newest(containers),
            rows,
            doubtful: Vec::new(),
            differences: Vec::new(),
            unread,
            lock: None,
            patience: PATIENCE,
        })
    }

    fn run(&mut self) -> Result<(), LivenessError> {
        let row = self.table()?;
        self.rows.extend(row);
        for number in 0..self.containers.len() {
            self.container(number);
        }
        for _ in 0..ROUNDS {
            if self.doubtful.is_empty() {
                break;
            }
            let since = Instant::now();
            self.review();
            std::thread::sleep(GRACE.saturating_sub(since.elapsed()));
            if self.review() == 0 {
                break;
            }
        }
        self.lock = None;
        Ok(())
    }

    /// Restores the table itself. It has the guard of the node's loopback, which is needed while
    /// `route_localnet` is on for a link, even if no container has a port.
    fn table(&self) -> Result<Option<Row>, LivenessError> {
        let row = |state, reason: String| {
            Some(Row::new(None, format!("table {}", node::own_table_name().0), state, reason))
        };
        let reason = match node::own_table() {
            Ok(OwnTable::Ready) if matches!(addresses::answering(), Ok(AnsweringAddresses::Outdated)) => {
                "its list of the node's addresses was out of date"
            }
            Ok(OwnTable::Ready) => return Ok(row(State::Present, String::new())),
            Ok(OwnTable::Absent) if !self.node.has_route_localnet()? => return Ok(None),
            Ok(OwnTable::Absent) => {
                "it was missing, and with it the guard of the node's loopback, while route_localnet is on"
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

    /// Restores the objects of one container, if it still runs.
    fn container(&mut self, number: usize) {
        let Some((_, cached)) = self.containers.get(number) else { return };
        let owner = cached.attachment.clone();
        let row = |state, reason| Row::new(Some(owner.clone()), "container", state, reason);
        let objects = match self.node.liveness(cached) {
            Err(error) => {
                self.unread.push((owner.to_string(), error.to_string()));
                return self.doubt(number, row(State::Failed, error.to_string()), None);
            }
            Ok(Liveness::WithoutAddress(reason)) => {
                self.rows.push(row(State::Skipped, reason));
                return self.name_what_is_missing(number);
            }
            Ok(Liveness::Gone(reason)) => {
                let (state, reason) = self.gone(number, reason);
                return self.rows.push(row(state, reason));
            }
            Ok(Liveness::Attached) => match expected_of(cached) {
                Err(error) => {
                    self.unread.push((owner.to_string(), error.to_string()));
                    return self.doubt(number, row(State::Failed, error.to_string()), None);
                }
                Ok(objects) => objects,
            },
        };
        for object in objects {
            let row = self.restore(&owner, object.as_ref());
            match row.state {
                State::Restored => self.doubt(number, row, Some(object)),
                State::Failed => self.doubt(number, row, None),
                _ => self.rows.push(row),
            }
        }
    }

    fn doubt(&mut self, container: usize, row: Row, restored: Option<Box<dyn Expected>>) {
        self.doubtful.push(Doubtful { row: self.rows.len(), container, restored });
        self.rows.push(row);
    }

    /// Names what is missing for a container that is skipped because it lost an address, with the commands that help.
    fn name_what_is_missing(&mut self, number: usize) {
        let Some((_, cached)) = self.containers.get(number) else { return };
        let owner = cached.attachment.clone();
        for object in expected_of(cached).unwrap_or_default() {
            if !object.whose().is_repaired() {
                let row = self.restore(&owner, object.as_ref());
                self.rows.extend((row.state != State::Present).then_some(row));
            }
        }
    }

    /// Removes what a podman container whose namespace is gone has left, because podman has forgotten the container and
    /// calls no DEL. A CNI runtime remembers its containers, and calls DEL.
    fn gone(&self, number: usize, reason: String) -> (State, String) {
        let Some((cache, cached)) = self.containers.get(number) else { return (State::Skipped, reason) };
        let is_podmans =
            self.caches.get(*cache).is_some_and(|cache| cache.path().starts_with(netavark::CACHE));
        if !is_podmans || self.mode == Mode::DryRun {
            return (State::Skipped, reason);
        }
        match netavark::remove_gone(cached) {
            Ok(true) => (State::Skipped, format!("{reason}; what it had was removed")),
            Ok(false) => (State::Skipped, reason),
            Err(error) => (State::Failed, format!("{reason}; what it has cannot be removed: {error}")),
        }
    }

    fn restore(&mut self, owner: &Attachment, object: &dyn Expected) -> Row {
        let row = |state, reason| Row::new(Some(owner.clone()), object.name(), state, reason);
        let Err(mut difference) = object.check() else { return row(State::Present, String::new()) };
        let found = Difference::of(owner, object, &difference);
        let remedy = found.remedy.clone();
        self.differences.push(found);
        if object.whose() == Whose::Theirs {
            return row(State::Skipped, format!("{difference}; it is not Slipway's to change: {remedy}"));
        }
        if self.mode == Mode::DryRun {
            return row(State::Missing, difference.to_string());
        }
        match self.exclude_migrations() {
            Err(error) => return row(State::Failed, format!("{difference}; {error}")),
            Ok(Exclusion::Held) => {}
            // A migration may have moved it since the check.
            Ok(Exclusion::New) => match object.check() {
                Ok(()) => return row(State::Present, String::new()),
                Err(now) => difference = now,
            },
        }
        match object.put_back() {
            Ok(()) => row(State::Restored, difference.to_string()),
            Err(error) => row(State::Failed, error.to_string()),
        }
    }

    /// Waits for the end of a migration, and keeps others from beginning.
    fn exclude_migrations(&mut self) -> Result<Exclusion, MigrationLockError> {
        if self.lock.is_some() {
            return Ok(Exclusion::Held);
        }
        let patience = std::mem::take(&mut self.patience);
        self.lock = Some(migration_lock::acquire(patience)?);
        Ok(Exclusion::New)
    }

    /// Looks again at the containers for which something was restored or failed. Removes the restored objects of those that
    /// were deleted meanwhile, and restores what those lack that were attached anew, whose number is returned.
    fn review(&mut self) -> usize {
        let mut anew: Vec<usize> = Vec::new();
        for mut doubtful in std::mem::take(&mut self.doubtful) {
            let Some((cache, cached)) = self.containers.get(doubtful.container).cloned() else { continue };
            let now = self.caches.get(cache).map(|cache| cache.get(&cached.attachment));
            let liveness = self.node.liveness(&cached);
            let is_same = match &now {
                Some(Ok(Some(now))) => (now.written, &now.result) == (cached.written, &cached.result),
                Some(Err(_)) => true,
                Some(Ok(None)) | None => false,
            };
            if is_same && matches!(liveness, Ok(Liveness::Attached) | Err(_)) {
                self.doubtful.push(doubtful);
                continue;
            }
            let (what, is_anew) = match &now {
                Some(Ok(Some(_))) if !is_same => ("the container was attached anew concurrently", true),
                _ => ("the container was deleted concurrently", false),
            };
            // If the container has its link, but not the addresses, an ADD may have made the objects with other values.
            let is_ours =
                |object: &dyn Expected| matches!(liveness, Ok(Liveness::Gone(_))) || object.check().is_ok();
            let mut outcome = (State::Skipped, what.to_owned());
            if let Some(object) = doubtful.restored.take_if(|object| is_ours(object.as_ref())) {
                match object.take_away() {
                    Ok(()) => outcome.1.push_str(": removed again"),
                    Err(error) => {
                        outcome = (State::Failed, format!("{what}: {error}"));
                        doubtful.restored = Some(object);
                    }
                }
            }
            // A row of an earlier review stays, unless its object could not be removed then.
            if let Some(row) = self.rows.get_mut(doubtful.row).filter(|row| row.state != State::Skipped) {
                (row.state, row.reason) = outcome;
            }
            if !is_anew {
                // The runtime stores a new attachment only after its ADD, so the next review may find one.
                self.doubtful.push(doubtful);
            } else if let Some(Ok(Some(now))) = now
                && !anew.contains(&doubtful.container)
            {
                anew.push(doubtful.container);
                self.containers.push((cache, now));
            }
        }
        let first = self.containers.len() - anew.len();
        for number in first..self.containers.len() {
            self.container(number);
        }
        anew.len()
    }
}

/// Sorts attachments by the time of their ADD. If two caches have the same attachment, the newer entry counts.
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

/// The container's objects on the node, by the plugins of its network that this binary has.
fn expected_of(cached: &Cached) -> Result<Vec<Box<dyn Expected>>, RestoreError> {
    let mut all = Vec::new();
    for config in cached.configs()? {
        let Some(plugin) = registry::find(&config.plugin) else { continue };
        let env = Env { plugins: registry::PLUGINS, ..Env::default() };
        let of_plugin = plugin.expected(&request(cached, &config, &env));
        all.extend(
            of_plugin.map_err(|source| RestoreError::Plugin { plugin: config.plugin.clone(), source })?,
        );
    }
    Ok(all)
}

/// The request of a CHECK.
pub(super) fn request<'a>(cached: &'a Cached, config: &'a NetConf, env: &'a Env) -> Request<'a> {
    Request {
        attachment: cached.attachment.clone(),
        netns: cached.netns.clone(),
        args: &cached.args,
        config,
        env,
    }
}
