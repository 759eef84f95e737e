// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel's floor for a DEL: the cost of a batch that deletes three elements of an nf_tables map, and of
//! the deletion of a veth pair, in a process that does nothing else.
//!
//! Both wait for the kernel. What a batch deletes is freed after an RCU grace period, for which closing the
//! socket waits; a veth waits for grace periods and for its queues. No plugin can be faster than the sum.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;
use nix::sys::socket::SockProtocol;

use super::netlink::{ACK, REQUEST, Socket, attribute, message, nested};
use xtask::sandbox;
use xtask_base::error::{Error, Result};
use xtask_base::run::{self, tool};

/// The namespace of this measurement.
const NODE: &str = "floor";
/// Elements of a pod with three ports.
const PORTS: u32 = 3;
/// `RTM_DELLINK` (linux/rtnetlink.h).
const RTM_DELLINK: u16 = 17;
/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END` (linux/netfilter/nfnetlink.h).
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// `NFNL_SUBSYS_NFTABLES` (same header).
const NFTABLES: u16 = 10;
/// `NFT_MSG_DELSETELEM` (linux/netfilter/nf_tables.h).
const DELSETELEM: u16 = 14;
/// `NFPROTO_INET` (linux/netfilter.h).
const INET: u8 = 1;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;

/// The measurement's namespace.
#[derive(Debug)]
pub(super) struct Floor {
    node: PathBuf,
    pods: u32,
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// The deleting batch, from opening its socket until it is closed.
    pub(super) batch: Duration,
    /// The veth pair, likewise.
    pub(super) veth: Duration,
}

impl Floor {
    /// Makes a node with a bridge and an empty map that a rule uses, and moves the thread there.
    ///
    /// # Errors
    /// `ip` or `nft` fails.
    pub(super) fn new() -> Result<Self> {
        let node = sandbox::add_netns(NODE)?;
        sandbox::switch_to(&node)?;
        nft("table inet floor {\n\
             \x20 map ports { type inet_proto . inet_service : ipv4_addr . inet_service; }\n\
             \x20 chain prerouting {\n    type nat hook prerouting priority dstnat;\n\
             \x20   fib daddr type local dnat ip to meta l4proto . th dport map @ports\n  }\n}\n")?;
        run::capture(&mut tool("ip", &["link", "add", "bridge0", "type", "bridge"]))?;
        run::capture(&mut tool("ip", &["addr", "add", "10.99.0.1/16", "dev", "bridge0"]))?;
        run::capture(&mut tool("ip", &["link", "set", "bridge0", "up"]))?;
        Ok(Self { node, pods: 0 })
    }

    /// Fills the map as `pods` pods would, in bulk.
    ///
    /// # Errors
    /// `nft` fails.
    pub(super) fn fill(&mut self, pods: u32) -> Result<()> {
        sandbox::switch_to(&self.node)?;
        let elements: Vec<String> = (self.pods * PORTS..pods * PORTS)
            .map(|n| format!("tcp . {} : 10.99.0.2 . 80", 2000 + n))
            .collect();
        for chunk in elements.chunks(1000) {
            nft(&format!("add element inet floor ports {{ {} }}\n", chunk.join(", ")))?;
        }
        self.pods = self.pods.max(pods);
        Ok(())
    }

    /// Makes a pod's interface and elements, then deletes them.
    ///
    /// # Errors
    /// A command or a request fails.
    pub(super) fn sample(&self, number: u32) -> Result<Sample> {
        let (pod, veth) = (format!("floor-{number}"), format!("veth{number}"));
        let netns = sandbox::add_netns(&pod)?;
        sandbox::switch_to(&self.node)?;
        nft("add element inet floor ports { tcp . 1001 : 10.99.0.2 . 80, tcp . 1002 : 10.99.0.2 . 80, \
             tcp . 1003 : 10.99.0.2 . 80 }\n")?;
        let net = netns.to_string_lossy();
        run::capture(&mut tool(
            "ip",
            &["link", "add", &veth, "type", "veth", "peer", "name", "eth0", "netns", &net],
        ))?;
        run::capture(&mut tool("ip", &["link", "set", &veth, "master", "bridge0", "up"]))?;
        run::capture(&mut tool("ip", &["-n", &pod, "addr", "add", "10.99.0.2/16", "dev", "eth0"]))?;
        run::capture(&mut tool("ip", &["-n", &pod, "link", "set", "eth0", "up"]))?;
        let index = if_nametoindex(veth.as_str()).map_err(|e| Error::system(format!("find {veth}"), e))?;
        let (batch, delete) = (deleting_batch(&[1001, 1002, 1003]), delete_link(index));
        Ok(Sample {
            batch: timed(SockProtocol::NetlinkNetFilter, &batch, "delete three elements")?,
            veth: timed(SockProtocol::NetlinkRoute, &delete, "delete the veth pair")?,
        })
    }
}

fn timed(protocol: SockProtocol, request: &[u8], operation: &str) -> Result<Duration> {
    let begun = Instant::now();
    let socket = Socket::open(protocol)?;
    socket.request(request, operation)?;
    drop(socket);
    Ok(begun.elapsed())
}

fn nft(script: &str) -> Result<String> {
    run::feed(&mut tool("nft", &["-f", "-"]), script)
}

/// `struct nfgenmsg`: family, version 0, resource id in network order.
fn nfgenmsg(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// One batch that deletes elements of `inet floor ports` by key.
fn deleting_batch(ports: &[u16]) -> Vec<u8> {
    let elements: Vec<u8> = ports.iter().flat_map(|port| element(*port)).collect();
    // NFTA_SET_ELEM_LIST_TABLE, _SET and _ELEMENTS.
    let payload = [
        nfgenmsg(INET, 0).to_vec(),
        attribute(1, b"floor\0"),
        attribute(2, b"ports\0"),
        nested(3, &elements),
    ]
    .concat();
    [
        message(BATCH_BEGIN, REQUEST, &nfgenmsg(0, NFTABLES)),
        message(NFTABLES << 8 | DELSETELEM, REQUEST | ACK, &payload),
        message(BATCH_END, REQUEST, &nfgenmsg(0, NFTABLES)),
    ]
    .concat()
}

/// `NFTA_LIST_ELEM` with `NFTA_SET_ELEM_KEY` with `NFTA_DATA_VALUE`: a concatenated key has each part
/// padded to four bytes.
fn element(port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    nested(1, &nested(1, &attribute(1, &[TCP, 0, 0, 0, high, low, 0, 0])))
}

/// `struct ifinfomsg` with only the index.
fn delete_link(index: u32) -> Vec<u8> {
    let mut payload = [0; 16];
    payload[4..8].copy_from_slice(&index.to_ne_bytes());
    message(RTM_DELLINK, REQUEST | ACK, &payload)
}
