// SPDX-License-Identifier: GPL-2.0-or-later

//! The socket to nf_tables, and commits. Reading the ruleset is in [`query`] and, in the kernel's encoding, in
//! [`encoded`].

mod encoded;
mod query;

pub use encoded::{EncodedChain, RuleView};

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

use cni_netlink::message::{be32, find, flag};
use cni_netlink::{Ack, Refusal};
use nix::errno::Errno;

use crate::channel::Channel;
use crate::error::Error;
use crate::flowtable::Flowtable;
use crate::invalid::Invalid;
use crate::lower::Expr;
use crate::message::{Encoder, Message, Scratch};
use crate::nfnetlink;
use crate::object::{BaseChain, Chain, Family, Rule, Set, Table, TableId};
use crate::read::SetInfo;
use crate::transaction::{Op, Transaction};

/// `NFNL_SUBSYS_NFTABLES` in `linux/netfilter/nfnetlink.h`.
const SUBSYSTEM: u16 = 10;
/// `NFNL_MSG_BATCH_BEGIN`.
const BATCH_BEGIN: u16 = 0x10;
/// `NFNL_MSG_BATCH_END`.
const BATCH_END: u16 = 0x11;
/// `NFNL_BATCH_GENID`.
const BATCH_GENERATION: u16 = 1;

/// `NFT_MSG_GETGEN` in `linux/netfilter/nf_tables.h`.
const GET_GENERATION: u16 = 16;

/// A table that is never committed. Dry runs add objects to it.
const PROBE: &str = "__probe";

fn kind(message: u16) -> u16 {
    SUBSYSTEM << 8 | message
}

fn get(message: u16, flags: u16, family: u8) -> cni_netlink::Message {
    nfnetlink::request(kind(message), flags, family, 0)
}

/// True for an error by which the kernel may report that it lacks a feature.
const fn is_lack(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT | Errno::EPROTONOSUPPORT)
}

fn unsupported(feature: &str, op: &str) -> Error {
    Error::Unsupported { feature: feature.to_owned(), op: op.to_owned() }
}

/// The index of the change that caused an error, given the position of its message after the beginning of the batch.
/// None for an error about the batch as a whole. `owners` contains the index of the change for each message.
fn refused_op(place: u32, errno: Errno, owners: &[usize]) -> Option<usize> {
    // The generation is compared before the first change. But if the kernel released its lock during a batch to load
    // a module, it starts the batch again, and this error then names the message that needed the module
    // (`nfnetlink_rcv_batch`).
    if errno == Errno::ERESTART {
        return None;
    }
    // The beginning of the batch has the first sequence number, and the message of the first change has the next one.
    owners.get(usize::try_from(place.checked_sub(1)?).ok()?).copied()
}

fn invalid(op: &Op, reason: Invalid) -> Error {
    Error::Invalid { op: op.to_string(), reason }
}

fn rejected(op: &Op, index: usize, refusal: &Refusal) -> Error {
    let hint = if refusal.hint.is_empty() { String::new() } else { format!(" ({})", refusal.hint) };
    Error::Rejected { op: op.to_string(), index, errno: refusal.errno, hint }
}

/// A socket to nf_tables. It belongs to the network namespace in which the thread was when the socket was opened.
#[derive(Debug)]
pub struct Socket {
    channel: Channel,
    /// Sets from which single elements were read, by table and name. A set's types do not change while it exists.
    sets: RefCell<BTreeMap<(TableId, String), SetInfo>>,
}

/// How a batch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Commit,
    /// Without an end message, the kernel checks all changes and then discards them.
    Abort,
}

impl Socket {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel has no netfilter netlink; [`Error::Open`] without permission.
    pub fn open() -> Result<Self, Error> {
        match Channel::open() {
            Ok(channel) => Ok(Self { channel, sets: RefCell::default() }),
            Err(Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT) => {
                Err(unsupported("netfilter netlink", "open a netfilter netlink socket"))
            }
            Err(errno) => Err(Error::Open { errno }),
        }
    }

    /// The ruleset's generation, which changes with every commit in this namespace.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel has no nf_tables; else [`Error::Io`] or [`Error::Malformed`].
    pub fn generation(&self) -> Result<u32, Error> {
        const GENERATION_ID: u16 = 1;
        let operation = || "read the ruleset's generation".to_owned();
        let message = get(GET_GENERATION, flag::ACK, 0);
        let mut generation = None;
        let result = self.channel.request(message, |_, body| {
            generation = find(body, GENERATION_ID).and_then(be32);
        });
        match result {
            // nfnetlink's error for a missing subsystem
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => Err(unsupported("nf_tables", &operation())),
            Err(errno) => Err(Error::Io { operation: operation(), errno }),
            Ok(_) => {
                generation.ok_or_else(|| Error::Malformed { operation: operation(), reason: "no number" })
            }
        }
    }

