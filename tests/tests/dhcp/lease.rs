// SPDX-License-Identifier: GPL-2.0-or-later

//! Leases from a real server.

use serde_json::{Value, json};
use slipway_tests::{Attach, Pod, Proto};

use crate::stage::{Stage, address};

/// A lease from ADD through CHECK to DEL.
#[test]
fn a_container_has_a_lease_as_long_as_it_lives() {
    needs_dnsmasq!();
    let stage = Stage::with_dnsmasq(&["--dhcp-option=121,0.0.0.0/0,10.77.0.1,10.99.0.0/16,10.77.0.9"]);
    let network = stage.network(&json!({
        "priority": 50,
        "request": [{"option": "121"}],
        "provide": [{"option": "host-name", "fromArg": "K8S_POD_NAME"}, {"option": "60", "value": "slipway"}],
    }));
    let pod = stage.node.pod("pod");
    let attach = Attach::new(&pod).args("IgnoreUnknown=1;K8S_POD_NAME=web-1");
    let result = network.add(&attach).expect("ADD");
    let ip = address(&result);
    assert!(ip.starts_with("10.77.0."), "{result}");
    assert_eq!(result["ips"][0]["address"], format!("{ip}/24"));
    assert_eq!(result["ips"][0]["gateway"], "10.77.0.1");
    let routes = json!([
        {"dst": "0.0.0.0/0", "gw": "10.77.0.1", "priority": 50},
        {"dst": "10.99.0.0/16", "gw": "10.77.0.9", "priority": 50},
    ]);
    assert_eq!(result["routes"], routes);
    assert!(pod.cmd("ip route").contains("10.99.0.0/16 via 10.77.0.9 dev eth0 metric 50"));
    let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "pod");
    let to: std::net::IpAddr = ip.parse().expect("an address");
    stage.node.expect(Proto::Tcp, (to, 80), "pod");
    let log = stage.log();
    assert!(log.contains("client provides name: web-1") && log.contains("vendor class: slipway"), "{log}");
    assert_eq!(stage.leases(), ["lan:pod:eth0"]);
    let before = stage.logged("DHCPACK");
    network.check(&attach).expect("CHECK");
    stage.wait("the lease is renewed", || stage.logged("DHCPACK") > before);
    network.del(&attach).expect("DEL");
    stage.wait("the server receives the release", || stage.logged(&format!("DHCPRELEASE(lan0) {ip}")) == 1);
    network.del(&attach).expect("DEL again");
    assert_eq!(stage.leases(), Vec::<String>::new());
}

/// The server offers static routes (option 33) and routers. An ADD uses only the options that it has requested.
#[test]
fn routes_are_those_that_were_requested() {
    needs_dnsmasq!();
    let stage = Stage::with_dnsmasq(&["--dhcp-option=33,172.20.0.0,10.77.0.7"]);
    let routes = |name: &str, request: Value| {
        let pod = stage.node.pod(name);
        let network = stage.network(&json!({"request": request}));
        let result = network.add(&Attach::new(&pod)).expect("ADD");
        network.del(&Attach::new(&pod)).expect("DEL");
        result["routes"].clone()
    };
    let default = json!({"dst": "0.0.0.0/0", "gw": "10.77.0.1"});
    assert_eq!(routes("plain", json!([])), json!([default]));
    assert_eq!(
        routes("static", json!([{"option": "33"}])),
        json!([{"dst": "172.20.0.0/16", "gw": "10.77.0.7"}, default])
    );
    assert_eq!(routes("none", json!([{"skipDefault": true}, {"option": "subnet-mask"}])), Value::Null);
}

/// The server identifies clients by option 61, whose default value names the attachment.
#[test]
fn a_lease_belongs_to_a_client_identifier() {
    needs_dnsmasq!();
    let fixed = [
        "--dhcp-host=id:00:70:6f:64:2f:6c:61:6e:2f:65:74:68:30,10.77.0.200",
        "--dhcp-host=id:mine,10.77.0.201",
    ];
    let stage = Stage::with_dnsmasq(&fixed);
    let pods = ["pod", "other"].map(|name| stage.node.pod(name));
    // The default identifier is 00 followed by pod/lan/eth0.
    let usual = stage.network(&json!({}));
    assert_eq!(address(&usual.add(&Attach::new(&pods[0])).expect("ADD")), "10.77.0.200");
    let own = stage.network(&json!({"provide": [{"option": "dhcp-client-identifier", "value": "mine"}]}));
    assert_eq!(address(&own.add(&Attach::new(&pods[1])).expect("ADD")), "10.77.0.201");
    own.del(&Attach::new(&pods[1])).expect("DEL");
    stage.wait("the server receives the release", || stage.logged("DHCPRELEASE(lan0) 10.77.0.201") == 1);
}

