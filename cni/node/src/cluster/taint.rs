// SPDX-License-Identifier: GPL-3.0-or-later

//! Taints that keep pods off a new node, removed from the own Node when the network is in place.
//!
//! The taints are one list, which a patch replaces as a whole. The patch has the resource version that the list was read
//! with: if another program changes the Node in between, the API server refuses the patch (409 Conflict), and no taint of
//! that program is lost.

use std::fmt;
use std::str::FromStr;

use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use super::node_name::NodeName;
use crate::excerpt::bounded;

/// The effects of taints (core/v1).
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
/// The most characters of a key in the log: a prefix of 253, "/" and a name of 63.
const TEXT: usize = 317;

/// A taint that is removed: by key, with this effect or any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartupTaint {
    key: String,
    effect: Option<&'static str>,
}

/// An invalid taint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not KEY or KEY:EFFECT, with the effect {}", EFFECTS.join(", "))]
pub struct StartupTaintError;

impl FromStr for StartupTaint {
    type Err = StartupTaintError;

    fn from_str(text: &str) -> Result<Self, StartupTaintError> {
        let (key, effect) = match text.split_once(':') {
            None => (text, None),
            Some((key, effect)) => {
                (key, Some(*EFFECTS.iter().find(|known| **known == effect).ok_or(StartupTaintError)?))
            }
        };
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        if key.is_empty() || !key.bytes().all(is_allowed) {
            return Err(StartupTaintError);
        }
        Ok(Self { key: key.to_owned(), effect })
    }
}

impl fmt::Display for StartupTaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.effect {
            Some(effect) => write!(f, "{}:{effect}", self.key),
            None => f.write_str(&self.key),
        }
    }
}

impl StartupTaint {
    fn is(&self, taint: &Value) -> bool {
        taint["key"] == self.key.as_str() && self.effect.is_none_or(|effect| taint["effect"] == effect)
    }
}

/// Removes these taints from the Node.
///
/// # Errors
/// The Node cannot be read or patched, or another program changed it in between.
pub(super) async fn remove(
    api: &Api<DynamicObject>,
    node: &NodeName,
    parameters: &PatchParams,
    taints: &[StartupTaint],
) -> kube::Result<()> {
    let object = api.get(node.as_str()).await?;
    let present = object.data["spec"]["taints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let (removed, kept): (Vec<&Value>, Vec<&Value>) =
        present.iter().partition(|taint| taints.iter().any(|startup| startup.is(taint)));
    if removed.is_empty() {
        return Ok(());
    }
    let version = object.metadata.resource_version;
    let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": kept } });
    api.patch(node.as_str(), parameters, &Patch::Merge(patch)).await?;
    for taint in removed {
        let text = |field: &str| bounded(taint[field].as_str().unwrap_or_default(), TEXT);
        log::info!("node {node}: removed the taint {}:{}", text("key"), text("effect"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taint_has_a_key_and_perhaps_an_effect() {
        for text in ["slipway.internal/starting", "starting:NoExecute", "a.example/b_c-d:PreferNoSchedule"] {
            assert_eq!(text.parse::<StartupTaint>().unwrap().to_string(), text);
        }
        for text in ["", ":NoSchedule", "key:", "key:noschedule", "key=value:NoSchedule", "key:NoSchedule:x"]
        {
            assert_eq!(text.parse::<StartupTaint>(), Err(StartupTaintError), "{text:?}");
        }
    }

    #[test]
    fn without_an_effect_every_effect_is_meant() {
        let taint = |effect: &str| json!({ "key": "starting", "effect": effect, "value": "yes" });
        let any: StartupTaint = "starting".parse().unwrap();
        let one: StartupTaint = "starting:NoExecute".parse().unwrap();
        assert!(EFFECTS.iter().all(|effect| any.is(&taint(effect))));
        assert!(one.is(&taint("NoExecute")) && !one.is(&taint("NoSchedule")));
        assert!(!any.is(&json!({ "key": "starting2", "effect": "NoExecute" })) && !any.is(&Value::Null));
    }
}
