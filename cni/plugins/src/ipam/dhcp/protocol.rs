// SPDX-License-Identifier: GPL-2.0-or-later

//! The protocol between plugin and daemon: a request and a reply, each a JSON object in one line.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use cni_spec::{AddResult, CniError, ErrorCode, Version};
use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::lease::Owner;
use super::message::Options;

/// The longest line, in bytes.
const LONGEST: u64 = 1 << 20;

/// The plugin's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub(super) enum Request {
    /// Return the attachment's lease, or request one.
    Allocate {
        owner: Owner,
        /// The container's namespace.
        netns: PathBuf,
        options: Options,
    },
    /// Renew the attachment's lease.
    Renew { owner: Owner },
    /// Release the attachment's lease.
    Release { owner: Owner },
    /// Release all leases of a network except those of these owners.
    Retain { network: String, owners: Vec<Owner> },
    /// Test that the daemon replies.
    Ping,
}

impl Request {
    /// The reference's name, for errors.
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Allocate { .. } => "Allocate",
            Self::Renew { .. } => "Renew",
            Self::Release { .. } => "Release",
            Self::Retain { .. } => "Retain",
            Self::Ping => "Ping",
        }
    }

    /// The time limit for the daemon's reply.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(match self {
            // The daemon waits for servers, as long as its flag `-resendtimeout` allows.
            Self::Allocate { .. } => 600,
            // The daemon waits for another call of the same attachment (`BUSY_LIMIT`), but for no server.
            Self::Renew { .. } | Self::Release { .. } | Self::Retain { .. } => 30,
            Self::Ping => 5,
        })
    }
}

/// The daemon's reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Reply {
    /// Success. For a lease, the result in the newest version's form.
    Done(Map<String, Value>),
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

/// Why the peer is not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerError {
    #[error("read the peer's user: {0}")]
    Unknown(Errno),
    #[error("the peer belongs to user {0}, not to root")]
    NotRoot(u32),
}

/// Checks that the peer belongs to root: only plugins of root may request leases, and only a daemon of root
/// may return addresses.
pub(super) fn expect_root(stream: &UnixStream) -> Result<(), PeerError> {
    match getsockopt(stream, PeerCredentials).map_err(PeerError::Unknown)?.uid() {
        0 => Ok(()),
        user => Err(PeerError::NotRoot(user)),
    }
}

/// Writes one line.
pub(super) fn write<T: Serialize>(stream: &mut dyn Write, value: &T) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    stream.flush()
}

pub(super) fn parse<T: for<'de> Deserialize<'de>>(line: &[u8]) -> Result<T, CniError> {
    serde_json::from_slice(line).map_err(|e| failed("read from", &e))
}

/// The error of an operation on the socket.
pub(super) fn failed(operation: &str, error: &dyn std::fmt::Display) -> CniError {
    CniError::new(ErrorCode::Io, format!("{operation} the DHCP socket: {error}"))
}

pub(super) fn read_line(stream: &mut dyn Read) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LONGEST)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(std::io::Error::other("the peer closed the connection before the end of a line"));
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
