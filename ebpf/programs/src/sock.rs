// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The node's own sockets: when a socket connects or sends to a published port on an address of the node,
//! 127/8 or `::1`, the destination is replaced by the pod's address, so that no packet needs a translation.
//!
//! The hooks run for every process in the cgroup to which they are attached, in every network namespace. Only
//! sockets of the node's own namespace are translated.

use aya_ebpf::bindings::{BPF_ANY, bpf_sock, bpf_sock_addr, bpf_sock_tuple};
use aya_ebpf::helpers::{bpf_get_netns_cookie, bpf_get_socket_cookie, bpf_sk_lookup_udp, bpf_sk_release};
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use slipway_ebpf_abi::{
    Addr4, Addr6, Counter, FlowKey, IPPROTO_TCP, IPPROTO_UDP, NOT_LOOPBACK, Port, PortKey, PortTarget,
    SocketKey, SocketOrigin,
};

use crate::config::{config, count, store_netns_cookie};
use crate::family::Family;
use crate::flow::is_pod;
use crate::maps::{LOCALS4, LOCALS6, PORTS4, PORTS6, SOCKETS4, SOCKETS6};
use crate::memory::clear;
use crate::v4::V4;
use crate::v6::V6;

/// The call proceeds, with the addresses in the context.
const PROCEED: i32 = 1;

/// Third word of the prefix `::ffff:0:0/96`: an IPv4 address of an IPv6 socket.
const MAPPED: u32 = 0x0000_ffff_u32.to_be();

/// `::1`.
const LOOPBACK6: Addr6 = Addr6([0, 0, 0, 1_u32.to_be()]);

/// The hook that runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hook {
    /// The socket connects.
    Connect,
    /// The socket sends a message without being connected.
    Send,
}

/// The context: socket and address of the call.
#[derive(Clone, Copy)]
struct Call(*mut bpf_sock_addr);

/// Reads a word of the context: the verifier accepts only whole words at fixed offsets.
macro_rules! word {
    ($call:expr, $($field:tt)+) => {
        // SAFETY: the kernel passes a valid context.
        unsafe { core::ptr::read_volatile(&raw const (*$call.0).$($field)+) }
    };
}

/// Writes a word of the context. `black_box` hides the context from the compiler, not a field's address that
/// was computed before: the verifier accepts no pointer into the context.
macro_rules! set {
    ($call:expr, $value:expr, $($field:tt)+) => {
        // SAFETY: as in `word`; the kernel reads the address from these fields after the program.
        unsafe { core::ptr::write_volatile(&raw mut (*core::hint::black_box($call.0)).$($field)+, $value) }
    };
}

impl Call {
    /// TCP or UDP, if the socket is in the node's namespace.
    #[inline(always)]
    fn protocol(self) -> Option<u8> {
        // SAFETY: the context is valid.
        let cookie = unsafe { bpf_get_netns_cookie(self.0.cast()) };
        let config = config()?;
        if config.netns_cookie != cookie {
            if config.probe_socket != 0 && self.cookie() == split(config.probe_socket) {
                store_netns_cookie(cookie);
            }
            return None;
        }
        match word!(self, protocol) {
            tcp if tcp == u32::from(IPPROTO_TCP) => Some(IPPROTO_TCP),
            udp if udp == u32::from(IPPROTO_UDP) => Some(IPPROTO_UDP),
            _ => None,
        }
    }

    #[inline(always)]
    fn cookie(self) -> [u32; 2] {
        // SAFETY: the context is valid.
        split(unsafe { bpf_get_socket_cookie(self.0.cast()) })
    }

    /// The socket, whose fields can be read.
    #[inline(always)]
    fn socket(self) -> Option<*const bpf_sock> {
        let socket = word!(self, __bindgen_anon_1.sk);
        if socket.is_null() { None } else { Some(socket.cast_const()) }
    }

    #[inline(always)]
    fn port(self) -> Port {
        Port(word!(self, user_port) as u16)
    }

    #[inline(always)]
    fn set_port(self, port: Port) {
        set!(self, u32::from(port.0), user_port);
    }

    #[inline(always)]
    fn address4(self) -> Addr4 {
        Addr4(word!(self, user_ip4))
    }

    #[inline(always)]
    fn address6(self) -> Addr6 {
        Addr6([
            word!(self, user_ip6[0]),
            word!(self, user_ip6[1]),
            word!(self, user_ip6[2]),
            word!(self, user_ip6[3]),
        ])
    }

    #[inline(always)]
    fn set_address6(self, address: Addr6) {
        let [a, b, c, d] = address.0;
        set!(self, a, user_ip6[0]);
        set!(self, b, user_ip6[1]);
        set!(self, c, user_ip6[2]);
        set!(self, d, user_ip6[3]);
    }

