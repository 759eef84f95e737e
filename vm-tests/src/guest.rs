// SPDX-License-Identifier: MIT OR Apache-2.0

//! The guest around the suites.

use std::fs::{self, File, OpenOptions};
use std::process::{Command, Stdio};

use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::termios::{SetArg, cfmakeraw, tcdrain, tcgetattr, tcsetattr};

use slipway_vm::DISK_DRIVERS;

use crate::Error;

/// The file systems that user space expects: type, folder, options.
const MOUNTS: &[(&str, &str, &str)] = &[
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devtmpfs", "/dev", "mode=0755"),
    ("tmpfs", "/dev/shm", "mode=1777"),
    ("tmpfs", "/run", "mode=0755"),
    ("cgroup2", "/sys/fs/cgroup", ""),
    ("bpf", "/sys/fs/bpf", ""),
];

/// The guest's disk.
const DISK: &str = "/dev/vda";

/// The search path of the tests, and of the kernel when it runs modprobe.
pub(crate) const SEARCH_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

pub(crate) fn mount_all() -> Result<(), Error> {
    for (kind, dir, options) in MOUNTS {
        // The kernel makes the folders below /sys itself.
        if !dir.starts_with("/sys/") {
            fs::create_dir_all(dir).map_err(|e| Error::Io(format!("make {dir}"), e))?;
        }
        mount(Some(*kind), *dir, Some(*kind), MsFlags::MS_NOSUID, Some(*options))
            .map_err(|e| Error::Sys(format!("mount {kind} on {dir}"), e))?;
    }
    Ok(())
}

/// The port as a plain pipe: no echo, no translation of line ends.
pub(crate) fn open_port(path: &str) -> Result<File, Error> {
    let port = OpenOptions::new().read(true).write(true).open(path);
    let port = port.map_err(|e| Error::Io(format!("open {path}"), e))?;
    let mut mode = tcgetattr(&port).map_err(|e| Error::Sys(format!("read the mode of {path}"), e))?;
    cfmakeraw(&mut mode);
    tcsetattr(&port, SetArg::TCSANOW, &mode).map_err(|e| Error::Sys(format!("set the mode of {path}"), e))?;
    Ok(port)
}

/// Waits until everything written has left the guest.
pub(crate) fn drain(port: &File) -> Result<(), Error> {
    tcdrain(port).map_err(|e| Error::Sys("wait for the serial port".to_owned(), e))
}

pub(crate) fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// `/proc/sys/kernel/tainted`; `u64::MAX` if it cannot be read.
pub(crate) fn taint() -> u64 {
    let text = fs::read_to_string("/proc/sys/kernel/tainted").unwrap_or_default();
    text.trim().parse().unwrap_or(u64::MAX)
}

/// Loads modules and sets the loopback link up; returns the errors.
pub(crate) fn prepare(preload: &[String]) -> Vec<String> {
    let mut troubles = Vec::new();
    for module in preload {
        troubles.extend(tool("modprobe", &[module]));
    }
    troubles.extend(tool("ip", &["link", "set", "lo", "up"]));
    troubles
}

/// Mounts the guest's disk; returns the errors.
pub(crate) fn mount_disk(dir: &str) -> Vec<String> {
    let mut troubles: Vec<String> =
        DISK_DRIVERS.iter().filter_map(|driver| tool("modprobe", &[driver])).collect();
    if let Err(e) = fs::create_dir_all(dir) {
        troubles.push(format!("make {dir}: {e}"));
    }
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    if let Err(e) = mount(Some(DISK), dir, Some("ext4"), flags, None::<&str>) {
        troubles.push(format!("mount {DISK} on {dir}: {e}"));
    }
    troubles
}

fn tool(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).env("PATH", SEARCH_PATH).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let printed = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Some(format!("{program} {}: {}: {printed}", args.join(" "), output.status))
        }
        Err(e) => Some(format!("{program} {}: {e}", args.join(" "))),
    }
}

/// Restarts the guest, which every platform can do; the emulator ends then.
pub(crate) fn off() {
    let Err(e) = reboot(RebootMode::RB_AUTOBOOT);
    // The first process must not end: that is a panic, which ends the VM as well.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("vm-init: reboot: {e}\n").as_bytes());
}
