// SPDX-License-Identifier: GPL-2.0-or-later

//! Tests for every plugin that makes a single link, which only the container has. The suites of these plugins include
//! this module and provide the configuration.

mod cases;

use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Host, Network, Node, Pod, Snapshot, Space, address_of, golden_result, host_local, injected,
    is_peer, lacks, newest_version, peer_fails, skip, slipway_only, with_keys,
};

use crate::{NEEDS, PLUGIN};
use cases::{DNS, refused};

/// A node with a link to an outside host, `out0` on the node and `eth0` on the host.
pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) client: Host,
}

impl World {
    /// `None` if the kernel does not support the plugin's kind of link.
    pub(crate) fn new() -> Option<Self> {
        if lacks(PLUGIN).is_some() {
            return None;
        }
        let node = Node::new();
        let client = node.host("client");
        Some(Self { node, client })
    }

    /// A world and a pod.
    pub(crate) fn with_pod() -> Option<(Self, Pod)> {
        let world = Self::new()?;
        let pod = world.node.pod("pod");
        Some((world, pod))
    }

    /// The network with the configuration of pod `number`, host-local of both families, and the additional keys `keys`.
    pub(crate) fn network(&self, number: u16, keys: &Value) -> Network<'_> {
        let mut plugin = crate::plugin(number);
        plugin["type"] = PLUGIN.into();
        plugin["ipam"] = dual_stack(number);
        self.node.network(json!({"name": "net", "plugins": [with_keys(plugin, keys)]}))
    }

    /// The state of the node, the outside host and the pods, without counters and what is derived from the
    /// reservations.
    pub(crate) fn state(&self, pods: &[&Pod]) -> Snapshot {
        let mut spaces: Vec<&Space> = vec![&self.client];
        spaces.extend(pods.iter().map(|pod| -> &Space { pod }));
        Snapshot::take(&self.node, &spaces).without(&["last_reserved_ip", "/.slipway/", "/lock", "folder "])
    }
}

/// A host-local configuration with both families: 10.60.`number`.0/24 and fd00:60:`number`::/64.
pub(crate) fn dual_stack(number: u16) -> Value {
    host_local(format!("10.60.{number}.0/24"), format!("fd00:60:{number}::/64"))
}

/// Attaches the pod and returns the result.
#[track_caller]
pub(crate) fn add(network: &Network<'_>, pod: &Pod) -> Value {
    network.add(&Attach::new(pod)).expect("ADD")
}

#[test]
fn the_results_of_every_version_are_the_golden_ones() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        if version > newest_version() {
            continue;
        }
        let mut config = world.network(1, &json!({"dns": {"domain": "a.test"}})).configs(None).remove(0);
        config["cniVersion"] = version.into();
        let call = |verb: &str| world.node.plugin(PLUGIN).command(verb).for_pod(&pod).config(&config).run();
        let result = call("ADD").ok();
        let _ = call("DEL").ok();
        world.node.cmd("rm -r /var/lib/cni/networks/net");
        golden_result(PLUGIN, version, &result);
    }
}

#[test]
fn the_link_is_up_with_its_addresses_and_routes() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let result = add(&world.network(1, &json!({})), &pod);
    assert_eq!(result["interfaces"].as_array().map(Vec::len), Some(1));
    let link = pod.link("eth0");
    assert!(link["flags"].as_array().expect("flags").contains(&"UP".into()), "{link}");
    assert_eq!(link["address"], result["interfaces"][0]["mac"]);
    let addresses = pod.cmd("ip address show dev eth0");
    assert!(addresses.contains("10.60.1.2/24") && addresses.contains("fd00:60:1::2/64"), "{addresses}");
    assert!(pod.cmd("ip route").contains("default via 10.60.1.1 dev eth0"));
    assert!(pod.cmd("ip -6 route").contains("default via fd00:60:1::1 dev eth0"));
    assert_eq!(pod.cmd("ip -o link").lines().count(), 2, "the loopback and the link");
}

#[test]
fn errors_name_invalid_values_and_change_nothing() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    peer_fails("other codes, and some values are accepted or leave the link", || {
        for (keys, code, part) in refused(PLUGIN) {
            let before = world.state(&[&pod]);
            let failure = world.network(1, &keys).add(&Attach::new(&pod)).expect_err(part);
            assert_eq!(failure.error.code, code, "{failure}");
            assert!(failure.to_string().contains(part), "{part} is not in: {failure}");
            before.assert_same(&world.state(&[&pod]));
        }
    });
}

