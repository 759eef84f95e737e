// SPDX-License-Identifier: GPL-2.0-or-later

//! Kills a plugin before each of its system calls, lets one of them fail, or slows some of them down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::node::Node;
use crate::plugin::{Output, PluginCall};
use crate::sample::sample;
use crate::tally::tally;

/// A system call during a plugin's run: the `nth` one with that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    pub syscall: String,
    /// Counted from 1 for each thread, as strace counts.
    pub nth: usize,
    /// True if the call before this one, in any thread, may have changed something outside the process. If not, a kill
    /// here leaves the same state as a kill at the previous point.
    pub after_change: bool,
}

/// The way in which a call is disturbed at a [`Point`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disturbance {
    /// The process gets SIGKILL before the call does anything.
    Kill,
    /// The call does nothing and fails with this error, for instance `ENOSPC`. Programs that the plugin runs
    /// are not disturbed.
    Error(&'static str),
}

/// System calls that change nothing outside the process.
const INNER: &[&str] = &[
    "access",
    "arch_prctl",
    "brk",
    "clock_gettime",
    "clone",
    "clone3",
    "close",
    "dup",
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "eventfd2",
    "exit",
    "fcntl",
    "fstat",
    "fstatfs",
    "fsync",
    "futex",
    "getdents64",
    "getpid",
    "getrandom",
    "getsockname",
    "getsockopt",
    "gettid",
    "lseek",
    "madvise",
    "mmap",
    "mprotect",
    "munmap",
    "nanosleep",
    "newfstatat",
    "poll",
    "prctl",
    "pread64",
    "prlimit64",
    "read",
    "readlink",
    "recvfrom",
    "recvmsg",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "sched_getaffinity",
    "set_robust_list",
    "set_tid_address",
    "setns",
    "setsockopt",
    "sigaltstack",
    "socket",
    "socketpair",
    "statfs",
    "statx",
    "uname",
    "unshare",
];

const TRACE: &str = "/run/interrupt.trace";

/// Runs the call to its end under strace, and lists in order the system calls that it made from the moment when it read
/// its configuration. Before that moment the process only loads itself.
pub fn kill_points(node: &Node, call: PluginCall) -> (Output, Vec<Point>) {
    traced(node, call, &[], Begin::WithTheConfiguration)
}

/// True if the tests are to try every system call, that is, if `SLIPWAY_EVERY_CALL` is set.
pub fn every_call() -> bool {
    std::env::var_os("SLIPWAY_EVERY_CALL").is_some()
}

/// The points at which to kill a call: at most `most` of those right after a possible change, spread evenly, because a
/// kill at another point leaves the same state. [`sample`] then takes a part of them. With [`every_call`], all points
/// are tried.
pub fn points_to_try(found: Vec<Point>, most: usize) -> Vec<Point> {
    let every = every_call();
    let found: Vec<Point> = found.into_iter().filter(|point| every || point.after_change).collect();
    assert!(found.len() > 10, "too few points: {found:?}");
    let step = if every { 1 } else { found.len().div_ceil(most) };
    sample(found.into_iter().step_by(step))
}

/// Fails if only few calls were killed, because then little was tested. A call misses its point if it divides its work
/// between threads differently from the traced call, or waits less often; on a busy machine many calls do.
#[track_caller]
pub fn assert_killed(kills: usize, tried: usize) {
    assert!(kills > tried / 4, "{kills} kills at {tried} points");
}

/// Does the same as [`kill_points`], but leaves out the calls of programs that the plugin runs. A program that fails
/// each time could not undo what it had begun either.
pub fn error_points(node: &Node, call: PluginCall) -> (Output, Vec<Point>) {
    traced(node, call, &OWN_THREADS, Begin::WithTheConfiguration)
}

/// Options with which strace follows a process's threads, but not the programs that it runs.
const OWN_THREADS: [&str; 2] = ["-b", "execve"];

fn traced(node: &Node, call: PluginCall, options: &[&str], begin: Begin) -> (Output, Vec<Point>) {
    let strace = [&["strace", "-f", "-qq", "-o", TRACE], options].concat();
    let output = call.through(&strace).run();
    let trace = node.read(TRACE).unwrap_or_else(|| panic!("no trace: {}", output.process));
    node.cmd(&format!("rm {TRACE}"));
    (output, parse(&trace, begin))
}

