// SPDX-License-Identifier: GPL-2.0-or-later

//! podman with netavark, whose driver is the binary under test. At the time of writing, the versions are podman 5.4,
//! 5.8 and 6.1, and podman 6.1 with the newest netavark.

mod figures;
mod from_bridge;
mod isolation;
mod reload;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::image::{self, ARCHIVE, PAUSE, WEB, ask_once, expect, expect_closed};
use slipway_tests::system::System;
use slipway_tests::{Host, Node, Proto, Snapshot, Space, at, expect_sctp, has_sctp, is_peer};

/// Generates each test for podman and netavark of each Debian suite that has them.
macro_rules! on {
    ($($module:ident: $($test:ident)*;)*) => {$(
        mod $module {
            use slipway_tests::system::unpacked;
            $(#[test]
            fn $test() {
                let suite = stringify!($module);
                let Some(packages) = unpacked(suite, "usr/lib/podman/netavark") else {
                    slipway_tests::skip!(concat!("netavark of Debian ", stringify!($module)))
                };
                super::$test(&packages);
            })*
        }
    )*};
}
pub(crate) use on;

on! {
    trixie: from_run_to_removal networks options_of_networks every_form_of_publish a_pod a_reboot killed_processes errors;
    unstable: from_run_to_removal networks options_of_networks every_form_of_publish a_pod a_reboot killed_processes errors;
    experimental: from_run_to_removal networks options_of_networks every_form_of_publish a_pod a_reboot killed_processes errors;
}

/// A node with podman, and an outside host.
struct World {
    node: Node,
    client: Host,
    system: System,
}

impl World {
    /// A world with a network of the driver, `blue`, which has a subnet of each family.
    fn new(packages: &Path) -> Option<Self> {
        if is_peer() {
            return None;
        }
        let (node, client) = Node::with_client();
        let system = System::start(&node, packages);
        if packages.ends_with("experimental") {
            // podman 6 supports only version 2 of control groups.
            system.run(&["/bin/busybox", "mount", "-t", "cgroup2", "none", "/sys/fs/cgroup"]);
        }
        let world = Self { node, client, system };
        world.configure();
        world.podman("network create --driver slipway --subnet 10.89.0.0/24 --subnet fd00:89::/64 blue");
        Some(world)
    }

    /// Configures the node as podman's manual pages describe: containers.conf(5), containers-storage.conf(5).
    fn configure(&self) {
        let system = &self.system;
        // This is one of podman's default directories for drivers (`netavark_plugin_dirs`).
        let link = "mkdir -p /usr/local/libexec/netavark; ln -s /opt/cni/bin/slipway /usr/local/libexec/netavark/slipway";
        system.run(&["/bin/busybox", "sh", "-ec", link]);
        system.write(
            "/etc/containers/containers.conf",
            "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n\
             [network]\nfirewall_driver = \"nftables\"\n[containers]\nlog_driver = \"k8s-file\"\n\
             pids_limit = 0\n",
        );
        system.write(
            "/etc/containers/storage.conf",
            "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\n\
             graphroot = \"/var/lib/containers/storage\"\n",
        );
        image::make(system);
        self.podman(&format!("load --quiet --input {ARCHIVE}"));
    }

    /// Runs podman with arguments separated by blanks.
    fn podman(&self, words: &str) -> String {
        let words: Vec<&str> = ["podman"].into_iter().chain(words.split(' ')).collect();
        self.system.run(&words)
    }

    /// Runs podman, which must fail, and returns its standard error.
    fn refused(&self, words: &str) -> String {
        let words: Vec<&str> = ["podman"].into_iter().chain(words.split(' ')).collect();
        let output = self.system.try_run(&words);
        assert_ne!(output.code, Some(0), "{words:?} should have failed: {output}");
        output.stderr
    }

    /// A network in the form in which `podman network inspect` prints it.
    fn network(&self, name: &str) -> Value {
        let list: Value =
            serde_json::from_str(&self.podman(&format!("network inspect {name}"))).expect("JSON");
        list[0].clone()
    }

    /// Starts the web server, which answers with the name `name`.
    fn run_web(&self, name: &str, options: &str) {
        let group = self.system.cgroup();
        self.podman(&format!(
            "run --detach --name {name} --env WHO={name} --cgroup-parent {group} {options} {WEB}"
        ));
    }

