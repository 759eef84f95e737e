// SPDX-License-Identifier: GPL-2.0-or-later

//! A program with commands of one word and of two.

use std::process::Command as Process;

use serde_json::Value as Json;

use crate::completions::SHELLS;
use crate::table::{Argument, Command, OUTPUT, Opt, Program, Reader, Value};
use crate::{Code, Failure, checks, help, run};

const FROM: Value = Value::OneOf(&["here", "there"]);

static TRY: Program = Program {
    name: "try",
    version: "1.2.3",
    summary: "a program for tests",
    about: || "It does nothing.".to_owned(),
    commands: &[
        Command {
            name: "pod up",
            summary: "attach a pod",
            about: "",
            arguments: &[Argument::new(Value::Text("NAME"), "the pod")],
            options: &[
                Opt::value("--from", FROM, "its place").many(),
                Opt::value("--dir", Value::Directory, "its directory"),
                OUTPUT,
            ],
            exit_codes: &[(1, "nothing was attached"), (3, "it waits")],
            examples: &[("try pod up web --from here --dir /a --output json", "a pod")],
            reader: Reader::Table,
        },
        Command {
            name: "pod down",
            summary: "detach a pod",
            about: "Removes what is there.",
            arguments: &[],
            options: &[Opt::switch("--all", "all pods")],
            exit_codes: &[],
            examples: &[("try pod down --all", "all")],
            reader: Reader::Table,
        },
        Command {
            name: "networks",
            summary: "list the networks",
            about: "",
            arguments: &[Argument::new(Value::Text("PLUGIN"), "only those of it").optional()],
            options: &[],
            exit_codes: &[],
            examples: &[("try networks", "all")],
            reader: Reader::Table,
        },
        crate::completions("", &[("try completions bash", "of bash")]),
        crate::manual(&[("try manual /usr/share --remove", "remove them")]),
        crate::version(&[("try version --output json", "for a program")]),
        crate::help(&[("try help pod up", "of one command")]),
    ],
    environment: &[("TRY_LOG", "the level of the log")],
    files: &[("/etc/try", "its settings")],
    words: |name| if name == "PLUGIN" { vec!["bridge", "ptp"] } else { Vec::new() },
};

fn code(name: &str) -> Option<Code> {
    Some(match name {
        "pod up" => |given, out, _| {
            writeln!(out, "{} {:?}", given.argument(0), given.options().collect::<Vec<_>>())?;
            Ok(3)
        },
        "pod down" => |_, _, _| Err(Failure::Failed("no pod".to_owned())),
        "networks" => |_, _, _| Ok(0),
        _ => return None,
    })
}

fn tried(line: &str) -> (u8, String, String) {
    let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run(&TRY, code, &args, &mut out, &mut err);
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[test]
fn help_manual_and_completions_have_everything() {
    checks::assert_complete(&TRY);
}

#[test]
fn commands_have_one_word_or_two() {
    let (code, out, err) = tried("pod up web --from there --dir /x --from=here");
    assert_eq!((code, err.as_str()), (3, ""));
    assert_eq!(out, "web [(\"--from\", \"there\"), (\"--dir\", \"/x\"), (\"--from\", \"here\")]\n");
    assert_eq!(tried("pod down"), (1, String::new(), "try pod down: no pod\n".to_owned()));
    assert_eq!(tried("networks").0, 0);
    assert_eq!(tried("--version"), (0, "try 1.2.3\n".to_owned(), String::new()));
    let mut version: Json = serde_json::from_str(&tried("version -o json").1).unwrap();
    assert_eq!(version.as_object_mut().unwrap().remove("schema"), Some(1.into()));
    checks::assert_documented("slipway version", &[version]);
}

#[test]
fn help_is_found_by_the_words_of_a_command() {
    for line in ["", "help", "--help", "-h", "pod", "pod --help", "help pod"] {
        let (code, out, err) = tried(line);
        assert!(code == 0 && out.starts_with("try 1.2.3: a program for tests\n") && err.is_empty(), "{line}");
    }
    let (_, help, _) = tried("help pod up");
    assert!(help.starts_with("try pod up: attach a pod\n\nusage: try pod up NAME "), "{help}");
    assert_eq!(tried("pod up --help").1, help);
    let codes: Vec<u8> = help::exit_codes(TRY.find("pod up").unwrap()).map(|(code, _)| code).collect();
    assert_eq!(codes, [0, 1, 2, 3]);
}

#[test]
fn unknown_commands_are_named_with_a_near_one() {
    for (line, want) in [
        (
            "pod ups --all",
            "try: unknown command \"pod ups\": did you mean pod up?\n`try help` lists the commands\n",
        ),
        ("network", "try: unknown command \"network\": did you mean networks?\n"),
        ("--all pod", "try: unknown command \"--all\"\n"),
        ("help pod upp", "try help: unknown command \"pod upp\": did you mean pod up?\n"),
        ("pod up", "try pod up: NAME is missing: the pod\n`try pod up --help` explains the arguments\n"),
    ] {
        let (code, out, err) = tried(line);
        assert!(code == 2 && out.is_empty() && err.starts_with(want), "{line}: {err}");
    }
}

#[test]
fn bash_completes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("try");
    std::fs::write(&file, SHELLS[0].script(&TRY)).unwrap();
    for (line, want) in [
        ("try po", "pod"),
        ("try pod u", "up"),
        ("try pod up --fr", "--from"),
        ("try pod up --from th", "there"),
        ("try pod up --from = th", "there"),
        ("try networks pt", "ptp"),
        ("try help net", "networks"),
        ("try completions f", "fish"),
    ] {
        let words = line.split(' ').count();
        let script = format!(
            "source {}; COMP_WORDS=({line}); COMP_CWORD={}; _try; echo \"${{COMPREPLY[*]}}\"",
            file.display(),
            words - 1
        );
        let Ok(output) = Process::new("bash").args(["-c", &script]).output() else { return };
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), want, "{line}");
    }
}

#[test]
fn the_files_are_written_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let share = dir.path().join("share");
    let (code, out, err) = tried(&format!("manual {}", share.display()));
    assert_eq!((code, err.as_str()), (0, ""));
    for file in ["man/man8/try.8", "man/man8/try-pod-up.8", "zsh/site-functions/_try"] {
        assert!(share.join(file).is_file() && out.contains(file), "{file}: {out}");
    }
    // A page of a program whose name begins like this one's.
    let other = share.join("man/man8/trying.8");
    std::fs::copy(share.join("man/man8/try.8"), &other).unwrap();
    assert_eq!(tried(&format!("manual {} --remove", share.display())).0, 0);
    assert!(other.is_file());
    std::fs::remove_file(other).unwrap();
    std::fs::remove_dir_all(share.join("man")).unwrap();
    assert_eq!(std::fs::read_dir(&share).unwrap().count(), 0, "empty directories are removed");
}
