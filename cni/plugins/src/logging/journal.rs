//! The log in the journal, by its native protocol (systemd, "Native Journal Protocol"): a datagram for each
//! line, with a field on each line of it.

use std::os::unix::net::UnixDatagram;

use log::Level;

use super::{Context, LONGEST};

/// Where the journal listens.
const SOCKET: &str = "/run/systemd/journal/socket";

pub(super) struct Journal {
    socket: UnixDatagram,
}

impl Journal {
    /// Opens a socket that never waits; none if there is none to be had.
    pub(super) fn new() -> Option<Self> {
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket })
    }

    /// Sends a line. Where no journal listens, or it is busy, the line is lost.
    pub(super) fn write(&self, level: Level, context: &Context, message: &str) {
        let message = &message[..message.floor_char_boundary(LONGEST)];
        // As syslog(3) has them.
        let priority = match level {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Debug | Level::Trace => 7,
        };
        let mut datagram = format!("MESSAGE={message}\nPRIORITY={priority}\nSYSLOG_IDENTIFIER=slipway\n");
        for (name, value) in context.parts() {
            let name = name.to_ascii_uppercase();
            datagram.push_str(&format!("CNI_{name}={}\n", super::escaped(value)));
        }
        let _lost = self.socket.send_to(datagram.as_bytes(), SOCKET);
    }
}