#[test]
fn the_result_has_the_dns_that_the_reference_takes() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    world.node.write("/var/lib/resolv.conf", "nameserver 192.0.2.53\n");
    let ipam = json!({"type": "host-local", "subnet": "10.60.1.0/24", "resolvConf": "/var/lib/resolv.conf"});
    let own = json!({"domain": "a.test"});
    let of_ipam = json!({"nameservers": ["192.0.2.53"]});
    let rows = DNS.iter().filter(|(plugin, ..)| *plugin == PLUGIN);
    for (number, (_, has_own, wanted)) in rows.enumerate() {
        let pod = world.node.pod(&format!("pod{number}"));
        let dns = if *has_own { own.clone() } else { json!({}) };
        // vlan can use each VLAN ID only once.
        let id = u16::try_from(number).expect("few") + 1;
        let result = add(&world.network(id, &json!({"ipam": ipam, "dns": dns})), &pod);
        let wanted = match *wanted {
            "own" => &own,
            "IPAM's" => &of_ipam,
            _ => &Value::Null,
        };
        assert_eq!(&result["dns"], wanted, "with {dns}");
    }
}

#[test]
fn a_second_add_leaves_the_first_alone() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    peer_fails("its link stays under another name, or takes the reservation away", || {
        let network = world.network(1, &json!({}));
        add(&network, &pod);
        let before = world.state(&[&pod]);
        let failure = network.add(&Attach::new(&pod)).expect_err("it is attached");
        assert!(failure.error.msg.contains("already exists"), "{failure}");
        before.assert_same(&world.state(&[&pod]));
        network.check(&Attach::new(&pod)).expect("CHECK");
    });
}

#[test]
fn the_link_names_its_owner() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    slipway_only!();
    let pod = world.node.pod("pod");
    add(&world.network(1, &json!({})), &pod);
    let alias = pod.link("eth0")["ifalias"].as_str().unwrap_or_default().to_owned();
    assert!(alias.starts_with("slipway1 ") && alias.ends_with(" net eth0 pod"), "{alias}");
}

#[test]
fn del_removes_what_add_made_and_may_be_repeated() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let (first, pod) = (world.node.pod("first"), world.node.pod("pod"));
    add(&world.network(1, &json!({})), &first);
    let network = world.network(2, &json!({}));
    let before = world.state(&[&first, &pod]);
    add(&network, &pod);
    for _ in 0..2 {
        network.del(&Attach::new(&pod)).expect("DEL");
        before.assert_same(&world.state(&[&first, &pod]));
    }
    // These attachments never existed.
    network.del(&Attach::new(&pod).container("unknown").netns("/run/netns/none")).expect("DEL");
    network.del(&Attach::new(&pod).container("unknown").netns("")).expect("DEL");
    before.assert_same(&world.state(&[&first, &pod]));
}

#[test]
fn the_address_is_free_when_the_namespace_is_gone() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    for netns in ["", "/run/netns/gone"] {
        let pod = world.node.pod("pod");
        let network = world.network(1, &json!({}));
        add(&network, &pod);
        assert_eq!(world.node.reserved("net").len(), 2);
        let attach = Attach::new(&pod).netns(netns);
        pod.remove();
        network.forget();
        network.del(&attach).expect("DEL");
        assert!(world.node.reserved("net").is_empty(), "{netns:?}");
    }
}

#[test]
fn del_leaves_foreign_links() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    peer_fails("deletes any link of that name", || {
        let network = world.network(1, &json!({}));
        pod.cmd("ip link add eth0 type bridge");
        network.add(&Attach::new(&pod)).expect_err("the name is taken");
        network.del(&Attach::new(&pod)).expect("DEL");
        assert!(pod.has_link("eth0"));
        pod.cmd("ip link delete eth0");
        // The link belongs to another attachment with the same name and namespace, but another container ID.
        add(&network, &pod);
        network.del(&Attach::new(&pod).container("other")).expect("DEL");
        assert!(pod.has_link("eth0"));
        network.check(&Attach::new(&pod)).expect("CHECK");
    });
}

