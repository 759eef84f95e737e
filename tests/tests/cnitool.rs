// SPDX-License-Identifier: GPL-2.0-or-later

//! `cnitool`: runs lists as libcni does, with its cache, on real containers.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use slipway_tests::{
    CommandOutput, Node, PROGRAMS, Pod, Proto, REFERENCE, Reference, Snapshot, address_of, confined,
    has_programs, injected, needs, quoted, slipway, slipway_only,
};

/// The folder of the lists, in the node's private /var/lib.
const NET_DIR: &str = "/var/lib/net.d";
const PORTS: &str = r#"{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}"#;

fn list() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "tool",
        "plugins": [
            {
                "type": "bridge", "bridge": "tool0", "isDefaultGateway": true,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.33.0.0/24"}]]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

struct Tool {
    node: Node,
}

impl Tool {
    fn new(list: &Value) -> Self {
        let node = Node::without_bridge_netfilter();
        let tool = Self { node };
        tool.configure(list);
        tool
    }

    fn configure(&self, list: &Value) {
        self.node.write(&format!("{NET_DIR}/10-tool.conflist"), list.to_string());
    }

    fn run(&self, args: &[&str], env: &[(&str, &str)]) -> CommandOutput {
        self.run_with(self.node.bin(), args, env)
    }

    fn run_with(&self, plugins: &Path, args: &[&str], env: &[(&str, &str)]) -> CommandOutput {
        let mut command = Command::new(slipway());
        command.arg("cnitool").args(args);
        command.env("CNI_PATH", plugins).env("NETCONFPATH", NET_DIR).envs(env.iter().copied());
        self.node.exec(command, b"")
    }

    #[track_caller]
    fn ok(&self, verb: &str, pod: &Pod, env: &[(&str, &str)]) -> String {
        let output = self.run(&[verb, "tool", path(pod)], env);
        assert!(output.code == Some(0), "cnitool {verb}: {output}");
        output.stdout
    }

    #[track_caller]
    fn fails(&self, verb: &str, pod: &Pod, env: &[(&str, &str)]) -> String {
        let output = self.run(&[verb, "tool", path(pod)], env);
        assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "cnitool {verb}: {output}");
        output.stderr
    }

    /// Returns the name and content of the only file of the cache.
    fn cached(&self) -> Option<(String, Value)> {
        let names = self.node.list("/var/lib/cni/results");
        assert!(names.len() <= 1, "{names:?}");
        let name = names.first()?;
        let text = self.node.read(&format!("/var/lib/cni/results/{name}")).expect("a file");
        Some((name.clone(), serde_json::from_str(&text).expect("JSON")))
    }
}

fn path(pod: &Pod) -> &str {
    pod.path().to_str().expect("text")
}

#[test]
fn add_check_and_del_do_what_a_runtime_does() {
    slipway_only!();
    let tool = Tool::new(&list());
    let client = tool.node.host("client");
    let pod = tool.node.pod("web");
    let env = [("CAP_ARGS", PORTS), ("CNI_ARGS", "IgnoreUnknown=1;A=b")];
    let result: Value = serde_json::from_str(&tool.ok("add", &pod, &env)).expect("the result");
    assert_eq!(result["ips"][0]["address"], "10.33.0.2/24");
    let server = pod.serve(Proto::Tcp, "0.0.0.0:80", "web");
    client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
    drop(server);

    let (name, file) = tool.cached().expect("a file");
    let id = file["containerId"].as_str().expect("an ID");
    assert_eq!(name, format!("tool-{id}-eth0"));
    assert!(id.len() == 28 && id.starts_with("cnitool-"), "{id}");
    assert_eq!(file["kind"], "cniCacheV1");
    assert_eq!((&file["netns"], &file["ifName"]), (&json!(path(&pod)), &json!("eth0")));
    assert_eq!(file["cniArgs"], json!([["IgnoreUnknown", "1"], ["A", "b"]]));
    assert_eq!(file["capabilityArgs"], serde_json::from_str::<Value>(PORTS).expect("JSON"));
    assert_eq!(file["result"], result);
    let config = STANDARD.decode(file["config"].as_str().expect("base64")).expect("base64");
    assert_eq!(serde_json::from_slice::<Value>(&config).expect("JSON"), list());

    tool.ok("check", &pod, &env);
    tool.ok("status", &pod, &[]);
    pod.cmd("ip link set eth0 down");
    assert!(tool.fails("check", &pod, &env).starts_with("Error: "));
    tool.ok("del", &pod, &env);
    assert!(tool.cached().is_none());
    tool.ok("del", &pod, &env);
    client.expect_none(Proto::Tcp, (client.node_v4, 8080));
}

/// A container is added again while nobody can find out whether it is attached already. If the runtime took it for one
/// without an interface, it would call the plugins, and undo the first ADD after their failure.
#[test]
fn an_add_is_refused_while_the_container_cannot_be_looked_at() {
    slipway_only!();
    let tool = Tool::new(&list());
    let client = tool.node.host("client");
    let pod = tool.node.pod("web");
    let env = [("CAP_ARGS", PORTS)];
    tool.ok("add", &pod, &env);
    let before = tool.cached().expect("a file");
    let add = || {
        let call = tool.node.plugin("slipway").arguments(&["cnitool", "add", "tool", path(&pod)]);
        call.env("NETCONFPATH", NET_DIR).env("CAP_ARGS", PORTS)
    };
    for (inject, path, words) in [
        ("openat,openat2:error=EMFILE", Some(path(&pod)), "Too many open files"),
        ("setns:error=ENOMEM", None, "Cannot allocate memory"),
    ] {
        let process = injected(&tool.node, add(), inject, path).process;
        assert_eq!((process.code, process.stdout.as_str()), (Some(1), ""), "{inject}: {process}");
        assert!(process.stderr.contains(words), "{inject}: {process}");
        assert!(!process.stderr.contains("attached already"), "{inject}: the failure hit nothing: {process}");
        assert_eq!(tool.cached().as_ref(), Some(&before), "{inject}");
        tool.ok("check", &pod, &env);
        let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "web");
        client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
    }
    assert!(tool.fails("add", &pod, &env).contains("attached already"));
}

