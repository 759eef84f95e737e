// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipwayd`, the node's agent.
//!
//! [`cli`] reads the command line and prints help, [`commands`] runs the commands, [`netns`] makes named network
//! namespaces; [`kubelet`] runs them by a network plugin of kubelet. The logic is that of `cni_runtime::pods` and
//! `cni_runtime::kubelet`.

mod cli;
mod commands;
mod kubelet;
mod netns;
mod output;

use std::io::Write as _;
use std::process::ExitCode;

use cli::Stop;

fn main() -> ExitCode {
    let default = env_logger::Env::new().filter_or("SLIPWAY_LOG", "warn");
    env_logger::Builder::from_env(default).target(env_logger::Target::Stderr).init();
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let (text, code) = match cli::parse(args) {
        Ok(given) => return run(given),
        Err(Stop::Print(text)) => {
            // Without a reader there is nothing to report.
            drop(std::io::stdout().write_all(text.as_bytes()));
            return ExitCode::SUCCESS;
        }
        Err(Stop::Usage { command, text }) => {
            (format!("slipwayd{command}: {text}\n`slipwayd{command} --help` explains the arguments\n"), 2)
        }
    };
    drop(std::io::stderr().write_all(text.as_bytes()));
    ExitCode::from(code)
}

fn run(given: cli::Given) -> ExitCode {
    let words = given.command.words();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(commands::Failure::Runtime).and_then(|runtime| {
        let done = runtime.block_on(commands::run(given));
        // A thread that waits for a lock must not delay the end.
        runtime.shutdown_background();
        done
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(std::io::stderr().write_all(format!("slipwayd {words}: {error}\n").as_bytes()));
            ExitCode::FAILURE
        }
    }
}
