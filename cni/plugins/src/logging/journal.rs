// SPDX-License-Identifier: GPL-2.0-or-later

//! Log lines to the journal, by its native protocol (systemd, "Native Journal Protocol"): a datagram for each
//! log line, with one field on each line of the datagram.

use std::os::unix::net::UnixDatagram;

use log::Level;

use super::line::{Context, LONGEST, escaped};

/// The journal's socket.
const SOCKET: &str = "/run/systemd/journal/socket";

pub(super) struct Journal {
    socket: UnixDatagram,
}

impl Journal {
    /// Opens a non-blocking socket; none if the kernel refuses it.
    pub(super) fn new() -> Option<Self> {
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket })
    }

    /// Sends a line. It is lost if no journal listens, or the journal is busy.
    pub(super) fn write(&self, level: Level, context: &Context, message: &str) {
        let message = &message[..message.floor_char_boundary(LONGEST)];
        // The priorities of syslog(3).
        let priority = match level {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Debug | Level::Trace => 7,
        };
        let mut datagram = format!("MESSAGE={message}\nPRIORITY={priority}\nSYSLOG_IDENTIFIER=slipway\n");
        for (name, value) in context.parts() {
            let name = name.to_ascii_uppercase();
            datagram.push_str(&format!("CNI_{name}={}\n", escaped(value)));
        }
        let _lost = self.socket.send_to(datagram.as_bytes(), SOCKET);
    }
}
