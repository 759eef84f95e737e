// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel's floor for a DEL: the cost of a batch that deletes three elements of an nf_tables map, and of
//! the deletion of a veth pair, in a process that does nothing else.
//!
//! Both wait for the kernel. What a batch deletes is freed after an RCU grace period, for which closing the
//! socket waits; a veth waits for grace periods and for its queues. No plugin can be faster than the sum.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use cni_netlink::message::flag;
use cni_netlink::{Message, SockProtocol, Socket};
use nix::net::if_::if_nametoindex;
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
/// `NFNL_SUBSYS_NFTABLES` (linux/netfilter/nfnetlink.h).
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

/// Sends messages of which one asks for an acknowledgement.
fn timed(protocol: SockProtocol, messages: &[u8], operation: &str) -> Result<Duration> {
    let begun = Instant::now();
    let socket = Socket::open(protocol).map_err(|errno| Error::system(operation, errno))?;
    let acks = socket.batch(messages).map_err(|error| Error::system(operation, error.errno()))?;
    drop(socket);
    let took = begun.elapsed();
    match acks.into_iter().find_map(|ack| ack.refusal) {
        Some(refusal) => Err(Error::system(operation, refusal.errno)),
        None => Ok(took),
    }
}

fn nft(script: &str) -> Result<String> {
    run::feed(&mut tool("nft", &["-f", "-"]), script)
}

/// A message of netfilter, with `struct nfgenmsg`: family, version 0, resource id in network order.
fn netfilter(kind: u16, flags: u16, family: u8, resource: u16) -> Message {
    let mut message = Message::new(kind, flags);
    message.raw(&[family, 0]).raw(&resource.to_be_bytes());
    message
}

/// One batch that deletes elements of `inet floor ports` by key.
fn deleting_batch(ports: &[u16]) -> Vec<u8> {
    let mut deletion = netfilter(NFTABLES << 8 | DELSETELEM, flag::ACK, INET, 0);
    // NFTA_SET_ELEM_LIST_TABLE, _SET and _ELEMENTS.
    deletion.text(1, "floor").text(2, "ports").nest(3, |elements| {
        for port in ports {
            let [high, low] = port.to_be_bytes();
            // NFTA_LIST_ELEM with NFTA_SET_ELEM_KEY with NFTA_DATA_VALUE: a concatenated key has each part padded to
            // four bytes.
            elements.nest(1, |element| {
                element.nest(1, |key| {
                    key.attr(1, &[TCP, 0, 0, 0, high, low, 0, 0]);
                });
            });
        }
    });
    let mut begin = netfilter(BATCH_BEGIN, 0, 0, NFTABLES);
    let mut end = netfilter(BATCH_END, 0, 0, NFTABLES);
    [begin.seal(1), deletion.seal(2), end.seal(3)].concat()
}

/// `struct ifinfomsg` with only the index.
fn delete_link(index: u32) -> Vec<u8> {
    let mut message = Message::new(RTM_DELLINK, flag::ACK);
    message.space(16)[4..8].copy_from_slice(&index.to_ne_bytes());
    message.seal(1).to_vec()
}
