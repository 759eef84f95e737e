// SPDX-License-Identifier: GPL-2.0-or-later

//! The host-device plugin: each way to name a device, the move to the container and back, packets over the device, and
//! missing parts.

mod home;

use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Host, Network, Node, Pod, Proto, REFERENCE, Reference, Snapshot, golden_result, host_local,
    is_peer, newest_version, peer_fails, skip, slipway_only, with_keys,
};

/// A node with a device `dev0`, which is down. Its veth peer `wire0` is on an outside host.
struct World {
    node: Node,
    outside: Host,
    mac: String,
}

impl World {
    fn new() -> Self {
        let node = Node::new();
        let outside = node.host("outside");
        node.cmd("ip link add dev0 type veth peer name wire0 netns outside");
        outside.cmd("ip address add 10.60.1.1/24 dev wire0");
        outside.cmd("ip address add fd00:60:1::1/64 dev wire0 nodad");
        outside.cmd("ip link set wire0 up");
        let mac = node.mac("dev0");
        Self { node, outside, mac }
    }

    fn with_pod() -> (Self, Pod) {
        let world = Self::new();
        let pod = world.node.pod("pod");
        (world, pod)
    }

    /// The network with `dev0` and with host-local of both families. `keys` are added to the plugin's configuration.
    fn network(&self, keys: &Value) -> Network<'_> {
        let ipam = host_local("10.60.1.0/24", "fd00:60:1::/64");
        let plugin = with_keys(json!({"type": "host-device", "device": "dev0", "ipam": ipam}), keys);
        self.node.network(json!({"name": "net", "plugins": [plugin]}))
    }

    fn state(&self, pod: &Pod) -> Snapshot {
        Snapshot::take(&self.node, &[pod]).without(&["last_reserved_ip", "/.slipway/", "/lock", "folder "])
    }

    /// Replaces the machine's buses in sysfs with simulated ones.
    fn buses(&self) {
        let node = &self.node;
        node.cmd("mount -t tmpfs tmpfs /sys/bus");
        node.cmd("mount -t tmpfs tmpfs /sys/devices");
        for folder in [
            "bus/pci/drivers/vfio-pci",
            "bus/pci/drivers/ixgbe",
            "bus/pci/devices/0000:01:00.0/net/dev0",
            "bus/pci/devices/0000:02:00.0/virtio1/net/dev0",
            "bus/pci/devices/0000:03:00.0",
            "bus/pci/devices/0000:04:00.0",
            "bus/auxiliary/devices/mlx5_core.sf.4/net/dev0",
            "devices/pci0000:00/0000:01:00.0/net/dev0",
        ] {
            node.cmd(&format!("mkdir -p /sys/{folder}"));
        }
        for (device, driver) in [("1", "ixgbe"), ("2", "ixgbe"), ("3", "vfio-pci"), ("4", "ixgbe")] {
            let device = format!("/sys/bus/pci/devices/0000:0{device}:00.0/driver");
            node.cmd(&format!("ln -s ../../drivers/{driver} {device}"));
        }
    }
}

#[track_caller]
fn add(network: &Network<'_>, pod: &Pod) -> Value {
    network.add(&Attach::new(pod)).expect("ADD")
}

#[test]
fn the_results_of_every_version_are_the_golden_ones() {
    let (world, pod) = World::with_pod();
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        if version > newest_version() {
            continue;
        }
        let mut config = world.network(&json!({"dns": {"domain": "a.test"}})).configs(None).remove(0);
        config["cniVersion"] = version.into();
        let call =
            |verb: &str| world.node.plugin("host-device").command(verb).for_pod(&pod).config(&config).run();
        let result = call("ADD").ok();
        let _ = call("DEL").ok();
        world.node.cmd("rm -r /var/lib/cni/networks/net");
        golden_result("host-device", version, &result);
    }
}

