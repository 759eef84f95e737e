//! Conditions in the words of iptables.
//!
//! The words stand in a rule as they are, each quoted as one word, so that none can end the rule or
//! begin another. What an option means is for iptables to say; only those that are no matches are
//! refused: a condition must not say what becomes of a packet, nor in which chain.

use crate::{Error, PortRequest};

/// The options of one letter that are matches: address, protocol, link, fragment, module, family.
const SHORT: &str = "sdpiofm46";

/// The long options that are commands, targets or switches of the tool. The tool takes any
/// unambiguous beginning of them, too.
const REFUSED: [&str; 24] = [
    "append",
    "check",
    "delete",
    "insert",
    "replace",
    "list",
    "list-rules",
    "flush",
    "zero",
    "new-chain",
    "delete-chain",
    "rename-chain",
    "policy",
    "help",
    "jump",
    "goto",
    "table",
    "modprobe",
    "noflush",
    "verbose",
    "version",
    "wait",
    "numeric",
    "line-numbers",
];

/// Checks the words of one family's conditions.
///
/// # Errors
/// [`Error::Condition`] with the key and the word.
pub fn check(key: &'static str, words: &[String]) -> Result<(), Error> {
    let refused = |reason: String| Err(Error::Condition { key, reason });
    for word in words {
        if word.is_empty() || word.chars().any(char::is_control) {
            return refused(format!("{word:?} is no word of a rule"));
        }
        let is_condition = match (word.strip_prefix("--"), word.strip_prefix('-')) {
            (Some(long), _) => {
                let name = long.split('=').next().unwrap_or_default();
                !name.is_empty() && !REFUSED.iter().any(|refused| refused.starts_with(name))
            }
            // A value may be negative.
            (None, Some(short)) => short.starts_with(|c: char| SHORT.contains(c) || c.is_ascii_digit()),
            (None, None) => true,
        };
        if !is_condition {
            return refused(format!("{word:?} is no condition"));
        }
    }
    Ok(())
}

/// Checks both families' conditions.
pub(crate) fn check_request(request: &PortRequest) -> Result<(), Error> {
    if !request.nftables.conditions.is_empty() {
        return Err(Error::Request("conditions of nftables in a request to iptables".to_owned()));
    }
    check("conditionsV4", &request.iptables.conditions.v4)?;
    check("conditionsV6", &request.iptables.conditions.v6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(words: &[&str]) -> bool {
        check("conditionsV4", &words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>()).is_ok()
    }

    #[test]
    fn matches_of_any_module_are_conditions() {
        assert!(ok(&["-d", "192.0.2.0/24"]));
        assert!(ok(&["!", "-i", "eth0", "-m", "mac", "--mac-source", "02:00:00:00:00:01"]));
        assert!(ok(&["-m", "limit", "--limit", "5/min", "-m", "comment", "--comment", "it is; \"so\""]));
        assert!(ok(&["-s10.0.0.0/8", "--dport", "80"]));
    }

    #[test]
    fn what_is_no_match_is_refused() {
        for words in [
            &["-j", "ACCEPT"][..],
            &["-jACCEPT"],
            &["--jump", "ACCEPT"],
            &["--ju=ACCEPT"],
            &["-g", "x"],
            &["-t", "filter"],
            &["-A", "INPUT"],
            &["--tab", "filter"],
            &["--"],
            &["-"],
            &["-m", "mac\nCOMMIT"],
            &[""],
        ] {
            assert!(!ok(words), "{words:?}");
        }
    }
}
