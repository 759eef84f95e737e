// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The maps; `slipway_ebpf_abi::maps` describes them.

use aya_ebpf::helpers::bpf_get_prandom_u32;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray};
use slipway_ebpf_abi::maps::{CARRIED_SIZE, PENDING_CPUS, PENDING_EACH, UPLINKS_SIZE, YOUNG_SIZE};
use slipway_ebpf_abi::{
    COUNTERS, Carried, Carried4, Carried6, CarriedKey, CarriedKey4, CarriedKey6, Counter, Pending, Pending4,
    Pending6,
};

use crate::family::{Addr, Family};
use crate::scratch::Scratch;
use crate::v4::V4;
use crate::v6::V6;

#[map(name = "epoch")]
static EPOCH: Array<u32> = Array::with_max_entries(1, 0);
#[map(name = "carriedcounts")]
static COUNTS: PerCpuArray<[u64; COUNTERS]> = PerCpuArray::with_max_entries(1, 0);
#[map(name = "carried4")]
static CARRIED4: LruHashMap<CarriedKey4, Carried4> = LruHashMap::with_max_entries(CARRIED_SIZE, 0);
#[map(name = "carried6")]
static CARRIED6: LruHashMap<CarriedKey6, Carried6> = LruHashMap::with_max_entries(CARRIED_SIZE, 0);

// Not for the BPF programs.
#[map(name = "flowuplinks")]
static UPLINKS: HashMap<u32, u32> = HashMap::with_max_entries(UPLINKS_SIZE, 0);
#[map(name = "flowhome")]
static HOME: Array<u64> = Array::with_max_entries(1, 0);

// Not for user space.
#[map(name = "pending4")]
static PENDING4: Array<Pending4> = Array::with_max_entries(PENDING_EACH * PENDING_CPUS, 0);
#[map(name = "pending6")]
static PENDING6: Array<Pending6> = Array::with_max_entries(PENDING_EACH * PENDING_CPUS, 0);
/// The last record of each processor.
#[map(name = "cursors")]
static CURSORS: PerCpuArray<u32> = PerCpuArray::with_max_entries(1, 0);
/// Packets of flows without an entry: a hash of the key in the upper 24 bits, their number in the lower 8.
#[map(name = "young")]
static YOUNG: Array<u32> = Array::with_max_entries(YOUNG_SIZE, 0);
#[map(name = "carrying4")]
static SCRATCH4: PerCpuArray<Scratch<V4>> = PerCpuArray::with_max_entries(1, 0);
#[map(name = "carrying6")]
static SCRATCH6: PerCpuArray<Scratch<V6>> = PerCpuArray::with_max_entries(1, 0);

/// The maps of a family.
pub(crate) trait Maps: Family {
    /// The scratch memory of this program run.
    fn memory() -> Option<&'static mut Scratch<Self>>;
    /// Carried flows.
    fn carried() -> &'static LruHashMap<CarriedKey<Addr<Self>>, Carried<Addr<Self>>>;
    /// Records of pending packets.
    fn pending() -> &'static Array<Pending<Addr<Self>>>;
}

impl Maps for V4 {
    #[inline(always)]
    fn memory() -> Option<&'static mut Scratch<Self>> {
        // SAFETY: the element is this processor's own, and each program requests it once.
        SCRATCH4.get_ptr_mut(0).map(|scratch| unsafe { &mut *scratch })
    }
    #[inline(always)]
    fn carried() -> &'static LruHashMap<CarriedKey4, Carried4> {
        &CARRIED4
    }
    #[inline(always)]
    fn pending() -> &'static Array<Pending4> {
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
    fn carried() -> &'static LruHashMap<CarriedKey6, Carried6> {
        &CARRIED6
    }
    #[inline(always)]
    fn pending() -> &'static Array<Pending6> {
        &PENDING6
    }
}

/// The epoch; 0 before the set-up.
#[inline(always)]
pub(crate) fn epoch() -> u32 {
    EPOCH.get(0).copied().unwrap_or(0)
}

/// Adds to a counter.
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

/// This processor's next record.
#[inline(always)]
pub(crate) fn next_record(processor: u32) -> Option<u32> {
    let cursor = CURSORS.get_ptr_mut(0)?;
    // SAFETY: as in `add`.
    let next = unsafe {
        *cursor = (*cursor).wrapping_add(1) & (PENDING_EACH - 1);
        // The first record's index is that of no record.
        if *cursor == 0 {
            *cursor = 1;
        }
        *cursor
    };
    Some(((processor & (PENDING_CPUS - 1)) * PENDING_EACH) | next)
}

/// The slot that counts the packets of a flow without an entry. Flows whose hashes share a slot restart each
/// other's number, each with every other packet on average.
#[derive(Clone, Copy)]
pub(crate) struct Young {
    hash: u32,
    slot: Option<*mut u32>,
}

impl Young {
    #[inline(always)]
    pub(crate) fn of(hash: u32) -> Self {
        // The upper bits are the better ones.
        Self { hash, slot: YOUNG.get_ptr_mut((hash ^ hash >> 16) & (YOUNG_SIZE - 1)) }
    }

    /// The number of packets so far, if the slot is this flow's: it has no entry while the number is small.
    #[inline(always)]
    pub(crate) fn packets(self) -> Option<u32> {
        // SAFETY: one aligned word of a map, which stays allocated.
        let old = unsafe { self.slot?.read_volatile() };
        if (old ^ self.hash) >> 8 == 0 { Some(old & 0xff) } else { None }
    }

    /// Counts a packet. Returns their number, at most 255; 0 if the slot remains another flow's.
    #[inline(always)]
    pub(crate) fn count(self) -> u32 {
        let Some(slot) = self.slot else { return 0 };
        let number = match self.packets() {
            Some(packets) => packets + 1,
            // By chance: of flows that alternate, such as requests and replies, none would ever count to 2.
            None if is_used(slot) && coin() => return 0,
            None => 1,
        };
        // Half of the range again, so that powers of two recur.
        let number = if number > 0xff { 0x80 } else { number };
        // SAFETY: as above; processors that write concurrently lose a count.
        unsafe { slot.write_volatile(self.hash & !0xff | number) };
        number
    }
}

/// True if a slot is a flow's.
#[inline(always)]
fn is_used(slot: *mut u32) -> bool {
    // SAFETY: as in [`Young::packets`].
    unsafe { slot.read_volatile() != 0 }
}

/// True half of the time.
#[inline(always)]
fn coin() -> bool {
    // SAFETY: no arguments.
    unsafe { bpf_get_prandom_u32() & 1 != 0 }
}
