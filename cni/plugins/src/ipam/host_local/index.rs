// SPDX-License-Identifier: GPL-2.0-or-later

//! The index: the addresses of each owner, and the taken addresses, without reading the directory.
//!
//! A file of two hash tables with slots of fixed size, changed in place: an ADD or a DEL reads and writes a
//! few hundred bytes, however many reservations there are. Without it each call reads all reservations, which
//! takes four times the CPU time at 1,000 of them (docs/data/host-local-index.json). The index is derived
//! from the directory, and rebuilt from it whenever it is not trusted.
//!
//! The index is trusted only if its header shows that
//! - the last change was finished (a killed process leaves it unfinished),
//! - it was written since the last boot (so it needs no fsync),
//! - the directory is the same and unchanged: device, inode, mtime, ctime.
//!
//! The entries of one owner are next to each other, and adding one passes by all of them. An owner of more than
//! [`MOST`] addresses, which only a directory made by hand has, is marked instead: its addresses are read from the
//! directory.
//!
//! File systems take timestamps from the kernel's tick, so a change by another program right after ours could
//! leave the mtime as it was. Therefore each of our changes ends by setting the directory's mtime back by one
//! nanosecond, or the file system's smallest step: every later change gives another mtime.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Error, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::FileExt;

use cni_kernel::AddressFamily;
use sha2::{Digest, Sha256};

use super::owner::OwnerKey;
use super::search::{Bits, Block};
use cni_state::host_local::{from_number, number};

/// The index in memory, as a scan of the directory gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) owners: Vec<(OwnerKey, IpAddr)>,
    /// Owners for which `owners` may lack some addresses.
    pub(super) crowded: BTreeSet<OwnerKey>,
    pub(super) blocks: BTreeMap<Block, Bits>,
}

impl Contents {
    /// The addresses of an owner.
    pub(super) fn owned(&self, key: OwnerKey) -> Vec<IpAddr> {
        self.owners.iter().filter(|(owner, _)| *owner == key).map(|(_, address)| *address).collect()
    }

    /// Adds an address; `owner` is none for a foreign file of that name.
    pub(super) fn insert(&mut self, owner: Option<OwnerKey>, address: IpAddr) {
        let (block, place) = Block::of(address);
        self.blocks.entry(block).or_default().set(place);
        if let Some(owner) = owner {
            self.owners.push((owner, address));
        }
    }
}

/// The state of the directory that an index belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Stamp {
    pub(super) boot: [u8; 16],
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Seconds and nanoseconds.
    pub(super) mtime: (i64, i64),
    /// Seconds and nanoseconds.
    pub(super) ctime: (i64, i64),
}

/// An open index file.
#[derive(Debug)]
pub(super) struct Index {
    file: File,
    head: Head,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    finished: bool,
    stamp: Stamp,
    owners: Fill,
    blocks: Fill,
}

/// The size and the fill of a table, in slots. The size is a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fill {
    size: u32,
    /// Slots that are not empty, including those of removed entries.
    used: u32,
}

impl Fill {
    /// The size for a number of entries: a quarter full at most.
    fn for_entries(entries: usize) -> io::Result<Self> {
        let size = entries.checked_mul(4).and_then(|n| n.max(SMALLEST).checked_next_power_of_two());
        let size =
            size.and_then(|n| u32::try_from(n).ok()).ok_or_else(|| Error::from(ErrorKind::FileTooLarge))?;
        Ok(Self { size, used: 0 })
    }

    /// True if the table is more than three fifths full, which makes searches long.
    fn is_crowded(self) -> bool {
        u64::from(self.used) * 5 > u64::from(self.size) * 3
    }
}

const MAGIC: [u8; 8] = *b"slwy\0ix1";
/// The size of the header: one page, written at once.
const HEAD: u64 = 4096;
const HEAD_USED: usize = 128;
const SUM_AT: usize = HEAD_USED - 8;
const SMALLEST: usize = 256;
/// Tag, 15 bytes of owner, 16 bytes of address.
const OWNER_SLOT: usize = 32;
/// Tag, 15 bytes of prefix, 32 bytes of bits, padding to a divisor of the page.
const BLOCK_SLOT: usize = 64;
const EMPTY: u8 = 0;
const REMOVED: u8 = 1;
/// The tag of an owner whose addresses are not all in the index.
const CROWDED: u8 = 2;
/// The largest number of addresses that an owner has in the index.
const MOST: usize = 64;
/// The number of slots that are read at once.
const WINDOW: u32 = 8;

