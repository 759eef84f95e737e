// SPDX-License-Identifier: GPL-2.0-or-later

//! Switches offloads of an interface with the ioctl of ethtool(8).
#![allow(unsafe_code, reason = "nix has no ioctl for ethtool")]

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use cni_kernel::ethtool::{self, Switch};
use nix::libc;

use crate::Space;

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// `ETHTOOL_SRXCSUM`, `_STXCSUM`, `_SSG`, `_STSO`, `_SGSO` and `_SGRO` of linux/ethtool.h. Without scatter-gather there
/// is no segmentation offload either.
const FEATURES: [u32; 6] = [0x15, 0x17, 0x19, 0x1f, 0x24, 0x2c];

/// `struct ethtool_value`.
#[repr(C)]
struct Setting {
    command: u32,
    value: u32,
}

impl Space {
    /// Switches a feature of this interface on or off, as `ethtool -K` does.
    pub fn set_feature(&self, ifname: &str, feature: &str, switch: Switch) {
        let set = self.run(|| ethtool::set_feature(ifname, feature, switch));
        set.unwrap_or_else(|error| panic!("{}: {error}", self.name()));
    }

    /// Switches all offloads of this interface off, so that packets are neither split nor merged, and checksums are
    /// computed and verified in software.
    pub fn without_offloads(&self, ifname: &str) {
        self.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
            for command in FEATURES {
                let mut setting = Setting { command, value: 0 };
                // SAFETY: all zeros are a valid request.
                let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
                for (to, from) in request.ifr_name.iter_mut().zip(ifname.bytes()) {
                    *to = libc::c_char::from_ne_bytes([from]);
                }
                request.ifr_ifru.ifru_data = (&raw mut setting).cast();
                // SAFETY: the request points to a setting, and both outlive the call.
                let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
                let error = std::io::Error::last_os_error();
                assert_eq!(result, 0, "{}: set feature {command:#x} of {ifname}: {error}", self.name());
            }
        });
    }
}