/// The list names the backend that both sets of plugins support. A first container creates what remains afterwards,
/// namely the bridge and the shared chains.
#[test]
fn either_of_the_reference_plugins_and_ours_removes_what_the_other_attached() {
    slipway_only!();
    let all = Reference::all();
    needs!(!all.is_empty(), REFERENCE);
    let mut list = list();
    list["cniVersion"] = "1.0.0".into();
    list["plugins"][0]["ipMasq"] = true.into();
    list["plugins"][0]["ipMasqBackend"] = "iptables".into();
    list["plugins"][1]["backend"] = "iptables".into();
    for reference in all {
        let tool = Tool::new(&list);
        let client = tool.node.host("client");
        let (ours, theirs) = (tool.node.bin().to_owned(), reference.dir().to_owned());
        let env = [("CAP_ARGS", PORTS)];
        let call = |plugins: &Path, verb: &str, pod: &Pod| {
            let output = tool.run_with(plugins, &[verb, "tool", path(pod)], &env);
            assert!(output.code == Some(0), "cnitool {verb} with {}: {output}", plugins.display());
            output.stdout
        };
        let first = tool.node.pod("first");
        for plugins in [&ours, &theirs] {
            let _ = call(plugins, "add", &first);
            let _ = call(plugins, "del", &first);
        }
        let state = || {
            let derived = ["networks/.slipway/", "networks/tool/last_reserved_ip"];
            // The reference plugins do not know our list of owners: GC or the next DEL with our plugins clears it.
            Snapshot::take(&tool.node, &[]).without(&derived).without(&["inet slipway owners"])
        };
        let before = state();
        for (adds, deletes) in [(&ours, &theirs), (&theirs, &ours), (&theirs, &theirs)] {
            let pod = tool.node.pod("web");
            let result: Value = serde_json::from_str(&call(adds, "add", &pod)).expect("the result");
            let server = pod.serve(Proto::Tcp, &format!("{}:80", address_of(&result, 0)), "web");
            client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
            drop(server);
            for checks in [adds, deletes] {
                let checked = tool.run_with(checks, &["check", "tool", path(&pod)], &env);
                // For an IPv4 rule, portmap 1.1 also looks for an IPv6 chain, whatever the container's addresses are.
                let wants_both =
                    checks == &theirs && reference.portmap_knows("iptables nor ip6tables usable");
                let text = "Error: could not check ipv6 dnat: chain CNI-DN-";
                let is_known = |error: &str| {
                    error.starts_with(text) && error.trim_end().ends_with(" not found in iptables table nat")
                };
                let is_expected =
                    if wants_both { is_known(&checked.stderr) } else { checked.code == Some(0) };
                assert!(is_expected, "CHECK with {}: {checked}", checks.display());
            }
            let _ = call(deletes, "del", &pod);
            assert!(tool.cached().is_none());
            client.expect_none(Proto::Tcp, (client.node_v4, 8080));
            pod.remove();
            before.assert_same(&state());
        }
    }
}

