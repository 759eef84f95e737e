// SPDX-License-Identifier: GPL-2.0-or-later

//! The cookie of a network namespace, by which a program distinguishes the node's sockets from containers'.
#![allow(unsafe_code, reason = "nix has no such socket options")]

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::libc;

/// `SO_NETNS_COOKIE` of asm-generic/socket.h, from Linux 5.14 on; libc has it for some targets only.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// `SO_COOKIE` of asm-generic/socket.h, from Linux 4.12 on.
const SO_COOKIE: libc::c_int = 57;

/// The cookie of the calling thread's namespace; 0, which no namespace has, if the kernel does not return it.
pub(super) fn of_this_namespace() -> u64 {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_or(0, |socket| cookie(&socket, SO_NETNS_COOKIE))
}

/// A socket in the calling thread's namespace, and its cookie, by which a program can learn the namespace's.
pub(super) fn probe_socket() -> Option<(UdpSocket, u64)> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    let cookie = cookie(&socket, SO_COOKIE);
    (cookie != 0).then_some((socket, cookie))
}

fn cookie(socket: &UdpSocket, option: libc::c_int) -> u64 {
    let mut cookie = 0u64;
    let mut length: libc::socklen_t = 8;
    // SAFETY: both pointers lead to variables of this function, the length is that of the first.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { cookie } else { 0 }
}
