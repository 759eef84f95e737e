// SPDX-License-Identifier: MIT OR Apache-2.0

//! Taps: links whose frames a process reads and writes (`Documentation/networking/tuntap.rst` of the kernel).
#![allow(unsafe_code, reason = "taps are made by ioctls that nix does not wrap")]

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;

/// The device that creates taps.
const DEVICE: &str = "/dev/net/tun";

/// A tap to create.
#[derive(Debug, Clone, Copy)]
pub struct NewTap<'a> {
    /// Name.
    pub name: &'a str,
    /// The user who may open the tap. None if only processes with `CAP_NET_ADMIN` may open it.
    pub owner: Option<u32>,
    /// The group that may open the tap, likewise.
    pub group: Option<u32>,
    /// How many processes or threads can read and write concurrently.
    pub queues: Queues,
}

/// Number of queues of a tap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queues {
    /// A single one.
    One,
    /// One for each open descriptor, at most 256 (`IFF_MULTI_QUEUE`).
    Several,
}

/// An error of a tap.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The device cannot be opened: ENOENT if it is missing, ENODEV if the kernel has no driver.
    #[error("open {DEVICE}: {0}")]
    Open(std::io::Error),
    /// The kernel refused.
    #[error("{action} tap {name}: {errno}")]
    Kernel {
        /// The operation.
        action: &'static str,
        /// The tap's name.
        name: String,
        /// The kernel's error; EBUSY if a link of this name exists.
        errno: Errno,
    },
}

/// Creates a persistent tap in the calling thread's namespace. The tap is down, and no process has it open.
/// Frames come without the four bytes of `struct tun_pi` (`IFF_NO_PI`), unless the process that opens the tap
/// asks for them.
///
/// The last system call makes the tap persistent, so a process that is killed before that leaves no tap behind.
///
/// # Errors
/// [`TapError::Open`] if taps are not available; [`TapError::Kernel`] with EBUSY if the name is taken.
pub fn create(new: &NewTap<'_>) -> Result<(), TapError> {
    let device = device()?;
    let failed = |action| move |errno: Errno| TapError::Kernel { action, name: new.name.to_owned(), errno };
    attach(&device, new.name, new.queues, libc::IFF_TUN_EXCL).map_err(failed("create"))?;
    if let Some(owner) = new.owner {
        set(&device, libc::TUNSETOWNER, owner).map_err(failed("set the owner of"))?;
    }
    if let Some(group) = new.group {
        set(&device, libc::TUNSETGROUP, group).map_err(failed("set the group of"))?;
    }
    set(&device, libc::TUNSETPERSIST, 1).map_err(failed("persist"))
}

/// Opens a queue of a tap in the calling thread's namespace. Each read returns one frame, and each write sends one;
/// both begin with the Ethernet header. If there is no such tap, this creates one that is deleted when the file is
/// closed.
///
/// # Errors
/// [`TapError::Kernel`] with EINVAL if the tap was created for another number of queues, or with EBUSY if its only
/// queue is already open.
pub fn open(name: &str, queues: Queues) -> Result<File, TapError> {
    let device = device()?;
    attach(&device, name, queues, 0).map_err(|errno| TapError::Kernel {
        action: "open",
        name: name.to_owned(),
        errno,
    })?;
    Ok(device)
}

/// Creates a tun in the calling thread's namespace: a link whose packets begin with the IP header, like those of many
/// tunnels. Each read returns one packet, and each write sends one. The link is deleted when the file is closed.
///
/// # Errors
/// [`TapError::Open`] if taps are not available; [`TapError::Kernel`] with EBUSY if the name is taken.
pub fn tun(name: &str) -> Result<File, TapError> {
    let device = device()?;
    request(&device, name, libc::IFF_TUN | libc::IFF_NO_PI).map_err(|errno| TapError::Kernel {
        action: "create",
        name: name.to_owned(),
        errno,
    })?;
    Ok(device)
}

/// Checks that the kernel has taps, without creating one.
///
/// # Errors
/// [`TapError::Open`] if the kernel has no taps.
pub fn available() -> Result<(), TapError> {
    device().map(drop)
}

fn device() -> Result<File, TapError> {
    File::options().read(true).write(true).open(DEVICE).map_err(TapError::Open)
}

fn attach(device: &File, name: &str, queues: Queues, more: libc::c_int) -> Result<(), Errno> {
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | more;
    if queues == Queues::Several {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    request(device, name, flags)
}

fn request(device: &File, name: &str, flags: libc::c_int) -> Result<(), Errno> {
    let name = name.as_bytes();
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(Errno::EINVAL);
    }
    // SAFETY: `ifreq` is a structure of numbers and arrays, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        #[allow(clippy::cast_possible_wrap, clippy::unnecessary_cast, reason = "c_char differs by platform")]
        {
            *to = *from as libc::c_char;
        }
    }
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the kernel's own field has 16 bits; so have the flags"
    )]
    {
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
    }
    // SAFETY: the ioctl reads and writes one `ifreq`, which lives through the call.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) }).map(drop)
}

fn set(device: &File, request: libc::Ioctl, value: u32) -> Result<(), Errno> {
    // SAFETY: the ioctl takes a number, no pointer.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), request, libc::c_ulong::from(value)) }).map(drop)
}
