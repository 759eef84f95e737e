// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway connectivity-test`: tries each promise of the contract with real packets, on a node in use.
//!
//! [`lab`] attaches namespaces as containers to a network of the node and removes them, [`checks`] has the promises,
//! [`traffic`] sends the packets, and [`row`] has the results.

mod checks;
mod lab;
mod row;
mod traffic;

use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni_dataplane::{AddressFamily, Backend as _, Dataplane, Listed, explain};
use cni_kernel::route::RouteSocket;
use cni_runtime::{Network, config};
use cni_spec::AddResult;
use serde_json::Value;
use slipway_cli::{Failure, Output, json};

use super::directories::PluginDirs;
use super::interrupt::Interrupt;
use checks::Stage;
use lab::{Attacher, LINK, LabError, Member, Site, Spaces};
use row::{Results, Row, State};
use traffic::Server;

/// The port of the servers in the namespaces.
const SERVED: u16 = 8080;
/// The published port is one of these: below the ports that the kernel chooses for clients.
const PORTS: std::ops::Range<u16> = 20000..30000;
/// The exit code if a promise is not kept.
const BROKEN: u8 = 3;

/// Try a network's published ports and masquerade with real packets
///
/// Attaches network namespaces as containers, publishes a free port for one of them, and sends requests from it, from
/// another one, from the node and from a namespace that stands for another host. Packets go to addresses that the test
/// made, and to the published port. Everything is removed at the end; what a killed test left, the next call removes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  1  the test could not run
  3  a check failed; the reason is printed

Examples:
  slipway connectivity-test
  slipway connectivity-test --config /tmp/new.conflist --plugin-dir /usr/lib/cni
  slipway connectivity-test --network pods --output json
  slipway connectivity-test --clean")]
pub(super) struct Args {
    /// The network; without it the first one, which is the one that runtimes take
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// The network's configuration, in place of a network of --config-dir
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The directory of the networks' configurations
    #[arg(long, value_name = "DIR", default_value = config::DIRECTORY)]
    config_dir: PathBuf,
    #[command(flatten)]
    plugins: PluginDirs,
    /// Only remove what a killed test left
    #[arg(long)]
    clean: bool,
    #[command(flatten)]
    output: Output,
}

/// The network under test, the published port, the node.
#[derive(Debug)]
struct Plan {
    plugins: Vec<serde_json::Map<String, Value>>,
    port: u16,
    node: Vec<IpAddr>,
}

impl Plan {
    fn new(network: &Network) -> Result<Self, LabError> {
        let plan =
            Self { plugins: network.list().plugins.clone(), port: free_port()?, node: node_addresses()? };
        match plan.plugins.iter().any(publishes) {
            true => Ok(plan),
            false => Err(LabError::NoPortMappings(network.name().to_owned())),
        }
    }

    /// The node's address of a family that other hosts know; none if the node has no such address.
    fn node_address(&self, family: AddressFamily) -> Option<IpAddr> {
        self.node.iter().copied().find(|address| AddressFamily::of(*address) == family)
    }

    /// True if the plugin that publishes ports has this value of a key.
    fn portmap_has(&self, key: &str, value: bool) -> bool {
        self.plugins
            .iter()
            .find(|plugin| publishes(plugin))
            .is_some_and(|plugin| plugin.get(key) == Some(&value.into()))
    }

    /// True if the container sees the node's address instead of the client's, whoever the client is.
    fn masquerades_clients(&self) -> bool {
        self.portmap_has("masqAll", true) && !self.portmap_has("snat", false)
    }

    fn is(&self, key: &str, value: &Value) -> bool {
        self.plugins.iter().any(|plugin| plugin.get(key) == Some(value))
    }

    fn has_bridge(&self) -> bool {
        self.is("type", &Value::from("bridge"))
    }

    fn masquerades(&self) -> bool {
        self.is("ipMasq", &Value::from(true))
    }
}

fn publishes(plugin: &serde_json::Map<String, Value>) -> bool {
    plugin.get("capabilities").is_some_and(|all| all["portMappings"] == true)
}

/// The node's addresses on the links of its default routes.
fn node_addresses() -> Result<Vec<IpAddr>, LabError> {
    let route = RouteSocket::open()?;
    let mut found = Vec::new();
    for family in AddressFamily::BOTH {
        let Some(index) = RouteSocket::open()?.default_link(family)? else { continue };
        let all = route.all_addresses()?.into_iter().filter(|one| {
            one.link == index && one.global && !one.tentative && AddressFamily::of(one.net.addr()) == family
        });
        found.extend(all.map(|one| one.net.addr()).next());
    }
    Ok(found)
}

/// A port that neither a process nor a container of the node uses.
fn free_port() -> Result<u16, LabError> {
    // A node without nf_tables or iptables has no list, so a conflict is found by the ADD.
    let listed = Dataplane::default().list().unwrap_or_default();
    let is_published =
        |port: u16| listed.iter().any(|one| (one.port.host.first..=one.port.host.last).contains(&port));
    let begin =
        PORTS.start + u16::try_from(std::process::id() % u32::from(PORTS.end - PORTS.start)).unwrap_or(0);
    let mut all = (begin..PORTS.end).chain(PORTS.start..begin);
    all.find(|port| !is_published(*port) && traffic::bind_both(*port).is_ok()).ok_or(LabError::NoPort)
}

