// SPDX-License-Identifier: GPL-2.0-or-later

//! Reads the ruleset.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use cni_netlink::changing::{self, ATTEMPTS};
use cni_netlink::message::{find, flag, text};
use cni_netlink::{Attributes, End};
use nix::errno::Errno;

use super::{Socket, get};
use crate::error::Error;
use crate::intervals;
use crate::object::{ElementId, Family, TableId};
use crate::parse;
use crate::read::{ChainInfo, ElementInfo, FlowtableInfo, RuleInfo, SetInfo, TableInfo};
use crate::uapi;
use crate::value::{DataType, Value, encode_concat};

// enum nf_tables_msg_types in `linux/netfilter/nf_tables.h`
const GET_TABLE: u16 = 1;
const GET_CHAIN: u16 = 4;
const GET_RULE: u16 = 7;
const GET_SET: u16 = 10;
const GET_ELEMENT: u16 = 13;
const GET_FLOWTABLE: u16 = 23;

/// How long a dump is repeated while other processes change the ruleset.
const DUMP_PATIENCE: Duration = Duration::from_secs(5);

/// The pause before repeating the dump of a hash table that is being resized.
const DUMP_PAUSE: Duration = Duration::from_millis(20);

/// A set with fewer elements is read to its end, so that the socket can be used again.
const FEW: usize = 500;

/// How many requests one datagram contains. All their replies wait in the socket, with a few thousand bytes each.
const AT_ONCE: usize = 16;

/// How a dump of a set has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DumpEnd {
    /// The ruleset was the same all the time.
    Unchanged,
    /// The whole set was read, but the ruleset changed meanwhile.
    Changed,
    /// The kernel ended the dump before the end of the set.
    Cut,
}

