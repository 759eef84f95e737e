// SPDX-License-Identifier: GPL-2.0-or-later

//! libmnl's netfilter netlink socket, with a safe way to borrow its descriptor.
#![allow(unsafe_code, reason = "libmnl's socket has no safe way to its descriptor")]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

pub(crate) struct OpenSocket(mnl::Socket);

impl OpenSocket {
    /// Opens a socket in the thread's network namespace.
    pub(crate) fn new() -> io::Result<Self> {
        mnl::Socket::new(mnl::Bus::Netfilter).map(Self)
    }
}

impl AsFd for OpenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the socket, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }
}
