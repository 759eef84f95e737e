// SPDX-License-Identifier: GPL-2.0-or-later

//! The root file system of a system.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{PLACE, ROOT};
use crate::concealment::has_kept;

/// The device nodes that runtimes and programs need, because the system's /dev has no others. kubelet reads `kmsg`.
const DEVICES: [&str; 7] = ["full", "kmsg", "null", "random", "tty", "urandom", "zero"];

/// Makes the root in the node's mount namespace, and the kernel removes all of it together with that namespace.
pub(super) fn make(packages: &Path) {
    let place = Path::new(PLACE);
    tmpfs(place, "mode=0755");
    let (upper, work, root) = (place.join("upper"), place.join("work"), Path::new(ROOT));
    for dir in [&*upper, &*work, root] {
        make_dir(dir);
    }
    // In the mount options, a colon would begin the next lower folder, and a comma the next option.
    let lower = packages.to_str().expect("a plain path").replace('\\', "\\\\").replace(':', "\\:");
    assert!(!lower.contains(','), "overlayfs takes no comma in {lower}");
    let options = format!("lowerdir={lower},upperdir={},workdir={}", upper.display(), work.display());
    mount(Some("overlay"), root, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
        .unwrap_or_else(|e| panic!("mount an overlay over {lower}: {e}"));
    for dir in ["dev", "etc/cni/net.d", "opt/cni/bin", "proc", "root", "run", "sys", "tmp", "var/lib/cni"] {
        make_dir(&root.join(dir));
    }
    // Packages that contain this folder have it empty.
    let _ = fs::remove_dir(root.join("var/run"));
    if !root.join("var/run").exists() {
        symlink("/run", root.join("var/run")).expect("link /var/run");
    }
    if !root.join("var/tmp").exists() {
        symlink("/tmp", root.join("var/tmp")).expect("link /var/tmp");
    }
    // The packages' installation scripts normally make these links, but unpacking does not run them.
    for (name, end) in ["iptables", "ip6tables"]
        .into_iter()
        .flat_map(|name| ["", "-restore", "-save"].map(|end| (name, end)))
    {
        let link = root.join("usr/sbin").join(format!("{name}{end}"));
        symlink(format!("{name}-nft{end}"), link).expect("link iptables");
    }
    write(&root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n");
    write(&root.join("etc/group"), "root:x:0:\n");
    write(&root.join("etc/hosts"), "127.0.0.1 localhost\n");
    write(&root.join("etc/resolv.conf"), "");
    make_dir(Path::new("/var/lib/cni"));
    bind(Path::new("/run"), &root.join("run"));
    bind(Path::new("/var/lib/cni"), &root.join("var/lib/cni"));
    tmpfs(&root.join("tmp"), "mode=1777");
    devices(&root.join("dev"));
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some("/sys"), &root.join("sys"), None::<&str>, flags, None::<&str>).expect("bind /sys");
}

/// Empties the system's /run, except for the namespaces of the outside hosts. Namespaces that runtimes have made are
/// mount points there, like many other files of runtimes. The old /proc is unmounted as well.
pub(super) fn forget() {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").expect("read the mounts");
    // The fifth field is the mount point (proc_pid_mountinfo(5)). The latest mounts are the innermost.
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let volatile = |point: &&str| {
        let inside = point.strip_prefix(ROOT).unwrap_or_default();
        let volatile = ["/proc/", "/run/", "/sys/fs/bpf", "/var/lib/c", "/var/lib/kubelet/"];
        inside == "/proc" || volatile.iter().any(|place| inside.starts_with(place))
    };
    let disks = ["/var/lib/cni", "/var/lib/containerd"].map(|disk| format!("{ROOT}{disk}"));
    let points: Vec<&str> =
        points.filter(volatile).filter(|point| disks.iter().all(|disk| disk != point)).collect();
    for point in points.iter().rev() {
        umount2(*point, MntFlags::MNT_DETACH).unwrap_or_else(|e| panic!("unmount {point}: {e}"));
    }
    for dir in ["/run", &format!("{ROOT}/dev/shm")] {
        for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("list {dir}: {e}")).flatten() {
            let path = entry.path();
            let removed = match path.is_dir() {
                true if path.ends_with("netns") || has_kept(&path) => Ok(()),
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            removed.unwrap_or_else(|e| panic!("remove {}: {e}", path.display()));
        }
    }
    for entry in fs::read_dir("/run/netns").expect("list /run/netns").flatten() {
        // The kernel refuses this for the hosts' namespaces, because they are mount points.
        let _ = fs::remove_file(entry.path());
    }
}

fn devices(dev: &Path) {
    tmpfs(dev, "mode=0755");
    for name in DEVICES.into_iter().filter(|name| Path::new("/dev").join(name).exists()) {
        write(&dev.join(name), "");
        bind(&Path::new("/dev").join(name), &dev.join(name));
    }
    make_dir(&dev.join("shm"));
    tmpfs(&dev.join("shm"), "mode=1777");
    for (name, target) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
        symlink(format!("/proc/self/fd{target}"), dev.join(name)).expect("link in /dev");
    }
}

pub(super) fn make_dir(path: &Path) {
    fs::create_dir_all(path).unwrap_or_else(|e| panic!("make {}: {e}", path.display()));
}

pub(super) fn write(path: &Path, content: &str) {
    fs::write(path, content).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
}

fn tmpfs(path: &Path, options: &str) {
    mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some(options))
        .unwrap_or_else(|e| panic!("mount a tmpfs on {}: {e}", path.display()));
}

/// Binds a folder or file over an existing one.
pub(super) fn bind(from: &Path, to: &Path) {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .unwrap_or_else(|e| panic!("bind {} to {}: {e}", from.display(), to.display()));
}
