// SPDX-License-Identifier: MIT OR Apache-2.0

//! The demo's network: the process's own namespace is the node, another namespace is another host.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::sandbox;
use xtask_base::error::{Error, Result};
use xtask_base::run::{self, tool};

/// The other host's namespace.
pub(super) const OUTSIDE: &str = "outside";
/// Addresses of the documentation ranges (RFC 5737, RFC 3849), with prefix lengths.
pub(super) const OUTSIDE_V4: &str = "203.0.113.2";
pub(super) const OUTSIDE_V6: &str = "2001:db8:ff::2";
/// The published port.
pub(super) const HOST_PORT: u16 = 8080;
pub(super) const NODE_V4: &str = "203.0.113.1";
pub(super) const NODE_V6: &str = "2001:db8:ff::1";

/// Time limit for addresses to become usable: attempts, and the pause between them.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// Makes the node's links and the other host. The caller has entered the node's namespaces.
pub(super) fn build() -> Result<()> {
    sandbox::add_netns(OUTSIDE)?;
    ip("link set lo up")?;
    ip(&format!("link add eth0 type veth peer name eth0 netns {OUTSIDE}"))?;
    ip(&format!("addr add {NODE_V4}/24 dev eth0"))?;
    ip(&format!("addr add {NODE_V6}/64 dev eth0 nodad"))?;
    ip("link set eth0 up")?;
    ip(&format!("-n {OUTSIDE} link set lo up"))?;
    ip(&format!("-n {OUTSIDE} addr add {OUTSIDE_V4}/24 dev eth0"))?;
    ip(&format!("-n {OUTSIDE} addr add {OUTSIDE_V6}/64 dev eth0 nodad"))?;
    ip(&format!("-n {OUTSIDE} link set eth0 up"))?;
    // A new namespace starts with 1: the bridge hands packets to netfilter before they are routed, and
    // replies to [::1] are lost.
    let sysctl = Path::new("/proc/sys/net/bridge/bridge-nf-call-ip6tables");
    if sysctl.exists() {
        fs::write(sysctl, "0").map_err(|e| Error::file("write 0 to", sysctl, e))?;
    }
    Ok(())
}

/// Runs `ip` with arguments separated by blanks.
pub(super) fn ip(words: &str) -> Result<String> {
    run::capture(&mut tool("ip", &words.split(' ').collect::<Vec<_>>()))
}

/// A command inside a named namespace; without a name, in the node's.
pub(super) fn inside(netns: Option<&str>, program: &str, args: &[&str]) -> Command {
    match netns {
        None => tool(program, args),
        Some(name) => {
            let net = format!("--net={}", sandbox::netns_path(name).display());
            let mut command = tool("nsenter", &[&net, program]);
            command.args(args);
            command
        }
    }
}

/// The lifetime of the demo's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// Ends with the demo, also if that is killed.
    Ends,
    /// Until `cargo xtask demo --remove`.
    Stays,
}

/// Starts the demo's web server on port 80 of a namespace and returns when it listens.
pub(super) fn serve(netns: &str, life: Life) -> Result<Child> {
    let program = env::current_exe().map_err(|e| Error::system("find this program", e))?;
    let mut args = vec!["serve", "--port", "80", "--name", netns];
    args.extend((life == Life::Stays).then_some("--stay"));
    let mut command = inside(Some(netns), &program.to_string_lossy(), &args);
    // A process group of its own: an interrupt at the terminal goes to the demo, which stops the server.
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|e| Error::file("start", &program, e))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out)
            .read_line(&mut line)
            .map_err(|e| Error::system("read the server's first line", e))?;
    }
    if line.trim() == "listening" {
        return Ok(child);
    }
    Err(Error::Failed(format!("the server in {netns} did not start")))
}

/// Waits until duplicate address detection has passed every IPv6 address of the node and of `pods`
/// (RFC 4862, section 5.4): until then the kernel does not answer for them.
///
/// # Errors
/// An address is still tentative when the time is over.
pub(super) fn wait_for_addresses(pods: &[&str]) -> Result<()> {
    let mut left = String::new();
    for _ in 0..ATTEMPTS {
        left = ip("-6 -o addr show tentative")?;
        for pod in pods {
            left.push_str(&ip(&format!("-n {pod} -6 -o addr show tentative"))?);
        }
        if left.trim().is_empty() {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    Err(Error::Failed(format!("addresses are still tentative:\n{left}")))
}
