// SPDX-License-Identifier: GPL-2.0-or-later

//! The socket to nf_tables: commits and reads.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use cni_netlink::message::{be32, find, flag, text};
use cni_netlink::{Ack, Attributes, End, Refusal};
use nix::errno::Errno;

use crate::channel::Channel;
use crate::error::Error;
use crate::flowtable::Flowtable;
use crate::intervals;
use crate::invalid::Invalid;
use crate::lower::Expr;
use crate::message::{Encoder, Message, Scratch};
use crate::nfnetlink;
use crate::object::{BaseChain, Chain, ElementId, Family, Rule, Set, Table, TableId};
use crate::parse;
use crate::read::{ChainInfo, ElementInfo, FlowtableInfo, RuleInfo, SetInfo, TableInfo};
use crate::transaction::{Op, Transaction};
use crate::uapi;
use crate::value::{DataType, Value, encode_concat};

/// `NFNL_SUBSYS_NFTABLES` in `linux/netfilter/nfnetlink.h`.
const SUBSYSTEM: u16 = 10;
/// `NFNL_MSG_BATCH_BEGIN`.
const BATCH_BEGIN: u16 = 0x10;
/// `NFNL_MSG_BATCH_END`.
const BATCH_END: u16 = 0x11;
/// `NFNL_BATCH_GENID`.
const BATCH_GENERATION: u16 = 1;

// enum nf_tables_msg_types
const GET_TABLE: u16 = 1;
const GET_CHAIN: u16 = 4;
const GET_RULE: u16 = 7;
const GET_SET: u16 = 10;
const GET_ELEMENT: u16 = 13;
const GET_GENERATION: u16 = 16;
const GET_FLOWTABLE: u16 = 23;

/// The time for which a dump is repeated while other processes change the ruleset.
const DUMP_PATIENCE: Duration = Duration::from_secs(5);

/// Pause before repeating the dump of a hash table that is being resized.
const DUMP_PAUSE: Duration = Duration::from_millis(20);

/// Requests in one datagram. Their replies wait in the socket together, a few thousand bytes each.
const AT_ONCE: usize = 16;

/// A table that is never committed: dry runs add objects to it.
const PROBE: &str = "__probe";

fn kind(message: u16) -> u16 {
    SUBSYSTEM << 8 | message
}

fn get(message: u16, flags: u16, family: u8) -> cni_netlink::Message {
    nfnetlink::request(kind(message), flags, family, 0)
}

fn put_key(message: &mut Attributes, kind: u16, key: &[Value]) {
    message.nest(kind, |data| {
        data.attr(uapi::DATA_VALUE, &encode_concat(key));
    });
}

/// True for an error with which the kernel may report that it lacks a feature.
const fn is_lack(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT | Errno::EPROTONOSUPPORT)
}

fn unsupported(feature: &str, op: &str) -> Error {
    Error::Unsupported { feature: feature.to_owned(), op: op.to_owned() }
}

/// The index of the change that caused an error, by the number of its message after the batch's begin; none
/// for an error about the batch as a whole. `owners` has the change of each message.
fn refused_op(place: u32, errno: Errno, owners: &[usize]) -> Option<usize> {
    // The generation is compared before the first change. If the kernel released its lock during a batch
    // to load a module, it starts the batch again, and this error then names the message that needed the
    // module (`nfnetlink_rcv_batch`).
    if errno == Errno::ERESTART {
        return None;
    }
    // The batch's begin has the first sequence number, the first change's message the next.
    owners.get(usize::try_from(place.checked_sub(1)?).ok()?).copied()
}

fn invalid(op: &Op, reason: Invalid) -> Error {
    Error::Invalid { op: op.to_string(), reason }
}

fn rejected(op: &Op, index: usize, refusal: &Refusal) -> Error {
    let hint = if refusal.hint.is_empty() { String::new() } else { format!(" ({})", refusal.hint) };
    Error::Rejected { op: op.to_string(), index, errno: refusal.errno, hint }
}

/// A socket to nf_tables in the network namespace that the thread had when it was opened.
#[derive(Debug)]
pub struct Socket {
    channel: Channel,
    /// Sets whose elements were read one by one, by table and name: their types do not change while they
    /// exist.
    sets: RefCell<BTreeMap<(TableId, String), SetInfo>>,
}