#[test]
fn add_moves_the_device_and_del_moves_it_back() {
    let (world, pod) = World::with_pod();
    let network = world.network(&json!({}));
    let before = world.state(&pod);
    let result = add(&network, &pod);
    assert!(!world.node.has_link("dev0"));
    let link = pod.link("eth0");
    assert_eq!(
        (link["ifalias"].as_str(), link["address"].as_str()),
        (Some("dev0"), Some(world.mac.as_str()))
    );
    assert_eq!(result["interfaces"][0]["mac"], world.mac.as_str());
    let servers = [pod.serve(Proto::Tcp, "[::]:80", "pod"), pod.serve(Proto::Udp, "[::]:80", "pod")];
    for address in ["10.60.1.2", "fd00:60:1::2"] {
        let address: IpAddr = address.parse().expect("an address");
        for proto in Proto::ALL {
            world.outside.expect(proto, (address, 80), "pod");
        }
    }
    drop(servers);
    network.check(&Attach::new(&pod)).expect("CHECK");
    network.del(&Attach::new(&pod)).expect("DEL");
    before.assert_same(&world.state(&pod));
    peer_fails("fails when the device is home", || {
        for netns in [pod.path().to_str().expect("text"), "", "/run/netns/gone"] {
            network.del(&Attach::new(&pod).netns(netns)).expect("DEL again");
            before.assert_same(&world.state(&pod));
        }
    });
}

#[test]
fn the_device_is_found_by_name_address_path_and_bus() {
    let world = World::new();
    world.buses();
    let pod = world.node.pod("pod");
    let before = world.state(&pod);
    for keys in [
        json!({"device": "dev0"}),
        json!({"device": "", "hwaddr": world.mac}),
        json!({"device": "", "kernelpath": "/sys/devices/pci0000:00/0000:01:00.0"}),
        json!({"device": "", "pciBusID": "0000:01:00.0"}),
        json!({"device": "", "pciBusID": "0000:02:00.0"}),
        json!({"device": "", "runtimeConfig": {"deviceID": "0000:01:00.0"}}),
        json!({"device": "", "pciBusID": "0000:09:00.0", "runtimeConfig": {"deviceID": "mlx5_core.sf.4"}}),
        // The name takes precedence.
        json!({"hwaddr": "02:00:00:00:00:99", "pciBusID": "0000:04:00.0"}),
    ] {
        let network = world.network(&keys);
        if is_peer() && keys["pciBusID"] == "0000:09:00.0" {
            continue;
        }
        add(&network, &pod);
        assert_eq!(pod.mac("eth0"), world.mac, "{keys}");
        network.check(&Attach::new(&pod)).expect("CHECK");
        network.del(&Attach::new(&pod)).expect("DEL");
        before.assert_same(&world.state(&pod));
    }
}

/// A device of a userspace driver (DPDK) is not a link of the kernel, so there is nothing to move.
#[test]
fn a_device_of_a_userspace_driver_gets_only_addresses() {
    let world = World::new();
    world.buses();
    let pod = world.node.pod("pod");
    let network = world.network(&json!({"device": "", "pciBusID": "0000:03:00.0"}));
    let before = world.state(&pod);
    let result = add(&network, &pod);
    let sandbox = pod.path().to_str().expect("text");
    assert_eq!(result["interfaces"], json!([{"name": "eth0", "sandbox": sandbox}]));
    assert_eq!(result["ips"][0], json!({"address": "10.60.1.2/24", "gateway": "10.60.1.1", "interface": 0}));
    assert!(!pod.has_link("eth0"));
    network.check(&Attach::new(&pod)).expect("CHECK");
    network.del(&Attach::new(&pod)).expect("DEL");
    before.assert_same(&world.state(&pod));
    let network = world.network(&json!({"device": "", "pciBusID": "0000:03:00.0", "ipam": {}}));
    assert_eq!(add(&network, &pod)["ips"], Value::Null);
    network.del(&Attach::new(&pod)).expect("DEL");
}

