// SPDX-License-Identifier: GPL-3.0-or-later

//! Changes an input: its bytes, numbers and words in it, and parts taken from other inputs.

use crate::random::Random;

/// The maximum length of an input in bytes.
const LONGEST: usize = 8 << 10;
/// The maximum number of changes to one input.
const CHANGES: usize = 5;

/// Numbers at the limits of common ranges.
const NUMBERS: [u64; 18] =
    [0, 1, 2, 3, 4, 7, 8, 16, 32, 127, 128, 255, 256, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
/// Texts that end or change the meaning of a document, a line or a number.
const WORDS: [&str; 34] = [
    "\"",
    "\\",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    ";",
    "=",
    "-",
    "/",
    " ",
    "\n",
    "\r\n",
    "\t",
    "\0",
    "\u{1b}[2J",
    "\u{e9}",
    "\u{202e}",
    "null",
    "true",
    "0",
    "-1",
    "65536",
    "4294967296",
    "18446744073709551616",
    "1e309",
    "\\u0000",
    "\\ud800",
    "..",
    "0.0.0.0/0",
    "::/0",
    "::ffff:10.0.0.0/104",
];

/// Returns a changed copy of an input. Parts may be taken from `others`.
pub(crate) fn mutated(
    input: &[u8],
    others: &[Vec<u8>],
    words: &[&'static str],
    random: &mut Random,
) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(CHANGES) {
        change(&mut bytes, others, words, random);
        bytes.truncate(LONGEST);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, others: &[Vec<u8>], words: &[&'static str], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    match random.below(11) {
        0 => {
            let bit = 1_u8 << random.below(8);
            replace(bytes, at, |byte| byte ^ bit);
        }
        1 => {
            let new = random.byte();
            replace(bytes, at, |_| new);
        }
        2 => {
            let step = [1, 255, 16][random.below(3)];
            replace(bytes, at, |byte| byte.wrapping_add(step));
        }
        3 => write_number(bytes, at, random),
        4 => {
            let length = 1 + random.below(16);
            bytes.drain(at..(at + length).min(bytes.len()));
        }
        5 => bytes.truncate(at),
        6 => {
            // Repeats a part of the input at another place.
            let (from, length) = (random.below(bytes.len() + 1), 1 + random.below(64));
            let part = bytes[from..(from + length).min(bytes.len())].to_vec();
            bytes.splice(at..at, part);
        }
        7 => {
            let Some(other) = random.pick(others) else { return };
            let (from, length) = (random.below(other.len() + 1), 1 + random.below(128));
            let part = other[from..(from + length).min(other.len())].to_vec();
            let end = if random.below(2) == 0 { at } else { (at + part.len()).min(bytes.len()) };
            bytes.splice(at..end, part);
        }
        8 => {
            let word = if random.below(2) == 0 { random.pick(words) } else { random.pick(&WORDS) };
            bytes.splice(at..at, word.unwrap_or(&"\0").bytes());
        }
        9 => replace_word(bytes, at, words, random),
        _ => replace_digits(bytes, at, random),
    }
}

fn replace(bytes: &mut [u8], at: usize, change: impl FnOnce(u8) -> u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = change(*byte);
    }
}

/// Overwrites a number of one, two, four or eight bytes, in either byte order.
fn write_number(bytes: &mut [u8], at: usize, random: &mut Random) {
    let number = random.pick(&NUMBERS).copied().unwrap_or_default();
    let size = [1, 2, 4, 8][random.below(4)];
    // The place is usually a multiple of the number's size, because fields are aligned.
    let at = if random.below(4) == 0 { at } else { at / size * size };
    let little = number.to_le_bytes();
    let mut new = little[..size].to_vec();
    if random.below(2) == 0 {
        new.reverse();
    }
    for (place, byte) in bytes.iter_mut().skip(at).zip(new) {
        *place = byte;
    }
}

/// Replaces the word at a place by another one.
fn replace_word(bytes: &mut Vec<u8>, at: usize, words: &[&'static str], random: &mut Random) {
    let is_of_word =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':' | b'/');
    let (from, to) = around(bytes, at, is_of_word);
    let new = if words.is_empty() { random.pick(&WORDS) } else { random.pick(words) };
    bytes.splice(from..to, new.unwrap_or(&"").bytes());
}

/// Replaces the decimal number at a place.
fn replace_digits(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let (from, to) = around(bytes, at, u8::is_ascii_digit);
    let new = random.pick(&NUMBERS).copied().unwrap_or_default();
    if from < to {
        bytes.splice(from..to, new.to_string().bytes());
    }
}

/// The range of similar bytes around a place.
fn around(bytes: &[u8], at: usize, is_like: impl Fn(&u8) -> bool) -> (usize, usize) {
    let before = bytes[..at].iter().rev().take_while(|byte| is_like(byte)).count();
    let after = bytes[at..].iter().take_while(|byte| is_like(byte)).count();
    (at - before, at + after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_the_changes_and_no_input_grows_without_bound() {
        let others = [vec![1; 300], b"abc 123".to_vec(), Vec::new()];
        let made = |seed| {
            let mut random = Random::new(seed);
            let mut input = b"{\"a\": [1, 65535]}".to_vec();
            for _ in 0..2000 {
                input = mutated(&input, &others, &["bridge"], &mut random);
                assert!(input.len() <= LONGEST);
            }
            input
        };
        assert_eq!(made(1), made(1));
        assert_ne!(made(1), made(2));
    }

    #[test]
    fn an_empty_input_becomes_another_one() {
        let mut random = Random::new(1);
        assert!((0..100).any(|_| !mutated(&[], &[], &[], &mut random).is_empty()));
    }
}
