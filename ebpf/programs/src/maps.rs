// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The maps, which `slipway_ebpf_abi::maps` describes.

use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_get_smp_processor_id};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray};
use slipway_ebpf_abi::maps::{
    CARRIED_SIZE, CONTAINERS_SIZE, EPOCH_AT, EPOCH_SIZE, HELD_AT, PENDING_CPUS, PENDING_EACH, PORTS_SIZE,
    RULES_READ_SIZE, UPLINKS_SIZE, YOUNG_SIZE,
};
use slipway_ebpf_abi::{
    COUNTERS, Container, Count, Counter, Entry, Entry4, Entry6, FlowKey, FlowKey4, FlowKey6, KEYS, Keyed,
    Record, Record4, Record6, State, Young,
};

use crate::family::{Addr, Family};
use crate::scratch::Scratch;
use crate::v4::V4;
use crate::v6::V6;

#[map(name = "epoch")]
static EPOCH: Array<u32> = Array::with_max_entries(EPOCH_SIZE, 0);
#[map(name = "hashkeys")]
static HASH_KEYS: Array<[u64; KEYS]> = Array::with_max_entries(1, 0);
#[map(name = "heldports")]
static PORTS: HashMap<u32, u32> = HashMap::with_max_entries(PORTS_SIZE, 0);
#[map(name = "containers")]
static CONTAINERS: LruHashMap<u32, Container> = LruHashMap::with_max_entries(CONTAINERS_SIZE, 0);
#[map(name = "carriedcounts")]
static COUNTS: PerCpuArray<[u64; COUNTERS]> = PerCpuArray::with_max_entries(1, 0);
#[map(name = "carried4")]
static CARRIED4: LruHashMap<FlowKey4, Entry4> = LruHashMap::with_max_entries(CARRIED_SIZE, 0);
#[map(name = "carried6")]
static CARRIED6: LruHashMap<FlowKey6, Entry6> = LruHashMap::with_max_entries(CARRIED_SIZE, 0);

// Only user space uses the next three maps. They are part of the object so that they are created and pinned
// with the others.
#[map(name = "flowuplinks")]
static UPLINKS: HashMap<u32, u32> = HashMap::with_max_entries(UPLINKS_SIZE, 0);
#[map(name = "rulesread")]
static RULES_READ: Array<u64> = Array::with_max_entries(RULES_READ_SIZE, 0);
#[map(name = "flowhome")]
static HOME: Array<u64> = Array::with_max_entries(1, 0);

// Only the programs use the following maps.
#[map(name = "pending4")]
static PENDING4: Array<Record4> = Array::with_max_entries(PENDING_EACH * PENDING_CPUS, 0);
#[map(name = "pending6")]
static PENDING6: Array<Record6> = Array::with_max_entries(PENDING_EACH * PENDING_CPUS, 0);
/// Which of its records each processor used last.
#[map(name = "cursors")]
static CURSORS: PerCpuArray<u32> = PerCpuArray::with_max_entries(1, 0);
#[map(name = "young")]
static YOUNG: Array<Young> = Array::with_max_entries(YOUNG_SIZE, 0);
#[map(name = "carrying4")]
static SCRATCH4: PerCpuArray<Scratch<V4>> = PerCpuArray::with_max_entries(1, 0);
#[map(name = "carrying6")]
static SCRATCH6: PerCpuArray<Scratch<V6>> = PerCpuArray::with_max_entries(1, 0);

pub(crate) trait Maps: Family {
    /// The scratch memory for this run of the program.
    fn memory() -> Option<&'static mut Scratch<Self>>;
    fn entries() -> &'static LruHashMap<FlowKey<Addr<Self>>, Entry<Addr<Self>>>;
    fn records() -> &'static Array<Record<Addr<Self>>>;
}

impl Maps for V4 {
    #[inline(always)]
    fn memory() -> Option<&'static mut Scratch<Self>> {
        // SAFETY: the element is this processor's own, where only one program runs at a time, and each
        // program requests it once.
        SCRATCH4.get_ptr_mut(0).map(|scratch| unsafe { &mut *scratch })
    }
    #[inline(always)]
    fn entries() -> &'static LruHashMap<FlowKey4, Entry4> {
        &CARRIED4
    }
    #[inline(always)]
    fn records() -> &'static Array<Record4> {
        &PENDING4
    }
}

impl Maps for V6 {
    #[inline(always)]
    fn memory() -> Option<&'static mut Scratch<Self>> {
        // SAFETY: as above.
        SCRATCH6.get_ptr_mut(0).map(|scratch| unsafe { &mut *scratch })
    }
    #[inline(always)]
    fn entries() -> &'static LruHashMap<FlowKey6, Entry6> {
        &CARRIED6
    }
    #[inline(always)]
    fn records() -> &'static Array<Record6> {
        &PENDING6
    }
}

/// The epoch, or 0 before the set-up is complete.
#[inline(always)]
pub(crate) fn epoch() -> u32 {
    EPOCH.get(EPOCH_AT).copied().unwrap_or(0)
}

/// The flows that stay with netfilter: bits of [`held_bit`](slipway_ebpf_abi::maps::held_bit), and
/// [`HELD_PORTS`](slipway_ebpf_abi::maps::HELD_PORTS).
#[inline(always)]
pub(crate) fn held() -> u32 {
    EPOCH.get(HELD_AT).copied().unwrap_or(u32::MAX)
}

