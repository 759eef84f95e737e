// SPDX-License-Identifier: MIT OR Apache-2.0

//! The specification's errors.

use serde::{Deserialize, Serialize};

use crate::field::json_error;
use crate::{AttachmentError, fold, text};

/// Error codes of the CNI specification 1.1.0, section "Error", and of its reference library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// 1: the configuration's version is not supported.
    IncompatibleVersion,
    /// 2: a field of the configuration is not supported.
    UnsupportedField,
    /// 3: the container is unknown or does not exist.
    UnknownContainer,
    /// 4: an environment variable is missing or invalid.
    InvalidEnvironment,
    /// 5: reading or writing failed.
    Io,
    /// 6: the configuration cannot be decoded.
    Decode,
    /// 7: the configuration is invalid.
    InvalidConfig,
    /// 8: the network namespace is the plugin's own.
    InvalidNetns,
    /// 11: a transient condition; the runtime should try again.
    TryAgainLater,
    /// 50: the plugin is not available, so it cannot serve ADD.
    NotAvailable,
    /// 51: the plugin is not available, and existing containers may have limited connectivity.
    LimitedConnectivity,
    /// 999: any other error, as the reference plugins report errors without a code.
    Internal,
    /// Any other code. From 100 on, codes are specific to a plugin.
    Other(u32),
}

impl ErrorCode {
    /// The code's number in the JSON error.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::IncompatibleVersion => 1,
            Self::UnsupportedField => 2,
            Self::UnknownContainer => 3,
            Self::InvalidEnvironment => 4,
            Self::Io => 5,
            Self::Decode => 6,
            Self::InvalidConfig => 7,
            Self::InvalidNetns => 8,
            Self::TryAgainLater => 11,
            Self::NotAvailable => 50,
            Self::LimitedConnectivity => 51,
            Self::Internal => 999,
            Self::Other(code) => code,
        }
    }
}

impl From<u32> for ErrorCode {
    fn from(code: u32) -> Self {
        match code {
            1 => Self::IncompatibleVersion,
            2 => Self::UnsupportedField,
            3 => Self::UnknownContainer,
            4 => Self::InvalidEnvironment,
            5 => Self::Io,
            6 => Self::Decode,
            7 => Self::InvalidConfig,
            8 => Self::InvalidNetns,
            11 => Self::TryAgainLater,
            50 => Self::NotAvailable,
            51 => Self::LimitedConnectivity,
            999 => Self::Internal,
            other => Self::Other(other),
        }
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.number())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u32::deserialize(deserializer).map(Self::from)
    }
}

/// An error as a plugin prints it, with code, message and details.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{msg}{}{details}", if details.is_empty() { "" } else { "; " })]
pub struct CniError {
    /// The kind of error.
    pub code: ErrorCode,
    /// The failure, in one line.
    pub msg: String,
    /// Further details, omitted from the output if empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl CniError {
    /// Creates an error without details.
    pub fn new(code: ErrorCode, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: String::new() }
    }

    /// Adds details.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// Creates an error with code 7: the configuration is invalid.
    pub fn config(msg: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidConfig, msg)
    }

    /// Creates an error with code 999, for errors that have no other code.
    pub fn internal(msg: impl Into<String>) -> Self {
        Self::new(ErrorCode::Internal, msg)
    }

    /// The error as a plugin prints it: JSON indented by four spaces, without a final newline.
    #[must_use]
    pub fn print(&self) -> String {
        text::pretty(self)
    }

    /// Decodes an error that a plugin has printed. Missing keys are decoded as empty, and a missing code as 0.
    ///
    /// # Errors
    /// [`ParseError`] if the bytes are not a JSON object, or a value does not fit its key.
    pub fn parse(output: &[u8]) -> Result<Self, ParseError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Printed {
            code: u32,
            msg: String,
            details: String,
        }
        let value: serde_json::Value =
            serde_json::from_slice(output).map_err(|e| ParseError::Json(json_error(&e)))?;
        let Printed { code, msg, details } = fold::from_value(&value)?;
        Ok(Self { code: code.into(), msg, details })
    }
}

/// Output that is not a CNI error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The output is not JSON.
    #[error("{0}")]
    Json(String),
    /// A value does not fit its key.
    #[error(transparent)]
    Key(#[from] fold::FoldError),
}

impl From<AttachmentError> for CniError {
    /// Converts with the codes and messages of the reference: 7 for the network's name, which is part of the
    /// configuration, and 4 for names that are part of the environment.
    fn from(error: AttachmentError) -> Self {
        use AttachmentError as E;
        let ifname = |name: String| format!("CNI_IFNAME is {}", text::quote(&name));
        let (code, msg, details) = match error {
            E::NetworkMissing => (ErrorCode::InvalidConfig, "missing network name", String::new()),
            E::Network(name) => (ErrorCode::InvalidConfig, "invalid characters found in network name", name),
            E::ContainerIdMissing => (ErrorCode::UnknownContainer, "missing containerID", String::new()),
            E::ContainerId(id) => (ErrorCode::InvalidEnvironment, "invalid characters in containerID", id),
            E::IfnameEmpty => (ErrorCode::InvalidEnvironment, "interface name is empty", String::new()),
            E::IfnameTooLong(name) => (
                ErrorCode::InvalidEnvironment,
                "interface name is too long",
                format!("interface name should be less than 16 characters; {}", ifname(name)),
            ),
            E::IfnameDots(name) => (ErrorCode::InvalidEnvironment, "interface name is . or ..", ifname(name)),
            E::IfnameCharacters(name) => (
                ErrorCode::InvalidEnvironment,
                "interface name contains / or : or whitespace characters",
                ifname(name),
            ),
            E::IfnamePattern(name) => {
                (ErrorCode::InvalidEnvironment, "interface name contains %", ifname(name))
            }
            E::LinkName(name) => (ErrorCode::InvalidEnvironment, "no link can have this name", name),
        };
        Self::new(code, msg).with_details(details)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_printed_as_the_reference_prints_it_and_read_again() {
        let error = CniError::new(ErrorCode::TryAgainLater, "no <address>").with_details("net a");
        let printed = error.print();
        assert_eq!(
            printed,
            "{\n    \"code\": 11,\n    \"msg\": \"no \\u003caddress\\u003e\",\n    \"details\": \"net a\"\n}"
        );
        assert_eq!(CniError::parse(printed.as_bytes()), Ok(error));
        let short = CniError::internal("m");
        assert_eq!(short.print(), "{\n    \"code\": 999,\n    \"msg\": \"m\"\n}");
    }
}
