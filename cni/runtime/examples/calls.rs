// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attaches and detaches pods as commands on standard input say, and prints what each command costs. `cargo xtask
//! bench runtime` runs this process to measure the library.
//!
//! ```console
//! # cargo run --release -p cni-runtime --features pods --example calls -- blocking /opt/cni/bin /etc/cni/net.d pods
//! {"verb": "add", "callers": 1, "pods": [{"id": "c1", "netns": "/run/netns/c1", "port": 8080}]}
//! ```
//!
//! The first argument is the driver: `blocking`, `tokio` or `manager`. The answer is a line of JSON, too.
#![allow(clippy::print_stdout, reason = "prints the figures")]

use std::cell::RefCell;
use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cni_runtime::pods::{Attach, Manager, Parameters, Pod};
use cni_runtime::{CallOptions, Container, Network, Runtime, asynchronous, config};
use cni_spec::PortMapping;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::task::LocalSet;

type Failure = Box<dyn Error>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verb {
    Add,
    Del,
}

/// A pod of a command, with one published TCP port.
#[derive(Debug, Clone, Deserialize)]
struct Target {
    id: String,
    netns: String,
    port: u16,
}

/// A line of standard input.
#[derive(Debug, Deserialize)]
struct Command {
    verb: Verb,
    /// The number of operations at the same time.
    callers: usize,
    pods: Vec<Target>,
}

/// A line of standard output.
#[derive(Debug, Serialize)]
struct Cost {
    wall_us: u128,
    /// User and system time of this process and of the plugins.
    cpu_us: i64,
    /// This process's peak resident size since its start.
    peak_bytes: u64,
    /// The operations, in the order of their ends.
    calls_us: Vec<u128>,
}

enum Driver {
    Blocking(Runtime, Network),
    Tokio(asynchronous::Runtime, Network),
    Manager(Manager),
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [driver, plugins, directory, name] = args.as_slice() else {
        return Err("usage: calls blocking|tokio|manager PLUGIN_DIR CONFIG_DIR NETWORK".into());
    };
    let builder = || Runtime::builder().plugin_dir(plugins);
    let network = || config::load(Path::new(directory), name);
    if driver == "blocking" {
        return serve(&Driver::Blocking(builder().build(), network()?), |driver, command| {
            command.pods.iter().map(|pod| driver.call_blocking(command.verb, pod)).collect()
        });
    }
    let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let driver = match driver.as_str() {
        "tokio" => Driver::Tokio(builder().build_async(), network()?),
        "manager" => {
            let manager = Manager::builder(builder()).config_dir(directory).default_network(name);
            Driver::Manager(reactor.block_on(manager.start())?)
        }
        other => return Err(format!("unknown driver {other}").into()),
    };
    serve(&Rc::new(driver), |driver, command| LocalSet::new().block_on(&reactor, call_all(driver, command)))
}

/// Executes each line of standard input.
fn serve<D>(
    driver: &D,
    call: impl Fn(&D, &Command) -> Result<Vec<Duration>, Failure>,
) -> Result<(), Failure> {
    for line in std::io::stdin().lock().lines() {
        let command: Command = serde_json::from_str(&line?)?;
        let (cpu, begin) = (cpu_us()?, Instant::now());
        let calls = call(driver, &command)?;
        let wall_us = begin.elapsed().as_micros();
        let calls_us = calls.iter().map(Duration::as_micros).collect();
        let cost = Cost { wall_us, cpu_us: cpu_us()? - cpu, peak_bytes: peak()?, calls_us };
        println!("{}", serde_json::to_string(&cost)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Runs the operations of a command, as many at the same time as it has callers.
async fn call_all(driver: &Rc<Driver>, command: &Command) -> Result<Vec<Duration>, Failure> {
    let pods = Rc::new(RefCell::new(command.pods.clone().into_iter()));
    let verb = command.verb;
    let callers = (0..command.callers).map(|_| {
        let (driver, pods) = (Rc::clone(driver), Rc::clone(&pods));
        tokio::task::spawn_local(async move {
            let mut times = Vec::new();
            loop {
                let next = pods.borrow_mut().next();
                let Some(pod) = next else { return Ok::<_, Failure>(times) };
                times.push(driver.call(verb, &pod).await?);
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await??);
    }
    Ok(times)
}

impl Driver {
    fn call_blocking(&self, verb: Verb, target: &Target) -> Result<Duration, Failure> {
        let Self::Blocking(runtime, network) = self else { return Err("not the blocking calls".into()) };
        let container = target.container();
        let begin = Instant::now();
        match verb {
            Verb::Add => drop(runtime.add(network, &container)?),
            Verb::Del => runtime.del(network, &container)?,
        }
        Ok(begin.elapsed())
    }

    async fn call(&self, verb: Verb, target: &Target) -> Result<Duration, Failure> {
        let (container, pod, options) = (target.container(), target.pod(verb), CallOptions::new());
        let begin = Instant::now();
        match (self, verb) {
            (Self::Tokio(runtime, network), Verb::Add) => drop(runtime.add(network, &container).await?),
            (Self::Tokio(runtime, network), Verb::Del) => runtime.del(network, &container).await?,
            (Self::Manager(manager), Verb::Add) => drop(manager.set_up(&pod, &options).await?),
            (Self::Manager(manager), Verb::Del) => manager.tear_down(&pod, &options).await?,
            (Self::Blocking(..), _) => return Err("the blocking calls have no futures".into()),
        }
        Ok(begin.elapsed())
    }
}

impl Target {
    fn container(&self) -> Container {
        let ports = json!([{"hostPort": self.port, "containerPort": 80, "protocol": "tcp"}]);
        Container::new(&self.id, "eth0").netns(&self.netns).capability("portMappings", ports)
    }

    /// The pod is attached to the default network. The teardown takes network and port from the cache.
    fn pod(&self, verb: Verb) -> Pod {
        let port = PortMapping {
            host_port: self.port,
            container_port: 80,
            protocol: "tcp".to_owned(),
            host_ip: String::new(),
        };
        let parameters = Parameters { port_mappings: vec![port], ..Parameters::default() };
        let attach = Attach { parameters, ..Attach::default() };
        Pod {
            namespace: "bench".to_owned(),
            name: self.id.clone(),
            sandbox: self.id.clone(),
            netns: self.netns.clone(),
            networks: if verb == Verb::Add { vec![attach] } else { Vec::new() },
            ..Pod::default()
        }
    }
}

fn cpu_us() -> Result<i64, Failure> {
    let mut sum = 0;
    for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(who)?;
        sum += usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    }
    Ok(sum)
}

/// `VmHWM` in proc(5).
fn peak() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}
