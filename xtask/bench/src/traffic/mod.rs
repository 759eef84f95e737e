// SPDX-License-Identifier: MIT OR Apache-2.0

//! Measures the cost of a packet from a client to a pod.

pub(super) mod contender;
pub(super) mod cost;
mod evidence;
pub(super) mod figures;
pub(super) mod load;
mod plan;
mod shape;
mod space;

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use contender::{Contender, Kind, Setting, Way};
use cost::Spent;
use evidence::Evidence;
use figures::{Pods, Report, Series};
use load::{Pin, Work};
use space::Habits;

use super::control::load;
use super::output;
use super::sets::{Plugins, version};
use super::statistics::median;
use xtask::sandbox;
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::progress::Stages;
use xtask_base::run::{self, tool};

/// Pause before each measurement.
const SETTLE: Duration = Duration::from_millis(20);
/// Time limit for the machine to become idle after pods were attached, and the length of a sample.
const REST: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_secs(1);
/// The busy share of one processor below which the machine is idle.
const RESTING: f64 = 0.05;
/// The busy share above which it cannot be subtracted.
const TOO_BUSY: f64 = 0.2;
/// The least share of one processor in a valid sample, and the number of attempts.
const LEAST_BUSY: f64 = 0.3;
const TRIES: u32 = 3;

/// Measure the cost of a packet through the namespaces of a client, a node and a pod.
///
/// TCP_STREAM, TCP_RR and TCP_CRR, or UDP datagrams, in processor time of the whole machine and by the wall clock, without
/// translation and through the published ports of each plugin set. Each contender has its own node; they
/// alternate every second. Up to 1,000 published ports each belong to a pod of their own, beyond that 250 to
/// one. Pods are attached by real ADDs; of the reference's only some, and the rules of the others, of the
/// same shape, are loaded as text.
#[derive(Debug, clap::Args)]
pub(crate) struct TrafficArgs {
    #[command(flatten)]
    plugins: Plugins,
    /// Numbers of published ports, one after the other
    #[arg(long, value_delimiter = ',', default_value = "1,1000,10000,60000", value_name = "N,N,…")]
    ports: Vec<u32>,
    /// The contenders
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "NAME,NAME,…",
        default_value = "direct,routed,reference-iptables,reference-nftables,nftables,ebpf"
    )]
    contenders: Vec<Kind>,
    /// Client and server: a host to a published port, a pod to another host, the node to its own published
    /// port, the node to the pod
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WAY,WAY,…", default_value = "port")]
    ways: Vec<Way>,
    /// The kinds of traffic
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "WORK,WORK,…",
        default_value = "stream,rr,crr"
    )]
    works: Vec<Work>,
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Duration of each measurement
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    seconds: f64,
    /// Processors of client and server
    #[arg(long, value_enum, default_value = "none")]
    pin: Pin,
    /// The number of the reference's pods that are attached by real ADDs
    #[arg(long, default_value_t = 500, value_name = "N")]
    peer_live: u32,
    /// The nodes' variant of iptables
    #[arg(long, default_value = "nft", value_parser = ["nft", "legacy"])]
    iptables: String,
    /// TCP's congestion control, instead of the machine's own
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Bridged packets pass through netfilter (net.bridge.bridge-nf-call-iptables)
    #[arg(long)]
    bridge_nf: bool,
    /// Also write the figures to this directory, as traffic.json
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
}

struct Run {
    conditions: Vec<String>,
    contenders: Vec<Contender>,
    ways: Vec<Way>,
    works: Vec<Work>,
    rounds: u32,
    time: Duration,
    series: Vec<Series>,
    pods: Vec<Pods>,
}

