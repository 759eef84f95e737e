// SPDX-License-Identifier: GPL-2.0-or-later

//! How long packets are lost when another program removes a part of the network: in a steady flow of small datagrams,
//! and for a client that starts while the part is missing.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use slipway_tests::{
    ApiServer, PROGRAMS, Space, SteadyFlow, api_server_programs, at, has_programs, needs, skip, within,
};
use slipwayd::cluster::desired::TunnelMode;

use crate::Lab;
use crate::agents::{Agents, SERVED, Web};
use crate::damage::network_of;
use crate::repairs::until;

/// The maximum outage on a usual machine.
const LIMIT: Duration = Duration::from_secs(1);
/// How long flows are watched after a damage.
const WATCHED: Duration = Duration::from_millis(1500);
/// The interval between two datagrams of a flow, which is the resolution of the measurement.
const INTERVAL: Duration = Duration::from_millis(2);
const PORT: u16 = 8080;
/// The number of rounds in a measurement.
const ROUNDS: usize = 20;

/// A damage to the first node, and a flow that needs what was removed.
struct Case<'a> {
    name: &'static str,
    command: &'static str,
    from: &'a Space,
    to: SocketAddr,
    who: &'a str,
    /// True if the network is complete again.
    stands: &'a dyn Fn() -> bool,
}

/// The outages of a flow that began before the damage and of one that begins after it, and the delay with which a
/// sender woke up, because on a busy host the agent has to wait for a processor as well.
fn outages(lab: &Lab, case: &Case<'_>) -> ([Duration; 2], Duration) {
    until("the network stands", case.stands);
    let steady = || case.from.steady(case.to, case.who, INTERVAL);
    let kept = steady();
    thread::sleep(Duration::from_millis(300));
    lab.node(1).cmd(case.command);
    let new = steady();
    thread::sleep(within(WATCHED));
    let ended = [kept, new].map(SteadyFlow::stop);
    let late = ended.iter().map(|flow| flow.late).max().unwrap_or_default();
    (ended.map(|flow| flow.outage()), late)
}

