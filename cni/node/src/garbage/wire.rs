// SPDX-License-Identifier: GPL-3.0-or-later

//! The reply of `ListPodSandbox`, in the encoding of protocol buffers
//! (<https://protobuf.dev/programming-guides/encoding/>). Of `ListPodSandboxResponse` (cri-api, `api.proto`) two fields are
//! read: 1, the sandboxes, each with its ID in field 1; and 2, a token for the next page.

use std::collections::BTreeSet;

/// The number of the field with the sandboxes, and of a sandbox's ID.
const ITEMS: u64 = 1;
const ID: u64 = 1;
/// The number of the field with the next page's token.
const NEXT_PAGE: u64 = 2;

/// The reply cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends within a field.
    #[error("the message is cut")]
    Cut,
    /// A number has more than 64 bits.
    #[error("a number has more than 64 bits")]
    Number,
    /// A wire type that no field has, or the field number 0.
    #[error("not a field: key {0}")]
    Key(u64),
    /// A sandbox without an ID, or one that is not UTF-8.
    #[error("a sandbox has no ID")]
    Id,
    /// The list has further pages, although none was asked for.
    #[error("the list is only a part: it names a next page")]
    Partial,
}

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value<'a> {
    /// A number of any kind.
    Number,
    /// Text or a message.
    Bytes(&'a [u8]),
}

/// The IDs of the sandboxes in a reply.
///
/// # Errors
/// [`WireError`]: the list is complete, or it is not used.
pub fn sandboxes(message: &[u8]) -> Result<BTreeSet<String>, WireError> {
    let mut ids = BTreeSet::new();
    let mut fields = Fields(message);
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (ITEMS, Value::Bytes(item)) => {
                ids.insert(id(item)?);
            }
            (ITEMS, Value::Number) => return Err(WireError::Id),
            (NEXT_PAGE, Value::Bytes(token)) if !token.is_empty() => return Err(WireError::Partial),
            _ => {}
        }
    }
    Ok(ids)
}

/// The ID of a sandbox. Of a field that occurs twice, the last value counts.
fn id(item: &[u8]) -> Result<String, WireError> {
    let mut id = None;
    let mut fields = Fields(item);
    while let Some((number, value)) = fields.next()? {
        if let (ID, Value::Bytes(bytes)) = (number, value) {
            id = Some(bytes);
        }
    }
    let id = id.and_then(|bytes| std::str::from_utf8(bytes).ok()).filter(|id| !id.is_empty());
    id.map(str::to_owned).ok_or(WireError::Id)
}

/// The fields of a message that are left.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, WireError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.number()?;
        let value = match key & 7 {
            0 => {
                self.number()?;
                Value::Number
            }
            1 => {
                self.bytes(8)?;
                Value::Number
            }
            2 => {
                let length = self.number()?;
                Value::Bytes(self.bytes(length)?)
            }
            5 => {
                self.bytes(4)?;
                Value::Number
            }
            _ => return Err(WireError::Key(key)),
        };
        match key >> 3 {
            0 => Err(WireError::Key(key)),
            number => Ok(Some((number, value))),
        }
    }

    fn bytes(&mut self, length: u64) -> Result<&'a [u8], WireError> {
        let length = usize::try_from(length).map_err(|_| WireError::Cut)?;
        self.0.split_off(..length).ok_or(WireError::Cut)
    }

    /// A number of variable length: seven bits in each byte, the least significant first.
    fn number(&mut self) -> Result<u64, WireError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.0.split_off_first().ok_or(WireError::Cut)?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                return Err(WireError::Number);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(WireError::Number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2];
        let mut length = bytes.len();
        while length > 0x7f {
            field.push((length & 0x7f).to_le_bytes()[0] | 0x80);
            length >>= 7;
        }
        field.push(length.to_le_bytes()[0]);
        field.extend(bytes);
        field
    }

    /// A sandbox with more fields than its ID: state, time, labels.
    fn item(id: &str) -> Vec<u8> {
        let mut item = field(1, id.as_bytes());
        item.extend([3 << 3, 1, 4 << 3, 0x80, 0x80, 1]);
        item.extend(field(5, b"labels"));
        item.extend([6 << 3 | 1, 0, 0, 0, 0, 0, 0, 0, 0, 7 << 3 | 5, 0, 0, 0, 0]);
        field(1, &item)
    }

    #[test]
    fn ids_are_read() {
        assert_eq!(sandboxes(&[]), Ok(BTreeSet::new()));
        let long = "a".repeat(300);
        let list = [item("one"), item(&long), item("one"), field(2, b""), field(9, b"later")].concat();
        assert_eq!(sandboxes(&list), Ok(["one".to_owned(), long].into()));
    }

    #[test]
    fn a_list_that_is_not_complete_is_an_error() {
        let mut cut = item("one");
        cut.pop();
        for (message, error) in [
            (cut, WireError::Cut),
            ([item("one"), field(2, b"next")].concat(), WireError::Partial),
            (field(1, b""), WireError::Id),
            (field(1, &field(1, b"")), WireError::Id),
            (field(1, &field(1, b"\xff")), WireError::Id),
            (vec![1 << 3, 1], WireError::Id),
            (vec![1 << 3 | 3], WireError::Key(11)),
            (vec![2, 0], WireError::Key(2)),
            (vec![1 << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], WireError::Cut),
            (vec![0xff; 11], WireError::Number),
        ] {
            assert_eq!(sandboxes(&message), Err(error), "{message:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _read = sandboxes(&bytes);
        }

        /// A reply that ends early has fewer sandboxes only where one ends: gRPC's length finds that.
        #[test]
        fn what_was_written_is_read(ids in prop::collection::btree_set("[0-9a-f]{1,200}", 0..50), cut in any::<prop::sample::Index>()) {
            let message: Vec<u8> = ids.iter().flat_map(|id| item(id)).collect();
            prop_assert_eq!(sandboxes(&message), Ok(ids.clone()));
            let begin = &message[..cut.index(message.len() + 1)];
            if let Ok(some) = sandboxes(begin) {
                prop_assert!(some.is_subset(&ids));
            }
        }
    }
}
