// SPDX-License-Identifier: MIT OR Apache-2.0

//! `CNI_ARGS`: extra arguments as `KEY=VALUE;KEY=VALUE`.
//!
//! The rules are those of the reference (`LoadArgs`). Every part must split at `=` into exactly two, so an empty part
//! (after a semicolon at the end) and a value that contains `=` are errors. Keys are case-sensitive. An unknown key is
//! an error unless `IgnoreUnknown` is true anywhere in the arguments.

use std::fmt::Display;
use std::str::FromStr;

use crate::{CniError, ErrorCode, text};

/// The key that every plugin knows. If it is true, unknown keys are accepted.
const IGNORE_UNKNOWN: &str = "IgnoreUnknown";

/// The arguments in `CNI_ARGS` that the plugin knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Args {
    pairs: Vec<(String, String)>,
}

/// Invalid `CNI_ARGS`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgsError {
    /// A part does not split at `=` into exactly two.
    #[error("ARGS: invalid pair {}", text::quote(.0))]
    Pair(String),
    /// Keys are unknown.
    #[error("ARGS: unknown args {}", text::quote_all(.0))]
    Unknown(Vec<String>),
    /// The value of a known key is invalid.
    #[error("ARGS: error parsing value of pair {}: {message}", text::quote(pair))]
    Value {
        /// The key and the value.
        pair: String,
        /// Why the value is invalid.
        message: String,
    },
}

impl Args {
    /// Parses `CNI_ARGS` for a plugin that knows these keys besides `IgnoreUnknown`.
    ///
    /// # Errors
    /// [`ArgsError::Pair`], [`ArgsError::Unknown`], or [`ArgsError::Value`] for `IgnoreUnknown`.
    pub fn parse(text: &str, known: &[&str]) -> Result<Self, ArgsError> {
        let mut args = Self::default();
        if text.is_empty() {
            return Ok(args);
        }
        let (mut unknown, mut ignore) = (Vec::new(), false);
        for pair in text.split(';') {
            let mut parts = pair.split('=');
            let (Some(key), Some(value), None) = (parts.next(), parts.next(), parts.next()) else {
                return Err(ArgsError::Pair(pair.to_owned()));
            };
            if key == IGNORE_UNKNOWN {
                ignore = boolean(value).ok_or_else(|| ArgsError::Value {
                    pair: pair.to_owned(),
                    message: format!("boolean unmarshal error: invalid input {value}"),
                })?;
            } else if known.contains(&key) {
                args.pairs.push((key.to_owned(), value.to_owned()));
            } else {
                unknown.push(pair.to_owned());
            }
        }
        if unknown.is_empty() || ignore { Ok(args) } else { Err(ArgsError::Unknown(unknown)) }
    }

    /// The value of a key. If the key occurs several times, the last value counts.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// The parsed value of a key.
    ///
    /// # Errors
    /// [`ArgsError::Value`] with the pair and the parser's error.
    pub fn value<T: FromStr<Err: Display>>(&self, key: &str) -> Result<Option<T>, ArgsError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.parse().map(Some).map_err(|e: T::Err| self.bad_value(key, e.to_string()))
    }

    /// The error for a value that the caller refuses.
    #[must_use]
    pub fn bad_value(&self, key: &str, message: impl Into<String>) -> ArgsError {
        let pair = format!("{key}={}", self.get(key).unwrap_or_default());
        ArgsError::Value { pair, message: message.into() }
    }
}

/// Parses `1`, `true`, `0` or `false`, in any case.
fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

impl From<ArgsError> for CniError {
    /// Converts to code 4, because the arguments are part of the environment.
    fn from(error: ArgsError) -> Self {
        Self::new(ErrorCode::InvalidEnvironment, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const KNOWN: &[&str] = &["IP", "MAC"];

    #[test]
    fn known_keys_are_read() {
        let args = Args::parse("IP=10.0.0.1;IgnoreUnknown=1;K8S_POD_NAME=a;IP=10.0.0.2", KNOWN).unwrap();
        assert_eq!(args.value::<IpAddr>("IP").unwrap(), Some("10.0.0.2".parse().unwrap()));
        assert_eq!((args.get("MAC"), args.get("K8S_POD_NAME")), (None, None));
        assert_eq!(Args::parse("", KNOWN), Ok(Args::default()));
        assert!(Args::parse("FOO=1;IgnoreUnknown=TRUE", KNOWN).is_ok());
    }

    #[test]
    fn messages_of_the_reference() {
        let cases = [
            ("FOO", r#"ARGS: invalid pair "FOO""#),
            ("IP=10.0.0.1;", r#"ARGS: invalid pair """#),
            ("IP=a=b", r#"ARGS: invalid pair "IP=a=b""#),
            ("FOO=BAR;IP=1;ip=2", r#"ARGS: unknown args ["FOO=BAR" "ip=2"]"#),
            ("FOO=BAR;IgnoreUnknown=0", r#"ARGS: unknown args ["FOO=BAR"]"#),
            (
                "IgnoreUnknown=yes",
                r#"ARGS: error parsing value of pair "IgnoreUnknown=yes": boolean unmarshal error: invalid input yes"#,
            ),
        ];
        for (text, want) in cases {
            assert_eq!(Args::parse(text, KNOWN).unwrap_err().to_string(), want, "{text}");
        }
        let error = Args::parse("IP=x", KNOWN).unwrap().value::<IpAddr>("IP").unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"ARGS: error parsing value of pair "IP=x": invalid IP address syntax"#
        );
        assert_eq!(CniError::from(error).code, ErrorCode::InvalidEnvironment);
    }
}
