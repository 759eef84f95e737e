//! nf_tables and conntrack over netlink.
//!
//! - [`Transaction`] is a list of changes ([`Op`]) as a plain value. It prints as nft commands.
//! - [`Socket`] commits transactions, all or nothing, if asked only on top of a known generation of
//!   the ruleset, and reads the ruleset back.
//! - [`Stmt`] is what rules are made of: the words of nft's syntax. [`Value`] is what they compare.
//! - [`conntrack`] lists and removes flows.
//!
//! Messages are built by libnftnl, through the `nftnl` crate's traits where it lacks the object, and
//! carried by libmnl. What the kernel answers is read by this crate itself.

mod channel;
pub mod conntrack;
mod decode;
mod error;
mod expr;
mod intervals;
mod lower;
mod message;
mod object;
mod parse;
mod print;
mod raw;
mod read;
mod socket;
mod stmt;
mod transaction;
mod udata;
mod value;
mod wire;

pub use error::Error;
pub use object::{
    BaseChain, Chain, ChainKind, Create, Element, ElementData, ElementId, Family, Flowtable, Hook, Keys,
    Links, MapData, Policy, Rule, Set, Table, TableId, Tlv,
};
pub use read::{ChainInfo, ElementInfo, FlowtableInfo, RuleInfo, SetInfo, TableInfo};
pub use socket::Socket;
pub use stmt::{Cmp, DnatData, DnatTarget, Field, IpVersion, Operand, PortChoice, Stmt, Verdict};
pub use transaction::{Op, Transaction};
pub use value::{
    DataType, IFNAMSIZ, REGISTER_SIZE, Value, concat_from_id, concat_id, concat_len, decode_concat,
    encode_concat,
};
