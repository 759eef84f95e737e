// SPDX-License-Identifier: MIT OR Apache-2.0

//! The runtime's side: callers of the same plugins, next to the reference's cnitool.
//!
//! [`caller`] makes operations by processes or by the library, [`node`] has a plugin set with its own node and the
//! pods that all share, [`watch`] measures a running process, [`report`] computes the figures.

mod caller;
mod node;
pub(super) mod report;
mod watch;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::thread;

use super::control::{SETTLE, fresh_state, idle_rate, load, machine};
use super::output;
use super::sets::{Callers, Plugins, version};
use caller::{Contender, Program, Verb};
use node::{Node, Target};
use report::{Batches, Calls, Name, Report, Samples};
use watch::Watch;
use xtask::sandbox;
use xtask_base::error::{Error, Result};
use xtask_base::progress::Stages;
use xtask_downloads::runtimes;

const OWN: &str = "slipway";
const REFERENCE: &str = "reference";

/// The callers, in the order of the tables.
const CALLERS: [&str; 6] =
    ["library", "library (tokio)", "manager", "cnitool", "slipwayd", "reference cnitool"];

/// The callers that the batches of a plugin set have. Of the reference's plugins only its own caller: a batch takes
/// several times as long as with ours.
const BATCHES: [(&str, &[&str]); 2] =
    [(OWN, &["manager", "slipwayd", "cnitool", "reference cnitool"]), (REFERENCE, &["reference cnitool"])];

/// Measure callers of the same plugins: the library, cnitool, slipwayd, and the reference's cnitool.
///
/// The task first measures ADD and DEL of one pod (bridge, host-local, and portmap with one TCP port and ipMasq) with
/// our plugins and with the reference's, each on a node (a network namespace) whose state is on a real disk. The
/// callers alternate. The task then attaches many pods at once, and finally measures the memory of `slipwayd networks
/// --watch` and how fast that command notices a changed file.
#[derive(Debug, clap::Args)]
pub(crate) struct RuntimeArgs {
    #[command(flatten)]
    plugins: Plugins,
    /// ADDs and DELs of one pod by each caller
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: u32,
    /// Times that each caller attaches and detaches all pods
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Pods that are attached, then detached
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pods: u16,
    /// Operations at the same time
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1000))]
    callers: u16,
    /// Changes of a configuration file
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    changes: u32,
    /// Also write the figures to this directory, as runtime.json and runtime.csv
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
}

/// A caller of a plugin set, with its samples.
struct Line {
    contender: Contender,
    calls: Calls,
    batches: Option<Batches>,
}

struct Run {
    nodes: [Rc<Node>; 2],
    targets: Vec<Target>,
    lines: Vec<Line>,
    other_work: f64,
}

pub(super) fn run(args: &RuntimeArgs) -> Result<()> {
    let (own, peer) = (args.plugins.own()?, args.plugins.peer()?);
    let programs = args.plugins.callers()?;
    let stages = Stages::new("bench")?;
    let (mut cnitool, mut newest) = (PathBuf::new(), String::new());
    stages.run("cnitool", |log| {
        (cnitool, newest) = runtimes::cnitool(log)?;
        Ok(newest.clone())
    })?;
    let versions = format!("plugins: {}; {}", version(&own), version(&peer));
    let mut conditions =
        vec![shape(args), machine()?, versions, format!("reference caller: {newest}"), load()];
    let state = fresh_state()?;
    sandbox::enter(sandbox::State::Folder(&state))?;

    let nodes = [Rc::new(Node::new(OWN, &own)?), Rc::new(Node::new(REFERENCE, &peer)?)];
    let mut run = Run { nodes, targets: node::targets(args.pods)?, lines: Vec::new(), other_work: 0.0 };
    stages.run("warm up, memory", |_| run.warm_up(&own, &cnitool, &programs))?;
    run.other_work = idle_rate()?;
    stages.run("one pod", |_| run.measure_calls(args.reps))?;
    stages.run("memory of many pods", |_| run.warm_up_batches(args.callers.into()))?;
    run.other_work = idle_rate()?.max(run.other_work);
    stages.run("many pods", |_| run.measure_batches(args.callers.into(), args.rounds))?;
    let mut watched = None;
    stages.run("changed files", |_| {
        watched = Some(watch::measure(&programs.agent, &run.nodes[0], args.changes)?);
        Ok(format!("{} changes", args.changes))
    })?;
    conditions.push(format!(
        "other work before the measurements: {:.1} % of one processor",
        run.other_work * 100.0
    ));
    let watch =
        watched.ok_or_else(|| Error::Failed("slipwayd networks --watch was not measured".to_owned()))?;
    let report = Report::new(conditions, &run.into_samples(args, watch));
    output::publish(&report, args.save.as_deref())
}

fn shape(args: &RuntimeArgs) -> String {
    format!(
        "bridge + host-local + portmap, 1 TCP port, ipMasq, IPv4, nftables; {} repetitions and {} rounds, interleaved",
        args.reps, args.rounds
    )
}