    /// Makes all changes or none. If a generation is given, the changes are made only if the ruleset still has it
    /// (see [`Error::is_stale_generation`]). An empty transaction does nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a change that cannot be encoded; [`Error::Rejected`] or [`Error::Unsupported`]
    /// for one that the kernel refuses; [`Error::Commit`] if it refuses the transaction as a whole.
    pub fn commit(&self, transaction: &Transaction, generation: Option<u32>) -> Result<(), Error> {
        for op in transaction.ops().iter().filter(|_| log::log_enabled!(log::Level::Debug)) {
            log::debug!("nft {op}");
        }
        let begin = Instant::now();
        let done = self.run(transaction, generation, Ending::Commit);
        let took = begin.elapsed().as_secs_f64() * 1e3;
        match &done {
            Ok(()) => log::debug!("nft: {} changes committed in {took:.1} ms", transaction.ops().len()),
            Err(error) => log::debug!("nft: nothing committed: {error}"),
        }
        done
    }

    /// Lets the kernel check all changes without making them. This does not find mistakes that the kernel notices
    /// only at the end of a transaction, such as loops of chains or statements in wrong hooks.
    pub fn dry_run(&self, transaction: &Transaction) -> Result<(), Error> {
        self.run(transaction, None, Ending::Abort)
    }

    fn run(&self, transaction: &Transaction, generation: Option<u32>, ending: Ending) -> Result<(), Error> {
        let mut encoder = Encoder::default();
        let mut messages = Vec::new();
        let mut owners = Vec::new();
        for (index, op) in transaction.ops().iter().enumerate() {
            let encoded = encoder.encode(op).map_err(|reason| invalid(op, reason))?;
            owners.extend(std::iter::repeat_n(index, encoded.len()));
            messages.extend(encoded);
        }
        let Some(first) = transaction.ops().first() else {
            return Ok(());
        };
        let (begin, acks) = self
            .send_batch(messages, generation, ending)
            .map_err(|errno| Error::Commit { what: first.to_string(), errno })?;
        let mut refused = acks.iter().filter_map(|ack| Some((ack.sequence, ack.refusal.as_ref()?)));
        let Some((sequence, refusal)) = refused.next() else {
            // If there was no error, the last change must have been acknowledged.
            return if ending == Ending::Abort || !acks.is_empty() {
                Ok(())
            } else {
                Err(Error::Malformed { operation: format!("commit {first}"), reason: "no acknowledgement" })
            };
        };
        let index = refused_op(sequence.wrapping_sub(begin), refusal.errno, &owners);
        let Some((index, op)) = index.and_then(|index| Some((index, transaction.ops().get(index)?))) else {
            return Err(match refusal.errno {
                // nfnetlink's error for a missing subsystem
                Errno::EOPNOTSUPP => unsupported("nf_tables", &first.to_string()),
                errno => Error::Commit { what: first.to_string(), errno },
            });
        };
        let missing = if ending == Ending::Commit { self.missing_feature(op, refusal.errno) } else { None };
        Err(match missing {
            Some(feature) => Error::Unsupported { feature, op: op.to_string() },
            None => rejected(op, index, refusal),
        })
    }

    /// Sends messages as one batch. Returns the sequence number of the batch's beginning, and the acknowledgements.
    fn send_batch(
        &self,
        mut messages: Vec<Message>,
        generation: Option<u32>,
        ending: Ending,
    ) -> Result<(u32, Vec<Ack>), Errno> {
        if let Some(last) = messages.last_mut() {
            last.acknowledge();
        }
        let begin = self.channel.next_sequence();
        let mut message = nfnetlink::request(BATCH_BEGIN, 0, 0, SUBSYSTEM);
        if let Some(generation) = generation {
            message.be32(BATCH_GENERATION, generation);
        }
        let mut bytes = message.seal(begin).to_vec();
        let mut scratch = Scratch::new();
        for message in &messages {
            message.append_to(&mut bytes, &mut scratch, self.channel.next_sequence());
        }
        if ending == Ending::Commit {
            let sequence = self.channel.next_sequence();
            bytes.extend_from_slice(nfnetlink::request(BATCH_END, 0, 0, SUBSYSTEM).seal(sequence));
        }
        Ok((begin, self.channel.batch(&bytes)?))
    }

