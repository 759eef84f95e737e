// SPDX-License-Identifier: GPL-3.0-or-later

//! The commands of `slipwayd`: a file or a folder for each, with its options and what it does.
//!
//! [`values`] parses values that several commands take, [`output`] prints tables and JSON.

mod networks;
mod output;
mod pod;
mod render;
mod run;
mod status;
mod top;
mod values;

use std::future::Future;
use std::io::{self, Write};

use clap::{Parser, Subcommand};
use slipway_cli::{Failure, Own};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::logging::LogFormat;

const ENVIRONMENT: &str = "\
Environment:
  SLIPWAY_LOG  the level of the log on standard error: error, warn (default), info, debug, trace, or levels by module
  NODE_NAME    the name of this node, for `slipwayd run`
  KUBECONFIG   how to reach the API server, for `slipwayd run`
  NO_COLOR     `slipwayd top` uses no colours
  TERM         the terminal; with `dumb`, `slipwayd top` prints tables
  CNI_PATH     the plugin directories without --cni-bin-dir, with colons between them
  CNI_ARGS     further arguments for the plugins, KEY=VALUE;KEY=VALUE

Files:
  /opt/cni/bin                the plugins
  /etc/cni/net.d              the networks
  /var/lib/cni                the cache of attachments, and the locks of sandboxes
  /run/slipway/subnet.json    the subnets of this node's pods, of `slipwayd run`
  /run/slipway/wireguard.key  this node's private key, of `slipwayd run --encrypt wireguard`
  /run/slipway/slipwayd.lock  locked by `slipwayd run`: one agent per node
  /run/slipway/slipwayd.sock  the socket that `slipwayd status` and `top` read from
  /run/slipway/reports.sock   the socket to which plugins report their calls
  /run/netns                  the namespaces of --create-netns, as slipwayd-SANDBOX

Exit codes: 0 success, 1 failure, 2 wrong arguments";

/// The node's agent
///
/// `slipwayd run` keeps a node in the network of a Kubernetes cluster. The other commands attach pods to several networks
/// together, by CNI plugins or a network plugin of kubelet, and detach them; each does its work and ends.
#[derive(Debug, Parser)]
#[command(name = "slipwayd", version, after_help = ENVIRONMENT)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(run::Options),
    Render(render::Options),
    Status(status::Options),
    Top(top::Options),
    /// Attach pods to networks and detach them
    #[command(subcommand)]
    Pod(pod::Command),
    Networks(networks::Options),
    #[command(flatten)]
    Own(Own),
}

impl Command {
    /// The form of the log.
    pub(crate) fn log_format(&self) -> LogFormat {
        match self {
            Self::Run(options) => options.log_format(),
            _ => LogFormat::Text,
        }
    }

    /// The level of the log: a service logs its changes, a command logs troubles only.
    pub(crate) fn log_level(&self) -> &'static str {
        if matches!(self, Self::Run(_)) { "warn,slipwayd=info" } else { "warn" }
    }

    /// Runs the command and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`] of the command.
    pub(crate) fn execute(self, out: &mut dyn Write) -> Result<u8, Failure> {
        let of_pods = |done: Result<(), pod::PodFailure>| done.map(|()| 0).map_err(Failure::from);
        match self {
            Self::Run(options) => run::execute(options),
            Self::Render(options) => render::execute(&options, out),
            Self::Status(options) => status::execute(&options, out),
            Self::Top(options) => top::execute(&options, out),
            Self::Pod(command) => block_on(async { of_pods(command.execute().await) }),
            Self::Networks(options) => block_on(async { of_pods(networks::execute(&options).await) }),
            Self::Own(own) => own.run::<Arguments>(out),
        }
    }
}

/// Does work in an asynchronous runtime. Threads that still wait, for a lock or for a key, do not delay the end.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::failed(format!("start the asynchronous runtime: {error}")))?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// The signals that end a command.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Reads a command line without the program's name.
    pub(crate) fn parsed(line: &str) -> Result<Command, String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let (mut out, mut err, mut command) = (Vec::new(), Vec::new(), None);
        slipway_cli::run::<Arguments>(&args, &mut out, &mut err, |arguments, _, _| {
            command = Some(arguments.command);
            Ok(0)
        });
        command.ok_or_else(|| String::from_utf8(err).unwrap())
    }

    #[test]
    fn help_manual_and_completions_have_everything() {
        slipway_cli::checks::assert_complete::<Arguments>();
    }

    #[test]
    fn commands_of_slipway_are_named_as_such() {
        for (line, command) in
            [("ports -o json", "ports"), ("check-node", "check-node"), ("cnitool add n", "cnitool")]
        {
            let want = format!(
                "slipwayd: unknown command {command:?}: `slipway {command}` is a command of slipway (see `slipwayd --help`)\n"
            );
            assert_eq!(parsed(line).unwrap_err(), want);
        }
        assert!(parsed("pod ports").unwrap_err().starts_with("slipwayd pod: unknown command \"ports\" (see"));
        assert!(parsed("networkz").unwrap_err().contains("did you mean networks?"));
    }
}
