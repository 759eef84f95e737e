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

fn list(subnets: &[&str]) -> Value {
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    json!({"name": "full", "plugins": [
        {
            "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "ranges": ranges},
        },
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]})
}

/// Measures ADD and DEL of one container at a time. Returns the line of figures.
fn measure(what: &str, network: &Network<'_>, node: &Node, others: &[Pod]) -> String {
    let pods: Vec<Pod> = (0..REPETITIONS).map(|number| node.pod(&format!("measured{number}"))).collect();
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

/// Adds many containers, each of which calls the gateway at once. Returns them, and a line of figures.
fn fill(what: &str, network: &Network<'_>, node: &Node, gateways: &[IpAddr]) -> (Vec<Pod>, String) {
    let dropped = dropped_by_processors();
    let (begin, begun) = (Instant::now(), busy());
    let fill = |caller: usize| {
        let mut failed = 0;
        let mut pods = Vec::new();
        for number in 0..MANY / CALLERS {
            let pod = node.pod(&format!("pod{caller}-{number}"));
            network.add(&Attach::new(&pod)).expect("ADD");
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
        "figure: {what}, {MANY} containers from {CALLERS} callers in {:.1} s, machine busy {:.1} s: {} packets dropped in \
         the backlog, {failed} of {} calls of the gateway failed",
        begin.elapsed().as_secs_f64(),
        busy().saturating_sub(begun).as_secs_f64(),
        dropped_by_processors() - dropped,
        MANY * gateways.len(),
    );
    (filled.into_iter().flat_map(|(pods, _)| pods).collect(), figure)
}

#[test]
#[ignore = "a measurement"]
fn a_full_bridge() {
    let families = [("10.1.0.0/16", "10.1.0.1"), ("fd00:1::/64", "fd00:1::1")];
    for (what, families) in [("IPv4", &families[..1]), ("dual stack", &families[..])] {
        let node = Node::new();
        let subnets: Vec<&str> = families.iter().map(|(subnet, _)| *subnet).collect();
        let gateways: Vec<IpAddr> =
            families.iter().map(|(_, gateway)| gateway.parse().expect("an address")).collect();
        let network = node.network(list(&subnets));
        let first = node.pod("first");
        network.add(&Attach::new(&first)).expect("ADD");
        let _servers: Vec<_> = gateways
            .iter()
            .map(|gateway| node.serve(Proto::Tcp, &at(*gateway, 80).to_string(), "node"))
            .collect();
        println!("{}", measure(what, &network, &node, &[]));
        let (pods, filled) = fill(what, &network, &node, &gateways);
        println!("{filled}");
        println!("{}", measure(what, &network, &node, &pods));
    }
}
