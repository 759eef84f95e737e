//! Taps: links whose frames a program reads and writes (`Documentation/networking/tuntap.rst` of the
//! kernel).
#![allow(unsafe_code, reason = "taps are made by ioctls that nix does not wrap")]

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;

/// The device through which taps are made.
const DEVICE: &str = "/dev/net/tun";

/// A tap to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewTap<'a> {
    /// Its name.
    pub name: &'a str,
    /// The user that may open it; none for those who may administer the network.
    pub owner: Option<u32>,
    /// The group that may open it, likewise.
    pub group: Option<u32>,
    /// How many programs, or threads, may read and write side by side.
    pub queues: Queues,
}

/// How many queues a tap has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queues {
    /// One.
    One,
    /// As many as are opened, at most 256 (`IFF_MULTI_QUEUE`).
    Several,
}

/// Why there is no tap.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The device cannot be opened: ENOENT where there is none, ENODEV where the kernel has no driver.
    #[error("open {DEVICE}: {0}")]
    Open(std::io::Error),
    /// The kernel refused.
    #[error("{action} tap {name}: {errno}")]
    Kernel {
        /// What was tried.
        action: &'static str,
        /// The tap's name.
        name: String,
        /// The kernel's answer; EBUSY when a link of the name exists.
        errno: Errno,
    },
}

/// Makes a tap that stays, in the calling thread's namespace. It is down, without a program at its other
/// end. Frames come without the four bytes of `struct tun_pi` (`IFF_NO_PI`) as long as the program that
/// opens it does not ask for them.
///
/// The tap is lasting with the last call only: a process that is killed before leaves none.
///
/// # Errors
/// See [`TapError`].
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
    set(&device, libc::TUNSETPERSIST, 1).map_err(failed("keep"))
}

/// Opens a queue of a tap in the calling thread's namespace: each read gives one frame, each write sends
/// one, beginning with the Ethernet header. Where there is no such tap, one is made that goes with the file.
///
/// # Errors
/// See [`TapError`]; EINVAL when the tap has another number of queues, EBUSY when its only one is open.
pub fn open(name: &str, queues: Queues) -> Result<File, TapError> {
    let device = device()?;
    attach(&device, name, queues, 0).map_err(|errno| TapError::Kernel {
        action: "open",
        name: name.to_owned(),
        errno,
    })?;
    Ok(device)
}

/// Makes a tun in the calling thread's namespace, a link whose packets begin with the IP header, as those of many
/// tunnels do: each read gives one packet, each write sends one. It goes with the file.
///
/// # Errors
/// See [`TapError`].
pub fn tun(name: &str) -> Result<File, TapError> {
    let device = device()?;
    request(&device, name, libc::IFF_TUN | libc::IFF_NO_PI).map_err(|errno| TapError::Kernel {
        action: "create",
        name: name.to_owned(),
        errno,
    })?;
    Ok(device)
}

/// Whether taps can be made: opens the device, and makes none.
///
/// # Errors
/// [`TapError::Open`] when they cannot.
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
