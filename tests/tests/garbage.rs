//! Mutated configurations and environments: an error of the specification each, or success that DEL
//! takes back; never a crash, a hang or something left.
//!
//! `SLIPWAY_GARBAGE` is how many calls are made for each plugin (default 150); `SLIPWAY_SEED` repeats a
//! run: a failure prints the seed.

use serde_json::{Map, Value, json};
use slipway_tests::{BridgeNetfilter, Node, Output, Pod, Snapshot, lacks, skip};

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

fn nasty_values() -> Vec<Value> {
    let mut deep = json!(1);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(-1),
        json!(1),
        json!(65_536),
        json!(4_294_967_296_u64),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1.5),
        json!(1e300),
        json!(""),
        json!(" "),
        json!(".."),
        json!("../../../tmp/x"),
        json!("/"),
        json!("a\nb"),
        json!("a\"b; flush ruleset"),
        json!("a\u{0}b"),
        json!("\u{202e}é"),
        json!("x".repeat(5000)),
        json!("10.1.2.3"),
        json!("10.1.2.0/24"),
        json!("0.0.0.0/0"),
        json!("255.255.255.255/32"),
        json!("::/0"),
        json!("fd00::/127"),
        json!("::ffff:10.0.0.0/104"),
        json!("lo"),
        json!("eth0"),
        json!("br0"),
        json!("02:00:00:00:00:01"),
        json!("ff:ff:ff:ff:ff:ff"),
        json!([]),
        json!([null]),
        json!([[]]),
        json!({}),
        json!({ "": {} }),
        json!([1, "a", {}, []]),
        deep,
    ]
}

/// Every place in a value, as a JSON pointer.
fn places(value: &Value, at: &str, into: &mut Vec<String>) {
    let escape = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                let place = format!("{at}/{}", escape(key));
                into.push(place.clone());
                places(inner, &place, into);
            }
        }
        Value::Array(list) => {
            for (index, inner) in list.iter().enumerate() {
                let place = format!("{at}/{index}");
                into.push(place.clone());
                places(inner, &place, into);
            }
        }
        _ => {}
    }
}

fn mutate(config: &mut Value, random: &mut Random, nasty: &[Value]) {
    let mut all = Vec::new();
    places(config, "", &mut all);
    // Name, version and type are mutated rarely: what they are checked by is soon seen.
    let kept = |place: &&String| ["/name", "/cniVersion", "/type", "/ipam/type"].contains(&place.as_str());
    all.retain(|place| !kept(&place) || random.below(20) == 0);
    if all.is_empty() {
        return;
    }
    let place = random.pick(&all).clone();
    match random.below(6) {
        0 => {
            let (parent, key) = place.rsplit_once('/').expect("a pointer");
            match config.pointer_mut(parent) {
                Some(Value::Object(map)) => drop(map.remove(key)),
                Some(Value::Array(list)) => drop(list.pop()),
                _ => {}
            }
        }
        1 => {
            // Another spelling of the same key.
            let (parent, key) = place.rsplit_once('/').expect("a pointer");
            if let Some(Value::Object(map)) = config.pointer_mut(parent) {
                map.insert(key.to_uppercase(), random.pick(nasty).clone());
            }
        }
        2 => {
            let from = random.pick(&all).clone();
            if let (Some(value), Some(to)) = (config.pointer(&from).cloned(), config.pointer_mut(&place)) {
                *to = value;
            }
        }
        _ => {
            if let Some(value) = config.pointer_mut(&place) {
                *value = random.pick(nasty).clone();
            }
        }
    }
}

fn bytes_of(config: &Value, random: &mut Random) -> Vec<u8> {
    let mut bytes = config.to_string().into_bytes();
    if random.below(10) == 0 {
        let at = random.below(bytes.len());
        match random.below(3) {
            0 => bytes[at] = random.next().to_le_bytes()[0],
            1 => bytes.truncate(at),
            _ => drop(bytes.splice(at..at, b"\xff{[,\"".iter().copied())),
        }
    }
    bytes
}

fn bridge() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true,
        "isDefaultGateway": true, "ipMasq": true, "mtu": 1400, "hairpinMode": true, "promiscMode": false,
        "forceAddress": false, "macspoofchk": true, "portIsolation": false, "enabledad": false,
        "ipMasqBackend": "nftables", "disableContainerInterface": false,
        "args": { "cni": { "mac": "02:00:00:00:00:07", "ips": [] } },
        "runtimeConfig": { "mac": "02:00:00:00:00:08", "ips": ["10.88.0.9/24"] },
        "dns": { "nameservers": ["10.0.0.1"], "domain": "a.test", "search": ["a.test"], "options": ["ndots:5"] },
        "ipam": host_local()["ipam"],
    })
}

