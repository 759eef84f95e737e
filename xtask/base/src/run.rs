// SPDX-License-Identifier: MIT OR Apache-2.0

//! Starting other programs.

use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{Error, Result};
use crate::workspace;

/// More folders of the system's tools: Debian leaves these out of a user's `PATH`.
const SYSTEM_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// The directories that programs are looked up in.
pub fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).chain(SYSTEM_DIRS.iter().map(PathBuf::from)).collect()
}

/// The file of a program, by its name.
pub fn which(program: &str) -> Option<PathBuf> {
    search_path().into_iter().map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// A command that also finds the administrator's tools, with messages in English.
pub fn tool(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(which(program).unwrap_or_else(|| PathBuf::from(program)));
    command.args(args).env("LC_ALL", "C.UTF-8");
    if let Ok(path) = env::join_paths(search_path()) {
        command.env("PATH", path);
    }
    command
}

/// The cargo that runs this task.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(workspace::root());
    if let Ok(path) = env::join_paths(search_path()) {
        command.env("PATH", path);
    }
    command
}

/// The command with a low priority. The network tests and the build for VMs run at the same time, and must get the
/// processors first.
pub fn yielding(command: &Command) -> Command {
    let mut yielding = tool("nice", &["-n", "10"]);
    yielding.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => yielding.env(name, value),
            None => yielding.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        yielding.current_dir(dir);
    }
    yielding
}

/// The command as one would type it.
pub fn line(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| quote(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{word}'") }
}

/// Runs to the end and returns standard output.
pub fn capture(command: &mut Command) -> Result<String> {
    capture_from(command, Stdio::null())
}

/// Like [`capture`], with its standard input from somewhere.
pub(crate) fn capture_from(command: &mut Command, input: Stdio) -> Result<String> {
    let output = command.stdin(input).output().map_err(|e| not_started(command, &e))?;
    succeeded(command, &output)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs to the end with `input` on standard input.
pub fn feed(command: &mut Command, input: &str) -> Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| not_started(command, &e))?;
    if let Some(mut stdin) = child.stdin.take() {
        // If a program does not read its input, the way in which it ends shows the reason.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|e| not_started(command, &e))?;
    succeeded(command, &output)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Like [`capture`], with standard error appended to a log.
pub fn capture_with(command: &mut Command, log: File) -> Result<String> {
    let output = command.stdin(Stdio::null()).stderr(log).output().map_err(|e| not_started(command, &e))?;
    succeeded(command, &Output { stdout: Vec::new(), ..output.clone() })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs to the end on this terminal.
pub fn show(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|e| not_started(command, &e))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Command { command: line(command), how: format!("ended with {status}"), output: String::new() })
}

/// Runs to the end with standard output and standard error appended to a log.
pub fn log(command: &mut Command, log: &File) -> Result<()> {
    let copy = || log.try_clone().map_err(|e| Error::system("duplicate the log's descriptor", e));
    command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
    show(command)
}

/// Like [`log`], and kills the command and its descendants if nothing was printed for as long as `silence`.
pub fn log_while_it_prints(command: &mut Command, log: &File, silence: Duration) -> Result<()> {
    let copy = || log.try_clone().map_err(|e| Error::system("duplicate the log's descriptor", e));
    command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
    let mut child = command.spawn().map_err(|e| not_started(command, &e))?;
    let (mut length, mut printed) = (0, Instant::now());
    loop {
        if let Some(status) = child.try_wait().map_err(|e| not_started(command, &e))? {
            if status.success() {
                return Ok(());
            }
            let how = format!("ended with {status}");
            return Err(Error::Command { command: line(command), how, output: String::new() });
        }
        let now = log.metadata().map_err(|e| Error::system("look at the log's length", e))?.len();
        if now != length {
            (length, printed) = (now, Instant::now());
        }
        if printed.elapsed() > silence {
            let output = kill_family(&mut child);
            let how = format!("printed nothing for {} minutes and was killed", silence.as_secs() / 60);
            return Err(Error::Command { command: line(command), how, output });
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Kills a process and its descendants, and lists them.
pub fn kill_family(child: &mut Child) -> String {
    let mut list = String::new();
    let mut family = vec![child.id()];
    let mut at = 0;
    while let Some(pid) = family.get(at).copied() {
        at += 1;
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        let short: String = words.chars().filter(|c| !c.is_control()).take(200).collect();
        list.push_str(&format!("{pid}: {short}\n"));
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            family.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    // Parents come first, so that they cannot report the ends of their children.
    for pid in family {
        // A process that has ended needs no signal.
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    // The process was killed, so its exit code does not matter.
    let _ = child.wait();
    list
}

fn not_started(command: &Command, e: &std::io::Error) -> Error {
    Error::Command {
        command: line(command),
        how: format!("could not be started: {e}"),
        output: String::new(),
    }
}

fn succeeded(command: &Command, output: &Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let printed = [&output.stdout, &output.stderr]
        .iter()
        .flat_map(|text| String::from_utf8_lossy(text).lines().map(str::to_owned).collect::<Vec<_>>())
        .map(|text| format!("\n    {text}"))
        .collect();
    Err(Error::Command {
        command: line(command),
        how: format!("ended with {}", output.status),
        output: printed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_yielding_command_keeps_its_arguments_variables_and_directory() {
        let mut command = tool("sh", &["-c", "nice; echo \"$1 $FIRST\"; pwd", "sh", "an argument"]);
        command.env("FIRST", "of all").current_dir("/proc");
        let own: i32 = capture(&mut tool("nice", &[])).unwrap().trim().parse().unwrap();
        let expected = format!("{}\nan argument of all\n/proc\n", (own + 10).min(19));
        assert_eq!(capture(&mut yielding(&command)).unwrap(), expected);
    }

    #[test]
    fn a_failure_shows_the_command_and_its_output() {
        let error = capture(&mut tool("sh", &["-c", "echo out; echo 'e r r' >&2; exit 3"])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`sh -c 'echo out; echo 'e r r' >&2; exit 3'` ended with exit status: 3\n    out\n    e r r"
        );
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = capture(&mut tool("no-such-program", &[])).unwrap_err().to_string();
        assert!(error.starts_with("`no-such-program` could not be started: "), "{error}");
    }

    #[test]
    fn input_reaches_the_program() {
        assert_eq!(feed(&mut tool("cat", &[]), "one\ntwo").unwrap(), "one\ntwo");
    }

    #[test]
    fn a_silent_command_is_killed_and_its_processes_are_listed() {
        let path = std::env::temp_dir().join(format!("slipway-silence-{}", std::process::id()));
        let log = File::options().create(true).append(true).open(&path).unwrap();
        let mut command = tool("sh", &["-c", "echo begun; sh -c 'sleep 300; true'; true"]);
        let error =
            log_while_it_prints(&mut command, &log, Duration::from_millis(500)).unwrap_err().to_string();
        assert!(fs::read_to_string(&path).unwrap().starts_with("begun\n"));
        fs::remove_file(&path).unwrap();
        assert!(error.contains("printed nothing") && error.contains("sleep 300"), "{error}");
        assert!(log_while_it_prints(&mut tool("true", &[]), &log, Duration::from_secs(60)).is_ok());
    }
}
