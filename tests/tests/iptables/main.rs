// SPDX-License-Identifier: GPL-2.0-or-later

//! The iptables backend: the reference plugins' chains, with both variants of iptables. Slipway and the reference
//! plugins each create, check and remove them.

mod concurrent;
mod find;
mod goldens;
mod lock;
mod masquerade;
mod reference;

use std::path::PathBuf;

use serde_json::{Value, json};
use slipway_tests::{Node, Output, PluginCall, Pod, Reference, Running, with_keys};

const VARIANTS: [&str; 2] = ["nft", "legacy"];

/// A node on which `iptables` is one of the variants, a pod on the node, and calls of portmap for the pod.
struct Stage {
    node: Node,
    pod: Pod,
    variant: &'static str,
}

impl Stage {
    fn new(variant: &'static str) -> Self {
        let node = Node::new();
        node.cmd("mkdir -p /run/tools");
        for family in ["iptables", "ip6tables"] {
            for tool in ["", "-save", "-restore"] {
                node.cmd(&format!("ln -s /usr/sbin/{family}-{variant}{tool} /run/tools/{family}{tool}"));
            }
        }
        node.cmd_input(
            "ip -batch -",
            "link add br0 type bridge\naddress add 10.22.0.1/24 dev br0\n\
             address add fd00:22::1/64 dev br0 nodad\nlink set br0 up\n",
        );
        let pod = node.pod("c1");
        Self { node, pod, variant }
    }

    /// One stage for each variant.
    fn each() -> impl Iterator<Item = Self> {
        VARIANTS.into_iter().map(Self::new)
    }

    /// A call for the pod, with these mappings and keys.
    fn call(&self, verb: &str, mappings: &[Value], keys: &Value) -> Call<'_> {
        let netns = self.pod.path().display().to_string();
        let config = json!({
            "cniVersion": "1.0.0", "name": "testnet", "type": "portmap", "backend": "iptables",
            "runtimeConfig": {"portMappings": mappings},
            "prevResult": {
                "cniVersion": "1.0.0",
                "interfaces": [{"name": "eth0", "sandbox": netns}],
                "ips": [
                    {"address": "10.22.0.2/24", "interface": 0},
                    {"address": "fd00:22::2/64", "interface": 0},
                ],
            },
        });
        let (verb, id, ifname) = (verb.to_owned(), "c1".to_owned(), "eth0".to_owned());
        Call { stage: self, verb, id, ifname, config: with_keys(config, keys), program: None }
    }

    fn plain(&self, verb: &str) -> Call<'_> {
        self.call(verb, &[map("tcp", 8080, 80)], &json!({}))
    }

    /// The nat table of this family, without the parts that differ between nodes.
    fn saved(&self, family: &str) -> String {
        let all = self.node.cmd(&format!("{family}-{}-save -t nat", self.variant));
        let builtin = [":PREROUTING", ":INPUT", ":OUTPUT", ":POSTROUTING", ":KUBE", "#", "*", "COMMIT"];
        let lines = all.lines().filter(|line| !builtin.iter().any(|is| line.starts_with(is)));
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// The nat tables of both families, in the form of the golden files.
    fn both(&self) -> String {
        format!("# iptables\n{}# ip6tables\n{}", self.saved("iptables"), self.saved("ip6tables"))
    }

    /// Asserts that neither family has rules or chains of the container.
    #[track_caller]
    fn assert_gone(&self) {
        let all = self.both();
        for trace in ["CNI-DN-", "CNI-SN-", "c1\\\""] {
            assert!(!all.contains(trace), "{trace} is left:\n{all}");
        }
        assert!(!self.node.ruleset().contains(" testnet eth0 c1\""), "an owner's record is left");
    }
}

/// One call of portmap.
#[derive(Clone)]
struct Call<'a> {
    stage: &'a Stage,
    verb: String,
    id: String,
    ifname: String,
    config: Value,
    program: Option<PathBuf>,
}

impl Call<'_> {
    fn verb(mut self, verb: &str) -> Self {
        verb.clone_into(&mut self.verb);
        self
    }

    fn container(mut self, id: &str) -> Self {
        id.clone_into(&mut self.id);
        self
    }

    fn key(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    /// Removes the IPv6 address with the legacy variant, because there the reference plugin makes too few rules: it
    /// checks each rule with -C, and the legacy ip6tables 1.8.9 ignores the destination port in that comparison.
    fn reduced_for_the_reference(mut self) -> Self {
        if self.stage.variant == "legacy" {
            self.config["prevResult"]["ips"].as_array_mut().expect("a list").truncate(1);
        }
        self
    }

    /// Makes the reference plugin execute the call.
    fn by(mut self, reference: &Reference) -> Self {
        self.program = Some(reference.plugin("portmap"));
        self
    }

    fn run(&self) -> Output {
        self.plugin().run()
    }

    fn spawn(&self) -> Running {
        self.plugin().spawn()
    }

    fn plugin(&self) -> PluginCall {
        let path = std::env::var("PATH").unwrap_or_default();
        let call = self.stage.node.plugin("portmap").command(&self.verb).container(&self.id);
        let call = call.netns(self.stage.pod.path()).ifname(&self.ifname).config(&self.config);
        let call = call.env("PATH", format!("/run/tools:{path}:/usr/sbin:/sbin"));
        match &self.program {
            Some(program) => call.instead(program),
            None => call,
        }
    }

    #[track_caller]
    fn ok(&self) {
        self.run().ok();
    }
}

fn map(protocol: &str, host: u16, container: u16) -> Value {
    json!({"hostPort": host, "containerPort": container, "protocol": protocol})
}

fn map_on(ip: &str, protocol: &str, host: u16, container: u16) -> Value {
    let mut mapping = map(protocol, host, container);
    mapping["hostIP"] = json!(ip);
    mapping
}

/// Mappings with every kind of host address.
fn families() -> Vec<Value> {
    vec![
        map("tcp", 8080, 80),
        map_on("192.0.2.2", "udp", 5353, 53),
        map_on("0.0.0.0", "tcp", 8443, 443),
        map_on("::", "tcp", 9443, 443),
        map_on("2001:db8::5", "tcp", 9000, 90),
        map_on("127.0.0.1", "tcp", 7000, 70),
        map_on("::1", "tcp", 7001, 70),
        map("sctp", 3868, 3868),
    ]
}

/// More ports than one multiport rule takes (15).
fn many() -> Vec<Value> {
    let tcp = (1..=17).map(|i| map("tcp", 9100 - i, 100 + i));
    tcp.chain([map("udp", 53, 53)]).collect()
}
