// SPDX-License-Identifier: GPL-2.0-or-later

//! Output in which other programs' texts cannot act on the terminal.

use std::io::{self, Write};

/// Writes control characters (ECMA-48, C0 and C1) except line feeds and tabs as JSON escapes such as `\u001b`. Names of
/// processes, links, files and containers come from others, and a terminal would obey control characters in them.
#[derive(Debug)]
pub struct Visible<W> {
    inner: W,
    /// True if the last byte was the first one of a character from U+0080 to U+00BF, and has not been written yet.
    has_lead: bool,
}

/// The first byte in UTF-8 of characters from U+0080 to U+00BF. Those below U+00A0 are the C1 controls.
const LEAD: u8 = 0xc2;

impl<W: Write> Visible<W> {
    /// Creates an output that writes to `inner`.
    pub const fn new(inner: W) -> Self {
        Self { inner, has_lead: false }
    }
}

impl<W: Write> Write for Visible<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut text = Vec::with_capacity(bytes.len());
        for byte in bytes {
            let follows_lead = std::mem::take(&mut self.has_lead);
            match byte {
                0x80..=0x9f if follows_lead => text.extend(format!("\\u{byte:04x}").bytes()),
                _ if follows_lead => text.extend([LEAD, *byte]),
                &LEAD => self.has_lead = true,
                b'\n' | b'\t' => text.push(*byte),
                0..=0x1f | 0x7f => text.extend(format!("\\u{byte:04x}").bytes()),
                _ => text.push(*byte),
            }
        }
        self.inner.write_all(&text)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(parts: &[&[u8]]) -> String {
        let mut out = Vec::new();
        let mut visible = Visible::new(&mut out);
        for part in parts {
            visible.write_all(part).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn controls_are_escaped_and_text_is_not() {
        assert_eq!(written(&[b"a\x1b[2J\r\x07\x7f\x00"]), "a\\u001b[2J\\u000d\\u0007\\u007f\\u0000");
        assert_eq!(
            written(&["\u{9b}31m\u{80}\u{a0}ü€\u{10348}\tb\n".as_bytes()]),
            "\\u009b31m\\u0080\u{a0}ü€\u{10348}\tb\n"
        );
    }

    #[test]
    fn a_character_may_come_in_two_parts() {
        assert_eq!(written(&[b"a\xc2", b"\x9bb\xc2", b"\xa9"]), "a\\u009bb©");
    }

    #[test]
    fn what_was_json_stays_so() {
        let json = serde_json::to_string("\u{7f}\u{9b}\n").unwrap();
        let written = written(&[json.as_bytes()]);
        assert_eq!(serde_json::from_str::<String>(&written).unwrap(), "\u{7f}\u{9b}\n");
        assert_eq!(written, r#""\u007f\u009b\n""#);
    }
}
