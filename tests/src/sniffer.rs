// SPDX-License-Identifier: GPL-2.0-or-later

//! The frames that pass through a space.

use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::space::Space;

/// The size of the buffer for frames that have not been read yet, in bytes.
const BUFFER: usize = 8 << 20;

/// Records the Ethernet frames of all links of a space.
#[derive(Debug)]
pub struct Sniffer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Frame>>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame(pub Vec<u8>);

impl Sniffer {
    pub fn new(space: &Space) -> Self {
        let socket = space.run(|| {
            socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
        });
        let socket = socket.expect("a packet socket (the network tests need root)");
        setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).expect("a larger buffer");
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(20)).expect("a time limit");
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut frames, mut buffer) = (Vec::new(), vec![0; 128 << 10]);
            loop {
                // The flag is read before recv(2), so that frames which arrived before the stop are read before the
                // thread ends.
                let stops = seen.load(Ordering::Relaxed);
                match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                    Ok(length) => frames.push(Frame(buffer[..length].to_vec())),
                    Err(Errno::EAGAIN) if stops => return frames,
                    Err(Errno::EAGAIN | Errno::EINTR) => {}
                    Err(errno) => panic!("read frames: {errno}"),
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }

    /// Ends the recording and returns its frames.
    pub fn frames(mut self) -> Vec<Frame> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(|thread| thread.join().expect("no panic")).unwrap_or_default()
    }
}

impl Drop for Sniffer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Frame {
    pub fn contains(&self, bytes: &[u8]) -> bool {
        self.0.windows(bytes.len()).any(|window| window == bytes)
    }

    /// The source and the destination of an IP packet.
    pub fn addresses(&self) -> Option<[IpAddr; 2]> {
        let bytes = |at: usize, length: usize| self.0.get(at..at + length);
        let v4 = |at| Some(IpAddr::from(<[u8; 4]>::try_from(bytes(at, 4)?).ok()?));
        let v6 = |at| Some(IpAddr::from(<[u8; 16]>::try_from(bytes(at, 16)?).ok()?));
        match bytes(12, 2)? {
            [0x08, 0x00] => Some([v4(26)?, v4(30)?]),
            [0x86, 0xdd] => Some([v6(22)?, v6(38)?]),
            _ => None,
        }
    }

    /// True for an IPv4 packet without options or an IPv6 packet without extension headers that holds a UDP datagram to
    /// this port.
    pub fn is_udp_to(&self, port: u16) -> bool {
        let at = |at: usize| self.0.get(at).copied();
        let header = match (at(12), at(13)) {
            (Some(0x08), Some(0x00)) if at(23) == Some(17) => 34,
            (Some(0x86), Some(0xdd)) if at(20) == Some(17) => 54,
            _ => return false,
        };
        self.0.get(header + 2..header + 4) == Some(&port.to_be_bytes()[..])
    }
}