/// True if flows with this [port](slipway_ebpf_abi::maps::held_port) stay with netfilter.
#[inline(always)]
pub(crate) fn is_held(port: u32) -> bool {
    PORTS.get_ptr(&port).is_some()
}

/// The container behind a link; none if user space has not recorded it.
#[inline(always)]
pub(crate) fn container(link: u32) -> Option<Container> {
    // SAFETY: any bits are a valid value. User space replaces an element as a whole, but the kernel may reuse
    // the old one while it is read here. A mixture of two addresses is that of no container.
    CONTAINERS.get_ptr(&link).map(|container| unsafe { *container })
}

/// True for an uplink, at whose link all frames that come out are meant for the way that they take.
#[inline(always)]
pub(crate) fn is_uplink(link: u32) -> bool {
    UPLINKS.get_ptr(&link).is_some()
}

/// A [hash](Keyed) of a value whose size is a multiple of 4 bytes.
#[inline(always)]
fn hash<T: Copy>(value: *const T) -> u32 {
    let Some(keys) = HASH_KEYS.get(0) else { return 0 };
    let mut hash = Keyed::new(keys[0]);
    for word in 0..size_of::<T>() / 4 {
        // SAFETY: the caller passes a pointer to a whole value, which consists of integers and is aligned to
        // 4 bytes.
        hash = hash.word(keys[word + 1], unsafe { value.cast::<u32>().add(word).read_volatile() });
    }
    hash.hash()
}

#[inline(always)]
pub(crate) fn add(counter: Counter, number: u64) {
    if let Some(counts) = COUNTS.get_ptr_mut(0) {
        // SAFETY: the element is this processor's own, and no program of this kind interrupts another one on
        // the same processor.
        if let Some(count) = unsafe { (*counts).get_mut(counter as usize) } {
            *count = count.wrapping_add(number);
        }
    }
}

/// The index of this processor's next record.
#[inline(always)]
pub(crate) fn next_record() -> Option<u32> {
    // SAFETY: the helper takes no arguments.
    let processor = unsafe { bpf_get_smp_processor_id() };
    let cursor = CURSORS.get_ptr_mut(0)?;
    // SAFETY: as in `add`.
    let next = unsafe {
        *cursor = (*cursor).wrapping_add(1) & (PENDING_EACH - 1);
        // The index 0 means that a packet has no record, so no processor uses the first one of its own.
        if *cursor == 0 {
            *cursor = 1;
        }
        *cursor
    };
    Some(((processor & (PENDING_CPUS - 1)) * PENDING_EACH) | next)
}

/// The slot in which a direction and those that share it are counted.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    hash: u32,
    place: Option<*mut Young>,
}

impl Slot {
    #[inline(always)]
    pub(crate) fn of<A: Copy>(key: *const FlowKey<A>) -> Self {
        let hash = hash(key);
        // Both halves of the hash take part in the choice of the slot.
        Self { hash, place: YOUNG.get_ptr_mut((hash ^ hash >> 16) & (YOUNG_SIZE - 1)) }
    }

    /// The same as [`Count::state`], of the count in the slot.
    #[inline(always)]
    pub(crate) fn state(self, first: u32) -> State {
        let Some(place) = self.place else { return State::Candidate };
        // SAFETY: one aligned word of an array map, whose elements stay allocated.
        unsafe { (&raw const (*place).count).read_volatile() }.state(self.hash, first)
    }

    /// True if no TCP direction that shares this slot has an entry.
    #[inline(always)]
    pub(crate) fn has_no_entry(self) -> bool {
        // SAFETY: as above.
        self.place.is_some_and(|place| unsafe { (&raw const (*place).entries).read_volatile() } == 0)
    }

    /// Changes the number of entries: by 1 before an entry is inserted, and by -1 after one was removed, so
    /// that the number is never too low.
    #[inline(always)]
    pub(crate) fn add_entries(self, number: i64) {
        if let Some(place) = self.place {
            // SAFETY: as above, and aligned to 8 bytes. The lower word of the summand is zero, so the count
            // of packets stays as it is.
            unsafe { add_atomically(place.cast(), number.cast_unsigned() << 32) };
        }
    }

    /// Counts a packet. Returns none if the slot stays with another direction.
    #[inline(always)]
    pub(crate) fn count(self) -> Option<Count> {
        // SAFETY: as above.
        let place = unsafe { &raw mut (*self.place?).count };
        // SAFETY: as above.
        let count = unsafe { place.read_volatile() }.next(self.hash, coin)?;
        // SAFETY: as above. If two processors write at the same time, one of the packets is not counted.
        unsafe { place.write_volatile(count) };
        Some(count)
    }
}

/// Adds to a number in a map. `core` has no atomic addition for this target.
///
/// # Safety
///
/// The number must be in a map, and aligned to 8 bytes.
#[inline(always)]
unsafe fn add_atomically(number: *mut u64, more: u64) {
    #[cfg(target_arch = "bpf")]
    // SAFETY: the caller guarantees what is required.
    unsafe {
        core::arch::asm!("lock *(u64 *)({number} + 0) += {more}", number = in(reg) number, more = in(reg) more);
    }
    #[cfg(not(target_arch = "bpf"))]
    unreachable!("{number:?} {more}");
}

/// True half of the time.
#[inline(always)]
fn coin() -> bool {
    // SAFETY: the helper takes no arguments.
    unsafe { bpf_get_prandom_u32() & 1 != 0 }
}
