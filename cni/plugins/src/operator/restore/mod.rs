//! `slipway restore`: puts back what living containers have in the node's ruleset, after somebody has
//! flushed it.
//!
//! What a container asked for is in the cache of its runtime, nowhere else once the ruleset is gone. Whether
//! it still lives is for the kernel to say. Where the two do not agree, nothing is done.

mod report;
pub(super) mod standing;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni_dataplane::nftables::addresses::{self, Answering};
use cni_dataplane::node::{self, OwnTable};
use cni_runtime::{Cache, Cached, cache};
use cni_spec::NetConf;

use crate::operator::said;
use crate::plugin::{Env, Request, Restorable as Belonging};
use crate::registry;
use report::{Output, Row, State};
use standing::{Node, Standing};

/// Arguments of `slipway restore`.
pub const USAGE: &str = "[--dry-run] [--cache-dir DIR]... [--output text|json]";

/// A DEL takes the plugins one after the other, each in a process of its own, and the interface's comes
/// last. A container that is still there this long after its ports were put back was not in the middle of
/// one.
const GRACE: Duration = Duration::from_secs(1);
/// The exit code of a dry run that found something missing.
const SOMETHING_MISSING: u8 = 3;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Restore,
    DryRun,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    mode: Mode,
    directories: Vec<PathBuf>,
    output: Output,
}

/// Puts back what is missing and prints what was done. Exit code 0 when all is there in the end, 1 when
/// something failed, 2 for wrong arguments, 3 when a dry run found something missing.
pub fn restore_command(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let options = match parse(args) {
        Ok(options) => options,
        Err(reason) => return said(writeln!(err, "slipway restore: {reason}"), 2),
    };
    let rows = match Restoration::begin(&options).and_then(|mut restoration| {
        restoration.run()?;
        Ok(restoration.rows)
    }) {
        Ok(rows) => rows,
        Err(reason) => return said(writeln!(err, "slipway restore: {reason}"), 1),
    };
    let code = if !report::is_ok(&rows) {
        1
    } else if rows.iter().any(|row| row.state == State::Missing) {
        SOMETHING_MISSING
    } else {
        0
    };
    said(report::print(&rows, options.output, out), code)
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--dry-run" {
            options.mode = Mode::DryRun;
            continue;
        }
        let (name, inline) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (arg.as_str(), None),
        };
        if !["--cache-dir", "--output", "-o"].contains(&name) {
            return Err(format!("unknown argument {arg:?}"));
        }
        let value = inline.or_else(|| args.next().cloned()).ok_or_else(|| format!("{name} needs a value"))?;
        match (name, value.as_str()) {
            ("--cache-dir", directory) => options.directories.push(directory.into()),
            (_, "text") => options.output = Output::Text,
            (_, "json") => options.output = Output::Json,
            (_, other) => return Err(format!("--output is text or json, not {other:?}")),
        }
    }
    Ok(options)
}

/// Something that was put back, to be looked at again.
struct PutBack {
    /// Its row.
    row: usize,
    /// Its cache and its place there.
    container: usize,
    belonging: Box<dyn Belonging>,
}

/// One run.
struct Restoration {
    mode: Mode,
    node: Node,
    caches: Vec<Cache>,
    /// What is remembered, in the order of the ADDs, with the number of its cache.
    containers: Vec<(usize, Cached)>,
    rows: Vec<Row>,
    put_back: Vec<PutBack>,
}

impl Restoration {
    /// Reads the caches.
    fn begin(options: &Options) -> Result<Self, String> {
        let node = Node::open()?;
        let (mut caches, mut rows) = (Vec::new(), Vec::new());
        for directory in &options.directories {
            let cache = Cache::open(directory).map_err(|e| e.to_string())?;
            caches.push(cache.ok_or_else(|| no_cache(&[directory.as_path()]))?);
        }
        if options.directories.is_empty() {
            let usual = cache::DIRECTORIES.map(Path::new);
            for directory in usual {
                caches.extend(Cache::open(directory).map_err(|e| e.to_string())?);
            }
            if caches.is_empty() {
                rows.push(left_out("containers", format!("{}: nothing is known of them", no_cache(&usual))));
            }
        }
        let mut containers = Vec::new();
        for (number, cache) in caches.iter().enumerate() {
            let (cached, faults) = cache.read().map_err(|e| e.to_string())?;
            containers.extend(cached.into_iter().map(|one| (number, one)));
            let fault = |fault: cni_runtime::Fault| {
                left_out(&format!("cache file {}", fault.path.display()), fault.error.to_string())
            };
            rows.extend(faults.into_iter().map(fault));
        }
        // Of two caches that remember one attachment, the newer one knows.
        containers.sort_by_key(|(_, cached)| cached.written);
        let names: Vec<_> = containers.iter().map(|(_, cached)| cached.attachment.clone()).collect();
        let mut place = 0;
        containers.retain(|_| {
            place += 1;
            names.get(place - 1).is_some_and(|name| !names.get(place..).unwrap_or_default().contains(name))
        });
        Ok(Self { mode: options.mode, node, caches, containers, rows, put_back: Vec::new() })
    }

    fn run(&mut self) -> Result<(), String> {
        let row = self.table()?;
        self.rows.extend(row);
        for place in 0..self.containers.len() {
            self.container(place);
        }
        if !self.put_back.is_empty() {
            let since = Instant::now();
            self.look_again();
            std::thread::sleep(GRACE.saturating_sub(since.elapsed()));
            self.look_again();
        }
        Ok(())
    }