    /// The IPv4 address in an IPv4-mapped address.
    #[inline(always)]
    fn mapped(self) -> Option<Addr4> {
        let [a, b, c, d] = self.address6().0;
        if a | b == 0 && c == MAPPED { Some(Addr4(d)) } else { None }
    }

    /// True if the socket is bound to an interface or to a loopback address: packets with that source reach
    /// no pod, so the socket is left to nftables.
    #[inline(always)]
    fn is_bound4(self, source: Addr4) -> bool {
        self.own_interface() != 0 || is_loopback4(source)
    }

    #[inline(always)]
    fn is_bound6(self, source: Addr6) -> bool {
        self.own_interface() != 0 || is_same(source, LOOPBACK6)
    }

    /// True if a socket of the node would receive the message. It is then a reply, or a new flow to what the
    /// published port hides; only conntrack can distinguish them. A `source` of zero lets the route choose
    /// the source, which is the destination itself.
    #[inline(always)]
    fn is_for_socket4(self, source: Addr4, destination: Addr4) -> bool {
        let source = if source.0 == 0 { destination } else { source };
        let ends = FlowKey {
            source,
            destination,
            source_port: self.own_port(),
            destination_port: self.port(),
            ..FlowKey::default()
        };
        self.has_socket(V4::socket_tuple(&ends), V4::TUPLE)
    }

    #[inline(always)]
    fn is_for_socket6(self, source: Addr6, destination: Addr6) -> bool {
        let source = if is_same(source, Addr6([0; 4])) { destination } else { source };
        let ends = FlowKey {
            source,
            destination,
            source_port: self.own_port(),
            destination_port: self.port(),
            ..FlowKey::default()
        };
        self.has_socket(V6::socket_tuple(&ends), V6::TUPLE)
    }

    #[inline(always)]
    fn has_socket(self, mut tuple: bpf_sock_tuple, size: u32) -> bool {
        /// `BPF_F_CURRENT_NETNS`: the socket's namespace.
        const CURRENT_NETNS: u64 = -1_i64 as u64;
        // SAFETY: the tuple lives until the helper has returned; a socket found is released.
        unsafe {
            let socket = bpf_sk_lookup_udp(self.0.cast(), &raw mut tuple, size, CURRENT_NETNS, 0);
            if socket.is_null() {
                return false;
            }
            bpf_sk_release(socket.cast());
        }
        true
    }

    #[inline(always)]
    fn own_port(self) -> Port {
        let Some(socket) = self.socket() else { return Port(0) };
        // SAFETY: the verifier has seen the socket compared with null. The port is in host byte order.
        Port::new(unsafe { core::ptr::read_volatile(&raw const (*socket).src_port) } as u16)
    }

    /// The address to which the socket is bound, or zero.
    #[inline(always)]
    fn own_address4(self) -> Addr4 {
        let Some(socket) = self.socket() else { return Addr4(0) };
        // SAFETY: as in `own_port`.
        Addr4(unsafe { core::ptr::read_volatile(&raw const (*socket).src_ip4) })
    }

    #[inline(always)]
    fn own_address6(self) -> Addr6 {
        let Some(socket) = self.socket() else { return Addr6([0; 4]) };
        // SAFETY: as in `own_port`.
        unsafe {
            Addr6([
                core::ptr::read_volatile(&raw const (*socket).src_ip6[0]),
                core::ptr::read_volatile(&raw const (*socket).src_ip6[1]),
                core::ptr::read_volatile(&raw const (*socket).src_ip6[2]),
                core::ptr::read_volatile(&raw const (*socket).src_ip6[3]),
            ])
        }
    }

    /// Index of the interface to which the socket is bound; 0: none.
    #[inline(always)]
    fn own_interface(self) -> u32 {
        // Without a socket the call is left alone, as if the socket was bound.
        let Some(socket) = self.socket() else { return 1 };
        // SAFETY: as in `own_port`.
        unsafe { core::ptr::read_volatile(&raw const (*socket).bound_dev_if) }
    }

    #[inline(always)]
    fn store_origin4(self, protocol: u8, target: &PortTarget<Addr4>, original: Addr4) {
        let key = SocketKey {
            cookie: self.cookie(),
            address: target.address,
            port: target.port,
            protocol: u16::from(protocol),
        };
        // If the map is full, the socket sees the pod's address as its peer: it works, but looks different.
        let _ = SOCKETS4.insert(
            key,
            SocketOrigin { address: original, port: self.port(), pad: 0 },
            u64::from(BPF_ANY),
        );
    }

