// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks qualified names of Kubernetes.

/// The longest name, without its prefix.
const NAME_LENGTH: usize = 63;
/// The longest prefix (RFC 1123).
const PREFIX_LENGTH: usize = 253;
const NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                         alphanumeric character";
const PREFIX_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
                           '.', and must start and end with an alphanumeric character";

/// Checks a name, with or without a DNS domain as its prefix (`example.com/name`). Returns what is wrong with it.
#[must_use]
pub fn check_qualified_name(value: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let name = match value.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] => {
            check_prefix(prefix, &mut faults);
            name
        }
        _ => {
            return vec![format!(
                "a qualified name {NAME_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".to_owned());
    } else if name.len() > NAME_LENGTH {
        faults.push(format!("name part must be no more than {NAME_LENGTH} characters"));
    }
    let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    if !is_framed(name, |c| c.is_ascii_alphanumeric()) || !name.bytes().all(fits) {
        faults.push(format!("name part {NAME_RULE}"));
    }
    faults
}

fn check_prefix(prefix: &str, faults: &mut Vec<String>) {
    if prefix.is_empty() {
        faults.push("prefix part must be non-empty".to_owned());
        return;
    }
    if prefix.len() > PREFIX_LENGTH {
        faults.push(format!("prefix part must be no more than {PREFIX_LENGTH} characters"));
    }
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |label: &str| is_framed(label, plain) && label.bytes().all(|c| plain(c) || c == b'-');
    if !prefix.split('.').all(is_label) {
        faults.push(format!("prefix part {PREFIX_RULE}"));
    }
}

/// True if the first and the last byte fit.
fn is_framed(text: &str, fits: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|c| fits(*c)) && bytes.last().is_some_and(|c| fits(*c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_a_prefix_are_valid() {
        for name in ["cni", "kubenet", "kubernetes.io/no-op", "a", "mycompany/mysdn", "1.2-3_4"] {
            assert_eq!(check_qualified_name(name), Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn each_fault_of_a_name_is_reported() {
        let long = "x".repeat(64);
        for (name, faults) in [
            ("", vec!["name part must be non-empty", "name part must consist of alphanumeric"]),
            ("-a", vec!["name part must consist of"]),
            ("a b", vec!["name part must consist of"]),
            ("/a", vec!["prefix part must be non-empty"]),
            ("A/a", vec!["prefix part a lowercase RFC 1123 subdomain must"]),
            ("a..b/a", vec!["prefix part a lowercase RFC 1123"]),
            ("a/b/c", vec!["a qualified name must consist of"]),
            (long.as_str(), vec!["name part must be no more than 63 characters"]),
        ] {
            let found = check_qualified_name(name);
            assert_eq!(found.len(), faults.len(), "{name}: {found:?}");
            for (fault, expected) in found.iter().zip(faults) {
                assert!(fault.starts_with(expected), "{name}: {fault}");
            }
        }
    }
}
