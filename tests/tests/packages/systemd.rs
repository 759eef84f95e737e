// SPDX-License-Identifier: GPL-2.0-or-later

//! A system whose first process is systemd.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use slipway_tests::system::ControlGroups;
use slipway_tests::{Daemon, quoted, within};

use crate::{Machine, ROOT};

/// systemd's messages, as the node sees them.
const LOG: &str = "/run/systemd.log";
/// The time limit for starting and for ending all units.
const STARTING: Duration = Duration::from_secs(60);

/// Sets up the mounts that an init process finds in a container (systemd.io/CONTAINER_INTERFACE) and becomes that
/// process. The machine's settings and devices are out of reach, except for network settings, which belong to the node.
/// Mounts in the node's /run, such as names of network namespaces, propagate into the system.
const START: &str = r#"
cd "$0"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,rw proc/sys/net
umount -R sys dev
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=0755 tmpfs dev
for device in full null random tty urandom zero; do
	touch "dev/$device"
	mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm tmp/old
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
pivot_root . tmp/old
umount -l /tmp/old
rmdir /tmp/old
exec env -i container=slipway PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/lib/systemd/systemd --log-target=console
"#;

/// systemd and everything that it has started.
pub(crate) struct Init {
    unshare: Daemon,
    // This field is dropped after the processes have ended.
    _groups: ControlGroups,
}

impl Init {
    /// A command prefix that enters the system.
    pub(crate) fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.unshare.pid();
        command.args(["--target", &pid.to_string(), "--mount", "--uts", "--ipc", "--cgroup"]);
        command.arg(format!("--pid=/proc/{pid}/ns/pid_for_children")).arg("--");
        command
    }
}

impl Machine {
    /// Starts the system with systemd. None if there are no control groups for it.
    pub(crate) fn boot(folder: &Path, suite: &str) -> Option<Self> {
        let groups = ControlGroups::make()?;
        let mut machine = Self::start(folder, &format!("{suite}-systemd"));
        // Without a machine ID, systemd would enable units according to presets. Timers of other packages would write
        // files during the test.
        machine.run(
            "echo 0123456789abcdef0123456789abcdef > /etc/machine-id\n\
             echo node > /etc/hostname\n\
             rm -rf /etc/systemd/system/timers.target.wants",
        );
        machine.node.try_cmd("umount /sys/fs/cgroup");
        machine.start_init(groups);
        Some(machine)
    }

    /// Ends all processes at once and starts systemd again.
    pub(crate) fn boot_again(&mut self) {
        self.init = None;
        self.node.cmd("find /run -mindepth 1 -maxdepth 1 ! -name netns -exec rm -rf --one-file-system {} +");
        self.start_init(ControlGroups::make().expect("control groups, as before"));
    }

    fn start_init(&mut self, groups: ControlGroups) {
        let join = format!(
            "echo 0 > {}/cgroup.procs && exec unshare --cgroup --ipc --mount --pid --uts --propagation slave --fork \
             --kill-child sh -e -c \"$0\" {ROOT}",
            quoted(groups.unified())
        );
        let unshare = self.node.daemon("sh", &["-e", "-c", &join, START], LOG);
        self.init = Some(Init { unshare, _groups: groups });
        let begin = Instant::now();
        // The state is "degraded" if a unit failed that has no purpose in a container.
        while !matches!(self.state().as_str(), "running" | "degraded") {
            let log = || self.node.cmd(&format!("cat {LOG}"));
            assert!(begin.elapsed() < within(STARTING), "systemd: {}\n{}", self.state(), log());
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn state(&self) -> String {
        self.try_run("systemctl is-system-running").stdout.trim().to_owned()
    }
}
