// SPDX-License-Identifier: GPL-2.0-or-later

//! Completions of bash, zsh and fish.

use std::fmt::Write as _;
use std::io::Write;

use super::cli::{Command, Failure, Given, Opt, Value};
use super::commands;
use super::manual::MARK;
use crate::registry;

/// A shell, and its completions.
#[derive(Debug)]
pub(super) struct Shell {
    pub(super) name: &'static str,
    /// The file below a share directory that the shell reads when it needs it.
    pub(super) file: &'static str,
    script: fn() -> String,
}

impl Shell {
    /// Its completions as a script.
    pub(super) fn script(&self) -> String {
        (self.script)()
    }
}

pub(super) const SHELLS: [Shell; 3] = [
    Shell { name: "bash", file: "bash-completion/completions/slipway", script: bash },
    Shell { name: "zsh", file: "zsh/site-functions/_slipway", script: zsh },
    Shell { name: "fish", file: "fish/vendor_completions.d/slipway.fish", script: fish },
];

/// Prints the completions of a shell.
pub(super) fn run(given: &Given, out: &mut dyn Write, _err: &mut dyn Write) -> Result<u8, Failure> {
    let shell = SHELLS.iter().find(|shell| shell.name == given.argument(0));
    let shell = shell.ok_or_else(|| Failure::Usage(format!("no shell {:?}", given.argument(0))))?;
    out.write_all(shell.script().as_bytes())?;
    Ok(0)
}

/// The words that a value can be, as far as this binary knows them.
fn words(value: Value) -> Vec<&'static str> {
    match value {
        Value::Text("COMMAND") => commands::shown().map(|command| command.name).collect(),
        Value::Text("PLUGIN") => registry::names(),
        value => value.words().to_vec(),
    }
}

/// The words for the arguments of a command.
fn argument_words(command: &Command) -> Vec<&'static str> {
    command.shown_arguments().flat_map(|argument| words(argument.value)).collect()
}

/// Each spelling of an option that is shown.
fn spellings(option: &Opt) -> Vec<String> {
    option.short.map(|letter| format!("-{letter}")).into_iter().chain([option.name.to_owned()]).collect()
}

// Writing to a String cannot fail: each `_written` below is of that.

fn bash() -> String {
    let names: Vec<&str> = commands::shown().map(|command| command.name).collect();
    let mut text = format!(
        r#"# bash completion for slipway. {MARK}
_slipway() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} words=
    COMPREPLY=()
    # bash splits --option=value into three words.
    if [[ $cur == = ]]; then
        cur=
    elif [[ $prev == = ]]; then
        prev=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    if (( COMP_CWORD == 1 )); then
        COMPREPLY=($(compgen -W "{} --help --version" -- "$cur"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
"#,
        names.join(" ")
    );
    for command in commands::shown() {
        let _written = writeln!(text, "        {})\n            case $prev in", command.name);
        for option in command.options {
            let Some(value) = option.value else { continue };
            let reply = match value {
                Value::File => "COMPREPLY=($(compgen -f -- \"$cur\")); return".to_owned(),
                Value::Directory => "COMPREPLY=($(compgen -d -- \"$cur\")); return".to_owned(),
                value if words(value).is_empty() => "return".to_owned(),
                value => {
                    format!("COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")); return", words(value).join(" "))
                }
            };
            let _written = writeln!(text, "                {}) {reply} ;;", spellings(option).join("|"));
        }
        let options = command.options.iter().map(|option| option.name).chain(["--help"]);
        let words: Vec<&str> = argument_words(command).into_iter().chain(options).collect();
        let _written =
            writeln!(text, "            esac\n            words=\"{}\"\n            ;;", words.join(" "));
    }
    text.push_str(
        "    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -o filenames -F _slipway slipway\n",
    );
    text
}

/// A text in the single quotes of a shell, with what `_arguments` of zsh would read left out.
fn quoted(text: &str) -> String {
    text.replace('\'', "'\\''").replace('[', "(").replace(']', ")").replace(':', "\\:")
}

