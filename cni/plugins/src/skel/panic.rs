//! A bug in a plugin must still give the runtime an error that it can read.

use std::io::Write;

use cni_spec::CniError;

/// From now on a panic prints an error (code 999) to standard output, where it came from to
/// standard error, and ends the process with code 1.
///
/// A result is written in one piece as the last thing of a call, so that no half of one can stand
/// before the error.
pub(super) fn report_as_error() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
        let error = CniError::internal(format!("bug{place}: {}", message(info.payload())));
        // Whoever should hear of it may be gone; there is nobody else to tell.
        let _unheard = writeln!(std::io::stderr(), "{}", error.msg);
        let mut stdout = std::io::stdout();
        let _unheard = stdout.write_all(error.print().as_bytes()).and_then(|()| stdout.flush());
        std::process::exit(1);
    }));
}

/// The payload of `panic!` is a string, one way or the other.
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

    /// This test, run again in a process of its own, panics there as a plugin would.
    #[test]
    fn a_bug_is_told_as_an_error() {
        if std::env::var_os(CHILD).is_some() {
            report_as_error();
            panic!("the <cause>");
        }
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "skel::panic::tests::a_bug_is_told_as_an_error"])
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
