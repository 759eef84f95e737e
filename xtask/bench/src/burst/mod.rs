// SPDX-License-Identifier: MIT OR Apache-2.0

//! `bench control --burst`: many pods at once, from many callers, as after a reboot or a drain.

pub(super) mod report;

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::ControlArgs;
use super::contender::Contender;
use super::control::{self, fresh_state, idle_rate};
use super::measure;
use super::output;
use report::{Report, Rounds, Row};
use xtask::cni::Pod;
use xtask::sandbox;
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::progress::Stages;
use xtask_base::run::{self, tool};

/// Bursts of each contender, if their number is not given.
const ROUNDS: u32 = 5;
/// The pause after a burst: the kernel releases links and namespaces later.
const SETTLE: Duration = Duration::from_millis(500);
/// The network of the destinations that fill conntrack (RFC 2544, appendix C.2.2).
const DESTINATIONS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const HOSTS: u32 = 1 << 17;
/// The next hop of the nodes' default route, which does not exist.
const ROUTER: &str = "neighbour replace 192.0.2.254 lladdr 02:00:00:00:00:fe dev uplink0";

/// One verb of one burst.
#[derive(Debug)]
struct Side {
    /// The time of each pod's whole list.
    times: Vec<Duration>,
    /// From the first call to the end of the last one.
    took: Duration,
    /// CPU time of the plugins.
    cpu: Duration,
    /// The machine's busy time without the idle control's.
    busy: Duration,
}

/// The size of the bursts.
#[derive(Debug, Clone, Copy)]
struct Shape {
    pods: u32,
    callers: usize,
}

pub(super) fn run(args: &ControlArgs, pods: u32) -> Result<()> {
    let (own, peer) = (args.plugins.own()?, args.plugins.peer()?);
    let shape = Shape { pods, callers: args.callers.into() };
    let rounds = args.reps.unwrap_or(ROUNDS);
    let mut conditions = vec![
        format!(
            "bursts of {pods} pods from {} callers, bridge + host-local + portmap, 1 port, ipMasq, IPv4; {rounds} \
             bursts each, interleaved",
            shape.callers
        ),
        control::machine()?,
        format!("peer: {}", super::sets::version(&peer)),
        format!("{} flows in each node's conntrack", args.conntrack),
        control::load(),
    ];
    let state = fresh_state()?;
    let stages = Stages::new("bench")?;
    sandbox::enter(sandbox::State::Folder(&state))?;
    let mut contenders = control::contenders(args, &own, &peer)?;
    contenders.iter_mut().for_each(Contender::publish_one_port);
    stages.run("warm up", |_| control::warm_up(&mut contenders, &mut conditions))?;
    let mut levels = args.pods.clone();
    levels.sort_unstable();
    levels.dedup();
    let mut rows = Vec::new();
    for present in levels {
        stages.run(&format!("{present} pods present"), |_| {
            // A node without pods may have no rules and therefore no conntrack.
            contenders.iter_mut().try_for_each(|one| one.fill(present.max(1), |_| ()))?;
            let counts = contenders.iter().map(|one| fill_conntrack(one, args.conntrack));
            let counts = counts.collect::<Result<Vec<_>>>()?;
            Ok(format!("flows in conntrack: {counts:?}"))
        })?;
        let idle = idle_rate()?;
        stages.run(&format!("{present} pods present: bursts"), |_| {
            let measured = measure(&mut contenders, shape, rounds, idle)?;
            rows.extend(measured.iter().map(|rounds| Row::of(rounds, present, args.conntrack)));
            Ok(format!("{rounds} times {} bursts", measured.len()))
        })?;
    }
    let report = Report::new(conditions, shape, rows);
    output::publish(&report, args.save.as_deref())
}

/// All bursts at one number of pods. A different contender begins each round.
fn measure(contenders: &mut [Contender], shape: Shape, rounds: u32, idle: f64) -> Result<Vec<Rounds>> {
    let count = contenders.len();
    let empty = |one: &Contender| Rounds { contender: one.name.clone(), adds: Vec::new(), dels: Vec::new() };
    let mut measured: Vec<Rounds> = contenders.iter().map(empty).collect();
    for round in 0..usize::try_from(rounds).unwrap_or(0) {
        for turn in 0..count {
            let index = (round + turn) % count;
            let (add, del) = burst(&mut contenders[index], shape, idle)?;
            measured[index].adds.push(add);
            measured[index].dels.push(del);
        }
    }
    Ok(measured)
}

