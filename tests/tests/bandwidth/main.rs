// SPDX-License-Identifier: GPL-2.0-or-later

//! The bandwidth plugin, with real traffic in both directions.

mod foreign_filters;
mod latency;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Network, Node, Pod, Space, is_peer, is_slow, peer_fails, sample, slipway_only, stride, with_keys,
    within,
};

/// Limits in bit/s, into and out of the container.
const INGRESS: u64 = 16_000_000;
const EGRESS: u64 = 8_000_000;
/// The burst in bits, enough for the largest packet that the kernel builds (GSO).
const BURST: u64 = 600_064;
/// The duration of one measurement.
const SPAN: Duration = Duration::from_secs(3);

fn limits() -> Value {
    json!({"ingressRate": INGRESS, "ingressBurst": BURST, "egressRate": EGRESS, "egressBurst": BURST})
}

/// A network of bridge and bandwidth, the latter with these keys.
fn network<'a>(node: &'a Node, keys: &Value) -> Network<'a> {
    let bandwidth = with_keys(json!({"type": "bandwidth", "capabilities": {"bandwidth": true}}), keys);
    let ipam = json!({"type": "host-local", "subnet": "10.1.2.0/24", "routes": [{"dst": "0.0.0.0/0"}]});
    node.network(json!({"name": "net", "plugins": [
        {"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": ipam}, bandwidth,
    ]}))
}

fn ifbs(node: &Node) -> Vec<String> {
    let text = node.cmd("ip -o link show type ifb");
    text.lines().filter_map(|line| line.split(": ").nth(1)).map(str::to_owned).collect()
}

fn outer(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().expect("the node's end").to_owned()
}

/// Sends datagrams at twice the limit. Returns the bits per second that arrive, including the headers that
/// the queue counts.
fn udp_rate(from: &Space, to: &Space, address: Ipv4Addr, limit: u64) -> u64 {
    const PAYLOAD: usize = 1200;
    const HEADERS: u64 = 14 + 20 + 8;
    let receiver = to.bind(|| UdpSocket::bind((address, 0))).expect("bind");
    receiver.set_read_timeout(Some(Duration::from_millis(200))).expect("a time-out");
    let to: SocketAddr = receiver.local_addr().expect("an address");
    let sender = from.bind(|| UdpSocket::bind("0.0.0.0:0")).expect("bind");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let begin = Instant::now();
            let mut sent = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let due = begin.elapsed().as_micros() as u64 * 2 * limit / 8_000_000;
                while sent < due {
                    let _ = sender.send_to(&[0; PAYLOAD], to);
                    sent += PAYLOAD as u64;
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let mut buffer = [0; 2000];
        let mut receive = |span: Duration| {
            let (begin, mut packets) = (Instant::now(), 0);
            while begin.elapsed() < span {
                packets += u64::from(receiver.recv_from(&mut buffer).is_ok());
            }
            (packets, begin.elapsed())
        };
        // Skips the burst, which the excess uses up, and the queued packets.
        receive(Duration::from_millis(700 + BURST * 1000 / limit));
        let (packets, elapsed) = receive(SPAN);
        stop.store(true, Ordering::Relaxed);
        packets * (PAYLOAD as u64 + HEADERS) * 8 * 1_000_000 / elapsed.as_micros() as u64
    })
}

