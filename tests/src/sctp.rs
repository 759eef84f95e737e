// SPDX-License-Identifier: GPL-2.0-or-later

//! SCTP connections, which the standard library does not support.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect,
    listen, recv, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use crate::Space;

/// The feature that [`has_sctp`] checks, for [`crate::skip!`].
pub const SCTP: &str = "sctp sockets";

const SENT: &[u8] = b"web";

pub fn has_sctp() -> bool {
    open(AddressFamily::Inet).is_ok()
}

/// Opens a one-to-one style socket (RFC 6458, section 4), which is used like a TCP socket.
fn open(family: AddressFamily) -> nix::Result<OwnedFd> {
    socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, SockProtocol::Sctp)
}

fn open_for(address: SocketAddr) -> OwnedFd {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    open(family).expect("a socket of SCTP")
}

/// Connects from `client` to `to` while a server in `server` listens on `address`, and checks the bytes that the server
/// sends.
#[track_caller]
pub fn expect_sctp(client: &Space, to: SocketAddr, server: &Space, address: SocketAddr) {
    let listener = server.run(|| {
        let socket = open_for(address);
        bind(socket.as_raw_fd(), &SockaddrStorage::from(address)).expect("bind");
        listen(&socket, Backlog::new(4).expect("small")).expect("listen");
        TcpListener::from(socket)
    });
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        stream.write_all(SENT).expect("write");
    });
    let mut stream = client.run(|| {
        let socket = open_for(to);
        connect(socket.as_raw_fd(), &SockaddrStorage::from(to)).expect("connect");
        TcpStream::from(socket)
    });
    let mut received = vec![0; SENT.len()];
    stream.read_exact(&mut received).expect("read");
    assert_eq!(received, SENT);
    serving.join().expect("the server ends");
}

/// The first packets of SCTP associations, which even a kernel without SCTP sends and receives: INIT chunks (RFC 9260,
/// section 3.3.2) from one port.
#[derive(Debug)]
pub struct SctpProbe {
    raw: OwnedFd,
    from_port: u16,
}

impl SctpProbe {
    /// Sends packets from `space`, and receives those that arrive there.
    pub fn new(space: &Space, family: AddressFamily, from_port: u16) -> Self {
        let raw = space.run(|| socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Sctp));
        let raw = raw.expect("a raw socket (the network tests need root)");
        setsockopt(&raw, sockopt::ReceiveTimeout, &TimeVal::milliseconds(500)).expect("a time limit");
        Self { raw, from_port }
    }

    /// Sends an INIT with this initiate tag.
    pub fn send(&self, to: SocketAddr, tag: u32) {
        const INIT: [u8; 4] = [1, 0, 0, 20];
        let mut packet = Vec::new();
        for port in [self.from_port, to.port()] {
            packet.extend(port.to_be_bytes());
        }
        // The verification tag of an INIT is 0. The checksum is filled in below.
        packet.extend([0; 8]);
        packet.extend(INIT);
        packet.extend(tag.to_be_bytes());
        // The receiver window, the numbers of outbound and inbound streams, and the initial sequence number.
        packet.extend(0xffff_u32.to_be_bytes());
        packet.extend([0, 1, 0, 1]);
        packet.extend(tag.to_be_bytes());
        let sum = crc32c(&packet).to_le_bytes();
        packet[8..12].copy_from_slice(&sum);
        // In the address of a raw socket, the port is the protocol number. 0 is accepted.
        let to = SockaddrStorage::from(SocketAddr::new(to.ip(), 0));
        sendto(self.raw.as_raw_fd(), &packet, &to, MsgFlags::empty()).expect("send an INIT");
    }

    /// True if an INIT with this tag arrives within half a second.
    pub fn hears(&self, tag: u32) -> bool {
        let mut buffer = [0; 2048];
        while let Ok(length) = recv(self.raw.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            if buffer[..length].windows(4).any(|window| window == tag.to_be_bytes()) {
                return true;
            }
        }
        false
    }
}

/// The CRC-32C checksum of SCTP (RFC 9260, appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    let one = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), one))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checksum_is_the_rfcs() {
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
    }
}
