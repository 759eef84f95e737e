// SPDX-License-Identifier: GPL-2.0-or-later

//! Chains and rules of all programs in the kernel's encoding, including those that this crate cannot decode.

use std::collections::BTreeSet;

use cni_netlink::message::{attributes, be32, be64, find, flag, text};
use nix::errno::Errno;

use super::{Socket, get};
use crate::decode::decode_verdict;
use crate::error::Error;
use crate::object::{Family, TableId};
use crate::stmt::Verdict;
use crate::uapi;

// enum nf_tables_msg_types in `linux/netfilter/nf_tables.h`
const GET_CHAIN: u16 = 4;
const GET_RULE: u16 = 7;
const GET_SET: u16 = 10;
const GET_ELEMENT: u16 = 13;

/// `NFTA_SET_EXPR`, and `NFTA_SET_EXPRESSIONS` of Linux 5.11 and later.
const SET_EXPRESSION: u16 = 17;
const SET_EXPRESSIONS: u16 = 18;

/// A chain of any kind, at any hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedChain {
    pub table: TableId,
    pub name: String,
    /// The number of the chain's hook, whose meaning depends on the family, and the chain's type. None without a
    /// hook.
    pub base: Option<(u32, String)>,
    /// See [`ChainInfo::uses`](crate::ChainInfo::uses).
    pub uses: u32,
}

/// A rule in a dump.
#[derive(Debug, Clone, Copy)]
pub struct RuleView<'a> {
    pub chain: &'a str,
    pub handle: u64,
    /// The rule's expressions, as a list of attributes.
    pub expressions: &'a [u8],
}

impl Socket {
    /// All chains of all tables.
    pub fn encoded_chains(&self) -> Result<Vec<EncodedChain>, Error> {
        const HOOK: u16 = 4;
        const USE: u16 = 6;
        const TYPE: u16 = 7;
        let message = || get(GET_CHAIN, flag::DUMP, 0);
        self.gather_changing("list chains", message, |family, body| {
            let hook = find(body, HOOK).and_then(|hook| find(hook, uapi::HOOK_NUMBER)).and_then(be32);
            let table = TableId::new(family?, &text(find(body, uapi::CHAIN_TABLE)?));
            let name = text(find(body, uapi::CHAIN_NAME)?);
            let chain = EncodedChain {
                table: table.clone(),
                name: name.clone(),
                base: hook.map(|hook| (hook, find(body, TYPE).map(text).unwrap_or_default())),
                uses: find(body, USE).and_then(be32).unwrap_or_default(),
            };
            Some(((table, name), chain))
        })
    }

    /// Calls `read` for each rule of a table and returns the results, without storing the rules.
    pub fn fold_rules<T>(
        &self,
        table: &TableId,
        read: impl Fn(RuleView<'_>) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        const HANDLE: u16 = 3;
        let message = || {
            let mut message = get(GET_RULE, flag::DUMP, table.family.number());
            message.text(uapi::RULE_TABLE, &table.name);
            message
        };
        self.gather_changing(&format!("read rules of table {table}"), message, |_, body| {
            // Older kernels also list the rules of other tables.
            let (own, chain) = (text(find(body, uapi::RULE_TABLE)?), text(find(body, uapi::RULE_CHAIN)?));
            if own != table.name {
                return None;
            }
            let handle = find(body, HANDLE).and_then(be64).unwrap_or_default();
            let expressions = find(body, uapi::RULE_EXPRESSIONS).unwrap_or_default();
            read(RuleView { chain: &chain, handle, expressions }).map(|found| (handle, found))
        })
    }

    /// The chains to which the elements of a verdict map lead. An anonymous map has the name that the kernel
    /// assigned.
    pub fn verdict_targets(&self, table: &TableId, map: &str) -> Result<BTreeSet<String>, Error> {
        const DATA: u16 = 2;
        let mut message = get(GET_ELEMENT, flag::DUMP, table.family.number());
        message.text(uapi::LIST_TABLE, &table.name).text(uapi::LIST_SET, map);
        let operation = format!("list elements of {table} {map}");
        let each = self.read_list(&operation, message, |_, body| {
            let elements = attributes(find(body, uapi::LIST_ELEMENTS).unwrap_or_default());
            let verdict = |element| decode_verdict(find(find(element, DATA)?, uapi::DATA_VERDICT)?);
            let targets = elements.filter_map(|(_, element)| match verdict(element)? {
                Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
                _ => None,
            });
            Some(targets.collect::<BTreeSet<String>>())
        })?;
        Ok(each.into_iter().flatten().collect())
    }

    /// The sets of a table whose elements have an expression, such as `limit`, for which `is_wanted` is true.
    pub fn sets_with_expression(
        &self,
        table: &TableId,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<BTreeSet<String>, Error> {
        let mut message = get(GET_SET, flag::DUMP, table.family.number());
        message.text(uapi::SET_TABLE, &table.name);
        let named = self.read_list(&format!("list sets of table {table}"), message, |_, body| {
            let own = text(find(body, uapi::SET_TABLE)?);
            let single = find(body, SET_EXPRESSION).into_iter();
            let list = attributes(find(body, SET_EXPRESSIONS).unwrap_or_default()).map(|(_, one)| one);
            let mut names = single.chain(list).filter_map(|one| find(one, 1)).map(text);
            let name = text(find(body, uapi::SET_NAME)?);
            (own == table.name && names.any(|expression| is_wanted(&expression))).then_some(name)
        })?;
        Ok(named.into_iter().collect())
    }

    fn read_list<T>(
        &self,
        operation: &str,
        message: cni_netlink::Message,
        read: impl Fn(Family, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let found = self.channel.dump(message, |family, body| read(Family::from_number(family)?, body));
        found.or_else(|error| match error {
            cni_netlink::Error::Unstable => Err(Error::Unstable { operation: operation.to_owned() }),
            error if error.errno() == Errno::ENOENT => Ok(Vec::new()),
            error => Err(Error::Io { operation: operation.to_owned(), errno: error.errno() }),
        })
    }
}
