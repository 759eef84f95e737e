// SPDX-License-Identifier: GPL-2.0-or-later

//! The program: looks up the name that it was called by in the plugins' registry and answers as that plugin, as `cnitool`, as
//! netavark's driver ([`netavark`]), or as `slipway` itself, with its commands for operators ([`operator`]).
//!
//! A library, so that the fuzz targets reach its parsers.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod netavark;
mod operator;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use cni_kernel::process;
use cni_plugins::skel::socket_closer;
use cni_plugins::{logging, registry};
use cni_spec::{CniError, ErrorCode};

/// Standard output without the buffer of [`io::Stdout`]. That buffer writes a text up to its last line break first and
/// then the rest, which would wake the runtime twice.
struct Unbuffered;

impl Write for Unbuffered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(nix::unistd::write(io::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Answers the call of this process.
pub fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let called = args.next().unwrap_or_default();
    let name = Path::new(&called).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let given: Vec<OsString> = args.collect();
    let is_daemon = given.iter().take(2).any(|arg| arg == "daemon");
    // A daemon returns no result, so its log is the only trace of its work.
    logging::start(if is_daemon { "info" } else { "error" });
    let (mut stdout, mut stderr) = (std::io::stdout(), std::io::stderr());
    if name == socket_closer::NAME {
        return u8::from(socket_closer::close_sockets().is_err()).into();
    }
    // The reference's systemd units call its daemon as `dhcp daemon`.
    let is_plugin = !(name == "dhcp" && is_daemon);
    if let Some(plugin) = registry::find(name).filter(|_| is_plugin) {
        process::spare_allocations();
        return registry::serve(plugin, &mut Unbuffered, &mut stderr).into();
    }
    let program = if name == operator::cnitool::NAME { name } else { "slipway" };
    let args = match slipway_cli::utf8(program, given.into_iter(), &mut stderr) {
        Ok(args) => args,
        Err(code) if name == operator::cnitool::NAME => return code.min(1).into(),
        Err(code) => return code.into(),
    };
    if name == operator::cnitool::NAME {
        return operator::cnitool::cnitool_command(&args, &mut stdout, &mut stderr).into();
    }
    if !is_plugin {
        let args: Vec<String> = std::iter::once(name.to_owned()).chain(args).collect();
        return operator::run(&args, &mut stdout, &mut stderr).into();
    }
    if netavark::is_call(&args) {
        return netavark::run(&args, &mut std::io::stdin().lock(), &mut stdout).into();
    }
    // A runtime whose configuration names an unknown plugin must get an error.
    if args.is_empty() && std::env::var_os("CNI_COMMAND").is_some_and(|command| !command.is_empty()) {
        let msg = format!("{name:?} is not a plugin of this binary; it has {}", registry::names().join(", "));
        let error = CniError::new(ErrorCode::InvalidConfig, msg);
        // If the write fails, the exit code still reports the error.
        let _unwritten = stdout.write_all(error.print().as_bytes());
        return ExitCode::FAILURE;
    }
    operator::run(&args, &mut stdout, &mut stderr).into()
}
