// SPDX-License-Identifier: GPL-2.0-or-later

//! The other end of a tap, a program that replies for an address.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use cni_kernel::tap::{self, Queues};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use slipway_tests::{Space, within};

/// The program's own MAC address.
const ADDRESS: [u8; 6] = [0x02, 0, 0, 0, 0, 0xaa];
const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];

/// An open queue of a tap.
pub(crate) struct Program {
    file: File,
}

impl Program {
    /// Opens the tap, as a virtual machine monitor does.
    pub(crate) fn attach(space: &Space, name: &str, queues: Queues) -> Self {
        let file = space.run(|| tap::open(name, queues)).expect("open the tap");
        fcntl(file.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("not to block");
        Self { file }
    }

    /// Replies to requests for the address until after the first echo reply. Returns the source of that request.
    pub(crate) fn answer_for(&self, own: Ipv4Addr) -> Ipv4Addr {
        let end = Instant::now() + within(Duration::from_secs(20));
        let mut frame = [0_u8; 2048];
        while Instant::now() < end {
            let length = match (&self.file).read(&mut frame) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
                Err(error) => panic!("read from the tap: {error}"),
            };
            let frame = &frame[..length];
            let (answer, from) = match frame[12..14].try_into().expect("two bytes") {
                ARP => (arp(frame, own), None),
                IPV4 => (echo(frame, own), frame[26..30].first_chunk().copied().map(Ipv4Addr::from)),
                _ => (None, None),
            };
            if let Some(answer) = answer {
                (&self.file).write_all(&answer).expect("write to the tap");
                if let Some(from) = from {
                    return from;
                }
            }
        }
        panic!("no request for an echo came from the container");
    }
}

/// The reply to an ARP request (RFC 826).
fn arp(frame: &[u8], own: Ipv4Addr) -> Option<Vec<u8>> {
    let request = frame.get(14..42)?;
    if request[6..8] != [0, 1] || request[24..28] != own.octets() {
        return None;
    }
    let mut answer =
        [&frame[6..12], &ADDRESS, &ARP, &request[..6], &[0, 2], &ADDRESS, &own.octets()].concat();
    answer.extend(&request[8..18]);
    Some(answer)
}

/// The reply to an echo request (RFC 792), in which type and checksum change.
fn echo(frame: &[u8], own: Ipv4Addr) -> Option<Vec<u8>> {
    const ICMP: u8 = 1;
    let header = 4 * usize::from(frame.get(14)? & 0x0f);
    let icmp = 14 + header;
    if *frame.get(23)? != ICMP || frame[30..34] != own.octets() || *frame.get(icmp)? != 8 {
        return None;
    }
    let mut answer = frame.to_vec();
    answer[..6].copy_from_slice(&frame[6..12]);
    answer[6..12].copy_from_slice(&ADDRESS);
    answer[26..30].copy_from_slice(&frame[30..34]);
    answer[30..34].copy_from_slice(&frame[26..30]);
    answer[icmp] = 0;
    let sum = u16::from_be_bytes([frame[icmp + 2], frame[icmp + 3]]);
    // The type's upper byte shrinks by 8, so the checksum grows by as much (RFC 1624).
    let (sum, carry) = sum.overflowing_add(8 << 8);
    answer[icmp + 2..icmp + 4].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
    Some(answer)
}
