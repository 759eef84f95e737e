// SPDX-License-Identifier: GPL-3.0-or-later

//! The fields of rendered objects, compared with the API of several versions of Kubernetes.
//!
//! `schema.txt` was recorded from the API reference of these versions: each field that the objects use, with the first minor
//! version that has it, or 20 if it is older. A field that the list lacks fails the test, so that nobody adds one
//! without looking up its age.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Deployment, sample};

/// The recorded fields: kind, path, first minor version.
const SCHEMA: &str = include_str!("schema.txt");
/// The versions that the page about clusters lists, with those next to a change of a field.
const VERSIONS: [u16; 5] = [20, 29, 30, 36, 37];
/// Objects whose keys are names of the user, not fields.
const MAPS: [&str; 5] = ["labels", "annotations", "matchLabels", "nodeSelector", "requests"];

/// The paths of an object's fields; `[]` stands for each element of a list.
fn fields(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                found.push(path.clone());
                if !MAPS.contains(&name.as_str()) {
                    fields(value, &path, found);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| fields(value, &format!("{path}[]"), found)),
        _ => {}
    }
}

#[test]
fn every_field_exists_in_the_version_that_the_objects_are_for() {
    let lines = SCHEMA.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let schema: BTreeMap<String, u16> = lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(field, since)| (field.to_owned(), since.parse().unwrap()))
        .collect();
    let mut unused = schema.clone();
    for version in VERSIONS {
        let kubernetes = format!("1.{version}").parse().unwrap();
        for object in (Deployment { kubernetes, ..sample() }).objects() {
            let object = serde_json::to_value(&object).unwrap();
            let kind = object["kind"].as_str().unwrap();
            let mut found = Vec::new();
            fields(&object, "", &mut found);
            for field in found.iter().map(|path| format!("{kind} {path}")) {
                let since = schema.get(&field);
                assert!(since.is_some_and(|since| *since <= version), "{field} in 1.{version}: {since:?}");
                unused.remove(&field);
            }
        }
    }
    assert_eq!(unused, BTreeMap::new(), "recorded and not used");
}

#[test]
fn apparmor_is_a_field_or_an_annotation() {
    for (version, has_field) in [("1.29", false), ("1.30", true)] {
        let deployment = Deployment { kubernetes: version.parse().unwrap(), ..sample() };
        let template = deployment.daemon_set().spec.unwrap().template;
        let agent = template.spec.unwrap().containers.remove(0).security_context.unwrap();
        let annotations = template.metadata.unwrap().annotations.unwrap_or_default();
        assert_eq!((agent.app_armor_profile.is_some(), annotations.is_empty()), (has_field, has_field));
    }
}
