// SPDX-License-Identifier: GPL-2.0-or-later

//! Recognises a command of the other program, for the error message about an unknown command.

/// The commands of each program, except those that both have. A test of each program compares the list with its own
/// commands.
const COMMANDS: [(&str, &[&str]); 2] = [
    (
        "slipway",
        &[
            "ports",
            "check-node",
            "node",
            "explain",
            "trace",
            "connectivity-test",
            "restore",
            "detach",
            "migrate",
            "support-bundle",
            "install",
            "uninstall",
            "dhcp",
            "cnitool",
            "plugins",
            "plugin",
        ],
    ),
    ("slipwayd", &["run", "render", "status", "top", "pod", "networks"]),
];

/// The commands of a program, for that program's test.
#[cfg(any(test, feature = "checks"))]
pub(crate) fn commands(program: &str) -> Option<&'static [&'static str]> {
    COMMANDS.into_iter().find(|(name, _)| *name == program).map(|(_, commands)| commands)
}

/// The program that has this command, if `program` does not have it.
pub(crate) fn program_with(command: &str, program: &str) -> Option<&'static str> {
    COMMANDS
        .into_iter()
        .find(|(name, commands)| *name != program && commands.contains(&command))
        .map(|(name, _)| name)
}
