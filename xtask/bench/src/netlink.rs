// SPDX-License-Identifier: MIT OR Apache-2.0

//! Netlink for the kernel's floor: raw requests with an acknowledgement each.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

use xtask_base::error::{Error, Result};

/// `NLM_F_REQUEST` (linux/netlink.h).
pub(super) const REQUEST: u16 = 0x1;
/// `NLM_F_ACK` (linux/netlink.h).
pub(super) const ACK: u16 = 0x4;
/// `NLA_F_NESTED` (linux/netlink.h).
const NESTED: u16 = 1 << 15;
/// `NLMSG_ERROR` (linux/netlink.h): an acknowledgement is an error with the number 0.
const NLMSG_ERROR: u16 = 0x2;
/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;

/// An open socket.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl Socket {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel does not support the protocol.
    pub(super) fn open(protocol: SockProtocol) -> Result<Self> {
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
            .map(Self)
            .map_err(|e| Error::system("open a netlink socket", e))
    }

    /// Sends a request, one message of which asks for an acknowledgement, and waits for that.
    ///
    /// # Errors
    /// The kernel's error, with `operation`.
    pub(super) fn request(&self, bytes: &[u8], operation: &str) -> Result<()> {
        let failed = |e: Errno| Error::system(operation, e);
        send(self.0.as_raw_fd(), bytes, MsgFlags::empty()).map_err(failed)?;
        let mut answer = [0; 8192];
        let length = recv(self.0.as_raw_fd(), &mut answer, MsgFlags::empty()).map_err(failed)?;
        match acknowledged(&answer[..length]) {
            Some(0) => Ok(()),
            Some(errno) => Err(failed(Errno::from_raw(-errno))),
            None => Err(Error::Failed(format!("{operation}: the kernel's answer is no acknowledgement"))),
        }
    }
}

/// The number in an acknowledgement: 0, or a negative errno.
fn acknowledged(bytes: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let number = i32::from_ne_bytes(bytes.get(HEADER..HEADER + 4)?.try_into().ok()?);
    (kind == NLMSG_ERROR).then_some(number)
}

/// One message: header and payload.
pub(super) fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + payload.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // Sequence number and port: there is one request at a time, and the kernel fills in the port.
    bytes.extend([0; 8]);
    bytes.extend(payload);
    pad(&mut bytes);
    bytes
}

/// One attribute, padded.
pub(super) fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + payload.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(4 + payload.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(payload);
    pad(&mut bytes);
    bytes
}

/// An attribute that holds attributes.
pub(super) fn nested(kind: u16, attributes: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, attributes)
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_but_say_their_own_length() {
        assert_eq!(attribute(1, b"abc"), [7, 0, 1, 0, b'a', b'b', b'c', 0]);
        assert_eq!(nested(3, &[])[2..4], [3, 0x80]);
    }

    #[test]
    fn an_error_is_told_from_an_acknowledgement() {
        let answer = |number: i32| message(NLMSG_ERROR, 0, &number.to_ne_bytes());
        assert_eq!(acknowledged(&answer(0)), Some(0));
        assert_eq!(acknowledged(&answer(-2)), Some(-2));
        assert_eq!(acknowledged(&message(3, 0, &[0; 4])), None);
        assert_eq!(acknowledged(&[0; 5]), None);
    }
}
