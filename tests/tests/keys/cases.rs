// SPDX-License-Identifier: GPL-2.0-or-later

//! Generates configurations: a base for each plugin, and variants in which each of its keys has unusual values.

use serde_json::{Value, json};

/// Suffixes of a key's name. They mean that the member is repeated, either with the same name or in capitals.
const AGAIN: &str = "#again";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// An empty pod and an uplink. Only files are compared.
    Files,
    /// An empty pod, and an uplink.
    Nothing,
    /// An empty pod and an uplink. VLANs of bridges are compared as well.
    Bridge,
    /// A pod with a link, as after an interface plugin.
    Link,
    /// A pod with a link, as after an interface plugin. Queueing disciplines and filters are compared as well.
    Limits,
}

/// A plugin, or a part of a plugin's keys.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) plugin: &'static str,
    pub(crate) needs: Needs,
    pub(crate) base: Value,
    pub(crate) keys: Vec<Key>,
    /// Changes of several keys at once.
    pub(crate) sets: Vec<Value>,
    pub(crate) args: &'static [&'static str],
}

/// A key with its path, a valid value, and values to try.
#[derive(Debug)]
pub(crate) struct Key {
    pointer: &'static str,
    good: Value,
    others: Vec<Value>,
}

#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// The name of the case, unique within the subject.
    pub(crate) name: String,
    /// The last path component of the key that was changed, or none if several were.
    pub(crate) key: Option<String>,
    pub(crate) args: String,
    config: Value,
}

impl Case {
    /// The configuration as the plugin gets it, optionally with the result of an ADD.
    pub(crate) fn text(&self, previous: Option<&Value>) -> String {
        let mut config = self.config.clone();
        if let (Some(previous), Some(object)) = (previous, config.as_object_mut()) {
            object.insert("prevResult".to_owned(), previous.clone());
        }
        config.to_string().replace(&format!("{AGAIN}\":"), "\":")
    }
}

/// A key whose valid value is the one in the base, or `good` if the base has none.
pub(crate) fn key(pointer: &'static str, good: Value, others: Value) -> Key {
    let Value::Array(others) = others else { panic!("{pointer}: others are a list") };
    Key { pointer, good, others }
}

/// Values that most keys refuse, and values at the limits of what is valid.
fn strange() -> Vec<Value> {
    json!([null, [], {}, "", 0, -1, 1.5, "x", true, ["x"], [null], 9_223_372_036_854_775_808_u64,])
        .as_array()
        .cloned()
        .unwrap_or_default()
}

impl Subject {
    /// All cases, the base first.
    pub(crate) fn cases(&self) -> Vec<Case> {
        let plain = |name: String, config: Value| Case { name, key: None, args: String::new(), config };
        let mut cases = vec![plain("base".to_owned(), self.base.clone())];
        for key in &self.keys {
            self.of_key(key, &mut cases);
        }
        for set in &self.sets {
            let mut config = self.base.clone();
            for (pointer, value) in set.as_object().expect("a set is an object") {
                assert!(put(&mut config, pointer, value.clone()), "{}: no object for {pointer}", self.plugin);
            }
            cases.push(plain(set.to_string(), config));
        }
        for args in self.args {
            let case = plain(format!("CNI_ARGS={args}"), self.base.clone());
            cases.push(Case { args: (*args).to_owned(), ..case });
        }
        cases
    }

    fn of_key(&self, key: &Key, cases: &mut Vec<Case>) {
        let word = key.pointer.rsplit('/').find(|word| word.parse::<usize>().is_err()).unwrap_or_default();
        let mut push = |what: String, config: Value| {
            let name = format!("{}{what}", key.pointer);
            cases.push(Case { name, key: Some(word.to_owned()), args: String::new(), config });
        };
        let mut good = self.base.clone();
        if good.pointer(key.pointer).is_none() {
            assert!(put(&mut good, key.pointer, key.good.clone()), "no object for {}", key.pointer);
            push(format!("={}", key.good), good.clone());
        } else {
            let mut config = self.base.clone();
            take(&mut config, key.pointer);
            push(" absent".to_owned(), config);
        }
        // A relative path would lead to files of the machine instead of those of the node.
        let path = ["Dir", "Conf", "Path"].iter().any(|end| word.ends_with(end));
        let strange = strange().into_iter().filter(|value| !path || *value != "x");
        for value in strange.chain(key.others.iter().cloned()) {
            let mut config = self.base.clone();
            put(&mut config, key.pointer, value.clone());
            push(format!("={value}"), config);
        }
        let value = good.pointer(key.pointer).cloned().unwrap_or_default();
        let mut again = good.clone();
        if put(&mut again, &format!("{}{AGAIN}", key.pointer), Value::Null) {
            push(" again null".to_owned(), again);
        }
        let mut again = good.clone();
        let second = key.others.first().cloned().unwrap_or(json!(""));
        if put(&mut again, &format!("{}{AGAIN}", key.pointer), second) {
            push(" again".to_owned(), again);
        }
        let mut shouted = good;
        take(&mut shouted, key.pointer);
        let (parent, name) = key.pointer.rsplit_once('/').expect("a pointer");
        if name.parse::<usize>().is_err()
            && put(&mut shouted, &format!("{parent}/{}", name.to_uppercase()), value)
        {
            push(" in capitals".to_owned(), shouted);
        }
    }
}

/// Sets a value and creates missing objects. Returns false if a part of the path is not an object.
fn put(config: &mut Value, pointer: &str, value: Value) -> bool {
    let mut target = config;
    for word in pointer.split('/').skip(1) {
        target = match target {
            Value::Array(list) => match word.parse::<usize>().ok() {
                Some(at) if at < list.len() => &mut list[at],
                Some(at) if at == list.len() => {
                    list.push(Value::Null);
                    &mut list[at]
                }
                _ => return false,
            },
            Value::Object(object) => object.entry(word).or_insert_with(|| json!({})),
            _ => return false,
        };
    }
    *target = value;
    true
}

fn take(config: &mut Value, pointer: &str) {
    let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
    match (config.pointer_mut(parent), name.parse::<usize>()) {
        (Some(Value::Object(object)), _) => drop(object.remove(name)),
        (Some(Value::Array(list)), Ok(at)) if at < list.len() => drop(list.remove(at)),
        _ => {}
    }
}