impl Run {
    /// Starts the callers, makes each node's tables, and takes the figures that are not times.
    fn warm_up(&mut self, own: &Path, cnitool: &Path, programs: &Callers) -> Result<String> {
        let processes = [
            ("slipwayd", Program::Agent(programs.agent.clone())),
            ("cnitool", Program::Cnitool(own.join("cnitool"))),
            ("reference cnitool", Program::Cnitool(cnitool.to_owned())),
        ];
        let drivers = [("library", "blocking"), ("library (tokio)", "tokio"), ("manager", "manager")];
        let nodes = self.nodes.clone();
        // The traces come first: they wait for all children, and the library's processes do not end.
        for node in &nodes {
            for (name, program) in &processes {
                self.add(Contender::process(name, program, node))?;
            }
        }
        for node in &nodes {
            for (name, driver) in &drivers {
                self.add(Contender::library(name, &programs.calls, driver, node)?)?;
            }
        }
        Ok(format!("{} callers", self.lines.len()))
    }

    /// Adds a caller, after an ADD that attaches a pod and a DEL that detaches it.
    fn add(&mut self, mut contender: Contender) -> Result<()> {
        let [target, ..] = &self.targets[..] else {
            return Err(Error::Failed("there are no pods".to_owned()));
        };
        for (verb, attached) in [(Verb::Add, 1), (Verb::Del, 0)] {
            contender.call(verb, target)?;
            contender.node.expect(attached)?;
        }
        let peak = contender.own_peak(target)?;
        let name = Name { caller: contender.caller.to_owned(), plugins: contender.node.name.to_owned() };
        let has_batches =
            BATCHES.iter().any(|(set, callers)| *set == name.plugins && callers.contains(&&*name.caller));
        let batches = has_batches.then(|| Batches { name: name.clone(), memory: 0, rounds: Vec::new() });
        self.lines.push(Line { contender, calls: Calls { name, peak, samples: Vec::new() }, batches });
        Ok(())
    }

    /// ADD and DEL of one pod, a different caller first in each repetition.
    fn measure_calls(&mut self, reps: u32) -> Result<String> {
        let count = self.lines.len();
        let mut targets = self.targets.iter().cycle();
        for rep in 0..reps {
            for turn in 0..count {
                let index = (usize::try_from(rep).unwrap_or(0) + turn) % count;
                let line = &mut self.lines[index];
                let Some(target) = targets.next() else { break };
                thread::sleep(SETTLE);
                let add = line.contender.call(Verb::Add, target)?;
                thread::sleep(SETTLE);
                let del = line.contender.call(Verb::Del, target)?;
                line.calls.samples.push((add, del));
            }
        }
        self.expect_none()?;
        Ok(format!("{reps} times {count} ADDs and DELs"))
    }

    /// A first round of many pods, which is not timed, as the callers' memory is read during it.
    fn warm_up_batches(&mut self, callers: usize) -> Result<String> {
        for Line { contender, batches, .. } in &mut self.lines {
            let Some(batches) = batches else { continue };
            for (verb, attached) in [(Verb::Add, self.targets.len()), (Verb::Del, 0)] {
                let memory = contender.memory_of_batch(verb, &self.targets, callers)?;
                contender.node.expect(attached)?;
                batches.memory = batches.memory.max(memory);
            }
        }
        Ok(format!("{} pods, {callers} callers", self.targets.len()))
    }

    /// Many pods up, then down, a different caller first in each round.
    fn measure_batches(&mut self, callers: usize, rounds: u32) -> Result<String> {
        let count = self.lines.len();
        for round in 0..rounds {
            for turn in 0..count {
                let index = (usize::try_from(round).unwrap_or(0) + turn) % count;
                let Line { contender, batches: Some(batches), .. } = &mut self.lines[index] else { continue };
                thread::sleep(SETTLE);
                let up = contender.batch(Verb::Add, &self.targets, callers)?;
                contender.node.expect(self.targets.len())?;
                thread::sleep(SETTLE);
                let down = contender.batch(Verb::Del, &self.targets, callers)?;
                batches.rounds.push((up, down));
            }
        }
        self.expect_none()?;
        Ok(format!("{rounds} rounds"))
    }

    fn expect_none(&self) -> Result<()> {
        self.nodes.iter().try_for_each(|node| {
            node.enter()?;
            node.expect(0)
        })
    }

    /// Sorts the lines as the tables have them: by plugin set, in the order of [`CALLERS`].
    fn into_samples(mut self, args: &RuntimeArgs, watch: Watch) -> Samples {
        let place = |name: &Name| {
            let set = usize::from(name.plugins != OWN);
            (set, CALLERS.iter().position(|caller| *caller == name.caller))
        };
        self.lines.sort_by_key(|line| place(&line.calls.name));
        let (calls, batches): (Vec<_>, Vec<_>) =
            self.lines.into_iter().map(|line| (line.calls, line.batches)).unzip();
        Samples {
            calls,
            batches: batches.into_iter().flatten().collect(),
            watch,
            pods: args.pods,
            callers: args.callers,
            other_work: self.other_work,
        }
    }
}
