// SPDX-License-Identifier: MIT OR Apache-2.0

//! slipwayd in a cluster with many Nodes: a real API server and etcd, the agent of one node.
//!
//! [`server`] runs the API server, [`objects`] has the Nodes, [`agent`] the measured process and its routes, [`report`]
//! the figures. [`storm`] has more Nodes and changes than a real API server on the same processors can keep up with.

mod agent;
mod objects;
pub(super) mod report;
mod server;
mod storm;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;

use super::control::{fresh_state, idle_rate, load, machine};
use super::output;
use agent::{Agent, monitor, wait_for, wait_for_routes};
use objects::{NODES, name};
use report::{Report, Row, Samples, StormRow};
use server::{ADDRESS, JSON, Server, ask};
use xtask::build::Flavour;
use xtask::install;
use xtask::sandbox;
use xtask_base::error::{Error, Result};
use xtask_base::progress::Stages;
use xtask_base::run::{self, tool};
use xtask_base::workspace;

/// Requests to the API server at a time.
const AT_ONCE: usize = 16;
/// The longest wait for all routes.
const SYNC: Duration = Duration::from_secs(120);
/// The time after which the agent is at rest.
const SETTLE: Duration = Duration::from_secs(3);
/// The pause between two changes.
const PAUSE: Duration = Duration::from_millis(400);

/// Measure slipwayd with many Nodes.
///
/// For each number of Nodes, the task starts an API server and etcd of Kubernetes 1.20.2, which `cargo xtask test
/// --kube` builds. All Nodes are on one link, and each is as large as a kubelet makes it. Processor time is that of the
/// agent only.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// Numbers of other Nodes, one after the other
    #[arg(long, value_delimiter = ',', default_value = "1000,5000", value_name = "N,N,…",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: Vec<u32>,
    /// Heartbeats of all Nodes together in a second: reports that change times only
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    heartbeats: u32,
    /// Seconds at rest, and with heartbeats
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Nodes whose InternalIP changes, one after the other
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100))]
    changes: u32,
    /// Numbers of other Nodes that all change once a second, from an API server inside the benchmark
    #[arg(long, value_delimiter = ',', default_value = "5000", value_name = "N,N,…",
          value_parser = clap::value_parser!(u32).range(1..=25_000))]
    changing: Vec<u32>,
    /// Numbers of other Nodes of which only the start is measured, from the same API server
    #[arg(long, value_delimiter = ',', default_value = "20000", value_name = "N,N,…",
          value_parser = clap::value_parser!(u32).range(1..=25_000))]
    at_start: Vec<u32>,
    /// Measure nothing with a real API server
    #[arg(long)]
    without_server: bool,
    /// Our plugins' directory with slipway and slipwayd, instead of building them
    #[arg(long, value_name = "DIR")]
    slipway: Option<PathBuf>,
    /// Also write the figures to this directory, as cluster.json
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
}

struct Programs {
    slipway: PathBuf,
    agent: PathBuf,
    kube: PathBuf,
}

pub(super) fn run(args: &ClusterArgs) -> Result<()> {
    let kube = if args.without_server { PathBuf::new() } else { xtask_downloads::kube::programs()? };
    let programs = match &args.slipway {
        Some(dir) => {
            let dir = workspace::absolute(dir)?;
            Programs { slipway: dir.join("slipway"), agent: dir.join("slipwayd"), kube }
        }
        None => {
            let slipway = install::built(Flavour::Static)?.path;
            Programs { slipway, agent: install::built_agent(Flavour::Static)?, kube }
        }
    };
    let stages = Stages::new("bench")?;
    let state = fresh_state()?;
    sandbox::enter(sandbox::State::Folder(&state))?;
    make_uplink()?;
    let other_work = idle_rate()?;
    let conditions = vec![machine()?, load()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Error::system("start tokio", e))?;
    let mut rows = Vec::new();
    let with_server = args.nodes.iter().filter(|_| !args.without_server);
    for nodes in with_server {
        stages.run(&format!("{nodes} Nodes"), |_| {
            let row = Row::of(&runtime.block_on(measure(args, &programs, *nodes))?);
            let line = row.line();
            rows.push(row);
            Ok(line)
        })?;
    }
    let changing = args.changing.iter().map(|nodes| (*nodes, args.seconds));
    let mut storms = Vec::new();
    for (nodes, seconds) in changing.chain(args.at_start.iter().map(|nodes| (*nodes, 0))) {
        stages.run(&format!("{nodes} Nodes, {seconds} s of changes"), |_| {
            let samples = storm::measure(&programs.agent, &programs.slipway, nodes, seconds);
            let row = StormRow::of(&runtime.block_on(samples)?);
            let line = row.line();
            storms.push(row);
            Ok(line)
        })?;
    }
    let report = Report { conditions, other_work, heartbeats_per_second: args.heartbeats, rows, storms };
    output::publish(&report, args.save.as_deref())
}