    fn inspect(&self, name: &str) -> Value {
        let list: Value = serde_json::from_str(&self.podman(&format!("inspect {name}"))).expect("JSON");
        list[0]["NetworkSettings"].clone()
    }

    fn address(&self, name: &str, network: &str) -> (Ipv4Addr, Ipv6Addr) {
        let settings = self.inspect(name);
        let of = |key: &str| settings["Networks"][network][key].as_str().expect("an address").to_owned();
        (
            of("IPAddress").parse().expect("an IPv4 address"),
            of("GlobalIPv6Address").parse().expect("an IPv6 address"),
        )
    }

    /// The network namespace of a container.
    fn inside(&self, name: &str) -> Space {
        let path = self.inspect(name)["SandboxKey"].as_str().expect("a namespace").to_owned();
        self.system.space().namespace(name, &self.system.path(&path))
    }

    /// Asserts that the published port is open to the client, whose address is not translated, and to the node.
    #[track_caller]
    fn open(&self, port: u16, name: &str) {
        let Self { node, client, .. } = self;
        assert_eq!(expect(client, (client.node_v4, port), name), client.v4);
        assert_eq!(expect(client, (client.node_v6, port), name), client.v6);
        expect(node, (Ipv4Addr::LOCALHOST, port), name);
        expect(node, (Ipv6Addr::LOCALHOST, port), name);
        expect(node, (client.node_v4, port), name);
    }

    #[track_caller]
    fn closed(&self, port: u16) {
        let Self { node, client, .. } = self;
        expect_closed(client, (client.node_v4, port));
        expect_closed(client, (client.node_v6, port));
        expect_closed(node, (Ipv4Addr::LOCALHOST, port));
    }

    /// The state that must be unchanged after containers are removed.
    fn state(&self) -> Snapshot {
        // A podman that is killed may leave a namespace that it has made.
        crate::state(&self.node).without(&[
            "/run/slipway/netavark",
            "/run/slipway/migrate.lock",
            "netns /run/netns/",
        ])
    }
}

fn from_run_to_removal(packages: &Path) {
    let Some(world) = World::new(packages) else { return };
    let World { node, client, system } = &world;
    let options = "--network blue --publish 8080:80 --publish 5353:53/udp";
    // A first container is started and removed, which creates the tables.
    world.run_web("first", options);
    world.podman("rm --force first");
    let before = world.state();
    world.run_web("web", options);
    world.open(8080, "web");
    {
        let inside = world.inside("web");
        let server = inside.serve(Proto::Udp, &at(world.address("web", "blue").0, 53).to_string(), "dns");
        client.expect(Proto::Udp, (client.node_v4, 5353), "dns");
        drop(server);
    }
    // Another container uses the published port, and so does the container itself.
    let group = system.cgroup();
    let request = image::request(client.node_v4, 8080);
    let run =
        ["podman", "run", "--rm", "--network", "blue", "--cgroup-parent", group, WEB, "sh", "-c", &request];
    assert_eq!(image::answer(&system.run(&run)).0, "web");
    expect(&world.inside("web"), (client.node_v4, 8080), "web");
    // The container reaches the outside, and its address is masqueraded.
    let outside = client.serve(Proto::Tcp, "[::]:7", "outside");
    let seen = world.inside("web").expect(Proto::Tcp, (client.v4, 7), "outside").peer.ip().to_canonical();
    assert_eq!(seen, client.node_v4);
    drop(outside);
    assert!(node.slipway("ports").contains("blue"));

    world.podman("restart web");
    world.open(8080, "web");
    world.podman("stop web");
    world.closed(8080);
    world.podman("start web");
    world.open(8080, "web");
    // conmon cleans up after a container that ends by itself.
    world.podman("kill web");
    world.podman("wait web");
    system.wait_for("the clean-up", || !node.slipway("ports").contains("blue"));
    world.closed(8080);
    world.podman("start web");
    world.open(8080, "web");
    // The ruleset is flushed, and the ports come back in either of two ways.
    node.cmd("nft flush ruleset");
    // `restore` runs in the system, where the containers' namespaces are visible.
    system.run(&["/opt/cni/bin/slipway", "restore"]);
    world.open(8080, "web");
    node.cmd("nft flush ruleset");
    world.podman("network reload web");
    world.open(8080, "web");
    world.podman("rm --force web");
    world.closed(8080);
    before.assert_same(&world.state());
    world.podman("network rm blue");
}

