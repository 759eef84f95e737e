// SPDX-License-Identifier: GPL-2.0-or-later

//! Panics, printed as an error that the runtime can read.

use std::io::Write;

use cni_spec::CniError;

/// Makes each panic print an error (code 999) in the form of `print` to standard output and its place to standard
/// error, and end the process with code 1.
///
/// A result is written in one piece as the last step of a call, so that no part of one precedes the error.
pub fn report_as_error(print: fn(&CniError) -> String) {
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
        let error = CniError::internal(format!("bug{place}: {}", message(info.payload())));
        // The reader may be gone, and there is no other place to report it.
        let _unwritten = writeln!(std::io::stderr(), "{}", error.msg);
        let mut stdout = std::io::stdout();
        let _unwritten = stdout.write_all(print(&error).as_bytes()).and_then(|()| stdout.flush());
        std::process::exit(1);
    }));
}

/// The message in the payload of `panic!`, a string of either kind.
fn message(payload: &(dyn std::any::Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const CHILD: &str = "SLIPWAY_TEST_PANICS";

    /// The test runs itself again in a child process, which panics as a plugin would.
    #[test]
    fn a_panic_is_printed_as_an_error() {
        if std::env::var_os(CHILD).is_some() {
            report_as_error(CniError::print);
            panic!("the <cause>");
        }
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "skel::panic::tests::a_panic_is_printed_as_an_error"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(child.status.code(), Some(1));
        let (stdout, stderr) =
            (String::from_utf8(child.stdout).unwrap(), String::from_utf8(child.stderr).unwrap());
        // The test harness has written its own lines before it.
        let error = CniError::parse(&stdout.as_bytes()[stdout.find('{').unwrap()..]).unwrap();
        assert_eq!(error.code.number(), 999);
        assert!(error.msg.starts_with("bug at ") && error.msg.ends_with(": the <cause>"), "{}", error.msg);
        assert!(stderr.contains(&error.msg), "{stderr}");
    }

    #[test]
    fn both_kinds_of_payload_are_read() {
        assert_eq!(message(&"text"), "text");
        assert_eq!(message(&"text".to_owned()), "text");
        assert_eq!(message(&5), "no message");
    }
}
