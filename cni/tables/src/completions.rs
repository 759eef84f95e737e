// SPDX-License-Identifier: GPL-2.0-or-later

//! Completions of bash, zsh and fish.

use std::fmt::Write as _;

use crate::manual::mark;
use crate::table::{Command, Opt, Program, Value};

/// A shell, and its completions.
#[derive(Debug)]
pub(crate) struct Shell {
    pub(crate) name: &'static str,
    file: fn(&str) -> String,
    script: fn(&Program) -> String,
}

impl Shell {
    /// The file below a share directory that the shell reads when it needs it.
    pub(crate) fn file(&self, program: &Program) -> String {
        (self.file)(program.name)
    }

    /// Its completions as a script.
    pub(crate) fn script(&self, program: &Program) -> String {
        (self.script)(program)
    }
}

pub(crate) const SHELLS: [Shell; 3] = [
    Shell { name: "bash", file: |name| format!("bash-completion/completions/{name}"), script: bash },
    Shell { name: "zsh", file: |name| format!("zsh/site-functions/_{name}"), script: zsh },
    Shell { name: "fish", file: |name| format!("fish/vendor_completions.d/{name}.fish"), script: fish },
];

/// The words for the arguments of a command.
fn argument_words(program: &Program, command: &Command) -> Vec<&'static str> {
    command.shown_arguments().flat_map(|argument| program.words(argument.value)).collect()
}

/// Each spelling of an option that is shown.
fn spellings(option: &Opt) -> Vec<String> {
    option.short.map(|letter| format!("-{letter}")).into_iter().chain([option.name.to_owned()]).collect()
}

/// The second words of a group's commands.
fn second_words(program: &Program, group: &str) -> Vec<&'static str> {
    let pairs = program.shown().filter_map(Command::in_group);
    pairs.filter(|(first, _)| *first == group).map(|(_, second)| second).collect()
}

// Writing to a String cannot fail: each `_written` below is of that.

fn bash(program: &Program) -> String {
    let name = program.name;
    let mut text = format!(
        r#"# bash completion for {name}. {}
_{name}() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} words= command=${{COMP_WORDS[1]}}
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
"#,
        mark(program),
        program.first_words().join(" ")
    );
    for group in program.groups() {
        let _written = writeln!(
            text,
            "    if [[ $command == {group} ]]; then\n        if (( COMP_CWORD == 2 )); then\n            \
             COMPREPLY=($(compgen -W \"{}\" -- \"$cur\"))\n            return\n        fi\n        \
             command+=\" ${{COMP_WORDS[2]}}\"\n    fi",
            second_words(program, group).join(" ")
        );
    }
    text.push_str("    case $command in\n");
    for command in program.shown() {
        let _written = writeln!(text, "        \"{}\")\n            case $prev in", command.name);
        for option in command.options {
            let Some(value) = option.value else { continue };
            let reply = match value {
                Value::File => "COMPREPLY=($(compgen -f -- \"$cur\")); return".to_owned(),
                Value::Directory => "COMPREPLY=($(compgen -d -- \"$cur\")); return".to_owned(),
                value => match program.words(value) {
                    words if words.is_empty() => "return".to_owned(),
                    words => {
                        format!("COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")); return", words.join(" "))
                    }
                },
            };
            let _written = writeln!(text, "                {}) {reply} ;;", spellings(option).join("|"));
        }
        let options = command.options.iter().map(|option| option.name).chain(["--help"]);
        let words: Vec<&str> = argument_words(program, command).into_iter().chain(options).collect();
        let _written =
            writeln!(text, "            esac\n            words=\"{}\"\n            ;;", words.join(" "));
    }
    let _written = writeln!(
        text,
        "    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}}\ncomplete -o filenames -F _{name} {name}"
    );
    text
}

/// A text in the single quotes of a shell, with what `_arguments` of zsh would read left out.
fn quoted(text: &str) -> String {
    text.replace('\'', "'\\''").replace('[', "(").replace(']', ")").replace(':', "\\:")
}

fn zsh(program: &Program) -> String {
    let name = program.name;
    let mut text = format!(
        "#compdef {name}\n# {}\n_{name}() {{\n    local -a commands\n    commands=(\n",
        mark(program)
    );
    for word in program.first_words() {
        let summary = program
            .find(word)
            .map_or_else(|| second_words(program, word).join(", "), |command| command.summary.to_owned());
        let _written = writeln!(text, "        '{word}:{}'", quoted(&summary));
    }
    text.push_str(
        "    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n    \
         local name=${words[2]}\n    shift words\n    (( CURRENT-- ))\n",
    );
    for group in program.groups() {
        let _written = writeln!(text, "    if [[ $name == {group} ]]; then\n        commands=(");
        for command in program.shown() {
            if let Some((_, second)) = command.in_group().filter(|(first, _)| *first == group) {
                let _written = writeln!(text, "            '{second}:{}'", quoted(command.summary));
            }
        }
        text.push_str(
            "        )\n        if (( CURRENT == 2 )); then\n            _describe command commands\n            \
             return\n        fi\n        name+=\" ${words[2]}\"\n        shift words\n        (( CURRENT-- ))\n    fi\n",
        );
    }
    text.push_str("    case $name in\n");
    for command in program.shown() {
        let _written = write!(text, "        \"{}\")\n            _arguments", command.name);
        let action = |value: Value| match value {
            Value::File => "_files".to_owned(),
            Value::Directory => "_files -/".to_owned(),
            value => match program.words(value) {
                words if words.is_empty() => String::new(),
                words => format!("({})", words.join(" ")),
            },
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
    let _written = writeln!(text, "    esac\n}}\n_{name} \"$@\"");
    text
}

fn fish(program: &Program) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('\'', "\\'");
    let name = program.name;
    // True if its arguments are the first words behind the program's name.
    let function = format!("__{name}_command");
    let mut text = format!(
        "# fish completion for {name}. {}\nfunction {function}\n    set -l words (commandline -opc)\n    set -e \
         words[1]\n    set -l number (count $argv)\n    test (count $words) -ge $number; and test \
         \"$words[1..$number]\" = \"$argv\"\nend\ncomplete -c {name} -f\n",
        mark(program)
    );
    let first = format!("complete -c {name} -n 'test (count (commandline -opc)) -eq 1'");
    for command in program.shown() {
        let summary = quoted(command.summary);
        let _written = match command.in_group() {
            None => writeln!(text, "{first} -a {} -d '{summary}'", command.name),
            Some((group, second)) => writeln!(
                text,
                "complete -c {name} -n '{function} {group}; and test (count (commandline -opc)) -eq 2' -a {second} \
                 -d '{summary}'"
            ),
        };
        let of = format!("complete -c {name} -n '{function} {}'", command.name);
        let arguments = argument_words(program, command);
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
                Some(value) => match program.words(value) {
                    words if words.is_empty() => " -x".to_owned(),
                    words => format!(" -x -a '{}'", words.join(" ")),
                },
            };
            let _written = writeln!(text, "{of} {name}{short}{value} -d '{}'", quoted(option.help));
        }
        let _written = writeln!(text, "{of} -l help -s h -d 'print the help'");
    }
    for group in program.groups() {
        let second = second_words(program, group).join(", ");
        let _written = writeln!(text, "{first} -a {group} -d '{second}'");
    }
    text
}