fn networks(packages: &Path) {
    let Some(world) = World::new(packages) else { return };
    let World { node, client, .. } = &world;
    // podman leaves the choices to the driver.
    world.podman("network create --driver slipway --ipv6 --opt mtu=1400 green");
    let green = world.network("green");
    assert_eq!((&green["driver"], green["subnets"].as_array().map(Vec::len)), (&"slipway".into(), Some(2)));
    assert_eq!(green["subnets"][0]["subnet"], "10.89.1.0/24");
    // The gateways are the same ones that podman chooses for its own driver.
    world.podman("network create --ipv6 own");
    let own = world.network("own");
    world.podman("network rm own");
    for network in [green, own] {
        for subnet in network["subnets"].as_array().expect("subnets") {
            let (net, gateway) = (subnet["subnet"].as_str(), subnet["gateway"].as_str());
            let parts = net.and_then(|net| net.split_once("0/").or(net.split_once('/')));
            assert_eq!(gateway, parts.map(|(network, _)| format!("{network}1")).as_deref(), "{subnet}");
        }
    }
    world.podman("network create --driver slipway --internal --subnet 10.90.7.0/24 hidden");
    let named = "--network blue:ip=10.89.0.77,mac=02:00:00:00:89:77 --network green --publish 8080:80";
    // The chains of these networks, used alone and together, remain.
    for networks in [named, "--network blue --network hidden --publish 8080:80"] {
        world.run_web("first", networks);
        world.podman("rm --force first");
    }
    let before = world.state();

    world.run_web("web", named);
    let blue = world.inspect("web")["Networks"]["blue"].clone();
    assert_eq!(
        (&blue["IPAddress"], &blue["MacAddress"]),
        (&"10.89.0.77".into(), &"02:00:00:00:89:77".into())
    );
    assert_eq!((&blue["Gateway"], &blue["IPPrefixLen"]), (&"10.89.0.1".into(), &24.into()));
    world.open(8080, "web");
    for network in ["blue", "green"] {
        let (v4, v6) = world.address("web", network);
        expect(node, (v4, 80), "web");
        expect(node, (v6, 80), "web");
    }
    for _ in 0..2 {
        world.podman("restart web");
        world.open(8080, "web");
        assert_eq!(world.inspect("web")["Networks"]["blue"]["IPAddress"], "10.89.0.77");
    }
    world.podman("network disconnect blue web");
    world.open(8080, "web");
    world.podman("network connect --ip 10.89.0.78 blue web");
    world.open(8080, "web");
    expect(node, (Ipv4Addr::new(10, 89, 0, 78), 80), "web");
    world.podman("network disconnect green web");
    world.open(8080, "web");
    world.podman("network connect hidden web");
    // podman before version 6 prints a missing address as `<nil>`, podman 6 as an empty text.
    let gateway = world.inspect("web")["Networks"]["hidden"]["Gateway"].clone();
    assert!(gateway == "<nil>" || gateway == "", "{gateway}");
    world.open(8080, "web");
    world.podman("rm --force web");
    world.closed(8080);
    before.assert_same(&world.state());
    // Both containers are on the internal network, and one of them publishes a port.
    world.run_web("a", "--network hidden");
    world.run_web("b", "--network hidden --publish 8081:80");
    let a: IpAddr = world.inspect("a")["Networks"]["hidden"]["IPAddress"]
        .as_str()
        .and_then(|ip| ip.parse().ok())
        .expect("an address");
    expect(&world.inside("b"), (a, 80), "a");
    // podman itself accepts the connection, but sends no answer.
    assert!(ask_once(client, at(client.node_v4, 8081), Duration::from_secs(1)).is_err());
    world.podman("rm --force a b");
    world.podman("network rm green hidden blue");
}

