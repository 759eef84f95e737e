// SPDX-License-Identifier: GPL-2.0-or-later

//! Packets that pass through the objects of a whole list.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use slipway_tests::{Answer, Pod, Proto, Server, Space, at, patience, within};

use crate::world::{Chain, EGRESS, INGRESS, MAC, MTU, PORT, SERVED, SYSCTL, World, address, everything};

pub(crate) fn packets_pass_through_every_plugin(world: &World) {
    world.warm_up();
    let (pod, other) = (world.pod("pod"), world.pod("other"));
    // The second bridge and its shared objects may stay.
    let state = || world.state(&[&pod, &other]).without(&["all2", "10.88.2.", "fd00_88_2", "fd00:88:2"]);
    let before = state();
    let network = world.network();
    let attach = world.chain.attach(&pod, PORT);
    let result = network.add(&attach).expect("ADD");
    let own = [address(&result, 0), address(&result, 1)];
    let second = world.chain.attach(&other, PORT + 1);
    let theirs = network.add(&second).expect("ADD of a second container");
    is_reached(world, (&pod, own), (&other, [address(&theirs, 0), address(&theirs, 1)]));
    reaches_others(world, &pod, own);
    match world.chain {
        Chain::Everything(backend) => {
            limited(world, &pod);
            are_isolated(world, &pod, own, backend);
            tuned(&pod);
        }
        Chain::Second => by_its_own_link(world, &pod, own),
        _ => {}
    }
    if !world.chain.is_old() {
        network.check(&attach).expect("CHECK");
    }
    network.del(&second).expect("DEL of the second container");
    network.del(&attach).expect("DEL");
    let node = world.client.node_v4;
    world.client.expect_none_of(Proto::ALL.map(|proto| (proto, at(node, PORT))));
    before.assert_same(&state());
}

fn served(pod: &Pod, own: [IpAddr; 2], port: u16) -> Vec<Server> {
    let places = own.into_iter().flat_map(|ip| Proto::ALL.map(|proto| (ip, proto)));
    places.map(|(ip, proto)| pod.serve(proto, &at(ip, port).to_string(), pod.name())).collect()
}

/// Asserts that other hosts and the container's neighbour reach the container at its published port, or at its own
/// addresses if the list publishes none.
fn is_reached(world: &World, (pod, own): (&Pod, [IpAddr; 2]), (other, theirs): (&Pod, [IpAddr; 2])) {
    let _servers = served(pod, own, SERVED);
    let (to, port) = match world.chain.publishes() {
        true => ([IpAddr::from(world.client.node_v4), world.client.node_v6.into()], PORT),
        false => (own, SERVED),
    };
    for proto in Proto::ALL {
        for (ip, from) in to.into_iter().zip(theirs) {
            world.client.expect(proto, at(ip, port), "pod");
            assert_eq!(request(other, from, proto, at(ip, port)).who, "pod", "{proto:?} {ip} from {from}");
        }
        if world.chain.publishes() {
            world.node.expect(proto, (Ipv4Addr::LOCALHOST, PORT), "pod");
            // The container reaches its own published port at the node's address.
            pod.expect(proto, (world.client.node_v4, PORT), "pod");
        }
    }
}

/// Sends a request from the address that the tested list assigned, because some containers have a second link.
fn request(from: &Space, own: IpAddr, proto: Proto, to: SocketAddr) -> Answer {
    from.request_from(proto, Some(at(own, 0)), to, patience())
        .unwrap_or_else(|e| panic!("{proto:?} {to}: {e}"))
}

/// Asserts that the container reaches other hosts, which see the node's address if the list masquerades.
fn reaches_others(world: &World, pod: &Pod, own: [IpAddr; 2]) {
    let client = &world.client;
    let outside = match world.chain {
        Chain::Second => [Ipv4Addr::new(10, 60, 1, 1).into(), "fd00:60:1::1".parse().expect("an address")],
        _ => [IpAddr::from(client.v4), client.v6.into()],
    };
    let node = [IpAddr::from(client.node_v4), client.node_v6.into()];
    for (family, ip) in outside.into_iter().enumerate() {
        for proto in Proto::ALL {
            let _server = client.serve(proto, &at(ip, 90).to_string(), "client");
            let seen = request(pod, own[family], proto, at(ip, 90)).peer.ip();
            let expected = if world.chain.masquerades() { node[family] } else { own[family] };
            assert_eq!(seen, expected, "{proto:?} {ip}");
        }
    }
}

