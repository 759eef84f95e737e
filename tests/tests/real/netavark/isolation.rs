// SPDX-License-Identifier: GPL-2.0-or-later

//! Networks that are isolated from each other. The control is netavark's own bridge driver: our networks must behave
//! like its networks with the same options.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use slipway_tests::at;
use slipway_tests::image::ask_once;
use slipway_tests::system::unpacked;

use super::World;

super::on! {
    trixie: networks_are_kept_apart;
    unstable: networks_are_kept_apart;
    experimental: networks_are_kept_apart a_changed_driver_opens_nothing a_container_whose_namespace_is_gone;
}

/// The options of the networks.
const OPTIONS: [(&str, &str); 4] = [
    ("none", ""),
    ("no", "--opt isolate=false"),
    ("yes", "--opt isolate=true"),
    ("strict", "--opt isolate=strict"),
];
/// Where a system has the newest netavark.
const NEWEST: &str = "/opt/netavark";

#[test]
fn with_the_newest_netavark() {
    let (Some(packages), Some(newest)) =
        (unpacked("experimental", "usr/lib/podman/netavark"), unpacked("netavark", "bin/netavark"))
    else {
        slipway_tests::skip!("netavark of crates.io")
    };
    let Some(world) = World::new(&packages) else { return };
    let program = std::fs::read(newest.join("bin/netavark")).expect("the program");
    let file = format!("{NEWEST}/netavark");
    world.system.write(&file, program);
    world.system.run(&["/bin/busybox", "chmod", "755", &file]);
    let containers = "/etc/containers/containers.conf";
    let text = world.system.read(containers);
    world.system.write(
        containers,
        text.replacen(
            "[engine]",
            &format!("[engine]\nhelper_binaries_dir = [\"{NEWEST}\", \"/usr/lib/podman\"]"),
            1,
        ),
    );
    let info = world.podman("info --format {{.Host.NetworkBackendInfo.Path}}");
    assert_eq!(info.trim(), file);
    matrix(&world);
}

fn networks_are_kept_apart(packages: &Path) {
    let Some(world) = World::new(packages) else { return };
    matrix(&world);
}

/// A container in a network, and the container's addresses.
struct Member {
    name: String,
    addresses: [IpAddr; 2],
}

/// Compares which networks reach each other, directly and through published ports, in both families, and with strict
/// isolation or without.
fn matrix(world: &World) {
    let drivers = ["slipway", "bridge"];
    let all = drivers.map(|driver| members(world, driver));
    for (driver, members) in drivers.iter().zip(&all) {
        assert_eq!(members.len(), OPTIONS.len(), "{driver}");
    }
    let [ours, theirs] = &all;
    let names = OPTIONS.map(|(name, _)| name);
    let (mut tried, mut passed) = (0, 0);
    for (from, to) in (0..names.len()).flat_map(|from| (0..names.len()).map(move |to| (from, to))) {
        if from == to {
            continue;
        }
        for family in [0, 1] {
            let reaches = |all: &[Member]| answers(world, &all[from], at(all[to].addresses[family], 80));
            let (our, their) = (reaches(ours), reaches(theirs));
            assert_eq!(our, their, "{} to {}, IPv{}", names[from], names[to], 4 + 2 * family);
            tried += 1;
            passed += usize::from(our);
        }
        // Published ports are open to all. netavark before 2.1 closes them to isolated networks.
        for node in [IpAddr::from(world.client.node_v4), world.client.node_v6.into()] {
            assert!(
                answers(world, &ours[from], at(node, port("slipway", to))),
                "{} to {}",
                names[from],
                names[to]
            );
        }
    }
    assert!(passed > 0 && passed < tried, "{passed} of {tried}");
    for (at, (name, _)) in OPTIONS.iter().enumerate() {
        world.open(port("slipway", at), &format!("slipway-{name}"));
    }
    let names: Vec<&str> = all.iter().flatten().map(|member| member.name.as_str()).collect();
    world.podman(&format!("rm --force --time 0 {}", names.join(" ")));
    for (driver, (name, _)) in drivers.iter().flat_map(|driver| OPTIONS.iter().map(move |one| (driver, one)))
    {
        world.podman(&format!("network rm {driver}-{name}"));
    }
}

fn port(driver: &str, at: usize) -> u16 {
    let first = if driver == "slipway" { 8100 } else { 8200 };
    first + u16::try_from(at).expect("a small number")
}

