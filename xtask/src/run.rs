//! Starting other programs.

use std::env;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::error::{Error, Result};

/// Where the system's tools are besides `PATH`: Debian leaves these out of a user's `PATH`.
const SYSTEM_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// The directories that programs are looked up in.
pub(crate) fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).chain(SYSTEM_DIRS.iter().map(PathBuf::from)).collect()
}

/// The file that a program's name stands for.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    search_path().into_iter().map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// A command that also finds the administrator's tools, with messages in English.
pub(crate) fn tool(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(which(program).unwrap_or_else(|| PathBuf::from(program)));
    command.args(args).env("LC_ALL", "C.UTF-8");
    if let Ok(path) = env::join_paths(search_path()) {
        command.env("PATH", path);
    }
    command
}

/// The cargo that runs this task.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(crate::workspace::root());
    if let Ok(path) = env::join_paths(search_path()) {
        command.env("PATH", path);
    }
    command
}

/// The command as one would type it.
pub(crate) fn line(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| quote(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{word}'") }
}

/// Runs to the end and returns what was printed to standard output.
///
/// # Errors
/// The command line and all that it printed, when it cannot be started or does not succeed.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    capture_from(command, Stdio::null())
}

/// Like [`capture`], with its standard input from somewhere.
///
/// # Errors
/// As [`capture`].
pub(crate) fn capture_from(command: &mut Command, input: Stdio) -> Result<String> {
    let output = command.stdin(input).output().map_err(|e| not_started(command, &e))?;
    succeeded(command, &output)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs to the end with `input` on standard input.
///
/// # Errors
/// As [`capture`].
pub(crate) fn feed(command: &mut Command, input: &str) -> Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| not_started(command, &e))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read its input says why by how it ends.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|e| not_started(command, &e))?;
    succeeded(command, &output)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Like [`capture`], with what it says on standard error appended to a log.
///
/// # Errors
/// As [`show`].
pub(crate) fn capture_with(command: &mut Command, log: File) -> Result<String> {
    let output = command.stdin(Stdio::null()).stderr(log).output().map_err(|e| not_started(command, &e))?;
    succeeded(command, &Output { stdout: Vec::new(), ..output.clone() })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs to the end on this terminal.
///
/// # Errors
/// The command line, when it cannot be started or does not succeed.
pub(crate) fn show(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|e| not_started(command, &e))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Command { command: line(command), how: format!("ended with {status}"), output: String::new() })
}

/// Runs to the end with standard output and standard error appended to a log.
///
/// # Errors
/// As [`show`].
pub(crate) fn log(command: &mut Command, log: &File) -> Result<()> {
    let copy = || log.try_clone().map_err(|e| Error::system("duplicate the log's descriptor", e));
    command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
    show(command)
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
}
