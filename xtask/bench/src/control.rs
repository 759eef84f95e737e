// SPDX-License-Identifier: MIT OR Apache-2.0

//! The run: contenders, numbers of pods and repetitions, interleaved.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::ControlArgs;
use super::contender::{Backend, Contender};
use super::floor::Floor;
use super::measure;
use super::output;
use super::report::{FloorSeries, Profile, Report, Series};
use super::sets::version;
use xtask::sandbox;
use xtask_base::error::Result;
use xtask_base::files;
use xtask_base::progress::Stages;
use xtask_base::run::{self, tool};
use xtask_base::workspace;

/// The name of our plugins.
const OWN: &str = "slipway";
/// Pause before each operation, so that work of the last one in the kernel is not counted.
pub(super) const SETTLE: Duration = Duration::from_millis(30);
const IDLE: Duration = Duration::from_secs(2);
/// Warm-up operations, which load files into memory and make tables.
const WARM_UP: u32 = 2;

/// Repetitions, if their number is not given.
const REPETITIONS: u32 = 20;

struct Run {
    contenders: Vec<Contender>,
    floor: Floor,
    reps: u32,
    series: Vec<Series>,
    floors: Vec<FloorSeries>,
    number: u32,
}

pub(super) fn run(args: &ControlArgs) -> Result<()> {
    let (own, peer) = (args.plugins.own()?, args.plugins.peer()?);
    let mut conditions = conditions(args, &peer)?;
    let state = fresh_state()?;
    let stages = Stages::new("bench")?;
    sandbox::enter(sandbox::State::Folder(&state))?;
    let mut run = Run::new(&own, &peer, args)?;
    if args.foreign_rules > 0 {
        let name = format!("{} foreign rules", args.foreign_rules);
        stages.run(&name, |_| run.add_foreign_rules(args))?;
    }
    let mut profiles = Vec::new();
    stages.run("warm up, memory", |_| {
        profiles = run.profiles(&mut conditions)?;
        Ok(format!("{} contenders", run.contenders.len()))
    })?;
    let mut levels = args.pods.clone();
    levels.sort_unstable();
    levels.dedup();
    for pods in levels {
        run.fill(pods, &stages)?;
        let idle = idle_rate()?;
        conditions
            .push(format!("idle control before {pods} pods: {:.1} % of one processor busy", idle * 100.0));
        stages.run(&format!("{pods} pods: measure"), |_| run.measure(pods, idle))?;
    }
    let report = Report::new(conditions, &run.series, &run.floors, profiles, OWN);
    output::publish(&report, args.save.as_deref())
}

/// The plugin sets, each with its own node.
pub(super) fn contenders(args: &ControlArgs, own: &Path, peer: &Path) -> Result<Vec<Contender>> {
    let mut contenders = vec![
        (OWN, own, Backend::Default),
        ("slipway-iptables", own, Backend::Iptables),
        ("peer-nftables", peer, Backend::Nftables),
        ("peer-iptables", peer, Backend::Iptables),
    ];
    if args.ebpf {
        contenders.insert(1, ("slipway-ebpf", own, Backend::Ebpf));
    }
    if let Some(older) = &args.older_peer {
        contenders.push(("older-iptables", older, Backend::Iptables));
    }
    let make = |(name, dir, backend)| Contender::new(name, dir, backend, &args.iptables);
    contenders.into_iter().map(make).collect()
}

/// Warms up, and drops a contender that does not support its backend, which a condition names.
pub(super) fn warm_up(contenders: &mut Vec<Contender>, conditions: &mut Vec<String>) -> Result<String> {
    for mut contender in std::mem::take(contenders) {
        if !contender.knows_its_backend()? {
            conditions.push(format!("{}: these plugins have no such backend, left out", contender.name));
            continue;
        }
        for _ in 0..WARM_UP {
            contender.sample(|| ())?;
        }
        contenders.push(contender);
    }
    Ok(format!("{} contenders", contenders.len()))
}

impl Run {
    fn new(own: &Path, peer: &Path, args: &ControlArgs) -> Result<Self> {
        let contenders = contenders(args, own, peer)?;
        let reps = args.reps.unwrap_or(REPETITIONS);
        Ok(Self { contenders, floor: Floor::new()?, reps, series: Vec::new(), floors: Vec::new(), number: 0 })
    }

    /// Warms up, drops a contender that does not support its backend, and takes the figures that are not times.
    fn profiles(&mut self, conditions: &mut Vec<String>) -> Result<Vec<Profile>> {
        warm_up(&mut self.contenders, conditions)?;
        let mut profiles = Vec::new();
        for contender in &mut self.contenders {
            let (add, del) = contender.trace()?;
            let size = directory_size(&contender.dir)?;
            profiles.push(Profile::new(&contender.name, version(&contender.dir), size, &add, &del));
        }
        for _ in 0..WARM_UP {
            self.number += 1;
            self.floor.sample(self.number)?;
        }
        Ok(profiles)
    }

