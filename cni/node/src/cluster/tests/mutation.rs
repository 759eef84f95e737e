// SPDX-License-Identifier: GPL-3.0-or-later

//! Mutated Nodes: nonsense in any field harms no other Node, and nothing panics.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

/// The variable with the number of mutated Nodes.
const CASES: &str = "SLIPWAY_MUTATED_NODES";

/// A change of a JSON text or value. Numbers choose the place, modulo what there is.
#[derive(Debug, Clone)]
enum Change {
    /// Replaces a value.
    Value(usize, Value),
    /// Removes a value of an object or a list.
    Remove(usize),
    /// Copies a value to another place.
    Copy(usize, usize),
    /// Replaces a byte of the text.
    Byte(usize, u8),
    /// Repeats a piece of the text at another place.
    Repeat(usize, usize, usize),
}

fn changes() -> impl Strategy<Value = Change> {
    let place = any::<usize>;
    let value = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[0-9a-f.:/]{0,24}".prop_map(Value::from),
        (0_usize..300).prop_map(|length| "\n".repeat(length).into()),
        (250_usize..260).prop_map(|length| "9".repeat(length).into()),
        Just(json!([])),
        Just(json!({})),
        Just(json!([[[{"a": null}]]])),
        Just(json!(vec!["10.244.1.0/24"; 40])),
        Just(json!(vec![json!({"type": "InternalIP", "address": "192.168.50.11"}); 40])),
        Just(json!("0.0.0.0/0")),
        Just(json!("10.244.1.0/24")),
        Just(json!("192.168.50.11")),
        Just(json!("192.168.50.10")),
    ];
    prop_oneof![
        6 => (place(), value).prop_map(|(at, value)| Change::Value(at, value)),
        1 => place().prop_map(Change::Remove),
        2 => (place(), place()).prop_map(|(from, to)| Change::Copy(from, to)),
        1 => (place(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        1 => (place(), place(), 0_usize..40).prop_map(|(from, to, length)| Change::Repeat(from, to, length)),
    ]
}

/// The paths of all values (RFC 6901), but for the whole.
fn paths(value: &Value) -> Vec<String> {
    fn collect(value: &Value, path: &str, paths: &mut Vec<String>) {
        let children: Vec<(String, &Value)> = match value {
            Value::Object(map) => {
                map.iter().map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value)).collect()
            }
            Value::Array(list) => {
                list.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect()
            }
            _ => return,
        };
        for (key, child) in children {
            let path = format!("{path}/{key}");
            collect(child, &path, paths);
            paths.push(path);
        }
    }
    let mut all = Vec::new();
    collect(value, "", &mut all);
    all
}

/// The JSON text of a Node after the changes. Changes of values come before those of the text.
fn mutated(changes: &[Change]) -> Vec<u8> {
    let mut value =
        object("mutated", 50, &["10.244.2.0/24", "fd44:0:0:2::/64"], &["192.168.50.12", "fd60::2"]);
    value["metadata"]["annotations"] = json!({VXLAN_MAC: "02:00:00:00:00:0c", VXLAN_PORT: "4789"});
    for change in changes {
        let paths = paths(&value);
        let path = |at: &usize| paths.get(at % paths.len().max(1)).map_or("", String::as_str);
        match change {
            Change::Value(at, new) => *value.pointer_mut(path(at)).unwrap() = new.clone(),
            Change::Copy(from, to) => {
                let copy = value.pointer(path(from)).unwrap().clone();
                *value.pointer_mut(path(to)).unwrap() = copy;
            }
            Change::Remove(at) => {
                let (parent, key) = path(at).rsplit_once('/').unwrap_or_default();
                match value.pointer_mut(parent) {
                    Some(Value::Object(map)) => drop(map.remove(&key.replace("~1", "/").replace("~0", "~"))),
                    Some(Value::Array(list)) => drop(list.pop()),
                    _ => {}
                }
            }
            Change::Byte(..) | Change::Repeat(..) => {}
        }
    }
    let mut text = value.to_string().into_bytes();
    for change in changes {
        let length = text.len();
        match change {
            Change::Byte(at, byte) => text[at % length] = *byte,
            Change::Repeat(from, to, count) => {
                let from = from % length;
                let piece = text[from..(from + count).min(length)].to_vec();
                let to = to % length;
                text.splice(to..to, piece);
            }
            _ => {}
        }
    }
    text
}

#[test]
fn mutated_nodes_harm_no_other() {
    let cases = std::env::var(CASES).map_or(5_000, |text| text.parse().unwrap());
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let good = || {
        [
            node("good", 1, &["10.244.1.0/24", "fd44:0:0:1::/64"], &["192.168.50.11", "fd50::11"]),
            announcing(node("far", 2, &["10.244.3.0/24"], &["192.168.60.3"]), "02:00:00:00:00:0b", None),
            own_node(),
        ]
    };
    let names = [OWN, "good", "far"];
    let modes = [TunnelMode::Auto, TunnelMode::Always, TunnelMode::Never];
    let run = |nodes: &Nodes| modes.map(|mode| desired(nodes, &name(OWN), &here(), &settings(mode)));
    let before = run(&all(good())).map(|desired| routes(&desired));
    assert_eq!(before.each_ref().map(Vec::len), [3, 1, 2]);
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&vec(changes(), 1..6), |changes| {
        let Ok(object) = serde_json::from_slice::<NodeObject>(&mutated(&changes)) else { return Ok(()) };
        let Ok(mut node) = Node::read(&object) else { return Ok(()) };
        // A Node cannot have another one's name, and its age is the API server's.
        if names.contains(&node.name.as_str()) {
            return Ok(());
        }
        node.created = Some(1_767_225_600 + 50);
        let nodes = all(good().into_iter().chain([node.clone()]));
        for (desired, before) in run(&nodes).iter().zip(&before) {
            assert_sound(&nodes, &here(), desired);
            prop_assert_eq!(&routes_without(desired, &node.name), before);
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
