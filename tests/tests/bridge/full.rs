// SPDX-License-Identifier: GPL-2.0-or-later

//! What a container costs on a bridge with 1,000 others, measured:
//! `cargo test -p slipway-tests --test bridge -- --ignored --nocapture a_full_bridge`.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Pod, Proto, at, dropped_by_processors, within};

use super::neighbours::received;

/// The containers of a full bridge: it has 1,023 ports.
const MANY: usize = 1000;
/// The ADDs and DELs that are measured.
const REPETITIONS: usize = 40;
/// The callers that fill the bridge.
const CALLERS: usize = 8;
/// The containers whose frames are counted.
const COUNTED: usize = 20;

/// The time for which the machine's processors were busy since its boot.
fn busy() -> Duration {
    let text = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let line = text.lines().next().expect("a line for all processors");
    let ticks: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal: a tick has 10 ms.
    let busy: u64 = [0, 1, 2, 5, 6].iter().map(|&column| ticks[column]).sum();
    Duration::from_millis(busy * 10)
}

/// The subnets and gateways of a bridge's families.
fn families(number: usize) -> [(String, IpAddr); 2] {
    let number = u8::try_from(number + 1).expect("few bridges");
    let [v4, v6] = [format!("10.{number}.0.1"), format!("fd00:{number}::1")];
    [(format!("10.{number}.0.0/16"), v4), (format!("fd00:{number}::/64"), v6)]
        .map(|(subnet, gateway)| (subnet, gateway.parse().expect("an address")))
}

fn list(number: usize, families: &[(String, IpAddr)]) -> Value {
    let ranges: Vec<Value> = families.iter().map(|(subnet, _)| json!([{"subnet": subnet}])).collect();
    json!({"name": format!("full{number}"), "plugins": [
        {
            "type": "bridge", "bridge": format!("br{number}"), "isGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "ranges": ranges},
        },
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]})
}

/// Measures ADD and DEL of one container at a time, next to others. Returns the line of figures.
fn measure(what: &str, network: &Network<'_>, node: &Node, others: &[Pod]) -> String {
    let pods: Vec<Pod> =
        (0..REPETITIONS).map(|number| node.pod(&format!("measured{}-{number}", others.len()))).collect();
    // What earlier containers still send to their groups is not these ADDs'.
    std::thread::sleep(Duration::from_secs(20));
    let counted = &others[..others.len().min(COUNTED)];
    let frames = || counted.iter().map(received).sum::<u64>();
    let (mut adds, mut dels) = (Vec::new(), Vec::new());
    let (before, begun) = (frames(), busy());
    for pod in &pods {
        let attach = Attach::new(pod).port(Proto::Tcp, 8080, 80);
        let begin = Instant::now();
        network.add(&attach).expect("ADD");
        adds.push(begin.elapsed());
        let begin = Instant::now();
        network.del(&attach).expect("DEL");
        dels.push(begin.elapsed());
    }
    let each = |whole: Duration| whole.as_secs_f64() * 1e3 / REPETITIONS as f64;
    let machine = each(busy().saturating_sub(begun));
    // Reports of multicast groups come a second later, and again.
    std::thread::sleep(Duration::from_secs(5));
    let frames = (frames() - before) as f64 / counted.len().max(1) as f64 / REPETITIONS as f64;
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[times.len() / 2].as_secs_f64() * 1e3
    };
    format!(
        "figure: {what}, {} containers: ADD {:.1} ms, DEL {:.1} ms; machine {machine:.1} ms per ADD and DEL; {frames:.2} \
         frames to each other container",
        others.len(),
        median(&mut adds),
        median(&mut dels),
    )
}

/// The attachment of the container with this number, which publishes ports from 10000 on that no other one has.
fn publishing(pod: &Pod, number: usize, ports: usize) -> Attach {
    let port = |nth: usize| u16::try_from(10_000 + ports * number + nth).expect("few ports");
    (0..ports).fold(Attach::new(pod), |attach, nth| attach.port(Proto::Tcp, port(nth), 80))
}

