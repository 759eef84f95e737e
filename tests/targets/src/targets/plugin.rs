// SPDX-License-Identifier: GPL-3.0-or-later

//! The call of a plugin: its environment with one variable per line, an empty line, and its standard input.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Debug;
use std::os::unix::ffi::OsStringExt as _;

use cni_plugins::fuzzing;
use cni_spec::CniError;

/// The maximum length of an error in bytes: a constant, plus a number for each byte of the configuration, which the
/// error may quote.
const LONGEST: usize = 16 << 10;
const LONGEST_EACH: usize = 64;

/// Calls a plugin, which must succeed or print an error of the specification.
pub(crate) fn call(name: &str, bytes: &[u8]) -> impl Debug {
    let (environment, stdin) = match bytes.windows(2).position(|two| two == b"\n\n") {
        Some(end) => (&bytes[..end], &bytes[end + 2..]),
        None => (&bytes[..0], bytes),
    };
    let variables: BTreeMap<&[u8], &[u8]> = environment
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            line.iter().position(|byte| *byte == b'=').map(|at| (&line[..at], &line[at + 1..]))
        })
        .collect();
    let variable = |name: &str| {
        let given = variables.get(name.as_bytes()).map(|value| OsString::from_vec(value.to_vec()));
        given.or_else(|| (name == "CNI_PATH").then(|| "/nonexistent".into()))
    };
    let (code, stdout) = fuzzing::call(name, &variable, stdin).unwrap();
    assert!(stdout.len() <= LONGEST + LONGEST_EACH * bytes.len(), "{} bytes are printed", stdout.len());
    if code == 0 {
        return Ok(stdout.len());
    }
    assert_eq!(code, 1);
    let error = CniError::parse(&stdout).unwrap();
    assert!(error.code.number() != 0 && !error.msg.is_empty(), "{error:?}");
    // What the message quotes does not count.
    let words: Vec<String> = error.msg.split(['"', ':', '\'']).step_by(2).map(str::to_owned).collect();
    Err((error.code, words.first().map(|words| format_shape(words))))
}

/// A text in the form of a name, so that its words count for the [shape](crate::Shape).
fn format_shape(text: &str) -> Word {
    Word(text.chars().filter(char::is_ascii_alphabetic).take(40).collect())
}

struct Word(String);

impl Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
