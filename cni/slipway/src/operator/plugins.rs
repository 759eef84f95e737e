// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway plugins` and `plugin`: this binary itself.

use std::io::{self, Write};

use clap::builder::PossibleValuesParser;
use cni_plugins::registry;
use cni_state::documents::{PluginVersions, Plugins};
use slipway_cli::json;
use slipway_cli::{Failure, Output};

/// List the plugins of this binary and the versions that they speak
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  slipway plugins
  slipway plugins --names
  slipway plugins --output json")]
pub(super) struct ListArgs {
    /// Print the names only
    #[arg(long)]
    names: bool,
    #[command(flatten)]
    output: Output,
}

/// Run a plugin by its name, without a link
///
/// The request is in the environment and on standard input, as the CNI specification defines them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  1  the plugin failed; the error is on standard output

Examples:
  CNI_COMMAND=VERSION slipway plugin bridge")]
pub(super) struct ServeArgs {
    /// The plugin's name
    #[arg(value_name = "PLUGIN", value_parser = PossibleValuesParser::new(registry::names()))]
    name: String,
}

/// Lists the plugins.
pub(super) fn list(args: &ListArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    if args.output.json() {
        json::print(document(), out)?;
    } else if args.names {
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
pub(super) fn document() -> Plugins {
    let row = |plugin: &&dyn cni_plugins::plugin::Plugin| {
        let versions = plugin.versions().iter().map(ToString::to_string).collect();
        PluginVersions { name: plugin.name().to_owned(), versions, summary: plugin.summary().to_owned() }
    };
    Plugins { plugins: registry::PLUGINS.iter().map(row).collect() }
}

/// Runs a plugin by its name.
pub(super) fn serve(args: &ServeArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, Failure> {
    let plugin = registry::find(&args.name.to_lowercase());
    let plugin = plugin.ok_or_else(|| Failure::usage(format!("no plugin {:?}", args.name)))?;
    Ok(registry::serve(plugin, out, err))
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
        assert_eq!(cni_state::documents::parse::<Plugins>(&out).unwrap(), document());
    }
}
