// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd`, the node's agent.
//!
//! [`cli`] describes and reads the command line, [`commands`] runs the commands, [`netns`] makes named network
//! namespaces; [`kubelet`] runs them by a network plugin of kubelet. The logic is that of `cni_runtime::pods` and
//! `cni_runtime::kubelet`. [`cluster_command`] runs the agent of [`slipwayd::cluster`], [`status_command`] prints its state,
//! [`top_command`] shows a live view of the node, [`render_command`] prints the files of its deployment ([`slipwayd::render`]). [`logging`] writes the log.

mod cli;
mod cluster_command;
mod commands;
mod garbage_options;
mod kubelet;
mod logging;
mod netns;
mod output;
mod render_command;
mod status_command;
mod top_command;

use std::process::ExitCode;

use cli::{COMMANDS, Command, Given};
use slipway_cli::{Code, Failure, USAGE_ERROR};

/// The name of the agent's command.
const RUN: &str = "run";
/// The name of the command that prints the files of a deployment.
const RENDER: &str = "render";
/// The name of the command that asks the running agent.
const STATUS: &str = "status";
/// The name of the live view.
const TOP: &str = "top";

fn main() -> ExitCode {
    let args: Result<Vec<String>, _> =
        std::env::args_os().skip(1).map(std::ffi::OsString::into_string).collect();
    // A service logs its changes, a command logs troubles only.
    let is_service = args.as_ref().is_ok_and(|args| args.first().is_some_and(|word| word == RUN));
    let level = if is_service { "warn,slipwayd=info" } else { "warn" };
    logging::start(level, args.as_deref().unwrap_or_default());
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let args = match args {
        Ok(args) => args,
        Err(other) => {
            log::error!("the argument {other:?} is not UTF-8");
            return USAGE_ERROR.into();
        }
    };
    slipway_cli::run(&cli::PROGRAM, code, &args, &mut out, &mut err).into()
}

/// The code of the command of that name.
fn code(name: &str) -> Option<Code> {
    if name == RUN {
        return Some(|words, _, _| serve(words));
    }
    if name == RENDER {
        return Some(|words, out, _| render_command::run(words, out));
    }
    if name == STATUS {
        return Some(|words, out, _| status(words, out));
    }
    if name == TOP {
        return Some(|words, out, _| top_command::run(words, out));
    }
    let (command, _) = COMMANDS.into_iter().find(|(_, known)| *known == name)?;
    Some(match command {
        Command::Up => |words, _, _| run(Command::Up, words),
        Command::Down => |words, _, _| run(Command::Down, words),
        Command::Status => |words, _, _| run(Command::Status, words),
        Command::List => |words, _, _| run(Command::List, words),
        Command::Gc => |words, _, _| run(Command::Gc, words),
        Command::Networks => |words, _, _| run(Command::Networks, words),
    })
}

/// Runs the agent until a signal.
fn serve(words: &slipway_cli::Given) -> Result<u8, Failure> {
    let given = cluster_command::read(words).map_err(Failure::Usage)?;
    // Before anything is read or changed: two agents would undo each other's changes.
    let run_dir = given.lock().map_err(Failure::failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(commands::Failure::Runtime).and_then(|runtime| {
        let done = runtime.block_on(async {
            let mut ends = commands::Ends::new().map_err(commands::Failure::Signals)?;
            cluster_command::run(given, &run_dir, ends.next()).await.map_err(commands::Failure::Agent)
        });
        runtime.shutdown_background();
        done
    });
    done.map(|()| 0).map_err(Failure::failed)
}

/// Prints the state of the running agent.
fn status(words: &slipway_cli::Given, out: &mut dyn std::io::Write) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let document = runtime
        .map_err(commands::Failure::Runtime)
        .and_then(|runtime| Ok(runtime.block_on(status_command::read(words.value("--socket")))?));
    status_command::print(document.map_err(Failure::failed)?, words.json(), out)?;
    Ok(0)
}

/// Runs a command to its end. It writes to standard output itself.
fn run(command: Command, words: &slipway_cli::Given) -> Result<u8, Failure> {
    let given = Given::new(command, words).map_err(Failure::Usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(commands::Failure::Runtime).and_then(|runtime| {
        let done = runtime.block_on(commands::run(given));
        // A thread that waits for a lock must not delay the end.
        runtime.shutdown_background();
        done
    });
    done.map(|()| 0).map_err(Failure::failed)
}
