// SPDX-License-Identifier: MIT OR Apache-2.0

//! The callers: a process for each operation, or one process that uses the library for all.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;

use super::node::{Node, Target};
use crate::measure::{self, Cost};
use crate::memory::{self, Measured};
use crate::trace;
use xtask::cni::Call;
use xtask_base::error::{Error, Result};

/// An operation on a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Add,
    Del,
}

/// A caller of one plugin set.
#[derive(Debug)]
pub(super) struct Contender {
    /// The caller's name in tables.
    pub(super) caller: &'static str,
    pub(super) node: Rc<Node>,
    way: Way,
}

/// The way to make an operation.
#[derive(Debug)]
enum Way {
    Process(Program),
    Library(Library),
}

/// A program that makes one operation and ends.
#[derive(Debug, Clone)]
pub(super) enum Program {
    Cnitool(PathBuf),
    Agent(PathBuf),
}

/// The process of the library's example `calls`.
#[derive(Debug)]
struct Library {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// Operations on many pods.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    /// From the first start to the last end.
    pub(super) wall: Duration,
    /// User and system time of the callers and of the plugins.
    pub(super) cpu: Duration,
    /// Each operation.
    pub(super) calls: Vec<Duration>,
}

/// An answer of `calls`.
#[derive(Debug, Deserialize)]
struct Answer {
    wall_us: u64,
    cpu_us: u64,
    peak_bytes: u64,
    calls_us: Vec<u64>,
}

impl Verb {
    /// The verb of cnitool and of `calls`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Del => "del",
        }
    }
}

impl Contender {
    /// A caller that is a process for each operation.
    pub(super) fn process(caller: &'static str, program: &Program, node: &Rc<Node>) -> Self {
        Self { caller, node: Rc::clone(node), way: Way::Process(program.clone()) }
    }

    /// Starts a caller that uses the library, on its node.
    pub(super) fn library(
        caller: &'static str,
        program: &Path,
        driver: &str,
        node: &Rc<Node>,
    ) -> Result<Self> {
        node.enter()?;
        let mut command = Command::new(program);
        command.arg(driver).args([&node.plugins, &node.configuration]).arg(node.name);
        command.env_clear().env("PATH", &node.path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Error::file("start", program, e))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or_else(|| Error::Failed("calls has no standard output".to_owned()))?;
        let way = Way::Library(Library { child, input, output: BufReader::new(output) });
        Ok(Self { caller, node: Rc::clone(node), way })
    }

    /// Makes a single operation.
    pub(super) fn call(&mut self, verb: Verb, target: &Target) -> Result<Cost> {
        self.node.enter()?;
        match &mut self.way {
            Way::Process(program) => {
                measure::call(program.call(&self.node, verb, target)).map(|(cost, _)| cost)
            }
            Way::Library(library) => {
                let answer = library.ask(verb, &[target], 1)?;
                let wall = answer.calls_us.first().copied().unwrap_or(answer.wall_us);
                Ok(Cost { wall: Duration::from_micros(wall), cpu: Duration::from_micros(answer.cpu_us) })
            }
        }
    }

    /// Makes an operation on each pod, with `callers` of them at the same time.
    pub(super) fn batch(&mut self, verb: Verb, targets: &[Target], callers: usize) -> Result<Batch> {
        self.node.enter()?;
        match &mut self.way {
            Way::Process(program) => program.batch(&self.node, verb, targets, callers),
            Way::Library(library) => {
                let answer = library.ask(verb, &targets.iter().collect::<Vec<_>>(), callers)?;
                Ok(Batch {
                    wall: Duration::from_micros(answer.wall_us),
                    cpu: Duration::from_micros(answer.cpu_us),
                    calls: answer.calls_us.into_iter().map(Duration::from_micros).collect(),
                })
            }
        }
    }

    /// Like [`Self::batch`], with the peak of the memory of all callers together. Such a run is not timed.
    pub(super) fn memory_of_batch(&mut self, verb: Verb, targets: &[Target], callers: usize) -> Result<u64> {
        let measured = match &self.way {
            Way::Process(program) => Measured::ChildrenOf(program.file()?),
            Way::Library(library) => Measured::Process(library.child.id()),
        };
        memory::peak_during(&measured, || self.batch(verb, targets, callers).map(drop))
    }

