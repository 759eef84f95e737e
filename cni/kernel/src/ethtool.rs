// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads and sets features of a link by name (ethtool(8), linux/ethtool.h), in the namespace of the calling thread.
#![allow(unsafe_code, reason = "nix has no ioctl for ethtool")]

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;

/// The feature that merges datagrams which the kernel forwards. Since Linux 5.12.
pub const UDP_GRO_FORWARDING: &str = "rx-udp-gro-forwarding";

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// `ETHTOOL_GSSET_INFO`, `ETHTOOL_GSTRINGS`, `ETHTOOL_GFEATURES`, `ETHTOOL_SFEATURES`.
const GSSET_INFO: u32 = 0x37;
const GSTRINGS: u32 = 0x1b;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;
/// `ETH_SS_FEATURES`: the names of all features, of 32 bytes (`ETH_GSTRING_LEN`) each.
const FEATURE_NAMES: u32 = 4;
const NAME: usize = 32;

/// The state of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// In use.
    On,
    /// Not in use.
    Off,
}

/// Why a feature cannot be read or set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeatureError {
    /// The kernel has no feature of the name.
    #[error("the kernel has no feature {0}")]
    Unknown(String),
    /// The link does not exist, or its driver refuses.
    #[error("{operation} {feature} of {link}: {errno}")]
    Kernel {
        /// The operation.
        operation: &'static str,
        /// The feature.
        feature: String,
        /// The link.
        link: String,
        /// The kernel's error.
        errno: Errno,
    },
}

/// Reads the state of a feature of a link.
///
/// # Errors
/// [`FeatureError::Unknown`]; [`FeatureError::Kernel`] if there is no such link.
pub fn feature(link: &str, name: &str) -> Result<Switch, FeatureError> {
    let failed = |errno| kernel("read", link, name, errno);
    let place = Place::of(link, name)?;
    // Each block consists of four words: available, requested, active, never changed.
    let mut words = vec![0; 2 + 4 * place.blocks];
    words[..2].copy_from_slice(&[GFEATURES, u32::try_from(place.blocks).unwrap_or(u32::MAX)]);
    call(link, &mut words).map_err(failed)?;
    Ok(if words[2 + 4 * place.block + 2] & place.bit == 0 { Switch::Off } else { Switch::On })
}

/// Switches a feature of a link.
///
/// # Errors
/// [`FeatureError::Unknown`]; [`FeatureError::Kernel`] if there is no such link, or its driver refuses (EOPNOTSUPP).
pub fn set_feature(link: &str, name: &str, switch: Switch) -> Result<(), FeatureError> {
    let failed = |errno| kernel("set", link, name, errno);
    let place = Place::of(link, name)?;
    // Each block consists of two words: the bits that count, and their values.
    let mut words = vec![0; 2 + 2 * place.blocks];
    words[..2].copy_from_slice(&[SFEATURES, u32::try_from(place.blocks).unwrap_or(u32::MAX)]);
    words[2 + 2 * place.block] = place.bit;
    words[2 + 2 * place.block + 1] = if switch == Switch::On { place.bit } else { 0 };
    call(link, &mut words).map_err(failed)?;
    // The kernel reports success even if another setting, such as GRO itself, keeps the feature off.
    if feature(link, name)? == switch { Ok(()) } else { Err(failed(Errno::EOPNOTSUPP)) }
}

fn kernel(operation: &'static str, link: &str, name: &str, errno: Errno) -> FeatureError {
    FeatureError::Kernel { operation, feature: name.to_owned(), link: link.to_owned(), errno }
}

/// Where a feature's bit is in the kernel's blocks of 32 bits.
struct Place {
    block: usize,
    bit: u32,
    blocks: usize,
}

impl Place {
    fn of(link: &str, name: &str) -> Result<Self, FeatureError> {
        let failed = |errno| kernel("read", link, name, errno);
        // The words are the command, a reserved word, a mask of sets in two words, and the size of the set.
        let mut size = [GSSET_INFO, 0, 0, 0, 0];
        let mask = (1_u64 << FEATURE_NAMES).to_ne_bytes();
        for (word, bytes) in size[2..4].iter_mut().zip(mask.as_chunks().0) {
            *word = u32::from_ne_bytes(*bytes);
        }
        call(link, &mut size).map_err(failed)?;
        let count = usize::try_from(size[4]).unwrap_or_default();
        // The words are the command, the set, the number of names, and the names. The kernel writes all names, whose
        // number is fixed.
        let mut words = vec![0; 3 + count * NAME / 4];
        words[..2].copy_from_slice(&[GSTRINGS, FEATURE_NAMES]);
        call(link, &mut words).map_err(failed)?;
        let names: Vec<u8> = words[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let is_name = |bytes: &[u8]| bytes.split(|byte| *byte == 0).next() == Some(name.as_bytes());
        match names.chunks(NAME).position(is_name) {
            Some(at) => Ok(Self { block: at / 32, bit: 1 << (at % 32), blocks: count.div_ceil(32) }),
            None => Err(FeatureError::Unknown(name.to_owned())),
        }
    }
}

/// Calls the ioctl with a command and its data, as words.
fn call(link: &str, words: &mut [u32]) -> Result<(), Errno> {
    if link.is_empty() || link.len() >= libc::IFNAMSIZ {
        return Err(Errno::ENODEV);
    }
    let socket = UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)).map_err(|_| Errno::last())?;
    // SAFETY: `ifreq` is a structure of numbers, pointers and arrays, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(link.bytes()) {
        #[allow(clippy::cast_possible_wrap, clippy::unnecessary_cast, reason = "c_char differs by platform")]
        {
            *to = from as libc::c_char;
        }
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the request leads to words that outlive the call. The kernel writes as many blocks as the second word
    // names, one size, or the names of its features, whose number it has reported.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) }).map(drop)
}
