//! Looks its own name up in the registry and answers as that plugin, or as `slipway` itself.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use cni_spec::{CniError, ErrorCode};
use slipway::ipam::dhcp::daemon;
use slipway::{logging, operator, registry, skel};

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let called = args.next().unwrap_or_default();
    let name = Path::new(&called).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    let is_daemon = args.iter().take(2).any(|arg| arg == "daemon");
    // A daemon has no result that would show what it does.
    logging::start(if is_daemon { "info" } else { "error" });
    let (mut stdout, mut stderr) = (std::io::stdout(), std::io::stderr());
    // As the reference's units call it.
    if name == "dhcp" && is_daemon {
        return daemon::dhcp_command(&args, &mut stdout, &mut stderr).into();
    }
    if let Some(plugin) = registry::find(name) {
        return skel::serve(plugin, &mut stdout, &mut stderr).into();
    }
    if name == operator::cnitool::NAME {
        return operator::cnitool::cnitool_command(&args, &mut stdout, &mut stderr).into();
    }
    // A runtime whose configuration names something that is no plugin must get an error.
    if args.is_empty() && std::env::var_os("CNI_COMMAND").is_some_and(|command| !command.is_empty()) {
        let msg = format!("{name:?} is not a plugin of this binary; it has {}", registry::names().join(", "));
        let error = CniError::new(ErrorCode::InvalidConfig, msg);
        // A failed write leaves the exit code to speak.
        let _unheard = stdout.write_all(error.print().as_bytes());
        return ExitCode::FAILURE;
    }
    operator::run(&args, &mut stdout, &mut stderr).into()
}
