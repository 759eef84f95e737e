// SPDX-License-Identifier: GPL-2.0-or-later

//! The configuration changes while the manager is running.

use std::sync::Arc;
use std::time::Duration;

use cni_runtime::pods::{Manager, Networks};
use serde_json::{Value, json};
use slipway_tests::{quoted, slipway_only, within};

use crate::stage::{CONF, Stage, list, pods_list};

/// Waits until the condition about the networks is true.
async fn until(manager: &Manager, what: &str, wanted: impl Fn(&Networks) -> bool) -> Arc<Networks> {
    let mut changes = manager.subscribe();
    let seen =
        tokio::time::timeout(within(Duration::from_secs(30)), changes.wait_for(|networks| wanted(networks)));
    match seen.await {
        Ok(networks) => networks.expect("the manager lives").clone(),
        Err(_) => panic!("not seen: {what}: {:#?}", manager.networks()),
    }
}

fn default_of(networks: &Networks) -> Option<&str> {
    networks.default_network().map(cni_runtime::Network::name)
}

#[test]
fn the_default_network_follows_its_file() {
    slipway_only!();
    let stage = Stage::new();
    stage.block_on(async || {
        let manager = stage.manager().start().await.expect("a manager");
        let is = |name: &'static str| move |networks: &Networks| default_of(networks) == Some(name);
        assert!(is("pods")(&manager.networks()));
        stage.write("05-early.conflist", &pods_list("early"));
        until(&manager, "a new first file", is("early")).await;
        stage.node.write(&format!("{CONF}/05-early.conflist"), pods_list("changed").to_string());
        until(&manager, "another name in the file", is("changed")).await;
        stage.node.cmd(&format!("mv {CONF}/05-early.conflist {CONF}/90-late.conflist"));
        until(&manager, "a renamed file", |all| is("pods")(all) && all.get("changed").is_some()).await;
        stage.remove("10-pods.conflist");
        until(&manager, "a removed file", is("storage")).await;
        stage.remove("90-late.conflist");
        until(&manager, "another removed file", |all| all.get("changed").is_none()).await;
        // The directory is removed and created again.
        stage.node.cmd(&format!("rm -r {CONF}"));
        until(&manager, "a removed directory", |all| all.verdicts().is_empty()).await;
        stage.write("10-pods.conflist", &pods_list("pods"));
        until(&manager, "a new directory", is("pods")).await;
        manager.shut_down().await;
    });
}

#[test]
fn a_configured_default_network_does_not_change() {
    slipway_only!();
    let stage = Stage::new();
    stage.block_on(async || {
        let manager = stage.manager().default_network("storage").start().await.expect("a manager");
        assert_eq!(default_of(&manager.networks()), Some("storage"));
        stage.remove("20-storage.conflist");
        until(&manager, "no default network", |all| all.verdicts().len() == 1).await;
        assert_eq!(default_of(&manager.networks()), None);
    });
}

#[test]
fn a_bad_file_is_skipped_with_its_reason() {
    slipway_only!();
    let stage = Stage::new();
    stage.node.write(&format!("{CONF}/01-bad.conflist"), "{");
    stage.write("02-empty.conflist", &json!({"name": "empty", "cniVersion": "1.0.0", "plugins": []}));
    stage.write(
        "03-new.conflist",
        &json!({"name": "new", "cniVersion": "9.0.0", "plugins": [{"type": "bridge"}]}),
    );
    stage.write("50-nameless.conflist", &json!({"cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}));
    let printed: Value = serde_json::from_str(&stage.ok("networks --output json")).expect("JSON");
    assert_eq!(printed["default_network"], "pods");
    let files = printed["files"].as_array().expect("a list");
    let reasons: Vec<_> = files.iter().map(|file| file["skipped"].as_str().unwrap_or_default()).collect();
    assert!(reasons[0].contains("error parsing configuration list"), "{reasons:?}");
    assert!(reasons[1].ends_with("no plugins in list"), "{reasons:?}");
    assert_eq!(reasons[2], "plugin bridge does not support config version \"9.0.0\"");
    let names: Vec<_> = files.iter().filter_map(|file| file["network"].as_str()).collect();
    assert_eq!(names, ["pods", "storage", "50-nameless.conflist"]);
}

#[test]
fn a_plugin_that_appears_later_makes_its_network_valid() {
    slipway_only!();
    let stage = Stage::new();
    stage.write("05-later.conflist", &list("later", &json!([{"type": "later"}])));
    stage.block_on(async || {
        let runtime = cni_runtime::Runtime::builder().plugin_dir(&stage.bin).plugin_dir("/var/lib/more/bin");
        let manager = Manager::builder(runtime).config_dir(CONF).start().await.expect("a manager");
        assert_eq!(default_of(&manager.networks()), Some("pods"));
        // Neither the directory nor its parent existed when the manager started.
        stage.node.cmd("mkdir -p /var/lib/more/bin");
        stage.node.cmd(&format!("cp {} /var/lib/more/bin/later", quoted(stage.bin.join("bridge"))));
        // Our program is not a plugin under an unknown name, but a script is.
        stage.node.write(
            "/var/lib/more/bin/later",
            "#!/bin/sh\necho '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}'\n",
        );
        until(&manager, "a new plugin", |all| default_of(all) == Some("later")).await;
        stage.node.cmd("chmod -x /var/lib/more/bin/later");
        until(&manager, "a plugin that cannot be executed", |all| default_of(all) == Some("pods")).await;
        stage.node.cmd("chmod +x /var/lib/more/bin/later");
        until(&manager, "a plugin that can be executed again", |all| default_of(all) == Some("later")).await;
        stage.node.cmd("rm -r /var/lib/more");
        until(&manager, "a plugin that is removed", |all| default_of(all) == Some("pods")).await;
    });
}

#[test]
fn the_directory_is_created() {
    slipway_only!();
    let stage = Stage::new();
    stage.block_on(async || {
        let manager = stage.manager().config_dir("/var/lib/a/b").start().await.expect("a manager");
        assert_eq!(stage.node.cmd("stat -c %a /var/lib/a/b").trim(), "755");
        stage.node.write("/var/lib/a/b/10.conflist", pods_list("pods").to_string());
        until(&manager, "a file in the new directory", |all| default_of(all) == Some("pods")).await;
        manager.shut_down().await;
    });
}

/// `slipwayd networks --watch` shows the existing networks and changes nothing.
#[test]
fn a_manager_that_only_watches_makes_no_directory() {
    slipway_only!();
    let stage = Stage::new();
    stage.block_on(async || {
        let manager = stage.manager().config_dir("/var/lib/a/b").watch().await.expect("a manager");
        assert!(stage.node.list("/var/lib/a").is_empty());
        stage.node.write("/var/lib/a/b/10.conflist", pods_list("pods").to_string());
        until(&manager, "a file in a new directory", |all| default_of(all) == Some("pods")).await;
        manager.shut_down().await;
    });
}
