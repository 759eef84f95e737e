// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The packet buffer, and the helpers for it.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::{__sk_buff, BPF_F_INGRESS, TC_ACT_SHOT, TC_ACT_UNSPEC, bpf_xfrm_state};
use aya_ebpf::helpers::{
    bpf_clone_redirect, bpf_ktime_get_ns, bpf_l4_csum_replace, bpf_redirect, bpf_redirect_peer,
    bpf_skb_change_head, bpf_skb_change_type, bpf_skb_get_xfrm_state, bpf_skb_load_bytes,
    bpf_skb_store_bytes,
};
use slipway_ebpf_abi::TICK_SHIFT;

/// Length of an Ethernet header.
pub(crate) const ETHERNET: u32 = 14;
/// EtherType of IPv4, as `__sk_buff::protocol` has it: in network byte order.
pub(crate) const IPV4: u32 = 0x0800_u16.to_be() as u32;
/// EtherType of IPv6.
pub(crate) const IPV6: u32 = 0x86dd_u16.to_be() as u32;

/// `PACKET_HOST` (include/uapi/linux/if_packet.h): addressed to this host.
const PACKET_HOST: u32 = 0;
/// `PACKET_OTHERHOST`: addressed to another host, as are the frames that a pod sends to the bridge of its
/// link.
const PACKET_OTHERHOST: u32 = 3;

/// Return values of tc programs.
pub(crate) struct Act;

impl Act {
    pub(crate) const DROP: i32 = TC_ACT_SHOT as i32;
    /// Leaves the packet to the filters that follow, and to the kernel's stack. With a final verdict such as
    /// TC_ACT_OK, the kernel would set `tc_index` to the class.
    pub(crate) const NEXT: i32 = TC_ACT_UNSPEC;
}

#[derive(Clone, Copy)]
pub(crate) struct Skb(pub *mut __sk_buff);

/// Reads a field of the context. The access is volatile, because the compiler could otherwise combine the
/// accesses to neighbouring fields into a wider one, which the verifier refuses.
macro_rules! field {
    ($skb:expr, $field:ident) => {
        // SAFETY: the kernel passes a valid context.
        unsafe { core::ptr::read_volatile(&raw const (*$skb.0).$field) }
    };
}

/// Writes a field of the context. The access is volatile, because the verifier also refuses a write to a part
/// of a field.
macro_rules! set_field {
    ($skb:expr, $field:ident, $value:expr) => {
        // SAFETY: the kernel passes a valid context; the field is writable at tc.
        unsafe { core::ptr::write_volatile(&raw mut (*$skb.0).$field, $value) }
    };
}

impl Skb {
    /// The index of the packet's record, or 0 if it has none. It is in `tc_index`, which the kernel's stack
    /// keeps.
    #[inline(always)]
    pub(crate) fn record(self) -> u32 {
        field!(self, tc_index) & 0xffff
    }

    #[inline(always)]
    pub(crate) fn set_record(self, index: u32) {
        set_field!(self, tc_index, index);
    }

    #[inline(always)]
    pub(crate) fn mark(self) -> u32 {
        field!(self, mark)
    }

    #[inline(always)]
    pub(crate) fn priority(self) -> u32 {
        field!(self, priority)
    }

    #[inline(always)]
    pub(crate) fn set_mark(self, mark: u32, priority: u32) {
        set_field!(self, mark, mark);
        set_field!(self, priority, priority);
    }

    /// True if the frame is addressed to a single host, which may be another one.
    #[inline(always)]
    pub(crate) fn is_unicast(self) -> bool {
        let kind = field!(self, pkt_type);
        kind == PACKET_HOST || kind == PACKET_OTHERHOST
    }

    /// Sends the packet straight into a pod, even if its frame was addressed to another host.
    #[inline(always)]
    pub(crate) fn into_pod(self, interface: u32) -> i32 {
        if !self.is_to_host() {
            // SAFETY: the context is valid. The helper fails for other kinds of frames, but these are not
            // carried.
            let _ = unsafe { bpf_skb_change_type(self.0, PACKET_HOST) };
        }
        // SAFETY: the helper checks the interface after the program has returned.
        unsafe { bpf_redirect_peer(interface, 0) as i32 }
    }

    /// Makes a clone of the packet arrive once more at the packet's interface.
    #[inline(always)]
    pub(crate) fn clone_to_ingress(self) -> bool {
        // SAFETY: the context is valid.
        unsafe { bpf_clone_redirect(self.0, self.interface(), u64::from(BPF_F_INGRESS)) == 0 }
    }