impl Index {
    /// Opens the index in `file`. None if it is incomplete, or belongs to another state of the directory than
    /// `stamp`.
    pub(super) fn open(file: File, stamp: &Stamp) -> Option<Self> {
        let mut bytes = [0; HEAD_USED];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let head = Head::decode(&bytes)?;
        let index = Self { file, head };
        let whole = index.file.metadata().ok()?.len() >= index.length();
        (whole && head.finished && head.stamp == *stamp).then_some(index)
    }

    /// True if the header in the file is still the one that was read at opening.
    pub(super) fn is_as_opened(&self, stamp: &Stamp) -> bool {
        let again = self.file.try_clone().ok().and_then(|file| Self::open(file, stamp));
        again.is_some_and(|again| again.head == self.head)
    }

    /// Overwrites `file` with a new index, which is unfinished until [`Self::finish`].
    pub(super) fn create(file: File, contents: &Contents) -> io::Result<Self> {
        let head = Head {
            finished: false,
            stamp: Stamp::default(),
            owners: Fill::for_entries(contents.owners.len() + contents.crowded.len())?,
            blocks: Fill::for_entries(contents.blocks.len())?,
        };
        file.set_len(0)?;
        let mut index = Self { file, head };
        index.file.set_len(index.length())?;
        let owners = index.owners_of(contents);
        index.head.owners.used = u32::try_from(owners.len()).unwrap_or(u32::MAX);
        write_table(&index.file, index.owners_at(), head.owners, owners)?;
        let blocks =
            contents.blocks.iter().map(|(block, bits)| (block_hash(*block), encode_block(*block, bits)));
        index.head.blocks.used = u32::try_from(contents.blocks.len()).unwrap_or(u32::MAX);
        write_table(&index.file, index.blocks_at(), head.blocks, blocks.collect())?;
        index.write_head()?;
        Ok(index)
    }

