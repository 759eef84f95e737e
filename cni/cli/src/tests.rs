// SPDX-License-Identifier: GPL-2.0-or-later

//! A test program that is built with this crate.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command as Process;

use expect_test::expect;
use serde_json::Value as Json;

use crate::completions::{Shell, script};
use crate::program::command;
use crate::{Failure, Output, Own, UnlessClosed, checks, number, run};

/// A program for tests
#[derive(Debug, clap::Parser)]
#[command(name = "try", version = "1.2.3")]
struct Try {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Attach and detach pods
    #[command(subcommand)]
    Pod(Pod),
    Networks(Networks),
    #[command(flatten)]
    Own(Own),
}

#[derive(Debug, clap::Subcommand)]
enum Pod {
    Up(Up),
    /// Detach a pod
    Down,
}

/// Attach a pod
///
/// With its networks.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes:\n  3  it ran\n\nExamples:\n  try pod up web --from there")]
struct Up {
    /// The pod
    name: String,
    /// Where it comes from
    #[arg(long, value_parser = ["here", "there"])]
    from: Vec<String>,
    /// Its size
    #[arg(long, default_value_t = 4, value_parser = number(1..=9_u8))]
    size: u8,
}

/// List networks
#[derive(Debug, clap::Args)]
struct Networks {
    /// Only this one
    #[arg(long)]
    name: Option<String>,
    /// The directory above them, which may be the root
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    output: Output,
}

fn tried(line: &str) -> (u8, String, String) {
    tried_words(&line.split_whitespace().collect::<Vec<_>>())
}

