// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ethernet addresses.
#![allow(unsafe_code, reason = "getrandom is a system call that nix does not wrap")]

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// A 48-bit Ethernet address. Prints as six pairs of lower-case digits separated by colons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

/// An invalid Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("address {0}: invalid MAC address")]
pub struct MacError(String);

impl Mac {
    /// A random locally administered address (IEEE 802, the second lowest bit of the first byte), like those that the
    /// kernel assigns to new virtual links.
    ///
    /// # Errors
    /// The error of getrandom(2).
    pub fn random() -> std::io::Result<Self> {
        // getrandom(2) works without /dev, unlike /dev/urandom.
        let mut bytes = [0_u8; 6];
        // SAFETY: the kernel writes at most `bytes.len()` bytes to `bytes`, which lives through the call.
        let count = unsafe { nix::libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        // getrandom(2) fills a buffer of up to 256 bytes completely or not at all.
        if usize::try_from(count) != Ok(bytes.len()) {
            return Err(std::io::Error::last_os_error());
        }
        bytes[0] = bytes[0] & 0xfc | 0x02;
        Ok(Self(bytes))
    }

    /// True if the group bit is set (IEEE 802, the lowest bit of the first byte). No link can have such an
    /// address.
    #[must_use]
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// The link-local IPv6 address that the kernel derives from this one: RFC 4291, appendix A (modified EUI-64).
    #[must_use]
    pub fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        let id = u64::from_be_bytes([a ^ 0x02, b, c, 0xff, 0xfe, d, e, f]);
        Ipv6Addr::from(0xfe80_u128 << 112 | u128::from(id))
    }

    /// True for 00:00:00:00:00:00, which the kernel refuses for a link.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = MacError;

    /// Accepts the three notations that runtimes use: `02:00:5e:10:00:01`, `02-00-5e-10-00-01` and
    /// `0200.5e10.0001`.
    fn from_str(text: &str) -> Result<Self, MacError> {
        let error = || MacError(text.to_owned());
        let (separator, width) = match text.as_bytes().get(2) {
            Some(b':') => (':', 2),
            Some(b'-') => ('-', 2),
            _ => ('.', 4),
        };
        let mut bytes = Vec::with_capacity(6);
        for group in text.split(separator) {
            if group.len() != width || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(error());
            }
            let number = u16::from_str_radix(group, 16).map_err(|_| error())?;
            let [high, low] = number.to_be_bytes();
            if width == 4 {
                bytes.push(high);
            }
            bytes.push(low);
        }
        bytes.try_into().map(Self).map_err(|_| error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_notations_mean_the_same() {
        let expected = Mac([0x02, 0x00, 0x5e, 0x10, 0x00, 0xab]);
        for text in ["02:00:5e:10:00:ab", "02-00-5E-10-00-AB", "0200.5e10.00ab"] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        assert_eq!(expected.to_string(), "02:00:5e:10:00:ab");
    }

    #[test]
    fn anything_else_is_refused_with_its_text() {
        for text in [
            "",
            "02",
            "02:00:5e:10:00",
            "02:00:5e:10:00:ab:cd",
            "02:00:5e:10:00:ag",
            "2:0:5e:10:0:ab",
            "é2:0",
        ] {
            let error = text.parse::<Mac>().unwrap_err();
            assert_eq!(error.to_string(), format!("address {text}: invalid MAC address"));
        }
    }

    #[test]
    fn a_random_address_is_locally_administered_and_unicast() {
        for _ in 0..64 {
            let mac = Mac::random().unwrap();
            assert!(!mac.is_multicast() && mac.0[0] & 2 == 2, "{mac}");
        }
    }

    #[test]
    fn the_link_local_address_is_the_kernels() {
        // Taken from the output of `ip address` for a veth with this address.
        let mac: Mac = "02:11:22:33:44:55".parse().unwrap();
        assert_eq!(mac.link_local().to_string(), "fe80::11:22ff:fe33:4455");
    }

    #[test]
    fn group_and_zero_addresses_are_recognised() {
        assert!("01:00:5e:00:00:01".parse::<Mac>().unwrap().is_multicast());
        assert!(!"02:00:5e:00:00:01".parse::<Mac>().unwrap().is_multicast());
        assert!(Mac([0; 6]).is_zero());
    }
}