/// One burst: the ADDs of all pods, then their DELs.
fn burst(contender: &mut Contender, shape: Shape, idle: f64) -> Result<(Side, Side)> {
    let pods = contender.burst(shape.pods)?;
    let (node, chain) = (contender.node().to_owned(), contender.first_chain().clone());
    thread::sleep(SETTLE);
    let (add, results) = at_once(&node, &pods, shape.callers, idle, |(pod, ports)| chain.add(pod, ports))?;
    thread::sleep(SETTLE);
    let attached: Vec<(&(Pod, Value), Value)> = pods.iter().zip(results).collect();
    let (del, _) = at_once(&node, &attached, shape.callers, idle, |((pod, ports), result)| {
        chain.del(pod, ports, result)
    })?;
    pods.iter().try_for_each(|(pod, _)| sandbox::remove_netns(&pod.netns))?;
    thread::sleep(SETTLE);
    Ok((add, del))
}

/// Does work for each item in the node's namespace, with `callers` threads. Each thread takes the next item when it has
/// finished one. Returns the results in the order of the items.
fn at_once<I: Sync, O: Send>(
    node: &Path,
    items: &[I],
    callers: usize,
    idle: f64,
    work: impl Fn(&I) -> Result<O> + Sync,
) -> Result<(Side, Vec<O>)> {
    let (next, start) = (AtomicUsize::new(0), Barrier::new(callers + 1));
    let call = || -> Result<Vec<(usize, Duration, O)>> {
        let entered = sandbox::switch_to(node);
        start.wait();
        entered?;
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return Ok(done) };
            let begun = Instant::now();
            let output = work(item)?;
            done.push((index, begun.elapsed(), output));
        }
    };
    let (busy, cpu) = (measure::busy()?, measure::children_cpu()?);
    let (took, done) = thread::scope(|scope| {
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
        start.wait();
        let begun = Instant::now();
        let ended: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        (begun.elapsed(), ended)
    });
    let mut done: Vec<_> = done.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    done.sort_by_key(|(index, ..)| *index);
    let cpu = measure::children_cpu()?.saturating_sub(cpu);
    let busy = measure::busy()?.saturating_sub(busy).saturating_sub(took.mul_f64(idle));
    let (times, outputs) = done.into_iter().map(|(_, time, output)| (time, output)).unzip();
    Ok((Side { times, took, cpu, busy }, outputs))
}

/// Makes this many flows in the conntrack of a contender's node, and returns the number of all flows there.
fn fill_conntrack(contender: &Contender, count: u32) -> Result<u32> {
    if count == 0 {
        return Ok(0);
    }
    let fill = || -> Result<u32> {
        sandbox::switch_to(contender.node())?;
        let setting = Path::new("/proc/sys/net/netfilter/nf_conntrack_udp_timeout");
        files::write(setting, "86400")?;
        run::capture(&mut tool("ip", &ROUTER.split(' ').collect::<Vec<_>>()))?;
        let socket = UdpSocket::bind("192.0.2.1:0").map_err(|e| Error::system("open a socket", e))?;
        for number in 0..count {
            // 9 is the port of discard (RFC 863).
            let (host, port) = (number % HOSTS, if number < HOSTS { 9 } else { 10 });
            let to = Ipv4Addr::from(u32::from(DESTINATIONS) + host);
            socket.send_to(&[0], (to, port)).map_err(|e| Error::system(format!("send to {to}"), e))?;
        }
        let path = Path::new("/proc/sys/net/netfilter/nf_conntrack_count");
        let text = files::read(path)?;
        let present = text.trim().parse().unwrap_or(0);
        if present < count {
            return Err(Error::Failed(format!(
                "{}: conntrack has {present} flows instead of {count}: raise net.netfilter.nf_conntrack_max",
                contender.name
            )));
        }
        Ok(present)
    };
    sandbox::in_thread(fill)
}