#[test]
fn errors_name_the_missing_device() {
    let world = World::new();
    world.buses();
    let pod = world.node.pod("pod");
    for (keys, text) in [
        (json!({"device": "absent"}), "failed to find host device: Link not found"),
        (json!({"device": ""}), "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\""),
        (
            json!({"device": "", "hwaddr": "02:00:00:00:00:77"}),
            "failed to find host device: failed to find physical interface",
        ),
        (
            json!({"device": "", "hwaddr": "zz"}),
            "failed to find host device: failed to parse MAC address \"zz\": address zz: invalid MAC address",
        ),
        (
            json!({"device": "", "kernelpath": "/etc"}),
            "failed to find host device: kernel device path \"/etc\" must be absolute and begin with /sys/devices/",
        ),
        (
            json!({"device": "", "pciBusID": "0000:09:00.0"}),
            "error with host device: lstat /sys/bus/pci/devices/0000:09:00.0: ",
        ),
        (
            json!({"device": "", "pciBusID": "0000:04:00.0"}),
            "failed to find host device: no net directory under pci device 0000:04:00.0",
        ),
        (
            json!({"device": "", "runtimeConfig": {"deviceID": "0000:09:00.0"}}),
            "runtime config DeviceID 0000:09:00.0 not found or unsupported",
        ),
    ] {
        let before = world.state(&pod);
        let failure = world.network(&keys).add(&Attach::new(&pod)).expect_err("nothing is there");
        assert!(failure.error.msg.starts_with(text), "{text:?}: {failure}");
        before.assert_same(&world.state(&pod));
    }
    peer_fails("leads anywhere below /sys", || {
        let keys = json!({"device": "", "kernelpath": "/sys/devices/../bus/pci/devices/0000:01:00.0"});
        let failure = world.network(&keys).add(&Attach::new(&pod)).expect_err("it leads elsewhere");
        assert_eq!(failure.error.code, 7, "{failure}");
    });
}

#[test]
fn a_failed_add_restores_the_device() {
    let (world, pod) = World::with_pod();
    peer_fails("the device stays in the container", || {
        for flag in ["down", "up"] {
            world.node.cmd(&format!("ip link set dev0 {flag}"));
            let full = json!({"type": "host-local", "subnet": "10.60.9.0/24", "rangeStart": "10.60.9.5",
                "rangeEnd": "10.60.9.5", "dataDir": "/run/full"});
            world.node.write("/run/full/net/10.60.9.5", "other\r\neth0");
            let unreachable = json!({"type": "host-local", "subnet": "10.60.1.0/24",
                "routes": [{"dst": "10.9.0.0/16", "gw": "10.8.0.1"}]});
            for (ipam, part) in [
                (json!({"type": "absent"}), "absent"),
                (full, "no IP addresses available"),
                (unreachable, "10.9.0.0/16"),
            ] {
                let before = world.state(&pod);
                let failure = world
                    .network(&json!({"ipam": ipam}))
                    .add(&Attach::new(&pod))
                    .expect_err("ADD should fail");
                assert!(failure.to_string().contains(part), "{part:?} is not in: {failure}");
                before.assert_same(&world.state(&pod));
            }
        }
    });
}

#[test]
fn an_add_fails_if_the_container_has_a_link_of_that_name() {
    let (world, pod) = World::with_pod();
    peer_fails("another text", || {
        pod.cmd("ip link add eth0 type bridge");
        let before = world.state(&pod);
        let failure = world.network(&json!({})).add(&Attach::new(&pod)).expect_err("the name is taken");
        assert!(failure.error.msg.contains("already exists"), "{failure}");
        before.assert_same(&world.state(&pod));
    });
}

