// SPDX-License-Identifier: GPL-2.0-or-later

//! Router advertisements, as a router or an attacker sends them.

use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, sendto, setsockopt, socket,
    sockopt,
};

use crate::space::Space;

/// A router advertisement (RFC 4861, section 4.2); by default, one that hurts: high preference, a default route, a
/// prefix for addresses, a small MTU and a hop limit of 1.
#[derive(Debug, Clone)]
pub struct Advertisement {
    /// The `Cur Hop Limit` field; 0 leaves the hop limit unspecified.
    pub hop_limit: u8,
    /// Router lifetime in seconds; 0 if the router is not a default router.
    pub lifetime: u16,
    /// True for the preference "high", false for "medium" (RFC 4191, section 2.1).
    pub is_preferred: bool,
    /// A prefix of 64 bits for addresses, valid for an hour.
    pub prefix: Option<Ipv6Addr>,
    pub mtu: Option<u32>,
    /// A destination with a prefix of 64 bits behind the router (RFC 4191, section 2.3).
    pub route: Option<Ipv6Addr>,
}

impl Default for Advertisement {
    fn default() -> Self {
        let prefix = Ipv6Addr::new(0x2001, 0xdb8, 0xbad, 0, 0, 0, 0, 0);
        Self {
            hop_limit: 1,
            lifetime: 1800,
            is_preferred: true,
            prefix: Some(prefix),
            mtu: Some(1280),
            route: None,
        }
    }
}

impl Advertisement {
    /// The advertisement of a default router and nothing else.
    pub fn of_router(lifetime: u16) -> Self {
        Self { hop_limit: 64, lifetime, is_preferred: false, prefix: None, mtu: None, route: None }
    }

    /// Sends the advertisement to all hosts on a link of `space`, from the link's own link-local address. While the
    /// link has none yet, nothing is sent, so callers must wait for the effect.
    pub fn send(&self, space: &Space, link: &str) {
        const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let bytes = self.bytes();
        let index = space.link(link)["ifindex"].as_u64().and_then(|index| u32::try_from(index).ok());
        let to = SockaddrIn6::from(SocketAddrV6::new(ALL_NODES, 0, 0, index.expect("an index")));
        let sent = space.run(|| {
            let raw =
                socket(AddressFamily::Inet6, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::IcmpV6)?;
            // Hosts ignore advertisements with a smaller hop limit, because those may have been forwarded.
            setsockopt(&raw, sockopt::Ipv6MulticastHops, &255)?;
            sendto(raw.as_raw_fd(), &bytes, &to, MsgFlags::empty())
        });
        space.journal.note(format!("[{}] sent {self:?} to {link}: {sent:?}", space.name()));
        match sent {
            Ok(_) | Err(Errno::EADDRNOTAVAIL) => {}
            Err(errno) => panic!("{}: send an advertisement to {link}: {errno}", space.name()),
        }
    }

    /// The ICMPv6 message; the kernel fills in its checksum (RFC 3542, section 3.1).
    fn bytes(&self) -> Vec<u8> {
        let preference = if self.is_preferred { 0x08 } else { 0 };
        let mut bytes = vec![134, 0, 0, 0, self.hop_limit, preference];
        bytes.extend(self.lifetime.to_be_bytes());
        bytes.extend([0; 8]);
        if let Some(prefix) = self.prefix {
            // The option has type 3 and 32 bytes: the flags on-link and autonomous, then the valid and the preferred
            // lifetime.
            bytes.extend([3, 4, 64, 0xc0]);
            bytes.extend(3600_u32.to_be_bytes());
            bytes.extend(3600_u32.to_be_bytes());
            bytes.extend([0; 4]);
            bytes.extend(prefix.octets());
        }
        if let Some(mtu) = self.mtu {
            bytes.extend([5, 1, 0, 0]);
            bytes.extend(mtu.to_be_bytes());
        }
        if let Some(route) = self.route {
            // The option has type 24 and 16 bytes, because the first half of the destination is enough for its prefix.
            bytes.extend([24, 2, 64, preference]);
            bytes.extend(1800_u32.to_be_bytes());
            bytes.extend(&route.octets()[..8]);
        }
        bytes
    }
}
