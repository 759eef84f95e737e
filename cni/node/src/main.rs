// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd`, the node's agent: reads the command line, starts the log and runs the command ([`commands`]). What the
//! commands do is in the library.

mod commands;
mod logging;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use commands::Arguments;

fn main() -> ExitCode {
    let args: Result<Vec<String>, _> = std::env::args_os().skip(1).map(OsString::into_string).collect();
    let args = match args {
        Ok(args) => args,
        Err(other) => {
            let line = format!("slipwayd: the argument {other:?} is not UTF-8 (see `slipwayd --help`)");
            let _unwritable = writeln!(std::io::stderr(), "{line}");
            return 2.into();
        }
    };
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let code = slipway_cli::run::<Arguments>(&args, &mut out, &mut err, |Arguments { command }, out, _| {
        logging::start(command.log_level(), command.log_format());
        command.execute(out)
    });
    code.into()
}