/// Runs the benchmark.
///
/// # Errors
/// A build or a plugin fails, or packets of a contender take another path than its name.
pub(super) fn run(args: &TrafficArgs) -> Result<()> {
    let mut levels = args.ports.clone();
    levels.sort_unstable();
    levels.dedup();
    for level in &levels {
        plan::pods(*level)?;
    }
    let time = Duration::try_from_secs_f64(args.seconds).ok().filter(|time| *time <= 10 * LOOK);
    let time = time.ok_or_else(|| Error::Failed("--seconds: up to 10".to_owned()))?;
    let setting = setting(args)?;
    let conditions = conditions(args, &setting)?;
    let stages = Stages::new("bench")?;
    sandbox::enter(sandbox::State::Memory)?;
    let mut run = Run::new(args, time, conditions);
    stages.run("nodes", |_| run.make_nodes(&args.contenders, &setting))?;
    for ports in levels {
        stages.run(&format!("{ports} ports: attach"), |_| run.fill(ports))?;
        rest()?;
        stages.run(&format!("{ports} ports: measure"), |_| run.measure(ports))?;
    }
    let report = Report::new(run.conditions, &run.series, run.pods);
    output::publish(&report, args.save.as_deref())
}

impl Run {
    fn new(args: &TrafficArgs, time: Duration, conditions: Vec<String>) -> Self {
        let mut ways = args.ways.clone();
        ways.sort();
        ways.dedup();
        let mut works = args.works.clone();
        works.sort();
        works.dedup();
        let rounds = args.rounds;
        Self {
            conditions,
            contenders: Vec::new(),
            ways,
            works,
            rounds,
            time,
            series: Vec::new(),
            pods: Vec::new(),
        }
    }

    fn make_nodes(&mut self, kinds: &[Kind], setting: &Setting) -> Result<String> {
        let mut kinds = kinds.to_vec();
        kinds.sort();
        kinds.dedup();
        for kind in kinds {
            self.contenders.push(Contender::new(kind, setting)?);
        }
        self.each(Contender::learn)?;
        Ok(format!("{} contenders", self.contenders.len()))
    }

    /// Attaches pods on all nodes concurrently; this is not timed.
    fn fill(&mut self, ports: u32) -> Result<String> {
        self.each(|contender| contender.fill(ports))?;
        for contender in &self.contenders {
            let (kind, count) = (contender.kind, contender.count);
            self.pods.push(Pods { contender: kind, version: version(contender.dir()), ports, count });
        }
        Ok(String::new())
    }

    fn each(&mut self, work: impl Fn(&mut Contender) -> Result<()> + Sync) -> Result<()> {
        let work = &work;
        thread::scope(|scope| {
            let threads: Vec<_> =
                self.contenders.iter_mut().map(|contender| scope.spawn(move || work(contender))).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
                thread.join().unwrap_or_else(|_| Err(Error::Failed("a thread panicked".to_owned())))
            };
            // Waits for all, even if one fails.
            let results: Vec<Result<()>> = threads.into_iter().map(join).collect();
            results.into_iter().collect()
        })
    }

    /// All rounds with one number of ports. A different contender begins each.
    fn measure(&mut self, ports: u32) -> Result<String> {
        let evidence = self.contenders.iter().map(Evidence::before).collect::<Result<Vec<_>>>()?;
        let mut series = Vec::new();
        for way in &self.ways {
            for work in &self.works {
                for contender in &self.contenders {
                    series.push(Series {
                        contender: contender.kind,
                        way: *way,
                        work: *work,
                        ports,
                        rounds: Vec::new(),
                    });
                }
            }
        }
        let (count, mut idle) = (self.contenders.len(), Vec::new());
        for round in 0..self.rounds {
            idle.push(cost::idle_rate(self.time)?);
            for block in series.chunks_mut(count) {
                for turn in 0..count {
                    let index = (usize::try_from(round).unwrap_or(0) + turn) % count;
                    thread::sleep(SETTLE);
                    let of = &mut block[index];
                    of.rounds.push(steady_sample(&mut self.contenders[index], of.way, of.work, self.time)?);
                }
            }
        }
        let idle = median(idle);
        for spent in series.iter_mut().flat_map(|series| &mut series.rounds) {
            spent.busy -= idle * spent.wall;
        }
        for (contender, evidence) in self.contenders.iter().zip(&evidence) {
            let own = series.iter().filter(|series| series.contender == contender.kind);
            evidence.check(contender, &own.collect::<Vec<_>>())?;
        }
        self.series.extend(series);
        let said = format!("{:.1} % of one processor busy by itself", idle * 100.0);
        self.conditions.push(match idle {
            idle if idle < TOO_BUSY => format!("{ports} ports: {said}"),
            _ => format!("{ports} ports: {said}: too much for figures of the whole machine"),
        });
        Ok(format!("{} rounds, {said}", self.rounds))
    }
}

