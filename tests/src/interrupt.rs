//! Killing a plugin at each of its system calls in turn.

use std::collections::BTreeMap;

use crate::node::Node;
use crate::plugin::{Output, PluginCall};

/// A place in a plugin's run: the moment before its `nth` call of `syscall`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KillPoint {
    /// The system call's name.
    pub syscall: String,
    /// Counted from 1, by thread as strace counts.
    pub nth: usize,
}

const TRACE: &str = "/run/interrupt.trace";

/// Runs the call to its end under strace, and lists the system calls it made, in order, from
/// the moment when it reads its configuration. (Before that it does nothing but load itself.)
///
/// # Panics
/// When strace does not run.
pub fn kill_points(node: &Node, call: PluginCall) -> (Output, Vec<KillPoint>) {
    let output = call.through(&["strace", "-f", "-qq", "-o", TRACE]).run();
    let trace = node.read(TRACE).expect("strace's output");
    node.cmd(&format!("rm {TRACE}"));
    (output, parse(&trace))
}

/// Runs the call and kills it at that point. Tells whether it was killed; with several threads, or
/// with another state than before, it may end without coming to that point.
///
/// # Panics
/// When it ends in yet another way.
pub fn killed(node: &Node, call: PluginCall, point: &KillPoint) -> bool {
    let inject = format!("inject={}:signal=KILL:when={}", point.syscall, point.nth);
    let output = call.through(&["strace", "-f", "-qq", "-o", TRACE, "-e", &inject]).run();
    node.cmd(&format!("rm -f {TRACE}"));
    match output.process.code {
        None | Some(137) => true,
        Some(0) => false,
        _ => panic!("{point:?}: neither killed nor successful: {}{}", output.process.line, output.process),
    }
}

fn parse(trace: &str) -> Vec<KillPoint> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut points = Vec::new();
    let mut started = false;
    for line in trace.lines() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        let Some((name, arguments)) = rest.split_once('(') else { continue };
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') || name.is_empty() {
            continue; // A signal, an exit, or the second half of an interrupted call.
        }
        let nth = counts.entry((pid, name)).and_modify(|count| *count += 1).or_insert(1);
        started |= name == "read" && arguments.starts_with("0,");
        let point = KillPoint { syscall: name.to_owned(), nth: *nth };
        // Threads have their own counts: the same point may come twice.
        if started && !points.contains(&point) {
            points.push(point);
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_name_from_the_configuration_on() {
        let trace = "10 execve(\"x\", [\"x\"], 0x1) = 0\n10 read(3, \"\", 1) = 0\n10 read(0, \"{}\", 9) = 2\n\
            10 close(3)   = 0\n10 clone3({flags=...} <unfinished ...>\n11 close(4) = 0\n\
            10 <... clone3 resumed>) = 11\n10 read(5, \"\", 1) = 0\n10 +++ exited with 0 +++\n";
        let points: Vec<String> = parse(trace).iter().map(|p| format!("{} {}", p.syscall, p.nth)).collect();
        assert_eq!(points, ["read 2", "close 1", "clone3 1", "read 3"]);
    }
}