fn ptp() -> Value {
    let mut config = bridge();
    config["type"] = "ptp".into();
    let routes = config["ipam"]["routes"].as_array_mut().expect("a list");
    routes.push(json!({ "dst": "10.88.0.0/24" }));
    config
}

fn host_local() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "host-local",
        "runtimeConfig": { "ips": ["10.88.0.9/24"], "ipRanges": [[{ "subnet": "10.89.0.0/24" }]] },
        "args": { "cni": { "ips": ["fd00:88::7"] } },
        "ipam": {
            "type": "host-local", "resolvConf": "/etc/hostname",
            "ranges": [
                [{ "subnet": "10.88.0.0/24", "rangeStart": "10.88.0.5", "rangeEnd": "10.88.0.50", "gateway": "10.88.0.1" },
                 { "subnet": "10.87.0.0/24" }],
                [{ "subnet": "fd00:88::/64" }],
            ],
            "routes": [
                { "dst": "0.0.0.0/0" },
                { "dst": "10.99.0.0/16", "gw": "10.88.0.1", "mtu": 1300, "advmss": 1200, "priority": 7, "table": 100, "scope": 0 },
            ],
        },
    })
}

fn portmap() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "portmap", "backend": "nftables", "snat": true,
        "excludeLoopback": true,
        "masqAll": false, "markMasqBit": 13, "conditionsV4": ["ip saddr 10.0.0.0/8"], "conditionsV6": [],
        "capabilities": { "portMappings": true },
        "runtimeConfig": { "portMappings": [
            { "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "" },
            { "HostPort": 53, "ContainerPort": 53, "Protocol": "udp", "HostIP": "127.0.0.1" },
        ] },
        "prevResult": {
            "cniVersion": "1.1.0",
            "interfaces": [{ "name": "br0" }, { "name": "eth0", "sandbox": "/run/netns/pod" }],
            "ips": [{ "address": "10.88.0.9/24", "interface": 1, "gateway": "10.88.0.1" },
                    { "address": "fd00:88::9/64", "interface": 1 }],
            "routes": [{ "dst": "0.0.0.0/0" }], "dns": {},
        },
    })
}

/// What a plugin gets that is chained.
fn previous() -> Value {
    portmap()["prevResult"].clone()
}

fn firewall() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "firewall", "backend": "iptables",
        "ingressPolicy": "isolated", "firewalldZone": "public", "prevResult": previous(),
    })
}

fn bandwidth() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bandwidth", "ingressRate": 8_000_000,
        "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000,
        "runtimeConfig": { "bandwidth": { "IngressRate": 8000, "IngressBurst": 8000 } },
        "prevResult": previous(),
    })
}

fn tuning() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "tuning", "mac": "02:00:00:00:00:07", "promisc": true,
        "mtu": 1400, "allmulti": true, "txQLen": 77,
        "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.conf.all.log_martians": "1" },
        "args": { "cni": { "mac": "02:00:00:00:00:08", "mtu": 1300, "sysctl": { "net.core.somaxconn": "7" } } },
        "runtimeConfig": { "mac": "02:00:00:00:00:09" },
        "prevResult": previous(),
    })
}

fn sbr() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "sbr", "gateways": ["10.88.0.1"],
        "addSourceHints": true, "prevResult": previous(),
    })
}

fn loopback() -> Value {
    json!({ "cniVersion": "1.1.0", "name": "net", "type": "loopback", "prevResult": portmap()["prevResult"] })
}

fn fixed() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "static",
        "runtimeConfig": { "ips": ["10.88.0.9/24"] }, "args": { "cni": { "ips": ["fd00:88::7/64"] } },
        "prevResult": portmap()["prevResult"],
        "ipam": {
            "type": "static", "addresses": [{ "address": "10.88.0.8/24", "gateway": "10.88.0.1" }],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "10.99.0.0/16", "gw": "10.88.0.1", "mtu": 1300 }],
            "dns": { "nameservers": ["10.0.0.1"], "domain": "a.test", "search": ["a.test"], "options": [] },
        },
    })
}

fn flannel() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "flannel", "subnetFile": "/run/flannel/subnet.env",
        "delegate": { "type": "bridge", "bridge": "br0", "ipMasq": true, "mtu": 1400, "isDefaultGateway": true },
        "ipam": { "type": "host-local", "routes": [{ "dst": "10.99.0.0/16", "gw": "10.88.0.1" }] },
        "runtimeConfig": { "mac": "02:00:00:00:00:08" }, "prevResult": portmap()["prevResult"],
    })
}

fn noop() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "noop", "debugFile": "/run/debug",
        "prevResult": portmap()["prevResult"],
    })
}

