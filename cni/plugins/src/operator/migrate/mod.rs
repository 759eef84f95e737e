//! `slipway migrate`: moves what running containers have in the node's ruleset from one backend to another.

mod clues;
mod records;
mod report;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_dataplane::BackendName;
use cni_dataplane::migrate::{Order, Place, Plan, Row, State, migrate};
use cni_kernel::dir::DurableDir;
use cni_kernel::lock::FileLock;

use crate::meta::portmap;
use crate::node_defaults::NodeDefaults;
use crate::operator::said;
use report::Output;

/// Arguments of `slipway migrate`.
pub const USAGE: &str = "--to nftables|iptables|ebpf [--from nftables|iptables|reference|ebpf|all]... \
     [--network NAME]... [--dry-run] [--cache-dir DIR]... [--data-dir DIR]... [--output text|json]";

/// The folder of the lock that keeps two calls apart.
const LOCK_FOLDER: &str = "/run/slipway";
/// How long another call is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// The exit code of a dry run that found something to move.
const SOMETHING_TO_MOVE: u8 = 3;
/// The exit code when something was left alone.
const LEFT_ALONE: u8 = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Options {
    to: BackendName,
    from: Vec<Place>,
    networks: Vec<String>,
    plan: Plan,
    cache_dirs: Vec<PathBuf>,
    data_dirs: Vec<PathBuf>,
    output: Output,
}

/// Moves what there is and prints what became of it. Exit code 0 when everything is where it should be, 1 when
/// something failed, 2 for wrong arguments, 3 when a dry run found something to move, 4 when something was left
/// alone.
pub fn migrate_command(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let options = match parse(args) {
        Ok(options) => options,
        Err(reason) => return said(writeln!(err, "slipway migrate: {reason}"), 2),
    };
    let rows = match run(&options, err) {
        Ok(rows) => rows,
        Err(reason) => return said(writeln!(err, "slipway migrate: {reason}"), 1),
    };
    let any = |state| rows.iter().any(|row| row.state == state);
    let code = match () {
        () if any(State::Failed) => 1,
        () if any(State::LeftAlone) => LEFT_ALONE,
        () if any(State::Planned) || any(State::ToRecord) => SOMETHING_TO_MOVE,
        () => 0,
    };
    said(report::print(&rows, (options.to, options.output), out), code)
}

fn parse(args: &[String]) -> Result<Options, String> {
    let (mut to, mut from, mut plan) = (None, Vec::new(), Plan::AndDo);
    let (mut networks, mut cache_dirs, mut data_dirs) = (Vec::new(), Vec::new(), Vec::new());
    let mut output = Output::Text;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--dry-run" {
            plan = Plan::Only;
            continue;
        }
        let (name, inline) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (arg.as_str(), None),
        };
        let known = ["--to", "--from", "--network", "--cache-dir", "--data-dir", "--output", "-o"];
        if !known.contains(&name) {
            return Err(format!("unknown argument {arg:?}"));
        }
        let value = inline.or_else(|| args.next().cloned()).ok_or_else(|| format!("{name} needs a value"))?;
        match (name, value.as_str()) {
            ("--to", name) => {
                let backend = BackendName::from_name(name);
                to = Some(backend.ok_or_else(|| format!("--to is {DESTINATIONS}, not {name:?}"))?);
            }
            ("--from", "all") => from.extend(PLACES),
            ("--from", name) => {
                let place = PLACES.into_iter().find(|place| place.as_str() == name);
                let wrong = || format!("--from is nftables, iptables, reference, ebpf or all, not {name:?}");
                from.push(place.ok_or_else(wrong)?);
            }
            ("--network", _) => networks.push(value),
            ("--cache-dir", _) => cache_dirs.push(value.into()),
            ("--data-dir", _) => data_dirs.push(value.into()),
            (_, "text") => output = Output::Text,
            (_, "json") => output = Output::Json,
            (_, other) => return Err(format!("--output is text or json, not {other:?}")),
        }
    }
    let to = to.ok_or_else(|| format!("--to is needed: {DESTINATIONS}"))?;
    if from.is_empty() {
        from.extend(PLACES);
    }
    if from.iter().all(|place| place.as_str() == to.as_str()) {
        return Err(format!("--from and --to are both {}", to.as_str()));
    }
    Ok(Options { to, from, networks, plan, cache_dirs, data_dirs, output })
}

