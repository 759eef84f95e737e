// SPDX-License-Identifier: GPL-2.0-or-later

//! Builds and parses packets and their checksums from the RFCs alone, without code of the BPF programs.

use std::net::IpAddr;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;

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

/// The pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1).
fn pseudo(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    match (source, destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            [&s.octets()[..], &d.octets(), &[0, protocol], &u16::try_from(length).unwrap().to_be_bytes()]
                .concat()
        }
        (IpAddr::V6(s), IpAddr::V6(d)) => [
            &s.octets()[..],
            &d.octets(),
            &u32::try_from(length).unwrap().to_be_bytes(),
            &[0, 0, 0, protocol],
        ]
        .concat(),
        _ => panic!("two families"),
    }
}

/// The fields of an IP header.
#[derive(Clone, Debug)]
pub(crate) struct Ip {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) ttl: u8,
    /// IPv4 only.
    pub(crate) dont_fragment: bool,
    /// IPv4: options, in words of 4 bytes.
    pub(crate) options: Vec<u8>,
    /// IPv6: extension headers: kind and content, whose first two bytes (next header, length) are filled in.
    pub(crate) extensions: Vec<(u8, Vec<u8>)>,
    /// Identification, offset in bytes, true if more fragments follow.
    pub(crate) fragment: Option<(u32, u16, bool)>,
}

impl Ip {
    pub(crate) fn new(source: impl Into<IpAddr>, destination: impl Into<IpAddr>) -> Self {
        Self {
            source: source.into(),
            destination: destination.into(),
            ttl: 64,
            dont_fragment: true,
            options: Vec::new(),
            extensions: Vec::new(),
            fragment: None,
        }
    }

    pub(crate) fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    pub(crate) fn may_fragment(mut self) -> Self {
        self.dont_fragment = false;
        self
    }

    pub(crate) fn is_v6(&self) -> bool {
        self.source.is_ipv6()
    }

    fn icmp(&self) -> u8 {
        if self.is_v6() { ICMPV6 } else { ICMP }
    }

    /// The packet with `content` above IP, without a link layer.
    pub(crate) fn packet(&self, protocol: u8, content: &[u8]) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let words = 5 + self.options.len() / 4;
                let (id, offset, more) = self.fragment.unwrap_or((0x1234, 0, false));
                let offset = (offset / 8) | (u16::from(more) << 13) | (u16::from(self.dont_fragment) << 14);
                let mut header = vec![0x40 | u8::try_from(words).unwrap(), 0];
                header.extend(u16::try_from(words * 4 + content.len()).unwrap().to_be_bytes());
                header.extend(u16::try_from(id & 0xffff).unwrap().to_be_bytes());
                header.extend(offset.to_be_bytes());
                header.extend([self.ttl, protocol, 0, 0]);
                header.extend(source.octets());
                header.extend(destination.octets());
                header.extend(&self.options);
                let sum = checksum(&[&header]).to_be_bytes();
                header[10..12].copy_from_slice(&sum);
                [header, content.to_vec()].concat()
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut extensions = self.extensions.clone();
                if let Some((id, offset, more)) = self.fragment {
                    let offset = offset | u16::from(more);
                    extensions.push((44, [&[0, 0][..], &offset.to_be_bytes(), &id.to_be_bytes()].concat()));
                }
                let mut first = protocol;
                let mut chain = content.to_vec();
                for (kind, mut body) in extensions.into_iter().rev() {
                    body[0] = first;
                    if kind != 44 {
                        body[1] = u8::try_from(body.len() / 8 - 1).unwrap();
                    }
                    first = kind;
                    chain = [body, chain].concat();
                }
                let mut header = vec![0x60, 0, 0, 0];
                header.extend(u16::try_from(chain.len()).unwrap().to_be_bytes());
                header.extend([first, self.ttl]);
                header.extend(source.octets());
                header.extend(destination.octets());
                [header, chain].concat()
            }
            _ => panic!("two families"),
        }
    }

    /// The header and content of TCP.
    pub(crate) fn tcp_segment(&self, ports: (u16, u16), flags: u8, payload: &[u8]) -> Vec<u8> {
        self.segment_at(ports, flags, 7, payload)
    }

    fn segment_at(&self, ports: (u16, u16), flags: u8, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut segment = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
        segment.extend(sequence.to_be_bytes());
        segment.extend([0, 0, 0, 9, 5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend(payload);
        self.seal(TCP, 16, segment)
    }

    /// The header and content of UDP.
    pub(crate) fn datagram(&self, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
        let mut datagram = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
        datagram.extend(u16::try_from(8 + payload.len()).unwrap().to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(payload);
        let mut sealed = self.seal(UDP, 6, datagram);
        if sealed[6..8] == [0, 0] {
            sealed[6..8].copy_from_slice(&[0xff, 0xff]);
        }
        sealed
    }

    fn seal(&self, protocol: u8, offset: usize, mut content: Vec<u8>) -> Vec<u8> {
        let covered = if protocol == ICMP {
            Vec::new()
        } else {
            pseudo(self.source, self.destination, protocol, content.len())
        };
        let sum = checksum(&[&covered, &content]).to_be_bytes();
        content[offset..offset + 2].copy_from_slice(&sum);
        content
    }

    pub(crate) fn tcp(&self, ports: (u16, u16), flags: u8) -> Vec<u8> {
        self.packet(TCP, &self.tcp_segment(ports, flags, b"tcp payload"))
    }

    /// A TCP segment with a given sequence number.
    pub(crate) fn tcp_at(&self, ports: (u16, u16), flags: u8, sequence: u32) -> Vec<u8> {
        self.packet(TCP, &self.segment_at(ports, flags, sequence, b""))
    }

    pub(crate) fn udp(&self, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
        self.packet(UDP, &self.datagram(ports, payload))
    }

    pub(crate) fn udp_without_checksum(&self, ports: (u16, u16)) -> Vec<u8> {
        let mut datagram = self.datagram(ports, b"unsummed");
        datagram[6..8].copy_from_slice(&[0, 0]);
        self.packet(UDP, &datagram)
    }

    pub(crate) fn echo(&self, request: bool, id: u16) -> Vec<u8> {
        let kind = match (self.is_v6(), request) {
            (false, true) => 8,
            (false, false) => 0,
            (true, true) => 128,
            (true, false) => 129,
        };
        let mut message = vec![kind, 0, 0, 0];
        message.extend(id.to_be_bytes());
        message.extend([0, 5]);
        message.extend(b"echo payload");
        self.packet(self.icmp(), &self.seal(self.icmp(), 2, message))
    }

    /// An ICMP error of a kind, with the first bytes of the packet that caused it.
    pub(crate) fn error(&self, kind: u8, code: u8, word: u32, cause: &[u8]) -> Vec<u8> {
        let mut message = vec![kind, code, 0, 0];
        message.extend(word.to_be_bytes());
        message.extend(cause);
        self.packet(self.icmp(), &self.seal(self.icmp(), 2, message))
    }
}

/// A parsed packet, with its checksums verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    /// Ports of TCP and UDP; for an echo its identifier twice; for an ICMP error zeros.
    pub(crate) ports: (u16, u16),
    pub(crate) ttl: u8,
    /// The content after the transport header.
    pub(crate) payload: Vec<u8>,
    /// The packet inside an ICMP error.
    pub(crate) inner: Option<Box<Seen>>,
}

impl Seen {
    /// Source, its port, destination, its port.
    pub(crate) fn ends(&self) -> (IpAddr, u16, IpAddr, u16) {
        (self.source, self.ports.0, self.destination, self.ports.1)
    }
}

/// The offset of the content after the IP headers, its protocol, and true if the packet is no fragment.
fn content_offset(packet: &[u8]) -> (usize, u8, bool) {
    if packet[0] >> 4 == 4 {
        let length = usize::from(packet[0] & 15) * 4;
        assert_eq!(checksum(&[&packet[..length]]), 0, "IPv4 header checksum");
        let offset = u16::from_be_bytes([packet[6], packet[7]]);
        return (length, packet[9], offset & 0x3fff == 0);
    }
    let (mut next, mut at, mut whole) = (packet[6], 40, true);
    loop {
        match next {
            0 | 43 | 60 => {
                next = packet[at];
                at += (usize::from(packet[at + 1]) + 1) * 8;
            }
            44 => {
                next = packet[at];
                whole = packet[at + 3] & 1 == 0 && packet[at + 2] == 0 && packet[at + 3] & !7 == 0;
                at += 8;
            }
            _ => return (at, next, whole),
        }
    }
}

pub(crate) fn addresses(packet: &[u8]) -> (IpAddr, IpAddr) {
    if packet[0] >> 4 == 4 {
        let four = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
        (four(12), four(16))
    } else {
        let sixteen = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap());
        (sixteen(8), sixteen(24))
    }
}

