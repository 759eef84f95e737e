// SPDX-License-Identifier: GPL-2.0-or-later

//! Quotes words for `iptables-restore`, and splits lines of `iptables-save`.

/// True if a word needs no quotes.
fn is_plain(word: &str) -> bool {
    !word.is_empty()
        && !word.starts_with('#')
        && word.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b'\\'))
}

/// Appends a word so that the tools read back exactly this word. Line breaks and NULs, which a line cannot contain,
/// become spaces. Only comments can contain them, because other words have been checked.
fn push(line: &mut String, word: &str) {
    if is_plain(word) {
        line.push_str(word);
        return;
    }
    line.push('"');
    for c in word.chars() {
        match c {
            '"' | '\\' => {
                line.push('\\');
                line.push(c);
            }
            '\n' | '\r' | '\0' => line.push(' '),
            _ => line.push(c),
        }
    }
    line.push('"');
}

/// Joins words into a line, without a line break.
pub(crate) fn line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let mut line = String::new();
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        push(&mut line, word);
    }
    line
}

/// Splits a line as the tools do, at spaces outside double quotes. Within quotes, a backslash makes the next
/// character literal.
pub(crate) fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut chars = line.chars().peekable();
    loop {
        while chars.next_if(char::is_ascii_whitespace).is_some() {}
        if chars.peek().is_none() {
            return words;
        }
        let mut word = String::new();
        let mut quoted = false;
        while let Some(c) = chars.next_if(|c| quoted || !c.is_ascii_whitespace()) {
            match c {
                '"' => quoted = !quoted,
                '\\' if quoted => word.extend(chars.next()),
                _ => word.push(c),
            }
        }
        words.push(word);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn output_of_iptables_save_is_split() {
        let line = r#"-A POSTROUTING -m comment --comment "name: \"testnet\" id: \"c1\"" -j CNI-x"#;
        let words = split(line);
        assert_eq!(words[..4], ["-A", "POSTROUTING", "-m", "comment"]);
        assert_eq!(words[5], r#"name: "testnet" id: "c1""#);
        assert_eq!(super::line(words.iter().map(String::as_str)), line);
    }

    #[test]
    fn no_word_ends_a_line() {
        assert_eq!(line(["a\nCOMMIT", "b\0", "", "#x", "it's"]), r##""a COMMIT" "b " "" "#x" "it's""##);
    }

    proptest! {
        #[test]
        fn words_come_back(words in prop::collection::vec("[^\n\r\0]{0,20}", 0..6)) {
            let line = line(words.iter().map(String::as_str));
            prop_assert!(!line.contains(['\n', '\r', '\0']));
            prop_assert_eq!(split(&line), words);
        }

        #[test]
        fn any_text_is_one_word_on_one_line(word in any::<String>()) {
            let line = line([word.as_str(), "end"]);
            prop_assert!(!line.contains(['\n', '\r', '\0']));
            let read = split(&line);
            prop_assert_eq!(read.len(), 2);
            prop_assert_eq!(read[1].as_str(), "end");
        }
    }
}
