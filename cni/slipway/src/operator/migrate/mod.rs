// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway migrate`: moves the objects of running containers from one backend to another.

mod hints;
mod records;
mod report;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use cni_dataplane::migrate::{Mode, Order, Place, Row, State, migrate};
use cni_dataplane::{BackendName, Error as DataplaneError};
use cni_kernel::dir::DirError;
use cni_spec::CniError;

use super::migration_lock::{self, MigrationLockError};
use super::restore::liveness::LivenessError;
use cni_plugins::meta::portmap;
use cni_plugins::node_defaults::NodeDefaults;
use slipway_cli::json;
use slipway_cli::{Failure, Given};

/// The time limit for the lock that excludes a second call and `slipway restore`.
const PATIENCE: Duration = Duration::from_secs(5);
/// The exit code of a dry run that found something to move.
const SOMETHING_TO_MOVE: u8 = 3;
/// The exit code when something was skipped.
const SKIPPED: u8 = 4;

const PLACES: [Place; 4] = [Place::Nftables, Place::Iptables, Place::Reference, Place::Ebpf];

#[derive(Debug, Clone, PartialEq, Eq)]
struct Options {
    to: BackendName,
    from: Vec<Place>,
    networks: Vec<String>,
    mode: Mode,
    cache_dirs: Vec<PathBuf>,
    data_dirs: Vec<PathBuf>,
}

/// A migration cannot begin, or ends early.
#[derive(Debug, thiserror::Error)]
enum MigrateError {
    #[error(transparent)]
    Lock(#[from] MigrationLockError),
    #[error(transparent)]
    Directory(#[from] DirError),
    #[error(transparent)]
    Settings(#[from] CniError),
    #[error(transparent)]
    Dataplane(#[from] DataplaneError),
    #[error(transparent)]
    Liveness(#[from] LivenessError),
}

/// Migrates, and prints the outcome. The exit code is 1 if something failed, 3 if a dry run found something
/// to move, 4 if something was skipped.
pub(super) fn run(given: &Given, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, Failure> {
    let options = Options::new(given)?;
    let rows = moved(&options, err).map_err(Failure::failed)?;
    if given.json() {
        json::print(report::document(&rows, options.to), out)?;
    } else {
        report::print(&rows, options.to, out)?;
    }
    let any = |state| rows.iter().any(|row| row.state == state);
    Ok(match () {
        () if any(State::Failed) => 1,
        () if any(State::LeftAlone) => SKIPPED,
        () if any(State::Planned) || any(State::ToRecord) => SOMETHING_TO_MOVE,
        () => 0,
    })
}

impl Options {
    fn new(given: &Given) -> Result<Self, Failure> {
        let to = given.value("--to").and_then(BackendName::from_name);
        let to = to.ok_or_else(|| Failure::usage("--to is missing"))?;
        let wanted: Vec<&str> = given.values("--from").collect();
        let is_all = wanted.is_empty() || wanted.contains(&"all");
        let from: Vec<Place> =
            PLACES.into_iter().filter(|place| is_all || wanted.contains(&place.as_str())).collect();
        if from.iter().all(|place| place.as_str() == to.as_str()) {
            return Err(Failure::usage(format!("--from and --to are both {}", to.as_str())));
        }
        let paths = |option| given.values(option).map(PathBuf::from).collect();
        Ok(Self {
            to,
            from,
            networks: given.values("--network").map(str::to_owned).collect(),
            mode: if given.has("--dry-run") { Mode::DryRun } else { Mode::Migrate },
            cache_dirs: paths("--cache-dir"),
            data_dirs: paths("--data-dir"),
        })
    }
}

fn moved(options: &Options, err: &mut dyn Write) -> Result<Vec<Row>, MigrateError> {
    let Options { to, from, networks, mode, .. } = options.clone();
    let _lock = match mode {
        Mode::DryRun => None,
        Mode::Migrate => Some(migration_lock::acquire(PATIENCE)?),
    };
    let known = hints::read(&options.cache_dirs, &options.data_dirs)?;
    let settings = NodeDefaults::read()?.ebpf;
    let order = Order { to, from, networks, known, settings };
    let mut progress = |done: usize, total: usize| {
        if done > 0 && done < total {
            // A closed standard error is no reason to stop.
            let _ = writeln!(err, "{done} of {total} checked");
        }
    };
    let mut rows = migrate(&order, mode, &mut progress)?;
    if to != BackendName::Iptables {
        open_loopbacks(&mut rows);
        if options.from.contains(&Place::Iptables) {
            rows.extend(records::write(options)?);
        }
    }
    Ok(rows)
}

/// Makes moved ports reachable from the node's loopback, as an ADD does. The reference does this in part.
fn open_loopbacks(rows: &mut [Row]) {
    for row in rows.iter_mut().filter(|row| row.state == State::Moved && row.from != Place::Ebpf) {
        let Some(request) = &row.ports else { continue };
        if let Err(error) = portmap::open_loopback_for(request) {
            row.reason = format!("not reachable from the node's loopback: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipway_cli::parse;

    use crate::operator::commands;

    fn parsed(line: &str) -> Result<Options, Failure> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::new(&parse(commands::find("migrate").unwrap(), &args).unwrap())
    }

    #[test]
    fn options() {
        let plain = parsed("--to nftables").unwrap();
        assert_eq!((plain.to, plain.from.len(), plain.mode), (BackendName::Nftables, 4, Mode::Migrate));
        let all = parsed("--to=iptables --from nftables --from=reference --network a --network=b --dry-run");
        let all = all.unwrap();
        assert_eq!(all.from, [Place::Nftables, Place::Reference]);
        assert_eq!((all.networks, all.mode), (vec!["a".into(), "b".into()], Mode::DryRun));
        let Err(Failure::Usage(text)) = parsed("--from nftables --to nftables") else { panic!("accepted") };
        assert_eq!(text, "--from and --to are both nftables");
    }
}
