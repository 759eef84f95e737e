// SPDX-License-Identifier: GPL-2.0-or-later

//! Changes to one table, as input for `iptables-restore --noflush`.

use std::fmt;

use super::listing::Listing;
use super::names::TableName;
use super::quote;
use super::rule::Rule;

/// Changes that take effect together; `Display` prints the tool's input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    table: TableName,
    lines: Vec<String>,
}

impl Batch {
    pub(crate) fn new(table: TableName) -> Self {
        Self { table, lines: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    fn push(&mut self, head: &[&str], rule: Option<&Rule>) {
        let rule = rule.map(Rule::words).unwrap_or_default().iter().map(String::as_str);
        self.lines.push(quote::line(head.iter().copied().chain(rule)));
    }

    pub(super) fn print(&mut self, chain: &str) {
        self.push(&["-S", chain], None);
    }

    /// Makes the tool refuse the batch unless the chain has the rule.
    pub(super) fn require(&mut self, chain: &str, rule: &Rule) {
        self.push(&["-C", chain], Some(rule));
    }

    /// Makes a chain, unless it is listed or already made by this batch. The tool refuses the batch if the chain
    /// exists.
    pub(crate) fn make_chain(&mut self, listing: &Listing, chain: &str) {
        if !listing.has(chain) && !self.lines.contains(&format!("-N {chain}")) {
            self.push(&["-N", chain], None);
        }
    }

    pub(crate) fn flush(&mut self, chain: &str) {
        self.push(&["-F", chain], None);
    }

    pub(crate) fn append(&mut self, chain: &str, rule: &Rule) {
        self.push(&["-A", chain], Some(rule));
    }

    /// Inserts the rule at the beginning of its chain.
    pub(crate) fn insert(&mut self, chain: &str, rule: &Rule) {
        self.push(&["-I", chain, "1"], Some(rule));
    }

    /// Deletes the first rule with these words. The tool refuses the batch if there is none.
    pub(crate) fn delete(&mut self, chain: &str, rule: &Rule) {
        self.push(&["-D", chain], Some(rule));
    }

    /// Deletes the listed rules of a chain that jump to one of the targets.
    pub(crate) fn delete_jumps(&mut self, listing: &Listing, from: &str, targets: &[&str]) {
        for rule in
            listing.rules(from).iter().filter(|rule| rule.target().is_some_and(|to| targets.contains(&to)))
        {
            self.delete(from, rule);
        }
    }

    /// Flushes and deletes those of the chains that are listed.
    pub(crate) fn delete_chains(&mut self, listing: &Listing, chains: &[&str]) {
        let present = || chains.iter().filter(|chain| listing.has(chain));
        for chain in present() {
            self.flush(chain);
        }
        for chain in present() {
            self.push(&["-X", chain], None);
        }
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "*{}", self.table.as_str())?;
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        f.write_str("COMMIT\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;

    #[test]
    fn a_batch_prints_as_the_tools_input() {
        let mut batch = Batch::new(TableName::Nat);
        batch.make_chain(&Listing::default(), "CNI-x");
        batch.make_chain(&Listing::default(), "CNI-x");
        let rule = Rule::new().with_source("10.1.2.3/24".parse().unwrap()).with_port(Protocol::Tcp, 80);
        batch.append("CNI-x", &rule.with_comment("name: \"n\"\nCOMMIT").set_mark_bit(31));
        let local = Rule::new().with(["-m", "addrtype", "--dst-type", "LOCAL"]);
        batch.insert("CNI-x", &local.translate_to("[fd00::1]:80".parse().unwrap()));
        assert_eq!(
            batch.to_string(),
            "*nat\n-N CNI-x\n-A CNI-x -s 10.1.2.0/24 -p tcp -m tcp --dport 80 -m comment --comment \
             \"name: \\\"n\\\" COMMIT\" -j MARK --set-xmark 0x80000000/0x80000000\n\
             -I CNI-x 1 -m addrtype --dst-type LOCAL -j DNAT --to-destination [fd00::1]:80\nCOMMIT\n"
        );
    }
}