/// The node and the container each have a link with the name that the device has on the other side.
#[test]
fn node_and_container_have_separate_names() {
    let (world, pod) = World::with_pod();
    world.node.cmd("ip link add eth0 type bridge");
    pod.cmd("ip link add dev0 type bridge");
    let network = world.network(&json!({}));
    let before = world.state(&pod);
    add(&network, &pod);
    assert_eq!(pod.mac("eth0"), world.mac);
    network.del(&Attach::new(&pod)).expect("DEL");
    before.assert_same(&world.state(&pod));
}

#[test]
fn a_del_succeeds_once_the_devices_name_is_free() {
    let (world, pod) = World::with_pod();
    let network = world.network(&json!({}));
    let before = world.state(&pod);
    add(&network, &pod);
    world.node.cmd("ip link add dev0 type bridge");
    let failure = network.del(&Attach::new(&pod)).expect_err("there is a link of that name");
    assert!(failure.error.msg.contains("dev0"), "{failure}");
    world.node.cmd("ip link delete dev0");
    peer_fails("does not find the device again", || {
        network.del(&Attach::new(&pod)).expect("DEL");
        before.assert_same(&world.state(&pod));
    });
}

/// The kernel deletes this device together with the namespace, because the device is one end of a veth pair. It would
/// move a physical device back to the node.
#[test]
fn the_address_is_free_when_the_namespace_is_gone() {
    peer_fails("DEL fails and leaves the address", || {
        for netns in ["", "/run/netns/gone"] {
            let (world, pod) = World::with_pod();
            let network = world.network(&json!({}));
            add(&network, &pod);
            let attach = Attach::new(&pod).netns(netns);
            pod.remove();
            network.forget();
            network.del(&attach).expect("DEL");
            assert!(world.node.reserved("net").is_empty(), "{netns:?}");
        }
    });
}

/// When a namespace ends, the kernel moves a physical device back to the node. The device is then down, and has the
/// name from the container, or `dev` and its index if that name is taken.
#[test]
fn a_device_that_the_kernel_moved_back_gets_its_name_again() {
    peer_fails("leaves it as it is", || {
        let (world, pod) = World::with_pod();
        let network = world.network(&json!({}));
        let before = world.state(&pod);
        for name in ["eth0", "dev12", "dev0"] {
            world.node.cmd(&format!("ip link set dev0 name {name} alias dev0"));
            network.del(&Attach::new(&pod).netns("")).expect("DEL");
            before.assert_same(&world.state(&pod));
        }
        // A link with another alias is left alone, and so is a link that is up.
        for (name, alias, flag) in [("dev0", "uplink", "down"), ("eth0", "dev0", "up")] {
            world.node.cmd(&format!("ip link set dev0 name {name} alias {alias}"));
            world.node.cmd(&format!("ip link set {name} {flag}"));
            let as_it_is = world.state(&pod);
            network.del(&Attach::new(&pod)).expect("DEL");
            as_it_is.assert_same(&world.state(&pod));
            world.node.cmd(&format!("ip link set {name} down"));
            world.node.cmd(&format!("ip link set {name} name dev0 alias {alias}"));
        }
    });
}

#[test]
fn a_link_without_an_alias_stays() {
    let (world, pod) = World::with_pod();
    pod.cmd("ip link add eth0 type bridge");
    let failure = world.network(&json!({})).del(&Attach::new(&pod)).expect_err("the link has no alias");
    assert_eq!(failure.error.msg, "failed to find original ifname for \"eth0\" (alias is not set)");
    assert!(pod.has_link("eth0"));
}

/// The alias of a device without a record, which the reference or an earlier version has moved, must be a valid name.
#[test]
fn a_hostile_alias_moves_nothing() {
    let (world, pod) = World::with_pod();
    let network = world.network(&json!({}));
    add(&network, &pod);
    world.node.cmd("rm -rf /run/slipway/devices");
    for alias in ["../../etc", "a:b", "sixteen-letters-"] {
        pod.cmd(&format!("ip link set eth0 alias {alias}"));
        network.del(&Attach::new(&pod)).expect_err("no name");
        assert!(pod.has_link("eth0") && world.node.reserved("net").is_empty() != is_peer());
    }
    pod.cmd("ip link set eth0 alias dev0");
    network.del(&Attach::new(&pod)).expect("DEL");
    assert!(world.node.has_link("dev0"));
}