/// The end of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Commit,
    /// Without an end message the kernel checks all changes, and then discards them.
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

    /// Makes all changes or none. With a generation, only if the ruleset still has it: see
    /// [`Error::is_stale_generation`]. An empty transaction does nothing.
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

    /// Lets the kernel check all changes without making them. Not found are the mistakes that the kernel
    /// finds at the end of a transaction: loops of chains, statements in wrong hooks.
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
            // Without an error, the last change must have been acknowledged.
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

    /// Sends messages as one batch. Returns the sequence number of its begin, and the acknowledgements.
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

    /// The feature whose absence is the reason for a refusal, if any: the errors ENOENT and EOPNOTSUPP stand
    /// for a missing expression or chain type as well as for a missing chain.
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
            // Lookups, updates and jumps are built in; their set or chain is missing in a dry run.
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

    /// True if the kernel refuses a rule of only this expression because it lacks the expression.
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

    /// Tries a flowtable without devices, as the error may be about a missing device.
    fn missing_flowtable(&self, family: Family) -> Option<String> {
        let table = TableId::new(family, PROBE);
        let mut probe = Transaction::new();
        probe.add_table(Table::new(&table)).add_flowtable(Flowtable::new(&table, PROBE, &[]));
        let error = self.dry_run(&probe).err()?;
        is_lack(error.errno()?).then(|| format!("flowtable of the {family} family"))
    }

    pub fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        let message = get(GET_TABLE, flag::DUMP, 0);
        self.gather("list tables", message, parse::table)
    }

    /// One table; none if it is missing.
    pub fn table(&self, table: &TableId) -> Result<Option<TableInfo>, Error> {
        let mut message = get(GET_TABLE, flag::ACK, table.family.number());
        message.text(uapi::TABLE_NAME, &table.name);
        self.one(&format!("read table {table}"), message, parse::table)
    }

    /// All chains of all tables.
    pub fn all_chains(&self) -> Result<Vec<ChainInfo>, Error> {
        let message = get(GET_CHAIN, flag::DUMP, 0);
        self.gather("list chains", message, parse::chain)
    }

    /// The chains of one table; empty if there is no such table.
    pub fn chains(&self, table: &TableId) -> Result<Vec<ChainInfo>, Error> {
        // Older kernels ignore the table in the request.
        let mut message = get(GET_CHAIN, flag::DUMP, table.family.number());
        message.text(uapi::CHAIN_TABLE, &table.name);
        let operation = format!("list chains of table {table}");
        self.gather(&operation, message, |family, body| {
            parse::chain(family, body).filter(|chain| chain.table == *table)
        })
    }

    /// One chain; none if it or its table is missing.
    pub fn chain(&self, table: &TableId, name: &str) -> Result<Option<ChainInfo>, Error> {
        let mut message = get(GET_CHAIN, flag::ACK, table.family.number());
        message.text(uapi::CHAIN_TABLE, &table.name).text(uapi::CHAIN_NAME, name);
        self.one(&format!("read chain {table} {name}"), message, parse::chain)
    }

    /// The chains of these names, without missing ones. The kernel reads each by itself, as [`Socket::chain`] does.
    pub fn chains_named(&self, table: &TableId, names: &[&str]) -> Result<Vec<ChainInfo>, Error> {
        let mut found = Vec::new();
        for some in names.chunks(AT_ONCE) {
            let message = |name: &&str| {
                let mut message = get(GET_CHAIN, 0, table.family.number());
                message.text(uapi::CHAIN_TABLE, &table.name).text(uapi::CHAIN_NAME, name);
                message
            };
            let read = self.channel.requests(some.iter().map(message), |family, body| {
                found.extend(parse::chain(Family::from_number(family), body));
            });
            read.map_err(|errno| Error::Io { operation: format!("read chains of table {table}"), errno })?;
        }
        Ok(found)
    }

    /// One flowtable; none if it or its table is missing.
    pub fn flowtable(&self, table: &TableId, name: &str) -> Result<Option<FlowtableInfo>, Error> {
        let mut message = get(GET_FLOWTABLE, flag::ACK, table.family.number());
        message.text(uapi::FLOWTABLE_TABLE, &table.name).text(uapi::FLOWTABLE_NAME, name);
        self.one(&format!("read flowtable {table} {name}"), message, parse::flowtable)
    }

    /// The rules of one chain; empty if there is no such chain.
    pub fn rules(&self, table: &TableId, chain: &str) -> Result<Vec<RuleInfo>, Error> {
        let mut message = get(GET_RULE, flag::DUMP, table.family.number());
        message.text(uapi::RULE_TABLE, &table.name).text(uapi::RULE_CHAIN, chain);
        self.gather(&format!("list rules of chain {table} {chain}"), message, |family, body| {
            parse::rule(family, body).filter(|rule| rule.table == *table && rule.chain == chain)
        })
    }

    /// True if `pass` returns true for the expressions of a rule in a chain, as the kernel encodes them. For
    /// rules of other programs, for whose expressions [`RuleInfo`] may have no statements. False if there is
    /// no such chain.
    pub fn has_rule(
        &self,
        table: &TableId,
        chain: &str,
        pass: impl Fn(&[u8]) -> bool,
    ) -> Result<bool, Error> {
        let mut message = get(GET_RULE, flag::DUMP, table.family.number());
        message.text(uapi::RULE_TABLE, &table.name).text(uapi::RULE_CHAIN, chain);
        let found = self.gather(&format!("read rules of chain {table} {chain}"), message, |_, body| {
            let is_in_chain = find(body, uapi::RULE_CHAIN).is_some_and(|name| text(name) == chain);
            let expressions = find(body, uapi::RULE_EXPRESSIONS)?;
            (is_in_chain && pass(expressions)).then_some(())
        })?;
        Ok(!found.is_empty())
    }

    /// The named sets and maps of one table; empty if there is no such table.
    pub fn sets(&self, table: &TableId) -> Result<Vec<SetInfo>, Error> {
        let mut message = get(GET_SET, flag::DUMP, table.family.number());
        message.text(uapi::SET_TABLE, &table.name);
        let operation = format!("list sets of table {table}");
        self.gather(&operation, message, |family, body| {
            parse::set(family, body).filter(|set| set.table == *table && !parse::is_anonymous(set))
        })
    }

    /// One set or map; none if it or its table is missing.
    pub fn set(&self, table: &TableId, name: &str) -> Result<Option<SetInfo>, Error> {
        let mut message = get(GET_SET, flag::ACK, table.family.number());
        message.text(uapi::SET_TABLE, &table.name).text(uapi::SET_NAME, name);
        self.one(&format!("read set {table} {name}"), message, parse::set)
    }

    /// One element by its key; none if it, its set or its table is missing. In a set of ranges: the element
    /// with exactly this range or, without an end, the element that contains the key.
    pub fn element(&self, id: &ElementId) -> Result<Option<ElementInfo>, Error> {
        let Some(set) = self.known_set(id)? else {
            return Ok(None);
        };
        let mut message = get(GET_ELEMENT, flag::ACK, id.table.family.number());
        message.text(uapi::LIST_TABLE, &id.table.name).text(uapi::LIST_SET, &id.set);
        message.nest(uapi::LIST_ELEMENTS, |list| {
            list.nest(uapi::LIST_ITEM, |element| {
                put_key(element, uapi::ELEMENT_KEY, &id.key);
                if let Some(end) = &id.key_end {
                    put_key(element, uapi::ELEMENT_KEY_END, end);
                }
            });
        });
        let mut found = None;
        let operation = format!("read element {id}");
        let result = self.channel.request(message, |_, body| {
            parse::elements(body, &set, |element| found = Some(element));
        });
        match result {
            Ok(_) => Ok(found),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(Error::Io { operation, errno }),
        }
    }

    /// The set of an element. A set that was replaced while this socket was open is not noticed.
    fn known_set(&self, id: &ElementId) -> Result<Option<SetInfo>, Error> {
        let name = (id.table.clone(), id.set.clone());
        if let Some(known) = self.sets.borrow().get(&name) {
            return Ok(Some(known.clone()));
        }
        let read = self.set(&id.table, &id.set)?;
        if let Some(info) = &read {
            self.sets.borrow_mut().insert(name, info.clone());
        }
        Ok(read)
    }

    /// All elements of a set. See [`Socket::fold_elements`].
    pub fn elements(&self, table: &TableId, set: &str) -> Result<Vec<ElementInfo>, Error> {
        self.fold_elements(table, set, Vec::new, Vec::push)
    }

    /// Calls `each` for all elements of a set without storing them. If another process changes the ruleset
    /// during the dump, the result is discarded, and the dump repeated with a new `start()`. Of a range in a
    /// set whose key is a single value, only the beginning is passed; [`Socket::ranges`] has both ends. `each` must not use this socket, which
    /// is reading the reply (EDEADLK); another one can be used.
    ///
    /// The kernel walks the set again for each 32 KB of the reply, so the time grows with the square of the
    /// number of elements: about a second for 50,000.
    ///
    /// # Errors
    /// [`Error::Io`] with ENOENT if the set or table is missing; [`Error::Unstable`].
    pub fn fold_elements<T>(
        &self,
        table: &TableId,
        set: &str,
        start: impl Fn() -> T,
        mut each: impl FnMut(&mut T, ElementInfo),
    ) -> Result<T, Error> {
        // A hash table that has just grown is moved piece by piece during the dump. The kernel resumes a dump by
        // an index, and repeats one element for each that it misses.
        let begin = || (start(), HashSet::new(), false);
        let read = |body: &[u8], info: &SetInfo, (gathered, seen, repeated): &mut (T, HashSet<u64>, bool)| {
            parse::elements(body, info, |element| {
                *repeated |= !seen.insert(hash(&element));
                each(gathered, element);
            });
        };
        self.dump_set(table, set, begin, read, |(_, _, repeated)| !repeated).map(|(gathered, _, _)| gathered)
    }

    /// All ranges of a set of ranges whose key is a single value, in order: the first and the last key of each.
    pub fn ranges(&self, table: &TableId, set: &str) -> Result<Vec<(Value, Value)>, Error> {
        let read =
            |body: &[u8], info: &SetInfo, (kind, bounds): &mut (Option<DataType>, BTreeMap<_, bool>)| {
                *kind = info.key.as_deref().and_then(|types| types.first().copied());
                // Where a range begins behind another one, the key is a bound of both.
                parse::bounds(body, |key, is_end| *bounds.entry(key).or_insert(true) &= is_end);
            };
        let (kind, bounds) = self.dump_set(table, set, || (None, BTreeMap::new()), read, |_| true)?;
        let Some(kind) = kind else { return Ok(Vec::new()) };
        Ok(intervals::ranges(kind, &bounds))
    }

    /// Repeats the dump of a set until the ruleset has not changed during it, and `is_whole` is true of the
    /// result.
    fn dump_set<T>(
        &self,
        table: &TableId,
        set: &str,
        start: impl Fn() -> T,
        mut read: impl FnMut(&[u8], &SetInfo, &mut T),
        is_whole: impl Fn(&T) -> bool,
    ) -> Result<T, Error> {
        let operation = || format!("list elements of {table} {set}");
        let since = Instant::now();
        while since.elapsed() < DUMP_PATIENCE {
            // The kernel does not mark an interrupted dump of elements (6.18 does not), and such a dump
            // misses some elements and repeats others.
            let generation = self.generation()?;
            let Some(info) = self.set(table, set)? else {
                return Err(Error::Io { operation: operation(), errno: Errno::ENOENT });
            };
            let mut message = get(GET_ELEMENT, flag::DUMP, table.family.number());
            message.text(uapi::LIST_TABLE, &table.name).text(uapi::LIST_SET, set);
            let mut gathered = start();
            let result = self.channel.request(message, |_, body| read(body, &info, &mut gathered));
            match result {
                Ok(End::Complete) if !is_whole(&gathered) => std::thread::sleep(DUMP_PAUSE),
                Ok(End::Complete) if self.generation()? == generation => return Ok(gathered),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::Io { operation: operation(), errno }),
            }
        }
        Err(Error::Unstable { operation: operation() })
    }

    /// Reads a list; empty if the object whose contents it is does not exist.
    fn gather<T>(
        &self,
        operation: &str,
        message: cni_netlink::Message,
        read: impl Fn(Option<Family>, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let found = self.channel.dump(message, |family, body| read(Family::from_number(family), body));
        found.or_else(|error| match error {
            cni_netlink::Error::Unstable => Err(Error::Unstable { operation: operation.to_owned() }),
            error if error.errno() == Errno::ENOENT => Ok(Vec::new()),
            error => Err(Error::Io { operation: operation.to_owned(), errno: error.errno() }),
        })
    }

    /// Reads one object; none if it is missing.
    fn one<T>(
        &self,
        operation: &str,
        message: cni_netlink::Message,
        read: impl Fn(Option<Family>, &[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut found = None;
        let result = self.channel.request(message, |family, body| {
            found = read(Family::from_number(family), body);
        });
        let operation = operation.to_owned();
        match (result, found) {
            (Ok(_), Some(found)) => Ok(Some(found)),
            (Ok(_), None) => Err(Error::Malformed { operation, reason: "another object" }),
            (Err(Errno::ENOENT), _) => Ok(None),
            (Err(errno), _) => Err(Error::Io { operation, errno }),
        }
    }
}
/// Hash of an element's key, unique in its set.
fn hash(element: &ElementInfo) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&element.key, &element.key_end).hash(&mut hasher);
    hasher.finish()
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
