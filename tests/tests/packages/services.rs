// SPDX-License-Identifier: GPL-2.0-or-later

//! The services of the packages under systemd: nothing starts by itself, an upgrade restarts running services, a
//! removal stops them, and a unit that was enabled is enabled again by the next installation.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{
    API_SERVER, ApiServer, BridgeNetfilter, Cluster, Daemon, Node, Pod, Proto, QUICK, api_server_programs,
    at, has_programs, skip, until, wire, within,
};

use crate::{Machine, PACKAGES, ROOT, folder};

const DHCP: &str = "slipway-dhcp.service";
const DHCP_SOCKET: &str = "slipway-dhcp.socket";
const AGENT: &str = "slipwayd.service";
/// The DHCP server.
const DNSMASQ: &str = "/usr/sbin/dnsmasq";
/// The node's address in the cluster's network.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 50, 99));
const UNITS: [&str; 3] = [DHCP, DHCP_SOCKET, AGENT];
/// The time limit for a service to react.
const ARRIVAL: Duration = Duration::from_secs(60);

impl Machine {
    /// The answer of systemctl(1) about a unit, a word such as "active" or "disabled".
    fn unit(&self, question: &str, unit: &str) -> String {
        self.try_run(&format!("systemctl {question} {unit} 2>/dev/null")).stdout.trim().to_owned()
    }

    /// The process ID of a running service.
    #[track_caller]
    fn process_of(&self, service: &str) -> u32 {
        assert_eq!(self.unit("is-active", service), "active", "{}", self.messages(service));
        let pid = self.unit("show --property MainPID --value", service);
        pid.parse().ok().filter(|pid| *pid > 0).unwrap_or_else(|| panic!("the process of {service}: {pid:?}"))
    }

    fn messages(&self, service: &str) -> String {
        let words = format!(
            "systemctl status --no-pager --lines=40 {service}; journalctl --no-pager --unit {service}"
        );
        self.try_run(&words).stdout
    }

    #[track_caller]
    fn assert_units(&self, question: &str, units: &[&str], answer: &str) {
        for unit in units {
            assert_eq!(
                self.unit(question, unit),
                answer,
                "systemctl {question} {unit}: {}",
                self.messages(unit)
            );
        }
    }

    /// Repeats a script until it succeeds.
    #[track_caller]
    fn until(&self, script: &str, service: &str) {
        let begin = Instant::now();
        loop {
            let output = self.try_run(script);
            if output.code == Some(0) {
                return;
            }
            let late = begin.elapsed() > within(ARRIVAL);
            assert!(!late, "{script}: {output}\n{}", self.messages(service));
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Starts the system, or skips the calling test if systemd is not available.
macro_rules! boot {
    ($suite:expr) => {{
        let Some(folder) = folder() else { skip!("packages and their systems") };
        let Some(machine) = Machine::boot(&folder, $suite) else { skip!("control groups of version 2") };
        machine
    }};
}

/// Starts a DHCP server on a bridge of the node.
fn dhcp_server(node: &Node) -> Daemon {
    node.cmd("ip link add lan0 type bridge");
    node.cmd("ip address add 10.77.0.1/24 dev lan0");
    node.cmd("ip link set lan0 up");
    let options = [
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--port=0",
        "--bind-interfaces",
        "--user=root",
        "--leasefile-ro",
        "--no-ping",
        "--pid-file=",
        "--interface=lan0",
        "--dhcp-authoritative",
        "--dhcp-range=10.77.0.50,10.77.0.99,2m",
    ];
    node.daemon(DNSMASQ, &options, "/run/dnsmasq.log")
}

/// The network configuration for containers on this bridge.
fn dhcp_network() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "lan", "type": "bridge", "bridge": "lan0", "ipam": { "type": "dhcp" },
    })
}

/// Waits until the daemon answers.
fn await_daemon(machine: &Machine, config: &Value, pod: &Pod) {
    until(Duration::from_secs(20), "the daemon answers", || {
        machine.call("STATUS", config, pod).process.code == Some(0)
    });
}