/// A namespace is searched for dead links while the process lacks descriptors or memory. GC fails, because nobody would
/// know of a link that it passed over.
#[test]
fn gc_fails_if_it_cannot_look_into_a_namespace() {
    slipway_only!();
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let network = world.network(1, &json!({}));
    add(&network, &pod);
    let mut config = network.configs(None).swap_remove(0);
    config["cni.dev/valid-attachments"] = json!([]);
    config["cni.dev/attachments"] = json!([]);
    let gc = || network.prepare("GC", &config, None);
    let path = pod.path().to_str().expect("text");
    for (inject, path, words) in [
        ("openat,openat2:error=EMFILE", Some(path), "Too many open files"),
        ("setns:error=ENOMEM", None, "Cannot allocate memory"),
    ] {
        let error = injected(&world.node, gc(), inject, path).error();
        assert!(error.msg.contains(words), "{inject}: {error:?}");
        assert!(pod.has_link("eth0"), "{inject}");
    }
    gc().run().ok();
    assert!(!pod.has_link("eth0"));
}

#[test]
fn del_continues_after_an_error() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    peer_fails("stops at the first error", || {
        add(&world.network(1, &json!({})), &pod);
        let broken = world.network(1, &json!({"ipam": {"type": "absent"}}));
        let failure = broken.del(&Attach::new(&pod)).expect_err("no such IPAM");
        assert!(failure.to_string().contains("absent"), "{failure}");
        assert!(!pod.has_link("eth0"));
        world.network(1, &json!({})).del(&Attach::new(&pod)).expect("DEL");
        assert!(world.node.reserved("net").is_empty());
    });
}

#[test]
fn a_failed_add_leaves_nothing() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    peer_fails("the link stays", || {
        let full = json!({"type": "host-local", "subnet": "10.60.9.0/24", "rangeStart": "10.60.9.5",
            "rangeEnd": "10.60.9.5", "dataDir": "/run/full"});
        world.node.write("/run/full/net/10.60.9.5", "other\r\neth0");
        let mut unreachable = dual_stack(1);
        unreachable["routes"] = json!([{"dst": "10.9.0.0/16", "gw": "10.8.0.1"}]);
        for (keys, part) in [
            (json!({"ipam": {"type": "absent"}}), "absent"),
            (json!({"ipam": full}), "no IP addresses available"),
            (json!({"ipam": unreachable}), "10.9.0.0/16"),
        ] {
            let before = world.state(&[&pod]);
            let failure = world.network(1, &keys).add(&Attach::new(&pod)).expect_err("ADD should fail");
            assert!(failure.to_string().contains(part), "{part:?} is not in: {failure}");
            before.assert_same(&world.state(&[&pod]));
        }
    });
}

#[test]
fn gc_removes_stale_attachments_only() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    peer_fails("does nothing", || {
        let node = &world.node;
        let (live, dead, elsewhere) = (node.pod("live"), node.pod("dead"), node.pod("elsewhere"));
        let ours = world.network(1, &json!({}));
        add(&ours, &live);
        add(&world.network(2, &json!({})), &dead);
        let mut other = world.network(3, &json!({})).configs(None).remove(0);
        other["name"] = "other".into();
        let other = node.network(json!({"name": "other", "plugins": [other]}));
        add(&other, &elsewhere);
        // The runtime's cache is lost, so only the plugin knows the stale attachment.
        ours.forget();
        let live_attach = Attach::new(&live);
        ours.gc(&[&live_attach]).expect("GC");
        assert!(live.has_link("eth0") && elsewhere.has_link("eth0") && !dead.has_link("eth0"));
        assert_eq!(world.node.reserved("net"), ["10.60.1.2", "fd00:60:1::2"]);
        ours.gc_plugins(&Value::Null).expect("GC");
        assert!(!live.has_link("eth0") && elsewhere.has_link("eth0"));
        assert!(world.node.reserved("net").is_empty());
    });
}

#[test]
fn gc_without_a_list_removes_nothing() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    if newest_version() == "1.0.0" {
        return; // An older peer does not know the verb.
    }
    let pod = world.node.pod("pod");
    let network = world.network(1, &json!({}));
    add(&network, &pod);
    let before = world.state(&[&pod]);
    network.call("GC", &network.configs(None)[0], None).ok();
    before.assert_same(&world.state(&[&pod]));
}

