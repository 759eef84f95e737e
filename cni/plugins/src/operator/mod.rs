//! What `slipway` does when it is called by its own name: the commands of whoever runs the node.
//!
//! Each command is one row of [`COMMANDS`]: dispatch and help come from it.

pub mod check_node;
pub mod cnitool;
pub mod explain;
mod filter;
pub mod flows;
pub mod install;
pub mod migrate;
pub mod node;
pub mod ports;
pub mod restore;
pub mod support_bundle;
mod table;

use std::io::{self, Write};

use crate::ipam::dhcp::daemon;
use crate::registry;

/// A command's code: arguments after its name, standard output, standard error. Gives the exit
/// code: 0 for success, 1 for a failure, 2 for wrong arguments.
pub type Run = fn(&[String], &mut dyn Write, &mut dyn Write) -> u8;

/// The exit code of a command that has said what it had to; 1 if it could not: nobody read it, so that the work
/// counts as failed.
pub(crate) fn said(written: io::Result<()>, code: u8) -> u8 {
    written.map_or(1, |()| code)
}

/// One command of `slipway`.
#[derive(Debug)]
pub struct Command {
    /// What it is called by.
    pub name: &'static str,
    /// One line for the list of commands.
    pub summary: &'static str,
    /// Its arguments, as `--to DIR [--replace]`.
    pub usage: &'static str,
    /// Its code.
    pub run: Run,
}

/// All commands, in the order of the help text.
pub static COMMANDS: &[Command] = &[
    Command {
        name: "ports",
        summary: "list the published ports, their owners and connections",
        usage: ports::USAGE,
        run: ports::ports_command,
    },
    Command {
        name: "flows",
        summary: "list the conversations that the programs of the eBPF backend know, and who serves them",
        usage: flows::USAGE,
        run: flows::flows_command,
    },
    Command {
        name: "check-node",
        summary: "say what this kernel and this host can do, what is missing and what is in the way",
        usage: check_node::USAGE,
        run: check_node::check_node_command,
    },
    Command {
        name: "node",
        summary: "load and attach the programs of the eBPF backend, look at them, take them away",
        usage: node::USAGE,
        run: node::node_command,
    },
    Command {
        name: "explain",
        summary: "say step by step what happens to a packet for one of the node's ports, and why",
        usage: explain::USAGE,
        run: explain::explain_command,
    },
    Command {
        name: "restore",
        summary: "put back what living containers have in the ruleset, after somebody flushed it",
        usage: restore::USAGE,
        run: restore::restore_command,
    },
    Command {
        name: "migrate",
        summary: "move what running containers have in the ruleset from one backend to another",
        usage: migrate::USAGE,
        run: migrate::migrate_command,
    },
    Command {
        name: "support-bundle",
        summary: "collect what a report of a bug needs into one tar file",
        usage: support_bundle::USAGE,
        run: support_bundle::support_bundle_command,
    },
    Command {
        name: "install",
        summary: "put this binary and a link per plugin into a plugin directory",
        usage: "[--to DIR] [--replace] [--dry-run]",
        run: |args, out, err| install::install_command(args, &registry::links(), out, err),
    },
    Command {
        name: "uninstall",
        summary: "take them away again with all that they left, and put back what was replaced",
        usage: "[--to DIR] [--data-dir DIR] [--keep-state | --force] [--dry-run]",
        run: install::uninstall_command,
    },
    Command {
        name: "dhcp",
        summary: "keep the leases of containers that have addresses from DHCP servers",
        usage: daemon::USAGE,
        run: daemon::dhcp_command,
    },
    Command {
        name: cnitool::NAME,
        summary: "attach a network namespace to a network by hand, as a runtime would",
        usage: cnitool::USAGE,
        run: cnitool::cnitool_command,
    },
    Command {
        name: "plugins",
        summary: "list the plugins of this binary and the versions they speak",
        usage: "[--names]",
        run: plugins,
    },
    Command {
        name: "plugin",
        summary: "answer as the plugin of that name, without a link of its name",
        usage: "NAME",
        run: plugin,
    },
    Command { name: "version", summary: "print the version", usage: "", run: version },
    Command { name: "help", summary: "print this, or a command's usage", usage: "[COMMAND]", run: help },
];

/// Runs `slipway ARGS`.
pub fn run(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let Some((name, rest)) = args.split_first() else {
        return help(&[], out, err);
    };
    let name = match name.as_str() {
        "-h" | "--help" => "help",
        "-V" | "--version" => "version",
        name => name,
    };
    let Some(command) = find(name) else {
        return said(writeln!(err, "slipway: no command {name:?}; `slipway help` lists the commands"), 2);
    };
    if rest.iter().any(|arg| arg == "-h" || arg == "--help") {
        return said(usage(command, out), 0);
    }
    (command.run)(rest, out, err)
}