    /// The table itself. With it goes the guard of the node's loopback, which must be there while the
    /// loopback is open towards a link, whatever becomes of the containers.
    fn table(&self) -> Result<Option<Row>, String> {
        let what = format!("table {}", node::own_table_name().0);
        let why = match node::own_table() {
            Ok(OwnTable::Ready) if matches!(addresses::answering(), Ok(Answering::Outdated)) => {
                "the addresses that published ports answer at were not those of the node"
            }
            Ok(OwnTable::Ready) => {
                return Ok(Some(Row { owner: None, what, state: State::Present, why: String::new() }));
            }
            Ok(OwnTable::Absent) if !self.node.opens_its_loopback()? => return Ok(None),
            Ok(OwnTable::Absent) => {
                "it was gone, and with it the guard of the node's loopback, while route_localnet is on"
            }
            Ok(OwnTable::Damaged) => {
                "its chains were emptied, changed or unhooked, or it is of an older version"
            }
            Err(cni_dataplane::Error::NoNfTables(_)) => return Ok(None),
            Err(error) => return Ok(Some(failed(None, what, error.to_string()))),
        };
        let row = |state| Row { owner: None, what: what.clone(), state, why: why.to_owned() };
        if self.mode == Mode::DryRun {
            return Ok(Some(row(State::Missing)));
        }
        Ok(Some(match node::mend_own_table() {
            Ok(()) => row(State::Restored),
            Err(error) => failed(None, what, error.to_string()),
        }))
    }

    fn container(&mut self, place: usize) {
        let Some((_, cached)) = self.containers.get(place) else { return };
        let owner = cached.attachment.clone();
        match self.node.standing(cached) {
            Err(why) => self.rows.push(failed(Some(owner), "container".to_owned(), why)),
            Ok(Standing::Not(why)) => {
                self.rows.push(Row { owner: Some(owner), ..left_out("container", why) });
            }
            Ok(Standing::Attached) => match belongings(cached) {
                Err(why) => self.rows.push(failed(Some(owner), "container".to_owned(), why)),
                Ok(all) => {
                    for belonging in all {
                        let row = self.one(place, belonging.as_ref());
                        let restored = row.state == State::Restored;
                        self.rows.push(row);
                        if restored {
                            let row = self.rows.len() - 1;
                            self.put_back.push(PutBack { row, container: place, belonging });
                        }
                    }
                }
            },
        }
    }

    fn one(&self, place: usize, belonging: &dyn Belonging) -> Row {
        let owner = self.containers.get(place).map(|(_, cached)| cached.attachment.clone());
        let row = |state, why: String| Row { owner: owner.clone(), what: belonging.name(), state, why };
        let Err(difference) = belonging.check() else { return row(State::Present, String::new()) };
        if self.mode == Mode::DryRun {
            return row(State::Missing, difference.to_string());
        }
        match belonging.put_back() {
            Ok(()) => row(State::Restored, difference.to_string()),
            Err(error) => row(State::Failed, error.to_string()),
        }
    }

    /// A container may have left while its things were put back; then they are to go again.
    fn look_again(&mut self) {
        let Self { node, caches, containers, rows, put_back, .. } = self;
        put_back.retain(|one| {
            let Some((number, cached)) = containers.get(one.container) else { return false };
            let remembered = caches.get(*number).map(|cache| cache.remembers(&cached.attachment));
            let stands = matches!(remembered, Some(Ok(true) | Err(_)))
                && !matches!(node.standing(cached), Ok(Standing::Not(_)));
            if stands {
                return true;
            }
            let Some(row) = rows.get_mut(one.row) else { return false };
            (row.state, row.why) = match one.belonging.take_away() {
                Ok(()) => (State::LeftOut, "the container left meanwhile: taken away again".to_owned()),
                Err(error) => (State::Failed, format!("the container left meanwhile: {error}")),
            };
            false
        });
    }
}

/// What a container has, by the plugins of its network that are known here.
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
    let (attachment, netns) = (cached.attachment.clone(), cached.netns.clone());
    Request { attachment, netns, args: &cached.args, config, env }
}

fn left_out(what: &str, why: String) -> Row {
    Row { owner: None, what: what.to_owned(), state: State::LeftOut, why }
}

fn failed(owner: Option<cni_spec::Attachment>, what: String, why: String) -> Row {
    Row { owner, what, state: State::Failed, why }
}

fn no_cache(directories: &[&Path]) -> String {
    let names: Vec<String> = directories.iter().map(|d| d.join("results").display().to_string()).collect();
    format!("there is no runtime's cache in {}", names.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let parse = |args: &[&str]| parse(&args.iter().map(|&a| a.to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&[]), Ok(Options::default()));
        let all = parse(&["--dry-run", "--cache-dir", "/a", "--cache-dir=/b", "--output", "json"]).unwrap();
        let directories = vec![PathBuf::from("/a"), PathBuf::from("/b")];
        assert_eq!(all, Options { mode: Mode::DryRun, directories, output: Output::Json });
        assert_eq!(parse(&["--cache-dir"]).unwrap_err(), "--cache-dir needs a value");
        assert_eq!(parse(&["-o", "xml"]).unwrap_err(), "--output is text or json, not \"xml\"");
        assert_eq!(parse(&["what"]).unwrap_err(), "unknown argument \"what\"");
    }
}
