// SPDX-License-Identifier: MIT OR Apache-2.0

//! `--keep` and `--remove`: a process holds the demo's namespaces, and a file remembers it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::world::{HOST_PORT, NODE_V4, NODE_V6, OUTSIDE, OUTSIDE_V4};
use crate::cni::Chain;
use xtask_base::error::{Error, Result};
use xtask_base::run::tool;
use xtask_base::workspace;

/// The processes that were left running.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    /// First the one that holds the node's namespaces, then the web servers.
    processes: Vec<Process>,
}

/// A process. The start time distinguishes it from a later one with the same PID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Process {
    pid: i32,
    /// Clock ticks after boot: field 22 of /proc/PID/stat, see proc(5).
    started: u64,
}

fn state_file() -> Result<PathBuf> {
    Ok(workspace::scratch("demo")?.join("left-up.json"))
}

/// Leaves a process in the node's namespaces, records the processes for `--remove`, and prints how to look
/// around.
pub(super) fn leave_up(chain: &Chain, servers: &[Child]) -> Result<()> {
    let mut holder = tool("sleep", &["infinity"]);
    holder.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let holder =
        holder.spawn().map_err(|e| Error::system("start the process that holds the namespaces", e))?;
    let processes =
        [&holder].into_iter().chain(servers).filter_map(|child| Process::of(child.id())).collect();
    let path = state_file()?;
    let text = serde_json::to_string_pretty(&State { processes })
        .map_err(|e| Error::Failed(format!("print the demo's state: {e}")))?;
    fs::write(&path, text).map_err(|e| Error::file("write", &path, e))?;
    explain(chain, holder.id());
    Ok(())
}

fn explain(chain: &Chain, holder: u32) {
    // In a user namespace of the user's own, its root is entered along with the rest; setgroups(2) is
    // denied in there.
    let user = if in_user_namespace() { "--user --preserve-credentials " } else { "" };
    let sudo = if std::env::var_os("SUDO_USER").is_some() { "sudo " } else { "" };
    let into = format!("{sudo}nsenter --target {holder} {user}--net --mount");
    println!(
        "\nLeft up. A shell on the node:\n\n    {into}\n\nand in there, for example:\n\n\
         \x20   nft list table inet slipway\n\
         \x20   {bin}/slipway ports\n\
         \x20   ip netns exec {OUTSIDE} curl http://{NODE_V4}:{HOST_PORT}/\n\
         \x20   ip netns exec {OUTSIDE} curl 'http://[{NODE_V6}]:{HOST_PORT}/'\n\
         \x20   curl 'http://[::1]:{HOST_PORT}/'\n\
         \x20   ip netns exec client curl http://{OUTSIDE_V4}/\n\n\
         To remove it:\n\n    cargo xtask demo --remove\n",
        bin = chain.dir.display()
    );
}

/// True in a user namespace other than the initial one, which maps the whole range onto itself
/// (user_namespaces(7)).
fn in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"]
}

/// Stops everything that an earlier `--keep` left, which removes its namespaces.
pub(super) fn remove() -> Result<()> {
    match stop_all()? {
        0 => println!("nothing is up"),
        count => println!("removed: {count} processes stopped, their namespaces are gone"),
    }
    Ok(())
}

/// Stops what an earlier `--keep` left.
pub(super) fn replace_older() -> Result<()> {
    if stop_all()? > 0 {
        println!("the demo that was left up is removed first");
    }
    Ok(())
}

fn stop_all() -> Result<usize> {
    let path = state_file()?;
    let Ok(text) = fs::read_to_string(&path) else { return Ok(0) };
    let state: State =
        serde_json::from_str(&text).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))?;
    let mut stopped = 0;
    for process in state.processes {
        if Process::of(process.pid.unsigned_abs()) == Some(process) {
            kill(Pid::from_raw(process.pid), Signal::SIGKILL)
                .map_err(|e| Error::system(format!("stop process {}", process.pid), e))?;
            stopped += 1;
        }
    }
    fs::remove_file(&path).map_err(|e| Error::file("remove", &path, e))?;
    Ok(stopped)
}

impl Process {
    /// The running process with a PID, if there is one.
    fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self { pid: i32::try_from(pid).ok()?, started: started(&stat)? })
    }
}

/// Field 22. The second field is the program's name in brackets, which may hold anything.
fn started(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_identified_by_pid_and_start_time() {
        let own = Process::of(std::process::id()).unwrap();
        assert_eq!(Process::of(std::process::id()), Some(own));
        assert!(own.started > 0);
        assert_eq!(Process::of(u32::MAX), None);
    }

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(started(stat), Some(4242));
    }
}
