// SPDX-License-Identifier: MIT OR Apache-2.0

//! The replies to one request, from its first datagram to its last.
//!
//! | request has      | replies                               | end                       |
//! |------------------|---------------------------------------|---------------------------|
//! | `NLM_F_ACK`      | the object, if one is read or echoed  | an acknowledgement        |
//! | `NLM_F_DUMP`     | the objects, in several datagrams     | `NLMSG_DONE`              |
//! | neither          | one object                            | the object                |
//! | (any)            | the objects before the error          | an error                  |

use std::ops::ControlFlow;

use crate::ack::{DONE, ERROR, refusal};
use crate::error::Error;
use crate::message::{Header, flag, messages};

/// `NLMSG_NOOP`.
const NOOP: u16 = 1;
/// `NLMSG_OVERRUN`.
const OVERRUN: u16 = 4;

/// The end of the replies to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All replies were received.
    Complete,
    /// All replies were received, but the listed objects changed during the dump (`NLM_F_DUMP_INTR`): some may be
    /// missing or repeated.
    Interrupted,
    /// The caller did not want any more replies.
    Broken,
}

/// Takes the payload of each object of a reply. Breaks if the caller does not need any further objects.
pub(crate) type Each<'a> = dyn FnMut(&[u8]) -> ControlFlow<()> + 'a;

/// The replies that were received so far.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The request's sequence number. Messages with another number belong to earlier requests.
    sequence: u32,
    /// True if the first object is the only one.
    is_single: bool,
    is_interrupted: bool,
}

impl Reply {
    /// Expects the replies to a request with this sequence number and these flags.
    pub(crate) fn new(sequence: u32, flags: u16) -> Self {
        Self { sequence, is_single: flags & (flag::ACK | flag::DUMP) == 0, is_interrupted: false }
    }

