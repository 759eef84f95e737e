// SPDX-License-Identifier: GPL-2.0-or-later

//! The commands that every program has: their descriptions and code.

use std::io::Write;
use std::path::Path;

use serde_json::json;

use crate::completions::SHELLS;
use crate::read::{Failure, Given};
use crate::share::Plan;
use crate::table::{Argument, Command, OUTPUT, Opt, Program, Reader, Value};
use crate::{help as help_text, json as document};

/// Command lines with their meaning.
type Examples = &'static [(&'static str, &'static str)];

/// The switch of `manual` that removes the files.
const REMOVE: &str = "--remove";

const SHELL: &[Argument] = &[Argument::new(Value::OneOf(&["bash", "zsh", "fish"]), "the shell")];
const SHARE: &[Argument] = &[Argument::new(Value::Directory, "the directory, as /usr/share")];
const REMOVAL: &[Opt] = &[Opt::switch(REMOVE, "remove them from there")];
const OF_COMMAND: &[Argument] = &[
    Argument::new(Value::Text("COMMAND"), "the command").optional(),
    // The second word of a command with two.
    Argument::new(Value::Text("COMMAND"), "").hidden(),
];

/// The command `completions`.
#[must_use]
pub const fn completions(about: &'static str, examples: Examples) -> Command {
    Command {
        name: "completions",
        summary: "print the completions of a shell",
        about,
        arguments: SHELL,
        options: &[],
        exit_codes: &[],
        examples,
        reader: Reader::Table,
    }
}

/// The command `manual`, for packages.
#[must_use]
pub const fn manual(examples: Examples) -> Command {
    Command {
        name: "manual",
        summary: "write manual pages and completions below a directory",
        about: "",
        arguments: SHARE,
        options: REMOVAL,
        exit_codes: &[],
        examples,
        reader: Reader::Hidden,
    }
}

/// The command `version`.
#[must_use]
pub const fn version(examples: Examples) -> Command {
    Command {
        name: "version",
        summary: "print the version",
        about: "",
        arguments: &[],
        options: &[OUTPUT],
        exit_codes: &[],
        examples,
        reader: Reader::Table,
    }
}

/// The command `help`.
#[must_use]
pub const fn help(examples: Examples) -> Command {
    Command {
        name: "help",
        summary: "print this list, or the help of a command",
        about: "",
        arguments: OF_COMMAND,
        options: &[],
        exit_codes: &[],
        examples,
        reader: Reader::Table,
    }
}

/// The code of one of these commands.
pub(crate) type OwnCode = fn(&Program, &Given, &mut dyn Write) -> Result<u8, Failure>;

/// The code of the command of that name; none if it is another one.
pub(crate) fn code(name: &str) -> Option<OwnCode> {
    Some(match name {
        "completions" => print_completions,
        "manual" => write_manual,
        "version" => print_version,
        "help" => help_text::run,
        _ => return None,
    })
}

fn print_completions(program: &Program, given: &Given, out: &mut dyn Write) -> Result<u8, Failure> {
    let shell = SHELLS.iter().find(|shell| shell.name == given.argument(0));
    let shell = shell.ok_or_else(|| Failure::Usage(format!("no shell {:?}", given.argument(0))))?;
    out.write_all(shell.script(program).as_bytes())?;
    Ok(0)
}

fn write_manual(program: &Program, given: &Given, out: &mut dyn Write) -> Result<u8, Failure> {
    let directory = Path::new(given.argument(0));
    let plan = if given.has(REMOVE) {
        Plan::uninstall(program, Some(directory))
    } else {
        Plan::install(program, Some(directory), None)
    };
    let plan = plan.map_err(Failure::failed)?;
    plan.apply().map_err(Failure::failed)?;
    plan.report(out)?;
    Ok(0)
}

fn print_version(program: &Program, given: &Given, out: &mut dyn Write) -> Result<u8, Failure> {
    if given.json() {
        document::print(json!({ "version": program.version }), out)?;
    } else {
        writeln!(out, "{} {}", program.name, program.version)?;
    }
    Ok(0)
}