/// The options of networks, except `vlan`, which the suite `netavark` tests on kernels that support it.
fn options_of_networks(packages: &Path) {
    let Some(world) = World::new(packages) else { return };
    let World { node, client, system } = &world;
    let create = "network create --driver slipway --opt isolate=true";
    world.podman(&format!(
        "{create} --subnet 10.91.0.0/24 --gateway 10.91.0.254 --ip-range 10.91.0.128/28 --subnet fd00:91::/64 \
         --route 198.18.0.0/15,10.91.0.253,7 --opt mtu=1400 --interface-name br-red red"
    ));
    world.podman(&format!(
        "{create} --subnet 10.92.0.0/24 --subnet fd00:92::/64 --opt ipMasq=false --opt backend=iptables plain"
    ));
    let red = world.network("red");
    assert_eq!(red["network_interface"], "br-red");
    let subnet = &red["subnets"][0];
    assert_eq!(
        (&subnet["gateway"], &red["subnets"][1]["gateway"]),
        (&"10.91.0.254".into(), &"fd00:91::1".into())
    );
    assert_eq!(subnet["lease_range"]["start_ip"], "10.91.0.129");
    let expected = json!({"destination": "198.18.0.0/15", "gateway": "10.91.0.253", "metric": 7});
    let mut route = red["routes"][0].clone();
    // podman 6 has several types of routes.
    route.as_object_mut().expect("a route").remove("route_type");
    assert_eq!((&route, &red["options"]), (&expected, &json!({"isolate": "true", "mtu": "1400"})));
    let of_red =
        "--network red --ip6 fd00:91::77 --publish 8080:80 --publish 5353:53/udp --publish 8090:90/sctp";
    let of_plain = "--network plain --publish 8081:80";
    for (name, options) in [("web", of_red), ("other", of_plain)] {
        world.run_web(name, options);
        world.podman(&format!("rm --force {name}"));
    }
    let before = world.state();
    world.run_web("web", of_red);
    world.run_web("other", of_plain);
    let (in_red, in_plain) = (world.inside("web"), world.inside("other"));
    let (web, other) = (world.address("web", "red"), world.address("other", "plain"));

    assert!((129..144).contains(&web.0.octets()[3]) && web.0.octets()[..3] == [10, 91, 0], "{}", web.0);
    assert_eq!(web.1.to_string(), "fd00:91::77");
    assert_eq!(world.inspect("web")["Networks"]["red"]["Gateway"], "10.91.0.254");
    let routes = in_red.cmd("ip route");
    for route in ["default via 10.91.0.254 dev eth0 ", "198.18.0.0/15 via 10.91.0.253 dev eth0 metric 7"] {
        assert!(routes.contains(route), "{routes}");
    }
    let ends = node.cmd("ip -oneline link show master br-red");
    assert!(ends.lines().count() == 1 && ends.contains(" mtu 1400 "), "{ends}");
    assert_eq!((&in_red.link("eth0")["mtu"], &node.link("br-red")["mtu"]), (&json!(1400), &json!(1400)));

    // The networks are isolated from each other, but not from the node and the outside.
    for (from, to) in [
        (&in_red, IpAddr::from(other.0)),
        (&in_red, other.1.into()),
        (&in_plain, web.0.into()),
        (&in_plain, web.1.into()),
    ] {
        assert!(ask_once(from, at(to, 80), Duration::from_secs(1)).is_err(), "{} reaches {to}", from.name());
    }
    for (to, name) in [(other, "other"), (web, "web")] {
        expect(node, (to.0, 80), name);
        expect(node, (to.1, 80), name);
    }
    world.open(8080, "web");
    assert_eq!(expect(client, (client.node_v4, 8081), "other"), client.v4);
    assert_eq!(expect(client, (client.node_v6, 8081), "other"), client.v6);
    assert!(node.ruleset().contains("CNI-DN-"), "{}", node.ruleset());
    let far = client.serve(Proto::Tcp, "[::]:7", "far");
    for (from, to, seen) in [
        (&in_red, IpAddr::from(client.v4), IpAddr::from(client.node_v4)),
        (&in_red, client.v6.into(), client.node_v6.into()),
        (&in_plain, client.v4.into(), other.0.into()),
        (&in_plain, client.v6.into(), other.1.into()),
    ] {
        assert_eq!(from.expect(Proto::Tcp, (to, 7), "far").peer.ip().to_canonical(), seen);
    }
    drop(far);

    let listed = node.slipway("ports");
    assert!(listed.lines().any(|line| line.contains("sctp") && line.contains("8090")), "{listed}");
    let has_sctp_rule = || node.ruleset().lines().any(|line| line.contains("sctp") && line.contains("8090"));
    assert!(has_sctp_rule(), "{}", node.ruleset());
    if has_sctp() {
        for (to, address) in
            [(IpAddr::from(client.node_v4), IpAddr::from(web.0)), (client.node_v6.into(), web.1.into())]
        {
            expect_sctp(client, at(to, 8090), &in_red, at(address, 90));
        }
    }
    let id = world.podman("inspect --format {{.Id}} web");
    let explain = format!("/opt/cni/bin/slipway explain tcp {}:8080 --from {}", client.node_v4, client.v4);
    let explained = system.run(&explain.split(' ').collect::<Vec<_>>());
    // Long IDs are truncated.
    assert!(explained.contains(&id[..32]), "{id}: {explained}");

    node.cmd("nft flush ruleset");
    if packages.ends_with("experimental") {
        // A reload of `web` would fail; see [`reload`].
        world.podman("network reload other");
        system.run(&["/opt/cni/bin/slipway", "restore"]);
    } else {
        world.podman("network reload --all");
    }
    world.open(8080, "web");
    expect(client, (client.node_v4, 8081), "other");
    let address = at(world.address("web", "red").1, 53).to_string();
    let dns = world.inside("web").serve(Proto::Udp, &address, "dns");
    assert_eq!(client.expect(Proto::Udp, (client.node_v6, 5353), "dns").peer.ip(), client.v6);
    drop(dns);
    assert!(
        ask_once(&in_red, at(other.0, 80), Duration::from_secs(1)).is_err(),
        "a reload keeps the isolation"
    );
    world.podman("rm --force web other");
    world.closed(8080);
    assert!(!has_sctp_rule() && !node.has_link("br-red"), "{}", node.ruleset());
    before.assert_same(&world.state());
    world.podman("network rm red plain");
}

