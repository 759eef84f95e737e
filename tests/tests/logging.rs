// SPDX-License-Identifier: GPL-2.0-or-later

//! The plugins' logs on standard error, in a file and in the journal. Logging never makes a call fail.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Proto};

const LOG: &str = "/run/log/slipway.log";

/// A list whose first plugin has the additional keys `keys`.
fn list(ipam: &str, keys: &Value) -> Value {
    let mut bridge = json!({
        "type": "bridge", "bridge": "br1", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables",
        "ipam": {"type": ipam, "ranges": [[{"subnet": "10.22.0.0/24"}]]},
    });
    bridge.as_object_mut().unwrap().extend(keys.as_object().cloned().unwrap_or_default());
    let portmap = json!({"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}});
    json!({"name": "pods", "plugins": [bridge, portmap]})
}

/// Runs ADD of the list until a plugin fails, and returns the outcome and the output on standard error.
fn add(network: &Network<'_>, attach: &Attach, env: &[(&str, &str)]) -> (bool, String) {
    let (mut result, mut logged) = (Value::Null, String::new());
    for mut config in network.configs(Some(attach)) {
        if !result.is_null() {
            config["prevResult"] = result;
        }
        let call = network.prepare("ADD", &config, Some(attach)).without("SLIPWAY_LOG");
        let output = env.iter().fold(call, |call, (name, value)| call.env(name, *value)).run();
        logged.push_str(&output.process.stderr);
        match output.result() {
            Ok(value) => result = value,
            Err(_) => return (false, logged),
        }
    }
    (true, logged)
}

/// Asserts that the log has lines with these texts, in this order.
#[track_caller]
fn in_order(log: &str, texts: &[&str]) {
    let mut lines = log.lines();
    for text in texts {
        assert!(lines.any(|line| line.contains(text)), "{text:?} is missing, or too early, in\n{log}");
    }
}

/// Installs an IPAM plugin that is a separate, slow program.
fn foreign_ipam(node: &Node) -> String {
    let script = r#"#!/bin/sh
cat > /dev/null
sleep 0.02
echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.22.0.5/24", "gateway": "10.22.0.1"}]}'
"#;
    node.write("/run/plugins/other-ipam", script);
    node.cmd("chmod +x /run/plugins/other-ipam");
    format!("/run/plugins:{}", node.bin().display())
}

#[test]
fn debug_shows_each_step_of_an_add_in_order() {
    let node = Node::new();
    let path = foreign_ipam(&node);
    let network = node.network(list("other-ipam", &json!({})));
    let pod = node.pod("web");
    let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
    let (done, log) = add(&network, &attach, &[("SLIPWAY_LOG", "debug"), ("CNI_PATH", &path)]);
    assert!(done, "{log}");
    let steps = [
        "bridge ADD begins: CNI_NETNS \"/run/netns/web\"",
        "exec /run/plugins/other-ipam: exit status 0 in ",
        "create bridge br1",
        "create veth",
        "add address 10.22.0.5/24",
        "nft create table inet slipway",
        "nft create element inet slipway ",
        " changes committed in ",
        "set sysctl net/ipv4/ip_forward to \"1\"",
        "bridge ADD succeeded in ",
        "portmap ADD begins",
        "nft create element inet slipway hostports4 { tcp . 8080 ",
        "portmap ADD succeeded in ",
    ];
    in_order(&log, &steps);
    let exec = log.lines().find(|line| line.contains("other-ipam: exit")).unwrap();
    let time = exec.split("in ").last().unwrap().strip_suffix(" ms").unwrap();
    assert!(time.parse::<f64>().unwrap() >= 20.0, "{exec}");
}

#[test]
fn a_failed_add_logs_its_undo_last_to_first() {
    let node = Node::new();
    // The gateway's address cannot be set, because the bridge already has another one.
    node.cmd("ip link add br1 type bridge");
    node.cmd("ip address add 10.99.0.1/24 dev br1");
    let network = node.network(list("host-local", &json!({"vlan": 0, "ipMasqBackend": "nftables"})));
    let pod = node.pod("web");
    let attach = Attach::new(&pod);
    // The link is created, but the route that the IPAM plugin returns cannot be added.
    node.write("/run/plugins/other-ipam", "#!/bin/sh\ncat > /dev/null\n[ $CNI_COMMAND = DEL ] && exit 0\n\
        echo '{\"cniVersion\": \"1.1.0\", \"ips\": [{\"address\": \"10.22.0.5/24\", \"gateway\": \"10.22.0.1\"}], \
        \"routes\": [{\"dst\": \"10.50.0.0/16\", \"gw\": \"10.77.0.1\"}]}'\n");
    node.cmd("chmod +x /run/plugins/other-ipam");
    let path = format!("/run/plugins:{}", node.bin().display());
    let (done, log) = add(&network, &attach, &[("SLIPWAY_LOG", "debug")]);
    assert!(!done, "{log}");
    in_order(
        &log,
        &["host-local ADD succeeded", "undo: release the addresses: done", "bridge ADD failed in "],
    );
    let other = node.network(list("other-ipam", &json!({"bridge": "br2"})));
    let (done, log) = add(&other, &attach, &[("SLIPWAY_LOG", "debug"), ("CNI_PATH", &path)]);
    assert!(!done, "{log}");
    in_order(
        &log,
        &[
            "create veth",
            "add route 10.50.0.0/16 via 10.77.0.1",
            "undo: delete the container's link: done",
            "other-ipam: exit status 0",
            "undo: release the addresses: done",
            "bridge ADD failed in ",
        ],
    );
}

#[test]
fn the_level_is_configurable_and_off_by_default() {
    let node = Node::new();
    // bridge calls host-local within its own process, where host-local does not report its key a second time.
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/24"}]], "dataDirs": "/run/x"});
    let network = node.network(list("host-local", &json!({"isgatway": true, "ipam": ipam})));
    let attach = |name: &str| Attach::new(&node.pod(name)).port(Proto::Tcp, 8080, 80);
    let mut logs = Vec::new();
    for level in ["error", "warn", "info", "debug"] {
        let attach = attach(level);
        let (done, log) = add(&network, &attach, &[("SLIPWAY_LOG", level)]);
        assert!(done, "{log}");
        network.del(&attach).expect("DEL");
        logs.push(log);
    }
    assert_eq!(logs[0], "");
    let warned: Vec<&str> = logs[1].lines().map(|line| line.split("] ").last().unwrap_or_default()).collect();
    let expected = [
        "bridge: unknown key \"ipam.dataDirs\": did you mean \"dataDir\"?",
        "bridge: unknown key \"isgatway\": did you mean \"isGateway\"?",
    ];
    assert_eq!(warned, expected);
    assert!(!logs.concat().contains("mnl::"), "a library's lines: {}", logs[3]);
    assert!(logs[2].contains("bridge ADD succeeded") && !logs[2].contains("nft "), "{}", logs[2]);
    assert!(logs[3].contains("nft create element"), "{}", logs[3]);
    let (done, log) = add(&network, &attach("usual"), &[]);
    assert!(done && log.is_empty(), "{log}");
}

/// A node with these log settings, and the folder of the log file.
fn node_with(log: &Value) -> Node {
    let node = Node::new();
    node.own_etc();
    node.write("/etc/cni/slipway.json", json!({ "log": log }).to_string());
    node.cmd("mkdir -p /run/log");
    node
}

fn add_and_del(node: &Node, name: &str) {
    let network = node.network(list("host-local", &json!({})));
    let attach = Attach::new(&node.pod(name)).port(Proto::Tcp, 8080, 80);
    let (done, log) = add(&network, &attach, &[]);
    assert!(done && log.is_empty(), "{log}");
    network.del(&attach).expect("DEL");
}

#[test]
fn each_line_of_a_log_file_names_its_attachment() {
    let node = node_with(&json!({"level": "debug", "file": LOG}));
    add_and_del(&node, "web");
    assert_eq!(node.cmd(&format!("stat -c %a {LOG}")).trim(), "600");
    let log = node.read(LOG).unwrap();
    let parts = " plugin=bridge command=ADD network=pods container=web interface=eth0: ";
    let line = log
        .lines()
        .find(|line| line.contains(parts) && line.contains("create bridge br1"))
        .unwrap_or_else(|| panic!("{log}"));
    let (time, rest) = line.split_once(' ').unwrap();
    assert!(time.len() == 24 && time.starts_with("20") && time.ends_with('Z'), "{line}");
    assert!(rest.starts_with("DEBUG pid="), "{line}");
    in_order(
        &log,
        &[
            "plugin=host-local command=ADD network=pods container=web interface=eth0: host-local ADD succeeded",
            "plugin=portmap command=ADD network=pods container=web interface=eth0: nft create element",
            "plugin=portmap command=DEL network=pods container=web interface=eth0: nft delete element",
            "plugin=bridge command=DEL network=pods container=web interface=eth0: bridge DEL succeeded",
        ],
    );
}

#[test]
fn a_call_succeeds_if_a_line_cannot_be_written() {
    let node = node_with(&json!({"level": "debug", "file": LOG}));
    // The file system has room for a single page.
    node.cmd("mount -t tmpfs -o size=4k tmpfs /run/log");
    add_and_del(&node, "full");
    assert!(node.read(LOG).unwrap().len() <= 4096);
    add_and_del(&node, "full2");
    // The mount is detached lazily, because another test may be looking at the machine's processes and their open
    // files.
    node.cmd("umount --lazy /run/log");

    node.write("/run/precious", "mine");
    node.cmd(&format!("ln -s /run/precious {LOG}"));
    add_and_del(&node, "symlink");
    assert_eq!(node.read("/run/precious").as_deref(), Some("mine"));
    node.cmd(&format!("rm {LOG}"));
    node.cmd(&format!("mkfifo {LOG}"));
    add_and_del(&node, "fifo");
    node.cmd(&format!("rm {LOG}"));
    node.cmd(&format!("mkdir {LOG}"));
    add_and_del(&node, "folder");
    node.cmd("rm -r /run/log");
    add_and_del(&node, "missing");
    node.cmd("mkdir /run/log");
    node.cmd("mount -t tmpfs -o ro tmpfs /run/log");
    add_and_del(&node, "readonly");
}

#[test]
fn a_message_with_line_breaks_is_one_line() {
    let node = node_with(&json!({"level": "debug", "file": LOG}));
    let network =
        node.network(json!({"name": "pods", "plugins": [{"type": "vrf", "vrfname": "a\nb\u{1b}[2J"}]}));
    let attach = Attach::new(&node.pod("web")).netns("/run/netns/none\nERROR forged");
    let config = network.configs(Some(&attach)).remove(0);
    let failed = network.prepare("ADD", &config, Some(&attach)).run();
    assert!(failed.result().is_err());
    let log = node.read(LOG).unwrap();
    assert!(!log.is_empty());
    for line in log.lines() {
        assert!(line.starts_with("20") && line.contains(" plugin=vrf command=ADD "), "{line:?}");
        assert!(!line.contains(char::is_control), "{line:?}");
    }
}

#[test]
fn lines_of_eight_concurrent_calls_do_not_mix_and_the_size_is_bounded() {
    let node = node_with(&json!({"level": "debug", "file": LOG, "maxSize": 65536}));
    let network = node.network(list("host-local", &json!({})));
    let attaches: Vec<Attach> = (0..8).map(|n| Attach::new(&node.pod(&format!("web{n}")))).collect();
    std::thread::scope(|scope| {
        for attach in &attaches {
            scope.spawn(|| {
                for _ in 0..6 {
                    let (done, log) = add(&network, attach, &[]);
                    assert!(done, "{log}");
                    network.del(attach).expect("DEL");
                }
            });
        }
    });
    let (older, newer) = (node.read(&format!("{LOG}.1")).unwrap_or_default(), node.read(LOG).unwrap());
    assert!(!older.is_empty(), "{} bytes, and none set aside", newer.len());
    assert_eq!(node.list("/run/log").len(), 2);
    for text in [&older, &newer] {
        // While one process renames the file, each of the others may write one more line.
        assert!(text.len() < 65536 + 8 * 8192, "{}", text.len());
        for line in text.lines() {
            let parts = ["20", " pid=", " plugin=", " command=", " container=web", ": "];
            assert!(
                line.starts_with(parts[0]) && parts.iter().all(|part| line.matches(part).count() >= 1),
                "{line:?}"
            );
            assert_eq!(line.matches(" pid=").count(), 1, "{line:?}");
        }
    }
}

#[test]
fn the_journal_gets_a_datagram_for_each_line() {
    let node = node_with(&json!({"level": "debug", "journal": true}));
    // Nothing listens on the socket yet.
    add_and_del(&node, "unheard");
    let socket = node.run(|| {
        std::fs::create_dir_all("/run/systemd/journal").unwrap();
        let socket = UnixDatagram::bind("/run/systemd/journal/socket").unwrap();
        std::fs::set_permissions("/run/systemd/journal/socket", PermissionsExt::from_mode(0o666)).unwrap();
        socket
    });
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // The call logs more lines than the socket's queue holds. The excess is dropped, and no call waits.
    add_and_del(&node, "web");
    let mut buffer = [0; 16 << 10];
    let length = socket.recv(&mut buffer).unwrap();
    let text = std::str::from_utf8(&buffer[..length]).unwrap();
    let fields: Vec<(&str, &str)> = text.lines().map(|line| line.split_once('=').expect(text)).collect();
    let field = |name: &str| fields.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
    assert!(field("MESSAGE").unwrap().starts_with("bridge ADD begins"), "{text}");
    for (name, value) in [
        ("PRIORITY", "7"),
        ("SYSLOG_IDENTIFIER", "slipway"),
        ("CNI_PLUGIN", "bridge"),
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINER", "web"),
        ("CNI_INTERFACE", "eth0"),
    ] {
        assert_eq!(field(name), Some(value), "{text}");
    }
}

/// The error names the file. A call fails only if it needs more of the settings than those of the log.
#[test]
fn wrong_settings_are_refused_by_the_plugins_that_read_them() {
    let node = node_with(&json!({"level": "loud", "file": LOG}));
    let network = node.network(list("host-local", &json!({})));
    let attach = Attach::new(&node.pod("web"));
    let mut config = network.configs(Some(&attach)).remove(0);
    config.as_object_mut().unwrap().remove("ipMasqBackend");
    let error = network.prepare("ADD", &config, Some(&attach)).run().error();
    assert!(error.msg.contains("slipway.json") && error.msg.contains("loud"), "{}", error.msg);
}

/// A node must keep working after a return to an earlier version, which does not know keys of a later one.
#[test]
fn an_unknown_key_of_the_settings_is_logged_and_stops_nothing() {
    slipway_tests::slipway_only!();
    let node = Node::new();
    node.own_etc();
    node.cmd("mkdir -p /run/log");
    let settings = |keys: &Value| {
        let mut all = json!({"log": {"file": LOG, "level": "warn"}});
        all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        node.write("/etc/cni/slipway.json", all.to_string());
    };
    let network = node.network(list("host-local", &json!({})));
    let attach = Attach::new(&node.pod("web")).port(Proto::Tcp, 8080, 80);
    settings(&json!({"later": {"x": 1}, "backned": "iptables"}));
    network.status().expect("STATUS");
    let _earlier = node.cmd(&format!("rm -f {LOG}"));
    network.add(&attach).expect("ADD");
    assert!(node.ruleset().contains("8080"), "the misspelt key has no effect: {}", node.ruleset());
    let log = node.read(LOG).unwrap();
    let warning =
        "/etc/cni/slipway.json: unknown key \"backned\": did you mean \"backend\"?, unknown key \"later\"";
    for plugin in ["plugin=bridge", "plugin=portmap"] {
        let warned = log.lines().filter(|line| line.contains(plugin) && line.contains(" WARN "));
        let warned: Vec<&str> = warned.filter(|line| line.ends_with(warning)).collect();
        assert_eq!(warned.len(), 1, "one warning for each plugin that reads the file: {log}");
    }
    network.check(&attach).expect("CHECK");
    let report = node.slipway("check-node");
    assert!(report.lines().any(|line| line.starts_with("warning") && line.ends_with(warning)), "{report}");
    network.del(&attach).expect("DEL");

    // A value that cannot be used is still an error.
    settings(&json!({"later": 1, "backend": "ebtables"}));
    let mut config = network.configs(Some(&attach)).remove(0);
    config.as_object_mut().unwrap().remove("ipMasqBackend");
    let error = network.prepare("ADD", &config, Some(&attach)).run().error();
    assert!(error.code == 7 && error.msg.contains("unknown backend \"ebtables\""), "{error:?}");
    assert_eq!(node.try_slipway("check-node").code, Some(1));
    settings(&json!({"backend": "nftables"}));
    assert!(!node.slipway("check-node").contains("unknown key"));
}
