// SPDX-License-Identifier: GPL-2.0-or-later

//! The pages of plugins, with whose first configuration a container is attached by hand.

use serde_json::{Value, json};
use slipway_tests::{lacks, pages, record_skip};

use crate::reader::Reader;
use crate::world::{NETWORKS, World};

/// Types all commands of the page on a node whose only network is the page's first configuration.
pub(crate) fn by_hand(page: &mut Reader) {
    let name = page.page().trim_start_matches("docs/plugins/").trim_end_matches(".md");
    if let Some(feature) = lacks(name) {
        record_skip(&format!("pages::{}", name.replace('-', "_")), feature);
        return page.leaves();
    }
    let world = World::new();
    // The link whose name the pages use.
    world.node.cmd("ip link add ens5 type veth peer name ens6");
    world.node.cmd("ip link set ens5 up");
    world.node.cmd("ip link set ens6 up");
    world.node.cmd(&format!("rm {NETWORKS}/10-pods.conflist"));
    world.node.write(&format!("{NETWORKS}/10-page.conflist"), first_list(page.page()).to_string());
    for block in pages::blocks(page.page()) {
        if let Some(path) = block.value("file").filter(|path| !path.ends_with("slipway.json")) {
            world.node.write(path, block.text());
        }
    }
    while page.has_commands() {
        page.types(&world.node, "");
    }
}

/// The configuration list with which the page begins.
fn first_list(page: &str) -> Value {
    let blocks = pages::blocks(page);
    let block = blocks.iter().find(|block| block.language == "json" && block.words.is_empty());
    let text = block.expect("a configuration").text();
    let config: Value = serde_json::from_str(&text).expect("JSON");
    match config.get("plugins") {
        Some(_) => config,
        None => json!({"cniVersion": config["cniVersion"], "name": config["name"], "plugins": [config]}),
    }
}
