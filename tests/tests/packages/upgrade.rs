// SPDX-License-Identifier: GPL-2.0-or-later

//! An upgrade while containers run. The previous version is the same binary in a package with a lower version number.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use serde_json::json;
use slipway_tests::{BridgeNetfilter, Proto, at, skip};

use crate::{Machine, folder};

fn published_ports_answer_all_the_time(machine: &Machine) {
    let node = &machine.node;
    node.bridge_netfilter(BridgeNetfilter::Off);
    let (client, pod) = (node.host("client"), node.pod("pod"));
    let bridge = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true,
        "ipam": { "type": "host-local", "subnet": "10.1.2.0/24", "routes": [{"dst": "0.0.0.0/0"}] },
    });
    let mut portmap = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "portmap", "runtimeConfig": {
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
        },
    });
    machine.install("old/slipway");
    portmap["prevResult"] = machine.call("ADD", &bridge, &pod).ok();
    let result = machine.call("ADD", &portmap, &pod).ok();
    let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "pod");
    let port = at(client.node_v4, 8080);
    client.expect(Proto::Tcp, port, "pod");
    let (done, answered) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                client.expect(Proto::Tcp, port, "pod");
                answered.fetch_add(1, Ordering::Relaxed);
                thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        machine.install("new/slipway");
        machine.install("new/slipway");
        done.store(true, Ordering::Relaxed);
    });
    assert!(answered.load(Ordering::Relaxed) > 10, "{answered:?} requests");
    let mut check = bridge.clone();
    check["prevResult"] = result;
    assert!(machine.call("CHECK", &check, &pod).ok().is_null());
    // Neither a removal nor a purge affects running containers.
    machine.run("dpkg --remove slipway");
    client.expect(Proto::Tcp, port, "pod");
    machine.run("dpkg --purge slipway");
    client.expect(Proto::Tcp, port, "pod");
    machine.run("test -e /var/lib/cni/networks/net/10.1.2.2");
    machine.install("new/slipway");
    for config in [&portmap, &bridge] {
        assert!(machine.call("DEL", config, &pod).ok().is_null());
    }
    client.expect_none(Proto::Tcp, port);
    assert!(!pod.has_link("eth0"));
    // The commands find the plugins in the package's directory.
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [bridge, portmap]});
    machine.run(&format!("test ! -e /opt/cni/bin\necho '{list}' > /tmp/net.conflist"));
    let detached = machine.run("slipway detach net pod eth0 --conflist /tmp/net.conflist");
    assert_eq!(detached, "detached net pod eth0\n");
    let bundle = "slipway support-bundle --file /tmp/bundle.tar && tar -xOf /tmp/bundle.tar slipway-support/plugins.txt";
    let found = machine.run(bundle);
    assert!(found.contains("/usr/lib/cni\n    bandwidth "), "{found}");
    assert!(found.contains("/usr/lib/slipway/cni\n    bandwidth "), "{found}");
}

#[test]
fn published_ports_answer_during_an_upgrade() {
    let Some(folder) = folder() else { skip!("packages and their systems") };
    for suite in ["bookworm", "trixie"] {
        published_ports_answer_all_the_time(&Machine::start(&folder, suite));
    }
}
