// SPDX-License-Identifier: GPL-3.0-or-later

//! What a parser has made of an input, without names and numbers.

use std::fmt::{self, Debug, Write};

/// The kind of a result: the words of its debug representation, each counted once, without the contents of texts. Two
/// inputs with the same shape have probably taken the same path through the parser, so shapes replace the coverage that
/// an instrumented program reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    words: u64,
    /// The length of the debug representation in bytes.
    length: usize,
}

impl Shape {
    /// The shape of a result.
    pub fn of(read: &impl Debug) -> Self {
        let mut reader = Reader::default();
        // Writing to the reader cannot fail.
        let _written = write!(reader, "{read:?}");
        reader.end_word();
        let words = reader.words.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word));
        Self { words, length: reader.length }
    }

    /// The length of the result as text, which must not be far longer than the input.
    #[must_use]
    pub fn length(self) -> usize {
        self.length
    }

    /// True if another result has the same words.
    #[must_use]
    pub fn is_like(self, other: Self) -> bool {
        self.words == other.words
    }
}

const START: u64 = 0xcbf2_9ce4_8422_2325;

struct Reader {
    words: Vec<u64>,
    word: u64,
    length: usize,
    in_text: bool,
    escaped: bool,
}

impl Default for Reader {
    fn default() -> Self {
        Self { words: Vec::new(), word: START, length: 0, in_text: false, escaped: false }
    }
}

impl Reader {
    fn end_word(&mut self) {
        let word = std::mem::replace(&mut self.word, START);
        // The hash is FNV-1a. There are so few words that a list is searched as fast as a set.
        if word != START && !self.words.contains(&word) && self.words.len() < 256 {
            self.words.push(word);
        }
    }
}

impl Write for Reader {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.length += text.len();
        for byte in text.bytes() {
            if self.in_text {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
            } else if byte.is_ascii_alphabetic() || byte == b'_' {
                self.word = (self.word ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            } else {
                self.in_text = byte == b'"';
                self.end_word();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_do_not_count_and_variants_do() {
        let like = |one: &dyn Debug, other: &dyn Debug| Shape::of(&one).is_like(Shape::of(&other));
        assert!(like(&Some(("a", 1)), &Some(("b\"c", 22))));
        assert!(like(&[Some(1), Some(2)], &[Some(3)]));
        assert!(!like(&Some(1), &None::<u8>));
        assert!(!like(&Ok::<u8, u8>(1), &Err::<u8, u8>(1)));
        assert_eq!(Shape::of(&"abc").length(), 5);
    }
}