    #[inline(always)]
    fn store_origin6(self, protocol: u8, target: &PortTarget<Addr6>, original: Addr6) {
        let key = SocketKey {
            cookie: self.cookie(),
            address: target.address,
            port: target.port,
            protocol: u16::from(protocol),
        };
        // As in `store_origin4`.
        let _ = SOCKETS6.insert(
            key,
            SocketOrigin { address: original, port: self.port(), pad: 0 },
            u64::from(BPF_ANY),
        );
    }

    #[inline(always)]
    fn origin4(self, address: Addr4) -> Option<SocketOrigin<Addr4>> {
        let protocol = u16::from(self.protocol()?);
        let key = SocketKey { cookie: self.cookie(), address, port: self.port(), protocol };
        // SAFETY: copied at once.
        unsafe { SOCKETS4.get(key) }.copied()
    }

    #[inline(always)]
    fn origin6(self, address: Addr6) -> Option<SocketOrigin<Addr6>> {
        let protocol = u16::from(self.protocol()?);
        let key = SocketKey { cookie: self.cookie(), address, port: self.port(), protocol };
        // SAFETY: copied at once.
        unsafe { SOCKETS6.get(key) }.copied()
    }
}

#[inline(always)]
fn split(cookie: u64) -> [u32; 2] {
    [cookie as u32, (cookie >> 32) as u32]
}

#[inline(always)]
fn is_loopback4(address: Addr4) -> bool {
    address.0.to_ne_bytes()[0] == 127
}

#[inline(always)]
fn is_same(one: Addr6, other: Addr6) -> bool {
    let ([a, b, c, d], [e, f, g, h]) = (one.0, other.0);
    (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h) == 0
}

/// The target of a port of the node, if it is published: first with this address, then for all addresses.
#[inline(always)]
fn target4(address: Addr4, port: Port, protocol: u8) -> Option<PortTarget<Addr4>> {
    // SAFETY: the value is not read.
    if !is_loopback4(address) && unsafe { LOCALS4.get(address) }.is_none() {
        return None;
    }
    let mut key = PortKey { address, port, protocol, pad: 0 };
    // SAFETY: copied at once; user space writes whole elements.
    let mut target = unsafe { PORTS4.get(&key) }.copied();
    if target.is_none() {
        key.address = Addr4(0);
        // SAFETY: as above.
        target = unsafe { PORTS4.get(&key) }.copied();
        if is_loopback4(address) {
            target = target.filter(|target| target.flags & NOT_LOOPBACK == 0);
        }
    }
    target.filter(|target| is_pod(target.pod, target.generation))
}

#[inline(always)]
fn target6(address: Addr6, port: Port, protocol: u8) -> Option<PortTarget<Addr6>> {
    // SAFETY: the value is not read.
    if !is_same(address, LOOPBACK6) && unsafe { LOCALS6.get(address) }.is_none() {
        return None;
    }
    let mut key = PortKey { address, port, protocol, pad: 0 };
    // SAFETY: copied at once; user space writes whole elements.
    let mut target = unsafe { PORTS6.get(&key) }.copied();
    if target.is_none() {
        clear(&raw mut key.address);
        // SAFETY: as above.
        target = unsafe { PORTS6.get(&key) }.copied();
        if is_same(address, LOOPBACK6) {
            target = target.filter(|target| target.flags & NOT_LOOPBACK == 0);
        }
    }
    target.filter(|target| is_pod(target.pod, target.generation))
}

/// Translates the destination of a socket that connects or sends to an IPv4 address. `source`: that of the
/// message or of the socket; zero if neither has one.
///
/// A connected UDP socket may outlive the pod, and the BPF programs do not see what it sends then: it is left
/// to nftables, which translates each packet to the current pod.
#[inline(always)]
fn translate4(call: Call, hook: Hook, source: Addr4) -> Option<()> {
    let protocol = call.protocol()?;
    if protocol == IPPROTO_UDP && hook == Hook::Connect {
        return None;
    }
    let address = call.address4();
    let target = target4(address, call.port(), protocol)?;
    if call.is_bound4(source) || protocol == IPPROTO_UDP && call.is_for_socket4(source, address) {
        return None;
    }
    call.store_origin4(protocol, &target, address);
    set!(call, target.address.0, user_ip4);
    call.set_port(target.port);
    count(Counter::Sockets);
    Some(())
}

/// Translates an IPv4 address on an IPv6 socket.
#[inline(always)]
fn translate_mapped(call: Call, hook: Hook, address: Addr4, source: Addr6) -> Option<()> {
    let protocol = call.protocol()?;
    if protocol == IPPROTO_UDP && hook == Hook::Connect {
        return None;
    }
    let target = target4(address, call.port(), protocol)?;
    // A source that is not IPv4-mapped is unspecified.
    let source = Addr4(source.0[3]);
    if call.is_bound4(source) || protocol == IPPROTO_UDP && call.is_for_socket4(source, address) {
        return None;
    }
    call.store_origin4(protocol, &target, address);
    set!(call, target.address.0, user_ip6[3]);
    call.set_port(target.port);
    count(Counter::Sockets);
    Some(())
}