/// Measures all cases and prints the median and the longest outage of each. If there is only one round, fails if its
/// outage is too long.
fn measure(lab: &Lab, cases: &[Case<'_>], rounds: usize) {
    for case in cases {
        let all: Vec<([Duration; 2], Duration)> = (0..rounds).map(|_| outages(lab, case)).collect();
        let of = |index: usize| {
            let mut times: Vec<Duration> = all.iter().map(|(both, _)| both[index]).collect();
            times.sort();
            (times[times.len() / 2].as_millis(), times[times.len() - 1].as_millis())
        };
        let ((kept, longest), (new, longest_new)) = (of(0), of(1));
        eprintln!("| {} | {kept} | {longest} | {new} | {longest_new} |", case.name);
        if let [(both, late)] = all[..] {
            let limit = within(LIMIT) + late;
            assert!(both.iter().all(|one| *one <= limit), "{}: {both:?}, late: {late:?}", case.name);
        }
    }
}

/// True if the output of each command on the first node contains its text, and `slipway restore` finds nothing missing.
fn stands(lab: &Lab, lines: &[(&str, &str)]) -> bool {
    let node = lab.node(1);
    lines.iter().all(|(line, text)| node.try_cmd(line).stdout.contains(text))
        && node.try_slipway("restore --dry-run").code == Some(0)
}

/// The routes to the pods of the other node and of this one, with what the routes need.
const ROUTES: [(&str, &str); 2] =
    [("ip route show", "10.244.2.0/24"), ("ip address show dev slipway0", "10.244.1.1/24")];

/// Cases about routes, the bridge's address, the tunnel and the ruleset.
fn of_network(tunnel: &str, rounds: usize) {
    let Some(programs) = api_server_programs() else { skip!(slipway_tests::API_SERVER) };
    let lab = Lab::new(2, TunnelMode::Auto);
    let server = ApiServer::start(&programs, &lab.cluster.control);
    server.wait();
    let agents = Agents::start(&lab, &server, &server.kubeconfig(), tunnel, &[]);
    let webs =
        [1, 2].map(|number| Web::new(lab.node(number), &lab.network(number), &format!("web{number}"), PORT));
    let [own, other] = webs.each_ref();
    let stands = || stands(&lab, &ROUTES);
    let between_pods = |name, command| Case {
        name,
        command,
        from: &own.pod,
        to: at(other.addresses[0], SERVED),
        who: &other.name,
        stands: &stands,
    };
    let published = |name, command| Case {
        from: &lab.cluster.outside,
        to: at(lab.node(1).addresses[0], PORT),
        who: &own.name,
        ..between_pods(name, command)
    };
    let mut cases = vec![
        between_pods("route deleted", "ip route del 10.244.2.0/24"),
        between_pods("address of the bridge deleted", "ip address del 10.244.1.1/24 dev slipway0"),
    ];
    if tunnel == "always" {
        cases.push(between_pods("VXLAN device deleted", "ip link del slipway-vxlan"));
        cases.push(published("ruleset flushed", "nft flush ruleset"));
    }
    measure(&lab, &cases, rounds);
    agents.assert_running();
}

/// Cases about the BPF programs on the uplink.
fn of_programs(rounds: usize) {
    needs!(has_programs(), PROGRAMS);
    let Some(programs) = api_server_programs() else { skip!(slipway_tests::API_SERVER) };
    let lab = Lab::new(2, TunnelMode::Auto);
    let server = ApiServer::start(&programs, &lab.cluster.control);
    server.wait();
    let agents = Agents::start(&lab, &server, &server.kubeconfig(), "never", &["--node-setup"]);
    let node = lab.node(1);
    let filter = ("tc filter show dev eth0 ingress", "flow_ingress");
    until("programs at the uplink", || node.try_cmd(filter.0).stdout.contains(filter.1));
    let web = Web::new(node, &network_of(node, "ebpf"), "web1", PORT);
    let stands = || stands(&lab, &[filter]);
    let case = |name, command| Case {
        name,
        command,
        from: &lab.cluster.outside,
        to: at(node.addresses[0], PORT),
        who: &web.name,
        stands: &stands,
    };
    let cases = [
        case("filter of the uplink deleted", "tc filter del dev eth0 ingress"),
        case("clsact of the uplink deleted", "tc qdisc del dev eth0 clsact"),
        case("ruleset flushed, with BPF programs", "nft flush ruleset"),
    ];
    let before = node.counted("carried_packets");
    measure(&lab, &cases, rounds);
    assert!(node.counted("carried_packets") > before, "the BPF programs carried no packet");
    agents.assert_running();
}

#[test]
fn outages_over_plain_routes_are_short() {
    of_network("never", 1);
}

#[test]
fn outages_over_vxlan_and_of_rules_are_short() {
    of_network("always", 1);
}

#[test]
fn outages_of_bpf_programs_are_short() {
    of_programs(1);
}

/// Prints the rows of a table: the median and the longest of [`ROUNDS`] outages in milliseconds, for a flow that began
/// before the damage and for one that begins after it. Run it with `SLIPWAY_KUBE_DIR=target/xtask/kube cargo test -p
/// slipway-tests --test cluster -- --ignored --nocapture --test-threads 1 length_of_outages`, with the absolute path of
/// the directory.
#[test]
#[ignore = "a measurement"]
fn length_of_outages_over_plain_routes() {
    of_network("never", ROUNDS);
}

#[test]
#[ignore = "a measurement"]
fn length_of_outages_over_vxlan_and_of_rules() {
    of_network("always", ROUNDS);
}

#[test]
#[ignore = "a measurement"]
fn length_of_outages_of_bpf_programs() {
    of_programs(ROUNDS);
}
