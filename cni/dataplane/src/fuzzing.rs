// SPDX-License-Identifier: GPL-2.0-or-later

//! The private parsers, for fuzzing. Each takes arbitrary bytes and returns what it has read.

use std::fmt::Debug;

use cni_kernel::AddressFamily;

pub use crate::ebpf::rules::fuzzing::{legacy_rule, rule_of_others};
pub use crate::iptables::fuzzing::{conditions as iptables_conditions, saved_rules};
use crate::nftables::conditions;
use crate::nftables::liveness::Record;
use crate::nftables::schema::{ExemptId, SharedChain};
use crate::nftables::udp_flows;
use crate::owner::{COMMENT_MAX, Owner};

/// An owner's entry in the userdata of an element: the record of a namespace, and the mark of the recorded flows.
pub fn element_entry(bytes: &[u8]) -> impl Debug {
    let record = Record::decode(bytes);
    if let Some((record, encoded)) = record.as_ref().and_then(|record| Some((record, record.encode()?))) {
        let again = Record::decode(&encoded);
        assert!(again.is_some_and(|again| again.mounts == record.mounts
            && (again.netns.dev, again.netns.ino, &again.netns.path)
                == (record.netns.dev, record.netns.ino, &record.netns.path)));
    }
    (record, udp_flows::decode_mark(bytes))
}

/// The owner in the comment of an element or in the alias of a link.
pub fn owner(text: &[u8]) -> Option<impl Debug> {
    let owner = Owner::from_comment(&String::from_utf8_lossy(text))?;
    // A container can change the alias of its own link, and commands print the owner on terminals.
    assert!(!owner.to_string().chars().any(char::is_control), "{owner:?} has control characters");
    let comment = owner.to_comment();
    assert!(comment.len() <= COMMENT_MAX, "{comment:?} is too long");
    let again = Owner::from_comment(&comment);
    assert_eq!(again.as_ref().map(|again| again.attachment_hash), Some(owner.attachment_hash));
    Some((owner, again))
}

/// The names of a shared chain and of a set of exempt networks.
pub fn chain_name(text: &[u8]) -> impl Debug {
    let name = String::from_utf8_lossy(text);
    let (chain, set) = (SharedChain::from_name(&name), ExemptId::from_name(&name));
    if let Some(set) = set {
        assert_eq!(set.name(), name);
    }
    (chain, set)
}

/// The conditions of a mapping in the grammar of the nftables backend, one per line. Accepted conditions are printed
/// as conditions that are accepted again and mean the same.
pub fn nftables_conditions(text: &[u8]) -> impl Debug {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    AddressFamily::BOTH.map(|family| {
        let stmts = conditions::parse(&lines, family).map_err(|error| error.to_string())?;
        let printed: Vec<String> = stmts.iter().map(ToString::to_string).collect();
        let again = conditions::parse(&printed, family).map_err(|error| error.to_string());
        assert_eq!(again.as_ref(), Ok(&stmts), "{printed:?}");
        Ok::<_, String>(stmts)
    })
}
