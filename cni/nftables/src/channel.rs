// SPDX-License-Identifier: GPL-2.0-or-later

//! A netfilter netlink socket, opened by libmnl. A later channel of the same thread may use the socket again.

use std::ops::ControlFlow;
use std::rc::Rc;

use cni_netlink::{Ack, End, Error, Message, Refusal, Socket, SocketOption};
use nix::errno::Errno;

use crate::deferred_close;
use crate::nfnetlink::split;
use crate::open_socket::OpenSocket;

/// A socket with its counter of sequence numbers.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: Socket<Rc<OpenSocket>>,
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.socket.is_idle() {
            deferred_close::retire(self.socket.inner());
        }
    }
}

impl Channel {
    /// Opens a socket in the thread's network namespace, or reuses one that an earlier channel has left.
    pub(crate) fn open() -> Result<Self, Errno> {
        if let Some(socket) = deferred_close::idle() {
            return Ok(Self { socket: Socket::over(socket) });
        }
        let open = OpenSocket::new();
        let socket = Rc::new(open.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?);
        deferred_close::keep(&socket);
        let socket = Socket::over(socket);
        socket.enable(&[SocketOption::CappedAck, SocketOption::ExtendedAck]);
        Ok(Self { socket })
    }

    pub(crate) fn next_sequence(&self) -> u32 {
        self.socket.next_sequence()
    }

    /// Sends a batch and returns the acknowledgements of its messages.
    pub(crate) fn batch(&self, bytes: &[u8]) -> Result<Vec<Ack>, Errno> {
        deferred_close::committed();
        self.socket.batch(bytes).map_err(|error| error.errno())
    }

    /// Sends one request, and calls `each` with the family and the attributes of each message of the reply.
    pub(crate) fn request(&self, message: Message, mut each: impl FnMut(u8, &[u8])) -> Result<End, Errno> {
        self.request_until(message, |family, body| {
            each(family, body);
            ControlFlow::Continue(())
        })
    }

    /// Like [`Channel::request`], until `each` breaks. The rest of a list then remains unread.
    pub(crate) fn request_until(
        &self,
        mut message: Message,
        mut each: impl FnMut(u8, &[u8]) -> ControlFlow<()>,
    ) -> Result<End, Errno> {
        let end = self.socket.request(&mut message, &mut |payload| {
            let (family, body) = split(payload);
            each(family, body)
        });
        end.map_err(|error| error.errno())
    }

    /// Reads a list, and repeats that until nothing has changed during the dump. Objects for which `read` returns
    /// none are left out.
    pub(crate) fn dump<T>(
        &self,
        mut message: Message,
        read: impl Fn(u8, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        self.socket.dump(&mut message, |found: &mut Vec<T>, payload| {
            let (family, body) = split(payload);
            found.extend(read(family, body));
            ControlFlow::Continue(())
        })
    }

    /// Sends requests without `NLM_F_ACK` in one datagram. The kernel replies to each with one object or with an
    /// error. Calls `each` with the family and the attributes of each object.
    ///
    /// # Errors
    /// The first error other than ENOENT.
    pub(crate) fn requests(
        &self,
        messages: impl IntoIterator<Item = Message>,
        mut each: impl FnMut(u8, &[u8]),
    ) -> Result<(), Errno> {
        let mut failure = None;
        let done = self.socket.requests(messages, |reply| match reply {
            Ok(payload) => {
                let (family, body) = split(payload);
                each(family, body);
            }
            Err(Refusal { errno: Errno::ENOENT, .. }) => {}
            Err(refusal) => failure = failure.or(Some(refusal.errno)),
        });
        done.map_err(|error| error.errno())?;
        failure.map_or(Ok(()), Err)
    }
}
