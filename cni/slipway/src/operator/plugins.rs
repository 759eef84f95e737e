// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway plugins` and `plugin`: this binary itself.

use std::io::{self, Write};

use serde_json::{Value, json};

use cni_plugins::registry;
use slipway_cli::json;
use slipway_cli::{Failure, Given, did_you_mean};

/// Lists the plugins.
pub(super) fn list(given: &Given, out: &mut dyn Write, _err: &mut dyn Write) -> Result<u8, Failure> {
    if given.json() {
        json::print(document(), out)?;
    } else if given.has("--names") {
        registry::names().iter().try_for_each(|name| writeln!(out, "{name}"))?;
    } else {
        table(out)?;
    }
    Ok(0)
}

fn table(out: &mut dyn Write) -> io::Result<()> {
    let width = registry::names().iter().map(|name| name.len()).max().unwrap_or(0);
    for plugin in registry::PLUGINS {
        let versions = plugin.versions();
        let range = match (versions.first(), versions.last()) {
            (Some(first), Some(last)) => format!("{first} to {last}"),
            _ => "no version".to_owned(),
        };
        writeln!(out, "{:width$}  {range}  {}", plugin.name(), plugin.summary())?;
    }
    Ok(())
}

/// The document of `slipway plugins`.
pub(super) fn document() -> Value {
    let row = |plugin: &&dyn cni_plugins::plugin::Plugin| {
        let versions: Vec<String> = plugin.versions().iter().map(ToString::to_string).collect();
        json!({ "name": plugin.name(), "versions": versions, "summary": plugin.summary() })
    };
    json!({ "plugins": registry::PLUGINS.iter().map(row).collect::<Vec<_>>() })
}

/// Runs a plugin by its name.
pub(super) fn serve(given: &Given, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, Failure> {
    let name = given.argument(0);
    let Some(plugin) = registry::find(name) else {
        let near = did_you_mean(name, registry::names().into_iter());
        return Err(Failure::Usage(format!("no plugin {name:?}{near}")));
    };
    Ok(cni_plugins::registry::serve(plugin, out, err))
}

#[cfg(test)]
mod tests {
    use slipway_cli::checks;

    use super::*;

    #[test]
    fn json_is_as_documented() {
        checks::assert_documented("slipway plugins", &[document()]);
        let mut out = Vec::new();
        json::print(document(), &mut out).unwrap();
        let printed: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(printed["schema"], 1);
    }
}
