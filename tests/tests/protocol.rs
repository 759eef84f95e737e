// SPDX-License-Identifier: GPL-2.0-or-later

//! The protocol of each plugin as a process: missing or invalid input causes an error with the specification's code and
//! the reference plugins' message, and changes nothing.

use serde_json::{Value, json};
use slipway_tests::{Node, PluginCall, Snapshot, is_peer, newest_version, plugin_names};

fn config(plugin: &str, version: &str) -> Value {
    json!({
        "cniVersion": version, "name": "net", "type": plugin,
        "ipam": {"type": "host-local", "subnet": "10.88.0.0/24"},
    })
}

/// The versions that a plugin supports, oldest first. Some plugins need more than results of earlier versions contain.
fn spoken(plugin: &str) -> Vec<&'static str> {
    let oldest = match plugin {
        "bandwidth" => "0.3.0",
        "vrf" => "0.3.1",
        "firewall" => "0.4.0",
        _ => "0.1.0",
    };
    let all = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    let newest = newest_version();
    all.into_iter().filter(|version| *version >= oldest && *version <= newest).collect()
}

/// A complete call, for a namespace that does not exist.
fn complete(node: &Node, plugin: &str, verb: &str) -> PluginCall {
    let version = if ["STATUS", "GC"].contains(&verb) { "1.1.0" } else { "1.0.0" };
    let call = node.plugin(plugin).command(verb).container("id").netns("/run/netns/gone").ifname("eth0");
    call.config(&config(plugin, version))
}

/// The verbs that the plugins under test support.
fn verbs() -> &'static [&'static str] {
    match newest_version() {
        "1.0.0" => &["ADD", "DEL", "CHECK"],
        _ => &["ADD", "DEL", "CHECK", "STATUS", "GC"],
    }
}

#[test]
fn without_a_command_the_plugin_prints_its_name() {
    let node = Node::new();
    for plugin in plugin_names() {
        let output = node.plugin(&plugin).run();
        assert_eq!(output.process.code, Some(0));
        assert_eq!(output.process.stdout, "");
        let text = &output.process.stderr;
        assert!(text.starts_with(&format!("CNI {plugin} plugin ")), "{text}");
        assert!(
            text.contains(&format!("\nCNI protocol versions supported: {}", spoken(&plugin).join(", "))),
            "{text}"
        );
    }
}

#[test]
fn every_plugin_lists_the_versions_it_speaks() {
    let node = Node::new();
    for plugin in plugin_names() {
        for input in ["", "{}", "{\"cniVersion\": \"0.4.0\"}", "no JSON"] {
            let output = node.plugin(&plugin).command("VERSION").stdin(input).run();
            let answer = output.ok();
            assert_eq!(answer["cniVersion"], newest_version());
            assert_eq!(answer["supportedVersions"], json!(spoken(&plugin)));
            assert_eq!(output.process.stdout.lines().count(), 1);
            assert!(output.process.stdout.ends_with('\n'));
        }
    }
}

#[test]
fn one_message_names_all_missing_variables() {
    let node = Node::new();
    let missing = |plugin: &str, verb: &str, without: &[&str], names: &str| {
        let call = without.iter().fold(complete(&node, plugin, verb), |call, key| call.without(key));
        let error = call.run().error();
        assert_eq!((error.code, &*error.msg), (4, &*format!("required env variables [{names}] missing")));
    };
    for plugin in plugin_names() {
        let all = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"];
        for verb in ["ADD", "CHECK"] {
            missing(&plugin, verb, &all, "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH");
            for key in all {
                missing(&plugin, verb, &[key], key);
            }
        }
        missing(&plugin, "DEL", &all, "CNI_CONTAINERID,CNI_IFNAME,CNI_PATH");
        if newest_version() == "1.1.0" {
            missing(&plugin, "GC", &all, "CNI_PATH");
            missing(&plugin, "STATUS", &all, "CNI_PATH");
        }
    }
}

