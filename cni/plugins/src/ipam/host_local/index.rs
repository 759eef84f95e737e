// SPDX-License-Identifier: GPL-2.0-or-later

//! The index: the addresses of each owner, and the taken addresses, without reading the directory.
//!
//! A file of two hash tables with slots of fixed size, changed in place: an ADD or a DEL reads and writes a
//! few hundred bytes, however many reservations there are. Without it each call reads all reservations, which
//! takes four times the CPU time at 1,000 of them (docs/data/host-local-index.json). The index is derived
//! from the directory, and rebuilt from it whenever it is not trusted.
//!
//! It is trusted only if its header shows that
//! - the last change was finished (a killed process leaves it unfinished),
//! - it was written since the last boot (so it needs no fsync),
//! - the directory is the same and unchanged: device, inode, mtime, ctime.
//!
//! File systems take timestamps from the kernel's tick, so a change by another program right after ours could
//! leave the mtime as it was. Therefore each of our changes ends by setting the directory's mtime back by one
//! nanosecond, or the file system's smallest step: every later change gives another mtime.

use std::collections::BTreeMap;
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

    /// Overwrites `file` with a new index. It is unfinished until [`Self::finish`].
    pub(super) fn create(file: File, contents: &Contents) -> io::Result<Self> {
        let head = Head {
            finished: false,
            stamp: Stamp::default(),
            owners: Fill::for_entries(contents.owners.len())?,
            blocks: Fill::for_entries(contents.blocks.len())?,
        };
        file.set_len(0)?;
        let mut index = Self { file, head };
        index.file.set_len(index.length())?;
        for (owner, address) in &contents.owners {
            index.insert_owner(*owner, *address)?;
        }
        for (block, bits) in &contents.blocks {
            index.write_block(*block, bits)?;
        }
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

    /// The addresses of an owner.
    pub(super) fn owned(&self, owner: OwnerKey) -> io::Result<Vec<IpAddr>> {
        let mut found = Vec::new();
        self.walk::<OWNER_SLOT>(self.owners_at(), self.head.owners, owner_hash(owner), |_, slot| {
            if let Some((key, address)) = decode_owner(slot)
                && key == owner
            {
                found.push(address);
            }
            false
        })?;
        Ok(found)
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
        self.walk::<OWNER_SLOT>(self.owners_at(), self.head.owners, owner_hash(owner), |place, slot| {
            let tag = slot.first().copied();
            if tag == Some(REMOVED) {
                was_empty = false;
            }
            let free = matches!(tag, Some(EMPTY | REMOVED));
            if free {
                at = Some(place);
            }
            free
        })?;
        let at = at.ok_or_else(|| Error::from(ErrorKind::StorageFull))?;
        self.head.owners.used += u32::from(was_empty);
        let slot = encode_owner(owner, address);
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
        let mut page = [0; 16 * 1024];
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

fn encode_owner(owner: OwnerKey, address: IpAddr) -> [u8; OWNER_SLOT] {
    let bytes = [AddressFamily::of(address).version()]
        .into_iter()
        .chain(owner.0)
        .chain(number(address).to_le_bytes());
    let mut slot = [0; OWNER_SLOT];
    slot.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    slot
}

fn decode_owner(slot: &[u8]) -> Option<(OwnerKey, IpAddr)> {
    let family = family_of(*slot.first()?)?;
    let owner = OwnerKey(slot.get(1..16)?.try_into().ok()?);
    let number = u128::from_le_bytes(slot.get(16..32)?.try_into().ok()?);
    Some((owner, from_number(family, number)))
}

fn encode_block(block: Block, bits: &Bits) -> [u8; BLOCK_SLOT] {
    // An address without its last eight bits has 120 bits: the sixteenth byte is zero.
    let prefix = block.prefix.to_le_bytes().into_iter().take(15);
    let bytes = [block.family.version()].into_iter().chain(prefix);
    let bytes = bytes.chain(bits.0.into_iter().flat_map(u64::to_le_bytes));
    let mut slot = [0; BLOCK_SLOT];
    slot.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    slot
}

fn decode_block(slot: &[u8]) -> Option<(Block, Bits)> {
    let family = family_of(*slot.first()?)?;
    let mut prefix = [0; 16];
    prefix.iter_mut().zip(slot.get(1..16)?).for_each(|(to, from)| *to = *from);
    let mut bits = Bits::default();
    for (word, bytes) in bits.0.iter_mut().zip(slot.get(16..48)?.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    Some((Block { family, prefix: u128::from_le_bytes(prefix) }, bits))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const STAMP: Stamp = Stamp { boot: [7; 16], device: 1, inode: 2, mtime: (3, 4), ctime: (5, -6) };

    fn owner(n: u8) -> OwnerKey {
        OwnerKey::of(&[n])
    }

    fn address(n: u16) -> IpAddr {
        match n % 3 {
            0 => from_number(AddressFamily::V4, 0x0a00_0000 + u128::from(n)),
            1 => from_number(AddressFamily::V6, 0xfd00 << 112 | u128::from(n)),
            _ => from_number(AddressFamily::V6, 0xfd00 << 112 | u128::from(n) << 16),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn the_index_equals_a_set(changes in proptest::collection::vec((any::<bool>(), 0u8..40, 0u16..1500), 0..1200)) {
            let mut index = Index::create(tempfile::tempfile().unwrap(), &Contents::default()).unwrap();
            let mut model: BTreeSet<(OwnerKey, IpAddr)> = BTreeSet::new();
            for (add, n, a) in changes {
                // An address has one owner at most.
                let taken = model.iter().find(|(_, one)| *one == address(a)).copied();
                match (add, taken) {
                    (true, None) => {
                        index.insert(owner(n), address(a)).unwrap();
                        model.insert((owner(n), address(a)));
                    }
                    (false, Some((its_owner, its_address))) => {
                        index.remove(its_owner, its_address).unwrap();
                        model.remove(&(its_owner, its_address));
                    }
                    _ => {}
                }
            }
            index.finish(STAMP).unwrap();
            let index = Index::open(index.file.try_clone().unwrap(), &STAMP).unwrap();
            for n in 0..40 {
                let mine = model.iter().filter(|(one, _)| *one == owner(n)).map(|(_, address)| *address);
                let mut found = index.owned(owner(n)).unwrap();
                found.sort_unstable();
                prop_assert_eq!(found, mine.collect::<Vec<_>>());
            }
            for a in (0..1500).map(address) {
                let (block, place) = Block::of(a);
                prop_assert_eq!(index.taken(block).unwrap().has(place), model.iter().any(|(_, one)| *one == a));
            }
            let mut all = index.contents().unwrap().owners;
            all.sort_unstable();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn any_damage_to_the_header_is_detected(at in 0..HEAD_USED as u64, flip in 1u8..) {
            let file = tempfile::tempfile().unwrap();
            let mut index = Index::create(file.try_clone().unwrap(), &Contents::default()).unwrap();
            index.finish(STAMP).unwrap();
            prop_assert!(Index::open(file.try_clone().unwrap(), &STAMP).is_some());
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ flip], at).unwrap();
            prop_assert!(Index::open(file, &STAMP).is_none());
        }
    }

    #[test]
    fn only_a_finished_index_of_the_same_state_is_trusted() {
        let file = tempfile::tempfile().unwrap();
        let open = |stamp: &Stamp| Index::open(file.try_clone().unwrap(), stamp).is_some();
        let mut index = Index::create(file.try_clone().unwrap(), &Contents::default()).unwrap();
        assert!(!open(&STAMP) && !open(&Stamp::default()), "not finished");
        index.finish(STAMP).unwrap();
        assert!(open(&STAMP));
        for other in [
            Stamp { boot: [8; 16], ..STAMP },
            Stamp { device: 9, ..STAMP },
            Stamp { inode: 9, ..STAMP },
            Stamp { mtime: (3, 5), ..STAMP },
            Stamp { ctime: (5, 6), ..STAMP },
        ] {
            assert!(!open(&other), "{other:?}");
        }
        index.begin().unwrap();
        assert!(!open(&STAMP), "a change was begun");
        index.finish(STAMP).unwrap();
        file.set_len(index.length() - 1).unwrap();
        assert!(!open(&STAMP), "cut short");
    }

    #[test]
    fn tables_grow_and_removed_entries_do_not_fill_them() {
        let mut index = Index::create(tempfile::tempfile().unwrap(), &Contents::default()).unwrap();
        for n in 0..1250 {
            index.insert(owner(1), address(n)).unwrap();
        }
        assert_eq!(index.owned(owner(1)).unwrap().len(), 1250);
        for n in 0..1250 {
            index.remove(owner(1), address(n)).unwrap();
        }
        for n in 0..5000u16 {
            index.insert(owner(1), address(n)).unwrap();
            index.remove(owner(1), address(n)).unwrap();
        }
        assert_eq!(index.contents().unwrap().owners, []);
        assert!(index.head.owners.size < 1 << 14, "{:?}", index.head);
    }
}
