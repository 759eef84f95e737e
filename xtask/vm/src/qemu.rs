// SPDX-License-Identifier: MIT OR Apache-2.0

//! The emulator: where it comes from, how it is called, how a VM is watched.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use slipway_vm::Event;

use crate::arch::{Arch, Machine};
use xtask_base::apt_root::AptRoot;
use xtask_base::error::{Error, Result};
use xtask_base::run::{self, tool};

/// The suite that the emulator is taken from if the host has none.
const SUITE: &str = "trixie";

/// The time between two reads of a VM's reports.
const PAUSE: Duration = Duration::from_millis(50);

/// From the start of the emulator to the first report. A cloud kernel needs about ten seconds when it
/// is emulated and the host has nothing else to do.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// The time that a VM may take, beyond the limit of a test program, to end it.
const GRACE: Duration = Duration::from_secs(120);

/// The memory in MiB for programs on a disk: three tests at a time, each with two kube-proxies.
const DISK_MEMORY: u64 = 512;

/// An emulator that can be started.
#[derive(Debug, Clone)]
pub(crate) struct Qemu {
    /// The system's own, or one unpacked into a folder of its own.
    root: Option<PathBuf>,
    machine: &'static Machine,
    pub(crate) accelerator: Accelerator,
}

/// The accelerator of the emulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Accelerator {
    /// The processor, through the kernel's virtualization.
    Kvm,
    /// The emulator itself, some ten times slower.
    Tcg,
}

/// The settings of one VM.
#[derive(Debug)]
pub(crate) struct Vm<'a> {
    pub(crate) image: &'a Path,
    pub(crate) initramfs: &'a Path,
    /// The image of a disk that the VM reads.
    pub(crate) disk: Option<&'a Path>,
    /// The files of the two serial ports.
    pub(crate) dir: &'a Path,
    pub(crate) nonce: &'a str,
    /// More arguments of the kernel.
    pub(crate) boot: &'a [String],
    /// The time limit for the whole run.
    pub(crate) limit: Duration,
    /// The time limit for each test program. By then, the VM itself has ended the program, unless the VM hangs.
    pub(crate) suite_limit: Duration,
}

/// The end of a VM's run.
#[derive(Debug)]
pub(crate) struct Run {
    /// Everything that it reported.
    pub(crate) events: Vec<Event>,
    /// The output of the kernel.
    pub(crate) console: String,
    /// From the start of the emulator to the first report.
    pub(crate) boot: Option<Duration>,
    /// The time of the whole run.
    pub(crate) took: Duration,
    /// The reason why it was ended from outside, or the error of the emulator.
    pub(crate) trouble: Option<String>,
}

impl Qemu {
    /// The system's emulator, or else Debian's, which is fetched once.
    ///
    /// # Errors
    /// Neither can be had: the reason, and how to get it. KVM was asked for, and this machine's processor is
    /// another one.
    pub(crate) fn find(arch: Arch, wanted: Option<Accelerator>) -> Result<Self> {
        let accelerator = match (arch.is_own(), wanted) {
            (true, wanted) => wanted.unwrap_or_else(Accelerator::detect),
            (false, Some(Accelerator::Kvm)) => {
                return Err(Error::Failed(format!("KVM cannot run {} here", arch.debian())));
            }
            (false, _) => Accelerator::Tcg,
        };
        let machine = arch.machine();
        let Machine { package, program, .. } = machine;
        if run::which(program).is_some() {
            return Ok(Self { root: None, machine, accelerator });
        }
        let root = arch.cache()?.join("qemu");
        if !root.join("complete").is_file() {
            fetch(package, &root).map_err(|e| {
                Error::Failed(format!("no {program} here (as root: apt-get install {package}): {e}"))
            })?;
        }
        Ok(Self { root: Some(root), machine, accelerator })
    }

