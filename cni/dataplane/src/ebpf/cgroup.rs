// SPDX-License-Identifier: GPL-2.0-or-later

//! Programs at the node's own sockets, attached to a control group.
//!
//! They run for every process in the control group, in any network namespace, and check themselves that it is
//! the node's. A pinned link keeps each attached, in a folder next to the program that is named after the
//! control group. Removing the pin detaches the program.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya::pin::PinError;
use aya::programs::cgroup_sock_addr::CgroupSockAddrAttachType as Hook;
use aya::programs::links::FdLink;
use aya::programs::{CgroupAttachMode, CgroupSockAddr};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use super::pins;
use crate::Error;

/// The control group for the programs at sockets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ControlGroup {
    /// The root of version 2, at its usual mount points.
    #[default]
    Found,
    /// The control group at this path.
    At(PathBuf),
    /// No control group: nftables serves the node's own sockets.
    Off,
}

/// The state of the programs at sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sockets {
    /// Attached to this control group.
    At(PathBuf),
    /// Not attached, with the reason: nftables serves the node's own sockets.
    Not(String),
}

/// Mount points of version 2: alone, or next to version 1 (systemd's hybrid layout).
const PLACES: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Prefix of the folders of links; the inode of the control group follows.
const LINKS: &str = "sockets-";
/// The programs by their names in the object, and their attachment points.
const HOOKS: [(&str, Hook); 8] = [
    ("connect4", Hook::Connect4),
    ("connect6", Hook::Connect6),
    ("sendmsg4", Hook::UDPSendMsg4),
    ("sendmsg6", Hook::UDPSendMsg6),
    ("recvmsg4", Hook::UDPRecvMsg4),
    ("recvmsg6", Hook::UDPRecvMsg6),
    ("getpeername4", Hook::GetPeerName4),
    ("getpeername6", Hook::GetPeerName6),
];

/// A control group of version 2, opened.
struct Group {
    path: PathBuf,
    directory: File,
    id: u64,
}

impl Group {
    fn open(path: &Path) -> Result<Self, Error> {
        let failed = |e| Error::kernel(format!("open the control group {}", path.display()), e);
        let directory = File::open(path).map_err(failed)?;
        let id = directory.metadata().map_err(failed)?.ino();
        Ok(Self { path: path.to_owned(), directory, id })
    }

    /// Finds the wanted control group; none if it is switched off.
    fn find(wanted: &ControlGroup) -> Result<Option<Self>, Error> {
        let is_group =
            |path: &Path| statfs(path).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC);
        match wanted {
            ControlGroup::Off => Ok(None),
            ControlGroup::At(path) if is_group(path) => Self::open(path).map(Some),
            ControlGroup::At(path) => {
                Err(Error::NoEbpf(format!("{} is no control group of version 2", path.display())))
            }
            ControlGroup::Found => match PLACES.map(Path::new).into_iter().find(|path| is_group(path)) {
                Some(path) => Self::open(path).map(Some),
                None => {
                    Err(Error::NoEbpf(format!("no control groups of version 2 at {}", PLACES.join(" or "))))
                }
            },
        }
    }

    fn links(&self, programs: &Path) -> PathBuf {
        programs.join(format!("{LINKS}{}", self.id))
    }
}

/// Attaches the programs of a folder to the wanted control group, and detaches them from others. Programs of
/// another version stay: the first one that runs translates.
///
/// # Errors
/// [`Error::NoEbpf`] without such a control group, [`Error::Kernel`] if the kernel refuses a program.
pub(super) fn attach(programs: &Path, wanted: &ControlGroup) -> Result<(), Error> {
    let group = match Group::find(wanted) {
        Ok(Some(group)) => group,
        otherwise => {
            forget_others(programs, None);
            return otherwise.map(|_| ());
        }
    };
    let links = group.links(programs);
    pins::make(&links)?;
    if let Some((name, _)) = HOOKS.iter().find(|(name, _)| !programs.join(name).exists()) {
        return Err(Error::NoEbpf(format!("this kernel refuses the BPF program {name}")));
    }
    for (name, hook) in HOOKS {
        if !links.join(name).exists() {
            attach_one(&programs.join(name), hook, &group, &links.join(name))?;
        }
    }
    forget_others(programs, Some(&links));
    Ok(())
}

fn attach_one(program: &Path, hook: Hook, group: &Group, pin: &Path) -> Result<(), Error> {
    let failed = |e: Box<dyn std::error::Error + Send + Sync>| {
        Error::kernel(format!("attach {} to {}", program.display(), group.path.display()), e)
    };
    let mut program = CgroupSockAddr::from_pin(program, hook).map_err(|e| failed(e.into()))?;
    // A link ignores the mode: it neither excludes other programs nor is excluded by them.
    let id = program.attach(&group.directory, CgroupAttachMode::Single).map_err(|e| failed(e.into()))?;
    let link = program.take_link(id).map_err(|e| failed(e.into()))?;
    let link = FdLink::try_from(link).map_err(|e| failed(e.into()))?;
    match link.pin(pin) {
        Ok(_) => Ok(()),
        // Another process was faster; this link ends with this process.
        Err(PinError::SyscallError(e)) if e.io_error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(failed(e.into())),
    }
}

/// Detaches this folder's programs from all control groups except one.
fn forget_others(programs: &Path, kept: Option<&Path>) {
    let entries = fs::read_dir(programs).into_iter().flatten().filter_map(Result::ok);
    let links = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(LINKS));
    for folder in links.map(|entry| entry.path()).filter(|path| Some(path.as_path()) != kept) {
        if let Err(e) = fs::remove_dir_all(&folder) {
            log::warn!("remove {}: {e}", folder.display());
        }
    }
}

/// Looks if the programs of a folder are attached to the wanted control group.
pub(super) fn state(programs: &Path, wanted: &ControlGroup) -> Sockets {
    match Group::find(wanted) {
        Ok(None) => Sockets::Not("switched off in /etc/cni/slipway.json".to_owned()),
        Err(error) => Sockets::Not(error.to_string()),
        Ok(Some(group)) => {
            let links = group.links(programs);
            let refused = HOOKS.iter().find(|(name, _)| programs.is_dir() && !programs.join(name).exists());
            if let Some((name, _)) = refused {
                Sockets::Not(format!("this kernel refuses the BPF program {name}"))
            } else if HOOKS.iter().all(|(name, _)| links.join(name).exists()) {
                Sockets::At(group.path)
            } else {
                let path = group.path.display();
                Sockets::Not(format!(
                    "not attached to {path}: `slipway node setup` attaches them or prints why it cannot"
                ))
            }
        }
    }
}
