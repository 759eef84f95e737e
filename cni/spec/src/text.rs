// SPDX-License-Identifier: MIT OR Apache-2.0

//! JSON and quoted text in the format of the reference plugins.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};

/// Formats a value as JSON indented by four spaces, without a final newline. `&`, `<`, `>`, U+2028 and U+2029
/// are escaped as by Go's encoding/json.
///
/// A value that cannot be encoded becomes `null`. Only a map whose keys are not strings cannot be encoded, and this
/// crate has no such maps.
pub fn pretty<T: Serialize + ?Sized>(value: &T) -> String {
    let mut bytes = Vec::with_capacity(512);
    let formatter = PrettyFormatter::with_indent(b"    ");
    match value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter)) {
        Ok(()) => escape(&String::from_utf8_lossy(&bytes)),
        Err(_) => "null".to_owned(),
    }
}

/// Formats a value as JSON on one line, with the same escapes.
pub fn compact<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).map_or_else(|_| "null".to_owned(), |text| escape(&text))
}

/// Escapes these characters wherever they occur, because JSON contains none of them outside of strings.
fn escape(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '&' | '<' | '>' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// Formats each byte as two lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses an address with its prefix length. Numbers with leading zeros are refused, because other programs read an
/// IPv4 address with leading zeros as octal.
#[must_use]
pub fn parse_net(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    if length.len() > 1 && length.starts_with('0') || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    IpNet::new(address.parse::<IpAddr>().ok()?, length.parse().ok()?).ok()
}

/// Parses like [`parse_net`], and converts an IPv4-mapped address to the IPv4 address, as the reference does.
#[must_use]
pub fn parse_canonical_net(text: &str) -> Option<IpNet> {
    let net = parse_net(text)?;
    match (net, net.addr().to_canonical()) {
        (IpNet::V6(net), IpAddr::V4(v4)) => IpNet::new(v4.into(), net.prefix_len().checked_sub(96)?).ok(),
        _ => Some(net),
    }
}

/// Quotes a string like Go's `%q`, which the reference uses to show foreign text in messages.
#[must_use]
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_control() || (c.is_whitespace() && c != ' ') => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A text as a single shell word, for a command that people paste. Control characters, which might act on the terminal
/// that shows the command, are written as escapes between `$'` and `'` (POSIX.1-2024; bash, zsh, BusyBox).
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    if !text.chars().any(char::is_control) {
        return format!("'{}'", text.replace('\'', "'\\''"));
    }
    let mut word = String::from("$'");
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'\'' && byte != b'\\' => word.push(char::from(byte)),
            // The escape always has three octal digits, so that a digit after it is not taken for a part of it.
            _ => word.push_str(&format!("\\{byte:03o}")),
        }
    }
    word.push('\'');
    word
}

/// Quotes strings as Go prints a slice with `%q`: `["a" "b"]`.
pub fn quote_all<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> String {
    let quoted: Vec<String> = texts.into_iter().map(|t| quote(t.as_ref())).collect();
    format!("[{}]", quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_any_text_as_one_word() {
        let texts = ["/run/netns/cni-0f", "", "a b", "a'b", "`id`$(id);*", "ü \\n", "a\nb\u{1b}[2J'\\7é"];
        for text in texts {
            let word = shell_word(text);
            assert!(!word.chars().any(char::is_control), "{word:?}");
            let output = Command::new("bash").args(["-c", &format!("printf %s {word}")]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text, "{word}");
        }
        assert_eq!(shell_word("/run/netns/cni-0f"), "/run/netns/cni-0f");
        assert_eq!(shell_word("a b"), "'a b'");
        // People can still read what is printable.
        assert_eq!(shell_word("it's \\ a\nb"), r"$'it\047s \134 a\012b'");
    }

    #[test]
    fn an_address_with_leading_zeros_is_none() {
        for text in
            ["010.1.2.0/24", "10.1.2.05/24", "10.1.2.0/024", "10.1.2.0/+24", "10.1.2.0", "10.1.2.0/33", "/24"]
        {
            assert_eq!(parse_net(text), None, "{text}");
        }
        for text in ["10.1.2.5/24", "0.0.0.0/0", "fd00::5/64"] {
            assert_eq!(parse_net(text).map(|net| net.to_string()).as_deref(), Some(text));
        }
        assert_eq!(parse_canonical_net("::ffff:10.1.2.5/120"), parse_net("10.1.2.5/24"));
        assert_eq!(parse_canonical_net("::ffff:10.1.2.5/64"), None);
    }

    #[test]
    fn every_byte_has_two_hexadecimal_digits() {
        assert_eq!(hex(&[0, 9, 0x1f, 0xff]), "00091fff");
    }

    #[test]
    fn go_escapes() {
        assert_eq!(pretty(&"a<b>&c\u{2028}\u{2029}\"\n"), r#""a\u003cb\u003e\u0026c\u2028\u2029\"\n""#);
        assert_eq!(compact(&["<"]), "[\"\\u003c\"]");
        assert_eq!(quote("a\"b\\\n\u{1}\u{a0}é'"), r#""a\"b\\\n\x01\u00a0é'""#);
        assert_eq!(quote("a b\u{1f}\u{7f}\u{7}\t"), r#""a b\x1f\x7f\a\t""#);
        assert_eq!(quote_all(["a", "b"]), "[\"a\" \"b\"]");
        assert_eq!(quote_all(Vec::<String>::new()), "[]");
    }
}
