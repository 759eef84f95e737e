// SPDX-License-Identifier: GPL-2.0-or-later

//! The lines of resolv.conf(5) that a result has keys for.

use cni_spec::Dns;

/// Parses `nameserver`, `domain`, `search` and `options` lines. The last `domain` counts; the others
/// accumulate. Comments start with `#` or `;`.
pub(super) fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let mut words = line.split_whitespace().map(str::to_owned);
        let keyword = words.next();
        let mut words = words.peekable();
        if words.peek().is_none() {
            continue;
        }
        match keyword.as_deref() {
            Some("nameserver") => dns.nameservers.extend(words.next()),
            Some("domain") => dns.domain = words.next().unwrap_or_default(),
            Some("search") => dns.search.extend(words),
            Some("options") => dns.options.extend(words),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_lines_are_parsed_and_others_ignored() {
        let dns = parse(
            "# a comment\n; another\nnameserver 10.0.0.1 # kept out\n  nameserver fd00::1\n\ndomain a.test\n\
             domain b.test\nsearch a.test b.test\nsearch c.test\noptions ndots:5 edns0\nsortlist 10.0.0.0\nnameserver\n",
        );
        assert_eq!(dns.nameservers, ["10.0.0.1", "fd00::1"]);
        assert_eq!(dns.domain, "b.test");
        assert_eq!(dns.search, ["a.test", "b.test", "c.test"]);
        assert_eq!(dns.options, ["ndots:5", "edns0"]);
        assert_eq!(parse(""), Dns::default());
    }
}
