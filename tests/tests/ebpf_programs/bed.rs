//! A node with an uplink and a pod, the programs in the kernel, and packets put into them one by one
//! (BPF_PROG_TEST_RUN): a program is asked what it makes of a packet, and nothing leaves.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aya::maps::{HashMap, Map, MapData, PerCpuArray};
use aya::programs::{ProgramError, SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use slipway_ebpf_abi as abi;
use slipway_ebpf_abi::{
    Addr4, Addr6, Config, Counter, Flow4, Flow6, FlowKey4, FlowKey6, Pod, PodAddress, Port, PortKey,
    PortTarget, Reason, Router, Uplink,
};
use slipway_tests::{Host, Node};

use crate::wire::{self, Seen};

/// What a program says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Stack,
    Drop,
    Redirect,
}

/// A packet after a program.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) act: Act,
    /// Without the link layer.
    pub(crate) packet: Vec<u8>,
    /// How long it took.
    pub(crate) nanoseconds: u128,
}

impl Made {
    /// It was translated: what it is now, with its checksums found right.
    #[track_caller]
    pub(crate) fn translated(&self) -> Seen {
        assert_eq!(self.act, Act::Redirect);
        wire::see(&self.packet)
    }

    /// It was left to the stack as it was.
    #[track_caller]
    pub(crate) fn left(&self, packet: &[u8]) {
        assert_eq!((self.act, &self.packet[..]), (Act::Stack, packet));
    }
}

/// How much smaller the maps of flows are made, where a test wants to fill them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sizes {
    pub(crate) flows: Option<u32>,
    pub(crate) embryos: Option<u32>,
}

/// One family's addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) client: IpAddr,
    pub(crate) node: IpAddr,
    pub(crate) pod: IpAddr,
    /// Beyond the uplink.
    pub(crate) far: IpAddr,
}

/// The node, the programs, their maps.
pub(crate) struct Rig {
    pub(crate) node: Node,
    pub(crate) client: Host,
    pub(crate) pod_link: u32,
    pub(crate) uplink: u32,
    /// The link of a second pod, where a test has asked for one.
    second: Option<(u32, [u8; 6])>,
    maps: BTreeMap<String, Map>,
    ebpf: Ebpf,
    macs: [[u8; 6]; 2],
}

pub(crate) const GENERATION: u32 = 0x5eed;
pub(crate) const POD_PORT: u16 = 80;
pub(crate) const HOST_PORT: u16 = 8080;
pub(crate) const MTU: u32 = 1500;

pub(crate) const POD4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 5);
pub(crate) const POD6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 5);
/// The second pod's addresses, and the port of the node that leads to its [`POD_PORT`].
pub(crate) const SECOND4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 7);
pub(crate) const SECOND6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 7);
pub(crate) const SECOND_HOST_PORT: u16 = 8082;

