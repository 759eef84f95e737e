// SPDX-License-Identifier: GPL-2.0-or-later

//! Expected output, kept in tests/golden.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// Compares `text`, after [`normalise`], with `tests/golden/<name>`. With `UPDATE_GOLDEN=1` in the environment, writes
/// the file instead; look at the difference before you commit it.
#[track_caller]
pub fn golden(name: &str, text: &str) {
    let text = normalise(text);
    if is_updated() {
        return write(name, &text);
    }
    assert_same(name, &read(name), &text);
}

/// Does the same for the result of a plugin. `tests/golden/results/<plugin>.json` has one result for each version of
/// the specification.
#[track_caller]
pub fn golden_result(plugin: &str, version: &str, result: &Value) {
    let name = format!("results/{plugin}.json");
    let pretty = |value: &Value| serde_json::to_string_pretty(value).expect("JSON");
    let text = normalise(&pretty(result));
    let mut all: Value = serde_json::from_str(&read(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    if is_updated() {
        all[version] = serde_json::from_str(&text).expect("JSON, also when normalised");
        return write(&name, &(pretty(&all) + "\n"));
    }
    assert_same(&format!("{name}, {version}"), &(pretty(&all[version]) + "\n"), &text);
}

fn is_updated() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1")
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

fn read(name: &str) -> String {
    let path = path(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()))
}

fn write(name: &str, text: &str) {
    let path = path(name);
    std::fs::write(&path, text).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
}

#[track_caller]
fn assert_same(name: &str, expected: &str, text: &str) {
    if text != expected {
        panic!("differs from tests/golden/{name} (UPDATE_GOLDEN=1 rewrites it):\n{}", diff(expected, text));
    }
}

/// The text with everything replaced that differs from run to run. MAC addresses become `<mac1>`, `<mac2>` and so on in
/// order of appearance (the all-zero one stays), `veth` names with hexadecimal digits become `<veth1>` and so on. `#
/// handle N` and blanks at line ends are removed. The text ends with one newline.
pub fn normalise(text: &str) -> String {
    let mut seen = Seen::default();
    let mut lines = String::new();
    for line in text.trim_end().lines() {
        let line = match line.find("# handle ") {
            Some(at) => &line[..at],
            None => line,
        };
        let mut rest = line.trim_end();
        let mut previous = ' ';
        while let Some(first) = rest.chars().next() {
            let found = if is_word(previous) { None } else { seen.replace(rest) };
            if let Some((length, name)) = found {
                lines.push_str(&name);
                previous = 'x';
                rest = &rest[length..];
            } else {
                lines.push(first);
                previous = first;
                rest = &rest[first.len_utf8()..];
            }
        }
        lines.push('\n');
    }
    lines
}

#[derive(Default)]
struct Seen {
    macs: Vec<String>,
    veths: Vec<String>,
}

impl Seen {
    /// The placeholder for the MAC address or name that `text` begins with, and the number of bytes that it replaces.
    fn replace(&mut self, text: &str) -> Option<(usize, String)> {
        let (length, list, kind) = match (mac_at(text), veth_at(text)) {
            (Some(length), _) => (length, &mut self.macs, "mac"),
            (_, Some(length)) => (length, &mut self.veths, "veth"),
            _ => return None,
        };
        let found = text[..length].to_ascii_lowercase();
        let number = list.iter().position(|known| *known == found).unwrap_or_else(|| {
            list.push(found);
            list.len() - 1
        });
        Some((length, format!("<{kind}{}>", number + 1)))
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == ':' || c == '_'
}

/// The length of a MAC address at the start of `text`: six pairs of hexadecimal digits with colons between, not all
/// zero.
fn mac_at(text: &str) -> Option<usize> {
    let mac = text.get(..17)?;
    let fits = mac.bytes().enumerate().all(|(i, b)| match i % 3 {
        2 => b == b':',
        _ => b.is_ascii_hexdigit(),
    });
    let ends = !text[17..].starts_with(is_word);
    (fits && ends && mac.bytes().any(|b| b != b'0' && b != b':')).then_some(17)
}

/// The length of a name at the start of `text` that is `veth` and at least seven hexadecimal digits.
fn veth_at(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("veth")?;
    let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
    (digits >= 7 && !rest[digits..].starts_with(is_word)).then_some(4 + digits)
}

/// The lines of both texts, with `-` before those only in the first and `+` before those only in the second. Lines are
/// compared in order from both ends, which is enough to see where two rulesets differ.
pub(crate) fn diff(before: &str, after: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let same_end = old[start..].iter().rev().zip(new[start..].iter().rev()).take_while(|(a, b)| a == b);
    let end = same_end.count();
    let mut lines = Vec::new();
    let context = start.saturating_sub(4);
    lines.extend(old[context..start].iter().map(|line| format!("  {line}")));
    lines.extend(old[start..old.len() - end].iter().map(|line| format!("- {line}")));
    lines.extend(new[start..new.len() - end].iter().map(|line| format!("+ {line}")));
    lines.extend(old[old.len() - end..].iter().take(4).map(|line| format!("  {line}")));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::normalise;

    #[test]
    fn names_are_stable() {
        let text =
            "veth1234abcd 0a:58:0A:01:02:03 x\nvethdeadbeef  \t\nveth1234abcd 0a:58:0a:01:02:03 # handle 7\n";
        assert_eq!(normalise(text), "<veth1> <mac1> x\n<veth2>\n<veth1> <mac1>\n");
    }

    #[test]
    fn look_alikes_stay() {
        let text = "lo 00:00:00:00:00:00 fd00:00:00:00:00:00:01 vethernet 1fd:aa:bb:cc:dd:ee:ff\n";
        assert_eq!(normalise(text), text);
    }
}