#[test]
fn check_finds_changes() {
    let (world, pod) = World::with_pod();
    let network = world.network(&json!({}));
    add(&network, &pod);
    let differs = |text: &str| {
        let failure = network.check(&Attach::new(&pod)).expect_err("CHECK should notice");
        assert!(failure.error.msg.contains(text), "{text:?} is not in: {failure}");
    };
    pod.cmd("ip address delete 10.60.1.2/24 dev eth0");
    differs("Failed to match addr 10.60.1.2/24 on interface eth0");
    pod.cmd("ip address add 10.60.1.2/24 dev eth0");
    differs("Expected Route 0.0.0.0/0");
    pod.cmd("ip route add default via 10.60.1.1 dev eth0");
    network.check(&Attach::new(&pod)).expect("CHECK");
    pod.cmd("ip link set eth0 address 02:00:00:00:00:77");
    differs(&format!("Interface eth0 Mac {} doesn't match container Mac: 02:00:00:00:00:77", world.mac));
    network.forget();
    differs("Required prevResult missing");
}

#[test]
fn without_ipam_the_link_is_only_set_up() {
    let (world, pod) = World::with_pod();
    let network = world.network(&json!({"ipam": {}, "dns": {"domain": "a.test"}}));
    let before = world.state(&pod);
    let result = add(&network, &pod);
    assert_eq!((&result["ips"], &result["dns"]), (&Value::Null, &Value::Null));
    pod.wait_up("eth0");
    network.check(&Attach::new(&pod)).expect("CHECK");
    network.del(&Attach::new(&pod)).expect("DEL");
    before.assert_same(&world.state(&pod));
}

#[test]
fn gc_and_status_are_passed_to_ipam() {
    peer_fails("GC does nothing, STATUS does not see that the range is exhausted", || {
        let (world, pod) = World::with_pod();
        let network = world.network(&json!({"ipam": {"type": "host-local", "subnet": "10.60.1.0/30"}}));
        network.status().expect("one address is free");
        add(&network, &pod);
        assert_eq!(network.status().expect_err("none is free").error.code, 50);
        let attach = Attach::new(&pod);
        network.gc(&[&attach]).expect("GC");
        assert_eq!(world.node.reserved("net"), ["10.60.1.2"]);
        network.forget();
        network.gc_plugins(&json!([])).expect("GC");
        assert!(world.node.reserved("net").is_empty());
        // The device stays in the container, because GC finds no owner on it.
        assert!(pod.has_link("eth0"));
        network.del(&attach).expect("DEL");
        assert!(world.node.has_link("dev0"));
    });
}

#[test]
fn the_reference_and_slipway_move_back_each_others_devices() {
    slipway_only!();
    let Some(reference) = Reference::any().map(|reference| reference.plugin("host-device")) else {
        skip!(REFERENCE);
    };
    let (world, pod) = World::with_pod();
    let mut config = world.network(&json!({"ipam": {}})).configs(None).remove(0);
    config["cniVersion"] = "1.0.0".into();
    let ours = |verb: &str| world.node.plugin("host-device").command(verb).for_pod(&pod).config(&config);
    let before = world.state(&pod);
    let _ = ours("ADD").run().ok();
    let _ = ours("DEL").instead(&reference).run().ok();
    assert_eq!(world.node.mac("dev0"), world.mac);
    // Older versions of the reference plugin leave the alias.
    let _ = ours("ADD").instead(&reference).run().ok();
    let _ = ours("DEL").run().ok();
    before.assert_same(&world.state(&pod));
}