    /// The feature whose absence is the reason for a refusal, if any. ENOENT and EOPNOTSUPP can mean that an
    /// expression or chain type is missing from the kernel, but also that a chain does not exist.
    fn missing_feature(&self, op: &Op, errno: Errno) -> Option<String> {
        if !matches!(errno, Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT | Errno::EINVAL) {
            return None;
        }
        match op {
            Op::AddTable(table) => self.missing_family(table.id.family),
            Op::AddChain(Chain { table, base: Some(base), .. }) => {
                self.missing_family(table.family).or_else(|| self.missing_chain(table.family, *base))
            }
            Op::AddRule(rule) => self.missing_expression(rule),
            Op::AddSet(set) => self.missing_set(set),
            Op::AddFlowtable(flowtable) => self.missing_flowtable(flowtable.table.family),
            _ => None,
        }
    }

    fn missing_family(&self, family: Family) -> Option<String> {
        let mut probe = Transaction::new();
        probe.add_table(Table::new(&TableId::new(family, PROBE)));
        let error = self.dry_run(&probe).err()?;
        is_lack(error.errno()?).then(|| format!("{family} family"))
    }

    fn missing_chain(&self, family: Family, base: BaseChain) -> Option<String> {
        let table = TableId::new(family, PROBE);
        let mut probe = Transaction::new();
        probe.add_table(Table::new(&table)).add_chain(Chain::new(&table, PROBE).base(base));
        let error = self.dry_run(&probe).err()?;
        let (kind, hook) = (base.kind.name(), base.hook.name());
        is_lack(error.errno()?).then(|| format!("{kind} chain at {hook} for the {family} family"))
    }

    fn missing_expression(&self, rule: &Rule) -> Option<String> {
        let lowered = Encoder::default().lower(rule).ok()?;
        let mut seen = Vec::new();
        for expr in &lowered.exprs {
            // Lookups, updates and jumps are always built in, and in a dry run their set or chain would be missing.
            if matches!(expr, Expr::Lookup { .. } | Expr::Update { .. } | Expr::Verdict(_))
                || seen.contains(expr)
            {
                continue;
            }
            if self.lacks_expression(rule.table.family, expr) {
                return Some(format!("{} expression", expr.name()));
            }
            seen.push(expr.clone());
        }
        None
    }

    /// True if the kernel refuses a rule that contains only this expression, because it lacks the expression.
    fn lacks_expression(&self, family: Family, expr: &Expr) -> bool {
        let table = TableId::new(family, PROBE);
        let mut encoder = Encoder::default();
        let mut messages = Vec::new();
        let mut ops = vec![Op::AddTable(Table::new(&table)), Op::AddChain(Chain::new(&table, PROBE))];
        if let Expr::Offload { flowtable } = expr {
            ops.push(Op::AddFlowtable(Flowtable::new(&table, flowtable, &[])));
        }
        for op in ops {
            messages.extend(encoder.encode(&op).unwrap_or_default());
        }
        messages.extend(Encoder::bare_rule(&table, PROBE, std::slice::from_ref(expr)));
        let Ok((_, acks)) = self.send_batch(messages, None, Ending::Abort) else {
            return false;
        };
        acks.iter().filter_map(|ack| ack.refusal.as_ref()).any(|refusal| is_lack(refusal.errno))
    }

    fn missing_set(&self, set: &Set) -> Option<String> {
        let table = TableId::new(set.table.family, PROBE);
        let mut probe = Transaction::new();
        let copy = Set { table: table.clone(), name: PROBE.to_owned(), ..set.clone() };
        probe.add_table(Table::new(&table)).add_set(copy);
        let error = self.dry_run(&probe).err()?;
        is_lack(error.errno()?).then(|| {
            let ranges = if set.keys == crate::object::Keys::Intervals { " with ranges" } else { "" };
            let concatenated = if set.key.len() > 1 { " of concatenated keys" } else { "" };
            format!("{}{concatenated}{ranges}", set.word())
        })
    }

    /// Tries a flowtable without devices, because the error may be about a device that does not exist.
    fn missing_flowtable(&self, family: Family) -> Option<String> {
        let table = TableId::new(family, PROBE);
        let mut probe = Transaction::new();
        probe.add_table(Table::new(&table)).add_flowtable(Flowtable::new(&table, PROBE, &[]));
        let error = self.dry_run(&probe).err()?;
        is_lack(error.errno()?).then(|| format!("flowtable of the {family} family"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_generation_is_not_blamed_on_a_change() {
        let owners = [0, 0, 1];
        assert_eq!(refused_op(0, Errno::ENOENT, &owners), None, "the begin itself");
        assert_eq!(refused_op(3, Errno::ENOENT, &owners), Some(1));
        assert_eq!(refused_op(4, Errno::ENOENT, &owners), None);
        assert_eq!(refused_op(3, Errno::ERESTART, &owners), None, "after a module was loaded");
    }
}
