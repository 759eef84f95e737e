// SPDX-License-Identifier: GPL-2.0-or-later

//! The cookie of a network namespace: the maps name links by an index that another namespace uses for other links.
#![allow(unsafe_code, reason = "nix has no such socket option")]

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::libc;

/// `SO_NETNS_COOKIE` of asm-generic/socket.h, from Linux 5.14 on; libc has it for some targets only.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The cookie of the calling thread's namespace; 0, which no namespace has, if the kernel does not return it.
pub(super) fn of_this_namespace() -> u64 {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_or(0, |socket| cookie(&socket))
}

fn cookie(socket: &UdpSocket) -> u64 {
    let mut cookie = 0u64;
    let mut length: libc::socklen_t = 8;
    // SAFETY: both pointers lead to variables of this function, the length is that of the first.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { cookie } else { 0 }
}