/// The network of the command line, or the one that a runtime would take.
fn network(args: &Args) -> Result<Network, LabError> {
    if let Some(file) = &args.config {
        return Ok(Network::from_file(file)?);
    }
    let directory = &args.config_dir;
    if let Some(name) = &args.network {
        return Ok(config::load(directory, name)?);
    }
    let first = config::load_all(directory)?.into_iter().find_map(|file| file.network.ok());
    first.ok_or_else(|| LabError::NoNetwork(directory.clone()))
}

/// Tests, or only removes what a killed test left.
pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, Failure> {
    let interrupt = Interrupt::hold()?;
    let (site, left) = Site::enter().map_err(Failure::failed)?;
    for one in &left {
        writeln!(err, "removed what an earlier test left: {one}")?;
    }
    if args.clean {
        return Ok(0);
    }
    let network = network(args).map_err(Failure::failed)?;
    let dirs = args.plugins.all();
    let tried = test(&site, network, &dirs, &mut |row| {
        // A closed standard error does not end the test.
        drop(writeln!(err, "{}", row.line()));
        if interrupt.came() { Err(LabError::Interrupted) } else { Ok(()) }
    });
    let cleaned = site.clean();
    let results = tried.map_err(Failure::failed)?;
    if args.output.json() {
        json::print(results.document(), out)?;
    } else {
        out.write_all(results.text()?.as_bytes())?;
    }
    cleaned.map_err(|error| Failure::failed(format!("clean up: {error}")))?;
    Ok(if results.count(State::Failed) == 0 { 0 } else { BROKEN })
}

fn test(
    site: &Site,
    network: Network,
    dirs: &[PathBuf],
    progress: &mut dyn FnMut(&Row) -> Result<(), LabError>,
) -> Result<Results, LabError> {
    let plan = Plan::new(&network)?;
    let attacher = Attacher::new(network, dirs, plan.port);
    site.record(&attacher)?;
    let spaces = Spaces::make()?;
    let name = attacher.network.name().to_owned();
    let serve = |member: Member, port| {
        let started = spaces.netns(member).and_then(|netns| Ok(Server::start(netns, port, member.name())?));
        started.map_err(|error| LabError::Serve { port, member, error: Box::new(error) })
    };
    let other = attacher.add(Member::Other)?;
    let pod = attacher.add(Member::Pod)?;
    let backend = backend(plan.port);
    let server = serve(Member::Pod, SERVED)?;
    let _others = [serve(Member::Outside, SERVED)?, serve(Member::Other, plan.port)?];
    let (rows, plan) = (Vec::new(), &plan);
    let mut stage = Stage { spaces: &spaces, plan, pod: &pod, other: &other, backend, rows, progress };
    for family in AddressFamily::BOTH {
        stage.family(family, &server)?;
    }
    stage.taken(attacher.add(Member::Next))?;
    attacher.del(Member::Next)?;
    let _next = stage.replaced(|| {
        attacher.del(Member::Pod)?;
        attacher.add(Member::Next)?;
        serve(Member::Next, SERVED)
    })?;
    let mut rows = stage.rows;
    for member in [Member::Next, Member::Pod, Member::Other] {
        attacher.del(member)?;
    }
    rows.push(leftovers(plan, &name, &[&pod, &other])?);
    Ok(Results { network: name, backend, rows })
}

/// The backend that publishes the port; none if it is one of another plugin set.
fn backend(port: u16) -> Option<&'static str> {
    let listed = Dataplane::default().list().unwrap_or_default();
    listed.iter().find(|one| is_of(one, port)).map(|one| one.backend.as_str())
}

fn is_of(listed: &Listed, port: u16) -> bool {
    (listed.port.host.first..=listed.port.host.last).contains(&port)
}

/// Checks that DEL has left no ports, elements, links or reservations.
fn leftovers(plan: &Plan, network: &str, results: &[&AddResult]) -> Result<Row, LabError> {
    let mut left = Vec::new();
    if Dataplane::default().list().unwrap_or_default().iter().any(|one| is_of(one, plan.port)) {
        left.push(format!("published port {}", plan.port));
    }
    let route = RouteSocket::open()?;
    for result in results {
        let hosts = result.interfaces.iter().filter(|one| one.sandbox.is_empty());
        for interface in hosts {
            let found = route.find_link(&interface.name)?;
            // The network's bridge stays.
            if found.is_some_and(|link| link.kind != cni_kernel::route::LinkKind::Bridge && link.name != LINK)
            {
                left.push(format!("link {}", interface.name));
            }
        }
        for address in result.ips.iter().map(|one| one.address.addr()) {
            if explain::masqueraded_towards(address).is_ok_and(|found| found.is_some())
                || explain::masqueraded_from(address, address).is_ok_and(|found| found.is_some())
            {
                left.push(format!("an element of table inet slipway for {address}"));
            }
            let file = Path::new("/var/lib/cni/networks").join(network).join(address.to_string());
            if file.exists() {
                left.push(format!("reservation {}", file.display()));
            }
        }
    }
    let row = Row::about("DEL", "nothing is left", None, "docs/ARCHITECTURE.md#ownership");
    Ok(if left.is_empty() { row } else { row.failed(left.join(", ")) })
}