/// Returns the bits of payload per second over one connection.
fn tcp_rate(from: &Space, to: &Space, address: Ipv4Addr) -> u64 {
    let listener = to.bind(|| TcpListener::bind((address, 0))).expect("bind");
    let to = listener.local_addr().expect("an address");
    let mut sender =
        from.run(|| TcpStream::connect_timeout(&to, within(Duration::from_secs(8)))).expect("connect");
    let (mut receiver, _) = listener.accept().expect("accept");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let block = [0; 16_384];
            while !stop.load(Ordering::Relaxed) {
                if sender.write_all(&block).is_err() {
                    break;
                }
            }
        });
        let mut buffer = [0; 65_536];
        let mut receive = |span: Duration| {
            let (begin, mut bytes) = (Instant::now(), 0);
            while begin.elapsed() < span {
                bytes += receiver.read(&mut buffer).expect("read") as u64;
            }
            (bytes, begin.elapsed())
        };
        receive(Duration::from_secs(1));
        let (bytes, elapsed) = receive(SPAN);
        stop.store(true, Ordering::Relaxed);
        drop(receiver);
        bytes * 8 * 1_000_000 / elapsed.as_micros() as u64
    })
}

/// The name of a measurement, the measured rate, and the expected rate.
type Rate = (&'static str, u64, u64);

/// Measures up to three times, because other load on the machine may disturb a measurement.
#[track_caller]
fn within_five_percent<const N: usize>(measure: impl Fn() -> [Rate; N]) {
    const TRIES: usize = 3;
    let mut seen = Vec::new();
    while seen.len() < TRIES {
        let rates = measure();
        eprintln!("{rates:?}");
        if rates.iter().all(|(_, rate, wanted)| rate * 100 >= wanted * 95 && rate * 100 <= wanted * 105) {
            return;
        }
        seen.push(rates);
    }
    panic!("rates more than 5 % off, measured and expected in bit/s: {seen:?}");
}

/// Measures between the container and another host, so that packets cross the whole node.
#[test]
fn rates_are_within_five_percent() {
    let node = Node::new();
    let client = node.host("client");
    let pod = node.pod("pod");
    // An emulated processor cannot send faster than these limits.
    let slower = if is_slow() { 16 } else { 1 };
    let (into, out_of) = (INGRESS / slower, EGRESS / slower);
    let limits =
        json!({"ingressRate": into, "ingressBurst": BURST, "egressRate": out_of, "egressBurst": BURST});
    let network = network(&node, &limits);
    network.add(&Attach::new(&pod)).expect("ADD");
    node.forward();
    let address = Ipv4Addr::new(10, 1, 2, 2);
    within_five_percent(|| [("UDP in", udp_rate(&client, &pod, address, into), into)]);
    within_five_percent(|| [("UDP out", udp_rate(&pod, &client, client.v4, out_of), out_of)]);
    // Headers take about 5 %; acknowledgements travel in the other direction.
    within_five_percent(|| [("TCP in", tcp_rate(&client, &pod, address), into * 96 / 100)]);
    within_five_percent(|| [("TCP out", tcp_rate(&pod, &client, client.v4), out_of * 96 / 100)]);
    // The two directions do not disturb each other.
    within_five_percent(|| {
        thread::scope(|scope| {
            let out = scope.spawn(|| udp_rate(&pod, &client, client.v4, out_of));
            let into_pod = udp_rate(&client, &pod, address, into);
            [("UDP in, both", into_pod, into), ("UDP out, both", out.join().expect("no panic"), out_of)]
        })
    });
}

#[test]
fn one_direction_may_be_free() {
    let (node, _pod, attach) = Node::with_attachment();
    let egress = json!({"egressRate": EGRESS, "egressBurst": BURST});
    let ingress = json!({"ingressRate": INGRESS, "ingressBurst": BURST});
    for (keys, limited) in [(&egress, "ifb"), (&ingress, "veth")] {
        let network = network(&node, keys);
        let result = network.add(&attach).expect("ADD");
        let veth = node.cmd(&format!("tc qdisc show dev {}", outer(&result)));
        assert_eq!(veth.contains("tbf"), limited == "veth", "{veth}");
        assert_eq!(ifbs(&node).len(), usize::from(limited == "ifb"));
        assert_eq!(result["interfaces"].as_array().map(Vec::len), Some(if limited == "ifb" { 4 } else { 3 }));
        network.check(&attach).expect("CHECK");
        network.del(&attach).expect("DEL");
        assert_eq!(ifbs(&node), Vec::<String>::new());
    }
}

#[test]
fn devices_and_queues_match_the_references() {
    let (node, _pod, attach) = Node::with_attachment();
    let network = network(&node, &limits());
    let result = network.add(&attach).expect("ADD");
    let veth = outer(&result);
    // printf netpod | sha512sum
    assert_eq!(ifbs(&node), ["bwp6230a40fd8ff"]);
    let device = &result["interfaces"][3];
    assert_eq!(
        (&device["name"], &device["mac"]),
        (&json!("bwp6230a40fd8ff"), &json!(node.mac("bwp6230a40fd8ff")))
    );
    assert!(device.get("sandbox").is_none_or(|sandbox| sandbox == ""), "{device}");
    let queue = |link: &str| node.cmd(&format!("tc qdisc show dev {link} root")).trim().to_owned();
    assert!(queue(&veth).starts_with("qdisc tbf 1: root"), "{}", queue(&veth));
    for part in ["rate 16Mbit", "burst 7500", "lat 25ms"] {
        assert!(queue(&veth).contains(part), "{part}: {}", queue(&veth));
    }
    for part in ["rate 8Mbit", "burst 7500", "lat 25ms"] {
        assert!(queue("bwp6230a40fd8ff").contains(part), "{part}: {}", queue("bwp6230a40fd8ff"));
    }
    assert_eq!(node.link("bwp6230a40fd8ff")["mtu"], node.link(&veth)["mtu"]);
    let filter = node.cmd(&format!("tc filter show dev {veth} ingress"));
    assert!(filter.contains("Egress Redirect to device bwp6230a40fd8ff) stolen"), "{filter}");
    if !is_peer() {
        // clsact is the qdisc that eBPF programs attach to; a link has either clsact or ingress.
        assert!(node.cmd(&format!("tc qdisc show dev {veth}")).contains("clsact"));
    }
}

/// Filters of another program on the same hook must not come before ours.
#[test]
fn other_filters_share_the_hook() {
    let (node, _pod, attach) = Node::with_attachment();
    for hook in ["clsact", "ingress"] {
        let network = network(&node, &limits());
        let previous = network.add_first(&attach);
        let veth = outer(&previous);
        node.cmd(&format!("tc qdisc add dev {veth} {hook}"));
        if !is_peer() {
            let result = network.call_one(1, "ADD", &attach, &previous).ok();
            node.cmd(&format!(
                "tc filter add dev {veth} ingress pref 1 protocol all u32 match u32 0 0 flowid 1:1"
            ));
            assert!(network.call_one(1, "CHECK", &attach, &result).ok().is_null());
            let filters = node.cmd(&format!("tc filter show dev {veth} ingress"));
            let at = |text: &str| filters.find(text).unwrap_or_else(|| panic!("{text}: {filters}"));
            assert!(at("mirred") < at("flowid 1:1"), "{filters}");
            assert!(network.call_one(1, "DEL", &attach, &result).ok().is_null());
            let filters = node.cmd(&format!("tc filter show dev {veth} ingress"));
            assert!(filters.contains("flowid 1:1") && !filters.contains("mirred"), "{filters}");
        }
        network.del(&attach).expect("DEL");
    }
}

#[test]
fn no_limit_changes_nothing() {
    let (node, _pod, attach) = Node::with_attachment();
    for keys in [json!({}), json!({"ingressRate": 0, "ingressBurst": 0, "egressRate": 0, "egressBurst": 0})] {
        let network = network(&node, &keys);
        let previous = network.add_first(&attach);
        assert_eq!(network.call_one(1, "ADD", &attach, &previous).ok(), previous);
        assert!(network.call_one(1, "CHECK", &attach, &previous).ok().is_null());
        network.del(&attach).expect("DEL");
        assert_eq!(ifbs(&node), Vec::<String>::new());
    }
    peer_fails("it crashes", || {
        let error = network(&node, &json!({})).call_one(1, "ADD", &attach, &Value::Null).error();
        assert_eq!((error.code, error.msg.as_str()), (7, "must be called as chained plugin"));
    });
}

#[test]
fn limits_may_come_from_the_runtime() {
    let (node, pod) = Node::with_pod();
    // containerd writes these keys with a capital first letter.
    let limits = json!({"IngressRate": INGRESS, "IngressBurst": BURST, "EgressRate": 0, "EgressBurst": 0});
    let attach = Attach::new(&pod).capability("bandwidth", limits);
    let runtimes = network(&node, &json!({}));
    let result = runtimes.add(&attach).expect("ADD");
    assert!(node.cmd(&format!("tc qdisc show dev {} root", outer(&result))).contains("rate 16Mbit"));
    runtimes.check(&attach).expect("CHECK");
    runtimes.del(&attach).expect("DEL");
    // The configuration takes precedence over the runtime's limits.
    let own = network(&node, &json!({"ingressRate": EGRESS, "ingressBurst": BURST}));
    let result = own.add(&attach).expect("ADD");
    assert!(node.cmd(&format!("tc qdisc show dev {} root", outer(&result))).contains("rate 8Mbit"));
}

#[test]
fn check_names_the_first_difference() {
    let (node, _pod, attach) = Node::with_attachment();
    let network = network(&node, &limits());
    let result = network.add(&attach).expect("ADD");
    network.check(&attach).expect("CHECK");
    let veth = outer(&result);
    let fails = |part: &str| {
        let error = network.call_one(1, "CHECK", &attach, &result).error();
        assert!(error.msg.contains(part), "{part}: {error:?}");
    };
    let tbf = |rate: &str, burst: &str, limit: &str| {
        node.cmd(&format!(
            "tc qdisc replace dev {veth} root handle 1: tbf rate {rate} burst {burst} limit {limit}"
        ));
    };
    tbf("15mbit", "75008", "125008");
    fails("Rate doesn't match");
    tbf("16mbit", "75008", "125009");
    fails("Limit doesn't match");
    tbf("16mbit", "74000", "125008");
    fails("Buffer doesn't match");
    node.cmd(&format!("tc qdisc del dev {veth} root"));
    if !is_peer() {
        fails("Failed to find qdisc");
    }
    tbf("16mbit", "75008", "125008");
    if !is_peer() {
        node.cmd(&format!("tc filter del dev {veth} ingress"));
        fails("are not redirected to bwp6230a40fd8ff");
    }
    node.cmd("ip link del bwp6230a40fd8ff");
    fails("get ifb device: ");
}

#[test]
fn del_works_without_a_result() {
    let (node, _pod, attach) = Node::with_attachment();
    let network = network(&node, &limits());
    assert!(network.call_one(1, "DEL", &attach, &Value::Null).ok().is_null(), "nothing was added");
    for netns in ["", "/run/netns/gone"] {
        network.add(&attach).expect("ADD");
        assert_eq!(ifbs(&node).len(), 1);
        assert!(network.call_one(1, "DEL", &attach.clone().netns(netns), &Value::Null).ok().is_null());
        assert_eq!(ifbs(&node), Vec::<String>::new());
        network.del(&attach).expect("DEL");
    }
    if !is_peer() {
        // DEL also removes all limits while the link still exists.
        let previous = network.add_first(&attach);
        let result = network.call_one(1, "ADD", &attach, &previous).ok();
        assert!(network.call_one(1, "DEL", &attach, &result).ok().is_null());
        let veth = outer(&result);
        assert!(!node.cmd(&format!("tc qdisc show dev {veth}")).contains("tbf"));
        assert!(!node.cmd(&format!("tc filter show dev {veth} ingress")).contains("mirred"));
        assert!(network.call_one(1, "DEL", &attach, &result).ok().is_null(), "a second time");
    }
}

/// The container's link vanishes during DEL, as when its namespace is deleted. strace delays one netlink
/// request after another until the link is gone.
#[test]
fn del_succeeds_when_the_link_vanishes_during_it() {
    const REQUESTS: usize = 8;
    slipway_only!();
    let node = Node::new();
    let network = network(&node, &limits());
    for nth in sample(1..=REQUESTS) {
        let pod = node.pod("pod");
        let attach = Attach::new(&pod);
        network.add(&attach).expect("ADD");
        let config = network.configs(Some(&attach)).swap_remove(1);
        let inject = format!("inject=sendto:delay_enter=1500000:when={nth}");
        let strace = ["strace", "-f", "-qq", "-o", "/run/trace", "-e", "trace=sendto", "-e", &inject];
        let running = network.prepare("DEL", &config, Some(&attach)).through(&strace).spawn();
        let begun = Instant::now();
        // strace logs the system call before it delays it.
        let sent = || node.read("/run/trace").unwrap_or_default().lines().count() >= nth;
        while !sent() && begun.elapsed() < within(Duration::from_secs(5)) {
            thread::sleep(Duration::from_millis(5));
        }
        pod.cmd("ip link del eth0");
        assert!(running.wait().ok().is_null());
        assert_eq!(ifbs(&node), Vec::<String>::new(), "request {nth}");
        network.del(&attach).expect("DEL of the list");
        node.cmd("rm -f /run/trace");
        pod.remove();
    }
}

#[test]
fn an_add_may_be_repeated() {
    peer_fails("the queue is there already", || {
        let (node, _pod, attach) = Node::with_attachment();
        let first = network(&node, &limits());
        let previous = first.add_first(&attach);
        let result = first.call_one(1, "ADD", &attach, &previous).ok();
        assert_eq!(first.call_one(1, "ADD", &attach, &previous).ok(), result);
        // A repeated ADD may have other limits.
        let second = network(&node, &json!({"egressRate": INGRESS, "egressBurst": BURST}));
        let result = second.call_one(1, "ADD", &attach, &result).ok();
        assert_eq!(result["interfaces"].as_array().map(Vec::len), Some(4));
        assert!(node.cmd("tc qdisc show dev bwp6230a40fd8ff root").contains("rate 16Mbit"));
        assert!(second.call_one(1, "CHECK", &attach, &result).ok().is_null());
    });
}

/// Returns the queues and filters of the node's end and of the ifb devices.
fn limited(node: &Node, veth: &str) -> String {
    let mut lines = Vec::new();
    for link in std::iter::once(veth.to_owned()).chain(ifbs(node)) {
        let show = |what: &str| {
            node.try_cmd(&format!(
                "tc {what} show dev {link} {}",
                if what == "filter" { "ingress" } else { "" }
            ))
            .stdout
        };
        let text = format!("{}{}", show("qdisc"), show("filter"));
        lines.extend(
            text.lines().filter(|line| line.contains("tbf") || line.contains("mirred")).map(str::to_owned),
        );
        lines.push(link);
    }
    lines.join("\n")
}

#[test]
fn a_repeated_add_removes_limits_no_longer_configured() {
    peer_fails("the queue is there already", || {
        let (node, _pod, attach) = Node::with_attachment();
        let both = network(&node, &limits());
        let into = network(&node, &json!({"ingressRate": INGRESS, "ingressBurst": BURST}));
        let out_of = network(&node, &json!({"egressRate": EGRESS, "egressBurst": BURST}));
        let none = network(&node, &json!({}));
        let bare = both.add_first(&attach);
        let veth = outer(&bare);
        let has = |network: &Network<'_>, previous: &Value| {
            let result = network.call_one(1, "ADD", &attach, previous).ok();
            assert!(network.call_one(1, "CHECK", &attach, &result).ok().is_null());
            let seen = limited(&node, &veth);
            assert_eq!(result == bare, ifbs(&node).is_empty(), "{result}");
            (seen.contains("16Mbit"), seen.contains("8Mbit") && seen.contains("mirred"), ifbs(&node).len())
        };
        assert_eq!(has(&both, &bare), (true, true, 1));
        // Adds another program's filter beside ours.
        node.cmd(&format!(
            "tc filter add dev {veth} ingress pref 2 protocol ip u32 match u32 0 0 flowid 1:1"
        ));
        // The previous result is first that of the last ADD, and then that of bridge.
        let full = both.call_one(1, "ADD", &attach, &bare).ok();
        assert_eq!(has(&into, &full), (true, false, 0));
        assert_eq!(has(&into, &bare), (true, false, 0));
        assert_eq!(has(&out_of, &bare), (false, true, 1));
        assert_eq!(has(&both, &bare), (true, true, 1));
        assert_eq!(has(&none, &full), (false, false, 0));
        assert_eq!(has(&none, &bare), (false, false, 0));
        assert!(node.cmd(&format!("tc filter show dev {veth} ingress")).contains("pref 2 "));
        // A foreign queue, recognised by its handle.
        node.cmd(&format!(
            "tc qdisc replace dev {veth} root handle 7: tbf rate 16mbit burst 75008 limit 125008"
        ));
        assert_eq!(has(&none, &bare), (true, false, 0));
        assert_eq!(has(&out_of, &bare), (true, true, 1));
        assert!(out_of.call_one(1, "DEL", &attach, &bare).ok().is_null());
        assert_eq!(ifbs(&node), Vec::<String>::new());
        assert!(limited(&node, &veth).contains("tbf 7:"), "{}", limited(&node, &veth));
    });
}

