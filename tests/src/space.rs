// SPDX-License-Identifier: GPL-2.0-or-later

//! A place where code runs: a network namespace, seen through the node's mount namespace.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, umask};
use nix::unistd::Pid;

use crate::family::has_ipv6;
use crate::pace::within;

/// The time limit of a command. A plugin that needs longer is considered hung.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// How long after a command's end a process that it started may keep its output open. A process that takes longer is
/// considered hung.
const OUTPUT_LIMIT: Duration = Duration::from_secs(10);

const LOOK: Duration = Duration::from_millis(20);

/// The time limit for a link or an address to become usable. Workers of the kernel do that, and they wait for the lock
/// of all network configuration, which the removal of namespaces holds for a long time.
const USABLE_LIMIT: Duration = Duration::from_secs(60);

/// The number of characters of each output stream that the report of a failure shows.
const REPORT_LIMIT: usize = 6000;

/// The commands that were run in a node, kept for the report of a failure.
#[derive(Debug, Default)]
pub(crate) struct Journal(Mutex<Vec<String>>);

impl Journal {
    pub(crate) fn note(&self, entry: String) {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(entry);
    }

    pub(crate) fn entries(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

/// A network namespace together with the mount namespace of the node it belongs to.
///
/// Clones are the same place. The namespace lives as long as there is a clone of the space or a socket made in it.
#[derive(Debug, Clone)]
pub struct Space {
    pub(crate) name: String,
    pub(crate) net: Arc<File>,
    pub(crate) mnt: Arc<File>,
    pub(crate) journal: Arc<Journal>,
}

/// The exit code and the output of a command.
#[derive(Debug, Clone)]
pub struct CommandOutput {
    /// The command as it was called, for messages.
    pub line: String,
    /// The exit code, or none if a signal ended the command.
    pub code: Option<i32>,
    /// Standard output, with bytes that are not UTF-8 replaced.
    pub stdout: String,
    pub stderr: String,
}

impl Space {
    /// Runs `work` on a new thread inside this space and returns its value. A panic is passed on to the caller.
    ///
    /// The thread's current directory is the root of the node's mount namespace, so use absolute paths. Under /proc use
    /// `thread-self`, because `self` shows the test's main thread.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let name = thread::current().name().unwrap_or("test").to_owned();
            let worker = thread::Builder::new().name(name).spawn_scoped(scope, || {
                self.enter();
                work()
            });
            match worker.expect("start a thread").join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Binds a socket in this space. An address may stay in use for a moment after its socket was closed, because a
    /// child process that another thread has forked keeps the descriptor until it calls execve(2).
    pub fn bind<T: Send>(&self, bind: impl Fn() -> io::Result<T> + Sync) -> io::Result<T> {
        self.run(|| {
            for _ in 0..20 {
                match bind() {
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                        thread::sleep(Duration::from_millis(50));
                    }
                    bound => return bound,
                }
            }
            bind()
        })
    }

    /// Moves the calling thread into this space for good. A thread that enters a mount namespace must not share its
    /// current directory with others (setns(2)).
    fn enter(&self) {
        unshare(CloneFlags::CLONE_FS).expect("unshare CLONE_FS (the network tests need root)");
        setns(&self.mnt, CloneFlags::CLONE_NEWNS).expect("enter the node's mount namespace");
        setns(&self.net, CloneFlags::CLONE_NEWNET).expect("enter the network namespace");
        // Programs of other users read files that a test writes.
        umask(Mode::S_IWGRP | Mode::S_IWOTH);
    }

    /// The space's name in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The space of a network namespace that another process has made, given by its path as the node sees it. Like a
    /// server's socket, the space keeps the namespace alive.
    pub fn namespace(&self, name: &str, path: &Path) -> Self {
        let net = self.run(|| File::open(path)).unwrap_or_else(|e| panic!("open {}: {e}", path.display()));
        Self { name: name.to_owned(), net: Arc::new(net), ..self.clone() }
    }

    /// Runs a command, given as words separated by blanks, and returns its standard output. A word that contains blanks
    /// must be in single quotes; [`quoted`] adds them.
    pub fn cmd(&self, line: &str) -> String {
        self.cmd_input(line, "")
    }

    pub fn cmd_input(&self, line: &str, input: &str) -> String {
        let output = self.try_cmd_input(line, input);
        assert!(
            output.code == Some(0),
            "{}",
            output.unexpected(&format!("{line} in {}", self.name), "success")
        );
        output.stdout
    }

    pub fn try_cmd(&self, line: &str) -> CommandOutput {
        self.try_cmd_input(line, "")
    }

    pub fn try_cmd_input(&self, line: &str, input: &str) -> CommandOutput {
        let words = split(line);
        let (program, args) = words.split_first().expect("a command");
        let mut command = Command::new(program);
        command.args(args);
        // Some tests compare messages of libc, which depend on the locale of whoever runs the tests.
        for variable in ["LC_ALL", "LC_MESSAGES", "LANG", "LANGUAGE"] {
            command.env_remove(variable);
        }
        self.exec(command, input.as_bytes())
    }

    /// Runs a command given as separate words. None if there is no such program, or if [`crate::Node::hide_programs`]
    /// hides it.
    pub fn try_run(&self, words: &[&str]) -> Option<CommandOutput> {
        let (program, args) = words.split_first().expect("a command");
        let mut command = Command::new(program);
        command.args(args);
        match self.spawn(command, b"") {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => None,
            started => Some(started.unwrap_or_else(|error| panic!("start {words:?}: {error}")).wait()),
        }
    }

    /// Runs a prepared command in this space and waits for its end, for at most two minutes on a usual machine.
    pub fn exec(&self, command: Command, input: &[u8]) -> CommandOutput {
        self.start(command, input).wait()
    }

    pub(crate) fn start(&self, command: Command, input: &[u8]) -> Started {
        let line = describe(&command);
        self.spawn(command, input).unwrap_or_else(|error| panic!("{}: start {line}: {error}", self.name))
    }

    fn spawn(&self, mut command: Command, input: &[u8]) -> io::Result<Started> {
        let line = describe(&command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.run(move || command.spawn())?;
        let mut stdin = child.stdin.take().expect("piped");
        let bytes = input.to_vec();
        // A command need not read its input, so a broken pipe is not an error.
        thread::spawn(move || drop(stdin.write_all(&bytes)));
        let stdout = collect(child.stdout.take().expect("piped"));
        let stderr = collect(child.stderr.take().expect("piped"));
        let input = String::from_utf8_lossy(input).into_owned();
        Ok(Started { space: self.clone(), line, input, child, stdout, stderr })
    }

    pub fn nft(&self, script: &str) {
        self.cmd_input("nft -f -", script);
    }

    /// Sets a sysctl by its path below /proc/sys, for instance `net/ipv4/ip_forward`. Settings of IPv6 are skipped in a
    /// kernel without IPv6.
    pub fn sysctl(&self, path: &str, value: &str) {
        if path.starts_with("net/ipv6/") && !has_ipv6() {
            return;
        }
        let file = Path::new("/proc/sys").join(path);
        self.journal.note(format!("[{}] sysctl {path} = {value}", self.name));
        self.run(|| std::fs::write(&file, value)).unwrap_or_else(|e| panic!("set sysctl {path}: {e}"));
    }

    /// Reads a sysctl. None if this kernel does not have it.
    pub fn sysctl_get(&self, path: &str) -> Option<String> {
        let file = Path::new("/proc/sys").join(path);
        self.run(|| std::fs::read_to_string(&file)).ok().map(|value| value.trim().to_owned())
    }

    pub fn mac(&self, ifname: &str) -> String {
        self.link(ifname)["address"].as_str().unwrap_or_default().to_owned()
    }

    /// One interface as `ip -details -json link show` describes it.
    pub fn link(&self, ifname: &str) -> serde_json::Value {
        let text = self.cmd(&format!("ip -details -json link show dev {ifname}"));
        let links: serde_json::Value = serde_json::from_str(&text).expect("ip prints JSON");
        links[0].clone()
    }

    pub fn has_link(&self, ifname: &str) -> bool {
        self.try_cmd(&format!("ip link show dev {ifname}")).code == Some(0)
    }

    /// Waits until an interface is operational. The kernel notices a carrier with some delay, and drops packets that
    /// are sent before.
    pub fn wait_up(&self, ifname: &str) {
        let up = poll(within(USABLE_LIMIT), || match self.link(ifname)["operstate"] == "UP" {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        assert!(up.is_some(), "{}: {ifname} does not come up", self.name);
    }

    /// Waits until an address is local in this space. If an IPv6 address is not probed, a kernel worker
    /// (`addrconf_dad_work`) adds its route some time after the address.
    pub fn wait_local(&self, address: IpAddr) {
        let local = poll(within(USABLE_LIMIT), || {
            match self.try_cmd(&format!("ip route get {address}")).stdout.starts_with("local ") {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        assert!(local.is_some(), "{}: {address} does not become local", self.name);
    }

    /// The ruleset, links, addresses and routes as text, for the report of a failure.
    pub fn describe(&self) -> String {
        let mut text = format!("--- {} ---\n", self.name);
        for line in [
            "nft list ruleset",
            "ip -details link",
            "ip address",
            "ip route show table all",
            "ip -6 route show table all",
            "ip neighbour",
            "conntrack -L",
        ] {
            let mut words = line.split_whitespace();
            let mut command = Command::new(words.next().unwrap_or_default());
            command.args(words);
            let output = self.run(move || command.output());
            let (stdout, stderr) = match &output {
                Ok(output) => {
                    (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
                }
                Err(error) => (error.to_string().into(), "".into()),
            };
            if !stdout.trim().is_empty() || output.is_err() {
                let _ = writeln!(text, "$ {line}\n{}{}", stdout.trim_end(), stderr.trim_end());
            }
        }
        text
    }
}

#[derive(Debug)]
pub(crate) struct Started {
    space: Space,
    line: String,
    input: String,
    pub(crate) child: Child,
    stdout: Collected,
    stderr: Collected,
}

impl Started {
    /// Waits for the end. If the command takes longer than two minutes, it is killed with everything that it started, and
    /// the test fails with a list of what they were waiting for. The same happens if the command has ended but
    /// something that it started has not.
    pub(crate) fn wait(mut self) -> CommandOutput {
        let begin = Instant::now();
        let ended = self.ending(within(COMMAND_LIMIT));
        let mut hung = String::new();
        if ended.is_none() {
            hung = kill_family(&mut self.child);
        }
        let whole = poll(within(OUTPUT_LIMIT), || match self.stdout.is_whole() && self.stderr.is_whole() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        let output = CommandOutput {
            line: self.line,
            code: ended.and_then(|status| status.code()),
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
        };
        let input =
            if self.input.is_empty() { String::new() } else { format!("\n  stdin: {}", clip(&self.input)) };
        let spent = begin.elapsed().as_millis();
        self.space.journal.note(format!("[{}] {}{input}{output} ({spent} ms)", self.space.name, output.line));
        assert!(ended.is_some(), "{}: took longer than {:?}:\n{hung}", output.line, within(COMMAND_LIMIT));
        assert!(whole.is_some(), "{}: it ended, and something that it started has not", output.line);
        output
    }
}

impl Started {
    /// Waits for the command's end. None if that takes longer than `limit`. The end of the command's output wakes this
    /// thread, so a short command costs no pause.
    fn ending(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begin = Instant::now();
        let mut pause = Duration::from_micros(100);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if begin.elapsed() > limit => return None,
                Ok(None) => {}
                Err(error) => panic!("wait for {}: {error}", self.line),
            }
            if self.stdout.wait(LOOK) {
                thread::sleep(pause);
                pause = (pause * 2).min(LOOK);
            }
        }
    }
}

/// Kills a process and its descendants, and returns what each of their threads was waiting for.
fn kill_family(child: &mut Child) -> String {
    let mut threads = String::new();
    let mut family = vec![child.id()];
    let mut at = 0;
    while let Some(pid) = family.get(at).copied() {
        at += 1;
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let words = [read("comm"), read("stat"), read("wchan"), read("syscall"), read("stack")];
            let _ = writeln!(threads, "  {pid}: {}", words.map(|text| text.trim().to_owned()).join(" | "));
            family.extend(read("children").split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    // A tracer is killed last, so that the process which it traces cannot run on without it.
    for pid in family.iter().rev() {
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    let _ = child.wait();
    threads
}

impl CommandOutput {
    /// The report of an end that a test did not expect: first one line about what happened, then the command as it was
    /// called, and its whole output.
    pub(crate) fn unexpected(&self, what: &str, expected: &str) -> String {
        let first = [&self.stderr, &self.stdout].into_iter().flat_map(|text| text.lines()).next();
        let got = match self.code {
            Some(0) => "success".to_owned(),
            Some(code) => format!("exit code {code}"),
            None => "the end by a signal".to_owned(),
        };
        let first = first.map(|line| format!(": {}", clip(line))).unwrap_or_default();
        format!("{what}: expected {expected}, got {got}{first}\n  command: {}{self}", self.line)
    }
}

impl std::fmt::Display for CommandOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.code {
            Some(0) => {}
            Some(code) => write!(f, "\n  exit code: {code}")?,
            None => write!(f, "\n  ended by a signal")?,
        }
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.trim().is_empty() {
                write!(f, "\n  {name}: {}", clip(text.trim_end()))?;
            }
        }
        Ok(())
    }
}

/// Calls `check` until it breaks with a value or the time limit is over, first after a millisecond and then at growing
/// intervals.
pub(crate) fn poll<T>(limit: Duration, mut check: impl FnMut() -> ControlFlow<T>) -> Option<T> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let ControlFlow::Break(value) = check() {
            return Some(value);
        }
        if begin.elapsed() > limit {
            return None;
        }
        thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(20));
    }
}

/// The output of a command, which a thread reads.
#[derive(Debug)]
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Disconnected as soon as the reader has ended.
    reader: mpsc::Receiver<()>,
}

impl Collected {
    fn is_whole(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits until no process can write to the output any more. Returns false if the time limit is over before.
    fn wait(&self, limit: Duration) -> bool {
        self.reader.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Disconnected)
    }

    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn collect(mut stream: impl Read + Send + 'static) -> Collected {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let taken = Arc::clone(&bytes);
    let (running, reader) = mpsc::channel();
    thread::spawn(move || {
        let _running = running;
        let mut piece = [0; 16 * 1024];
        loop {
            match stream.read(&mut piece) {
                Ok(length @ 1..) => {
                    let mut taken = taken.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    taken.extend(&piece[..length]);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // Output before an error is still worth showing.
                Ok(0) | Err(_) => break,
            }
        }
    });
    Collected { bytes, reader }
}

/// The command with the environment variables set for it, as a shell would accept it.
fn describe(command: &Command) -> String {
    let mut words = Vec::new();
    for (key, value) in command.get_envs() {
        if let Some(value) = value {
            words.push(format!("{}={}", key.to_string_lossy(), quoted(value)));
        }
    }
    words.push(quoted(command.get_program()));
    words.extend(command.get_args().map(quoted));
    words.join(" ")
}

/// Runs `work` on a separate thread in a new network namespace that nothing else uses.
pub fn in_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .expect("make a network namespace (the network tests need root)");
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Quotes a word of a command line for [`Space::cmd`] and for sh(1) if it needs quotes.
pub fn quoted(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref().to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Splits a command line at blanks, except at those in single quotes.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut in_quotes = false;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' => {
                in_quotes = !in_quotes;
                word.get_or_insert_default();
            }
            // Outside quotes, [`quoted`] writes a single quote with a backslash before it.
            '\\' if !in_quotes && letters.as_str().starts_with('\'') => {
                word.get_or_insert_default().extend(letters.next());
            }
            _ if letter.is_whitespace() && !in_quotes => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    assert!(!in_quotes, "a quote is not closed: {line}");
    words.extend(word);
    words
}

/// Shortens a text for a report, and replaces control characters that would garble it.
fn clip(text: &str) -> String {
    let odd = |c: char| c.is_control() && c != '\n' && c != '\t';
    let text = text.replace(odd, "\u{fffd}");
    match text.char_indices().nth(REPORT_LIMIT) {
        Some((end, _)) => format!("{}… ({} bytes in all)", &text[..end], text.len()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_word_is_one_word_for_the_harness_and_for_the_shell() {
        for word in ["plain/path", "/a b/c", "", "it's", "a\\'b", "$HOME \"x\""] {
            let line = format!("printf %s {}", quoted(word));
            assert_eq!(split(&line), ["printf", "%s", word], "{line}");
            let shell = Command::new("sh").args(["-c", &line]).output().expect("run sh");
            assert_eq!(String::from_utf8_lossy(&shell.stdout), word, "{line}");
        }
        assert_eq!(split("  ip  link\tshow\n"), ["ip", "link", "show"]);
    }
}
