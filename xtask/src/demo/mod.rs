// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask demo`: two pods, a published port, and a real request for each claim; once with nftables,
//! once with the BPF programs.

mod claims;
mod cluster;
mod ebpf;
mod keep;
mod leftovers;
mod screen;
mod world;

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Instant;

use nix::unistd::Uid;
use serde_json::{Value, json};

use crate::build::Flavour;
use crate::cni::{Chain, Family, Pod, SYSTEM_PATH, address};
use crate::install;
use crate::sandbox;
use claims::Probe;
use screen::Screen;
use world::{HOST_PORT, Life};
use xtask_base::error::{Error, Result};
use xtask_base::progress::seconds;
use xtask_base::run;
use xtask_base::workspace;

/// Show what Slipway does, in namespaces of its own: two pods on a bridge, a published port, and a
/// real request for each claim; first with nftables, then with the BPF programs.
///
/// Nothing on this machine's network is touched. Fails when a claim does not hold. The second act needs root,
/// and plugins with the BPF programs; otherwise it is left out, and the last line gives the reason. The plugins are built
/// without optimization, so that the demo begins soon; an ADD of the released ones takes less time than is shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Leave everything running, and print how to look around
    #[arg(long)]
    keep: bool,
    /// Remove what `--keep` left
    #[arg(long, conflicts_with = "keep")]
    remove: bool,
    /// Use the plugins of this directory instead of building ours
    #[arg(long, value_name = "DIR")]
    plugins: Option<PathBuf>,
    /// Instead, show a Kubernetes cluster of three nodes with kubelet, containerd and kube-proxy: two minutes. Kubernetes'
    /// programs are built below target if they are missing: half an hour of CPU
    #[arg(long, conflicts_with_all = ["keep", "remove", "plugins"])]
    cluster: bool,
}

/// A running demo.
#[derive(Debug)]
struct Demo {
    chain: Chain,
    pods: [Pod; 2],
    servers: Vec<Child>,
    life: Life,
    /// Why the act with the BPF programs is not shown.
    left_out: Option<String>,
}

/// An act, by what translates the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Nftables,
    Ebpf,
}

/// Runs the task.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.remove {
        return keep::remove();
    }
    if args.cluster {
        return cluster::run();
    }
    let (dir, mut left_out) = match &args.plugins {
        Some(dir) => (workspace::absolute(dir)?, None),
        None => plugin_dir()?,
    };
    if args.keep {
        keep::replace_older()?;
    }
    let begun = Instant::now();
    let is_root = Uid::effective().is_root();
    sandbox::enter(sandbox::State::Memory)?;
    world::build()?;
    if !is_root {
        left_out = left_out.or_else(|| Some("LEFT OUT: the eBPF backend: it needs root".to_owned()));
    }
    let left_out = left_out.or_else(|| ebpf::prepare(&dir));
    let life = if args.keep { Life::Stays } else { Life::Ends };
    let mut demo = Demo::new(dir, life, left_out)?;
    let outcome = demo.show();
    if args.keep {
        keep::leave_up(&demo.chain, &demo.servers)?;
    } else {
        demo.stop();
    }
    outcome?;
    println!("\nEvery claim holds ({}).", seconds(begun.elapsed()));
    if let Some(left_out) = &demo.left_out {
        println!("{left_out}");
    }
    Ok(())
}

/// Builds the plugins and lets the binary install itself below the target folder. Returns also what it lacks.
fn plugin_dir() -> Result<(PathBuf, Option<String>)> {
    // Not the release build: its link-time optimization takes longer than everything else in the demo, and the tests use
    // what is compiled here.
    let binary = install::built(Flavour::Debug)?;
    let dir = workspace::scratch("demo")?.join("bin");
    run::capture(Command::new(binary.path).args(["install", "--to"]).arg(&dir))?;
    Ok((dir, binary.left_out))
}

/// The demo's network, as a list in /etc/cni/net.d has it.
fn chain(dir: PathBuf, act: Act) -> Chain {
    let mut bridge = json!({
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": true,
        "ipMasq": true,
        "hairpinMode": true,
        "ipam": {
            "type": "host-local",
            "ranges": [[{ "subnet": "10.88.0.0/24" }], [{ "subnet": "fd00:88::/64" }]],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
        },
    });
    let mut portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    if act == Act::Ebpf {
        bridge["ipMasqBackend"] = json!("ebpf");
        portmap["backend"] = json!("ebpf");
    }
    let path = SYSTEM_PATH.to_owned();
    Chain { dir, network: "demo".to_owned(), version: "1.0.0", path, plugins: vec![bridge, portmap] }
}

/// The port mappings of the pod `web`, as a runtime passes them.
fn ports() -> Value {
    json!([{ "hostPort": HOST_PORT, "containerPort": 80, "protocol": "tcp" }])
}

impl Demo {
    fn new(dir: PathBuf, life: Life, left_out: Option<String>) -> Result<Self> {
        let pod =
            |name: &str| -> Result<Pod> { Ok(Pod { id: name.to_owned(), netns: sandbox::add_netns(name)? }) };
        let chain = chain(dir, Act::Nftables);
        let pods = [pod("web")?, pod("client")?];
        let mut servers = Vec::new();
        for name in ["web", world::OUTSIDE] {
            servers.push(world::serve(name, life)?);
        }
        Ok(Self { chain, pods, servers, life, left_out })
    }