/// Each netlink request fails once; the previous limits stay in force.
#[test]
fn a_failed_repeated_add_keeps_the_limits() {
    slipway_only!();
    let (node, _pod, attach) = Node::with_attachment();
    let both = network(&node, &limits());
    let bare = both.add_first(&attach);
    let veth = outer(&bare);
    let none = network(&node, &json!({}));
    let mut config = none.configs(Some(&attach)).swap_remove(1);
    config["prevResult"] = bare.clone();
    both.call_one(1, "ADD", &attach, &bare).ok();
    let before = limited(&node, &veth);
    let mut failed = 0;
    for nth in sample(1..40) {
        let inject = format!("inject=sendto:error=ENOBUFS:when={nth}");
        let strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", &inject];
        let output = none.prepare("ADD", &config, Some(&attach)).through(&strace).run();
        if output.result().is_ok() {
            break;
        }
        failed += 1;
        assert_eq!(limited(&node, &veth), before, "request {nth}");
    }
    assert!(failed > 5 / stride(), "only {failed} requests failed");
    assert_eq!(limited(&node, &veth), veth, "limits are left after the ADD without limits");
}

/// Two interfaces of a container are in one network, for both of which the reference plugin derives the same device
/// name.
#[test]
fn each_interface_has_a_device_of_its_own() {
    peer_fails("both have the same name", || {
        let (node, pod) = Node::with_pod();
        let network = network(&node, &limits());
        let attaches = [Attach::new(&pod), Attach::new(&pod).ifname("eth1")];
        for attach in &attaches {
            network.add(attach).expect("ADD");
        }
        for attach in &attaches {
            network.check(attach).expect("CHECK");
        }
        assert_eq!(ifbs(&node).len(), 2);
        network.del(&attaches[0]).expect("DEL");
        network.check(&attaches[1]).expect("CHECK of the second interface");
        network.del(&attaches[1]).expect("DEL");
        assert_eq!(ifbs(&node), Vec::<String>::new());
    });
}