#[test]
fn a_capability_is_an_option_and_the_result_a_table() {
    slipway_only!();
    let tool = Tool::new(&list());
    let client = tool.node.host("client");
    let pod = tool.node.pod("web");
    let options = ["--capability", "port=8080:80/tcp", "--capability", "port=8081:80", "--output", "table"];
    let output = tool.run(&[&["add", "tool", path(&pod)], &options[..]].concat(), &[]);
    assert!(output.code == Some(0), "{output}");
    let line = output.stdout.lines().find(|line| line.starts_with("eth0")).expect("a line of eth0");
    let columns: Vec<_> = line.split_whitespace().collect();
    assert_eq!((columns[1], columns[3], columns[4]), (path(&pod), "10.33.0.2/24", "10.33.0.1"));
    let server = pod.serve(Proto::Tcp, "0.0.0.0:80", "web");
    client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
    client.expect(Proto::Tcp, (client.node_v4, 8081), "web");
    drop(server);
    let output = tool.run(&["del", "tool", path(&pod), "--output", "json"], &[]);
    let document: Value = serde_json::from_str(&output.stdout).expect("JSON");
    assert_eq!((&document["ok"], &document["command"]), (&json!(true), &json!("del")));
    client.expect_none(Proto::Tcp, (client.node_v4, 8080));
    let output = tool.run(&["add", "tool", path(&pod), "--capability", "port=x"], &[]);
    assert!(output.code == Some(1) && output.stderr.contains("--capability port=x: "), "{output}");
    assert!(tool.cached().is_none());
}

#[test]
fn validate_finds_a_plugin_that_is_missing() {
    slipway_only!();
    let tool = Tool::new(&list());
    let output = tool.run(&["validate", "tool"], &[]);
    assert!(output.code == Some(0) && output.stdout.lines().count() == 3, "{output}");
    let mut broken = list();
    broken["plugins"].as_array_mut().expect("a list").push(json!({"type": "gone"}));
    tool.configure(&broken);
    let output = tool.run(&["validate", "tool", "--output", "json"], &[]);
    assert_eq!(output.code, Some(1), "{output}");
    let document: Value = serde_json::from_str(&output.stdout).expect("JSON");
    assert_eq!(document["ok"], false);
    let errors: Vec<bool> =
        document["plugins"].as_array().expect("plugins").iter().map(|one| !one["error"].is_null()).collect();
    assert_eq!(errors, [false, false, true], "{document}");
}

/// The second call waits for the first. A call that is killed leaves no lock behind.
#[test]
fn calls_for_one_container_are_serialised_between_processes() {
    slipway_only!();
    let mut slow = list();
    slow["plugins"].as_array_mut().expect("a list").push(json!({"type": "slow"}));
    let tool = Tool::new(&slow);
    tool.node.cmd("mkdir /run/slow");
    // The script fails if another call is running.
    let script = "#!/bin/sh\nmkdir /run/slow/busy || exit 1\nsleep 0.3\nrmdir /run/slow/busy\n\
                  [ $CNI_COMMAND = ADD ] && echo '{}'\nexit 0\n";
    tool.node.write("/run/slow/slow", script);
    tool.node.cmd("chmod +x /run/slow/slow");
    let pod = tool.node.pod("web");
    let plugins = format!("{}:/run/slow", tool.node.bin().display());
    std::thread::scope(|scope| {
        for verb in ["del", "del", "check", "del"] {
            let (tool, pod, plugins) = (&tool, &pod, &plugins);
            scope.spawn(move || {
                let output = tool.run_with(Path::new(plugins), &[verb, "tool", path(pod)], &[]);
                assert!(verb == "check" || output.code == Some(0), "{verb}: {output}");
            });
        }
    });
    assert_eq!(tool.node.list("/var/lib/cni/locks"), ["network-tool"]);
}