    /// Loads the same rules on each node, also on those without iptables as a backend.
    fn add_foreign_rules(&mut self, args: &ControlArgs) -> Result<String> {
        let rules = foreign_rules(args.foreign_rules);
        for contender in &self.contenders {
            contender.restore(&args.iptables, &rules)?;
        }
        Ok(format!("iptables-{}", args.iptables))
    }

    fn fill(&mut self, pods: u32, stages: &Stages) -> Result<()> {
        if pods == 0 {
            return Ok(());
        }
        for contender in &mut self.contenders {
            let name = format!("{pods} pods: {}", contender.name);
            stages.run(&name, |log| {
                let said = RefCell::new(&log.file);
                contender.fill(pods, |present| {
                    use std::io::Write;
                    // The number is for the live line, and the figures do not depend on it.
                    let _ = writeln!(said.borrow_mut(), "{present} of {pods}");
                })?;
                Ok(String::new())
            })?;
        }
        self.floor.fill(pods)
    }

    /// All repetitions at one number of pods. A different contender begins each.
    fn measure(&mut self, pods: u32, idle: f64) -> Result<String> {
        let count = self.contenders.len();
        let mut series: Vec<Series> = self
            .contenders
            .iter()
            .map(|c| Series { contender: c.name.clone(), pods, samples: Vec::new(), busy: Duration::ZERO })
            .collect();
        let mut floor = FloorSeries { pods, samples: Vec::new() };
        for rep in 0..self.reps {
            for turn in 0..count {
                let index = (usize::try_from(rep).unwrap_or(0) + turn) % count;
                let (busy, begun) = (measure::busy()?, Instant::now());
                let sample = self.contenders[index].sample(|| thread::sleep(SETTLE))?;
                thread::sleep(SETTLE);
                let idle = begun.elapsed().mul_f64(idle);
                series[index].busy += measure::busy()?.saturating_sub(busy).saturating_sub(idle);
                series[index].samples.push(sample);
            }
            self.number += 1;
            floor.samples.push(self.floor.sample(self.number)?);
            thread::sleep(SETTLE);
        }
        self.series.extend(series);
        self.floors.push(floor);
        Ok(format!("{} times {count} ADDs and DELs", self.reps))
    }
}

/// An input of iptables-restore with this many rules, twenty in each chain. No rule jumps to these chains.
fn foreign_rules(count: u32) -> String {
    use std::fmt::Write;
    let mut text = String::from("*nat\n");
    let chain = |rule: u32| format!("KUBE-SEP-{:08}", rule / 20);
    for rule in (0..count).step_by(20) {
        let _ = writeln!(text, ":{} - [0:0]", chain(rule));
    }
    for rule in 0..count {
        let [_, b, c, d] = rule.to_be_bytes();
        let _ = writeln!(
            text,
            "-A {} -p tcp -m comment --comment \"default/svc-{rule}\" -m tcp --dport {} -j DNAT \
             --to-destination 10.{b}.{c}.{d}:80",
            chain(rule),
            rule % 60_000 + 1,
        );
    }
    text.push_str("COMMIT\n");
    text
}

/// The share of one processor that is busy while this task does nothing.
pub(super) fn idle_rate() -> Result<f64> {
    thread::sleep(SETTLE);
    let (busy, begun) = (measure::busy()?, Instant::now());
    thread::sleep(IDLE);
    Ok((measure::busy()?.saturating_sub(busy)).as_secs_f64() / begun.elapsed().as_secs_f64())
}

/// An empty folder for all state, on the checkout's disk.
pub(super) fn fresh_state() -> Result<PathBuf> {
    let dir = workspace::scratch("bench")?.join("var-lib");
    workspace::remove(&dir)?;
    files::create_dir(&dir)?;
    Ok(dir)
}

fn conditions(args: &ControlArgs, peer: &Path) -> Result<Vec<String>> {
    Ok(vec![
        format!(
            "bridge + host-local + portmap, 3 ports, ipMasq, IPv4; {} repetitions, interleaved",
            args.reps.unwrap_or(REPETITIONS)
        ),
        machine()?,
        format!("peer: {}", version(peer)),
        format!("iptables-{}, {} foreign rules in the nat table", args.iptables, args.foreign_rules),
        "pods present: attached by each contender itself with real ADDs, 500 to a bridge; the floor's map \
         was filled in bulk"
            .to_owned(),
        load(),
    ])
}

/// The kernel, the processors and the disk with the state.
pub(super) fn machine() -> Result<String> {
    let kernel = run::capture(&mut tool("uname", &["-srm"]))?;
    let disk = run::capture(tool("stat", &["--file-system", "--format=%T"]).arg(workspace::target()))?;
    let processors = thread::available_parallelism().map_or(0, std::num::NonZero::get);
    Ok(format!("{}, {processors} processors, state on {}", kernel.trim(), disk.trim()))
}

/// The machine's load, as other work makes it.
pub(super) fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("load before the run: {}", load.trim())
}

/// The bytes of all regular files in a plugin directory.
fn directory_size(dir: &Path) -> Result<u64> {
    let metadata = files::list(dir)?.into_iter().filter_map(|path| path.symlink_metadata().ok());
    Ok(metadata.filter(fs::Metadata::is_file).map(|file| file.len()).sum())
}