#[test]
fn hostile_names_are_refused() {
    let node = Node::new();
    let before = Snapshot::take(&node, &[]);
    let refused = |call: PluginCall, code: u32, text: &str| {
        let error = call.run().error();
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.msg.contains(text), "{error:?} is not about {text:?}");
    };
    for plugin in plugin_names() {
        for verb in ["ADD", "DEL", "CHECK"] {
            let call = || complete(&node, &plugin, verb);
            for id in
                ["..", "../../etc/passwd", "a/b", "a b", " ", "-x", "a\nb", "c1\r\neth0", "a\"b", "ä", "a;b"]
            {
                refused(call().container(id), 4, "invalid characters in containerID");
            }
            refused(call().ifname("sixteen-letters-"), 4, "interface name is too long");
            refused(call().ifname("."), 4, "interface name is . or ..");
            refused(call().ifname(".."), 4, "interface name is . or ..");
            for name in ["a/b", "a:b", "a b", "a\tb"] {
                refused(call().ifname(name), 4, "interface name contains / or : or whitespace characters");
            }
            if !is_peer() {
                // The kernel would replace %d with a number: eth0, eth1 and so on.
                refused(call().ifname("eth%d"), 4, "interface name contains %");
            }
            for name in ["..", ".", "../x", "a/b", "/abs", ".slipway", "a b", " ", "a\nb", "a\"b", "-a"] {
                let mut config = config(&plugin, "1.0.0");
                config["name"] = name.into();
                refused(call().config(&config), 7, "invalid characters found in network name");
            }
        }
    }
    before.assert_same(&Snapshot::take(&node, &[]));
}

#[test]
fn broken_configurations_are_refused() {
    let node = Node::new();
    let before = Snapshot::take(&node, &[]);
    for plugin in plugin_names() {
        for &verb in verbs() {
            let call = || complete(&node, &plugin, verb);
            for input in ["", "no JSON", "[]", "{\"name\": ", "\u{0}\u{1}"] {
                let error = call().stdin(input).run().error();
                assert_eq!(error.code, 6, "{verb} {input:?}: {error:?}");
            }
            let error = call().stdin("{\"cniVersion\": \"1.1.0\"}").run().error();
            assert_eq!((error.code, &*error.msg), (7, "missing network name"));
            let mut unknown = config(&plugin, "9.9.9");
            let error = call().config(&unknown).run().error();
            assert_eq!(error.code, 1);
            if ["ADD", "DEL"].contains(&verb) {
                assert_eq!(error.msg, "incompatible CNI versions");
                let known = format!("config is \"9.9.9\", plugin supports [\"{}\"", spoken(&plugin)[0]);
                assert!(error.details.starts_with(&known), "{error:?}");
            } else {
                assert_eq!(error.msg, format!("plugin version does not allow {verb}"));
            }
            unknown["cniVersion"] = "1.x".into();
            assert!(call().config(&unknown).run().result().is_err());
        }
        let error = complete(&node, &plugin, "FOO").run().error();
        assert_eq!((error.code, &*error.msg), (4, "unknown CNI_COMMAND: FOO"));
        let error = complete(&node, &plugin, "CHECK").config(&config(&plugin, "0.3.1")).run().error();
        assert_eq!((error.code, &*error.msg), (1, "config version does not allow CHECK"));
        if newest_version() == "1.1.0" {
            for verb in ["STATUS", "GC"] {
                let error = complete(&node, &plugin, verb).config(&config(&plugin, "1.0.0")).run().error();
                assert_eq!(error.code, 1);
                assert_eq!(error.msg, format!("config version does not allow {verb}"));
            }
        }
    }
    before.assert_same(&Snapshot::take(&node, &[]));
}

#[test]
fn an_error_is_an_object_on_standard_output() {
    let node = Node::new();
    for plugin in plugin_names() {
        let output = complete(&node, &plugin, "ADD").container("a&b<c>").run();
        let keys: Vec<_> = output.json().as_object().expect("an object").keys().cloned().collect();
        assert_eq!(keys, ["code", "details", "msg"]);
        let text = &output.process.stdout;
        // The output is indented by four blanks and escapes &, < and >, as that of the reference plugins.
        assert!(text.starts_with("{\n    \"code\": 4,\n    \"msg\": "), "{text}");
        assert!(text.contains("a\\u0026b\\u003cc\\u003e"), "{text}");
    }
}

/// DEL of an attachment that never existed succeeds, even without a namespace.
#[test]
fn del_of_nothing_succeeds() {
    let node = Node::new();
    let before = Snapshot::take(&node, &[]);
    for plugin in plugin_names() {
        for netns in ["", "/run/netns/gone"] {
            let output = complete(&node, &plugin, "DEL").netns(netns).run();
            assert!(output.ok().is_null(), "{plugin}");
        }
    }
    let after = Snapshot::take(&node, &[]);
    before.assert_same(&after.without(&["/var/lib/cni"]));
}