    fn command(&self) -> Command {
        // The emulator ends together with this process: setpriv(1) of util-linux.
        let mut command = tool("setpriv", &["--pdeathsig", "KILL", "--"]);
        let Some(root) = &self.root else {
            command.arg(self.machine.program);
            return command;
        };
        let program = root.join("usr/bin").join(self.machine.program);
        // The emulator's libraries do not belong to the system, so the loader must not either.
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        command.arg(root.join("usr/lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(&libraries).arg(program);
        command.arg("-L").arg(root.join("usr/share/qemu")).arg("-L").arg(root.join("usr/share/seabios"));
        command.env("QEMU_MODULE_DIR", libraries.join("qemu")).env("LC_ALL", "C.UTF-8");
        command
    }

    /// The output of `--version`.
    pub(crate) fn version(&self) -> Result<String> {
        let printed = run::capture(self.command().arg("--version"))?;
        Ok(printed.lines().next().unwrap_or_default().replace("QEMU emulator version ", "QEMU "))
    }

    /// Boots a VM and watches it to its end. `report` gets each event as it comes.
    pub(crate) fn run(&self, vm: &Vm<'_>, mut report: impl FnMut(&Event)) -> Result<Run> {
        let mut command = self.command();
        self.arguments(&mut command, vm);
        let words = vm.dir.join("emulator.txt");
        let log = File::create(&words).map_err(|e| Error::file("make", &words, e))?;
        let copy = log.try_clone().map_err(|e| Error::file("duplicate", &words, e))?;
        command.current_dir(vm.dir).stdin(Stdio::null()).stdout(log).stderr(copy);
        for port in ["console.txt", "reports.txt"] {
            let path = vm.dir.join(port);
            fs::write(&path, "").map_err(|e| Error::file("empty", &path, e))?;
        }
        let child =
            command.spawn().map_err(|e| Error::system(format!("start {}", self.machine.program), e))?;
        let mut guest = Guest { child, reports: Tail::open(&vm.dir.join("reports.txt"))? };
        let mut run = guest.watch(vm, &mut report)?;
        let console = vm.dir.join("console.txt");
        let bytes = fs::read(&console).map_err(|e| Error::file("read", &console, e))?;
        run.console = String::from_utf8_lossy(&bytes).into_owned();
        let printed = fs::read_to_string(&words).unwrap_or_default();
        if !printed.trim().is_empty() && run.boot.is_none() {
            run.trouble = Some(format!("{}: {}", run.trouble.unwrap_or_default(), printed.trim()));
        }
        Ok(run)
    }

    fn arguments(&self, command: &mut Command, vm: &Vm<'_>) {
        let accelerator = match self.accelerator {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        };
        let machine = self.machine;
        let cpu = match self.accelerator {
            Accelerator::Kvm => "host",
            Accelerator::Tcg => machine.cpu,
        };
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        command.args(["-M", machine.board, "-accel", accelerator, "-cpu", cpu, "-smp", "1"]);
        let size = fs::metadata(vm.initramfs).map_or(0, |data| data.len());
        let more = if vm.disk.is_some() { DISK_MEMORY } else { 0 };
        command.arg("-m").arg((memory(size) + more).to_string());
        command.args(["-serial", "file:console.txt"]).args(machine.port);
        command.arg("-kernel").arg(vm.image).arg("-initrd").arg(vm.initramfs);
        if let Some(disk) = vm.disk {
            // A comma ends a value of QEMU's options, a doubled one is part of it.
            let file = disk.display().to_string().replace(',', ",,");
            command.arg("-drive").arg(format!("if=none,id=disk,format=raw,readonly=on,file={file}"));
            command.args(["-device", "virtio-blk-pci,drive=disk"]);
        }
        // A panic restarts at once, and a restart is the end: see `-no-reboot`.
        // The watchdog for a processor that gets nowhere would measure how busy the system around is.
        // khugepaged has the lowest priority. Preempted on the only processor of a busy VM, it holds up RCU's grace periods
        // for minutes, and with them every commit of rules.
        let line = "panic=-1 oops=panic mitigations=off nosoftlockup transparent_hugepage=never rdinit=/init \
                    net.ifnames=0";
        let words = [&["console=".to_owned() + machine.console, line.to_owned()], vm.boot].concat();
        command.arg("-append").arg(words.join(" "));
    }
}

/// The VM's memory in MiB, for an initramfs of that many bytes. The kernel unpacks it while it is in memory itself, into
/// a file system that may fill half of the memory. The rest is for the tests that run at a time: each may have BPF maps
/// of its own.
fn memory(initramfs: u64) -> u64 {
    1536 + 2 * (initramfs >> 20)
}

fn fetch(package: &str, root: &Path) -> Result<()> {
    if root.exists() {
        fs::remove_dir_all(root).map_err(|e| Error::file("remove", root, e))?;
    }
    fs::create_dir_all(root).map_err(|e| Error::file("create the directory", root, e))?;
    AptRoot::open(SUITE)?.fetch_all(&[package], root)?;
    let stamp = root.join("complete");
    fs::write(&stamp, "").map_err(|e| Error::file("write", &stamp, e))
}

impl Accelerator {
    /// The time limit of a VM in minutes: twice the time of all test programs.
    pub(crate) fn patience(self) -> u64 {
        match self {
            Self::Kvm => 120,
            Self::Tcg => 360,
        }
    }

    /// Chooses the processor's virtualization only if its flags show it and the device opens: a nested VM may have the
    /// device without it, and a guest then hangs at its first instruction.
    pub(crate) fn detect() -> Self {
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = processor.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        let virtualizes = flags.split_whitespace().any(|flag| matches!(flag, "vmx" | "svm"));
        let opens = File::options().read(true).write(true).open("/dev/kvm").is_ok();
        if virtualizes && opens { Self::Kvm } else { Self::Tcg }
    }

    /// A description for people.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg => "plain emulation (no usable KVM here, or not wanted)",
        }
    }
}