/// Concurrent ADDs get different addresses. Concurrent ADDs of the same attachment get the same lease, or fail with
/// "try again later".
#[test]
fn concurrent_adds_get_an_address_each() {
    needs_dnsmasq!();
    let stage = Stage::with_dnsmasq(&[]);
    let network = stage.network(&json!({}));
    let pods: Vec<Pod> = (0..8).map(|n| stage.node.pod(&format!("pod{n}"))).collect();
    let mut addresses: Vec<String> = std::thread::scope(|scope| {
        let adds: Vec<_> =
            pods.iter().map(|pod| scope.spawn(|| network.add(&Attach::new(pod)).expect("ADD"))).collect();
        adds.into_iter().map(|add| address(&add.join().expect("no panic"))).collect()
    });
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 8);
    assert_eq!(stage.leases().len(), 8);
    std::thread::scope(|scope| {
        for pod in &pods {
            scope.spawn(|| network.del(&Attach::new(pod)).expect("DEL"));
        }
    });
    assert_eq!(stage.leases(), Vec::<String>::new());
    stage.wait("the server receives all releases", || stage.logged("DHCPRELEASE") == 8);
}

#[test]
fn gc_releases_leases_without_an_attachment() {
    needs_dnsmasq!();
    let stage = Stage::with_dnsmasq(&[]);
    let network = stage.network(&json!({}));
    let pods = ["one", "two", "three"].map(|name| stage.node.pod(name));
    let attach: Vec<Attach> = pods.iter().map(Attach::new).collect();
    let results: Vec<Value> = attach.iter().map(|one| network.add(one).expect("ADD")).collect();
    let other = stage.node.network(json!({"name": "other", "plugins": [{
        "type": "bridge", "bridge": "lan0", "ipam": {"type": "dhcp"},
    }]}));
    let foreign = stage.node.pod("foreign");
    other.add(&Attach::new(&foreign)).expect("ADD");
    // GC deletes an unreadable lease.
    stage.node.write("/var/lib/cni/dhcp/lan:broken:eth0", "{");
    network.forget();
    network.gc(&[&attach[0], &attach[2]]).expect("GC");
    assert_eq!(stage.leases(), ["lan:one:eth0", "lan:three:eth0", "other:foreign:eth0"]);
    stage.wait("the server receives the release", || {
        stage.logged(&format!("DHCPRELEASE(lan0) {}", address(&results[1]))) == 1
    });
    // The runtime's cache is lost, and with it the `prevResult` that bridge needs for CHECK, so dhcp is called alone.
    let config = json!({
        "cniVersion": "1.1.0", "name": "lan", "type": "dhcp", "ipam": {"type": "dhcp"}, "prevResult": results[0],
    });
    let check = |config| stage.node.plugin("dhcp").command("CHECK").for_pod(&pods[0]).config(config).run();
    check(&config).ok();
    let mut moved = config.clone();
    moved["prevResult"]["ips"][0]["address"] = "10.77.0.5/24".into();
    let (ip, error) = (address(&results[0]), check(&moved).error());
    assert_eq!(error.msg, format!("dhcp: Failed to match addr {ip} on interface eth0"));
    network.del(&attach[0]).expect("DEL");
}

/// A container is started again under the same names, without a DEL in between.
#[test]
fn another_namespace_has_a_lease_of_its_own() {
    needs_dnsmasq!();
    let stage = Stage::with_dnsmasq(&[]);
    let network = stage.network(&json!({}));
    let pods = ["one", "two"].map(|name| stage.node.pod(name));
    let first = address(&network.add(&Attach::new(&pods[0]).container("same")).expect("ADD"));
    let second = address(&network.add(&Attach::new(&pods[1]).container("same")).expect("ADD"));
    stage
        .wait("the server receives the release", || stage.logged(&format!("DHCPRELEASE(lan0) {first}")) == 1);
    assert_eq!(stage.leases(), ["lan:same:eth0"]);
    network.del(&Attach::new(&pods[1]).container("same")).expect("DEL");
    // The server may assign the same address again.
    let released = if first == second { 2 } else { 1 };
    stage.wait("the server receives the release", || {
        stage.logged(&format!("DHCPRELEASE(lan0) {second}")) == released
    });
    assert_eq!(stage.leases(), Vec::<String>::new());
}
