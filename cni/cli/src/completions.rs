// SPDX-License-Identifier: GPL-2.0-or-later

//! Completions of bash, zsh and fish, by clap_complete.

use clap::Command;

use crate::manual::mark;

/// The shells with completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// The completions of a shell as a script. Hidden commands are not completed.
pub(crate) fn script(shell: Shell, program: &Command) -> String {
    let (mut program, mut text) = (shown(program), Vec::new());
    let name = program.get_name().to_owned();
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    clap_complete::generate(shell, &mut program, &name, &mut text);
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if shell == clap_complete::Shell::Fish {
        // clap_complete offers the commands after `help` until one of them was typed. It counts `help` itself as one of
        // them, so it would never offer any.
        let seen = "using_subcommand help; and not __fish_seen_subcommand_from";
        let lines = text.lines().map(|line| match line.contains(seen) {
            true => format!("{}\n", line.replacen(" help\" -f", "\" -f", 1)),
            false => format!("{line}\n"),
        });
        text = lines.collect();
    }
    // zsh wants its #compdef in the first line.
    let (first, rest) = match text.split_once('\n') {
        Some((first, rest)) if first.starts_with('#') => (format!("{first}\n"), rest),
        _ => (String::new(), &*text),
    };
    format!("{first}# {}\n{rest}", mark(&name))
}

/// The command without hidden ones below it, which clap_complete would complete.
fn shown(command: &Command) -> Command {
    let about = command.get_about().cloned().unwrap_or_default();
    let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set()).map(shown);
    let copy = Command::new(command.get_name().to_owned())
        .about(about)
        .args(command.get_arguments())
        .subcommands(subcommands);
    match command.get_version() {
        Some(version) => copy.version(version.to_owned()),
        None => copy,
    }
}

/// The file below a share directory that a shell reads when it needs it.
pub(crate) fn script_path(shell: Shell, program: &str) -> String {
    match shell {
        Shell::Bash => format!("bash-completion/completions/{program}"),
        Shell::Zsh => format!("zsh/site-functions/_{program}"),
        Shell::Fish => format!("fish/vendor_completions.d/{program}.fish"),
    }
}
