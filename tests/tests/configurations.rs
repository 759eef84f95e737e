// SPDX-License-Identifier: GPL-2.0-or-later

//! Runs the configurations that the documentation shows with the plugins: ADD, CHECK and DEL of each, without a
//! warning.
//!
//! A block marked `json` is a network configuration, unless its fence has another word: `fragment=portmap` marks keys
//! of this plugin, which are tried in the first configuration of the page that contains the plugin, or else beside a
//! bridge. `file=/etc/cni/slipway.json` marks a file on the node, also for `text` blocks. `output` marks what a program
//! prints, which the suite `pages` compares.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "dhcp/stage.rs"]
#[expect(dead_code, reason = "the suite dhcp uses the rest")]
mod stage;

use serde_json::{Map, Value, json};
use slipway_tests::pages::{self, Block};
use slipway_tests::{Attach, FLOWTABLE, Proto, has_flowtable, lacks, needs, skip};
use stage::Stage;

/// The file with the node's settings.
const SETTINGS: &str = "/etc/cni/slipway.json";

/// Generates a test for each page.
macro_rules! configurations_of {
    ($($test:ident: $page:literal;)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $test() {
                let trials = trials($page);
                let plugins = trials.iter().flat_map(|trial| types(&trial.list));
                if let Some(feature) = plugins.into_iter().find_map(|name| lacks(&name)) {
                    skip!(feature);
                }
                let flows = trials.iter().any(|trial| trial.files.iter().any(|(_, text)| text.contains("flowtable")));
                needs!(!flows || has_flowtable(), FLOWTABLE);
                needs!(!trials.iter().any(|trial| trial.leases()) || stage::has_dnsmasq(), "dnsmasq");
                for trial in trials {
                    assert_eq!(trial.run(), Vec::<String>::new(), "{}", trial.place);
                }
            }
        )*
    };
}

configurations_of! {
    bandwidth: "docs/plugins/bandwidth.md";
    bridge: "docs/plugins/bridge.md";
    dhcp: "docs/plugins/dhcp.md";
    dummy: "docs/plugins/dummy.md";
    firewall: "docs/plugins/firewall.md";
    flannel: "docs/plugins/flannel.md";
    flowtable: "docs/dataplane/flowtable.md";
    host_device: "docs/plugins/host-device.md";
    host_local: "docs/plugins/host-local.md";
    ipvlan: "docs/plugins/ipvlan.md";
    logs: "docs/logs.md";
    loopback: "docs/plugins/loopback.md";
    macvlan: "docs/plugins/macvlan.md";
    noop: "docs/plugins/noop.md";
    portmap: "docs/plugins/portmap.md";
    ptp: "docs/plugins/ptp.md";
    readme: "README.md";
    sbr: "docs/plugins/sbr.md";
    settings: "docs/settings.md";
    r#static: "docs/plugins/static.md";
    table: "docs/dataplane/table.md";
    tap: "docs/plugins/tap.md";
    tuning: "docs/plugins/tuning.md";
    second_network: "docs/second-network.md";
    choosing_a_backend: "docs/choosing-a-backend.md";
    moving_to_ebpf: "docs/moving-to-ebpf.md";
    tutorial_containerd: "docs/tutorials/containerd.md";
    tutorial_from_the_reference: "docs/tutorials/from-the-reference.md";
    tutorial_kubernetes: "docs/tutorials/kubernetes.md";
    udp_gro: "docs/dataplane/udp-gro.md";
    vlan: "docs/plugins/vlan.md";
    vrf: "docs/plugins/vrf.md";
}

/// One configuration, which gets a separate node.
struct Trial {
    /// The page and the line of the block.
    place: String,
    list: Value,
    /// The node's files.
    files: Vec<(String, String)>,
    /// The runtime's data by capability, if it differs from the usual data.
    capabilities: Option<Map<String, Value>>,
}

/// The configurations of a page: first each as it is, then with each fragment, and then with each settings file.
fn trials(page: &str) -> Vec<Trial> {
    let (files, others): (Vec<Block>, Vec<Block>) =
        pages::blocks(page).into_iter().partition(|block| block.value("file").is_some());
    let content = |block: &Block| (block.value("file").expect("a file").to_owned(), block.text());
    let (settings, files): (Vec<_>, Vec<_>) =
        files.iter().map(|block| (block, content(block))).partition(|(_, (path, _))| path == SETTINGS);
    let files: Vec<_> = files.into_iter().map(|(_, file)| file).collect();
    let trial = |place: &Block, list: &Value| Trial {
        place: place.place(),
        list: list.clone(),
        files: files.clone(),
        capabilities: None,
    };
    let json: Vec<(&Block, Value)> = others.iter().filter_map(|block| Some((block, shown(block)?))).collect();
    let (fragments, lists): (Vec<_>, Vec<_>) =
        json.into_iter().partition(|(block, _)| block.value("fragment").is_some());
    let lists: Vec<(&Block, Value)> = lists.into_iter().map(|(block, one)| (block, list_of(one))).collect();
    let with = |plugin: &str| {
        let found =
            lists.iter().map(|(_, list)| list).find(|list| types(list).iter().any(|one| one == plugin));
        found.cloned().unwrap_or_else(usual)
    };
    let mut all: Vec<Trial> = lists.iter().map(|(block, list)| trial(block, list)).collect();
    for (block, keys) in &fragments {
        let plugin = block.value("fragment").expect("a fragment's plugin");
        let mut one = trial(block, &with(plugin));
        one.add(plugin, keys);
        all.push(one);
    }
    for (block, file) in &settings {
        let mut one = trial(block, &with("portmap"));
        one.files.push(file.clone());
        all.push(one);
    }
    all
}