/// A sample in which the machine was busy. The load never pauses: an idle processor was used by the
/// hypervisor, and the figures of such a second are wrong by any factor.
fn steady_sample(contender: &mut Contender, way: Way, work: Work, time: Duration) -> Result<Spent> {
    for _ in 0..TRIES {
        let spent = contender.sample(way, work, time)?;
        if spent.busy > LEAST_BUSY * spent.wall {
            return Ok(spent);
        }
    }
    Err(Error::Failed(format!(
        "the machine stood still in {TRIES} samples in a row: nothing can be measured on it"
    )))
}

/// Waits until the machine is idle, or the time limit.
fn rest() -> Result<()> {
    for _ in 0..REST.as_secs() / LOOK.as_secs() {
        if cost::idle_rate(LOOK)? < RESTING {
            break;
        }
    }
    Ok(())
}

fn setting(args: &TrafficArgs) -> Result<Setting> {
    let own = args.plugins.own()?;
    let peer =
        if args.contenders.iter().any(|kind| kind.is_peer()) { args.plugins.peer()? } else { own.clone() };
    Ok(Setting {
        own,
        peer,
        iptables: args.iptables.clone(),
        peer_live: args.peer_live.max(1),
        habits: Habits {
            bridge_netfilter: args.bridge_nf,
            congestion: args.congestion.clone().map_or_else(own_congestion, Ok)?,
        },
        pin: args.pin,
        protocol: protocol(&args.works)?,
    })
}

/// The protocol of all ports of a run: a contender's rules are those of one protocol.
fn protocol(works: &[Work]) -> Result<&'static str> {
    let mut protocols: Vec<&str> = works.iter().map(|work| work.protocol()).collect();
    protocols.dedup();
    match *protocols {
        [one] => Ok(one),
        _ => Err(Error::Failed("--works: TCP and datagrams are measured by runs of their own".to_owned())),
    }
}

/// The machine's TCP congestion control.
fn own_congestion() -> Result<String> {
    let path = Path::new("/proc/sys/net/ipv4/tcp_congestion_control");
    let name = files::read(path)?;
    Ok(name.trim().to_owned())
}

fn conditions(args: &TrafficArgs, setting: &Setting) -> Result<Vec<String>> {
    let kernel = run::capture(&mut tool("uname", &["-srm"]))?;
    let processors = thread::available_parallelism().map_or(0, NonZero::get);
    let mut conditions = vec![
        format!(
            "client namespace, node, pod behind a bridge; IPv4; veth with the kernel's own offloads; {} rounds of \
             {} s, interleaved",
            args.rounds, args.seconds
        ),
        format!("{}, {processors} processors; pinned to: {:?}", kernel.trim(), args.pin),
        format!(
            "iptables-{}; bridged packets pass netfilter: {}; congestion control: {}",
            args.iptables, args.bridge_nf, setting.habits.congestion
        ),
        format!("slipway: {}", version(&setting.own)),
    ];
    if setting.peer != setting.own {
        conditions.push(format!("reference: {}", version(&setting.peer)));
    }
    conditions.push(load());
    Ok(conditions)
}