/// Creates the networks of a driver, with a container in each.
fn members(world: &World, driver: &str) -> Vec<Member> {
    let tens = if driver == "slipway" { 10 } else { 20 };
    OPTIONS
        .iter()
        .enumerate()
        .map(|(at, (option, words))| {
            let (name, number) = (format!("{driver}-{option}"), 100 + tens + at);
            let subnets = format!("--subnet 10.{number}.0.0/24 --subnet fd00:{number}::/64");
            world.podman(
                format!("network create --driver {driver} {subnets} {words} {name}")
                    .replace("  ", " ")
                    .as_str(),
            );
            world.run_web(&name, &format!("--network {name} --publish {}:80", port(driver, at)));
            let (v4, v6) = world.address(&name, &name);
            Member { name, addresses: [v4.into(), v6.into()] }
        })
        .collect()
}

fn answers(world: &World, from: &Member, to: std::net::SocketAddr) -> bool {
    ask_once(&world.inside(&from.name), to, Duration::from_millis(700)).is_ok()
}

/// A user who follows the documentation and changes `bridge` to `slipway` in a network's file opens nothing that was
/// closed. A network created by an earlier version stays open, and `check-node` reports it.
fn a_changed_driver_opens_nothing(packages: &Path) {
    let Some(world) = World::new(packages) else { return };
    let system = &world.system;
    for (name, number) in [("one", 110), ("two", 111)] {
        world.podman(&format!(
            "network create --subnet 10.{number}.0.0/24 --subnet fd00:{number}::/64 {name}"
        ));
        let path = format!("/etc/containers/networks/{name}.json");
        let text = system.read(&path).replace("\"driver\": \"bridge\"", "\"driver\": \"slipway\"");
        system.write(&path, text);
        world.run_web(name, &format!("--network {name} --publish 80{number}:80", number = number - 100));
    }
    let (one, two) = (world.address("one", "one"), world.address("two", "two"));
    for (from, to) in
        [("one", IpAddr::from(two.0)), ("one", two.1.into()), ("two", one.0.into()), ("two", one.1.into())]
    {
        assert!(
            ask_once(&world.inside(from), at(to, 80), Duration::from_millis(700)).is_err(),
            "{from} reaches {to}"
        );
    }
    world.open(8010, "one");
    world.open(8011, "two");
    // This is how an earlier version stored the network.
    let blue = "/etc/containers/networks/blue.json";
    let text = system.read(blue);
    assert_eq!(world.network("blue")["options"]["isolate"], "strict", "{text}");
    let old = text.replace("\"isolate\": \"strict\"", "\"mtu\": \"1400\"");
    assert_ne!(old, text);
    system.write(blue, old);
    world.podman("network create --driver slipway --opt isolate=false --subnet 10.112.0.0/24 --subnet fd00:112::/64 open");
    world.run_web("blue", "--network blue");
    world.run_web("open", "--network open");
    let blue = world.address("blue", "blue");
    assert!(ask_once(&world.inside("open"), at(blue.0, 80), Duration::from_secs(2)).is_ok());
    let found = system.try_run(&["/opt/cni/bin/slipway", "check-node"]).stdout;
    assert!(found.contains("blue.json") && found.contains("open: it has no option isolate"), "{found}");
    world.podman("rm --force --time 0 one two blue open");
}

/// The namespace's path is removed, as after a crash, and podman forgets the container whatever netavark does.
fn a_container_whose_namespace_is_gone(packages: &Path) {
    let Some(world) = World::new(packages) else { return };
    let system = &world.system;
    world.run_web("web", "--network blue --publish 8080:80");
    world.open(8080, "web");
    let pid = world.podman("inspect --format {{.State.Pid}} web");
    let path = world.inspect("web")["SandboxKey"].as_str().expect("a namespace").to_owned();
    let conmon = world.podman("inspect --format {{.State.ConmonPid}} web");
    system.run(&["/bin/busybox", "kill", "-9", conmon.trim(), pid.trim()]);
    system.run(&["/bin/busybox", "umount", "-l", &path]);
    system.run(&["/bin/busybox", "rm", "-f", &path]);
    system.wait_for("the removal", || {
        system.try_run(&["podman", "rm", "--force", "--time", "0", "web"]).code == Some(0)
    });
    system.wait_for("the end of the namespace", || !world.node.cmd("ip -oneline link").contains("master sw"));
    system.run(&["/opt/cni/bin/slipway", "restore"]);
    assert!(!world.node.slipway("ports").contains("blue"));
    world.closed(8080);
    world.run_web("next", "--network blue --publish 8080:80");
    world.open(8080, "next");
    world.podman("rm --force --time 0 next");
}
