//! The maps. What each is for is said in `slipway_ebpf_abi::maps`.

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray};
use slipway_ebpf_abi::maps as sizes;
use slipway_ebpf_abi::{
    Addr4, Addr6, Config, Counters, Flow4, Flow6, FlowKey4, FlowKey6, FragmentKey4, FragmentKey6,
    FragmentPorts, Pod, PodAddress, PortKey4, PortKey6, PortTarget4, PortTarget6, Router, SocketKey4,
    SocketKey6, SocketOrigin4, SocketOrigin6, Uplink,
};

use crate::route::{self, Known};
use crate::v4::V4;
use crate::v6::V6;
use crate::work::Work;

/// Hash maps that only user space writes take memory as elements are added.
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
#[map(name = "ports4")]
pub(crate) static PORTS4: HashMap<PortKey4, PortTarget4> = HashMap::with_max_entries(sizes::PORTS_SIZE, LAZY);
#[map(name = "locals4")]
pub(crate) static LOCALS4: HashMap<Addr4, u32> = HashMap::with_max_entries(sizes::LOCALS_SIZE, LAZY);
#[map(name = "flows4")]
pub(crate) static FLOWS4: LruHashMap<FlowKey4, Flow4> = LruHashMap::with_max_entries(sizes::FLOWS_SIZE, 0);
#[map(name = "embryos4")]
pub(crate) static EMBRYOS4: LruHashMap<FlowKey4, Flow4> =
    LruHashMap::with_max_entries(sizes::EMBRYOS_SIZE, 0);
#[map(name = "frags4")]
pub(crate) static FRAGMENTS4: LruHashMap<FragmentKey4, FragmentPorts> =
    LruHashMap::with_max_entries(sizes::FRAGMENTS_SIZE, 0);
#[map(name = "socks4")]
pub(crate) static SOCKETS4: LruHashMap<SocketKey4, SocketOrigin4> =
    LruHashMap::with_max_entries(sizes::SOCKETS_SIZE, 0);

#[map(name = "podaddrs6")]
pub(crate) static POD_ADDRESSES6: HashMap<Addr6, PodAddress> =
    HashMap::with_max_entries(sizes::POD_ADDRESSES_SIZE, LAZY);
#[map(name = "ports6")]
pub(crate) static PORTS6: HashMap<PortKey6, PortTarget6> = HashMap::with_max_entries(sizes::PORTS_SIZE, LAZY);
#[map(name = "locals6")]
pub(crate) static LOCALS6: HashMap<Addr6, u32> = HashMap::with_max_entries(sizes::LOCALS_SIZE, LAZY);
#[map(name = "flows6")]
pub(crate) static FLOWS6: LruHashMap<FlowKey6, Flow6> = LruHashMap::with_max_entries(sizes::FLOWS_SIZE, 0);
#[map(name = "embryos6")]
pub(crate) static EMBRYOS6: LruHashMap<FlowKey6, Flow6> =
    LruHashMap::with_max_entries(sizes::EMBRYOS_SIZE, 0);
#[map(name = "frags6")]
pub(crate) static FRAGMENTS6: LruHashMap<FragmentKey6, FragmentPorts> =
    LruHashMap::with_max_entries(sizes::FRAGMENTS_SIZE, 0);
#[map(name = "socks6")]
pub(crate) static SOCKETS6: LruHashMap<SocketKey6, SocketOrigin6> =
    LruHashMap::with_max_entries(sizes::SOCKETS_SIZE, 0);

/// Keys that a processor is just taking over from a flow that is dead, by a number made of them: who puts the number
/// here does so alone. Of no interest to user space.
#[map(name = "turns")]
pub(crate) static TURNS: HashMap<u32, u32> = HashMap::with_max_entries(1024, 0);
/// Scratch, likewise.
#[map(name = "work4")]
pub(crate) static WORK4: PerCpuArray<Work<V4>> = PerCpuArray::with_max_entries(1, 0);
#[map(name = "work6")]
pub(crate) static WORK6: PerCpuArray<Work<V6>> = PerCpuArray::with_max_entries(1, 0);
/// Likewise.
#[map(name = "routes4")]
pub(crate) static ROUTES4: PerCpuArray<Known<V4>> = PerCpuArray::with_max_entries(route::SLOTS, 0);
#[map(name = "routes6")]
pub(crate) static ROUTES6: PerCpuArray<Known<V6>> = PerCpuArray::with_max_entries(route::SLOTS, 0);