    /// Marks the index as unfinished, before a change to the directory.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.head.finished = false;
        self.write_head()
    }

    /// Marks the index as finished for a directory in this state.
    pub(super) fn finish(&mut self, stamp: Stamp) -> io::Result<()> {
        self.head.finished = true;
        self.head.stamp = stamp;
        self.write_head()
    }

    /// The slots of all owners, with their hashes.
    fn owners_of(&self, contents: &Contents) -> Vec<(u32, [u8; OWNER_SLOT])> {
        let mut counts = BTreeMap::<OwnerKey, usize>::new();
        for (owner, _) in &contents.owners {
            *counts.entry(*owner).or_default() += 1;
        }
        let is_crowded = |owner: &OwnerKey| {
            contents.crowded.contains(owner) || counts.get(owner).is_some_and(|count| *count > MOST)
        };
        let listed = contents.owners.iter().filter(|(owner, _)| !is_crowded(owner));
        let listed = listed.map(|(owner, address)| (owner_hash(*owner), encode_owner(*owner, *address)));
        let owners: BTreeSet<OwnerKey> = counts.keys().chain(&contents.crowded).copied().collect();
        let crowded = owners.into_iter().filter(is_crowded);
        listed.chain(crowded.map(|owner| (owner_hash(owner), encode_crowded(owner)))).collect()
    }

    /// The addresses of an owner; none if the index does not have them all.
    pub(super) fn owned(&self, owner: OwnerKey) -> io::Result<Option<Vec<IpAddr>>> {
        let mut found = Vec::new();
        let mut is_crowded = false;
        self.walk::<OWNER_SLOT>(self.owners_at(), self.head.owners, owner_hash(owner), |_, slot| {
            if let Some((key, address)) = decode_owner(slot)
                && key == owner
            {
                found.push(address);
            }
            is_crowded |= decode_crowded(slot) == Some(owner);
            is_crowded
        })?;
        Ok((!is_crowded).then_some(found))
    }

    /// The taken addresses of a block.
    pub(super) fn taken(&self, block: Block) -> io::Result<Bits> {
        Ok(self.find_block(block)?.map(|(_, bits)| bits).unwrap_or_default())
    }

    /// Adds an address.
    pub(super) fn insert(&mut self, owner: OwnerKey, address: IpAddr) -> io::Result<()> {
        if self.head.owners.is_crowded() || self.head.blocks.is_crowded() {
            self.grow()?;
        }
        self.insert_owner(owner, address)?;
        let (block, place) = Block::of(address);
        let mut bits = self.taken(block)?;
        bits.set(place);
        self.write_block(block, &bits)
    }

    pub(super) fn remove(&mut self, owner: OwnerKey, address: IpAddr) -> io::Result<()> {
        let mut at = None;
        self.walk::<OWNER_SLOT>(self.owners_at(), self.head.owners, owner_hash(owner), |place, slot| {
            let found = decode_owner(slot) == Some((owner, address));
            if found {
                at = Some(place);
            }
            found
        })?;
        if let Some(at) = at {
            self.file.write_all_at(&[REMOVED], self.owners_at() + u64::from(at) * OWNER_SLOT as u64)?;
        }
        let (block, place) = Block::of(address);
        let mut bits = self.taken(block)?;
        bits.clear(place);
        self.write_block(block, &bits)
    }

    /// Reads the whole index.
    pub(super) fn contents(&self) -> io::Result<Contents> {
        let mut contents = Contents::default();
        self.all::<OWNER_SLOT>(self.owners_at(), self.head.owners, |slot| {
            contents.owners.extend(decode_owner(slot));
            contents.crowded.extend(decode_crowded(slot));
        })?;
        self.all::<BLOCK_SLOT>(self.blocks_at(), self.head.blocks, |slot| {
            contents.blocks.extend(decode_block(slot).filter(|(_, bits)| *bits != Bits::default()));
        })?;
        Ok(contents)
    }

    /// Rewrites the index with larger tables and without removed entries. The amortised cost of a change
    /// stays constant.
    fn grow(&mut self) -> io::Result<()> {
        let contents = self.contents()?;
        *self = Self::create(self.file.try_clone()?, &contents)?;
        Ok(())
    }

    fn insert_owner(&mut self, owner: OwnerKey, address: IpAddr) -> io::Result<()> {
        let mut at = None;
        let mut was_empty = true;
        let (mut passed, mut is_crowded) = (0, false);
        self.walk::<OWNER_SLOT>(self.owners_at(), self.head.owners, owner_hash(owner), |place, slot| {
            let tag = slot.first().copied();
            if tag == Some(REMOVED) {
                was_empty = false;
            }
            let free = matches!(tag, Some(EMPTY | REMOVED));
            if free {
                at = Some(place);
            }
            passed += usize::from(decode_owner(slot).is_some_and(|(key, _)| key == owner));
            is_crowded |= decode_crowded(slot) == Some(owner);
            free || is_crowded
        })?;
        if is_crowded {
            return Ok(());
        }
        let at = at.ok_or_else(|| Error::from(ErrorKind::StorageFull))?;
        self.head.owners.used += u32::from(was_empty);
        let slot = if passed < MOST { encode_owner(owner, address) } else { encode_crowded(owner) };
        self.file.write_all_at(&slot, self.owners_at() + u64::from(at) * OWNER_SLOT as u64)
    }

    fn find_block(&self, block: Block) -> io::Result<Option<(u32, Bits)>> {
        let mut found = None;
        self.walk::<BLOCK_SLOT>(self.blocks_at(), self.head.blocks, block_hash(block), |place, slot| {
            if let Some((its_block, bits)) = decode_block(slot)
                && its_block == block
            {
                found = Some((place, bits));
            }
            found.is_some()
        })?;
        Ok(found)
    }

    fn write_block(&mut self, block: Block, bits: &Bits) -> io::Result<()> {
        let at = if let Some((place, _)) = self.find_block(block)? {
            place
        } else {
            let mut empty = None;
            self.walk::<BLOCK_SLOT>(self.blocks_at(), self.head.blocks, block_hash(block), |place, slot| {
                let free = slot.first() == Some(&EMPTY);
                if free {
                    empty = Some(place);
                }
                free
            })?;
            self.head.blocks.used += 1;
            empty.ok_or_else(|| Error::from(ErrorKind::StorageFull))?
        };
        let slot = encode_block(block, bits);
        self.file.write_all_at(&slot, self.blocks_at() + u64::from(at) * BLOCK_SLOT as u64)
    }

    /// Visits the slots from `hash` on, until the visitor returns true or after an empty slot.
    fn walk<const SLOT: usize>(
        &self,
        base: u64,
        fill: Fill,
        hash: u32,
        mut visit: impl FnMut(u32, &[u8]) -> bool,
    ) -> io::Result<()> {
        let mask = fill.size - 1;
        let mut window = [0; BLOCK_SLOT * WINDOW as usize];
        let mut place = hash & mask;
        let mut left = fill.size;
        while left > 0 {
            let slots = (fill.size - place).min(left).min(WINDOW);
            let bytes = window.get_mut(..slots as usize * SLOT).unwrap_or_default();
            self.file.read_exact_at(bytes, base + u64::from(place) * SLOT as u64)?;
            for slot in bytes.chunks_exact(SLOT) {
                if visit(place, slot) || slot.first() == Some(&EMPTY) {
                    return Ok(());
                }
                place = (place + 1) & mask;
            }
            left -= slots;
        }
        Ok(())
    }

    fn all<const SLOT: usize>(&self, base: u64, fill: Fill, mut visit: impl FnMut(&[u8])) -> io::Result<()> {
        let mut page = [0; 16_384];
        let per_page = page.len() / SLOT;
        let mut done = 0;
        while done < fill.size {
            let slots = (fill.size - done).min(u32::try_from(per_page).unwrap_or(u32::MAX));
            let bytes = page.get_mut(..slots as usize * SLOT).unwrap_or_default();
            self.file.read_exact_at(bytes, base + u64::from(done) * SLOT as u64)?;
            bytes.chunks_exact(SLOT).for_each(&mut visit);
            done += slots;
        }
        Ok(())
    }

    fn write_head(&self) -> io::Result<()> {
        self.file.write_all_at(&self.head.encode(), 0)
    }

    fn owners_at(&self) -> u64 {
        HEAD
    }

    fn blocks_at(&self) -> u64 {
        HEAD + u64::from(self.head.owners.size) * OWNER_SLOT as u64
    }

    fn length(&self) -> u64 {
        self.blocks_at() + u64::from(self.head.blocks.size) * BLOCK_SLOT as u64
    }
}