/// Does the same as [`kill_points`] for a command that reads no configuration, and lists all of its system calls.
pub fn all_kill_points(node: &Node, call: PluginCall) -> (Output, Vec<Point>) {
    traced(node, call, &[], Begin::AtOnce)
}

/// Does the same as [`error_points`] for a command that reads no configuration, from the moment when its libraries are
/// loaded.
pub fn all_error_points(node: &Node, call: PluginCall) -> (Output, Vec<Point>) {
    traced(node, call, &OWN_THREADS, Begin::WithMain)
}

/// The moment from which system calls are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    AtOnce,
    /// The standard library ignores SIGPIPE before it calls `main`.
    WithMain,
    WithTheConfiguration,
}

/// Runs the call and disturbs it at that point. With several threads, or if the state differs from that of the traced
/// run, the call may not reach the point.
pub fn disturbed(node: &Node, call: PluginCall, point: &Point, how: Disturbance) -> Output {
    let (what, counted) = match how {
        Disturbance::Kill => ("signal=KILL".to_owned(), "kills"),
        Disturbance::Error(errno) => (format!("error={errno}"), "failing calls"),
    };
    tally(counted, 1);
    let inject = format!("inject={}:{what}:when={}", point.syscall, point.nth);
    let options: &[&str] = if how == Disturbance::Kill { &[] } else { &OWN_THREADS };
    let strace = [&["strace", "-f", "-qq", "-o", TRACE, "-e", &inject], options].concat();
    let output = call.through(&strace).run();
    node.cmd(&format!("rm -f {TRACE}"));
    output
}

/// Kills the call at that point. Returns false if the call succeeded before it reached the point.
pub fn killed(node: &Node, call: PluginCall, point: &Point) -> bool {
    let output = disturbed(node, call, point, Disturbance::Kill);
    match output.process.code {
        None | Some(137) => true,
        Some(0) => false,
        _ => panic!("{point:?}: neither killed nor successful: {}{}", output.process.line, output.process),
    }
}

/// Runs the call with a pause before each system call of that name, so that the moments between two of them last
/// longer.
pub fn slowed(node: &Node, call: PluginCall, syscall: &str, pause: Duration) -> Output {
    let inject = format!("inject={syscall}:delay_enter={}us", pause.as_micros());
    let strace = ["strace", "-f", "-qq", "-o", TRACE, "-e", &inject];
    let output = call.through(&strace).run();
    node.cmd(&format!("rm -f {TRACE}"));
    output
}

/// Runs the call while system calls fail as `inject` says (`openat:error=EMFILE`), all of them or only those that name
/// `path`, in any thread. strace compares the path with the words of the call: a file that is opened below an open
/// folder has no more than its name there. Programs that the call runs are not disturbed.
pub fn injected(node: &Node, call: PluginCall, inject: &str, path: Option<&str>) -> Output {
    let inject = format!("inject={inject}");
    let mut strace = ["strace", "-f", "-qq", "-o", TRACE, "-e", &inject].to_vec();
    strace.extend(OWN_THREADS);
    strace.extend(path.into_iter().flat_map(|path| ["-P", path]));
    tally("calls in which something fails", 1);
    let output = call.through(&strace).run();
    node.cmd(&format!("rm -f {TRACE}"));
    output
}

/// Runs the call to its end, and returns the first of its system calls that strace prints with this text.
pub fn point_of(node: &Node, call: PluginCall, text: &str) -> Point {
    let strace = [&["strace", "-f", "-qq", "-o", TRACE][..], &OWN_THREADS].concat();
    let output = call.through(&strace).run();
    let trace = node.read(TRACE).unwrap_or_else(|| panic!("no trace: {}", output.process));
    node.cmd(&format!("rm {TRACE}"));
    find(&trace, text).unwrap_or_else(|| panic!("no system call with {text:?}: {}", output.process))
}

fn find(trace: &str, text: &str) -> Option<Point> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for line in trace.lines() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let Some((name, arguments)) = begun(rest.trim_start()) else { continue };
        let nth = *counts.entry((pid, name)).and_modify(|count| *count += 1).or_insert(1);
        if arguments.contains(text) {
            return Some(Point { syscall: name.to_owned(), nth, after_change: true });
        }
    }
    None
}

