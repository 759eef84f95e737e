// SPDX-License-Identifier: MIT OR Apache-2.0

//! Acknowledgements and errors of the kernel, with its own text (extended acknowledgements).

use nix::errno::Errno;

use crate::error::Refusal;
use crate::message::{HEADER_LEN, Header, find, flag, text, u32_of};

/// `NLMSG_ERROR`: an error, or with the code 0 an acknowledgement.
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
pub(crate) const DONE: u16 = 3;
/// Length of an error's code.
const CODE_LEN: usize = 4;

/// The acknowledgement of one message of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// The message's sequence number.
    pub sequence: u32,
    /// None if the message succeeded.
    pub refusal: Option<Refusal>,
}

impl Ack {
    /// Decodes an acknowledgement. None for any other message.
    pub(crate) fn read(header: Header, payload: &[u8]) -> Option<Self> {
        (header.kind == ERROR).then(|| Self { sequence: header.sequence, refusal: refusal(header, payload) })
    }
}

/// The refusal in an error or at the end of a dump. None for success. The end of some dumps has no error code.
pub(crate) fn refusal(header: Header, payload: &[u8]) -> Option<Refusal> {
    let code = payload.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    (code != 0).then(|| Refusal {
        errno: Errno::from_raw(code.wrapping_neg()),
        hint: hint(header, payload).unwrap_or_default(),
    })
}

/// The kernel's text. An error contains the code, the header of the request, the rest of the request unless the error
/// is capped, and then attributes (`struct nlmsgerr`). The end of a dump contains only the code and attributes.
fn hint(header: Header, payload: &[u8]) -> Option<String> {
    const NLMSGERR_ATTR_MSG: u16 = 1;
    if header.flags & flag::ACK_TLVS == 0 {
        return None;
    }
    let after_code = payload.get(CODE_LEN..)?;
    let request = match header.kind {
        DONE => 0,
        _ if header.flags & flag::CAPPED != 0 => HEADER_LEN,
        _ => usize::try_from(u32_of(after_code)).ok()?.checked_next_multiple_of(4)?,
    };
    find(after_code.get(request..)?, NLMSGERR_ATTR_MSG).map(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::{Message, messages};

    /// A message of the kernel's, as its bytes.
    pub(crate) fn sent(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut message = Message::new(kind, flags);
        message.raw(payload);
        let mut bytes = message.seal(sequence).to_vec();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// An error whose text is `why`, in reply to a request with this body.
    pub(crate) fn error(sequence: u32, errno: Errno, flags: u16, body: &[u8]) -> Vec<u8> {
        let mut request = Message::new(16, 0);
        request.raw(body);
        let mut payload = (-(errno as i32)).to_ne_bytes().to_vec();
        payload.extend(request.seal(sequence));
        payload.resize(payload.len().next_multiple_of(4), 0);
        payload.extend([8, 0, 1, 0]);
        payload.extend(b"why\0");
        sent(ERROR, flags, sequence, &payload)
    }

    fn only(datagram: &[u8]) -> Option<Ack> {
        let (header, payload) = messages(datagram).next().unwrap();
        Ack::read(header, payload)
    }

    #[test]
    fn an_error_carries_the_kernels_text() {
        let refused = |hint: &str| Refusal { errno: Errno::EINVAL, hint: hint.to_owned() };
        let rows = [
            (flag::ACK_TLVS, &[1, 2, 3][..], "why"),
            (flag::ACK_TLVS | flag::CAPPED, &[], "why"),
            (0, &[], ""),
            (flag::CAPPED, &[], ""),
        ];
        for (flags, body, hint) in rows {
            let ack = only(&error(7, Errno::EINVAL, flags, body)).unwrap();
            assert_eq!(ack, Ack { sequence: 7, refusal: Some(refused(hint)) }, "{flags:#x}");
        }
        assert_eq!(refused("why").to_string(), "EINVAL: Invalid argument: why");
        assert_eq!(refused("").to_string(), "EINVAL: Invalid argument");
    }

    #[test]
    fn the_code_zero_is_an_acknowledgement() {
        let request = Message::new(16, flag::ACK).seal(5).to_vec();
        let payload = [&[0; 4][..], &request].concat();
        assert_eq!(only(&sent(ERROR, flag::CAPPED, 5, &payload)), Some(Ack { sequence: 5, refusal: None }));
        assert_eq!(only(&sent(DONE, 0, 5, &payload)), None, "the end of a dump");
        assert_eq!(only(&sent(16, 0, 5, &payload)), None, "an object");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(kind in 2..4_u16, flags: u16, payload: Vec<u8>) {
            let _ = refusal(Header { kind, flags, sequence: 0 }, &payload);
        }

        #[test]
        fn a_cut_error_loses_its_text_at_most(length in 20..60_usize) {
            let whole = error(7, Errno::EPERM, flag::ACK_TLVS, &[]);
            let (header, payload) = messages(&whole).next().unwrap();
            let refusal = refusal(header, &payload[..length.min(payload.len())]).unwrap();
            prop_assert_eq!(refusal.errno, Errno::EPERM);
            prop_assert!(["", "why"].contains(&&*refusal.hint));
        }
    }
}
