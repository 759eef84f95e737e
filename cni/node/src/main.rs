// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd`, the node's agent: reads the command line, starts the log and runs the command ([`commands`]). What the
//! commands do is in the library.

mod commands;
mod logging;

use std::process::ExitCode;

use commands::Arguments;

fn main() -> ExitCode {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let args = match slipway_cli::utf8("slipwayd", std::env::args_os().skip(1), &mut err) {
        Ok(args) => args,
        Err(code) => return code.into(),
    };
    let code = slipway_cli::run::<Arguments>(&args, &mut out, &mut err, |Arguments { command }, out, _| {
        logging::start(command.log_level(), command.log_format());
        command.execute(out)
    });
    code.into()
}