const PLACES: [Place; 4] = [Place::Nftables, Place::Iptables, Place::Reference, Place::Ebpf];
const DESTINATIONS: &str = "nftables, iptables or ebpf";

fn run(options: &Options, err: &mut dyn Write) -> Result<Vec<Row>, String> {
    let Options { to, from, networks, plan, .. } = options.clone();
    let _lock = match plan {
        Plan::Only => None,
        Plan::AndDo => Some(lock()?),
    };
    let clues = clues::read(&options.cache_dirs, &options.data_dirs)?;
    let settings = NodeDefaults::read().map_err(|e| e.to_string())?.ebpf;
    let order = Order { to, from, networks, clues, settings };
    // Whoever moves a few things needs no word of how far it is.
    let mut progress = |done: usize, total: usize| {
        if done > 0 && done < total {
            // Nobody may be there to read it.
            let _ = writeln!(err, "{done} of {total} looked at");
        }
    };
    let mut rows = migrate(&order, plan, &mut progress).map_err(|e| e.to_string())?;
    if to != BackendName::Iptables {
        open_loopbacks(&mut rows);
        if options.from.contains(&Place::Iptables) {
            rows.extend(records::write(options)?);
        }
    }
    Ok(rows)
}

fn lock() -> Result<FileLock, String> {
    let folder = DurableDir::create(Path::new(LOCK_FOLDER), 0o755).map_err(|e| e.to_string())?;
    FileLock::acquire(&folder, "migrate.lock", 0o600, PATIENCE).map_err(|e| {
        if e.is_timeout() { "another call of `slipway migrate` is at work".to_owned() } else { e.to_string() }
    })
}

/// An ADD of ours opens the way from the node's loopback, of which the reference does a part.
fn open_loopbacks(rows: &mut [Row]) {
    for row in rows.iter_mut().filter(|row| row.state == State::Moved && row.from != Place::Ebpf) {
        let Some(request) = &row.ports else { continue };
        if let Err(error) = portmap::open_loopback_for(request) {
            row.why = format!("the node's loopback does not lead to it: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Options, String> {
        parse(&args.iter().map(|&a| a.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn arguments() {
        let plain = parsed(&["--to", "nftables"]).unwrap();
        assert_eq!((plain.to, plain.from.len(), plain.plan), (BackendName::Nftables, 4, Plan::AndDo));
        let all = parsed(&[
            "--to=iptables",
            "--from",
            "nftables",
            "--from=reference",
            "--network",
            "a",
            "--network=b",
            "--dry-run",
            "-o",
            "json",
        ])
        .unwrap();
        assert_eq!(all.from, [Place::Nftables, Place::Reference]);
        assert_eq!(
            (all.networks, all.plan, all.output),
            (vec!["a".into(), "b".into()], Plan::Only, Output::Json)
        );
        for (args, wanted) in [
            (&["--dry-run"][..], "--to is needed: nftables, iptables or ebpf"),
            (&["--to", "x"], "--to is nftables, iptables or ebpf, not \"x\""),
            (&["--to"], "--to needs a value"),
            (
                &["--from", "x", "--to", "nftables"],
                "--from is nftables, iptables, reference, ebpf or all, not \"x\"",
            ),
            (&["--from", "nftables", "--to", "nftables"], "--from and --to are both nftables"),
            (&["x"], "unknown argument \"x\""),
        ] {
            assert_eq!(parsed(args).unwrap_err(), wanted);
        }
    }
}
