// SPDX-License-Identifier: GPL-2.0-or-later

//! The tap plugin: every key, and frames that a program reads from the tap and writes to it.

mod program;
#[path = "../single/mod.rs"]
mod single;

use cni_kernel::tap::Queues;
use serde_json::{Value, json};
use slipway_tests::{Attach, Pod, address_of, peer_fails, skip, within};

use program::Program;
use single::{World, add};

const PLUGIN: &str = "tap";
const NEEDS: &str = "tap links";

fn plugin(_: u16) -> Value {
    json!({})
}

fn info(pod: &Pod) -> Value {
    let link = pod.link("eth0");
    assert_eq!(link["linkinfo"]["info_kind"], "tun", "{link}");
    link["linkinfo"]["info_data"].clone()
}

#[test]
fn a_program_reads_and_writes_the_frames() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let result = add(&world.network(1, &json!({})), &pod);
    let data = info(&pod);
    assert_eq!((&data["type"], &data["persist"], &data["pi"]), (&json!("tap"), &json!(true), &json!(false)));
    let program = Program::attach(&pod, "eth0", Queues::One);
    pod.wait_up("eth0");
    // The program answers as if it were the container's gateway.
    let gateway: std::net::Ipv4Addr = "10.60.1.1".parse().expect("an address");
    let asked = std::thread::scope(|scope| {
        let ping = scope.spawn(|| pod.ping(gateway.into()));
        let asked = program.answer_for(gateway);
        ping.join().expect("no panic").expect("the program answers");
        asked
    });
    assert_eq!(std::net::IpAddr::from(asked), address_of(&result, 0));
}

#[test]
fn there_may_be_several_queues() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let (one, two) = (world.node.pod("one"), world.node.pod("two"));
    add(&world.network(1, &json!({})), &one);
    add(&world.network(1, &json!({"multiQueue": true})), &two);
    assert_eq!(
        (info(&one)["multi_queue"].clone(), info(&two)["multi_queue"].clone()),
        (json!(false), json!(true))
    );
    let _queues = [Queues::Several; 2].map(|queues| Program::attach(&two, "eth0", queues));
    assert_eq!(info(&two)["numqueues"], 2);
}

#[test]
fn owner_and_group_may_open_the_tap() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    for (number, (keys, owner, group)) in [
        (json!({}), None, None),
        (json!({"owner": 1}), Some(["daemon", "1"]), None),
        (json!({"group": 0}), None, Some(["root", "0"])),
        (json!({"owner": 1, "group": 2}), Some(["daemon", "1"]), Some(["bin", "2"])),
    ]
    .into_iter()
    .enumerate()
    {
        let pod = world.node.pod(&format!("pod{number}"));
        add(&world.network(1, &keys), &pod);
        let data = info(&pod);
        // ip(8) prints a number if the system does not have a name for it.
        let is = |has: &Value, wanted: Option<[&str; 2]>| match wanted {
            Some(names) => names.contains(&has.to_string().trim_matches('"')),
            None => has.is_null(),
        };
        assert!(is(&data["user"], owner) && is(&data["group"], group), "{data}");
    }
}

#[test]
fn mtu_and_address_are_as_configured() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let network = world.network(1, &json!({"mtu": 1400, "mac": "02:00:00:00:00:03"}));
    let attach = Attach::new(&pod).args("IgnoreUnknown=1;MAC=02:00:00:00:00:02");
    let result = network.add(&attach).expect("ADD");
    assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:02");
    assert_eq!(
        (pod.link("eth0")["mtu"].clone(), pod.mac("eth0").as_str()),
        (json!(1400), "02:00:00:00:00:02")
    );
}

#[test]
fn the_tap_may_be_a_port_of_a_bridge_in_the_container() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    pod.cmd("ip link add br0 type bridge");
    let network = world.network(1, &json!({"bridge": "br0"}));
    add(&network, &pod);
    assert_eq!(pod.link("eth0")["master"], "br0");
    network.del(&Attach::new(&pod)).expect("DEL");
    assert!(pod.has_link("br0") && !pod.has_link("eth0"));
    peer_fails("the link stays", || {
        let before = world.state(&[&pod]);
        let network = world.network(1, &json!({"bridge": "absent"}));
        let failure = network.add(&Attach::new(&pod)).expect_err("there is none");
        assert_eq!(failure.error.msg, "failed to get bridge absent: Link not found");
        before.assert_same(&world.state(&[&pod]));
    });
}

#[test]
fn without_ipam_the_link_is_only_set_up() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let network = world.network(1, &json!({"ipam": {}, "dns": {"domain": "a.test"}}));
    let result = add(&network, &pod);
    assert_eq!((&result["ips"], &result["dns"]), (&Value::Null, &json!({"domain": "a.test"})));
    assert!(pod.link("eth0")["flags"].as_array().expect("flags").contains(&"UP".into()));
    network.check(&Attach::new(&pod)).expect("CHECK");
    network.del(&Attach::new(&pod)).expect("DEL");
    assert!(!pod.has_link("eth0"));
}

/// IPv6 addresses skip duplicate address detection, which would never finish without a program at the other end.
#[test]
fn add_does_not_wait_for_the_program() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    pod.sysctl("net/ipv6/conf/default/accept_dad", "1");
    peer_fails("waits for five seconds", || {
        let begin = std::time::Instant::now();
        add(&world.network(1, &json!({})), &pod);
        let spent = begin.elapsed();
        assert!(spent < within(std::time::Duration::from_secs(4)), "{spent:?}");
        let addresses = pod.cmd("ip address show dev eth0");
        let line = addresses.lines().find(|line| line.contains("fd00:60:1::2/64")).expect("the address");
        assert!(!line.contains("tentative"), "{addresses}");
    });
}

#[test]
fn status_fails_without_dev_net_tun() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    peer_fails("does not look", || {
        let network = world.network(1, &json!({}));
        network.status().expect("STATUS");
        world.node.cmd("mount -t tmpfs tmpfs /dev/net");
        let failure = network.status().expect_err("the next ADD would fail");
        assert_eq!(
            (failure.error.code, failure.error.msg.starts_with("open /dev/net/tun")),
            (50, true),
            "{failure}"
        );
    });
}

/// Without SELinux, a context cannot be set.
#[test]
fn a_context_needs_selinux() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    if std::path::Path::new("/sys/fs/selinux/enforce").exists() {
        return;
    }
    let pod = world.node.pod("pod");
    peer_fails("the link stays, from an earlier step", || {
        let before = world.state(&[&pod]);
        let context = "system_u:system_r:container_t:s0";
        let failure = world
            .network(1, &json!({"selinuxContext": context}))
            .add(&Attach::new(&pod))
            .expect_err("there is no SELinux");
        assert!(failure.error.msg.contains("failed set socket label: "), "{failure}");
        before.assert_same(&world.state(&[&pod]));
    });
}