fn the_dhcp_daemon(mut machine: Machine) {
    machine.node.bridge_netfilter(BridgeNetfilter::Off);
    let _server = dhcp_server(&machine.node);
    let (config, pod) = (dhcp_network(), machine.node.pod("pod"));
    let before = machine.files();
    machine.install("old/slipway");
    machine.install("old/slipwayd");
    machine.assert_units("is-active", &UNITS, "inactive");
    machine.assert_units("is-enabled", &UNITS, "disabled");
    // An upgrade does not start a stopped service.
    machine.install("new/slipway");
    machine.assert_units("is-active", &UNITS, "inactive");
    machine.run("dpkg --purge --force-depends slipway");
    machine.install("old/slipway");

    machine.run(&format!("systemctl enable --now {DHCP_SOCKET}"));
    machine.assert_units("is-active", &[DHCP], "inactive");
    // The first call starts the daemon.
    await_daemon(&machine, &config, &pod);
    let first = machine.process_of(DHCP);
    let result = machine.call("ADD", &config, &pod).ok();
    let lease = machine.run("cat /var/lib/cni/dhcp/lan:pod:eth0");
    machine.install("new/slipway");
    let second = machine.process_of(DHCP);
    assert_ne!(first, second, "not restarted by the upgrade");
    machine.assert_units("is-active", &[DHCP_SOCKET], "active");
    await_daemon(&machine, &config, &pod);
    assert_eq!(machine.run("cat /var/lib/cni/dhcp/lan:pod:eth0"), lease);
    let mut check = config.clone();
    check["prevResult"] = result.clone();
    assert!(machine.call("CHECK", &check, &pod).ok().is_null());
    // The lease survives a reinstallation and a crash.
    machine.install("new/slipway");
    let third = machine.process_of(DHCP);
    assert_ne!(second, third);
    machine.run(&format!("kill -9 {third}"));
    await_daemon(&machine, &config, &pod);
    assert!(machine.call("CHECK", &check, &pod).ok().is_null());
    machine.assert_units("is-enabled", &[DHCP_SOCKET], "enabled");
    machine.assert_units("is-enabled", &[DHCP, AGENT], "disabled");

    // After a removal and a new installation, the unit is enabled as before, but not started.
    machine.run("dpkg --remove --force-depends slipway");
    machine.assert_units("is-active", &[DHCP, DHCP_SOCKET], "inactive");
    machine.install("new/slipway");
    machine.assert_units("is-enabled", &[DHCP_SOCKET], "enabled");
    machine.assert_units("is-active", &[DHCP, DHCP_SOCKET], "inactive");
    machine.boot_again();
    machine.assert_units("is-active", &[DHCP_SOCKET], "active");
    machine.assert_units("is-active", &[AGENT], "inactive");
    await_daemon(&machine, &config, &pod);
    assert!(machine.call("CHECK", &check, &pod).ok().is_null());
    assert!(machine.call("DEL", &config, &pod).ok().is_null());
    // The packages are purged while the daemon runs.
    machine.process_of(DHCP);
    machine.run("dpkg --purge slipwayd slipway");
    assert_eq!(machine.unit("list-units --all --no-legend", "'slipway*'"), "");
    machine.assert_same_files(&before);
}

/// The agent works within the limits of its unit: it sets the node's network up, and repairs what others delete.
fn the_agent(mut machine: Machine, programs: &Path) {
    let cluster = Cluster::new(0, |_| {});
    let server = ApiServer::start(programs, &cluster.control);
    let node = &machine.node;
    node.bridge_netfilter(BridgeNetfilter::Off);
    wire((node, "eth0"), (cluster.lan(), "machine"));
    cluster.lan().cmd("ip link set machine master lan0");
    node.cmd(&format!("ip address add {ADDRESS}/24 dev eth0"));
    node.cmd("ip link set lo up");
    node.forward();
    server.wait();
    let registered = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node" },
        "spec": { "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"] },
        "status": { "addresses": [{ "type": "InternalIP", "address": ADDRESS }] },
    });
    server.create("/api/v1/nodes", &registered);
    let before = machine.files();
    machine.install("old/slipway");
    machine.install("old/slipwayd");
    machine.run("mkdir -p /etc/kubernetes /etc/cni");
    node.write(&format!("{ROOT}/etc/kubernetes/slipwayd.conf"), server.kubeconfig());
    machine.run("echo SLIPWAYD_OPTIONS=--cluster-cidr=10.244.0.0/16 > /etc/default/slipwayd");
    machine.run(&format!("systemctl enable --now {AGENT}"));
    let first = machine.process_of(AGENT);
    machine.until("test -s /etc/cni/net.d/10-slipway.conflist", AGENT);

    let backends: &[(&str, u16)] =
        if has_programs() { &[("nftables", 8080), ("ebpf", 8081)] } else { &[("nftables", 8080)] };
    let mut servers = Vec::new();
    for (backend, port) in backends {
        let pod = node.pod(backend);
        machine.run(&format!("echo '{{\"backend\": \"{backend}\"}}' > /etc/cni/slipway.json"));
        machine.run(&format!(
            "slipwayd pod up web/{backend} --sandbox {backend} --netns /run/netns/{backend} --port {port}:80"
        ));
        servers.push(pod.serve(Proto::Tcp, "0.0.0.0:80", backend));
        cluster.outside.expect(Proto::Tcp, at(ADDRESS, *port), backend);
    }
    let answers = |machine: &Machine, what: &str| {
        for (backend, port) in backends {
            let begin = Instant::now();
            while cluster.outside.request_from(Proto::Tcp, None, at(ADDRESS, *port), QUICK).is_err() {
                let late = begin.elapsed() > within(ARRIVAL);
                assert!(!late, "{backend} after {what}: {}", machine.messages(AGENT));
            }
        }
    };
    let mut damages = vec!["nft flush ruleset", "ip address del 10.244.1.1/24 dev slipway0"];
    if has_programs() {
        damages.push("tc qdisc del dev eth0 clsact");
    }
    let attached = || node.try_cmd("tc filter show dev eth0 ingress").stdout.contains("flow_ingress");
    let has_gateway = || node.cmd("ip address show dev slipway0").contains("10.244.1.1/24");
    assert!(attached() == has_programs() && has_gateway());
    for damage in damages {
        node.cmd(damage);
        answers(&machine, damage);
        let begin = Instant::now();
        while attached() != has_programs() || !has_gateway() {
            assert!(
                begin.elapsed() < within(ARRIVAL),
                "programs or address missing after {damage}: {}",
                machine.messages(AGENT)
            );
        }
    }

    machine.install("new/slipway");
    machine.install("new/slipwayd");
    let second = machine.process_of(AGENT);
    assert_ne!(first, second, "not restarted by the upgrade");
    machine.until("slipwayd status", AGENT);
    machine.node.cmd("nft flush ruleset");
    answers(&machine, "the upgrade");
    // If the unit had denied a system call, the journal would show it.
    let journal = machine.run(&format!("journalctl --no-pager --unit {AGENT}"));
    assert!(!journal.contains("[ERROR") && !journal.contains("not permitted"), "{journal}");
    for (backend, _) in backends {
        machine.run(&format!(
            "slipwayd pod down web/{backend} --sandbox {backend} --netns /run/netns/{backend}"
        ));
    }

    machine.run("dpkg --remove slipwayd");
    machine.assert_units("is-active", &[AGENT], "inactive");
    machine.install("new/slipwayd");
    machine.boot_again();
    machine.process_of(AGENT);
    machine.run("dpkg --purge slipwayd slipway");
    // The remaining files are those that docs/packages.md lists.
    machine.run(
        "rm -r /etc/cni/net.d/10-slipway.conflist /etc/cni/slipway.json /etc/kubernetes/slipwayd.conf\n\
         cd /var/lib/cni && rm -rf networks results slipway flannel pending locks\n\
         rmdir /etc/cni/net.d /etc/cni /etc/kubernetes /var/lib/cni",
    );
    machine.assert_same_files(&before);
}