    /// The peak resident size of the calling process, traced during an ADD and a DEL, or since its start. Call this
    /// only if there are no other children, because a trace waits for all of them.
    pub(super) fn own_peak(&mut self, target: &Target) -> Result<u64> {
        self.node.enter()?;
        match &mut self.way {
            Way::Process(program) => {
                let traced = [Verb::Add, Verb::Del].map(|verb| {
                    trace::run(program.call(&self.node, verb, target)).map(|trace| trace.own_peak)
                });
                let [add, del] = traced;
                Ok(add?.max(del?))
            }
            Way::Library(library) => {
                library.ask(Verb::Add, &[target], 1)?;
                Ok(library.ask(Verb::Del, &[target], 1)?.peak_bytes)
            }
        }
    }
}

impl Program {
    /// The file that its processes execute.
    fn file(&self) -> Result<PathBuf> {
        let (Self::Cnitool(path) | Self::Agent(path)) = self;
        xtask_base::workspace::absolute(path)
    }

    fn call(&self, node: &Node, verb: Verb, target: &Target) -> Call {
        let ports = json!([{ "hostPort": target.port, "containerPort": 80, "protocol": "tcp" }]);
        let mut command = match self {
            Self::Cnitool(path) => {
                let mut command = Command::new(path);
                command.args([verb.word(), node.name]).arg(&target.netns).env_clear();
                command.env("CNI_PATH", &node.plugins).env("NETCONFPATH", &node.configuration);
                command.env("CAP_ARGS", json!({ "portMappings": ports }).to_string());
                command
            }
            Self::Agent(path) => {
                let mut command = Command::new(path);
                let word = if verb == Verb::Add { "up" } else { "down" };
                command.args(["pod", word, &format!("bench/{}", target.id), "--sandbox", &target.id]);
                command.env_clear();
                command.arg("--cni-bin-dir").arg(&node.plugins);
                command.arg("--cni-conf-dir").arg(&node.configuration);
                // The teardown has network, namespace and port from the cache.
                if verb == Verb::Add {
                    command.args(["--network", node.name, "--port", &format!("{}:80/tcp", target.port)]);
                    command.arg("--netns").arg(&target.netns);
                }
                command
            }
        };
        command.env("PATH", &node.path);
        let label = format!("{} {} {}", command.get_program().display(), verb.word(), target.id);
        Call::of(command, label)
    }

    fn batch(&self, node: &Node, verb: Verb, targets: &[Target], callers: usize) -> Result<Batch> {
        let (next, cpu, begun) = (AtomicUsize::new(0), measure::children_cpu()?, Instant::now());
        let caller = || {
            let mut times = Vec::new();
            while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                times.push(measure::call(self.call(node, verb, target))?.0.wall);
            }
            Ok(times)
        };
        let times: Result<Vec<Vec<Duration>>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..callers).map(|_| scope.spawn(caller)).collect();
            let panicked = |_| Err(Error::Failed("a calling thread ended with a panic".to_owned()));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        let wall = begun.elapsed();
        Ok(Batch { wall, cpu: measure::children_cpu()?.saturating_sub(cpu), calls: times?.concat() })
    }
}

impl Library {
    fn ask(&mut self, verb: Verb, targets: &[&Target], callers: usize) -> Result<Answer> {
        let pods: Vec<_> = targets
            .iter()
            .map(|target| json!({ "id": target.id, "netns": target.netns, "port": target.port }))
            .collect();
        let line = json!({ "verb": verb.word(), "callers": callers, "pods": pods }).to_string() + "\n";
        let failed = |e| Error::system("write to calls", e);
        self.input.as_mut().map_or(Ok(()), |input| input.write_all(line.as_bytes())).map_err(failed)?;
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(|e| Error::system("read from calls", e))?;
        serde_json::from_str(&answer)
            .map_err(|e| Error::Failed(format!("calls printed no figures ({e}): {answer:?}")))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // The process ends when its input does.
        drop(self.input.take());
        if let Err(e) = self.child.wait() {
            eprintln!("wait for calls: {e}");
        }
    }
}