fn every_form_of_publish(packages: &Path) {
    let Some(world) = World::new(packages) else { return };
    let World { node, client, .. } = &world;
    let far = node.host("far");
    let publish = [
        "8080:80".to_owned(),
        format!("{}:8081:80", client.node_v4),
        format!("[{}]:8082:80", far.node_v6),
        "127.0.0.1:8083:80".to_owned(),
        "8090-8092:90-92".to_owned(),
        "8090-8092:90-92/udp".to_owned(),
        "0.0.0.0:8084:80".to_owned(),
    ];
    let options: Vec<String> = publish.iter().map(|port| format!("--publish {port}")).collect();
    world.run_web("web", &format!("--network blue {} --publish 80", options.join(" ")));
    world.open(8080, "web");
    expect(client, (client.node_v4, 8081), "web");
    expect_closed(&far, (far.node_v4, 8081));
    expect(&far, (far.node_v6, 8082), "web");
    expect_closed(client, (client.node_v6, 8082));
    expect(node, (Ipv4Addr::LOCALHOST, 8083), "web");
    expect_closed(client, (client.node_v4, 8083));
    expect(client, (client.node_v4, 8084), "web");
    let inside = world.inside("web");
    let address = world.address("web", "blue").0;
    for port in [90, 91, 92] {
        let name = port.to_string();
        let _servers = [
            inside.serve(Proto::Tcp, &format!("[::]:{port}"), &name),
            inside.serve(Proto::Udp, &at(address, port).to_string(), &name),
        ];
        client.expect(Proto::Tcp, (client.node_v4, 8000 + port), &name);
        client.expect(Proto::Udp, (client.node_v4, 8000 + port), &name);
    }
    // podman chooses the host port.
    let ports = world.inspect("web")["Ports"]["80/tcp"].clone();
    let chosen = ports
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["HostPort"].as_str()?.parse::<u16>().ok());
    let chosen = chosen.filter(|port| !(8080..8100).contains(port)).max().expect("a port");
    expect(client, (client.node_v4, chosen), "web");
    world.podman("rm --force web");
    world.closed(8080);
    expect_closed(client, (client.node_v4, chosen));
}

fn a_pod(packages: &Path) {
    let Some(world) = World::new(packages) else { return };
    let group = world.system.cgroup();
    world.podman(&format!(
        "pod create --name pod --infra-image {PAUSE} --network blue --publish 8080:80 --cgroup-parent {group} --share net"
    ));
    world.podman(&format!("run --detach --pod pod --name web --env WHO=web {WEB}"));
    world.open(8080, "web");
    world.podman("pod restart pod");
    world.open(8080, "web");
    world.podman("pod stop pod");
    world.closed(8080);
    world.podman("pod start pod");
    world.open(8080, "web");
    world.podman("pod rm --force pod");
    world.closed(8080);
    assert!(!world.node.slipway("ports").contains("blue"));
}

