// SPDX-License-Identifier: GPL-2.0-or-later

//! A node with an uplink and a pod. Each test runs the BPF programs on single packets with
//! BPF_PROG_TEST_RUN, which returns the packet and the verdict and sends nothing.

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

/// A program's verdict: TC_ACT_OK, TC_ACT_SHOT or TC_ACT_REDIRECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The kernel's stack gets the packet.
    Pass,
    Drop,
    Redirect,
}

/// A packet after a program.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) verdict: Verdict,
    /// Without the link layer.
    pub(crate) packet: Vec<u8>,
    /// The program's run time.
    pub(crate) nanoseconds: u128,
}

impl Made {
    /// Asserts that the packet was translated. Returns it parsed, with its checksums verified.
    #[track_caller]
    pub(crate) fn translated(&self) -> Seen {
        assert_eq!(self.verdict, Verdict::Redirect);
        wire::see(&self.packet)
    }

    /// Asserts that the packet was left to the kernel's stack unchanged.
    #[track_caller]
    pub(crate) fn left(&self, packet: &[u8]) {
        assert_eq!((self.verdict, &self.packet[..]), (Verdict::Pass, packet));
    }
}

/// Sizes of the flow maps, for tests that fill them; `None` keeps the object's size.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sizes {
    pub(crate) flows: Option<u32>,
    pub(crate) half_open: Option<u32>,
}

/// The addresses of one IP family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) client: IpAddr,
    pub(crate) node: IpAddr,
    pub(crate) pod: IpAddr,
    /// A host that is reached through the uplink's default route.
    pub(crate) far: IpAddr,
}

/// The node, with the loaded BPF programs and their maps.
pub(crate) struct Rig {
    pub(crate) node: Node,
    pub(crate) client: Host,
    pub(crate) pod_link: u32,
    pub(crate) uplink: u32,
    /// Index and MAC address of the second pod's link, after [`Self::add_second_pod`].
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
/// The second pod's addresses, and its host port, which is published to its [`POD_PORT`].
pub(crate) const SECOND4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 7);
pub(crate) const SECOND6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 7);
pub(crate) const SECOND_HOST_PORT: u16 = 8082;