impl Head {
    fn encode(&self) -> [u8; HEAD_USED] {
        let mut bytes = Vec::with_capacity(HEAD_USED);
        bytes.extend(MAGIC);
        bytes.extend(u64::from(self.finished).to_le_bytes());
        bytes.extend(self.stamp.boot);
        bytes.extend(self.stamp.device.to_le_bytes());
        bytes.extend(self.stamp.inode.to_le_bytes());
        for time in [self.stamp.mtime, self.stamp.ctime] {
            bytes.extend(time.0.to_le_bytes());
            bytes.extend(time.1.to_le_bytes());
        }
        for fill in [self.owners, self.blocks] {
            bytes.extend(fill.size.to_le_bytes());
            bytes.extend(fill.used.to_le_bytes());
        }
        let mut head = [0; HEAD_USED];
        for (to, from) in head.iter_mut().zip(bytes) {
            *to = from;
        }
        let sum = checksum(&head);
        for (to, from) in head.iter_mut().skip(SUM_AT).zip(sum) {
            *to = from;
        }
        head
    }

    fn decode(bytes: &[u8; HEAD_USED]) -> Option<Self> {
        if !bytes.starts_with(&MAGIC) || !bytes.ends_with(&checksum(bytes)) {
            return None;
        }
        let eight = |at: usize| bytes.get(at..at + 8).and_then(|b| <[u8; 8]>::try_from(b).ok());
        let unsigned = |at: usize| eight(at).map(u64::from_le_bytes);
        let signed = |at: usize| eight(at).map(i64::from_le_bytes);
        let fill = |at: usize| {
            let four = |at: usize| bytes.get(at..at + 4).and_then(|b| <[u8; 4]>::try_from(b).ok());
            let (size, used) = (four(at).map(u32::from_le_bytes)?, four(at + 4).map(u32::from_le_bytes)?);
            size.is_power_of_two().then_some(Fill { size, used })
        };
        Some(Self {
            finished: unsigned(8)? == 1,
            stamp: Stamp {
                boot: bytes.get(16..32)?.try_into().ok()?,
                device: unsigned(32)?,
                inode: unsigned(40)?,
                mtime: (signed(48)?, signed(56)?),
                ctime: (signed(64)?, signed(72)?),
            },
            owners: fill(80)?,
            blocks: fill(88)?,
        })
    }
}

