// SPDX-License-Identifier: GPL-2.0-or-later

//! Packets assembled byte by byte, with their checksums.

use std::net::IpAddr;

pub(crate) const SYN: u8 = 2;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The Internet checksum (RFC 1071): 16-bit words in network order, end-around carry, complement.
fn checksum(parts: &[&[u8]]) -> u16 {
    let all: Vec<u8> = parts.concat();
    let mut sum = 0u64;
    for pair in all.chunks(2) {
        sum += (u64::from(pair[0]) << 8) | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

/// The addresses of an IP header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ip {
    source: IpAddr,
    destination: IpAddr,
}

impl Ip {
    pub(crate) fn new(source: IpAddr, destination: IpAddr) -> Self {
        Self { source, destination }
    }

    /// The packet with `content` as the payload of IP, without a link layer.
    fn packet(self, protocol: u8, content: &[u8]) -> Vec<u8> {
        let length = |header: usize| u16::try_from(header + content.len()).unwrap().to_be_bytes();
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header =
                    [&[0x45, 0][..], &length(20), &[0x12, 0x34, 0x40, 0, 64, protocol, 0, 0]].concat();
                header.extend(source.octets());
                header.extend(destination.octets());
                let sum = checksum(&[&header]).to_be_bytes();
                header[10..12].copy_from_slice(&sum);
                [header, content.to_vec()].concat()
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut header = [&[0x60, 0, 0, 0][..], &length(0), &[protocol, 64]].concat();
                header.extend(source.octets());
                header.extend(destination.octets());
                [header, content.to_vec()].concat()
            }
            _ => panic!("two families"),
        }
    }

    /// Fills the checksum in at `offset`. The sum includes the pseudo-header (RFC 9293 section 3.1, RFC 8200 section
    /// 8.1).
    fn seal(self, protocol: u8, offset: usize, mut content: Vec<u8>) -> Vec<u8> {
        let octets = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        let covered = [&octets(self.source)[..], &octets(self.destination), &[0, protocol], &length].concat();
        let sum = checksum(&[&covered, &content]).to_be_bytes();
        content[offset..offset + 2].copy_from_slice(&sum);
        content
    }

    pub(crate) fn tcp(self, ports: (u16, u16), flags: u8) -> Vec<u8> {
        let mut segment = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
        segment.extend([0, 0, 0, 7, 0, 0, 0, 9, 5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend(b"tcp payload");
        self.packet(TCP, &self.seal(TCP, 16, segment))
    }

    pub(crate) fn udp(self, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
        let mut datagram = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
        datagram.extend(u16::try_from(8 + payload.len()).unwrap().to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(payload);
        self.packet(UDP, &self.seal(UDP, 6, datagram))
    }
}
