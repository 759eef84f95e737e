//! What plugin and daemon say to each other: a JSON object in a line of its own, and one in answer.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use cni_spec::{AddResult, CniError, ErrorCode, Version};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::lease::Owner;
use super::message::Options;

/// The longest line, in bytes.
const LONGEST: u64 = 1 << 20;

/// What the plugin wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub(super) enum Request {
    /// A lease: the one that the attachment has, or a new one.
    Allocate {
        /// Whose.
        owner: Owner,
        /// The container's namespace.
        netns: PathBuf,
        /// What to ask and tell the server.
        options: Options,
    },
    /// The lease that the attachment has is to be renewed.
    Renew {
        /// Whose.
        owner: Owner,
    },
    /// The attachment's lease is to be given back.
    Release {
        /// Whose.
        owner: Owner,
    },
    /// All leases of a network but those of these owners are to be given back.
    Retain {
        /// The network.
        network: String,
        /// Who keeps theirs.
        owners: Vec<Owner>,
    },
    /// Is anybody there?
    Ping,
}

impl Request {
    /// What errors call it.
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Allocate { .. } => "Allocate",
            Self::Renew { .. } => "Renew",
            Self::Release { .. } => "Release",
            Self::Retain { .. } => "Retain",
            Self::Ping => "Ping",
        }
    }

    /// How long the daemon is waited for.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(match self {
            // It waits for servers as long as its flag `-resendtimeout` says.
            Self::Allocate { .. } => 600,
            // It waits for another call of the same attachment (`TO_STOP`), but for no server.
            Self::Renew { .. } | Self::Release { .. } | Self::Retain { .. } => 30,
            Self::Ping => 5,
        })
    }
}

/// What the daemon says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Reply {
    /// It is done; of an allocation the result in the newest version's form.
    Done(Map<String, Value>),
    /// It is not.
    Failed(CniError),
}

impl Reply {
    pub(super) fn result(result: &AddResult) -> Self {
        match result.to_object(Version::V1_1_0) {
            Ok(object) => Self::Done(object),
            Err(error) => Self::Failed(CniError::internal(error.to_string())),
        }
    }

    pub(super) fn done() -> Self {
        Self::Done(Map::new())
    }
}

/// Whether the other end belongs to root: only root's plugins may have leases, and only a daemon of root's
/// may say what an address is.
pub(super) fn expect_root(stream: &UnixStream) -> Result<(), String> {
    let peer =
        getsockopt(stream, PeerCredentials).map_err(|e| format!("ask for the other end's user: {e}"))?;
    match peer.uid() {
        0 => Ok(()),
        user => Err(format!("the other end belongs to user {user}, not to root")),
    }
}

/// Writes one line.
pub(super) fn write<T: Serialize>(stream: &mut dyn Write, value: &T) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    stream.flush()
}

/// What a line says.
pub(super) fn parse<T: for<'de> Deserialize<'de>>(line: &[u8]) -> Result<T, CniError> {
    serde_json::from_slice(line).map_err(|e| failed("read from", &e))
}

/// The error of an operation on the socket.
pub(super) fn failed(operation: &str, error: &dyn std::fmt::Display) -> CniError {
    CniError::new(ErrorCode::Io, format!("{operation} the DHCP socket: {error}"))
}

/// Reads one line.
pub(super) fn read_line(stream: &mut dyn Read) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LONGEST)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(std::io::Error::other("the other end has said nothing, or no whole line"));
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: for<'de> Deserialize<'de>>(stream: &mut dyn Read) -> Result<T, CniError> {
        parse(&read_line(stream).map_err(|e| failed("read from", &e))?)
    }

    #[test]
    fn lines_are_read_as_they_are_written() {
        let owner = Owner { network: "n".into(), container: "c".into(), ifname: "eth0".into() };
        let request = Request::Allocate { owner, netns: "/run/netns/c".into(), options: Options::default() };
        let mut line = Vec::new();
        write(&mut line, &request).unwrap();
        assert_eq!(read::<Request>(&mut &line[..]).unwrap(), request);
        assert!(read::<Request>(&mut &line[..10]).is_err());
        assert!(read::<Request>(&mut &b"{}\n"[..]).is_err());
        let mut line = Vec::new();
        write(&mut line, &Reply::Failed(CniError::internal("x"))).unwrap();
        assert_eq!(read::<Reply>(&mut &line[..]).unwrap(), Reply::Failed(CniError::internal("x")));
    }
}