/// The name and the arguments of a call that begins in this line. None for a signal, an exit, or the second half of an
/// interrupted call.
fn begun(line: &str) -> Option<(&str, &str)> {
    let (name, arguments) = line.split_once('(')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then_some((name, arguments))
}

/// True if this is the call with which the standard library learns whether a program could be started. The kernel never
/// lets it fail. If strace does, the library waits for a program that itself waits for input.
fn hears_of_start(name: &str, arguments: &str) -> bool {
    name == "recvfrom" && arguments.contains(", 8, 0, NULL, NULL)")
}

fn parse(trace: &str, begin: Begin) -> Vec<Point> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut points: Vec<Point> = Vec::new();
    let mut after_change = true;
    let mut started = begin == Begin::AtOnce;
    // Which of a thread's `recvfrom` hear of a start. strace counts by thread, so the same call of another thread would
    // fail in place of one of these.
    let mut starts: BTreeSet<usize> = BTreeSet::new();
    for line in trace.lines() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        if let Some(arguments) = rest.strip_prefix("<... recvfrom resumed>") {
            let nth = counts.get(&(pid, "recvfrom")).copied();
            starts.extend(nth.filter(|_| hears_of_start("recvfrom", arguments)));
        }
        let Some((name, arguments)) = begun(rest) else { continue };
        let nth = *counts.entry((pid, name)).and_modify(|count| *count += 1).or_insert(1);
        started |= match begin {
            Begin::WithMain => name == "rt_sigaction" && arguments.starts_with("SIGPIPE,"),
            _ => name == "read" && arguments.starts_with("0,"),
        };
        if hears_of_start(name, arguments) {
            starts.insert(nth);
            continue;
        }
        if !started {
            continue;
        }
        // Each thread has its own counts, so the same point may come twice.
        match points.iter_mut().find(|point| point.syscall == name && point.nth == nth) {
            Some(point) => point.after_change |= after_change,
            None => points.push(Point { syscall: name.to_owned(), nth, after_change }),
        }
        let opens_only = name == "openat" && !arguments.contains("O_CREAT");
        after_change = !INNER.contains(&name) && !opens_only;
    }
    points.retain(|point| point.syscall != "recvfrom" || !starts.contains(&point.nth));
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_name_from_the_configuration_on() {
        let trace = "10 execve(\"x\", [\"x\"], 0x1) = 0\n10 read(3, \"\", 1) = 0\n10 read(0, \"{}\", 9) = 2\n\
            10 close(3)   = 0\n10 clone3({flags=...} <unfinished ...>\n11 unlink(\"x\") = 0\n\
            10 <... clone3 resumed>) = 11\n11 openat(3, \"x\", O_RDONLY) = 4\n10 read(5, \"\", 1) = 0\n\
            10 recvfrom(7, \"\", 8, 0, NULL, NULL) = 0\n10 recvfrom(7,  <unfinished ...>\n\
            10 <... recvfrom resumed>\"\", 8, 0, NULL, NULL) = 0\n12 recvfrom(8, \"\", 9, 0, NULL, NULL) = 1\n\
            10 openat(3, \"x\", O_CREAT) = 4\n10 +++ exited with 0 +++\n";
        let points: Vec<String> = parse(trace, Begin::WithTheConfiguration)
            .iter()
            .map(|p| format!("{} {}{}", p.syscall, p.nth, if p.after_change { "!" } else { "" }))
            .collect();
        assert_eq!(
            points,
            ["read 2!", "close 1", "clone3 1", "unlink 1", "openat 1!", "read 3"],
            "openat of the second thread is the same point; recvfrom of the third would hit the first's"
        );
    }

    #[test]
    fn a_call_is_found_by_its_words() {
        let trace = "10 socket(AF_NETLINK, 3) = 3\n10 socket(AF_UNIX, 1) = 4\n11 socket(AF_UNIX, 1 <unfinished ...>\n\
            10 --- SIGCHLD {si_signo=SIGCHLD} ---\n11 <... socket resumed>) = 5\n11 connect(5, \"/run/bus\") = 0\n";
        let found = |text: &str| find(trace, text).map(|point| (point.syscall, point.nth));
        assert_eq!(found("AF_UNIX"), Some(("socket".to_owned(), 2)));
        assert_eq!(found("/run/bus"), Some(("connect".to_owned(), 1)));
        assert_eq!(found("SIGCHLD"), None);
    }
}