#[test]
fn a_failed_add_leaves_nothing() {
    peer_fails("the queue and the device stay", || {
        let (node, _pod, attach) = Node::with_attachment();
        let network = network(&node, &limits());
        let previous = network.add_first(&attach);
        let veth = outer(&previous);
        let state = || (ifbs(&node), node.cmd(&format!("tc qdisc show dev {veth} root")).contains("tbf"));
        let nothing = (Vec::new(), false);
        // Links of other owners already have both of the possible names.
        for name in ["bwp6230a40fd8ff", "bwp0902f921c636"] {
            node.cmd(&format!("ip link add {name} type bridge"));
        }
        let error = network.call_one(1, "ADD", &attach, &previous).error();
        assert!(error.msg.contains("bwp0902f921c636"), "{error:?}");
        assert_eq!(state(), nothing);
        assert!(network.call_one(1, "DEL", &attach, &previous).ok().is_null());
        assert!(
            node.has_link("bwp6230a40fd8ff") && node.has_link("bwp0902f921c636"),
            "the foreign links are gone"
        );
    });
}

#[test]
fn gc_removes_devices_of_stale_attachments() {
    peer_fails("it does nothing", || {
        let node = Node::new();
        let (one, two) = (node.pod("one"), node.pod("two"));
        let network = network(&node, &limits());
        for pod in [&one, &two] {
            network.add(&Attach::new(pod)).expect("ADD");
        }
        node.cmd("ip link add bwp000000000000 type ifb");
        network.forget();
        one.remove();
        network.gc_plugins(&json!([{"containerID": "two", "ifname": "eth0"}])).expect("GC");
        assert_eq!(ifbs(&node).len(), 2, "{:?}", ifbs(&node));
        network.check(&Attach::new(&two)).err();
        network.gc_plugins(&Value::Null).expect("GC");
        assert_eq!(ifbs(&node), ["bwp000000000000"], "the foreign device stays");
        network.gc_plugins(&Value::Null).expect("GC again");
    });
}

