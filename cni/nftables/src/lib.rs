// SPDX-License-Identifier: GPL-2.0-or-later

//! nf_tables and conntrack over netlink.
//!
//! - [`Transaction`] is a list of changes ([`Op`]) as a plain value. It prints as nft commands.
//! - [`Socket`] commits transactions atomically and reads the ruleset. If asked to, it commits only if the
//!   ruleset still has a given generation.
//! - [`Stmt`] is a statement of a rule, modelled on nft's syntax. [`Value`] is a value with which rules compare.
//! - [`notify`] reports the commits of all processes.
//! - [`conntrack`] lists, deletes and inserts flows.
//!
//! libnftnl builds the messages, either through the `nftnl` crate or, for objects that the crate lacks, directly.
//! libmnl opens the sockets. `cni-netlink` sends requests and collects the replies, which are decoded here.

mod channel;
pub mod conntrack;
mod decode;
pub mod deferred_close;
mod error;
mod expr;
mod flowtable;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod intervals;
mod invalid;
mod lower;
mod message;
mod nfnetlink;
pub mod notify;
mod object;
mod open_socket;
mod parse;
mod print;
pub mod probe;
mod raw;
mod read;
mod socket;
mod stmt;
mod subscription;
pub mod trace;
mod transaction;
mod uapi;
mod udata;
mod value;

pub use error::Error;
pub use flowtable::{Flowtable, Links};
pub use invalid::Invalid;
pub use object::{
    BaseChain, Chain, ChainKind, Create, Element, ElementData, ElementId, Family, Hook, Keys, MapData,
    Policy, Rule, Set, Table, TableId, Tlv,
};
pub use read::{ChainInfo, ElementInfo, FlowtableInfo, RuleInfo, SetInfo, TableInfo};
pub use socket::{EncodedChain, RuleView, Socket};
pub use stmt::{Cmp, DnatData, DnatTarget, Field, Operand, PortChoice, Stmt, Verdict};
pub use transaction::{Op, Transaction};
pub use value::{DataType, IFNAMSIZ, Value};