fn tried_words(words: &[&str]) -> (u8, String, String) {
    let args: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run::<Try>(&args, &mut out, &mut err, |cli, out, _| match cli.command {
        Command::Pod(Pod::Up(up)) => {
            writeln!(out, "{up:?}")?;
            Ok(3)
        }
        Command::Pod(Pod::Down) => Err(Failure::failed("no pod")),
        Command::Networks(networks) => Ok(writeln!(out, "{}", networks.output.json()).map(|()| 0)?),
        Command::Own(own) => own.run::<Try>(out),
    });
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[test]
fn help_manual_and_completions_are_complete() {
    checks::assert_complete::<Try>();
}

#[test]
fn commands_have_one_word_or_two() {
    let (code, out, err) = tried("pod up web --from there --size 5 --from=HERE --size 6");
    assert_eq!((code, err.as_str()), (3, ""));
    assert_eq!(out, "Up { name: \"web\", from: [\"there\", \"HERE\"], size: 6 }\n");
    assert_eq!(tried("pod down"), (1, String::new(), "try pod down: no pod\n".to_owned()));
    assert_eq!(tried("--version"), (0, "try 1.2.3\n".to_owned(), String::new()));
    let mut version: Json = serde_json::from_str(&tried("version -o json").1).unwrap();
    assert_eq!(version.as_object_mut().unwrap().remove("schema"), Some(1.into()));
    checks::assert_documented("slipway version", &[version]);
}

#[test]
fn output_has_several_spellings() {
    for line in ["--output json", "--output=json", "-o json", "-ojson", "--json", "-o text --output json"] {
        assert_eq!(tried(&format!("networks {line}")).1, "true\n", "{line}");
    }
    for line in ["", "--output table", "-o text"] {
        assert_eq!(tried(&format!("networks {line}")).1, "false\n", "{line}");
    }
}

#[test]
fn help_is_the_same_in_each_spelling() {
    let (code, overview, err) = tried("help");
    assert_eq!((code, err.as_str()), (0, ""));
    for line in ["", "--help", "-h"] {
        assert_eq!(tried(line).1, overview, "{line}");
    }
    let (code, pods, _) = tried("pod");
    assert!(code == 0 && tried("pod --help").1 == pods && pods.contains("Detach a pod"), "{pods}");
    let (_, help, _) = tried("help pod up");
    for line in ["pod up --help", "pod up -h", "pod up web --help"] {
        assert_eq!(tried(line).1, help, "{line}");
    }
    expect![[r#"
        Attach a pod

        With its networks.

        Usage: try pod up [OPTIONS] <NAME>

        Arguments:
          <NAME>  The pod

        Options:
              --from <FROM>  Where it comes from [possible values: here, there]
              --size <SIZE>  Its size [default: 4]
          -h, --help         Print help

        Exit codes:
          3  it ran

        Examples:
          try pod up web --from there
    "#]]
    .assert_eq(&help);
}

#[test]
fn a_lines_end_in_an_argument_does_not_end_the_line() {
    for (args, want) in [
        (&["--all\npod"][..], "try: unknown option --all\\npod (see `try --help`)\n"),
        (&["a\nb"], "try: unknown command \"a\\nb\" (see `try --help`)\n"),
        (&["pod", "up", "a", "--from", "a\nb"], "try pod up: --from must be here or there, not \"a\\nb\""),
    ] {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run::<Try>(&args, &mut out, &mut err, |_, _, _| Ok(0));
        let err = String::from_utf8(err).unwrap();
        assert!(code == 2 && err.starts_with(want) && err.lines().count() == 1, "{err:?}");
    }
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    for (line, want) in [
        ("pod ups --all", "try pod: unknown command \"ups\": did you mean up? (see `try pod --help`)"),
        ("network", "try: unknown command \"network\": did you mean networks? (see `try --help`)"),
        ("--all pod", "try: unknown option --all (see `try --help`)"),
        ("pod up", "try pod up: NAME is missing (see `try pod up --help`)"),
        ("pod up a b", "try pod up: unexpected argument \"b\" (see `try pod up --help`)"),
        (
            "pod up a --form b",
            "try pod up: unknown option --form: did you mean --from? (see `try pod up --help`)",
        ),
        ("pod up a --from", "try pod up: --from needs a value: here or there (see `try pod up --help`)"),
        (
            "pod up a --from hree",
            "try pod up: --from must be here or there, not \"hree\": did you mean here? (see `try pod up --help`)",
        ),
        (
            "pod up a --size 10",
            "try pod up: --size must be a number between 1 and 9, not \"10\" (see `try pod up --help`)",
        ),
        ("networks --json=yes", "try networks: --json takes no value \"yes\" (see `try networks --help`)"),
        (
            "pod up a --size -1",
            "try pod up: --size must be a number between 1 and 9, not \"-1\" (see `try pod up --help`)",
        ),
        ("networks --name", "try networks: --name needs a value (see `try networks --help`)"),
        ("networks -o", "try networks: --output needs a value: table or json (see `try networks --help`)"),
        ("networks --name=", "try networks: --name needs a value (see `try networks --help`)"),
        ("networks --name= --help=", "try networks: --help takes no value \"\" (see `try networks --help`)"),
        (
            "networks -o xml",
            "try networks: --output must be table or json, not \"xml\" (see `try networks --help`)",
        ),
    ] {
        let (code, out, err) = tried(line);
        assert_eq!((code, out.as_str(), err), (2, "", format!("{want}\n")), "{line}");
    }
}

#[test]
fn an_empty_word_is_no_value_unless_it_is_the_default() {
    for (words, code, want) in [
        (&["pod", "up", ""][..], 2, "try pod up: NAME needs a value (see `try pod up --help`)\n"),
        (&["networks", "--name", ""], 2, "try networks: --name needs a value (see `try networks --help`)\n"),
        (&["networks", "--prefix", "", "--name", "a"], 0, ""),
        (&["networks", "--prefix="], 0, ""),
    ] {
        let (found, _, err) = tried_words(words);
        assert_eq!((found, err.as_str()), (code, want), "{words:?}");
    }
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    for (words, want) in [
        (&["--a\x1b[2J\nb"][..], r"try: unknown option --a\u{1b}[2J\nb (see `try --help`)"),
        (&["a\nb"], r#"try: unknown command "a\nb" (see `try --help`)"#),
        (&["networks", "a\r"], r#"try networks: unexpected argument "a\r" (see `try networks --help`)"#),
    ] {
        let (code, out, err) = tried_words(words);
        assert_eq!((code, out.as_str(), err), (2, "", format!("{want}\n")), "{words:?}");
    }
}

#[test]
fn an_argument_that_is_not_utf_8_is_refused() {
    let utf8 = |words: [&'static [u8]; 2]| {
        let mut err = Vec::new();
        let args =
            crate::utf8("try", words.map(|word| OsStr::from_bytes(word).to_owned()).into_iter(), &mut err);
        (args, String::from_utf8(err).unwrap())
    };
    assert_eq!(utf8([b"pod", b"up"]), (Ok(vec!["pod".to_owned(), "up".to_owned()]), String::new()));
    let line = "try: the argument \"a\\xFF\" is not UTF-8 (see `try --help`)\n";
    assert_eq!(utf8([b"pod", b"a\xff"]), (Err(2), line.to_owned()));
}

/// An output that fails with this kind of error.
struct Failing(io::ErrorKind);

impl Write for Failing {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(self.0.into())
    }
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    for line in ["--help", "--version", "version", "completions bash"] {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let told = |reason| {
            let (mut out, mut err) = (Failing(reason), Vec::new());
            let code = run::<Try>(&args, &mut out, &mut err, |cli, out, _| match cli.command {
                Command::Own(own) => own.run::<Try>(out),
                other => panic!("{other:?}"),
            });
            (code, String::from_utf8(err).unwrap())
        };
        let (code, message) = told(io::ErrorKind::StorageFull);
        assert!(
            code == 1 && message.ends_with(": write the output: no storage space\n"),
            "{line}: {message}"
        );
        // `head` has read enough and has closed the pipe.
        assert_eq!(told(io::ErrorKind::BrokenPipe), (1, String::new()), "{line}");
    }
}

#[test]
fn manual_pages_have_the_sections_of_the_help() {
    let page = crate::manual::pages(&command::<Try>()).unwrap().remove(2);
    assert_eq!(page.name, "try-pod-up");
    for text in [
        ".SH \"EXIT CODES\"",
        ".SH EXAMPLES",
        "With its networks.",
        "\\-\\-size",
        "try pod up web \\-\\-from there",
    ] {
        assert!(page.text.contains(text), "{text}: {}", page.text);
    }
}

#[test]
fn bash_completes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("try");
    std::fs::write(&file, script(Shell::Bash, &command::<Try>())).unwrap();
    for (line, want) in [
        ("try po", "pod"),
        ("try pod u", "up"),
        ("try pod up --fr", "--from"),
        ("try pod up --from th", "there"),
        ("try help net", "networks"),
        ("try completions f", "fish"),
        ("try man", ""),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let [.., previous, last] = words.as_slice() else { panic!("{line}") };
        let script = format!(
            "source {}; COMP_WORDS=({line}); COMP_CWORD={}; _try try {last} {previous}; echo \"${{COMPREPLY[*]}}\"",
            file.display(),
            words.len() - 1
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
    // This page belongs to a program whose name only begins like this one's.
    let other = share.join("man/man8/trying.8");
    std::fs::copy(share.join("man/man8/try.8"), &other).unwrap();
    assert_eq!(tried(&format!("manual {} --remove", share.display())).0, 0);
    assert!(other.is_file());
    std::fs::remove_file(other).unwrap();
    std::fs::remove_dir_all(share.join("man")).unwrap();
    assert_eq!(std::fs::read_dir(&share).unwrap().count(), 0, "empty directories are removed");
}

#[test]
fn a_command_that_works_on_ignores_a_reader_that_goes() {
    let mut out = Failing(io::ErrorKind::BrokenPipe);
    let mut out = UnlessClosed::new(&mut out);
    for _ in 0..2 {
        writeln!(out, "a step").unwrap();
        out.flush().unwrap();
    }
    let mut kept = Vec::new();
    write!(UnlessClosed::new(&mut kept), "a step").unwrap();
    assert_eq!(kept, b"a step");
}