/// With the keys of all plugins that make one link, or move one.
fn link(plugin: &str) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": plugin, "master": "up0", "mtu": 1400,
        "linkInContainer": false, "mode": if plugin == "ipvlan" { "l2" } else { "bridge" }, "vlanId": 7,
        "bcqueuelen": 100, "mac": "02:00:00:00:00:07", "multiQueue": false, "owner": 1, "group": 2,
        "selinuxContext": "", "device": "dev0", "hwaddr": "", "kernelpath": "", "pciBusID": "",
        "runtimeConfig": { "mac": "02:00:00:00:00:08", "ips": ["10.88.0.9/24"] },
        "dns": { "nameservers": ["10.0.0.1"], "domain": "a.test", "search": ["a.test"], "options": ["ndots:5"] },
        "ipam": host_local()["ipam"],
    })
}

struct Run {
    node: Node,
    pod: Pod,
    random: Random,
    nasty: Vec<Value>,
    plugin: &'static str,
    seed: u64,
}

impl Run {
    fn state(&self) -> Snapshot {
        let derived = ["last_reserved_ip", "networks/.slipway/", "folder ", "/lock"];
        // The bridge and its addresses stay, as they are every container's; so do its subnets' chains.
        let shared = [" br0 ", "\"br0\"", "nft chain", "nft rule"];
        let derived: Vec<&str> = derived.into_iter().chain(shared).collect();
        Snapshot::take(&self.node, &[&self.pod]).without(&derived)
    }

    fn call(&self, verb: &str, bytes: &[u8], spoilt: Option<(&str, &str)>) -> Output {
        let call = self.node.plugin(self.plugin).command(verb).for_pod(&self.pod).stdin(bytes);
        match spoilt {
            Some((key, value)) => call.env(key, value).run(),
            None => call.run(),
        }
    }

    /// One variable of the environment that is not as it should be, now and then.
    fn spoil(&mut self) -> Option<(&'static str, &'static str)> {
        const KEYS: &[&str] = &["CNI_ARGS", "CNI_NETNS", "CNI_IFNAME", "CNI_CONTAINERID"];
        const TEXTS: &[&str] = &[
            "",
            "..",
            "/",
            "a b",
            "lo",
            "IP=1;",
            "IgnoreUnknown=1;IP=10.88.0.7",
            "x=y",
            "/proc/self/ns/mnt",
            "/etc/passwd",
            "\u{e9}\n",
        ];
        let spoilt = self.random.below(8) == 0;
        let pair = (*self.random.pick(KEYS), *self.random.pick(TEXTS));
        spoilt.then_some(pair)
    }

    #[track_caller]
    fn judge(&self, output: &Output) -> bool {
        let told = format!("SLIPWAY_SEED={}: {}{}", self.seed, output.process.line, output.process);
        assert!(matches!(output.process.code, Some(0 | 1)), "{told}");
        assert!(!output.process.stderr.contains("panicked"), "{told}");
        match output.process.code {
            Some(1) => {
                let failure = output.error();
                assert!(failure.code != 0 && !failure.msg.is_empty(), "{told}");
                assert!(!failure.msg.contains("panic"), "{told}");
                false
            }
            _ => true,
        }
    }
}

fn run(plugin: &'static str, config: &Value) {
    run_with(plugin, config, |_| {});
}

/// Behind a plugin that made a link: `eth0` in the pod, with the addresses of [`previous`].
fn run_chained(plugin: &'static str, config: &Value) {
    run_with(plugin, config, |node| {
        node.cmd("ip link add veth0 up type veth peer name eth0 netns pod");
        let pod = node.namespace("pod", std::path::Path::new("/run/netns/pod"));
        for command in [
            "ip link set lo up",
            "ip link set eth0 up",
            "ip address add 10.88.0.9/24 dev eth0",
            "ip address add fd00:88::9/64 dev eth0 nodad",
            "ip route add default via 10.88.0.1",
        ] {
            pod.cmd(command);
        }
    });
}

