// SPDX-License-Identifier: GPL-2.0-or-later

use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::probe::Fields;
use super::*;
use crate::registry;

/// All paths of a list of keys.
fn paths(keys: &[Key], above: &str) -> Fields {
    let mut all = Fields::new();
    for key in keys {
        let path = format!("{above}{}", key.name);
        if let Kind::Object(below) = key.kind {
            all.extend(paths(below, &format!("{path}.")));
        }
        all.insert(path);
    }
    all
}

/// True if the table has the path, or has an ancestor of the path that accepts any keys.
fn has(known: &Known, path: &str) -> bool {
    let mut levels = vec![Level { common: table::COMMON, own: known.keys, foreign: false }];
    for part in path.split('.') {
        let keys: Vec<&Key> = levels.iter().filter_map(|level| level.find(part)).collect();
        levels.clear();
        for key in &keys {
            match key.kind {
                Kind::Open | Kind::Settings | Kind::Plugin(_) => return true,
                Kind::Object(below) => levels.push(Level::of(below)),
                Kind::Ipam("") => {
                    levels.push(Level { common: table::IPAM, own: known.ipam, foreign: false });
                }
                Kind::Ipam(usual) => levels.push(Level::ipam(usual)),
                _ => {}
            }
        }
        if keys.is_empty() {
            return false;
        }
    }
    true
}

#[test]
fn the_table_has_each_plugin_of_the_registry() {
    let names: Vec<&str> = table::PLUGINS.iter().map(|known| known.plugin).collect();
    assert_eq!(names, registry::names());
}

#[test]
fn the_table_has_what_the_structs_decode_and_nothing_else() {
    for (known, plugin) in table::PLUGINS.iter().zip(registry::PLUGINS) {
        let decoded = plugin.decodes();
        let missing: Vec<&String> = decoded.iter().filter(|path| !has(known, path)).collect();
        assert!(missing.is_empty(), "{}: the table lacks {missing:?}", known.plugin);
        let mut own = paths(known.keys, "");
        own.extend(paths(known.ipam, "ipam."));
        let unread: Vec<&String> = own.difference(&decoded).collect();
        assert!(unread.is_empty(), "{}: no struct decodes {unread:?}", known.plugin);
    }
    let decoded = crate::node_defaults::decodes();
    assert_eq!(paths(table::NODE, "").difference(&decoded).collect::<Vec<_>>(), ["flowtable.devices"]);
    assert_eq!(decoded.difference(&paths(table::NODE, "")).next(), None);
    let runtime = probe::fields::<cni_spec::RuntimeConfig>();
    let known = Known { plugin: "", keys: &[], ipam: &[] };
    for field in runtime {
        assert!(has(&known, &format!("runtimeConfig.{field}")), "{field}");
    }
}

/// The names in the first column of the first table below `## Keys`.
fn documented(page: &str) -> BTreeSet<String> {
    let section = page.split("\n## ").find(|section| section.starts_with("Keys\n")).unwrap_or_default();
    let rows = section.lines().skip_while(|line| !line.starts_with("| key |"));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    let first = |row: &str| row.split('|').nth(1).unwrap_or_default().to_owned();
    rows.flat_map(|row| first(row).split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

#[test]
fn the_table_has_the_keys_of_each_page_and_the_pages_those_of_the_table() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plugins");
    for known in table::PLUGINS {
        let page = std::fs::read_to_string(top.join(known.plugin).with_extension("md")).unwrap();
        let named = documented(&page);
        let above = if known.ipam.is_empty() { "" } else { "ipam." };
        for name in &named {
            assert!(has(known, &format!("{above}{name}")), "{}: the table lacks {name}", known.plugin);
        }
        for key in known.keys.iter().chain(known.ipam) {
            assert!(named.contains(key.name), "{}: the page lacks {}", known.plugin, key.name);
        }
    }
}

fn warned(plugin: &str, config: &Value) -> Vec<String> {
    unknown(plugin, config.as_object().unwrap()).iter().map(ToString::to_string).collect()
}

#[test]
fn unknown_keys_are_named_with_what_may_be_meant() {
    let config = json!({
        "CNIVersion": "1.1.0", "name": "n", "type": "bridge", "isgateway": true, "ipmask": true, "x": 1,
        "cni.dev/later": 1, "vlanTrunk": [{"id": 1}, {"mixID": 5}], "args": {"any": {"thing": 1}},
        "capabilities": {"portMapings": true}, "runtimeConfig": {"mac": "02::"}, "prevResult": {"other": 1},
        "ipam": {"type": "host-local", "subent": "10.0.0.0/8", "ranges": [[{"subnet": "x", "gatewy": "y"}]]},
    });
    assert_eq!(
        warned("bridge", &config),
        [
            "unknown key \"capabilities.portMapings\": did you mean \"portMappings\"?",
            "unknown key \"ipam.ranges[0][0].gatewy\": did you mean \"gateway\"?",
            "unknown key \"ipam.subent\": did you mean \"subnet\"?",
            "unknown key \"ipmask\": did you mean \"ipMasq\"?",
            "unknown key \"vlanTrunk[1].mixID\": did you mean \"maxID\"?",
            "unknown key \"x\"",
        ]
    );
    // An IPAM plugin is called with another plugin's configuration, so only the keys of its own part are checked.
    assert_eq!(warned("host-local", &config).len(), 2);
    assert_eq!(warned("static", &config).len(), 0);
    let flannel = json!({"name": "n", "type": "flannel", "delegate": {"hairpin": true}, "ipam": {"x": 1}});
    assert_eq!(warned("flannel", &flannel), ["unknown key \"delegate.hairpin\"", "unknown key \"ipam.x\""]);
    // The table has no keys of other plugin sets.
    let foreign =
        json!({"name": "n", "type": "bridge", "ipam": {"type": "calico-ipam", "assign_ipv4": "true"}});
    assert_eq!(warned("bridge", &foreign), Vec::<String>::new());
}

#[test]
fn distances_are_those_of_levenshtein() {
    for (a, b, wanted) in
        [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("a", "A", 0), ("ab", "ba", 2)]
    {
        assert_eq!(distance(a, b), wanted, "{a} {b}");
    }
}

proptest! {
    #[test]
    fn any_object_can_be_looked_at(name in ".{0,60}", plugin in "[a-z-]{0,12}") {
        let config = json!({"type": plugin, "a": {name.clone(): 1}, name: [1, {"b": []}]});
        let _any = unknown(&plugin, config.as_object().unwrap());
    }
}