#[test]
fn status_reports_an_exhausted_range() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    peer_fails("reports no error", || {
        let network = world.network(1, &json!({"ipam": {"type": "host-local", "subnet": "10.60.1.0/30"}}));
        network.status().expect("one address is free");
        add(&network, &pod);
        assert_eq!(network.status().expect_err("none is free").error.code, 50);
        network.del(&Attach::new(&pod)).expect("DEL");
        network.status().expect("it is free again");
    });
}

/// The network is valid, but the kernel does not support its kind of link.
#[test]
fn status_reports_a_kernel_without_such_links() {
    if is_peer() {
        return; // An older peer does not check this.
    }
    let node = Node::new();
    let client = node.host("client");
    let network = World { node, client };
    let network = network.network(1, &json!({}));
    match lacks(PLUGIN) {
        None => network.status().expect("the kernel has them"),
        Some(_) => {
            let failure = network.status().expect_err("the next ADD would fail");
            assert_eq!(failure.error.code, 50, "{failure}");
            assert!(failure.error.msg.contains(PLUGIN), "{failure}");
        }
    }
}

/// A route whose `gw` is the unspecified address is a route on the link.
#[test]
fn check_accepts_a_route_without_a_gateway() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let mut ipam = dual_stack(1);
    ipam["routes"] = json!([{"dst": "10.9.0.0/16", "gw": "0.0.0.0", "scope": 253}]);
    let network = world.network(1, &json!({"ipam": ipam}));
    add(&network, &pod);
    assert!(pod.cmd("ip route").contains("10.9.0.0/16 dev eth0 scope link"));
    if !is_peer() {
        network.check(&Attach::new(&pod)).expect("CHECK");
        pod.cmd("ip route delete 10.9.0.0/16");
        network.differs(&pod, "Expected Route 10.9.0.0/16");
    }
}

#[test]
fn check_finds_changes() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let network = world.network(1, &json!({}));
    add(&network, &pod);
    let fine = || network.check(&Attach::new(&pod)).expect("CHECK");
    fine();
    pod.cmd("ip address delete 10.60.1.2/24 dev eth0");
    network.differs(&pod, "Failed to match addr 10.60.1.2/24 on interface eth0");
    pod.cmd("ip address add 10.60.1.2/24 dev eth0");
    if !is_peer() {
        // The reference's dummy plugin does not check routes.
        network.differs(&pod, "Expected Route 0.0.0.0/0");
    }
    pod.cmd("ip route add default via 10.60.1.1 dev eth0");
    fine();
    if !is_peer() {
        pod.cmd("ip link set eth0 down");
        network.differs(&pod, "");
    }
    pod.cmd("ip link delete eth0");
    network.differs(&pod, "eth0");
    pod.cmd("ip link add eth0 type bridge");
    network.check(&Attach::new(&pod)).expect_err("it is another link");
    network.forget();
    let text =
        if PLUGIN == "macvlan" { "required prevResult missing" } else { "Required prevResult missing" };
    network.differs(&pod, text);
}

/// Two interfaces of one container are in one network, as Multus can set them up.
#[test]
fn one_container_may_have_several_interfaces() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let mut ipam = [dual_stack(1), dual_stack(2)];
    for ipam in &mut ipam {
        ipam["routes"] = json!([]);
    }
    let [first, second] = [1, 2].map(|number| {
        let ipam = &ipam[usize::from(number) - 1];
        (world.network(number, &json!({"ipam": ipam})), Attach::new(&pod).ifname(&format!("net{number}")))
    });
    for (network, attach) in [&first, &second] {
        network.add(attach).expect("ADD");
        network.check(attach).expect("CHECK");
    }
    first.0.del(&first.1).expect("DEL");
    assert!(!pod.has_link("net1") && pod.has_link("net2"));
    second.0.check(&second.1).expect("CHECK");
}

#[test]
fn concurrent_adds_get_distinct_addresses() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let pods: Vec<Pod> = (0..8).map(|number| world.node.pod(&format!("pod{number}"))).collect();
    let mut found: Vec<IpAddr> = std::thread::scope(|scope| {
        let (mut threads, world) = (Vec::new(), &world);
        for (number, pod) in pods.iter().enumerate() {
            let number = u16::try_from(number).expect("few");
            // All pods share the same range.
            let network = world.network(number, &json!({"ipam": dual_stack(1)}));
            threads.push(scope.spawn(move || address_of(&add(&network, pod), 0)));
        }
        threads.into_iter().map(|thread| thread.join().expect("ADD")).collect()
    });
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), pods.len());
}