/// Writes the slots of an empty table, each at its hash or in the first free place after it.
fn write_table<const SLOT: usize>(
    file: &File,
    base: u64,
    fill: Fill,
    slots: Vec<(u32, [u8; SLOT])>,
) -> io::Result<()> {
    const PAGE: usize = 4096;
    let size = fill.size as usize;
    let mut table = vec![0; size * SLOT];
    for (hash, slot) in slots {
        let places = (0..size).map(|step| (hash as usize + step) & (size - 1));
        let mut free = places.filter(|place| table.get(place * SLOT) == Some(&EMPTY));
        let place = free.next().ok_or_else(|| Error::from(ErrorKind::StorageFull))?;
        if let Some(to) = table.get_mut(place * SLOT..(place + 1) * SLOT) {
            to.copy_from_slice(&slot);
        }
    }
    // A page of empty slots is a hole in the file.
    for (at, page) in (0_u64..).zip(table.chunks(PAGE)).filter(|(_, page)| page.iter().any(|byte| *byte != 0))
    {
        file.write_all_at(page, base + at * PAGE as u64)?;
    }
    Ok(())
}

/// The checksum of the header without the checksum itself.
fn checksum(head: &[u8; HEAD_USED]) -> [u8; 8] {
    let mut sum = [0; 8];
    let digest = Sha256::digest(head.get(..SUM_AT).unwrap_or_default());
    for (to, from) in sum.iter_mut().zip(digest) {
        *to = from;
    }
    sum
}

fn owner_hash(owner: OwnerKey) -> u32 {
    let mut bytes = [0; 4];
    for (to, from) in bytes.iter_mut().zip(owner.0) {
        *to = from;
    }
    u32::from_le_bytes(bytes)
}

/// Hashes a block so that adjacent ones spread (the finalizer of MurmurHash3).
fn block_hash(block: Block) -> u32 {
    let low = block.prefix.to_le_bytes();
    let fold = low.chunks_exact(8).fold(0u64, |hash, half| {
        let half = <[u8; 8]>::try_from(half).map_or(0, u64::from_le_bytes);
        mix(hash ^ half)
    });
    let bytes = fold.to_le_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn mix(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

fn family_of(version: u8) -> Option<AddressFamily> {
    AddressFamily::BOTH.into_iter().find(|family| family.version() == version)
}

pub(super) fn encode_owner(owner: OwnerKey, address: IpAddr) -> [u8; OWNER_SLOT] {
    let bytes = [AddressFamily::of(address).version()]
        .into_iter()
        .chain(owner.0)
        .chain(number(address).to_le_bytes());
    let mut slot = [0; OWNER_SLOT];
    slot.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    slot
}

pub(super) fn decode_owner(slot: &[u8]) -> Option<(OwnerKey, IpAddr)> {
    let family = family_of(*slot.first()?)?;
    let owner = OwnerKey(slot.get(1..16)?.try_into().ok()?);
    let number = u128::from_le_bytes(slot.get(16..32)?.try_into().ok()?);
    Some((owner, from_number(family, number)))
}

fn encode_crowded(owner: OwnerKey) -> [u8; OWNER_SLOT] {
    let mut slot = [0; OWNER_SLOT];
    slot.iter_mut().zip([CROWDED].into_iter().chain(owner.0)).for_each(|(to, from)| *to = from);
    slot
}

pub(super) fn decode_crowded(slot: &[u8]) -> Option<OwnerKey> {
    (*slot.first()? == CROWDED).then_some(OwnerKey(slot.get(1..16)?.try_into().ok()?))
}

pub(super) fn encode_block(block: Block, bits: &Bits) -> [u8; BLOCK_SLOT] {
    // An address without its last eight bits has 120 bits: the sixteenth byte is zero.
    let prefix = block.prefix.to_le_bytes().into_iter().take(15);
    let bytes = [block.family.version()].into_iter().chain(prefix);
    let bytes = bytes.chain(bits.0.into_iter().flat_map(u64::to_le_bytes));
    let mut slot = [0; BLOCK_SLOT];
    slot.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    slot
}

pub(super) fn decode_block(slot: &[u8]) -> Option<(Block, Bits)> {
    let family = family_of(*slot.first()?)?;
    let mut prefix = [0; 16];
    prefix.iter_mut().zip(slot.get(1..16)?).for_each(|(to, from)| *to = *from);
    let mut bits = Bits::default();
    for (word, bytes) in bits.0.iter_mut().zip(slot.get(16..48)?.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    Some((Block { family, prefix: u128::from_le_bytes(prefix) }, bits))
}
