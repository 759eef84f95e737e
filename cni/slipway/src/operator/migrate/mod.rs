// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway migrate`: moves the objects of running containers from one backend to another.

pub(super) mod hints;
mod records;
mod report;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use cni_dataplane::migrate::{Mode, Order, Place, Row, State, migrate};
use cni_dataplane::{BackendName, Error as DataplaneError, PortRequest};
use cni_kernel::dir::DirError;
use cni_spec::CniError;

use super::directories::CacheDirs;
use super::migration_lock::{self, MigrationLockError};
use super::restore::liveness::LivenessError;
use cni_plugins::meta::portmap;
use cni_plugins::node_defaults::NodeDefaults;
use slipway_cli::json;
use slipway_cli::{Failure, Output};

/// Move running containers from one backend to another
///
/// Published ports and masquerade move, container by container, while they serve. Connections survive.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  1  something failed
  3  with --dry-run: something would move
  4  something was skipped; the reasons are printed

Examples:
  slipway migrate --to nftables --from iptables --dry-run
  slipway migrate --to ebpf --network pods --output json
  slipway migrate --to nftables --cache-dir /var/lib/containers/cni --data-dir /srv/cni/networks")]
pub(super) struct Args {
    /// The backend to move to
    #[arg(long, value_enum, value_name = "BACKEND")]
    to: Target,
    /// The backend to move from; reference: the nftables backend of the reference plugins; any number of times
    #[arg(long, value_enum, value_name = "BACKEND", default_value = "all")]
    from: Vec<Source>,
    /// Only containers of this network; any number of times
    #[arg(long = "network", value_name = "NAME")]
    networks: Vec<String>,
    /// Only report what would move
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    caches: CacheDirs,
    /// The directory of host-local's reservations [default: /var/lib/cni/networks]; any number of times
    #[arg(long = "data-dir", value_name = "DIR")]
    data_dirs: Vec<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Backends to move to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Target {
    Nftables,
    Iptables,
    Ebpf,
}

/// Places to move from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Source {
    Nftables,
    Iptables,
    Reference,
    Ebpf,
    All,
}

impl From<Target> for BackendName {
    fn from(target: Target) -> Self {
        match target {
            Target::Nftables => Self::Nftables,
            Target::Iptables => Self::Iptables,
            Target::Ebpf => Self::Ebpf,
        }
    }
}

impl Source {
    fn includes(self, place: Place) -> bool {
        match self {
            Self::Nftables => place == Place::Nftables,
            Self::Iptables => place == Place::Iptables,
            Self::Reference => place == Place::Reference,
            Self::Ebpf => place == Place::Ebpf,
            Self::All => true,
        }
    }
}

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
pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, Failure> {
    let options = Options::new(args)?;
    let rows = moved(&options, err).map_err(Failure::failed)?;
    if args.output.json() {
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
    fn new(args: &Args) -> Result<Self, Failure> {
        let to = BackendName::from(args.to);
        let is_wanted = |place: &Place| args.from.iter().any(|source| source.includes(*place));
        let from: Vec<Place> = PLACES.into_iter().filter(is_wanted).collect();
        if from.iter().all(|place| place.as_str() == to.as_str()) {
            return Err(Failure::usage(format!("--from and --to are both {}", to.as_str())));
        }
        Ok(Self {
            to,
            from,
            networks: args.networks.clone(),
            mode: if args.dry_run { Mode::DryRun } else { Mode::Migrate },
            cache_dirs: args.caches.cache_dirs.clone(),
            data_dirs: args.data_dirs.clone(),
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
            // The migration continues if standard error is closed.
            let _ = writeln!(err, "{done} of {total} checked");
        }
    };
    let mut rows = migrate(&order, mode, &mut progress)?;
    if to != BackendName::Iptables {
        open_loopbacks(&mut rows, portmap::open_loopback_for);
        if options.from.contains(&Place::Iptables) {
            rows.extend(records::write(options)?);
        }
    }
    Ok(rows)
}

/// Makes moved ports reachable from the node's loopback, as an ADD does. The reference does this in part. If that is not
/// possible, the row fails, because an ADD would fail as well.
fn open_loopbacks(rows: &mut [Row], open: impl Fn(&PortRequest) -> Result<(), CniError>) {
    for row in rows.iter_mut().filter(|row| row.state == State::Moved && row.from != Place::Ebpf) {
        let Some(request) = &row.ports else { continue };
        if let Err(error) = open(request) {
            row.reason = format!(
                "it was moved, but the node's loopback does not reach it: {error}; `slipway restore` tries again"
            );
            row.state = State::Failed;
        }
    }
}

#[cfg(test)]
mod tests {
    use cni_dataplane::{ContainerNetns, IptablesOptions, Loopback, NftablesOptions, Snat};
    use cni_spec::Attachment;

    use super::*;
    use slipway_cli::checks;

    fn parsed(line: &str) -> Result<Options, Failure> {
        Options::new(&checks::args(line).unwrap())
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

    #[test]
    fn moved_ports_that_the_loopback_does_not_reach_are_a_failure() {
        let attachment = Attachment::new("pods", "web", "eth0").unwrap();
        let ports = PortRequest {
            attachment: attachment.clone(),
            netns: ContainerNetns { path: "/run/netns/web".into(), dev: 4, ino: 1, cookie: None },
            ports: Vec::new(),
            networks: Vec::new(),
            elsewhere: Vec::new(),
            snat: Snat::Needed,
            loopback: Loopback::Served,
            mark_bit: 13,
            nftables: NftablesOptions::default(),
            iptables: IptablesOptions::default(),
        };
        let row = |from, state, ports: Option<&PortRequest>| Row {
            owner: Some(attachment.clone()),
            item: "an item".to_owned(),
            from,
            state,
            reason: String::new(),
            ports: ports.cloned(),
        };
        let before = [
            row(Place::Iptables, State::Moved, Some(&ports)),
            row(Place::Iptables, State::Moved, None),
            row(Place::Iptables, State::LeftAlone, Some(&ports)),
            row(Place::Ebpf, State::Moved, Some(&ports)),
        ];
        let states = |open: fn(&PortRequest) -> Result<(), CniError>| {
            let mut rows = before.clone();
            open_loopbacks(&mut rows, open);
            rows.map(|row| (row.state, row.reason))
        };
        let moved = [State::Moved, State::Moved, State::LeftAlone, State::Moved];
        assert_eq!(states(|_| Ok(())).map(|(state, _)| state), moved);
        let [first, others @ ..] = states(|_| Err(CniError::internal("read-only")));
        assert_eq!(first.0, State::Failed);
        assert!(first.1.contains("does not reach it: read-only;"), "{}", first.1);
        assert_eq!(others.map(|(state, _)| state), moved[1..]);
    }
}