#[test]
fn errors_are_worded_as_libcni_words_them() {
    slipway_only!();
    let tool = Tool::new(&list());
    let pod = tool.node.pod("web");
    for args in [&[][..], &["add", "tool"], &["nonsense", "tool", "/run/netns/web"]] {
        let output = tool.run(args, &[]);
        assert!(
            output.code == Some(1) && output.stderr.ends_with("(see `slipway cnitool --help`)\n"),
            "{output}"
        );
    }
    let output = tool.run(&["add", "other", path(&pod)], &[]);
    assert_eq!(output.stderr, format!("Error: no net configuration with name \"other\" in {NET_DIR}\n"));
    let message = tool.fails("add", &pod, &[("CNI_ARGS", "A=b;C")]);
    assert_eq!(message, "Error: invalid CNI_ARGS pair \"C\"\n");
    let message = tool.fails("add", &pod, &[("CNI_PATH", "/run")]);
    assert_eq!(
        message,
        "Error: plugin type=\"bridge\" failed (add): failed to find plugin \"bridge\" in path [/run]\n"
    );
    // The first plugin succeeds before the second fails. DEL removes what the first created.
    let message =
        tool.fails("add", &pod, &[("CAP_ARGS", r#"{"portMappings":[{"hostPort":0,"containerPort":80}]}"#)]);
    assert!(message.starts_with("Error: plugin type=\"portmap\" failed (add): "), "{message}");
    assert!(tool.cached().is_none());
    tool.ok("del", &pod, &[]);
    let mut old = list();
    old["cniVersion"] = "0.3.1".into();
    tool.configure(&old);
    let message = tool.fails("check", &pod, &[]);
    assert_eq!(message, "Error: configuration version \"0.3.1\" does not support the CHECK command\n");
    // The specification has no STATUS before 1.1.0.
    tool.ok("status", &pod, &[("CNI_PATH", "/run")]);
}

#[test]
fn a_torn_cache_file_does_not_stop_del() {
    slipway_only!();
    let tool = Tool::new(&list());
    let pod = tool.node.pod("web");
    tool.ok("add", &pod, &[]);
    let (name, _) = tool.cached().expect("a file");
    tool.node.write(&format!("/var/lib/cni/results/{name}"), "{\"kind\":");
    assert!(tool.fails("check", &pod, &[]).contains("failed to get network \"tool\" cached result"));
    tool.ok("del", &pod, &[]);
    assert!(tool.cached().is_none());
    assert_eq!(
        tool.node.list("/var/lib/cni/networks/tool").iter().filter(|n| n.starts_with("10.")).count(),
        0
    );
}

/// GC deletes all cache files of the network, and keeps the attachments that only the plugins know.
#[test]
fn gc_deletes_the_networks_cache_files() {
    slipway_only!();
    let tool = Tool::new(&list());
    let pods = ["one", "two"].map(|name| tool.node.pod(name));
    tool.ok("add", &pods[0], &[]);
    let (name, _) = tool.cached().expect("a file");
    tool.node.cmd(&format!("rm /var/lib/cni/results/{name}"));
    tool.ok("add", &pods[1], &[]);
    tool.ok("gc", &pods[1], &[]);
    assert!(tool.cached().is_none());
    let reserved = tool.node.list("/var/lib/cni/networks/tool");
    assert!(
        reserved.contains(&"10.33.0.2".to_owned()) && !reserved.contains(&"10.33.0.3".to_owned()),
        "{reserved:?}"
    );
    let mut off = list();
    off["disableGC"] = true.into();
    tool.configure(&off);
    tool.ok("add", &pods[1], &[]);
    tool.ok("gc", &pods[1], &[]);
    assert!(tool.cached().is_some());
}

/// Covers plugins in a folder with the network's name, an old configuration of a single plugin, another interface name,
/// and a name for the link itself.
#[test]
fn configurations_of_every_kind_are_found() {
    slipway_only!();
    let tool = Tool::new(&json!({"cniVersion": "1.0.0", "name": "tool"}));
    let pod = tool.node.pod("web");
    assert_eq!(tool.fails("add", &pod, &[]), "Error: no plugin configs found\n");
    let lo = json!({"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.34.0.0/24"}});
    tool.node.write(&format!("{NET_DIR}/tool/10-a.conf"), lo.to_string());
    let output = tool.run(&["add", "tool", path(&pod), "-i", "net5"], &[]);
    assert!(output.code == Some(0), "{output}");
    assert!(pod.cmd("ip -br address show net5").contains("10.34.0.2/24"));
    assert!(tool.cached().expect("a file").0.ends_with("-net5"));
    let output = tool.run(&["del", "tool", path(&pod)], &[("CNI_IFNAME", "net5")]);
    assert!(output.code == Some(0), "{output}");
    assert!(tool.cached().is_none());
    tool.node.write(
        &format!("{NET_DIR}/50-old.conf"),
        json!({"cniVersion": "0.4.0", "name": "old", "type": "loopback"}).to_string(),
    );
    let mut command = Command::new("/run/bin/cnitool");
    tool.node.cmd("mkdir /run/bin");
    tool.node.cmd(&format!("ln -s {} /run/bin/cnitool", quoted(slipway())));
    command.args(["add", "old", path(&pod)]).env("CNI_PATH", tool.node.bin()).env("NETCONFPATH", NET_DIR);
    let output = tool.node.exec(command, b"");
    assert!(output.code == Some(0) && output.stdout.contains("\"cniVersion\": \"0.4.0\""), "{output}");
}

/// The capabilities that the documentation page about security names are sufficient for each verb, and necessary.
#[test]
fn plugins_need_only_the_capabilities_that_the_page_names() {
    slipway_only!();
    const NEEDED: [&str; 2] = ["NET_ADMIN", "SYS_ADMIN"];
    for (backend, feature) in [("nftables", None), ("iptables", None), ("ebpf", Some(PROGRAMS))] {
        if feature.is_some() && !has_programs() {
            println!("without {backend}");
            continue;
        }
        let mut list = list();
        let [bridge, portmap] = [0, 1].map(|index| list["plugins"][index].clone());
        let masquerade = json!({"ipMasq": true, "ipMasqBackend": backend});
        list["plugins"] = json!([
            merged(bridge, masquerade),
            merged(portmap, json!({"backend": backend})),
            {"type": "firewall", "backend": if backend == "iptables" { "iptables" } else { "nftables" }},
            {"type": "tuning", "sysctl": {"net.ipv4.conf.all.log_martians": "1"}, "allmulti": true},
            {"type": "sbr"},
        ]);
        let tool = Tool::new(&list);
        let client = tool.node.host("client");
        let pod = tool.node.pod("web");
        let call = |verb: &str, kept: &[&str]| {
            let kept: Vec<String> = kept.iter().map(|name| (*name).to_owned()).collect();
            let words = confined(&kept);
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).arg(slipway()).args(["cnitool", verb, "tool", path(&pod)]);
            command.env("CNI_PATH", tool.node.bin()).env("NETCONFPATH", NET_DIR).env("CAP_ARGS", PORTS);
            tool.node.exec(command, b"")
        };
        // The state leaves out the folders of the runtime and of host-local, which remain.
        let state = || Snapshot::take(&tool.node, &[&pod]).without(&["/var/lib/cni"]);
        let before = state();
        for missing in NEEDED {
            let kept: Vec<_> = NEEDED.into_iter().filter(|name| *name != missing).collect();
            let output = call("add", &kept);
            assert_eq!(output.code, Some(1), "{backend} without {missing}: {output}");
        }
        before.assert_same(&state());
        for verb in ["status", "add", "check", "gc", "add", "del"] {
            let output = call(verb, &NEEDED);
            assert_eq!(output.code, Some(0), "{backend} {verb}: {output}");
            if verb == "check" {
                let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "web");
                client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
            }
        }
    }
}

