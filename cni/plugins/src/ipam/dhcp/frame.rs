// SPDX-License-Identifier: GPL-2.0-or-later

//! IPv4 and UDP headers: RFC 791, RFC 768. ARP: RFC 826, RFC 5227.

use std::net::Ipv4Addr;

use cni_kernel::mac::Mac;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, DHCP_CLIENT_PORT, DHCP_SERVER_PORT, EthernetAddress, IpProtocol,
    Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};

/// Builds a packet from a client to a server.
pub(super) fn to_server(source: Ipv4Addr, destination: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let udp = UdpRepr { src_port: DHCP_CLIENT_PORT, dst_port: DHCP_SERVER_PORT };
    let ip = Ipv4Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Udp,
        payload_len: udp.header_len() + payload.len(),
        hop_limit: 64,
    };
    let sums = ChecksumCapabilities::default();
    let mut bytes = vec![0; ip.buffer_len() + ip.payload_len];
    let mut packet = Ipv4Packet::new_unchecked(&mut bytes[..]);
    ip.emit(&mut packet, &sums);
    let mut inner = UdpPacket::new_unchecked(packet.payload_mut());
    let fill = |to: &mut [u8]| to.copy_from_slice(payload);
    udp.emit(&mut inner, &source.into(), &destination.into(), payload.len(), fill, &sums);
    bytes
}

/// Builds an ARP announcement: a request for an address by its owner (RFC 5227, section 3).
pub(super) fn announcement(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: EthernetAddress(mac.0),
        source_protocol_addr: address,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: address,
    };
    let mut bytes = vec![0; arp.buffer_len()];
    arp.emit(&mut ArpPacket::new_unchecked(&mut bytes[..]));
    bytes
}

/// The payload of a packet to the client's port. Checksums are ignored: the kernel does not fill them in
/// between the ends of a veth pair.
pub(super) fn to_client(packet: &[u8]) -> Option<&[u8]> {
    let ip = Ipv4Packet::new_checked(packet).ok()?;
    let is_whole = !ip.more_frags() && ip.frag_offset() == 0;
    if ip.version() != 4 || ip.next_header() != IpProtocol::Udp || !is_whole {
        return None;
    }
    let udp = UdpPacket::new_checked(ip.payload()).ok()?;
    (udp.dst_port() == DHCP_CLIENT_PORT).then(|| udp.payload())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn packets_to_servers_have_checksums() {
        let (source, destination) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
        let bytes = to_server(source, destination, b"payload");
        assert_eq!(bytes.len(), 20 + 8 + 7);
        let ip = Ipv4Packet::new_checked(&bytes[..]).unwrap();
        assert!(ip.verify_checksum());
        assert_eq!((ip.src_addr(), ip.dst_addr(), ip.total_len()), (source, destination, 35));
        let udp = UdpPacket::new_checked(ip.payload()).unwrap();
        assert!(udp.verify_checksum(&source.into(), &destination.into()));
        assert_eq!((udp.src_port(), udp.dst_port(), udp.payload()), (68, 67, &b"payload"[..]));
    }

    #[test]
    fn an_announcement_requests_its_own_address() {
        let bytes = announcement(Mac([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 0, 0, 5));
        let want = [
            &[0, 1, 8, 0, 6, 4, 0, 1][..],
            &[2, 0, 0, 0, 0, 1, 10, 0, 0, 5],
            &[0, 0, 0, 0, 0, 0, 10, 0, 0, 5],
        ];
        assert_eq!(bytes, want.concat());
    }

    #[test]
    fn the_payload_for_the_client_is_found() {
        let mut packet = to_server(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, b"payload");
        assert_eq!(to_client(&packet), None);
        packet[22..24].copy_from_slice(&DHCP_CLIENT_PORT.to_be_bytes());
        assert_eq!(to_client(&packet), Some(&b"payload"[..]));
        assert_eq!(to_client(&packet[..30]), None);
        packet[6] = 0x20;
        assert_eq!(to_client(&packet), None, "more fragments follow");
    }

    proptest! {
        #[test]
        fn any_bytes_are_accepted_or_ignored(bytes: Vec<u8>, start in 0x40_u8..0x50) {
            let _payload = to_client(&bytes);
            let mut nearly = to_server(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, &bytes);
            nearly[0] = start;
            nearly[22..24].copy_from_slice(&DHCP_CLIENT_PORT.to_be_bytes());
            let _payload = to_client(&nearly);
        }
    }
}