/// Asserts that each direction has its configured rate, even through the published port.
fn limited(world: &World, pod: &Pod) {
    let node = at(world.client.node_v4, PORT);
    let into = transfer(&world.client, pod, SERVED, |_| node, INGRESS);
    let out = transfer(pod, &world.client, 91, |port| at(world.client.v4, port), EGRESS);
    for (what, (elapsed, expected)) in [("in", into), ("out", out)] {
        eprintln!("{what}: {elapsed:?} instead of {expected:?}");
        assert!(elapsed >= expected.mul_f64(0.9), "{what}: {elapsed:?}, too fast for {expected:?}");
        assert!(elapsed <= within(expected * 4), "{what}: {elapsed:?}, too slow for {expected:?}");
    }
}

/// Transfers as much as fits into one second at `rate`. Returns the measured and the expected time.
fn transfer(
    from: &Space,
    to: &Space,
    port: u16,
    target: impl FnOnce(u16) -> SocketAddr,
    rate: u64,
) -> (Duration, Duration) {
    let listener = to.bind(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))).expect("bind");
    let target = target(port);
    let begin = Instant::now();
    let mut sender =
        from.run(|| TcpStream::connect_timeout(&target, within(Duration::from_secs(8)))).expect("connect");
    let (mut receiver, _) = listener.accept().expect("accept");
    let bytes = usize::try_from(rate / 8).expect("small");
    let received = std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = sender.write_all(&vec![7; bytes]);
        });
        let mut all = Vec::new();
        receiver.read_to_end(&mut all).expect("read");
        all.len()
    });
    assert_eq!(received, bytes);
    // The bucket is full at first, so this burst passes without delay.
    let burst = 75_008;
    (begin.elapsed(), Duration::from_secs(1) * u32::try_from(bytes - burst).expect("small") / (bytes as u32))
}

/// Asserts that containers on two bridges with `ingressPolicy` do not reach each other.
fn are_isolated(world: &World, pod: &Pod, own: [IpAddr; 2], backend: &str) {
    let network = world.node.network(everything(2, backend));
    let stranger = world.pod("stranger");
    let attach = world.chain.attach(&stranger, PORT + 2);
    let result = network.add(&attach).expect("ADD on another bridge");
    let theirs = [address(&result, 0), address(&result, 1)];
    let (_here, _there) = (served(pod, own, 92), served(&stranger, theirs, 92));
    for family in [0, 1] {
        stranger.expect_none(Proto::Tcp, at(own[family], 92));
        pod.expect_none(Proto::Udp, at(theirs[family], 92));
    }
    world.client.expect(Proto::Tcp, at(own[0], 92), "pod");
    network.del(&attach).expect("DEL");
    world.end(stranger);
}

fn tuned(pod: &Pod) {
    let link = pod.link("eth0");
    assert_eq!((link["address"].as_str(), link["mtu"].as_u64()), (Some(MAC), Some(MTU.into())), "{link}");
    assert_eq!(pod.sysctl_get(SYSCTL).as_deref(), Some("1"));
}

/// Asserts that replies to other hosts leave through the link on which the request came. The container's other link
/// leads to the node, whose rules drop them.
fn by_its_own_link(world: &World, pod: &Pod, own: [IpAddr; 2]) {
    world.node.nft(
        "add table inet stop
         add chain inet stop forward { type filter hook forward priority 0; }
         add rule inet stop forward ip saddr 10.60.1.0/24 drop
         add rule inet stop forward ip6 saddr fd00:60:1::/64 drop",
    );
    let _servers = served(pod, own, SERVED);
    let elsewhere = [IpAddr::from(world.client.v4), world.client.v6.into()];
    for (from, to) in elsewhere.into_iter().zip(own) {
        for proto in Proto::ALL {
            assert_eq!(request(&world.client, from, proto, at(to, SERVED)).who, "pod");
        }
    }
    world.node.nft("delete table inet stop");
}