/// Adds many containers with so many ports, each of which calls the gateways at once. Returns them, and a line of figures.
fn fill(
    what: &str,
    network: &Network<'_>,
    node: &Node,
    (first, ports): (usize, usize),
    gateways: &[IpAddr],
) -> (Vec<Pod>, String) {
    let dropped = dropped_by_processors();
    let (begin, begun) = (Instant::now(), busy());
    let fill = |caller: usize| {
        let mut failed = 0;
        let mut pods = Vec::new();
        for number in (first..first + MANY).skip(caller).step_by(CALLERS) {
            let pod = node.pod(&format!("pod{number}"));
            network.add(&publishing(&pod, number, ports)).expect("ADD");
            let answers = |gateway: &IpAddr| {
                pod.request_from(Proto::Tcp, None, at(*gateway, 80), within(Duration::from_secs(1))).is_ok()
            };
            failed += gateways.iter().filter(|gateway| !answers(gateway)).count();
            pods.push(pod);
        }
        (pods, failed)
    };
    let filled: Vec<_> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS).map(|caller| scope.spawn(move || fill(caller))).collect();
        callers.into_iter().map(|caller| caller.join().expect("no panic")).collect()
    });
    let failed: usize = filled.iter().map(|(_, failed)| failed).sum();
    let figure = format!(
        "figure: {what}, {MANY} more containers from {CALLERS} callers in {:.1} s, machine busy {:.1} s: {} packets dropped \
         in the backlog, {failed} of {} calls of the gateway failed",
        begin.elapsed().as_secs_f64(),
        busy().saturating_sub(begun).as_secs_f64(),
        dropped_by_processors() - dropped,
        MANY * gateways.len(),
    );
    (filled.into_iter().flat_map(|(pods, _)| pods).collect(), figure)
}

/// Measures an empty node, and one whose bridges are full.
#[expect(clippy::print_stdout, reason = "a measurement prints its figures as they come")]
fn compare(what: &str, node: &Node, bridges: &[Vec<(String, IpAddr)>], ports: usize) {
    let networks: Vec<_> =
        bridges.iter().enumerate().map(|(number, of)| node.network(list(number, of))).collect();
    let (mut first, mut servers) = (Vec::new(), Vec::new());
    for (number, (network, families)) in networks.iter().zip(bridges).enumerate() {
        // A bridge is up while it has a port.
        let pod = node.pod(&format!("first{number}"));
        network.add(&Attach::new(&pod)).expect("ADD");
        first.push(pod);
        let at_gateway = |(_, gateway): &(String, IpAddr)| at(*gateway, 80).to_string();
        servers.extend(families.iter().map(|family| node.serve(Proto::Tcp, &at_gateway(family), "node")));
    }
    println!("{}", measure(what, &networks[0], node, &[]));
    let mut pods = Vec::new();
    for (network, families) in networks.iter().zip(bridges) {
        let gateways: Vec<IpAddr> = families.iter().map(|(_, gateway)| *gateway).collect();
        let (more, figure) = fill(what, network, node, (pods.len(), ports), &gateways);
        println!("{figure}");
        pods.extend(more);
    }
    println!("{}", measure(what, &networks[0], node, &pods));
}

#[test]
#[ignore = "a measurement"]
fn a_full_bridge() {
    let [v4, v6] = families(0);
    for (what, families) in [("IPv4", vec![v4.clone()]), ("dual stack", vec![v4, v6])] {
        compare(what, &Node::new(), &[families], 0);
    }
}

/// 5,000 containers with three ports each: `cargo test -p slipway-tests --test bridge -- --ignored --nocapture five_full`.
#[test]
#[ignore = "a measurement"]
fn five_full_bridges() {
    let bridges: Vec<_> = (0..5).map(|number| families(number).to_vec()).collect();
    compare("five bridges, dual stack", &Node::new(), &bridges, 3);
}
