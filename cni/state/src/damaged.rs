// SPDX-License-Identifier: MIT OR Apache-2.0

//! Documents with damaged bytes, for tests of parsers.

use proptest::prelude::*;
use proptest::sample::Index;

/// Words that break a JSON document wherever they are inserted, or change its meaning.
const WORDS: &[&str] =
    &["\"", "[", "]", "{", "}", ",", ":", "0", "-1", "1e9", "null", "\\u0000", "\\ud800", "\u{0}", "\u{e9}"];

/// One change of a document's bytes.
#[derive(Debug, Clone)]
enum Edit {
    Set(Index, u8),
    Insert(Index, &'static str),
    Remove(Index, usize),
    Copy(Index, Index, usize),
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let at = |index: &Index| index.index(bytes.len() + 1);
        let from = |at: usize, length: usize| at..bytes.len().min(at + length);
        let (range, text) = match self {
            Self::Set(index, byte) => (from(at(index), 1), vec![*byte]),
            Self::Insert(index, text) => (from(at(index), 0), text.as_bytes().to_vec()),
            Self::Remove(index, length) => (from(at(index), *length), vec![]),
            Self::Copy(source, index, length) => {
                (from(at(index), 0), bytes[from(at(source), *length)].to_vec())
            }
        };
        bytes.splice(range, text);
    }
}

/// The document with one to five changes, which may insert these words and [`WORDS`].
pub(crate) fn damaged(document: Vec<u8>, words: &[&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let place = any::<Index>;
    let edit = prop_oneof![
        (place(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (place(), proptest::sample::select([WORDS, words].concat()))
            .prop_map(|(at, text)| Edit::Insert(at, text)),
        (place(), 1..20_usize).prop_map(|(at, length)| Edit::Remove(at, length)),
        (place(), place(), 1..600_usize).prop_map(|(from, to, length)| Edit::Copy(from, to, length)),
    ];
    proptest::collection::vec(edit, 1..6).prop_map(move |edits| {
        let mut bytes = document.clone();
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        bytes
    })
}