    /// Sends the packet, which has its link-layer header, through an interface.
    #[inline(always)]
    pub(crate) fn send_by(self, interface: u32) -> i32 {
        // SAFETY: the helper checks the interface after the program has returned.
        unsafe { bpf_redirect(interface, 0) as i32 }
    }

    /// True if the frame has a VLAN tag that is no longer in the data, because the device or the kernel has
    /// removed it from there.
    #[inline(always)]
    pub(crate) fn has_tag(self) -> bool {
        field!(self, vlan_present) != 0
    }

    /// True if the frame is addressed to this host.
    #[inline(always)]
    pub(crate) fn is_to_host(self) -> bool {
        field!(self, pkt_type) == PACKET_HOST
    }

    /// True if the packet came through IPsec.
    #[inline(always)]
    pub(crate) fn is_decrypted(self) -> bool {
        let mut state = MaybeUninit::<bpf_xfrm_state>::uninit();
        // SAFETY: the helper fills all of `state`, even if it fails.
        unsafe { bpf_skb_get_xfrm_state(self.0, 0, state.as_mut_ptr(), size_of_val(&state) as u32, 0) == 0 }
    }

    /// The EtherType, in network byte order.
    #[inline(always)]
    pub(crate) fn protocol(self) -> u32 {
        field!(self, protocol)
    }

    /// The length, including the link-layer header.
    #[inline(always)]
    pub(crate) fn len(self) -> u32 {
        field!(self, len)
    }

    #[inline(always)]
    pub(crate) fn interface(self) -> u32 {
        field!(self, ifindex)
    }

    /// The payload length of each segment, if the packet was merged by GRO or will be segmented; otherwise 0.
    #[inline(always)]
    pub(crate) fn segment_size(self) -> u32 {
        field!(self, gso_size)
    }

    /// The number of packets that this one was, or will be, on the wire.
    #[inline(always)]
    pub(crate) fn segments(self) -> u64 {
        let segments = field!(self, gso_segs);
        if segments == 0 { 1 } else { u64::from(segments) }
    }

    /// Copies a header out of the packet. Returns none if the packet is too short.
    #[inline(always)]
    pub(crate) fn load<T: Copy>(self, offset: u32) -> Option<T> {
        let mut header = MaybeUninit::<T>::uninit();
        // SAFETY: the helper fills all of `header` or fails; the headers are made of integers.
        unsafe {
            let failed =
                bpf_skb_load_bytes(self.0.cast(), offset, header.as_mut_ptr().cast(), size_of::<T>() as u32);
            if failed == 0 { Some(header.assume_init()) } else { None }
        }
    }

    /// Writes a header into the packet. `flags` is 0, or BPF_F_RECOMPUTE_CSUM if no checksum in the packet
    /// compensates for the change. Then the helper also changes the sum over the packet that the device has
    /// computed.
    #[inline(always)]
    pub(crate) fn store<T: Copy>(self, offset: u32, header: &T, flags: u64) -> bool {
        let from = core::ptr::from_ref(header);
        // SAFETY: the helper reads `header` only.
        unsafe { bpf_skb_store_bytes(self.0.cast(), offset, from.cast(), size_of::<T>() as u32, flags) == 0 }
    }

    /// Adds `difference` to the TCP or UDP checksum at `offset`.
    #[inline(always)]
    pub(crate) fn update_checksum(self, offset: u32, difference: u32, flags: u64) -> bool {
        // SAFETY: the helper checks the offset.
        unsafe { bpf_l4_csum_replace(self.0, offset, 0, u64::from(difference), flags) == 0 }
    }

    /// Adds an Ethernet header to a packet that arrived without one. This sets only the EtherType; the caller
    /// writes the addresses.
    #[inline(always)]
    pub(crate) fn add_ethernet(self) -> bool {
        let protocol = self.protocol() as u16;
        // SAFETY: the context is valid.
        let failed = unsafe { bpf_skb_change_head(self.0, ETHERNET, 0) };
        failed == 0 && self.store(12, &protocol, 0)
    }
}

/// The time in [ticks](slipway_ebpf_abi::TICK_SHIFT).
#[inline(always)]
pub(crate) fn now() -> u32 {
    // SAFETY: the helper takes no arguments.
    (unsafe { bpf_ktime_get_ns() } >> TICK_SHIFT) as u32
}