#[test]
fn status_tries_the_kernel() {
    peer_fails("it does nothing", || {
        let node = Node::new();
        let config = json!({"cniVersion": "1.1.0", "name": "net", "type": "bandwidth"});
        assert!(node.plugin("bandwidth").command("STATUS").config(&config).run().ok().is_null());
        let wrong = json!({"cniVersion": "1.1.0", "name": "net", "type": "bandwidth", "ingressRate": 8});
        let error = node.plugin("bandwidth").command("STATUS").config(&wrong).run().error();
        assert_eq!(error.msg, "if rate is set, burst must also be set");
    });
}

#[test]
fn links_without_a_veth_peer_are_refused() {
    let (node, pod) = Node::with_pod();
    pod.cmd("ip link add eth0 type bridge");
    let previous = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": pod.path()}]});
    let add = |pod: &Pod, previous: &Value| {
        let config =
            json!({"cniVersion": "1.0.0", "name": "net", "type": "bandwidth", "prevResult": previous});
        let config = with_keys(config, &limits());
        node.plugin("bandwidth").command("ADD").for_pod(pod).config(&config).run().error().msg
    };
    let msg = add(&pod, &previous);
    assert!(msg.starts_with("container interface eth0 has no veth peer: "), "{msg}");
    assert_eq!(add(&pod, &json!({"cniVersion": "1.0.0"})), "no interfaces provided");
    // The veth peer is in the container, too.
    let other = node.pod("other");
    other.cmd("ip link add eth0 index 4711 type veth peer name eth1 index 4712");
    if !is_peer() {
        assert_eq!(add(&other, &previous), "veth peer with index 4712 is not in host ns");
    }
    // Here prevResult names either no end on the node, or another link.
    let third = node.pod("third");
    node.cmd("ip link add outer type veth peer name eth0 netns third");
    let interface = |name: &str| json!({"name": name});
    for more in [None, Some(interface("br0"))] {
        let mut previous = previous.clone();
        previous["interfaces"].as_array_mut().expect("a list").extend(more);
        assert_eq!(add(&third, &previous), "no veth peer of container interface found in host ns");
    }
}