/// The content of a JSON block, unless the block shows output.
fn shown(block: &Block) -> Option<Value> {
    if block.language != "json" || block.words.iter().any(|word| word == "output") {
        return None;
    }
    let value = serde_json::from_str(&block.text());
    Some(value.unwrap_or_else(|e| panic!("{}: {e}", block.place())))
}

/// A configuration list, or for a single configuration the list that libcni makes of it.
fn list_of(one: Value) -> Value {
    assert!(one["cniVersion"].is_string(), "neither a configuration nor marked as a part: {one}");
    match one.get("plugins") {
        Some(_) => one,
        None => json!({"cniVersion": one["cniVersion"], "name": one["name"], "plugins": [one]}),
    }
}

/// The list to which fragments are added on a page without a list.
fn usual() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "pods", "plugins": [
            {
                "type": "bridge", "isDefaultGateway": true, "ipMasq": true,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16"}]]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

fn types(list: &Value) -> Vec<String> {
    let plugins = list["plugins"].as_array().expect("a list has plugins");
    plugins.iter().map(|plugin| plugin["type"].as_str().expect("a type").to_owned()).collect()
}

impl Trial {
    /// Adds a fragment to the configuration of its plugin.
    fn add(&mut self, plugin: &str, keys: &Value) {
        let plugins = self.list["plugins"].as_array_mut().expect("a list has plugins");
        let config = plugins.iter_mut().find(|one| one["type"] == plugin);
        let config = config.unwrap_or_else(|| panic!("{}: no configuration has {plugin}", self.place));
        for (key, value) in keys.as_object().expect("keys") {
            match value.as_object() {
                // libcni derives `runtimeConfig` from the runtime's data, for the capabilities that a plugin declares.
                Some(data) if key == "runtimeConfig" => self.capabilities = Some(data.clone()),
                _ => config[key] = value.clone(),
            }
        }
    }

    /// True if the addresses of the configuration are DHCP leases.
    fn leases(&self) -> bool {
        self.list["plugins"].as_array().is_some_and(|all| all.iter().any(|one| one["ipam"]["type"] == "dhcp"))
    }

    /// A node with the links and files that the configuration names.
    fn stage(&self) -> Stage {
        let stage = Stage::new();
        let node = &stage.node;
        node.own_etc();
        // Creates the links that the pages name, and the folder for their log.
        node.cmd("ip link add ens5 type veth peer name ens6");
        node.cmd("ip link set ens5 up");
        node.cmd("ip link set ens6 up");
        node.cmd("mkdir -p /var/log");
        node.cmd("mount -t tmpfs tmpfs /var/log");
        for (path, content) in &self.files {
            node.write(path, content);
        }
        if self.leases() {
            // Before Linux 6.2, a link can be renamed only while it is down.
            node.cmd("ip link set lan0 down");
            node.cmd("ip link set lan0 name br-lan");
            node.cmd("ip link set br-lan up");
            stage.start_dnsmasq(node, "br-lan", &[]);
            stage.start_daemon(&[]);
        }
        stage
    }

    /// Runs ADD, CHECK and DEL, and returns the warnings of the plugins.
    fn run(&self) -> Vec<String> {
        let stage = self.stage();
        let network = stage.node.network(self.list.clone());
        let pod = stage.node.pod("web");
        let mut attach = Attach::new(&pod).args("IgnoreUnknown=1;K8S_POD_NAME=web");
        attach = match &self.capabilities {
            Some(given) => Attach { capabilities: given.clone(), ..attach },
            None => attach.port(Proto::Tcp, 8080, 80).capability("mac", json!("02:00:00:00:00:07")),
        };
        attach = match types(&self.list)[0].as_str() {
            "loopback" => attach.ifname("lo"),
            _ => attach,
        };
        let (mut warnings, mut result) = (Vec::new(), Value::Null);
        for verb in ["ADD", "CHECK", "DEL"] {
            let mut configs = network.configs(Some(&attach));
            if verb == "DEL" {
                configs.reverse();
            }
            for mut config in configs {
                if !result.is_null() {
                    config["prevResult"] = result.clone();
                }
                let output = network.prepare(verb, &config, Some(&attach)).env("SLIPWAY_LOG", "warn").run();
                let printed = output.ok();
                if verb == "ADD" {
                    result = printed;
                }
                warnings.extend(output.process.stderr.lines().map(str::to_owned));
            }
        }
        warnings
    }
}

#[test]
fn each_page_with_a_configuration_is_tried() {
    let shows = |name: &String| pages::blocks(name).iter().any(|one| shown(one).is_some());
    let mut tried: Vec<String> = PAGES.iter().map(|page| (*page).to_owned()).collect();
    tried.sort();
    assert_eq!(pages::names().into_iter().filter(shows).collect::<Vec<_>>(), tried);
}

#[test]
fn a_misspelt_key_and_a_fragment_of_no_plugin_are_found() {
    let mut trial = trials("README.md").swap_remove(0);
    trial.add("portmap", &json!({"snatt": true}));
    let warnings = trial.run();
    assert!(
        warnings.iter().any(|line| line.ends_with("unknown key \"snatt\": did you mean \"snat\"?")),
        "{warnings:?}"
    );
    let stray = std::panic::catch_unwind(move || trial.add("sbr", &json!({})));
    assert!(stray.is_err());
}