fn mac(text: &str) -> [u8; 6] {
    let bytes: Vec<u8> = text.split(':').map(|part| u8::from_str_radix(part, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

fn index(node: &Node, link: &str) -> u32 {
    u32::try_from(node.link(link)["ifindex"].as_u64().expect("ifindex is a number"))
        .expect("ifindex fits 32 bits")
}

/// The object file with the BPF programs, if the binary was built with it.
pub(crate) fn object() -> Option<&'static [u8]> {
    cni_dataplane::ebpf::object()
}

/// Loads a program; retries if a pending signal interrupted the verifier (EAGAIN).
pub(crate) fn load(name: &str, mut load: impl FnMut() -> Result<(), ProgramError>) {
    for _ in 0..8 {
        match load() {
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.kind() == std::io::ErrorKind::WouldBlock => {}
            otherwise => return otherwise.unwrap_or_else(|error| panic!("load {name}: {error}")),
        }
    }
    panic!("load {name}: interrupted by signals 8 times");
}

impl Rig {
    /// Sets up a node; `None` if the binary was built without the BPF programs.
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
        if let Some(size) = sizes.half_open {
            loader.map_max_entries(abi::maps::HALF_OPEN4, size).map_max_entries(abi::maps::HALF_OPEN6, size);
        }
        let mut ebpf = loader.load(object).unwrap_or_else(|error| panic!("load the object: {error:?}"));
        for name in [abi::maps::programs::UPLINK_INGRESS, abi::maps::programs::POD_INGRESS] {
            let program: &mut SchedClassifier = ebpf
                .program_mut(name)
                .expect("the object has the program")
                .try_into()
                .expect("the program is of type tc");
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

    /// Fills the maps that user space writes.
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

    /// Inserts the pod with a generation; its flows are masqueraded.
    pub(crate) fn add_pod(&mut self, generation: u32) {
        self.insert_pod(self.pod_link, generation, (POD4, POD6));
    }

    /// Sets the MAC address that the pod's frames must have to be forwarded by the node.
    pub(crate) fn set_router(&mut self, generation: u32, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        let mac = [[a, b], [c, d], [e, f]].map(u16::from_ne_bytes);
        let pod = self.pod_link;
        self.map::<u32, Router>(abi::maps::ROUTERS)
            .insert(pod, Router { generation, mac, pad: 0 }, 0)
            .unwrap();
    }

    /// The destination MAC address of the frames of [`Self::sends`].
    pub(crate) fn pod_mac(&self) -> [u8; 6] {
        self.macs[1]
    }

    fn insert_pod(&mut self, pod: u32, generation: u32, (v4, v6): (Ipv4Addr, Ipv6Addr)) {
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

    /// Adds a second pod with a published port.
    pub(crate) fn add_second_pod(&mut self) {
        self.node.cmd("ip link add pod1 type veth peer name podpeer1");
        self.node.cmd("ip link set pod1 up");
        self.node.cmd("ip link set podpeer1 up");
        self.node.wait_up("pod1");
        let (link, mac) = (index(&self.node, "pod1"), mac(&self.node.mac("pod1")));
        self.second = Some((link, mac));
        self.insert_pod(link, GENERATION, (SECOND4, SECOND6));
        for protocol in [wire::TCP, wire::UDP] {
            self.insert_port(protocol, (SECOND_HOST_PORT, POD_PORT), (link, GENERATION), (SECOND4, SECOND6));
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
        self.insert_port(protocol, (host_port, pod_port), (self.pod_link, generation), (POD4, POD6));
    }

    fn insert_port(
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

    /// The counters, summed over the processors.
    pub(crate) fn counters(&self) -> abi::Counters {
        let map = PerCpuArray::<_, abi::Counters>::try_from(self.maps.get(abi::maps::COUNTERS).unwrap())
            .expect("COUNTERS is a per-CPU array");
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

    /// The addresses of a family.
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

    /// Runs the uplink's program on a packet from outside.
    pub(crate) fn arrives(&self, packet: &[u8]) -> Made {
        self.run(abi::maps::programs::UPLINK_INGRESS, (self.uplink, self.macs[0]), packet, 0)
    }

    /// Runs the pod's program on a packet of the pod.
    pub(crate) fn sends(&self, packet: &[u8]) -> Made {
        self.run(abi::maps::programs::POD_INGRESS, (self.pod_link, self.macs[1]), packet, 0)
    }

    /// Runs the pod's program on a packet of the second pod.
    pub(crate) fn second_sends(&self, packet: &[u8]) -> Made {
        self.run(abi::maps::programs::POD_INGRESS, self.second.expect("add_second_pod was called"), packet, 0)
    }

    /// Like [`Self::sends`], for a GSO packet whose segments have `payload` bytes.
    pub(crate) fn sends_in_segments(&self, packet: &[u8], payload: u32) -> Made {
        self.run(abi::maps::programs::POD_INGRESS, (self.pod_link, self.macs[1]), packet, payload)
    }

    fn run(&self, program: &str, (interface, mac): (u32, [u8; 6]), packet: &[u8], segment: u32) -> Made {
        let kind: [u8; 2] = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        let frame = [&mac[..], &[2, 0, 0, 0, 0, 9], &kind, packet].concat();
        // Fields of struct __sk_buff (include/uapi/linux/bpf.h): ifindex, gso_segs, gso_size.
        let mut context = [0u8; 192];
        context[40..44].copy_from_slice(&interface.to_ne_bytes());
        if segment != 0 {
            context[164..168].copy_from_slice(&4u32.to_ne_bytes());
            context[176..180].copy_from_slice(&segment.to_ne_bytes());
        }
        let mut out = vec![0u8; frame.len() + 256];
        let program: &SchedClassifier = self
            .ebpf
            .program(program)
            .expect("the object has the program")
            .try_into()
            .expect("the program is of type tc");
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
        let verdict = match result.return_value {
            0 => Verdict::Pass,
            2 => Verdict::Drop,
            7 => Verdict::Redirect,
            other => panic!("unknown action {other}"),
        };
        Made { verdict, packet: out.split_off(14), nanoseconds: result.duration.as_nanos() }
    }

    pub(crate) fn flows4(&mut self, map: &str) -> BTreeMap<FlowKey4, Flow4> {
        self.map::<FlowKey4, Flow4>(map).iter().map(Result::unwrap).collect()
    }

    pub(crate) fn flows6(&mut self, map: &str) -> BTreeMap<FlowKey6, Flow6> {
        self.map::<FlowKey6, Flow6>(map).iter().map(Result::unwrap).collect()
    }

    /// Makes every flow older by so many seconds.
    pub(crate) fn age(&mut self, seconds: u32) {
        let ticks = abi::ticks(seconds) + 1;
        for map in [abi::maps::FLOWS4, abi::maps::HALF_OPEN4] {
            for (key, mut flow) in self.flows4(map) {
                flow.last_seen = flow.last_seen.wrapping_sub(ticks);
                if key.protocol != wire::TCP {
                    flow.mark = flow.mark.wrapping_sub(ticks);
                }
                self.map(map).insert(key, flow, 0).unwrap();
            }
        }
        for map in [abi::maps::FLOWS6, abi::maps::HALF_OPEN6] {
            for (key, mut flow) in self.flows6(map) {
                flow.last_seen = flow.last_seen.wrapping_sub(ticks);
                if key.protocol != wire::TCP {
                    flow.mark = flow.mark.wrapping_sub(ticks);
                }
                self.map(map).insert(key, flow, 0).unwrap();
            }
        }
    }

    /// Removes all flows from the maps.
    pub(crate) fn forget_flows(&mut self) {
        for map in [abi::maps::FLOWS4, abi::maps::HALF_OPEN4] {
            for key in self.flows4(map).into_keys() {
                self.map::<FlowKey4, Flow4>(map).remove(&key).unwrap();
            }
        }
        for map in [abi::maps::FLOWS6, abi::maps::HALF_OPEN6] {
            for key in self.flows6(map).into_keys() {
                self.map::<FlowKey6, Flow6>(map).remove(&key).unwrap();
            }
        }
    }

    /// The number of map elements of flows that have not timed out.
    pub(crate) fn live_elements(&mut self, v6: bool) -> usize {
        // The BPF programs use CLOCK_MONOTONIC.
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
        let now = std::time::Duration::from(now).as_nanos() >> abi::TICK_SHIFT;
        let now = u32::try_from(now).unwrap();
        let timeouts = Config::new(0).timeouts;
        let is_living = |state: u8, seen: u32| {
            now.wrapping_sub(seen).cast_signed() <= timeouts[usize::from(state)].cast_signed()
        };
        let mut all = Vec::new();
        if v6 {
            for map in [abi::maps::FLOWS6, abi::maps::HALF_OPEN6] {
                all.extend(self.flows6(map).into_values().map(|flow| (flow.timeout_state(), flow.last_seen)));
            }
        } else {
            for map in [abi::maps::FLOWS4, abi::maps::HALF_OPEN4] {
                all.extend(self.flows4(map).into_values().map(|flow| (flow.timeout_state(), flow.last_seen)));
            }
        }
        all.into_iter().filter(|(state, seen)| is_living(*state, *seen)).count()
    }

    /// The number of elements in a family's two maps: established flows, half-open flows.
    pub(crate) fn flow_elements(&mut self, v6: bool) -> (usize, usize) {
        if v6 {
            (self.flows6(abi::maps::FLOWS6).len(), self.flows6(abi::maps::HALF_OPEN6).len())
        } else {
            (self.flows4(abi::maps::FLOWS4).len(), self.flows4(abi::maps::HALF_OPEN4).len())
        }
    }
}