    /// Processes a datagram. Returns the end of the replies, if the datagram contains it.
    pub(crate) fn datagram(&mut self, datagram: &[u8], each: &mut Each<'_>) -> Result<Option<End>, Error> {
        for (header, payload) in messages(datagram) {
            if header.sequence == self.sequence
                && let Some(end) = self.message(header, payload, each)?
            {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    fn message(&mut self, header: Header, payload: &[u8], each: &mut Each<'_>) -> Result<Option<End>, Error> {
        self.is_interrupted |= header.flags & flag::DUMP_INTERRUPTED != 0;
        match header.kind {
            NOOP => Ok(None),
            OVERRUN => Err(Error::Overrun),
            ERROR | DONE => match refusal(header, payload) {
                Some(refusal) => Err(Error::Refused(refusal)),
                None if self.is_interrupted => Ok(Some(End::Interrupted)),
                None => Ok(Some(End::Complete)),
            },
            _ => {
                let flow = each(payload);
                Ok(match (self.is_single, flow) {
                    (true, _) => Some(End::Complete),
                    (false, ControlFlow::Break(())) => Some(End::Broken),
                    (false, ControlFlow::Continue(())) => None,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use proptest::prelude::*;

    use super::*;
    use crate::ack::tests::{error, sent};
    use crate::error::Refusal;

    const OBJECT: u16 = 16;
    const MULTI: u16 = 2;

    /// Returns the first bytes of the objects in the datagrams, and the end.
    fn read(reply: &mut Reply, datagrams: &[Vec<u8>]) -> (Vec<u8>, Result<Option<End>, Error>) {
        let mut objects = Vec::new();
        for datagram in datagrams {
            let end = reply.datagram(datagram, &mut |payload| {
                objects.push(payload[0]);
                ControlFlow::Continue(())
            });
            if end != Ok(None) {
                return (objects, end);
            }
        }
        (objects, Ok(None))
    }

    fn object(sequence: u32, number: u8) -> Vec<u8> {
        sent(OBJECT, MULTI, sequence, &[number, 0, 0, 0])
    }

    fn done(sequence: u32) -> Vec<u8> {
        sent(DONE, MULTI, sequence, &[0; 4])
    }

    #[test]
    fn a_dump_ends_after_all_its_parts() {
        let parts = [[object(9, 1), object(9, 2)].concat(), object(9, 3), [object(9, 4), done(9)].concat()];
        let mut reply = Reply::new(9, flag::DUMP);
        assert_eq!(read(&mut reply, &parts[..2]), (vec![1, 2, 3], Ok(None)));
        assert_eq!(read(&mut reply, &parts[2..]), (vec![4], Ok(Some(End::Complete))));
        // NLMSG_DONE of some dumps has no code.
        let end = read(&mut Reply::new(9, flag::DUMP), &[sent(DONE, MULTI, 9, &[])]);
        assert_eq!(end, (vec![], Ok(Some(End::Complete))));
    }

    #[test]
    fn an_interrupted_dump_is_read_to_its_end() {
        let interrupted = sent(OBJECT, MULTI | flag::DUMP_INTERRUPTED, 9, &[2]);
        let parts = [object(9, 1), interrupted, object(9, 3), done(9)];
        let read = read(&mut Reply::new(9, flag::DUMP), &parts);
        assert_eq!(read, (vec![1, 2, 3], Ok(Some(End::Interrupted))));
    }

    #[test]
    fn a_dump_may_end_with_an_error_and_its_text() {
        let mut payload = (-(Errno::EINVAL as i32)).to_ne_bytes().to_vec();
        payload.extend([7, 0, 1, 0, b'n', b'o', 0, 0]);
        let parts = [object(9, 1), sent(DONE, MULTI | flag::ACK_TLVS, 9, &payload)];
        let refusal = Refusal { errno: Errno::EINVAL, hint: "no".to_owned() };
        let read = read(&mut Reply::new(9, flag::DUMP), &parts);
        assert_eq!(read, (vec![1], Err(Error::Refused(refusal))));
    }

    #[test]
    fn messages_of_an_earlier_request_are_no_replies() {
        let parts = [object(8, 1), done(8), error(8, Errno::EPERM, 0, &[]), object(9, 2), done(9)];
        assert_eq!(read(&mut Reply::new(9, flag::DUMP), &parts), (vec![2], Ok(Some(End::Complete))));
    }

    #[test]
    fn the_end_of_a_request_follows_from_its_flags() {
        let ack = sent(ERROR, 0, 9, &[0; 20]);
        let rows = [
            (0, vec![object(9, 1)], vec![1]),
            (flag::ACK, vec![ack.clone()], vec![]),
            (flag::ACK | flag::ECHO, vec![[object(9, 1), ack.clone()].concat()], vec![1]),
            (flag::ACK | flag::ECHO, vec![object(9, 1), ack], vec![1]),
        ];
        for (flags, parts, objects) in rows {
            let mut reply = Reply::new(9, flags);
            assert_eq!(read(&mut reply, &parts), (objects, Ok(Some(End::Complete))), "{flags}");
        }
        let refused = error(9, Errno::ENODEV, 0, &[]);
        let refusal = Refusal { errno: Errno::ENODEV, hint: String::new() };
        assert_eq!(read(&mut Reply::new(9, 0), &[refused]), (vec![], Err(Error::Refused(refusal))));
    }

    #[test]
    fn a_caller_can_break_a_dump() {
        let parts = [object(9, 1), object(9, 2), done(9)].concat();
        let mut objects = 0;
        let end = Reply::new(9, flag::DUMP).datagram(&parts, &mut |_| {
            objects += 1;
            ControlFlow::Break(())
        });
        assert_eq!((objects, end), (1, Ok(Some(End::Broken))));
    }

    #[test]
    fn lost_data_is_an_error_and_nothing_is_none() {
        let overrun = [sent(NOOP, 0, 9, &[]), sent(OVERRUN, 0, 9, &[])];
        assert_eq!(read(&mut Reply::new(9, flag::DUMP), &overrun), (vec![], Err(Error::Overrun)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(datagram: Vec<u8>, flags: u16) {
            // Use the sequence number that the arbitrary bytes contain.
            let sequence = datagram.get(8..).map_or(0, crate::message::u32_of);
            let _ = Reply::new(sequence, flags).datagram(&datagram, &mut |_| ControlFlow::Continue(()));
        }

        #[test]
        fn a_dump_is_the_same_however_it_is_split(numbers: Vec<u8>, per_datagram in 1..5_usize) {
            let mut all: Vec<Vec<u8>> = numbers.iter().map(|number| object(3, *number)).collect();
            all.push(done(3));
            let datagrams: Vec<Vec<u8>> = all.chunks(per_datagram).map(<[_]>::concat).collect();
            let read = read(&mut Reply::new(3, flag::DUMP), &datagrams);
            prop_assert_eq!(read, (numbers, Ok(Some(End::Complete))));
        }
    }
}
