// SPDX-License-Identifier: GPL-2.0-or-later

//! The driver of netavark, podman's network stack: `slipway create|setup|teardown|info`.
//!
//! netavark and podman execute the file of the driver's name with one of these commands, JSON on standard input and,
//! for `setup` and `teardown`, the path of the container's namespace. The commands have no other meaning, so that the
//! operator's command, a driver of the same name and a link of another name are one file.
//!
//! A set-up is an ADD: `translate` turns podman's network into a CNI network (`bridge` with the addresses that podman
//! has chosen, `firewall`, `portmap`), and `driver` calls its plugins in this process with the library for runtimes. So
//! podman has what CNI has: undo of a failed set-up, owners, and the cache of attachments, by which a teardown knows
//! what was set up, and `slipway restore`, `ports`, `explain` and `detach` know the container.

mod bridge;
mod create;
mod driver;
mod error;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod isolate;
mod options;
mod store;
mod subnets;
mod translate;
mod types;

use std::io::{self, Read, Write};

use cni_dataplane::deferred_close;
use cni_spec::text;
use serde::de::DeserializeOwned;
use serde_json::json;

use cni_plugins::skel::{LARGEST_CONFIG, panic, socket_closer};

pub(crate) use driver::{in_process, remove_gone};
pub(crate) use error::DriverError;
pub(crate) use isolate::{is_open_since_an_earlier_version, stored_networks};
pub(crate) use store::CACHE;
pub(crate) use subnets::CONFIGURATIONS;

/// The driver's commands. No command of the operator has such a name.
pub(crate) const COMMANDS: [&str; 4] = ["create", "setup", "teardown", "info"];
/// The version of netavark's interface for drivers (its `plugin-API.md`).
const API_VERSION: &str = "1.0.0";

/// True if the arguments are those of a call by netavark or podman.
#[must_use]
pub(crate) fn is_call(args: &[String]) -> bool {
    args.first().is_some_and(|first| COMMANDS.contains(&first.as_str()))
}

/// Runs a command of the driver and returns the exit code: 0, or 1 with an error in netavark's form on `stdout`.
pub(crate) fn run(args: &[String], stdin: &mut dyn Read, stdout: &mut dyn Write) -> u8 {
    panic::report_as_error(|error| failure(&error.msg));
    deferred_close::enable();
    let code = serve(args, stdin, stdout);
    socket_closer::hand_over(args.first().is_some_and(|command| command == "teardown"));
    code
}

fn serve(args: &[String], stdin: &mut dyn Read, stdout: &mut dyn Write) -> u8 {
    let (output, code) = match answer(args, stdin) {
        Ok(output) => (output, 0),
        Err(error) => (failure(&error.to_string()), 1),
    };
    // Written at once, so that an answer is complete or missing.
    match stdout.write_all(output.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => code,
        Err(error) => {
            log::error!("write the answer: {error}");
            1
        }
    }
}

/// An error in netavark's form.
fn failure(message: &str) -> String {
    format!("{}\n", json!({ "error": message }))
}

fn answer(args: &[String], stdin: &mut dyn Read) -> Result<String, DriverError> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["info"] => {
            Ok(text::compact(&json!({ "version": env!("CARGO_PKG_VERSION"), "api_version": API_VERSION })))
        }
        ["create"] => Ok(text::compact(&create::create(read(stdin)?)?)),
        ["setup", netns] => Ok(text::compact(&driver::setup(netns, &read(stdin)?)?)),
        ["teardown", netns] => driver::teardown(netns, &read(stdin)?).map(|()| String::new()),
        _ => Err(DriverError::Arguments(words.join(" "))),
    }
}

fn read<T: DeserializeOwned>(stdin: &mut dyn Read) -> Result<T, DriverError> {
    let mut bytes = Vec::new();
    stdin.take(LARGEST_CONFIG + 1).read_to_end(&mut bytes).map_err(DriverError::Input)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > LARGEST_CONFIG) {
        return Err(DriverError::Input(io::Error::other(format!("larger than {LARGEST_CONFIG} bytes"))));
    }
    serde_json::from_slice(&bytes).map_err(DriverError::Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_text(args: &[&str], input: &str) -> (u8, String) {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut out = Vec::new();
        let code = serve(&args, &mut input.as_bytes(), &mut out);
        (code, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_call_of_netavark_is_known_by_its_command() {
        assert!(is_call(&["setup".to_owned()]) && !is_call(&["ports".to_owned()]) && !is_call(&[]));
    }

    #[test]
    fn info_has_both_versions() {
        let (code, text) = run_text(&["info"], "");
        let info: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (code, &info["api_version"], &info["version"]),
            (0, &json!("1.0.0"), &json!(env!("CARGO_PKG_VERSION")))
        );
    }

    #[test]
    fn errors_have_netavarks_form() {
        for (args, input, text) in [
            (&["setup"][..], "{}", "setup: invalid arguments: see netavark's interface for drivers"),
            (&["create"], "{", "decode the request: EOF while parsing an object at line 1 column 1"),
            (
                &["teardown", "/run/netns/x"],
                "{}",
                "decode the request: missing field `container_id` at line 1 column 2",
            ),
        ] {
            assert_eq!(run_text(args, input), (1, format!("{}\n", json!({ "error": text }))), "{args:?}");
        }
    }
}