/// A running emulator; it ends with this value.
struct Guest {
    child: Child,
    reports: Tail,
}

impl Guest {
    fn watch(&mut self, vm: &Vm<'_>, report: &mut impl FnMut(&Event)) -> Result<Run> {
        let begun = Instant::now();
        let mut events = Vec::new();
        let mut boot = None;
        let mut progress = Progress::default();
        let trouble = loop {
            let ended = self.child.try_wait().map_err(|e| Error::system("wait for the emulator", e))?;
            for line in self.reports.lines()? {
                if let Some(event) = Event::parse(&line, vm.nonce) {
                    boot.get_or_insert_with(|| begun.elapsed());
                    progress.see(&event, begun.elapsed());
                    report(&event);
                    events.push(event);
                }
            }
            match ended {
                Some(status) if !status.success() => break Some(format!("the emulator ended with {status}")),
                Some(_) => break None,
                None => {}
            }
            if boot.is_none() && begun.elapsed() > BOOT_LIMIT {
                break Some(format!("nothing came from it within {} s", BOOT_LIMIT.as_secs()));
            }
            if let Some(hung) = progress.hung(begun.elapsed(), vm.suite_limit).filter(|_| boot.is_some()) {
                break Some(hung);
            }
            if begun.elapsed() > vm.limit {
                break Some(format!("it was not done after {} s", vm.limit.as_secs()));
            }
            thread::sleep(PAUSE);
        };
        Ok(Run { events, console: String::new(), boot, took: begun.elapsed(), trouble })
    }
}

/// The progress of a VM with its test programs.
#[derive(Debug, Default)]
struct Progress {
    /// When the last one began or ended, from the start of the emulator.
    at: Duration,
    /// The test program that runs.
    running: Option<String>,
}

impl Progress {
    fn see(&mut self, event: &Event, now: Duration) {
        match event {
            Event::Hello(_) | Event::Finish { .. } | Event::End { .. } => self.running = None,
            Event::Start(suite) => self.running = Some(suite.clone()),
            _ => return,
        }
        self.at = now;
    }

    /// The reason why the VM is considered hung: nothing began or ended for longer than the limit of a test program.
    fn hung(&self, now: Duration, suite_limit: Duration) -> Option<String> {
        let silent = now.saturating_sub(self.at);
        (silent > suite_limit + GRACE).then(|| {
            let where_to = self.running.as_ref().map_or("between two test programs", String::as_str);
            format!("it hangs: for {} s nothing began or ended (in: {where_to})", silent.as_secs())
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The emulator has ended already, unless its time was over.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the lines that are added to a file.
struct Tail {
    file: File,
    path: PathBuf,
    at: u64,
    open: Vec<u8>,
}

impl Tail {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::file("open", path, e))?;
        Ok(Self { file, path: path.to_owned(), at: 0, open: Vec::new() })
    }

    /// The lines that were completed since the last call.
    fn lines(&mut self) -> Result<Vec<String>> {
        let mut read = || {
            self.file.seek(SeekFrom::Start(self.at))?;
            self.file.read_to_end(&mut self.open)
        };
        let count = read().map_err(|e| Error::file("read", &self.path, e))?;
        self.at += count as u64;
        let whole = self.open.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let rest = self.open.split_off(whole);
        let complete = std::mem::replace(&mut self.open, rest);
        Ok(String::from_utf8_lossy(&complete).lines().map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipway_vm::Ending;
    use std::io::Write;

    #[test]
    fn a_vm_in_which_no_test_ends_hangs() {
        let (second, limit) = (Duration::from_secs, Duration::from_secs(1800));
        let mut progress = Progress::default();
        progress.see(&Event::Start("links".to_owned()), second(10));
        // The output of a test program is not a sign of progress.
        progress.see(&Event::Output("test a ... ok".to_owned()), second(1000));
        assert_eq!(progress.hung(second(1900), limit), None);
        let text = progress.hung(second(1931), limit).unwrap();
        assert!(text.contains("1921 s") && text.contains("links"), "{text}");
        let finish = Event::Finish { suite: "links".to_owned(), ending: Ending::Timeout, millis: 1 };
        progress.see(&finish, second(1900));
        assert_eq!(progress.hung(second(3000), limit), None);
        assert!(progress.hung(second(3821), limit).unwrap().contains("between"));
    }

    #[test]
    fn lines_are_read_once_and_only_when_complete() {
        let path = xtask_base::workspace::scratch("qemu-test").unwrap().join("tail.txt");
        let mut file = File::create(&path).unwrap();
        let mut tail = Tail::open(&path).unwrap();
        assert!(tail.lines().unwrap().is_empty());
        file.write_all(b"one\ntw").unwrap();
        assert_eq!(tail.lines().unwrap(), ["one"]);
        file.write_all(b"o\nthree\n").unwrap();
        assert_eq!(tail.lines().unwrap(), ["two", "three"]);
        assert!(tail.lines().unwrap().is_empty());
    }
}
