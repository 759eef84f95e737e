//! `cargo xtask demo`: two pods, a published port, and every claim proven by a real request.

mod claims;
mod keep;
mod leftovers;
mod screen;
mod world;

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Instant;

use serde_json::{Value, json};

use crate::build::Flavour;
use crate::cni::{Chain, Family, Pod, SYSTEM_PATH, address};
use crate::error::{Error, Result};
use crate::progress::seconds;
use crate::{install, run, sandbox, workspace};
use claims::{HOST_PORT, Probe};
use screen::Screen;
use world::Life;

/// Show what Slipway does, in namespaces of its own: two pods on a bridge, a published port, and a
/// real request for each claim.
///
/// Nothing on this machine's network is touched. Fails when a claim does not hold.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Leave everything up, and say how to look around in it
    #[arg(long)]
    keep: bool,
    /// Remove what `--keep` left up
    #[arg(long, conflicts_with = "keep")]
    remove: bool,
    /// Use the plugins of this directory instead of building ours
    #[arg(long, value_name = "DIR")]
    plugins: Option<PathBuf>,
}

/// Everything that is up while the demo runs.
#[derive(Debug)]
struct Demo {
    chain: Chain,
    pods: [Pod; 2],
    servers: Vec<Child>,
    life: Life,
}

/// Runs the task.
///
/// # Errors
/// The build, a plugin, or the claims that did not hold.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.remove {
        return keep::remove();
    }
    let dir = match &args.plugins {
        Some(dir) => workspace::absolute(dir)?,
        None => plugin_dir()?,
    };
    if args.keep {
        keep::replace_older()?;
    }
    let begun = Instant::now();
    sandbox::enter(sandbox::State::Memory)?;
    world::build()?;
    let life = if args.keep { Life::Stays } else { Life::Ends };
    let mut demo = Demo::new(dir, life)?;
    let outcome = demo.show();
    if args.keep {
        keep::leave_up(&demo.chain, &demo.servers)?;
    } else {
        demo.stop();
    }
    outcome?;
    println!("\nEvery claim holds ({}).", seconds(begun.elapsed()));
    Ok(())
}

/// Builds the plugins and lets the binary install itself below the target folder.
fn plugin_dir() -> Result<PathBuf> {
    let binary = install::built(Flavour::Release)?;
    let dir = workspace::scratch("demo")?.join("bin");
    run::capture(Command::new(binary).args(["install", "--to"]).arg(&dir))?;
    Ok(dir)
}

/// The network of the demo, as it would stand in /etc/cni/net.d.
fn chain(dir: PathBuf) -> Chain {
    let bridge = json!({
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
    let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    let path = SYSTEM_PATH.to_owned();
    Chain { dir, network: "demo".to_owned(), version: "1.0.0", path, plugins: vec![bridge, portmap] }
}

/// What the runtime passes for the pod `web`.
fn ports() -> Value {
    json!([{ "hostPort": HOST_PORT, "containerPort": 80, "protocol": "tcp" }])
}

impl Demo {
    fn new(dir: PathBuf, life: Life) -> Result<Self> {
        let pod =
            |name: &str| -> Result<Pod> { Ok(Pod { id: name.to_owned(), netns: sandbox::add_netns(name)? }) };
        Ok(Self { chain: chain(dir), pods: [pod("web")?, pod("client")?], servers: Vec::new(), life })
    }

    /// The whole story, once. With `--keep` the pods are attached again at its end.
    fn show(&mut self) -> Result<()> {
        let screen = Screen::new();
        let before = leftovers::Snapshot::take()?;
        screen.title("A pod gets an interface, addresses and a published port");
        let results = self.attach(&screen)?;
        for name in ["web", world::OUTSIDE] {
            self.servers.push(world::serve(name, self.life)?);
        }
        world::wait_for_addresses(&["web", "client"])?;
        let mut failed = self.claims(&screen, &results)?;
        self.published(&screen, &mut failed)?;
        self.detach(&screen, &results)?;
        failed += leftovers::prove(&screen, &before, &self.gone(&results))?;
        failed += Probe::nobody_answers().run(&screen);
        if self.life == Life::Stays {
            screen.title("Attached again, to look around");
            self.attach(&screen)?;
        }
        match failed {
            0 => Ok(()),
            1 => Err(Error::Failed("one claim does not hold".to_owned())),
            n => Err(Error::Failed(format!("{n} claims do not hold"))),
        }
    }

    /// ADD for both pods, each plugin a process as a runtime starts it.
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

    /// What must not be found anywhere after the DELs.
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
            // One that is gone already is as good.
            let _ = server.kill().and_then(|()| server.wait());
        }
    }
}
