//! Base64 of RFC 4648, section 4, in which a Go program writes bytes into JSON.

/// The bytes behind a text; none if it is no padded base64. Line ends are skipped, as by Go's decoder.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let letters: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    if !letters.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(letters.len() / 4 * 3);
    let groups = letters.len() / 4;
    for (number, group) in letters.chunks(4).enumerate() {
        let padding = group.iter().rev().take_while(|letter| **letter == b'=').count();
        if padding > 2 || (padding > 0 && number + 1 < groups) {
            return None;
        }
        let data = group.get(..4 - padding)?;
        let mut bits = 0u32;
        for letter in data {
            bits = bits << 6 | u32::from(value(*letter)?);
        }
        bits <<= 6 * padding;
        bytes.extend(bits.to_be_bytes().get(1..4 - padding)?);
    }
    Some(bytes)
}

fn value(letter: u8) -> Option<u8> {
    match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(bytes: &[u8]) -> String {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for chunk in bytes.chunks(3) {
            let mut group = [0; 4];
            group[1..=chunk.len()].copy_from_slice(chunk);
            let bits = u32::from_be_bytes(group);
            for i in 0..4 {
                let letter = LETTERS[(bits >> (18 - 6 * i)) as usize & 63];
                text.push(if i <= chunk.len() { char::from(letter) } else { '=' });
            }
        }
        text
    }

    /// RFC 4648, section 10.
    #[test]
    fn vectors_of_the_rfc() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        for wrong in ["Z", "Zg", "Zg=", "Zg==Zg==", "Z===", "====", "Zm9v!mFy", "Zm 9"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
        assert_eq!(decode("Zm9v\nYmFy\r\n").as_deref(), Some(&b"foobar"[..]));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_decoded_or_refused(text: String) {
            let _decoded = decode(&text);
        }
    }
}