/// Parses a packet and verifies its checksums; `cut` if only a part is there, as in an ICMP error.
fn parse(packet: &[u8], cut: bool) -> Seen {
    let (at, protocol, whole) = content_offset(packet);
    let (source, destination) = addresses(packet);
    let content = &packet[at..];
    let ttl = if packet[0] >> 4 == 4 { packet[8] } else { packet[7] };
    let port = |at: usize| u16::from_be_bytes([content[at], content[at + 1]]);
    let unsummed = protocol == UDP && content.get(6..8) == Some(&[0, 0]);
    let covered =
        if protocol == ICMP { Vec::new() } else { pseudo(source, destination, protocol, content.len()) };
    if whole && !cut && !unsummed {
        assert_eq!(checksum(&[&covered, content]), 0, "checksum of protocol {protocol}");
    }
    let (ports, header) = match protocol {
        TCP => ((port(0), port(2)), 20.min(content.len())),
        UDP => ((port(0), port(2)), 8),
        ICMP if matches!(content[0], 0 | 8) => ((port(4), port(4)), 8),
        ICMPV6 if matches!(content[0], 128 | 129) => ((port(4), port(4)), 8),
        _ => ((0, 0), 8),
    };
    let is_error = match protocol {
        ICMP => matches!(content[0], 3 | 11 | 12),
        ICMPV6 => content[0] < 128,
        _ => false,
    };
    Seen {
        source,
        destination,
        protocol,
        ports,
        ttl,
        payload: content[header..].to_vec(),
        inner: is_error.then(|| Box::new(parse(&content[8..], true))),
    }
}

/// Parses a whole packet without a link layer.
pub(crate) fn see(packet: &[u8]) -> Seen {
    parse(packet, false)
}

/// The content after the IP headers.
pub(crate) fn content(packet: &[u8]) -> &[u8] {
    &packet[content_offset(packet).0..]
}

/// Verifies the transport checksum of reassembled fragments.
pub(crate) fn assert_sum(packet: &[u8], content: &[u8]) {
    let (source, destination) = addresses(packet);
    let protocol = content_offset(packet).1;
    let covered = pseudo(source, destination, protocol, content.len());
    assert_eq!(checksum(&[&covered, content]), 0, "the transport checksum of the reassembled packet");
}
