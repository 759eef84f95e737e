// SPDX-License-Identifier: GPL-2.0-or-later

//! Connections of SCTP, which the standard library does not have.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, listen, socket,
};

use crate::Space;

/// The feature that [`has_sctp`] checks, for [`crate::skip!`].
pub const SCTP: &str = "sctp sockets";

/// The bytes that the server sends.
const SENT: &[u8] = b"web";

pub fn has_sctp() -> bool {
    open(AddressFamily::Inet).is_ok()
}

/// Opens a one-to-one style socket (RFC 6458, section 4), which behaves as a TCP socket.
fn open(family: AddressFamily) -> nix::Result<OwnedFd> {
    socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, SockProtocol::Sctp)
}

fn open_for(address: SocketAddr) -> OwnedFd {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    open(family).expect("a socket of SCTP")
}

/// Connects from `client` to `to` while a server in `server` listens on `address`, and receives what that sends.
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