fn zsh() -> String {
    let mut text =
        format!("#compdef slipway\n# {MARK}\n_slipway() {{\n    local -a commands\n    commands=(\n");
    for command in commands::shown() {
        let _written = writeln!(text, "        '{}:{}'", command.name, quoted(command.summary));
    }
    text.push_str(
        "    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n    \
         local name=${words[2]}\n    shift words\n    (( CURRENT-- ))\n    case $name in\n",
    );
    for command in commands::shown() {
        let _written = write!(text, "        {})\n            _arguments", command.name);
        let action = |value: Value| match value {
            Value::File => "_files".to_owned(),
            Value::Directory => "_files -/".to_owned(),
            value if words(value).is_empty() => String::new(),
            value => format!("({})", words(value).join(" ")),
        };
        for option in command.options {
            let value = option.value.map(|value| format!(":{}:{}", quoted(&value.shown()), action(value)));
            let value = value.unwrap_or_default();
            for spelling in spellings(option) {
                let equals = if option.value.is_some() && spelling.starts_with("--") { "=" } else { "" };
                let many = if option.many { "*" } else { "" };
                let _written = write!(
                    text,
                    " \\\n                '{many}{spelling}{equals}[{}]{value}'",
                    quoted(option.help)
                );
            }
        }
        let _written = write!(text, " \\\n                '--help[print the help]'");
        for (number, argument) in command.shown_arguments().enumerate() {
            let _written = write!(
                text,
                " \\\n                '{}:{}:{}'",
                number + 1,
                quoted(argument.help),
                action(argument.value)
            );
        }
        text.push_str("\n            ;;\n");
    }
    text.push_str("    esac\n}\n_slipway \"$@\"\n");
    text
}

fn fish() -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('\'', "\\'");
    let mut text = format!("# fish completion for slipway. {MARK}\ncomplete -c slipway -f\n");
    for command in commands::shown() {
        let (name, summary) = (command.name, quoted(command.summary));
        let _written =
            writeln!(text, "complete -c slipway -n __fish_use_subcommand -a {name} -d '{summary}'");
        let of = format!("complete -c slipway -n '__fish_seen_subcommand_from {name}'");
        let arguments = argument_words(command);
        if !arguments.is_empty() {
            let _written = writeln!(text, "{of} -a '{}'", arguments.join(" "));
        }
        for option in command.options {
            let name = match option.name.strip_prefix("--") {
                Some(long) => format!("-l {long}"),
                // A long option with one dash.
                None => format!("-o {}", option.name.trim_start_matches('-')),
            };
            let short = option.short.map(|letter| format!(" -s {letter}")).unwrap_or_default();
            let value = match option.value {
                None => String::new(),
                Some(Value::File) => " -r -F".to_owned(),
                Some(Value::Directory) => " -x -a '(__fish_complete_directories)'".to_owned(),
                Some(value) if words(value).is_empty() => " -x".to_owned(),
                Some(value) => format!(" -x -a '{}'", words(value).join(" ")),
            };
            let _written = writeln!(text, "{of} {name}{short}{value} -d '{}'", quoted(option.help));
        }
        let _written = writeln!(text, "{of} -l help -s h -d 'print the help'");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use super::*;

    #[test]
    fn each_command_and_each_option_is_completed() {
        for shell in &SHELLS {
            let script = shell.script();
            assert!(script.lines().take(2).any(|line| line.contains(MARK)), "{}", shell.name);
            for command in commands::shown() {
                assert!(script.contains(command.name), "{} {}", shell.name, command.name);
                for option in command.options {
                    let wanted = match (shell.name, option.name.strip_prefix("--")) {
                        ("fish", Some(long)) => format!("from {}' -l {long}", command.name),
                        ("fish", None) => format!("from {}' -o {}", command.name, &option.name[1..]),
                        _ => option.name.to_owned(),
                    };
                    assert!(script.contains(&wanted), "{} {wanted}", shell.name);
                    for word in option.value.map(words).unwrap_or_default() {
                        assert!(script.contains(word), "{} {wanted} {word}", shell.name);
                    }
                }
            }
            for hidden in [" manual)", "'manual:", "from manual'"] {
                assert!(!script.contains(hidden), "{}: a hidden command", shell.name);
            }
        }
    }

    /// Each shell that there is finds no mistake.
    #[test]
    fn the_shells_read_the_scripts() {
        let dir = tempfile::tempdir().unwrap();
        for shell in &SHELLS {
            let file = dir.path().join(shell.name);
            std::fs::write(&file, shell.script()).unwrap();
            let Ok(output) = Process::new(shell.name).arg("-n").arg(&file).output() else { continue };
            assert!(output.status.success(), "{}: {}", shell.name, String::from_utf8_lossy(&output.stderr));
        }
    }

    #[test]
    fn bash_completes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("slipway");
        std::fs::write(&file, bash()).unwrap();
        for (line, want) in [
            ("slipway po", "ports"),
            ("slipway ports --ou", "--output"),
            ("slipway ports --output j", "json"),
            ("slipway ports --output = j", "json"),
            ("slipway node te", "teardown"),
            ("slipway help supp", "support-bundle"),
            ("slipway plugin host-l", "host-local"),
            ("slipway migrate --from ref", "reference"),
        ] {
            let words = line.split(' ').count();
            let script = format!(
                "source {}; COMP_WORDS=({line}); COMP_CWORD={}; _slipway; echo \"${{COMPREPLY[*]}}\"",
                file.display(),
                words - 1
            );
            let Ok(output) = Process::new("bash").args(["-c", &script]).output() else { return };
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), want, "{line}");
        }
    }
}