/// The node's uplink. The API server looks for the link of the default route.
fn make_uplink() -> Result<()> {
    for line in [
        "link set lo up".to_owned(),
        "link add eth0 type veth peer name lan".to_owned(),
        "link set lan up".to_owned(),
        format!("address add {ADDRESS}/16 dev eth0"),
        "link set eth0 up".to_owned(),
        "route add default dev eth0".to_owned(),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        run::capture(&mut tool("ip", &words))?;
    }
    Ok(())
}

async fn measure(args: &ClusterArgs, programs: &Programs, nodes: u32) -> Result<Samples> {
    let directory = Path::new("/var/lib").join(format!("nodes-{nodes}"));
    let (server, client) = Server::start(&programs.kube, &directory).await?;
    // The first is this node.
    create(&client, nodes + 1).await?;
    let agent = Agent::start(&programs.agent, &programs.slipway, &server.kubeconfig, &directory)?;
    wait_for_routes(nodes, SYNC).await?;
    let first_sync = agent.begun.elapsed();
    let sync_cpu = agent.cpu()?;
    tokio::time::sleep(SETTLE).await;
    let memory = agent.memory()?;

    let (begun, cpu) = (Instant::now(), agent.cpu()?);
    tokio::time::sleep(Duration::from_secs(args.seconds.into())).await;
    let rest = (agent.cpu()?.saturating_sub(cpu), begun.elapsed());

    let (begun, cpu) = (Instant::now(), agent.cpu()?);
    let heartbeats = beat(&client, args, nodes).await?;
    let busy = (agent.cpu()?.saturating_sub(cpu), begun.elapsed());

    let mut reactions = Vec::new();
    for change in 0..args.changes {
        tokio::time::sleep(PAUSE).await;
        reactions.push(change_address(&client, change, nodes).await?);
    }
    let after = agent.memory()?;
    drop(agent);
    // Otherwise the agent's routes would still exist when the next number is measured.
    run::capture(&mut tool("ip", &["route", "flush", "proto", "83"]))?;
    Ok(Samples { nodes, first_sync, sync_cpu, memory, after, rest, busy, heartbeats, reactions })
}

async fn create(client: &Client, count: u32) -> Result<()> {
    let created = stream::iter(0..count).map(|number| async move {
        ask(client, "POST", JSON, NODES, &objects::node(number)).await.map(drop)
    });
    created.buffer_unordered(AT_ONCE).try_collect().await
}

/// Sends heartbeats of one Node after the other, and returns their number.
async fn beat(client: &Client, args: &ClusterArgs, nodes: u32) -> Result<u32> {
    let end = Instant::now() + Duration::from_secs(args.seconds.into());
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / args.heartbeats);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut sent = 0;
    while Instant::now() < end {
        ticks.tick().await;
        let path = format!("{NODES}/{}/status", name(1 + sent % nodes));
        let patch = objects::heartbeat(sent + 1);
        ask(client, "PATCH", "application/strategic-merge-patch+json", &path, &patch).await?;
        sent += 1;
    }
    Ok(sent)
}

/// Changes a Node's InternalIP; returns the time from the request to the kernel's notification of its new route.
async fn change_address(client: &Client, change: u32, nodes: u32) -> Result<Duration> {
    let number = 1 + change * (nodes / 100).max(1) % nodes;
    let address = objects::other_address(change);
    let monitor = monitor()?;
    // ip(8) subscribes within this time.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let begun = Instant::now();
    let path = format!("{NODES}/{}/status", name(number));
    let patch = objects::moved(number, &address);
    ask(client, "PATCH", "application/merge-patch+json", &path, &patch).await?;
    let time = wait_for(&monitor, &objects::pod_cidr(number), &address)?;
    Ok(time.duration_since(begun))
}
