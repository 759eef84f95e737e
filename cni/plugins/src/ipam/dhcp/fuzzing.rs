// SPDX-License-Identifier: GPL-2.0-or-later

//! The input of the daemon, for fuzzing: packets from any host on the network, calls of plugins, and its own files.

use std::fmt::Debug;
use std::net::Ipv4Addr;

use cni_kernel::mac::Mac;

use super::frame::to_client;
use super::lease::{Lease, Owner, Terms};
use super::message::{Client, Options};
use super::protocol::{self, Reply, Request, read_line};

/// The transaction and the client to which a packet replies.
const TRANSACTION: u32 = 0x1234_5678;
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// An IP packet that arrives at the client's port, or else a message without headers.
pub fn packet(bytes: &[u8]) -> Option<impl Debug> {
    let message = to_client(bytes).unwrap_or(bytes);
    let client =
        Client { mac: MAC, id: "c/n/eth0".to_owned(), options: Options::default(), broadcast: false };
    let reply = client.read(TRANSACTION, message)?;
    let terms = Terms::of(&reply, Some(Ipv4Addr::new(10, 0, 0, 1)));
    if let Ok(terms) = &terms {
        assert!(!terms.address().is_unspecified() && !terms.server().is_unspecified(), "{terms:?}");
    }
    Some((Terms::check_offer(&reply).is_ok(), terms, reply))
}

/// A line from a plugin to the daemon, and from the daemon to a plugin. Accepted input must not change when it is
/// written again.
pub fn call(mut bytes: &[u8]) -> Option<impl Debug> {
    let line = read_line(&mut bytes).ok()?;
    let request = protocol::parse::<Request>(&line);
    if let Ok(request) = &request {
        let mut written = Vec::new();
        assert!(protocol::write(&mut written, request).is_ok());
        let again = protocol::parse::<Request>(&written);
        assert_eq!(again.as_ref().ok(), Some(request), "a request is another one when it is written again");
    }
    Some((request.map(|request| request.method()), protocol::parse::<Reply>(&line)))
}

/// The file of a lease: a line with its name, and its content.
pub fn lease(bytes: &[u8]) -> impl Debug {
    let (name, content) = match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, bytes),
    };
    let name = String::from_utf8_lossy(name);
    let owner = Owner::of_file(&name);
    if let Some(owner) = &owner {
        assert_eq!(owner.file_name(), name);
        assert!(owner.checked().is_ok());
    }
    let lease = serde_json::from_slice::<Lease>(content);
    (owner, lease.map(|lease| lease.owner.checked()))
}
