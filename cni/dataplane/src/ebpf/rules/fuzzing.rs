// SPDX-License-Identifier: GPL-2.0-or-later

//! The readers of other programs' rules, for fuzzing.

use std::collections::BTreeSet;
use std::fmt::Debug;

use cni_kernel::AddressFamily;
use cni_kernel::xtables::{RawExtension, RawRule};

use super::hold::Flows;
use super::judge::judge;
use super::tables::{EXTENSIONS, judge_legacy};

/// The expressions of a rule of nf_tables.
pub fn rule_of_others(expressions: &[u8]) -> impl Debug {
    let limited = BTreeSet::from(["limited".to_owned()]);
    [Flows::all(), Flows::of_family(AddressFamily::V4)].map(|flows| {
        let judgement = judge(expressions, flows, &limited, EXTENSIONS);
        if let Some(hold) = &judgement.hold {
            assert!(!hold.flows.is_empty() && hold.flows.without(flows).is_empty());
        }
        judgement
    })
}

/// A rule of a legacy table: its protocol, the length of the target's data, the target's data, and the match's data.
/// The input begins with the names of the target and the match.
pub fn legacy_rule(bytes: &[u8]) -> Option<impl Debug> {
    let (protocol, rest) = bytes.split_first()?;
    let mut parts = rest.splitn(3, |byte| *byte == 0);
    let mut text = || parts.next().map(|name| String::from_utf8_lossy(name).into_owned());
    let (of_match, of_target) = (text()?, text()?);
    let data = parts.next().unwrap_or_default();
    let extension = |name| RawExtension { name, revision: 0, data: data.to_vec() };
    let rule = RawRule {
        number: 1,
        protocol: *protocol,
        matches: vec![extension(of_match)],
        target: extension(of_target),
        ..RawRule::default()
    };
    Some(AddressFamily::BOTH.map(|family| judge_legacy(family, &rule)))
}