    /// Shows both acts. With `--keep` the pods are attached again at the end.
    fn show(&mut self) -> Result<()> {
        let screen = Screen::new();
        let mut failed = 0;
        if self.left_out.is_none() {
            screen.act("First act: nftables");
        }
        failed += self.play(&screen, Act::Nftables)?;
        if self.left_out.is_none() {
            screen.act("Second act: the BPF programs");
            failed += self.play(&screen, Act::Ebpf)?;
        }
        if self.life == Life::Stays {
            screen.title("Attached again, to look around");
            self.chain = chain(self.chain.dir.clone(), Act::Nftables);
            self.attach(&screen)?;
        }
        match failed {
            0 => Ok(()),
            1 => Err(Error::Failed("one claim does not hold".to_owned())),
            n => Err(Error::Failed(format!("{n} claims do not hold"))),
        }
    }

    /// Plays an act, from the ADDs to the proof that the DELs left nothing. Returns how many claims failed.
    fn play(&mut self, screen: &Screen, act: Act) -> Result<u32> {
        self.chain = chain(self.chain.dir.clone(), act);
        let before = leftovers::Snapshot::take()?;
        if act == Act::Ebpf {
            ebpf::set_up(screen, &self.chain.dir)?;
        }
        screen.title("A pod gets an interface, addresses and a published port");
        let results = self.attach(screen)?;
        world::wait_for_addresses(&["web", "client"])?;
        let mut failed = self.claims(screen, &results)?;
        if act == Act::Ebpf {
            failed += ebpf::prove(screen, &self.chain.dir)?;
        }
        self.published(screen, &mut failed)?;
        self.detach(screen, &results)?;
        if act == Act::Ebpf {
            ebpf::tear_down(screen, &self.chain.dir)?;
        }
        failed += leftovers::prove(screen, &before, &self.gone(&results))?;
        failed += Probe::closed_port().run(screen);
        Ok(failed)
    }

    /// ADD for both pods: a process per plugin, as a runtime does it.
    fn attach(&self, screen: &Screen) -> Result<[Value; 2]> {
        let mut results = [Value::Null, Value::Null];
        for (index, pod) in self.pods.iter().enumerate() {
            let begun = Instant::now();
            results[index] = self.chain.add(pod, &self.ports_of(index))?;
            let addresses = [Family::V4, Family::V6].map(|f| address(&results[index], f).unwrap_or_default());
            screen.step(
                &format!("ADD {}", pod.id),
                begun.elapsed(),
                &format!("{} and {}", addresses[0], addresses[1]),
            );
        }
        screen.picture(&results);
        Ok(results)
    }

    fn ports_of(&self, index: usize) -> Value {
        if index == 0 { ports() } else { Value::Null }
    }

    fn claims(&self, screen: &Screen, results: &[Value; 2]) -> Result<u32> {
        let addresses = claims::Addresses::of(results)
            .ok_or_else(|| Error::Failed(format!("a pod lacks an address of either family: {results:?}")))?;
        let mut failed = 0;
        for (title, probes) in claims::all(&addresses) {
            screen.title(title);
            failed += probes.iter().map(|probe| probe.run(screen)).sum::<u32>();
        }
        Ok(failed)
    }

    /// `slipway ports` must name the port and its owner.
    fn published(&self, screen: &Screen, failed: &mut u32) -> Result<()> {
        let slipway = self.chain.dir.join("slipway");
        if !slipway.is_file() {
            return Ok(());
        }
        screen.title("What is published on this node");
        let table = run::capture(Command::new(slipway).arg("ports"))?;
        screen.shown("slipway ports", &table);
        let port = HOST_PORT.to_string();
        let row = table.lines().any(|line| line.contains(&port) && line.contains("web"));
        *failed += screen.verdict("the table names the port and the pod that owns it", row);
        Ok(())
    }

    fn detach(&self, screen: &Screen, results: &[Value; 2]) -> Result<()> {
        screen.title("The pods go");
        for (index, pod) in self.pods.iter().enumerate() {
            let begun = Instant::now();
            self.chain.del(pod, &self.ports_of(index), &results[index])?;
            screen.step(&format!("DEL {}", pod.id), begun.elapsed(), "");
        }
        Ok(())
    }

    /// The names and addresses that the DELs must have removed.
    fn gone(&self, results: &[Value; 2]) -> leftovers::Gone {
        leftovers::Gone {
            slipway: Some(self.chain.dir.join("slipway")).filter(|path| path.is_file()),
            network: self.chain.network.clone(),
            names: self.pods.iter().map(|pod| pod.id.clone()).collect(),
            addresses: results
                .iter()
                .flat_map(|r| [Family::V4, Family::V6].into_iter().filter_map(|f| address(r, f)))
                .collect(),
        }
    }

    fn stop(&mut self) {
        for server in &mut self.servers {
            // The server may have ended already.
            let _ = server.kill().and_then(|()| server.wait());
        }
    }
}