fn run_with(plugin: &'static str, config: &Value, prepare: impl Fn(&Node)) {
    let number = |key: &str, default: u64| {
        std::env::var(key).ok().map_or(default, |text| text.parse().expect("a number"))
    };
    let seed = number("SLIPWAY_SEED", 1);
    let node = Node::new();
    node.bridge_netfilter(BridgeNetfilter::Off);
    let share =
        "FLANNEL_NETWORK=10.88.0.0/16\nFLANNEL_SUBNET=10.88.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";
    node.write("/run/flannel/subnet.env", share);
    node.write("/run/debug", "{\"ReportResult\": \"{}\"}");
    // A link to make others on, and a device to move.
    for (link, peer) in [("up0", "up1"), ("dev0", "wire0")] {
        node.cmd(&format!("ip link add {link} type veth peer name {peer}"));
    }
    node.cmd("ip link set up0 up");
    node.cmd("ip link set up1 up");
    let pod = node.pod("pod");
    prepare(&node);
    let mut run = Run { node, pod, random: Random(seed), nasty: nasty_values(), plugin, seed };
    // Once as it is, so that bridge, tables and folders are there.
    let plain = config.to_string();
    for verb in ["ADD", "DEL"] {
        let output = run.node.plugin(plugin).command(verb).for_pod(&run.pod).stdin(plain.as_str()).run();
        let _ = output.ok();
    }
    let before = run.state();
    let (mut succeeded, mut refused) = (0, 0);
    for turn in 0..number("SLIPWAY_GARBAGE", 150) {
        let mut mutated = config.clone();
        for _ in 0..=run.random.below(3) {
            let nasty = std::mem::take(&mut run.nasty);
            mutate(&mut mutated, &mut run.random, &nasty);
            run.nasty = nasty;
        }
        // A bridge stays when its last container goes: there shall be only one.
        if mutated.get("bridge").is_none_or(|name| name.is_null() || name.is_string()) {
            mutated["bridge"] = json!("br0");
        }
        if let Some(ipam) = mutated.get_mut("ipam").and_then(Value::as_object_mut) {
            keep_inside(ipam);
        }
        // The same for a bridge that flannel asks for.
        if let Some(delegate) = mutated.get_mut("delegate").and_then(Value::as_object_mut)
            && delegate.get("type") == Some(&json!("bridge"))
        {
            delegate.insert("bridge".to_owned(), json!("br0"));
        }
        let bytes = bytes_of(&mutated, &mut run.random);
        let verb = *run.random.pick(&["ADD", "ADD", "ADD", "ADD", "CHECK", "DEL", "GC", "STATUS"]);
        let spoilt = run.spoil();
        let output = run.call(verb, &bytes, spoilt);
        let success = run.judge(&output);
        let counter = if success { &mut succeeded } else { &mut refused };
        *counter += 1;
        if verb == "ADD" && success {
            // As the runtime would: the same configuration, the same environment.
            let del = run.call("DEL", &bytes, spoilt);
            assert!(run.judge(&del), "SLIPWAY_SEED={seed}: DEL: {}{}", del.process.line, del.process);
        }
        if turn % 10 == 9 || (verb == "ADD" && !success && turn % 3 == 0) {
            let mut changes = before.changes(&run.state());
            // What noop is for is to write down each call.
            changes.retain(|change| plugin != "noop" || !change.contains("file /run/debug"));
            let told = format!("SLIPWAY_SEED={seed}, turn {turn}: {}{}", output.process.line, output.process);
            assert!(
                changes.is_empty(),
                "{}\n{told}\n{}",
                changes.join("\n"),
                String::from_utf8_lossy(&bytes)
            );
        }
    }
    assert!(succeeded > 0 && refused > 0, "{succeeded} succeeded, {refused} were refused");
}

/// Reservations of mutated configurations stay where the harness looks.
fn keep_inside(ipam: &mut Map<String, Value>) {
    if ipam.get("dataDir").is_some_and(Value::is_string) {
        ipam.remove("dataDir");
    }
}

#[test]
fn bridge_takes_garbage() {
    run("bridge", &bridge());
}

#[test]
fn ptp_takes_garbage() {
    run("ptp", &ptp());
}

#[test]
fn host_local_takes_garbage() {
    run("host-local", &host_local());
}

#[test]
fn portmap_takes_garbage() {
    run("portmap", &portmap());
}

#[test]
fn loopback_takes_garbage() {
    run("loopback", &loopback());
}

#[test]
fn static_takes_garbage() {
    run("static", &fixed());
}

#[test]
fn flannel_takes_garbage() {
    run("flannel", &flannel());
}

#[test]
fn noop_takes_garbage() {
    run("noop", &noop());
}

/// A test for each plugin that makes one link, or moves one.
macro_rules! links {
    ($($test:ident: $name:literal;)*) => {
        $(
            #[test]
            fn $test() {
                if let Some(feature) = lacks($name) {
                    skip!(feature);
                }
                run($name, &link($name));
            }
        )*
    };
}

links! {
    dummy_takes_garbage: "dummy";
    host_device_takes_garbage: "host-device";
    ipvlan_takes_garbage: "ipvlan";
    macvlan_takes_garbage: "macvlan";
    tap_takes_garbage: "tap";
    vlan_takes_garbage: "vlan";
}

#[test]
fn tuning_takes_garbage() {
    run_chained("tuning", &tuning());
}

#[test]
fn sbr_takes_garbage() {
    run_chained("sbr", &sbr());
}

#[test]
fn bandwidth_takes_garbage() {
    run_chained("bandwidth", &bandwidth());
}

#[test]
fn firewall_takes_garbage() {
    run_chained("firewall", &firewall());
}
