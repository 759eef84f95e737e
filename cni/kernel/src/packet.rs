// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sends and receives IPv4 packets on a link that has no address yet, and sends ARP packets to its neighbours.
#![allow(unsafe_code, reason = "packet sockets: nix has no way to make their addresses")]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::mac::Mac;

/// A socket for a link's IPv4 packets, which receives only UDP packets to one port.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    index: i32,
}

/// EtherTypes in network byte order (`linux/if_ether.h`).
const IPV4: u16 = 0x0800_u16.to_be();
const ARP: u16 = 0x0806_u16.to_be();
/// Interval at which the send queue is checked.
const SEND_POLL: Duration = Duration::from_millis(1);

impl PacketSocket {
    /// Opens a socket in the calling thread's namespace that receives UDP packets to `port` on link `index`.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW, ENODEV if there is no such link.
    pub fn open(index: u32, port: u16) -> Result<Self, Errno> {
        let index = i32::try_from(index).map_err(|_| Errno::ENODEV)?;
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers; a negative result is handled. Protocol 0: nothing arrives before bind(2).
        let raw = Errno::result(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the descriptor was just made and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        filter(&fd, port)?;
        let socket = Self { fd, index };
        let address = socket.address(IPV4, Mac([0; 6]));
        let length = size(&address);
        // SAFETY: `address` is a sockaddr_ll of that length, and lives through the call.
        Errno::result(unsafe { libc::bind(socket.fd.as_raw_fd(), (&raw const address).cast(), length) })?;
        Ok(socket)
    }

    /// Sends an IPv4 packet, which begins with the IPv4 header, to a neighbour.
    ///
    /// # Errors
    /// ENETDOWN while the link is down.
    pub fn send(&self, packet: &[u8], to: Mac) -> Result<(), Errno> {
        self.send_as(IPV4, packet, to)
    }

    /// Sends an ARP packet to a neighbour.
    ///
    /// # Errors
    /// ENETDOWN while the link is down.
    pub fn send_arp(&self, packet: &[u8], to: Mac) -> Result<(), Errno> {
        self.send_as(ARP, packet, to)
    }

    /// Waits until all packets that were sent have left the host, or have been delivered on it. Returns false if
    /// `until` passes first. An ipvlan link delivers broadcasts later, and if the link is deleted before that, they
    /// are lost.
    ///
    /// # Errors
    /// The error of the ioctl `TIOCOUTQ`.
    pub fn wait_until_sent(&self, until: Instant) -> Result<bool, Errno> {
        loop {
            let mut bytes: libc::c_int = 0;
            // SAFETY: the kernel writes one int to `bytes`, which lives through the call.
            let queued = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
            Errno::result(queued)?;
            if bytes == 0 {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            std::thread::sleep(SEND_POLL);
        }
    }

    fn send_as(&self, protocol: u16, packet: &[u8], to: Mac) -> Result<(), Errno> {
        let address = self.address(protocol, to);
        // SAFETY: `packet` and `address` live through the call, and have the lengths passed.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                (&raw const address).cast(),
                size(&address),
            )
        };
        Errno::result(sent).map(drop)
    }

    /// Waits for an IPv4 packet. Returns none if `until` passes first. A packet longer than `buffer` is cut.
    ///
    /// # Errors
    /// ENETDOWN if the link is deleted or set down.
    pub fn receive<'b>(&self, buffer: &'b mut [u8], until: Instant) -> Result<Option<&'b [u8]>, Errno> {
        loop {
            let left = until.saturating_duration_since(Instant::now()).min(Duration::from_secs(60));
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            match poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) if Instant::now() >= until => return Ok(None),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
            // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`.
            let read =
                unsafe { libc::recv(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            match Errno::result(read) {
                Ok(length) => return Ok(buffer.get(..usize::try_from(length).unwrap_or(0))),
                Err(Errno::EAGAIN | Errno::EINTR) if Instant::now() < until => {}
                Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn address(&self, protocol: u16, mac: Mac) -> libc::sockaddr_ll {
        let mut bytes = [0_u8; 8];
        bytes[..6].copy_from_slice(&mac.0);
        libc::sockaddr_ll {
            sll_family: u16::try_from(libc::AF_PACKET).unwrap_or_default(),
            sll_protocol: protocol,
            sll_ifindex: self.index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 6,
            sll_addr: bytes,
        }
    }
}

fn size<T>(value: &T) -> libc::socklen_t {
    libc::socklen_t::try_from(size_of_val(value)).unwrap_or_default()
}

/// Accepts UDP packets to one port, but no fragments except the first (`linux/filter.h`; offsets count from
/// the IPv4 header).
fn filter(fd: &OwnedFd, port: u16) -> Result<(), Errno> {
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt,
        jf,
        k,
    };
    let mut program = [
        // Compares the protocol; 17 is UDP.
        op(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 9),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 6, 17),
        // Lets only first fragments pass.
        op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 0, 6),
        op(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 4, 0, 0x1fff),
        // Compares the destination port, which follows the IP header. The length of that header is in its first byte.
        op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0),
        op(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 0, 0, 2),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, u32::from(port)),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: 9, filter: program.as_mut_ptr() };
    // SAFETY: the program has nine instructions, and lives through the call, which copies it.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size(&program),
        )
    };
    Errno::result(set).map(drop)
}
