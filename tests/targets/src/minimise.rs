// SPDX-License-Identifier: GPL-3.0-or-later

//! Finds a short input that still has a property.

/// The maximum number of inputs that are tried to shorten one.
const TRIES: usize = 2000;

/// Removes ever shorter parts of an input as long as it keeps the property.
pub(crate) fn minimised(input: &[u8], keeps: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut best = input.to_vec();
    let (mut part, mut tries) = (best.len().div_ceil(2), 0);
    while part > 0 && tries < TRIES {
        let mut at = 0;
        let mut is_shorter = false;
        while at < best.len() && tries < TRIES {
            let mut shorter = best.clone();
            shorter.drain(at..(at + part).min(best.len()));
            tries += 1;
            if keeps(&shorter) {
                best = shorter;
                is_shorter = true;
            } else {
                at += part;
            }
        }
        if !is_shorter || part > 1 {
            part /= 2;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_property_needs_is_left() {
        let keeps = |input: &[u8]| input.contains(&b'x') && input.windows(2).any(|two| two == b"ab");
        assert_eq!(minimised(b"some x and words with ab inside", keeps), b"xab");
        assert_eq!(minimised(b"ab..x", keeps), b"abx");
        assert_eq!(minimised(b"", |_| true), b"");
    }
}