/// Translates an IPv6 address. A connected UDP socket is translated for `::1` only, where nftables cannot
/// always serve it.
#[inline(always)]
fn translate6(call: Call, hook: Hook, source: Addr6) -> Option<()> {
    let protocol = call.protocol()?;
    let address = call.address6();
    if protocol == IPPROTO_UDP && hook == Hook::Connect && !is_same(address, LOOPBACK6) {
        return None;
    }
    let target = target6(address, call.port(), protocol)?;
    if call.is_bound6(source) || protocol == IPPROTO_UDP && call.is_for_socket6(source, address) {
        return None;
    }
    call.store_origin6(protocol, &target, address);
    call.set_address6(target.address);
    call.set_port(target.port);
    count(Counter::Sockets);
    Some(())
}

/// Replaces the pod's IPv4 address by the original destination, as the peer that the socket sees.
#[inline(always)]
fn restore_peer4(call: Call) -> Option<()> {
    let origin = call.origin4(call.address4())?;
    set!(call, origin.address.0, user_ip4);
    call.set_port(origin.port);
    Some(())
}

/// The same for an IPv6 socket.
#[inline(always)]
fn restore_peer6(call: Call) -> Option<()> {
    if let Some(address) = call.mapped() {
        let origin = call.origin4(address)?;
        set!(call, origin.address.0, user_ip6[3]);
        call.set_port(origin.port);
        return Some(());
    }
    let origin = call.origin6(call.address6())?;
    call.set_address6(origin.address);
    call.set_port(origin.port);
    Some(())
}

/// A socket connects to an IPv4 address.
#[cgroup_sock_addr(connect4)]
pub(crate) fn connect4(ctx: SockAddrContext) -> i32 {
    let call = Call(ctx.sock_addr);
    let _ = translate4(call, Hook::Connect, call.own_address4());
    PROCEED
}

/// A socket connects to an IPv6 address.
#[cgroup_sock_addr(connect6)]
pub(crate) fn connect6(ctx: SockAddrContext) -> i32 {
    let call = Call(ctx.sock_addr);
    let source = call.own_address6();
    let _ = match call.mapped() {
        Some(address) => translate_mapped(call, Hook::Connect, address, source),
        None => translate6(call, Hook::Connect, source),
    };
    PROCEED
}

/// A socket that is not connected sends to an IPv4 address.
#[cgroup_sock_addr(sendmsg4)]
pub(crate) fn sendmsg4(ctx: SockAddrContext) -> i32 {
    let call = Call(ctx.sock_addr);
    // The source that the caller passes with the message, or the socket's own.
    let _ = translate4(call, Hook::Send, Addr4(word!(call, msg_src_ip4)));
    PROCEED
}

/// A socket that is not connected sends to an IPv6 address.
#[cgroup_sock_addr(sendmsg6)]
pub(crate) fn sendmsg6(ctx: SockAddrContext) -> i32 {
    let call = Call(ctx.sock_addr);
    let source = Addr6([
        word!(call, msg_src_ip6[0]),
        word!(call, msg_src_ip6[1]),
        word!(call, msg_src_ip6[2]),
        word!(call, msg_src_ip6[3]),
    ]);
    let _ = match call.mapped() {
        Some(address) => translate_mapped(call, Hook::Send, address, source),
        None => translate6(call, Hook::Send, source),
    };
    PROCEED
}

/// A socket has received from an IPv4 address.
#[cgroup_sock_addr(recvmsg4)]
pub(crate) fn recvmsg4(ctx: SockAddrContext) -> i32 {
    let _ = restore_peer4(Call(ctx.sock_addr));
    PROCEED
}

/// A socket has received from an IPv6 address.
#[cgroup_sock_addr(recvmsg6)]
pub(crate) fn recvmsg6(ctx: SockAddrContext) -> i32 {
    let _ = restore_peer6(Call(ctx.sock_addr));
    PROCEED
}

/// A socket asks for its peer's IPv4 address.
#[cgroup_sock_addr(getpeername4)]
pub(crate) fn getpeername4(ctx: SockAddrContext) -> i32 {
    let _ = restore_peer4(Call(ctx.sock_addr));
    PROCEED
}

/// A socket asks for its peer's IPv6 address.
#[cgroup_sock_addr(getpeername6)]
pub(crate) fn getpeername6(ctx: SockAddrContext) -> i32 {
    let _ = restore_peer6(Call(ctx.sock_addr));
    PROCEED
}
