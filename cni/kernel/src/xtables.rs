// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel's legacy packet filter (`ip_tables`, `ip6_tables`): its tables, and the chains in them.
//!
//! Tables are read without the tools and their lock, and without creating any. The kernel copies a table only as a
//! whole, and a table of 200,000 rules is some 60 MB.
#![allow(unsafe_code, reason = "reading a table is a socket option that nix does not wrap")]

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc::{self, c_int, c_void, socklen_t};
use nix::sys::socket::{AddressFamily as SocketFamily, SockFlag, SockType, socket};

use crate::AddressFamily;

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO` (`linux/netfilter_ipv4/ip_tables.h`).
const GET_INFO: c_int = 64;
/// `IPT_SO_GET_ENTRIES` and `IP6T_SO_GET_ENTRIES`.
const GET_ENTRIES: c_int = 65;
/// `XT_TABLE_MAXNAMELEN` (`linux/netfilter/x_tables.h`).
const NAME_LEN: usize = 32;
/// Size of `struct ipt_getinfo`: the name and thirteen 32-bit numbers, of which the last is the table's size.
const INFO_LEN: usize = NAME_LEN + 13 * 4;
/// Offset of the rules in `struct ipt_get_entries`: the name, the size, and padding to eight bytes.
const ENTRIES_HEAD: usize = 40;
/// Target of the entry that begins a chain; its data is the chain's name (`XT_ERROR_TARGET`).
const ERROR_TARGET: &[u8] = b"ERROR";
/// `struct xt_entry_target`: a size of 16 bits, then the name, then the revision.
const TARGET_HEAD: usize = 32;
/// How often reading is attempted if the table changes between the requests for its size and for its rules.
const ATTEMPTS: u32 = 20;

/// A table that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("read the {table} table of {tables}: {errno}")]
pub struct XtablesError {
    table: String,
    tables: &'static str,
    errno: Errno,
}

/// True if this network namespace has the table. The first request for a table creates it, and it stays until
/// the namespace is deleted.
///
/// # Errors
/// The kernel's error, with the table's name. A kernel without these tables is no error.
pub fn has_table(family: AddressFamily, table: &str) -> Result<bool, XtablesError> {
    let file = match family {
        AddressFamily::V4 => "/proc/thread-self/net/ip_tables_names",
        AddressFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    match fs::read_to_string(file) {
        Ok(names) => Ok(names.lines().any(|name| name == table)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => {
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            Err(XtablesError { table: table.to_owned(), tables: tables_name(family), errno })
        }
    }
}

/// A table's properties without its rules. They are cheap to read, however many rules there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// The number of rules, including those that begin and end chains.
    pub entries: usize,
    /// `struct ipt_getinfo`: sizes, and the offsets of the built-in chains. These bytes change when a rule is added
    /// or deleted.
    pub bytes: Vec<u8>,
}

/// A table's properties. None if the namespace does not have the table.
///
/// # Errors
/// The kernel's error, with the table's name.
pub fn info(family: AddressFamily, table: &str) -> Result<Option<TableInfo>, XtablesError> {
    if !has_table(family, table)? {
        return Ok(None);
    }
    let failed = |errno| XtablesError { table: table.to_owned(), tables: tables_name(family), errno };
    let bytes = open(family).and_then(|(socket, level)| read_info(&socket, level, table)).map_err(failed)?;
    let entries = number(&bytes, INFO_LEN - 8).ok_or_else(|| failed(Errno::EPROTO))?;
    Ok(Some(TableInfo { entries, bytes }))
}

/// The names of a table's user-defined chains, in the kernel's order. Empty if the namespace does not have
/// the table.
///
/// # Errors
/// The kernel's error, with the table's name.
pub fn chains(family: AddressFamily, table: &str) -> Result<Vec<String>, XtablesError> {
    if !has_table(family, table)? {
        return Ok(Vec::new());
    }
    let failed = |errno| XtablesError { table: table.to_owned(), tables: tables_name(family), errno };
    let entries = read(family, table).map_err(failed)?;
    Ok(chain_names(&entries, entry_layout(family)))
}

/// A match or a target, in the kernel's binary form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawExtension {
    /// The name, such as `tcp` or `DNAT`. A target without a name is a verdict, or jumps to another chain.
    pub name: String,
    /// The revision. The data that belong to a name have another layout in each revision.
    pub revision: u8,
    /// The structure from `linux/netfilter/xt_*.h` for this name and revision, in the machine's byte order.
    pub data: Vec<u8>,
}

/// A condition that may be negated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition<T> {
    /// The value that a packet must have.
    pub value: T,
    /// True if the rule applies to packets with any other value.
    pub is_negated: bool,
}

/// The conditions of a rule that are not matches (`struct ipt_ip`, `struct ip6t_ip6`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawHeader {
    /// The source address, and its mask.
    pub source: Option<Condition<(IpAddr, IpAddr)>>,
    /// The destination address, and its mask.
    pub destination: Option<Condition<(IpAddr, IpAddr)>>,
    /// The name of the link on which the packet arrives. If it ends with `+`, it matches all names with this
    /// beginning.
    pub link: Option<Condition<String>>,
    /// True if the rule also has a condition on the link by which the packet leaves or on fragments, or applies to
    /// all protocols except for one.
    pub asks_for_more: bool,
}

/// A rule of a table, in the kernel's binary form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawRule {
    /// The rule's place in its chain, counted from 1 like `iptables --list --line-numbers` does.
    pub number: usize,
    /// The conditions on addresses and links.
    pub header: RawHeader,
    /// The protocol to which the rule applies. 0 if it applies to any, or to any except for one.
    pub protocol: u8,
    /// The further conditions, all of which a packet must meet.
    pub matches: Vec<RawExtension>,
    /// The action on packets that meet all conditions.
    pub target: RawExtension,
    /// The index of the chain to which the target jumps.
    pub leads_to: Option<usize>,
    /// True if that chain does not return to this one.
    pub is_goto: bool,
}

/// A chain of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawChain {
    /// The chain's name, or the hook's name for a built-in chain.
    pub name: String,
    /// The number of the chain's hook (`NF_INET_*`), if it is a built-in chain.
    pub hook: Option<u32>,
    /// The rules, without the entry that begins the chain. The last one is the chain's policy, or the return at its
    /// end.
    pub rules: Vec<RawRule>,
}

/// The chains of a table with their rules. Empty if the namespace does not have the table.
///
/// # Errors
/// The kernel's error, with the table's name.
pub fn rules(family: AddressFamily, table: &str) -> Result<Vec<RawChain>, XtablesError> {
    if !has_table(family, table)? {
        return Ok(Vec::new());
    }
    let failed = |errno| XtablesError { table: table.to_owned(), tables: tables_name(family), errno };
    let entries = read(family, table).map_err(failed)?;
    // Read after the rules. If the properties no longer belong to these rules, the sizes differ, and the change is
    // noticed the next time.
    let info = open(family).and_then(|(socket, level)| read_info(&socket, level, table)).map_err(failed)?;
    Ok(raw_chains(&entries, &info, entry_layout(family)))
}

/// True if the rules of a table, in the kernel's binary form, contain one of these texts. False if the
/// namespace does not have the table.
///
/// # Errors
/// The kernel's error, with the table's name.
pub fn contains(family: AddressFamily, table: &str, texts: &[Vec<u8>]) -> Result<bool, XtablesError> {
    if !has_table(family, table)? {
        return Ok(false);
    }
    let failed = |errno| XtablesError { table: table.to_owned(), tables: tables_name(family), errno };
    let entries = read(family, table).map_err(failed)?;
    Ok(texts.iter().any(|text| entries.windows(text.len().max(1)).any(|bytes| bytes == text)))
}

fn tables_name(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "ip_tables",
        AddressFamily::V6 => "ip6_tables",
    }
}

fn open(family: AddressFamily) -> Result<(OwnedFd, c_int), Errno> {
    let (domain, level) = match family {
        AddressFamily::V4 => (SocketFamily::Inet, libc::SOL_IP),
        AddressFamily::V6 => (SocketFamily::Inet6, libc::SOL_IPV6),
    };
    Ok((socket(domain, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?, level))
}

fn read_info(socket: &OwnedFd, level: c_int, table: &str) -> Result<Vec<u8>, Errno> {
    let mut info = vec![0; INFO_LEN];
    name_table(&mut info, table)?;
    get(socket, SocketOption { level, name: GET_INFO }, &mut info)?;
    Ok(info)
}

fn read(family: AddressFamily, table: &str) -> Result<Vec<u8>, Errno> {
    let (socket, level) = open(family)?;
    let mut attempts = 0;
    loop {
        let info = read_info(&socket, level, table)?;
        let size = number(&info, INFO_LEN - 4).ok_or(Errno::EPROTO)?;
        let mut entries = vec![0; ENTRIES_HEAD + size];
        name_table(&mut entries, table)?;
        let size = u32::try_from(size).map_err(|_| Errno::EOVERFLOW)?;
        if let Some(field) = entries.get_mut(NAME_LEN..NAME_LEN + 4) {
            field.copy_from_slice(&size.to_ne_bytes());
        }
        match get(&socket, SocketOption { level, name: GET_ENTRIES }, &mut entries) {
            Ok(()) => return Ok(entries.split_off(ENTRIES_HEAD)),
            // The table no longer has this size.
            Err(Errno::EAGAIN) if attempts < ATTEMPTS => attempts += 1,
            Err(errno) => return Err(errno),
        }
    }
}

fn name_table(buffer: &mut [u8], table: &str) -> Result<(), Errno> {
    // The last byte remains NUL.
    let field = buffer.get_mut(..table.len()).filter(|_| table.len() < NAME_LEN);
    field.ok_or(Errno::EINVAL)?.copy_from_slice(table.as_bytes());
    Ok(())
}

/// A socket option, in the terms of getsockopt(2).
#[derive(Debug, Clone, Copy)]
struct SocketOption {
    level: c_int,
    name: c_int,
}

fn get(socket: &OwnedFd, option: SocketOption, buffer: &mut [u8]) -> Result<(), Errno> {
    let mut len = socklen_t::try_from(buffer.len()).map_err(|_| Errno::EOVERFLOW)?;
    // SAFETY: the descriptor is open for the call; the kernel writes at most `len` bytes, the length of the
    // buffer; both pointers are valid and writable for the whole call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            option.level,
            option.name,
            buffer.as_mut_ptr().cast::<c_void>(),
            &raw mut len,
        )
    };
    Errno::result(result).map(drop)
}

/// Offsets in `struct ipt_entry` and `struct ip6t_entry`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// Offset of `target_offset`, which is followed by `next_offset`. Both have 16 bits.
    offsets: usize,
    /// Length of an address. The entry begins with the source, the destination, and their masks.
    address: usize,
    /// Offsets of the protocol, of the flags, and of the flags that negate conditions.
    protocol: usize,
    flags: usize,
    negation: usize,
    /// Length of the entry before its matches.
    len: usize,
}

pub(crate) fn entry_layout(family: AddressFamily) -> Layout {
    match family {
        // struct ipt_ip has 84 bytes, nfcache 4.
        AddressFamily::V4 => {
            Layout { offsets: 88, address: 4, protocol: 80, flags: 82, negation: 83, len: 112 }
        }
        // struct ip6t_ip6 has 136 bytes, nfcache 4.
        AddressFamily::V6 => {
            Layout { offsets: 140, address: 16, protocol: 128, flags: 131, negation: 132, len: 168 }
        }
    }
}

/// The names of chains. A chain begins with an entry whose target is ERROR and whose data is the chain's name. The
/// last entry of the table has the name ERROR.
pub(crate) fn chain_names(entries: &[u8], layout: Layout) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = entries;
    while let (Some(target), Some(next)) = (short(rest, layout.offsets), short(rest, layout.offsets + 2)) {
        if let Some(target) = rest.get(target..next.min(rest.len())) {
            let is_error = target.get(2..).is_some_and(|name| text(name) == ERROR_TARGET);
            names.extend(target.get(TARGET_HEAD..).filter(|_| is_error).map(text).map(lossy));
        }
        match rest.get(next..) {
            // An entry of length zero would make this loop endless.
            Some(after) if next > 0 => rest = after,
            _ => break,
        }
    }
    if names.last().is_some_and(|name| name.as_bytes() == ERROR_TARGET) {
        names.pop();
    }
    names
}

/// `IPT_INV_VIA_IN`, `IPT_INV_SRCIP`, `IPT_INV_DSTIP` and `IPT_INV_PROTO`.
const NOT_LINK: u8 = 0x01;
const NOT_SOURCE: u8 = 0x08;
const NOT_DESTINATION: u8 = 0x10;
const NOT_PROTOCOL: u8 = 0x40;
/// Length of a link's name in an entry (`IFNAMSIZ`).
const LINK_NAME: usize = 16;
/// The hooks' names, by number.
const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// The chains of a table. `info` is the table's `struct ipt_getinfo`: after the name come the valid hooks, then the
/// offset of each hook's first entry, and then the offset of the entry with each hook's policy.
pub(crate) fn raw_chains(entries: &[u8], info: &[u8], layout: Layout) -> Vec<RawChain> {
    let valid = number(info, NAME_LEN).unwrap_or_default();
    let hook_at = |at: usize| {
        (0..HOOKS.len())
            .find(|hook| valid & 1 << hook != 0 && number(info, NAME_LEN + 4 + 4 * hook) == Some(at))
    };
    let (mut chains, mut starts, mut jumps) = (Vec::<RawChain>::new(), Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(rest) = entries.get(at..).filter(|rest| !rest.is_empty()) {
        let (Some(target), Some(next)) = (short(rest, layout.offsets), short(rest, layout.offsets + 2))
        else {
            break;
        };
        let end = next.min(rest.len());
        let Some(entry) = rest.get(..end).filter(|_| next > 0 && target >= layout.len && target <= end)
        else {
            break;
        };
        let target_of_rule = extension(entry.get(target..).unwrap_or_default());
        if let Some(hook) = hook_at(at) {
            starts.push(at);
            let hook_number = u32::try_from(hook).ok();
            chains.push(RawChain { name: HOOKS[hook].to_owned(), hook: hook_number, ..RawChain::default() });
        } else if target_of_rule.name.as_bytes() == ERROR_TARGET {
            // The first rule of a user-defined chain follows the chain's own entry, and jumps lead to that rule.
            starts.push(at + next);
            chains.push(RawChain { name: lossy(text(&target_of_rule.data)), ..RawChain::default() });
            at += next;
            continue;
        }
        let index = chains.len();
        if let Some(chain) = chains.last_mut() {
            let number_of_rule = chain.rules.len();
            if target_of_rule.name.is_empty()
                && let Some(to) = number(&target_of_rule.data, 0)
            {
                jumps.push((index - 1, number_of_rule, to));
            }
            let negation = entry.get(layout.negation).copied().unwrap_or_default();
            let protocol = entry.get(layout.protocol).copied().filter(|_| negation & NOT_PROTOCOL == 0);
            chain.rules.push(RawRule {
                number: number_of_rule + 1,
                header: header(entry, layout),
                protocol: protocol.unwrap_or_default(),
                matches: extensions(entry.get(layout.len..target).unwrap_or_default()),
                target: target_of_rule,
                leads_to: None,
                is_goto: entry.get(layout.flags).is_some_and(|flags| flags & layout.goto() != 0),
            });
        }
        at += next;
    }
    for (from, rule, to) in jumps {
        // A verdict is negative if read as a signed number, so it is not an offset.
        if let Ok(index) = starts.binary_search(&to)
            && index != from
            && let Some(rule) = chains.get_mut(from).and_then(|chain| chain.rules.get_mut(rule))
        {
            rule.leads_to = Some(index);
        }
    }
    chains
}

impl Layout {
    /// `IPT_F_GOTO` and `IP6T_F_GOTO`.
    const fn goto(self) -> u8 {
        if self.address == 4 { 0x02 } else { 0x04 }
    }

    /// `IPT_F_FRAG`, and `IP6T_F_TOS`.
    const fn more(self) -> u8 {
        if self.address == 4 { 0x01 } else { 0x02 }
    }
}

/// Reads the conditions on addresses and links. An entry begins with source, destination and the masks of both. The
/// names of the links by which the packet arrives and leaves follow, and then the masks of these names.
fn header(entry: &[u8], layout: Layout) -> RawHeader {
    let len = layout.address;
    let address_at = |number: usize| entry.get(number * len..(number + 1) * len).unwrap_or_default();
    let name_at = |number: usize| {
        let at = 4 * len + number * LINK_NAME;
        entry.get(at..at + LINK_NAME).unwrap_or_default()
    };
    let is_set = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
    let [flags, negation] =
        [layout.flags, layout.negation].map(|at| entry.get(at).copied().unwrap_or_default());
    let network = |bytes: usize, mask: usize, flag: u8| {
        let (value, mask) = (address_at(bytes), address_at(mask));
        let value = address(value).zip(address(mask)).filter(|_| is_set(mask))?;
        Some(Condition { value, is_negated: negation & flag != 0 })
    };
    let (name, mask) = (name_at(0), name_at(2));
    let link = is_set(mask).then(|| {
        // The mask of a whole name includes the NUL that ends it.
        let is_whole = mask.iter().filter(|byte| **byte != 0).count() > text(name).len();
        let value = format!("{}{}", lossy(text(name)), if is_whole { "" } else { "+" });
        Condition { value, is_negated: negation & NOT_LINK != 0 }
    });
    RawHeader {
        source: network(0, 2, NOT_SOURCE),
        destination: network(1, 3, NOT_DESTINATION),
        link,
        asks_for_more: is_set(name_at(3))
            || flags & layout.more() != 0
            || negation & !(NOT_LINK | NOT_SOURCE | NOT_DESTINATION) != 0,
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
        16 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
        _ => None,
    }
}

/// A match or target: a size of 16 bits, a name of 29 bytes, the revision, and the data.
fn extension(bytes: &[u8]) -> RawExtension {
    RawExtension {
        name: bytes.get(2..TARGET_HEAD - 1).map(text).map(lossy).unwrap_or_default(),
        revision: bytes.get(TARGET_HEAD - 1).copied().unwrap_or_default(),
        data: bytes.get(TARGET_HEAD..).unwrap_or_default().to_vec(),
    }
}

fn extensions(mut rest: &[u8]) -> Vec<RawExtension> {
    let mut found = Vec::new();
    while let Some(size) = short(rest, 0).filter(|size| *size >= TARGET_HEAD) {
        found.push(extension(rest.get(..size.min(rest.len())).unwrap_or_default()));
        rest = rest.get(size..).unwrap_or_default();
    }
    found
}

fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_ne_bytes(bytes)).ok()
}

fn short(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 entry without matches that has this target.
    fn entry(name: &[u8], data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 112];
        let mut target = vec![0; TARGET_HEAD + 32];
        target[2..2 + name.len()].copy_from_slice(name);
        target[TARGET_HEAD..TARGET_HEAD + data.len()].copy_from_slice(data);
        bytes[88..90].copy_from_slice(&112u16.to_ne_bytes());
        bytes[90..92].copy_from_slice(&u16::try_from(112 + target.len()).unwrap().to_ne_bytes());
        bytes.extend(target);
        bytes
    }

    #[test]
    fn a_rules_addresses_and_links_are_read() {
        let layout = entry_layout(AddressFamily::V4);
        let mut bytes = entry(b"", b"");
        bytes[..16].copy_from_slice(&[10, 0, 0, 0, 192, 0, 2, 1, 255, 0, 0, 0, 255, 255, 255, 255]);
        bytes[16..20].copy_from_slice(b"eth0");
        bytes[48..53].fill(0xff);
        bytes[83] = NOT_LINK | NOT_SOURCE;
        let header_of = |bytes: &[u8]| header(bytes, layout);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let all = header_of(&bytes);
        let source = Condition { value: (ip("10.0.0.0"), ip("255.0.0.0")), is_negated: true };
        assert_eq!(all.source, Some(source));
        let destination = Condition { value: (ip("192.0.2.1"), ip("255.255.255.255")), is_negated: false };
        assert_eq!(all.destination, Some(destination));
        assert_eq!(all.link, Some(Condition { value: "eth0".to_owned(), is_negated: true }));
        assert!(!all.asks_for_more);
        // `-i eth0+`
        bytes[52] = 0;
        assert_eq!(header_of(&bytes).link.unwrap().value, "eth0+");
        bytes[83] = NOT_PROTOCOL;
        assert!(header_of(&bytes).asks_for_more);
        assert_eq!(header_of(&entry(b"", b"")), RawHeader::default());
    }

    #[test]
    fn only_user_defined_chains_are_listed() {
        let table = [
            entry(b"", b""),
            entry(b"ERROR", b"CNI-DN-x"),
            entry(b"DNAT", b"not a name"),
            entry(b"ERROR", b"DOCKER"),
            entry(b"ERROR", b"ERROR"),
        ]
        .concat();
        let layout = entry_layout(AddressFamily::V4);
        assert_eq!(chain_names(&table, layout), ["CNI-DN-x", "DOCKER"]);
        assert_eq!(chain_names(&table[..table.len() - 40], layout), ["CNI-DN-x", "DOCKER"]);
        // Arbitrary bytes must not make this loop endless.
        assert_eq!(chain_names(&[0; 500], layout), Vec::<String>::new());
        assert_eq!(chain_names(&[0xff; 500], layout), Vec::<String>::new());
    }
}