fn find(name: &str) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name == name)
}

fn usage(command: &Command, out: &mut dyn Write) -> io::Result<()> {
    let line = format!("usage: slipway {} {}", command.name, command.usage);
    writeln!(out, "{}\n\n{}", line.trim_end(), command.summary)
}

fn help(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    if let Some(name) = args.first() {
        return match find(name) {
            Some(command) => said(usage(command, out), 0),
            None => said(writeln!(err, "slipway: no command {name:?}"), 2),
        };
    }
    said(overview(out), 0)
}

fn overview(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "slipway {}: CNI plugins for nodes with many containers", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "\nusage: slipway COMMAND [ARGUMENTS]\n")?;
    let width = COMMANDS.iter().map(|command| command.name.len()).max().unwrap_or(0);
    for command in COMMANDS {
        writeln!(out, "  {:width$}  {}", command.name, command.summary)?;
    }
    writeln!(
        out,
        "\nCalled by the name of a plugin it answers as that plugin: {}.",
        registry::names().join(", ")
    )?;
    writeln!(out, "SLIPWAY_LOG=debug makes plugins and commands write each step to standard error.")
}

fn version(_args: &[String], out: &mut dyn Write, _err: &mut dyn Write) -> u8 {
    said(writeln!(out, "slipway {}", env!("CARGO_PKG_VERSION")), 0)
}

fn plugins(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let columns = match args {
        [] => Columns::All,
        [one] if one == "--names" => Columns::Name,
        [other, ..] => return said(writeln!(err, "slipway plugins: unknown argument {other:?}"), 2),
    };
    said(list_plugins(columns, out), 0)
}

/// What `slipway plugins` shows of each.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Columns {
    Name,
    All,
}

fn list_plugins(columns: Columns, out: &mut dyn Write) -> io::Result<()> {
    let width = registry::names().iter().map(|name| name.len()).max().unwrap_or(0);
    for plugin in registry::PLUGINS {
        if columns == Columns::Name {
            writeln!(out, "{}", plugin.name())?;
            continue;
        }
        let versions = plugin.versions();
        let range = match (versions.first(), versions.last()) {
            (Some(first), Some(last)) => format!("{first} to {last}"),
            _ => "no version".to_owned(),
        };
        writeln!(out, "{:width$}  {range}  {}", plugin.name(), plugin.summary())?;
    }
    Ok(())
}

fn plugin(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let [name] = args else {
        return said(writeln!(err, "slipway plugin: one argument is needed, the plugin's name"), 2);
    };
    let Some(plugin) = registry::find(name) else {
        let names = registry::names().join(", ");
        return said(writeln!(err, "slipway plugin: no plugin {name:?}, there are {names}"), 2);
    };
    registry::serve(plugin, out, err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slipway(args: &[&str]) -> (u8, String, String) {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(&args, &mut out, &mut err);
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn every_command_is_in_the_help_and_has_a_usage() {
        let (code, out, err) = slipway(&["help"]);
        assert_eq!((code, err.as_str()), (0, ""));
        for command in COMMANDS {
            assert!(out.contains(command.summary), "{}", command.name);
            let want = format!("usage: slipway {} {}", command.name, command.usage);
            for args in [["help", command.name], [command.name, "--help"]] {
                let (code, out, _) = slipway(&args);
                assert_eq!((code, out.lines().next()), (0, Some(want.trim_end())), "{args:?}");
            }
        }
        assert_eq!(slipway(&[]).1, out);
        assert_eq!(slipway(&["-h"]).1, out);
    }

    #[test]
    fn wrong_arguments_are_named() {
        for args in
            [&["nonsense"][..], &["help", "nonsense"], &["plugins", "nonsense"], &["plugin", "nonsense"]]
        {
            let (code, out, err) = slipway(args);
            assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
            assert!(err.contains("\"nonsense\""), "{err}");
        }
    }

    #[test]
    fn plugins_are_listed() {
        let (code, out, _) = slipway(&["plugins", "--names"]);
        assert_eq!((code, out.lines().collect::<Vec<_>>()), (0, registry::names()));
        assert!(slipway(&["plugins"]).1.contains("loopback"));
        assert_eq!(slipway(&["--version"]).1, format!("slipway {}\n", env!("CARGO_PKG_VERSION")));
    }
}