impl Socket {
    /// All tables.
    pub fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        let message = get(GET_TABLE, flag::DUMP, 0);
        self.gather("list tables", message, parse::table)
    }

    /// One table, or none if the table does not exist.
    pub fn table(&self, table: &TableId) -> Result<Option<TableInfo>, Error> {
        let mut message = get(GET_TABLE, flag::ACK, table.family.number());
        message.text(uapi::TABLE_NAME, &table.name);
        self.one(&format!("read table {table}"), message, parse::table)
    }

    /// All chains of all tables.
    pub fn all_chains(&self) -> Result<Vec<ChainInfo>, Error> {
        let message = || get(GET_CHAIN, flag::DUMP, 0);
        self.gather_changing("list chains", message, |family, body| {
            let chain = parse::chain(family, body)?;
            Some(((chain.table.clone(), chain.handle), chain))
        })
    }

    /// The chains of one table. Empty if there is no such table.
    pub fn chains(&self, table: &TableId) -> Result<Vec<ChainInfo>, Error> {
        // Older kernels ignore the table in the request.
        let mut message = get(GET_CHAIN, flag::DUMP, table.family.number());
        message.text(uapi::CHAIN_TABLE, &table.name);
        let operation = format!("list chains of table {table}");
        self.gather(&operation, message, |family, body| {
            parse::chain(family, body).filter(|chain| chain.table == *table)
        })
    }

    /// One chain, or none if the chain or its table does not exist.
    pub fn chain(&self, table: &TableId, name: &str) -> Result<Option<ChainInfo>, Error> {
        let mut message = get(GET_CHAIN, flag::ACK, table.family.number());
        message.text(uapi::CHAIN_TABLE, &table.name).text(uapi::CHAIN_NAME, name);
        self.one(&format!("read chain {table} {name}"), message, parse::chain)
    }

    /// The chains with these names, without those that do not exist. The kernel reads each of them by itself, as for
    /// [`Socket::chain`].
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

    /// One flowtable, or none if the flowtable or its table does not exist.
    pub fn flowtable(&self, table: &TableId, name: &str) -> Result<Option<FlowtableInfo>, Error> {
        let mut message = get(GET_FLOWTABLE, flag::ACK, table.family.number());
        message.text(uapi::FLOWTABLE_TABLE, &table.name).text(uapi::FLOWTABLE_NAME, name);
        self.one(&format!("read flowtable {table} {name}"), message, parse::flowtable)
    }

    /// The rules of one chain. Empty if there is no such chain.
    pub fn rules(&self, table: &TableId, chain: &str) -> Result<Vec<RuleInfo>, Error> {
        let mut message = get(GET_RULE, flag::DUMP, table.family.number());
        message.text(uapi::RULE_TABLE, &table.name).text(uapi::RULE_CHAIN, chain);
        self.gather(&format!("list rules of chain {table} {chain}"), message, |family, body| {
            parse::rule(family, body).filter(|rule| rule.table == *table && rule.chain == chain)
        })
    }

    /// Calls `read` with the attributes of each rule that the kernel lists for a chain, and returns the results.
    /// Older kernels also list the rules of other chains.
    pub(crate) fn each_rule<T>(
        &self,
        table: &TableId,
        chain: &str,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let mut message = get(GET_RULE, flag::DUMP, table.family.number());
        message.text(uapi::RULE_TABLE, &table.name).text(uapi::RULE_CHAIN, chain);
        self.gather(&format!("read rules of chain {table} {chain}"), message, |_, body| read(body))
    }

    /// True if `pass` returns true for the expressions of a rule in a chain, as the kernel encodes them. This is
    /// meant for rules of other programs, for whose expressions [`RuleInfo`] may have no statements. False if there
    /// is no such chain.
    pub fn has_rule(
        &self,
        table: &TableId,
        chain: &str,
        pass: impl Fn(&[u8]) -> bool,
    ) -> Result<bool, Error> {
        let found = self.each_rule(table, chain, |body| {
            let is_in_chain = find(body, uapi::RULE_CHAIN).is_some_and(|name| text(name) == chain);
            let expressions = find(body, uapi::RULE_EXPRESSIONS)?;
            (is_in_chain && pass(expressions)).then_some(())
        })?;
        Ok(!found.is_empty())
    }

    /// The named sets and maps of one table. Empty if there is no such table.
    pub fn sets(&self, table: &TableId) -> Result<Vec<SetInfo>, Error> {
        let mut message = get(GET_SET, flag::DUMP, table.family.number());
        message.text(uapi::SET_TABLE, &table.name);
        let operation = format!("list sets of table {table}");
        self.gather(&operation, message, |family, body| {
            parse::set(family, body).filter(|set| set.table == *table && !parse::is_anonymous(set))
        })
    }

    /// One set or map, or none if it or its table does not exist.
    pub fn set(&self, table: &TableId, name: &str) -> Result<Option<SetInfo>, Error> {
        let mut message = get(GET_SET, flag::ACK, table.family.number());
        message.text(uapi::SET_TABLE, &table.name).text(uapi::SET_NAME, name);
        self.one(&format!("read set {table} {name}"), message, parse::set)
    }

    /// One element by its key, or none if the element, its set or its table does not exist. In a set of ranges, this
    /// is the element with exactly this range or, if no end is given, the element that contains the key.
    pub fn element(&self, id: &ElementId) -> Result<Option<ElementInfo>, Error> {
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
        let mut reply = None;
        match self.channel.request(message, |_, body| reply = Some(body.to_vec())) {
            Ok(_) => {}
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(Error::Io { operation: format!("read element {id}"), errno }),
        }
        // The types of the data are read from the set only now, because most lookups are for elements that do not
        // exist.
        let mut found = None;
        if let (Some(body), Some(set)) = (reply, self.known_set(id)?) {
            parse::elements(&body, &set, |element| found = Some(element));
        }
        Ok(found)
    }

    /// The set of an element. If a set is replaced while this socket is open, this is not noticed.
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

    /// Calls `each` for all elements of a set without storing them. If another process changes the ruleset during the
    /// dump, the result is discarded, and the dump is repeated with a new `start()`. Of a range in a set whose key is
    /// a single value, only the beginning is passed; [`Socket::ranges`] returns both ends. `each` must not use this
    /// socket, from which the reply is being read (EDEADLK), but may use another one.
    ///
    /// The kernel walks the set from the beginning for every 32 KB of the reply, so the time grows with the square of
    /// the number of elements: it is about a second for 50,000.
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
        // A hash table that has just grown is moved piece by piece during the dump. The kernel resumes a dump at an
        // index, and for each element that it misses, it repeats another one.
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
                // If a range begins where another one ends, the key is a bound of both.
                parse::bounds(body, |key, is_end| *bounds.entry(key).or_insert(true) &= is_end);
            };
        let (kind, bounds) = self.dump_set(table, set, || (None, BTreeMap::new()), read, |_| true)?;
        let Some(kind) = kind else { return Ok(Vec::new()) };
        Ok(intervals::ranges(kind, &bounds))
    }

    /// The elements of a set that pass, also while other processes change the ruleset again and again. This is meant
    /// for long sets on busy nodes: listing 15,000 elements takes the time of many commits, so a list of one
    /// generation, as [`Socket::fold_elements`] returns it, may never come about.
    ///
    /// The kernel resumes a dump at an index, so for each element that was deleted before that index, a dump misses
    /// another one, which is a different one each time: with Linux 6.18, some five of 15,000 while another process
    /// commits without a pause. If the ruleset changed during all attempts, the result is therefore their union, with
    /// the latest state of each element. Like any list a moment after it was read, the union may contain elements that
    /// are gone, and lack new ones. A caller that changes elements has to read these again, under the generation of its
    /// commit.
    ///
    /// # Errors
    /// [`Error::Io`] with ENOENT if the set or table is missing; [`Error::Unstable`].
    pub fn changing_elements(
        &self,
        table: &TableId,
        set: &str,
        pass: impl Fn(&ElementInfo) -> bool,
    ) -> Result<Vec<ElementInfo>, Error> {
        type Found = HashMap<(Vec<Value>, Option<Vec<Value>>), ElementInfo>;
        let (mut united, mut was_whole, mut attempts) = (Found::new(), false, 0);
        let since = Instant::now();
        while attempts < ATTEMPTS {
            let (mut found, mut seen, mut is_repeated) = (Found::new(), HashSet::new(), false);
            let end = self.dump_set_once(table, set, |body, info| {
                parse::elements(body, info, |element| {
                    is_repeated |= !seen.insert(hash(&element));
                    if pass(&element) {
                        found.insert((element.key.clone(), element.key_end.clone()), element);
                    }
                });
            })?;
            // As in `fold_elements`, a dump of a table that is being resized misses elements.
            if end == DumpEnd::Unchanged && !is_repeated {
                return Ok(found.into_values().collect());
            }
            was_whole |= end != DumpEnd::Cut;
            // In an unchanged ruleset, only a resize repeats elements. It is soon over, so it is waited for, because
            // attempts during one resize may all miss the same elements.
            if end != DumpEnd::Unchanged || since.elapsed() >= DUMP_PATIENCE {
                attempts += 1;
            }
            // An element that passed earlier may have another owner now.
            united.retain(|(key, key_end), _| !seen.contains(&hash_of(key, key_end.as_deref())));
            united.extend(found);
            if is_repeated {
                std::thread::sleep(DUMP_PAUSE);
            }
        }
        if !was_whole {
            return Err(Error::Unstable { operation: listing(table, set) });
        }
        log::debug!("{}: united {ATTEMPTS} lists, as the ruleset keeps changing", listing(table, set));
        Ok(united.into_values().collect())
    }

    /// The first element of a set that passes, in the kernel's order. Takes the socket, because while the rest of a
    /// large set is unread, the kernel refuses to begin another list on the same socket.
    ///
    /// None proves nothing unless the ruleset is unchanged since, because a dump during changes misses elements.
    ///
    /// # Errors
    /// [`Error::Io`] with ENOENT if the set or table is missing.
    pub fn find_element(
        self,
        table: &TableId,
        set: &str,
        pass: impl Fn(&ElementInfo) -> bool,
    ) -> Result<Option<ElementInfo>, Error> {
        let failed = |errno| Error::Io { operation: listing(table, set), errno };
        let Some(info) = self.set(table, set)? else { return Err(failed(Errno::ENOENT)) };
        let (mut found, mut read) = (None, 0);
        let result = self.channel.request_until(elements_of(table, set), |_, body| {
            parse::elements(body, &info, |element| {
                read += 1;
                if found.is_none() && pass(&element) {
                    found = Some(element);
                }
            });
            if found.is_some() && read >= FEW { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match result {
            Ok(_) | Err(Errno::EINTR) => Ok(found),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Repeats the dump of a set until the ruleset has not changed during the dump and `is_whole` returns true for
    /// the result.
    fn dump_set<T>(
        &self,
        table: &TableId,
        set: &str,
        start: impl Fn() -> T,
        mut read: impl FnMut(&[u8], &SetInfo, &mut T),
        is_whole: impl Fn(&T) -> bool,
    ) -> Result<T, Error> {
        let since = Instant::now();
        while since.elapsed() < DUMP_PATIENCE {
            let mut gathered = start();
            let end = self.dump_set_once(table, set, |body, info| read(body, info, &mut gathered))?;
            match end {
                DumpEnd::Unchanged | DumpEnd::Changed if !is_whole(&gathered) => {
                    std::thread::sleep(DUMP_PAUSE);
                }
                DumpEnd::Unchanged => return Ok(gathered),
                DumpEnd::Changed | DumpEnd::Cut => {}
            }
        }
        Err(Error::Unstable { operation: listing(table, set) })
    }

    /// Reads a set once, and finds out whether the ruleset changed meanwhile.
    fn dump_set_once(
        &self,
        table: &TableId,
        set: &str,
        mut read: impl FnMut(&[u8], &SetInfo),
    ) -> Result<DumpEnd, Error> {
        let failed = |errno| Error::Io { operation: listing(table, set), errno };
        // The kernel does not mark an interrupted dump of elements (6.18 does not), although such a dump misses some
        // elements and repeats others.
        let generation = self.generation()?;
        let Some(info) = self.set(table, set)? else { return Err(failed(Errno::ENOENT)) };
        match self.channel.request(elements_of(table, set), |_, body| read(body, &info)) {
            Ok(End::Complete) if self.generation()? == generation => Ok(DumpEnd::Unchanged),
            Ok(_) => Ok(DumpEnd::Changed),
            Err(Errno::EINTR) => Ok(DumpEnd::Cut),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Reads a list of an object's contents. Empty if the object does not exist.
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

    /// Reads a list that may be long, as that of all chains or of a table's rules: other programs may have 100,000.
    /// `read` returns an object with what identifies it. Empty if the object whose contents are listed does not exist.
    ///
    /// The kernel marks a list during which anything in the ruleset changed, as with each ADD, so this reads lists that
    /// never hold still ([`changing::list`]).
    pub(super) fn gather_changing<T, K: Ord>(
        &self,
        operation: &str,
        message: impl Fn() -> cni_netlink::Message,
        read: impl Fn(Option<Family>, &[u8]) -> Option<(K, T)>,
    ) -> Result<Vec<T>, Error> {
        let mut was_whole = false;
        let listed = changing::list(|found| {
            let end = self.channel.request(message(), |family, body| {
                found.extend(read(Family::from_number(family), body));
            });
            was_whole |= end.is_ok();
            match end {
                Err(Errno::EINTR) => Ok(End::Interrupted), // The kernel ended the list early.
                end => end,
            }
        });
        match listed {
            Ok((_, End::Interrupted)) if !was_whole => {
                Err(Error::Unstable { operation: operation.to_owned() })
            }
            Ok((found, _)) => Ok(found),
            Err(Errno::ENOENT) => Ok(Vec::new()),
            Err(errno) => Err(Error::Io { operation: operation.to_owned(), errno }),
        }
    }

    /// Reads one object. None if the object does not exist.
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

fn put_key(message: &mut Attributes, kind: u16, key: &[Value]) {
    message.nest(kind, |data| {
        data.attr(uapi::DATA_VALUE, &encode_concat(key));
    });
}

/// The operation of listing a set, for errors.
fn listing(table: &TableId, set: &str) -> String {
    format!("list elements of {table} {set}")
}

/// The request for a dump of a set.
fn elements_of(table: &TableId, set: &str) -> cni_netlink::Message {
    let mut message = get(GET_ELEMENT, flag::DUMP, table.family.number());
    message.text(uapi::LIST_TABLE, &table.name).text(uapi::LIST_SET, set);
    message
}

/// Hash of an element's key, unique in its set.
fn hash(element: &ElementInfo) -> u64 {
    hash_of(&element.key, element.key_end.as_deref())
}

fn hash_of(key: &[Value], key_end: Option<&[Value]>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, key_end).hash(&mut hasher);
    hasher.finish()
}