/// The power fails, so only files on disk survive, and podman tears nothing down.
fn a_reboot(packages: &Path) {
    let Some(mut world) = World::new(packages) else { return };
    for (name, port) in [("web", 8080), ("other", 8081)] {
        world.run_web(name, &format!("--network blue --publish {port}:80"));
    }
    for _ in 0..2 {
        world.open(8080, "web");
        world.open(8081, "other");
        world.system.reboot();
        world.closed(8080);
        world.podman("start web other");
    }
    world.open(8080, "web");
    world.podman("rm --force web other");
    world.closed(8080);
    assert!(!world.node.slipway("ports").contains("blue"));
}

/// podman, conmon or the container is killed, and in the end nothing is left.
fn killed_processes(packages: &Path) {
    let Some(world) = World::new(packages) else { return };
    let World { node, client, system } = &world;
    let group = system.cgroup();
    world.run_web("web", "--network blue --publish 8080:80");
    world.podman("rm --force web");
    let before = world.state();
    // First, podman itself is killed at different times after its start.
    for round in 0..6_u32 {
        let script = format!(
            "podman run --detach --name web --env WHO=web --cgroup-parent {group} --network blue --publish 8080:80 {WEB} & \
             busybox usleep {}; kill -9 $!; wait",
            60_000 * (round + 1)
        );
        system.try_run(&["/bin/busybox", "sh", "-c", &script]);
        // Whatever podman has left, podman itself can start or remove the container.
        let started = system.try_run(&["podman", "start", "web"]).code == Some(0);
        if started {
            expect(client, (client.node_v4, 8080), "web");
        }
        system.try_run(&["podman", "rm", "--force", "web"]);
        world.closed(8080);
        before.assert_same(&world.state());
    }
    // Then conmon is killed. The container keeps running, and no process cleans up after it.
    world.run_web("web", "--network blue --publish 8080:80");
    let conmon = world.podman("inspect --format {{.State.ConmonPid}} web");
    system.run(&["/bin/busybox", "kill", "-9", conmon.trim()]);
    world.open(8080, "web");
    // The first removal ends the container, and fails because the exit code is missing.
    system.wait_for("the removal", || system.try_run(&["podman", "rm", "--force", "web"]).code == Some(0));
    world.closed(8080);
    before.assert_same(&world.state());
    // Finally, the container's process is killed.
    world.run_web("web", "--network blue --publish 8080:80");
    let pid = world.podman("inspect --format {{.State.Pid}} web");
    system.run(&["/bin/busybox", "kill", "-9", pid.trim()]);
    system.wait_for("the clean-up", || !node.slipway("ports").contains("blue"));
    world.closed(8080);
    world.podman("start web");
    world.open(8080, "web");
    world.podman("rm --force web");
    before.assert_same(&world.state());
}

fn errors(packages: &Path) {
    let Some(world) = World::new(packages) else { return };
    let system = &world.system;
    let create = "network create --driver slipway";
    let error = world.refused(&format!("{create} --opt isolate=yes red"));
    assert!(error.contains("option isolate=\"yes\" is not true, false or strict"), "{error}");
    let error = world.refused(&format!("{create} --subnet 10.89.0.0/25 red"));
    assert!(error.contains("subnet 10.89.0.0/25 is in use: 10.89.0.0/24"), "{error}");
    let error = world.refused(&format!("{create} --subnet 10.88.7.0/24 red"));
    assert!(error.contains("subnet 10.88.7.0/24 is in use: 10.88.0.0/16"), "{error}");
    let error = world.refused(&format!("{create} --interface-name podman0 red"));
    assert!(error.contains("bridge podman0 is another network's"), "{error}");
    let error = world.refused(&format!("{create} --dns 192.0.2.53 red"));
    assert!(error.contains("DNS is not enabled"), "{error}");
    assert!(!world.podman("network ls").contains("red"));
    let group = system.cgroup();
    let run = format!(
        "run --rm --cgroup-parent {group} --network blue --dns 192.0.2.53 {WEB} busybox cat /etc/resolv.conf"
    );
    assert!(world.podman(&run).contains("nameserver 192.0.2.53"));
    // The network has an option that a later version of podman might pass.
    let path = "/etc/containers/networks/blue.json";
    let text = system.read(path);
    system.write(path, text.replace("\"ipam_options\"", "\"options\": {\"vrf\": \"red\"}, \"ipam_options\""));
    let run =
        format!("run --detach --name web --cgroup-parent {group} --network blue --publish 8080:80 {WEB}");
    let error = world.refused(&run);
    assert!(error.contains("option \"vrf\" is not known: there are backend, "), "{error}");
    system.write(path, text);
    world.podman("start web");
    world.podman("rm --force web");
}