fn mac(text: &str) -> [u8; 6] {
    let bytes: Vec<u8> = text.split(':').map(|part| u8::from_str_radix(part, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

fn index(node: &Node, link: &str) -> u32 {
    u32::try_from(node.link(link)["ifindex"].as_u64().expect("an index")).expect("32 bits")
}

/// The programs, if the binary was built with them.
pub(crate) fn object() -> Option<&'static [u8]> {
    cni_dataplane::ebpf::object()
}

/// Loads a program. The verifier gives up where a signal waits for the process.
pub(crate) fn load(name: &str, mut load: impl FnMut() -> Result<(), ProgramError>) {
    for _ in 0..8 {
        match load() {
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.kind() == std::io::ErrorKind::WouldBlock => {}
            otherwise => return otherwise.unwrap_or_else(|error| panic!("load {name}: {error}")),
        }
    }
    panic!("load {name}: interrupted by signals, again and again");
}

impl Rig {
    /// A node, or nothing if there are no programs.
    pub(crate) fn new(sizes: Sizes) -> Option<Self> {
        let object = object()?;
        let node = Node::new();
        let client = node.host("client");
        node.forward();
        let link = client.node_link.clone();
        node.cmd("ip link add pod0 type veth peer name podpeer");
        node.cmd("ip link set pod0 up");
        node.cmd("ip link set podpeer up");
        node.wait_up("pod0");
        node.cmd("ip address add 10.77.0.1/24 dev pod0");
        node.cmd("ip address add fd77::1/64 dev pod0 nodad");
        node.cmd(&format!("ip route add default via {}", client.v4));
        node.cmd(&format!("ip route add default via {}", client.v6));
        let (uplink, pod_link) = (index(&node, &link), index(&node, "pod0"));
        let macs = [mac(&node.mac(&link)), mac(&node.mac("pod0"))];
        let mut loader = EbpfLoader::new();
        if let Some(size) = sizes.flows {
            loader.map_max_entries(abi::maps::FLOWS4, size).map_max_entries(abi::maps::FLOWS6, size);
        }
        if let Some(size) = sizes.embryos {
            loader.map_max_entries(abi::maps::EMBRYOS4, size).map_max_entries(abi::maps::EMBRYOS6, size);
        }
        let mut ebpf = loader.load(object).unwrap_or_else(|error| panic!("load the object: {error:?}"));
        for name in [abi::maps::programs::UPLINK_INGRESS, abi::maps::programs::POD_INGRESS] {
            let program: &mut SchedClassifier =
                ebpf.program_mut(name).expect("is in the object").try_into().expect("is for tc");
            load(name, || program.load());
        }
        let mut maps = BTreeMap::new();
        for name in abi::maps::ALL {
            maps.insert(name.to_owned(), ebpf.take_map(name).unwrap_or_else(|| panic!("no map {name}")));
        }
        let mut rig = Self { node, client, pod_link, uplink, second: None, maps, ebpf, macs };
        rig.fill();
        Some(rig)
    }

    /// What user space tells the programs.
    fn fill(&mut self) {
        let mut config =
            aya::maps::Array::<_, Config>::try_from(self.maps.get_mut(abi::maps::CONFIG).unwrap()).unwrap();
        config.set(0, Config::new(0), 0).unwrap();
        let uplink = Uplink {
            mtu: MTU,
            flags: abi::UPLINK_ETHERNET,
            address4: self.client.node_v4.into(),
            address6: self.client.node_v6.into(),
        };
        let (index, node4, node6) = (self.uplink, self.client.node_v4, self.client.node_v6);
        self.map::<u32, Uplink>(abi::maps::UPLINKS).insert(index, uplink, 0).unwrap();
        self.map::<Addr4, u32>(abi::maps::LOCALS4).insert(Addr4::from(node4), 1, 0).unwrap();
        self.map::<Addr6, u32>(abi::maps::LOCALS6).insert(Addr6::from(node6), 1, 0).unwrap();
        self.add_pod(GENERATION);
        for protocol in [wire::TCP, wire::UDP] {
            self.publish(protocol, HOST_PORT, POD_PORT, GENERATION);
        }
    }

    pub(crate) fn config(&mut self, change: impl FnOnce(&mut Config)) {
        let mut map =
            aya::maps::Array::<_, Config>::try_from(self.maps.get_mut(abi::maps::CONFIG).unwrap()).unwrap();
        let mut config = map.get(&0, 0).unwrap();
        change(&mut config);
        map.set(0, config, 0).unwrap();
    }

    /// The pod with a generation, masqueraded.
    pub(crate) fn add_pod(&mut self, generation: u32) {
        self.tell_pod(self.pod_link, generation, (POD4, POD6));
    }

    /// To whom the pod's frames are addressed that the node is to forward.
    pub(crate) fn route_by(&mut self, generation: u32, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        let mac = [[a, b], [c, d], [e, f]].map(u16::from_ne_bytes);
        let pod = self.pod_link;
        self.map::<u32, Router>(abi::maps::ROUTERS)
            .insert(pod, Router { generation, mac, pad: 0 }, 0)
            .unwrap();
    }

    /// The MAC address that the packets of [`Self::sends`] are addressed to.
    pub(crate) fn pod_mac(&self) -> [u8; 6] {
        self.macs[1]
    }

    fn tell_pod(&mut self, pod: u32, generation: u32, (v4, v6): (Ipv4Addr, Ipv6Addr)) {
        self.map::<u32, Pod>(abi::maps::PODS)
            .insert(pod, Pod { generation, mtu: MTU, flags: 0, pad: 0 }, 0)
            .unwrap();
        let address = |prefix| PodAddress { pod, generation, flags: abi::MASQUERADED, prefix };
        self.map::<Addr4, PodAddress>(abi::maps::POD_ADDRESSES4)
            .insert(Addr4::from(v4), address(24), 0)
            .unwrap();
        self.map::<Addr6, PodAddress>(abi::maps::POD_ADDRESSES6)
            .insert(Addr6::from(v6), address(64), 0)
            .unwrap();
    }

    /// A second pod, with a published port.
    pub(crate) fn add_second_pod(&mut self) {
        self.node.cmd("ip link add pod1 type veth peer name podpeer1");
        self.node.cmd("ip link set pod1 up");
        self.node.cmd("ip link set podpeer1 up");
        self.node.wait_up("pod1");
        let (link, mac) = (index(&self.node, "pod1"), mac(&self.node.mac("pod1")));
        self.second = Some((link, mac));
        self.tell_pod(link, GENERATION, (SECOND4, SECOND6));
        for protocol in [wire::TCP, wire::UDP] {
            self.lead(protocol, (SECOND_HOST_PORT, POD_PORT), (link, GENERATION), (SECOND4, SECOND6));
        }
    }

    pub(crate) fn pod_mtu(&mut self, mtu: u32) {
        let pod = self.pod_link;
        self.map::<u32, Pod>(abi::maps::PODS)
            .insert(pod, Pod { generation: GENERATION, mtu, flags: 0, pad: 0 }, 0)
            .unwrap();
    }

    pub(crate) fn remove_pod(&mut self) {
        let pod = self.pod_link;
        self.map::<u32, Pod>(abi::maps::PODS).remove(&pod).unwrap();
    }

    /// Publishes a port at any address, in both families.
    pub(crate) fn publish(&mut self, protocol: u8, host_port: u16, pod_port: u16, generation: u32) {
        self.lead(protocol, (host_port, pod_port), (self.pod_link, generation), (POD4, POD6));
    }

    fn lead(
        &mut self,
        protocol: u8,
        ports: (u16, u16),
        (pod, generation): (u32, u32),
        (v4, v6): (Ipv4Addr, Ipv6Addr),
    ) {
        let (port, target) = (Port::new(ports.0), Port::new(ports.1));
        self.map(abi::maps::PORTS4)
            .insert(
                PortKey { address: Addr4::default(), port, protocol, pad: 0 },
                PortTarget { pod, generation, address: Addr4::from(v4), port: target, flags: 0 },
                0,
            )
            .unwrap();
        self.map(abi::maps::PORTS6)
            .insert(
                PortKey { address: Addr6::default(), port, protocol, pad: 0 },
                PortTarget { pod, generation, address: Addr6::from(v6), port: target, flags: 0 },
                0,
            )
            .unwrap();
    }

    pub(crate) fn map<K: aya::Pod, V: aya::Pod>(&mut self, name: &str) -> HashMap<&mut MapData, K, V> {
        HashMap::try_from(self.maps.get_mut(name).unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// All that is counted.
    pub(crate) fn counters(&self) -> abi::Counters {
        let map = PerCpuArray::<_, abi::Counters>::try_from(self.maps.get(abi::maps::COUNTERS).unwrap())
            .expect("an array");
        let mut sum = [0; abi::COUNTERS];
        for one in map.get(&0, 0).unwrap().iter() {
            for (sum, number) in sum.iter_mut().zip(one) {
                *sum += number;
            }
        }
        sum
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.counters()[counter as usize]
    }

    pub(crate) fn fallbacks(&self, reason: Reason) -> u64 {
        self.counters()[reason.fallback()]
    }

    /// A family's addresses.
    pub(crate) fn addresses(&self, v6: bool) -> Addresses {
        if v6 {
            Addresses {
                client: self.client.v6.into(),
                node: self.client.node_v6.into(),
                pod: POD6.into(),
                far: "2001:db8:ffff::9".parse().unwrap(),
            }
        } else {
            Addresses {
                client: self.client.v4.into(),
                node: self.client.node_v4.into(),
                pod: POD4.into(),
                far: "198.18.0.9".parse().unwrap(),
            }
        }
    }

    /// A packet arrives at the uplink.
    pub(crate) fn arrives(&self, packet: &[u8]) -> Made {
        self.run(abi::maps::programs::UPLINK_INGRESS, (self.uplink, self.macs[0]), packet, 0)
    }

    /// The pod sends a packet.
    pub(crate) fn sends(&self, packet: &[u8]) -> Made {
        self.run(abi::maps::programs::POD_INGRESS, (self.pod_link, self.macs[1]), packet, 0)
    }

    /// The second pod sends a packet.
    pub(crate) fn second_sends(&self, packet: &[u8]) -> Made {
        self.run(abi::maps::programs::POD_INGRESS, self.second.expect("a second pod"), packet, 0)
    }

    /// The pod sends a packet that will be cut into pieces with this much payload.
    pub(crate) fn sends_in_segments(&self, packet: &[u8], payload: u32) -> Made {
        self.run(abi::maps::programs::POD_INGRESS, (self.pod_link, self.macs[1]), packet, payload)
    }

    fn run(&self, program: &str, (interface, mac): (u32, [u8; 6]), packet: &[u8], segment: u32) -> Made {
        let kind: [u8; 2] = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        let frame = [&mac[..], &[2, 0, 0, 0, 0, 9], &kind, packet].concat();
        // struct __sk_buff (include/uapi/linux/bpf.h): what the kernel takes from here.
        let mut context = [0u8; 192];
        context[40..44].copy_from_slice(&interface.to_ne_bytes());
        if segment != 0 {
            context[164..168].copy_from_slice(&4u32.to_ne_bytes());
            context[176..180].copy_from_slice(&segment.to_ne_bytes());
        }
        let mut out = vec![0u8; frame.len() + 256];
        let program: &SchedClassifier =
            self.ebpf.program(program).expect("is in the object").try_into().expect("is for tc");
        let result = self.node.run(|| {
            program
                .test_run(TestRunOptions {
                    data_in: Some(&frame),
                    data_out: Some(&mut out),
                    ctx_in: Some(&context),
                    ..TestRunOptions::new()
                })
                .unwrap_or_else(|error| panic!("run the program: {error:?}"))
        });
        out.truncate(usize::try_from(result.data_size_out).unwrap());
        let act = match result.return_value {
            0 => Act::Stack,
            2 => Act::Drop,
            7 => Act::Redirect,
            other => panic!("unknown action {other}"),
        };
        Made { act, packet: out.split_off(14), nanoseconds: result.duration.as_nanos() }
    }

    pub(crate) fn flows4(&mut self, map: &str) -> BTreeMap<FlowKey4, Flow4> {
        self.map::<FlowKey4, Flow4>(map).iter().map(Result::unwrap).collect()
    }

    pub(crate) fn flows6(&mut self, map: &str) -> BTreeMap<FlowKey6, Flow6> {
        self.map::<FlowKey6, Flow6>(map).iter().map(Result::unwrap).collect()
    }

    /// Lets this many seconds pass for every flow.
    pub(crate) fn age(&mut self, seconds: u32) {
        let ticks = abi::ticks(seconds) + 1;
        for map in [abi::maps::FLOWS4, abi::maps::EMBRYOS4] {
            for (key, mut flow) in self.flows4(map) {
                flow.last_seen = flow.last_seen.wrapping_sub(ticks);
                if key.protocol != wire::TCP {
                    flow.mark = flow.mark.wrapping_sub(ticks);
                }
                self.map(map).insert(key, flow, 0).unwrap();
            }
        }
        for map in [abi::maps::FLOWS6, abi::maps::EMBRYOS6] {
            for (key, mut flow) in self.flows6(map) {
                flow.last_seen = flow.last_seen.wrapping_sub(ticks);
                if key.protocol != wire::TCP {
                    flow.mark = flow.mark.wrapping_sub(ticks);
                }
                self.map(map).insert(key, flow, 0).unwrap();
            }
        }
    }

    /// Forgets all flows.
    pub(crate) fn forget_flows(&mut self) {
        for map in [abi::maps::FLOWS4, abi::maps::EMBRYOS4] {
            for key in self.flows4(map).into_keys() {
                self.map::<FlowKey4, Flow4>(map).remove(&key).unwrap();
            }
        }
        for map in [abi::maps::FLOWS6, abi::maps::EMBRYOS6] {
            for key in self.flows6(map).into_keys() {
                self.map::<FlowKey6, Flow6>(map).remove(&key).unwrap();
            }
        }
    }

    /// How many halves there are whose time is not over.
    pub(crate) fn living(&mut self, v6: bool) -> usize {
        // CLOCK_MONOTONIC, as the programs have it.
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
        let now = std::time::Duration::from(now).as_nanos() >> abi::TICK_SHIFT;
        let now = u32::try_from(now).unwrap();
        let timeouts = Config::new(0).timeouts;
        let is_living = |state: u8, seen: u32| {
            now.wrapping_sub(seen).cast_signed() <= timeouts[usize::from(state)].cast_signed()
        };
        let mut all = Vec::new();
        if v6 {
            for map in [abi::maps::FLOWS6, abi::maps::EMBRYOS6] {
                all.extend(self.flows6(map).into_values().map(|flow| (flow.timed_as(), flow.last_seen)));
            }
        } else {
            for map in [abi::maps::FLOWS4, abi::maps::EMBRYOS4] {
                all.extend(self.flows4(map).into_values().map(|flow| (flow.timed_as(), flow.last_seen)));
            }
        }
        all.into_iter().filter(|(state, seen)| is_living(*state, *seen)).count()
    }

    /// How many halves the two maps of a family have.
    pub(crate) fn halves(&mut self, v6: bool) -> (usize, usize) {
        if v6 {
            (self.flows6(abi::maps::FLOWS6).len(), self.flows6(abi::maps::EMBRYOS6).len())
        } else {
            (self.flows4(abi::maps::FLOWS4).len(), self.flows4(abi::maps::EMBRYOS4).len())
        }
    }
}
