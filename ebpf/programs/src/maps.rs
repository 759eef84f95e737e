// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The maps; `slipway_ebpf_abi::maps` describes them.

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray};
use slipway_ebpf_abi::maps as sizes;
use slipway_ebpf_abi::{
    Addr4, Addr6, Config, Counters, ExemptKey4, ExemptKey6, Flow4, Flow6, FlowKey4, FlowKey6, FragmentKey4,
    FragmentKey6, FragmentPorts, Pod, PodAddress, PortKey4, PortKey6, PortTarget4, PortTarget6, Router,
    SocketKey4, SocketKey6, SocketOrigin4, SocketOrigin6, Uplink,
};

use crate::route::{self, CachedRoute};
use crate::scratch::Scratch;
use crate::v4::V4;
use crate::v6::V6;

/// For hash maps that only user space writes: allocates memory as elements are added.
const LAZY: u32 = BPF_F_NO_PREALLOC;

#[map(name = "config")]
pub(crate) static CONFIG: Array<Config> = Array::with_max_entries(1, 0);
#[map(name = "counters")]
pub(crate) static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(1, 0);
#[map(name = "uplinks")]
pub(crate) static UPLINKS: HashMap<u32, Uplink> = HashMap::with_max_entries(sizes::UPLINKS_SIZE, LAZY);
#[map(name = "pods")]
pub(crate) static PODS: HashMap<u32, Pod> = HashMap::with_max_entries(sizes::PODS_SIZE, LAZY);
#[map(name = "routers")]
pub(crate) static ROUTERS: HashMap<u32, Router> = HashMap::with_max_entries(sizes::PODS_SIZE, LAZY);

#[map(name = "podaddrs4")]
pub(crate) static POD_ADDRESSES4: HashMap<Addr4, PodAddress> =
    HashMap::with_max_entries(sizes::POD_ADDRESSES_SIZE, LAZY);
#[map(name = "exempt4")]
pub(crate) static EXEMPT4: LpmTrie<ExemptKey4, u32> = LpmTrie::with_max_entries(sizes::EXEMPT_SIZE, LAZY);
#[map(name = "ports4")]
pub(crate) static PORTS4: HashMap<PortKey4, PortTarget4> = HashMap::with_max_entries(sizes::PORTS_SIZE, LAZY);
#[map(name = "locals4")]
pub(crate) static LOCALS4: HashMap<Addr4, u32> = HashMap::with_max_entries(sizes::LOCALS_SIZE, LAZY);
#[map(name = "flows4")]
pub(crate) static FLOWS4: LruHashMap<FlowKey4, Flow4> = LruHashMap::with_max_entries(sizes::FLOWS_SIZE, 0);
#[map(name = "embryos4")]
pub(crate) static HALF_OPEN4: LruHashMap<FlowKey4, Flow4> =
    LruHashMap::with_max_entries(sizes::HALF_OPEN_SIZE, 0);
#[map(name = "frags4")]
pub(crate) static FRAGMENTS4: LruHashMap<FragmentKey4, FragmentPorts> =
    LruHashMap::with_max_entries(sizes::FRAGMENTS_SIZE, 0);
#[map(name = "socks4")]
pub(crate) static SOCKETS4: LruHashMap<SocketKey4, SocketOrigin4> =
    LruHashMap::with_max_entries(sizes::SOCKETS_SIZE, 0);

#[map(name = "podaddrs6")]
pub(crate) static POD_ADDRESSES6: HashMap<Addr6, PodAddress> =
    HashMap::with_max_entries(sizes::POD_ADDRESSES_SIZE, LAZY);
#[map(name = "exempt6")]
pub(crate) static EXEMPT6: LpmTrie<ExemptKey6, u32> = LpmTrie::with_max_entries(sizes::EXEMPT_SIZE, LAZY);
#[map(name = "ports6")]
pub(crate) static PORTS6: HashMap<PortKey6, PortTarget6> = HashMap::with_max_entries(sizes::PORTS_SIZE, LAZY);
#[map(name = "locals6")]
pub(crate) static LOCALS6: HashMap<Addr6, u32> = HashMap::with_max_entries(sizes::LOCALS_SIZE, LAZY);
#[map(name = "flows6")]
pub(crate) static FLOWS6: LruHashMap<FlowKey6, Flow6> = LruHashMap::with_max_entries(sizes::FLOWS_SIZE, 0);
#[map(name = "embryos6")]
pub(crate) static HALF_OPEN6: LruHashMap<FlowKey6, Flow6> =
    LruHashMap::with_max_entries(sizes::HALF_OPEN_SIZE, 0);
#[map(name = "frags6")]
pub(crate) static FRAGMENTS6: LruHashMap<FragmentKey6, FragmentPorts> =
    LruHashMap::with_max_entries(sizes::FRAGMENTS_SIZE, 0);
#[map(name = "socks6")]
pub(crate) static SOCKETS6: LruHashMap<SocketKey6, SocketOrigin6> =
    LruHashMap::with_max_entries(sizes::SOCKETS_SIZE, 0);

/// Locks of keys that a processor is taking over from a dead flow, by a hash of the key: the processor that
/// inserts the hash has the lock. Not for user space.
#[map(name = "turns")]
pub(crate) static KEY_LOCKS: HashMap<u32, u32> = HashMap::with_max_entries(1024, 0);
/// Scratch memory. Not for user space.
#[map(name = "work4")]
pub(crate) static SCRATCH4: PerCpuArray<Scratch<V4>> = PerCpuArray::with_max_entries(1, 0);
#[map(name = "work6")]
pub(crate) static SCRATCH6: PerCpuArray<Scratch<V6>> = PerCpuArray::with_max_entries(1, 0);
/// Caches of routes. Not for user space.
#[map(name = "routes4")]
pub(crate) static ROUTE_CACHE4: PerCpuArray<CachedRoute<V4>> = PerCpuArray::with_max_entries(route::SLOTS, 0);
#[map(name = "routes6")]
pub(crate) static ROUTE_CACHE6: PerCpuArray<CachedRoute<V6>> = PerCpuArray::with_max_entries(route::SLOTS, 0);
