// SPDX-License-Identifier: GPL-2.0-or-later

//! The harness of the network tests.
//!
//! Every test makes a private world: a [`Node`] (its own network and mount namespace), [`Host`]s
//! outside it (namespaces joined to the node by a veth pair) and [`Pod`]s (empty namespaces under
//! `/run/netns`, for a plugin to fill). All three are [`Space`]s: code and commands run inside with
//! [`Space::run`] and [`Space::cmd`], servers and clients with [`Space::serve`] and [`Space::request`].
//! Several nodes on one link are a [`Cluster`].
//! No namespace has a name outside the node's own mount namespace, and only a file descriptor of the test process keeps
//! each of them alive. So however a test ends, even by a kill, the kernel removes everything, and suites can run side
//! by side without affecting each other.
//!
//! ```no_run
//! use serde_json::json;
//! use slipway_tests::{Attach, Node, Proto};
//!
//! let node = Node::new();
//! let client = node.host("client");
//! let network = node.network(json!({
//!     "name": "net", "plugins": [
//!         {"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.1.2.0/24"}},
//!         {"type": "portmap", "capabilities": {"portMappings": true}},
//!     ],
//! }));
//! let pod = node.pod("web");
//! let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
//! network.add(&attach).unwrap();
//! let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "web");
//! let answer = client.request(Proto::Tcp, (client.node_v4, 8080)).unwrap();
//! assert_eq!((answer.who.as_str(), answer.peer.ip()), ("web", client.v4.into()));
//! network.del(&attach).unwrap();
//! ```
//!
//! # Which plugins are tested
//! `SLIPWAY_BIN_DIR` names the plugin directory. Without it, the workspace's own binary is built (once per test
//! process, by the cargo that runs the tests) and linked under the plugins' names. `SLIPWAY_PEER_DIR` replaces it with
//! another implementation, so that a suite can be compared with the reference plugins; see [`peer_fails`]. Some tests
//! run the reference plugins together with ours, or clean up after them; see [`Reference`].
//!
//! # When a test fails
//! A [`Node`] that is dropped during a panic prints every command that was run in it (with input and output), and the
//! ruleset, links, addresses and routes of all its spaces.

mod advertisement;
mod binaries;
mod bpf;
mod burst;
mod bus;
mod chain;
mod cluster;
mod concealment;
mod configurations;
mod container;
mod counters;
mod daemon;
mod errors;
mod ethtool;
mod family;
mod feature;
pub mod garbage;
mod golden;
pub mod image;
mod interrupt;
mod kube;
pub mod kubernetes;
pub mod measure;
mod node;
mod pace;
pub mod pages;
mod plugin;
mod random;
mod recorded_disk;
mod reference;
mod sample;
mod sctp;
mod seen_ports;
mod skip;
mod snapshot;
mod sniffer;
mod space;
mod steady;
pub mod system;
mod tally;
mod token;
mod traffic;
mod tun;

pub use advertisement::Advertisement;
pub use binaries::{is_peer, newest_version, peer_fails, plugin_dir, plugin_names, slipway, slipwayd};
pub use bpf::{PROGRAMS, has_programs};
pub use burst::{Fate, fate_of_burst};
pub use bus::SYSTEM_BUS;
pub use chain::{Attach, Failure, Network, address_of, addresses_of, host_local, with_keys};
pub use cluster::{Cluster, ClusterNode, Member, pod_gateways, pod_ranges, wire};
pub use configurations::{FLANNEL_ENV, fixed, limited, tuned};
pub use container::{
    Container, capabilities, capability_bit, confined, daemon_set, first_process, pod_of, render,
};
pub use counters::dropped_by_processors;
pub use daemon::Daemon;
pub use errors::failures;
pub use family::{IPV6, has_ipv6, usable};
pub use feature::{
    ESP, FLOWTABLE, IPTABLES, IPVS, NFT_RANGES, UDP_GRO, VirtualServers, WIREGUARD, has_esp, has_flowtable,
    has_iptables, has_ipvs, has_udp_gro, has_wireguard, lacks, nft_loads_ranges,
};
pub use golden::{golden, golden_result, normalise};
pub use interrupt::{
    Disturbance, Point, all_error_points, all_kill_points, assert_killed, disturbed, error_points,
    every_call, injected, kill_points, killed, point_of, points_to_try, slowed,
};
pub use kube::{
    API_SERVER, ApiServer, KUBE_TOKEN, api_server_programs, has_api_server, kube_programs, wait_until_ready,
};
pub use node::{BridgeNetfilter, Host, Node, Pod};
pub use pace::{comes, is_slow, patience, until, within};
pub use plugin::{CniFailure, Output, PluginCall, Running};
pub use random::Random;
pub use recorded_disk::{DiskEvent, RECORDED_DISKS, RecordedDisk};
pub use reference::{NEWER_REFERENCE, REFERENCE, Reference};
pub use sample::{one_in, one_of_each_pair_if_slow, sample, sample_of_unknown, stride};
pub use sctp::{SCTP, SctpProbe, expect_sctp, has_sctp};
pub use seen_ports::without_seen_ports;
pub use skip::{record_skip, test_name};
pub use snapshot::{SHARED_IN_NFTABLES, Snapshot};
pub use sniffer::{Frame, Sniffer};
pub use space::{CommandOutput, Space, in_namespace, quoted};
pub use steady::{Deliveries, SteadyFlow, Stop};
pub use tally::tally;
pub use traffic::{AT_ONCE, Answer, Flow, Proto, QUICK, Server, at};
pub use tun::TunWire;