/// rpm's scripts restart running services during an upgrade, and stop and disable them during a removal.
#[test]
fn the_units_of_an_rpm_follow_upgrade_and_removal() {
    let machine = boot!("rpm");
    machine.run("cd /usr/share && mkdir -p licenses zsh/site-functions fish/vendor_completions.d");
    let before = machine.files();
    machine.run("rpm --initdb");
    let rpm = |words: &str| machine.run(&format!("rpm --nodeps {words}"));
    rpm(&format!("--install {PACKAGES}/old/slipway-*.rpm {PACKAGES}/old/slipwayd-*.rpm"));
    machine.assert_units("is-active", &UNITS, "inactive");
    machine.assert_units("is-enabled", &UNITS, "disabled");
    // No API server answers at this address, so the agent waits for one.
    machine.run(
        "mkdir -p /etc/kubernetes && cat > /etc/kubernetes/slipwayd.conf <<'END'\n\
         apiVersion: v1\n\
         kind: Config\n\
         current-context: c\n\
         clusters: [{name: c, cluster: {server: \"https://127.0.0.1:1\"}}]\n\
         users: [{name: u, user: {token: t}}]\n\
         contexts: [{name: c, context: {cluster: c, user: u}}]\n\
         END\n",
    );
    machine.run(&format!("systemctl enable --now {DHCP} {AGENT}"));
    let first = [DHCP, AGENT].map(|service| machine.process_of(service));
    rpm(&format!("--upgrade {PACKAGES}/new/slipway-*.rpm {PACKAGES}/new/slipwayd-*.rpm"));
    let second = [DHCP, AGENT].map(|service| machine.process_of(service));
    assert!(first.iter().zip(&second).all(|(old, new)| old != new), "{first:?}, {second:?}");
    machine.assert_units("is-enabled", &[DHCP, AGENT], "enabled");
    rpm("--erase slipwayd slipway");
    assert_eq!(machine.unit("list-units --all --no-legend", "'slipway*'"), "");
    machine.run("rm -r /etc/kubernetes /var/lib/cni/dhcp && rmdir /var/lib/cni /etc/cni/net.d /etc/cni");
    machine.assert_same_files(&before);
}

/// Generates the tests, each for these suites of Debian.
macro_rules! tests {
    ($($suite:ident)*) => { $(
        mod $suite {
            use super::*;

            #[test]
            fn the_dhcp_daemon() {
                let machine = boot!(stringify!($suite));
                if !Path::new(DNSMASQ).is_file() {
                    skip!("dnsmasq");
                }
                super::the_dhcp_daemon(machine);
            }

            #[test]
            fn the_agent() {
                let machine = boot!(stringify!($suite));
                let Some(programs) = api_server_programs() else { skip!(API_SERVER) };
                super::the_agent(machine, &programs);
            }
        }
    )* };
}

tests! { bookworm trixie }
