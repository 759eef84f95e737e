// SPDX-License-Identifier: GPL-2.0-or-later

//! Completions of both programs, tested with the shells themselves.

use std::collections::BTreeSet;
use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::Command;

use slipway_tests::{quoted, skip, slipway, slipway_only, slipwayd};

/// Command lines, each with words that must complete its end and words that must not.
const LINES: [(&str, &[&str], &[&str]); 10] = [
    ("slipway po", &["ports"], &["plugins"]),
    ("slipway ports --", &["--network", "--container", "--output", "--help"], &["--to", "--sandbox"]),
    ("slipway ports --output ", &["table", "json"], &["--network"]),
    ("slipway migrate --to e", &["ebpf"], &["nftables"]),
    ("slipway help po", &["ports"], &["--output"]),
    ("slipwayd ", &["pod", "networks", "completions"], &["up", "manual"]),
    ("slipwayd pod ", &["up", "down", "status", "list", "gc"], &["networks", "pod"]),
    (
        "slipwayd pod up --",
        &["--sandbox", "--create-netns", "--network", "--port", "--pod-cidr", "--output", "--help"],
        &["--keep", "--watch"],
    ),
    ("slipwayd pod gc --", &["--keep", "--all"], &["--sandbox", "--watch"]),
    ("slipwayd pod up shop/web --hairpin-mode h", &["hairpin-veth"], &["none"]),
];

/// A shell of the machine, or one from an unpacked package.
struct Shell {
    program: PathBuf,
    /// The root directory with the shell's modules and functions.
    root: PathBuf,
    /// An empty directory, which serves as the home.
    dir: tempfile::TempDir,
}

impl Shell {
    /// Finds the shell below the directory that `SLIPWAY_SHELLS_DIR` names (`cargo xtask test` fetches it), or else on
    /// the machine.
    fn find(name: &str) -> Option<Self> {
        let fetched = std::env::var_os("SLIPWAY_SHELLS_DIR").map(PathBuf::from);
        let roots = fetched.into_iter().chain(["/".into()]);
        let programs = roots
            .flat_map(|root| ["bin", "usr/bin"].map(|folder| (root.join(folder).join(name), root.clone())));
        let (program, root) = programs.into_iter().find(|(program, _)| program.is_file())?;
        Some(Self { program, root, dir: tempfile::tempdir().expect("a directory") })
    }

    /// A call of the shell, without the user's settings.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("TERM", "dumb").env("HOME", self.dir.path());
        if self.root != Path::new("/") {
            command.env("LD_LIBRARY_PATH", self.root.join(format!("usr/lib/{ARCH}-linux-gnu")));
        }
        command
    }
}

/// The words that a shell printed, without their descriptions.
fn words(command: &mut Command) -> BTreeSet<String> {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "{command:?}: {err}");
    let words = out.lines().filter_map(|line| line.split('\t').next());
    words.map(str::to_owned).filter(|word| !word.is_empty()).collect()
}

/// Completes each of [`LINES`] with the files that the programs write.
fn complete(complete: impl Fn(&Path, &str) -> Command) {
    let share = tempfile::tempdir().expect("a directory");
    for program in [slipway(), slipwayd()] {
        let output = Command::new(&program).arg("manual").arg(share.path()).output();
        let output = output.unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    for (line, wanted, unwanted) in LINES {
        let found = words(&mut complete(share.path(), line));
        for word in wanted {
            assert!(found.contains(*word), "{line:?} is not completed by {word}: {found:?}");
        }
        for word in unwanted {
            assert!(!found.contains(*word), "{line:?} is completed by {word}: {found:?}");
        }
    }
}

fn program(line: &str) -> &str {
    line.split(' ').next().unwrap_or_default()
}

#[test]
fn bash_completes() {
    slipway_only!();
    let Some(bash) = Shell::find("bash") else { skip!("bash") };
    complete(|share, line| {
        let (name, words): (_, Vec<&str>) = (program(line), line.split(' ').collect());
        let last = words.len() - 1;
        // bash calls the function with the command, the word to complete, and the previous word.
        let script = format!(
            "source {}/bash-completion/completions/{name} || exit\nCOMP_WORDS=('{}')\nCOMP_CWORD={last}\n\
             _{name} {name} '{}' '{}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
            quoted(share),
            words.join("' '"),
            words[last],
            words[last - 1],
        );
        let mut command = bash.command();
        command.args(["--norc", "--noprofile", "-c", &script]);
        command
    });
}

#[test]
fn zsh_completes() {
    slipway_only!();
    let Some(zsh) = Shell::find("zsh") else { skip!("zsh") };
    let script = zsh.dir.path().join("capture.zsh");
    std::fs::write(&script, include_str!("capture.zsh")).expect("write the script");
    complete(|share, line| {
        let dir = zsh.dir.path().join(line.replace([' ', '/'], "_"));
        std::fs::create_dir(&dir).expect("create the directory");
        let mut command = zsh.command();
        command.arg("-f").args([&script, &zsh.program, &zsh.root]).arg(share).arg(dir).arg(line);
        command
    });
}

#[test]
fn fish_completes() {
    slipway_only!();
    let Some(fish) = Shell::find("fish") else { skip!("fish") };
    complete(|share, line| {
        // Completions call functions that fish loads from its own folder, which --no-config leaves out.
        let script = format!(
            "set -p fish_function_path {}; source {}/fish/vendor_completions.d/{}.fish; complete -C '{line}'",
            quoted(fish.root.join("usr/share/fish/functions")),
            quoted(share),
            program(line)
        );
        let mut command = fish.command();
        command.args(["--no-config", "--private", "-c", &script]);
        command
    });
}