fn merged(mut one: Value, more: Value) -> Value {
    let (Value::Object(object), Value::Object(more)) = (&mut one, more) else { panic!("no objects") };
    object.extend(more);
    one
}

/// Only root can access state files.
#[test]
fn the_modes_of_files_are_those_of_the_page() {
    slipway_only!();
    let mut list = list();
    list["plugins"][1]["backend"] = json!("nftables");
    let tuning = json!({"type": "tuning", "mtu": 1400});
    list["plugins"].as_array_mut().expect("plugins").push(tuning);
    let tool = Tool::new(&list);
    let pod = tool.node.pod("web");
    let mut command = Command::new("sh");
    command.args(["-c", "umask 0; exec \"$0\" cnitool add tool \"$1\""]).arg(slipway()).arg(path(&pod));
    command.env("CNI_PATH", tool.node.bin()).env("NETCONFPATH", NET_DIR).env("CAP_ARGS", PORTS);
    let output = tool.node.exec(command, b"");
    assert_eq!(output.code, Some(0), "{output}");
    let found = tool.node.cmd("find /var/lib/cni /run/cni -mindepth 1 -printf '%y %m %p\\n'");
    let mut files = 0;
    for line in found.lines() {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let [kind, mode, path] = words[..] else { panic!("{line}") };
        let is_public = ["/var/lib/cni/networks", "/var/lib/cni/networks/tool"].contains(&path);
        let expected = match (kind, is_public) {
            ("f", _) => "600",
            ("d", true) => "755",
            _ => "700",
        };
        assert_eq!(mode, expected, "{line}");
        files += usize::from(kind == "f");
    }
    assert!(files >= 4, "{found}");
}
