//! Running the tools of iptables: which there are, one input at a time, never without end.

use std::fmt;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cni_kernel::process::end_with_us;
use cni_nftables::{Family, Socket, TableId};

use super::legacy;
use super::listing::Listing;
use super::rule::{Batch, Op, TableName};
use crate::{AddressFamily, Error};

/// How long an operation waits for the lock of the legacy tools, both families together.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// How long a tool may run beyond that. Reading or writing 200,000 rules takes the legacy tools a
/// second.
const RUN_LIMIT: Duration = Duration::from_secs(60);

/// Where the tools are looked for behind `PATH`: runtimes start plugins with little in it.
const USUAL_PLACES: [&str; 5] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin"];

/// The two programs that both call themselves iptables, each with tables of its own in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// `iptables-nft`: its tables are nf_tables' `ip nat` and `ip6 nat`.
    Nft,
    /// `iptables-legacy`: the kernel's older tables.
    Legacy,
}

impl Variant {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Nft, Self::Legacy];

    /// The name as `iptables --version` and the names of the programs have it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The nat table's name as nf_tables has it.
pub(crate) fn nat_table(family: AddressFamily) -> TableId {
    table_id(family, TableName::Nat)
}

/// A table's name as nf_tables has it.
pub(crate) fn table_id(family: AddressFamily, table: TableName) -> TableId {
    let family = match family {
        AddressFamily::V4 => Family::Ip,
        AddressFamily::V6 => Family::Ip6,
    };
    TableId::new(family, table.as_str())
}

/// What the programs of a family are called.
fn family_name(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "iptables",
        AddressFamily::V6 => "ip6tables",
    }
}

/// The first program of this name that may be run.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named: Vec<PathBuf> = std::env::split_paths(&path).filter(|dir| dir.is_absolute()).collect();
    let places = named.iter().map(PathBuf::as_path).chain(USUAL_PLACES.iter().map(Path::new));
    places.map(|dir| dir.join(name)).find(|file| {
        std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

/// Which variant the plain name leads to: what links say, else what the program says of itself.
pub(crate) fn default_variant() -> Option<Variant> {
    let file = program("iptables")?;
    let name = file.canonicalize().ok()?.file_name()?.to_string_lossy().into_owned();
    let named = Variant::ALL.into_iter().find(|variant| name.contains(variant.as_str()));
    named.or_else(|| {
        let said = Command::new(&file).arg("--version").stdin(Stdio::null()).output().ok()?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        // Before 1.8 there was but the one, and it said nothing of it.
        Some(if said.contains("nf_tables") { Variant::Nft } else { Variant::Legacy })
    })
}

/// How a change was refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Not by the ruleset: no attempt would help now.
    Failed(Error),
    /// By the ruleset as it is: what the tool said.
    Rules(String),
}

/// One variant's programs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tools {
    pub(crate) variant: Variant,
    table: TableName,
    deadline: Instant,
}

impl Tools {
    /// The programs of a variant, for one operation.
    pub(crate) fn new(variant: Variant) -> Self {
        Self::of(variant, TableName::Nat)
    }

    /// The programs of a variant, for one operation on that table.
    pub(crate) fn of(variant: Variant, table: TableName) -> Self {
        Self { variant, table, deadline: Instant::now() + PATIENCE }
    }

    /// The program of this family that is called `restore` or `save`.
    pub(crate) fn find(&self, family: AddressFamily, what: &str) -> Result<PathBuf, Error> {
        let (family, variant) = (family_name(family), self.variant);
        let named = program(&format!("{family}-{variant}-{what}"));
        let plain = || (default_variant() == Some(variant)).then(|| program(&format!("{family}-{what}")));
        named
            .or_else(|| plain().flatten())
            .ok_or_else(|| Error::NoIptables { program: format!("{family}-{variant}-{what}") })
    }

    /// These chains of the table, those of them that are there.
    pub(crate) fn read(&self, family: AddressFamily, chains: &[&str]) -> Result<Listing, Error> {
        match self.variant {
            Variant::Nft => self.read_nft(family, chains),
            // Asking for a table that is not there would make it.
            Variant::Legacy if !legacy::has_table(family, self.table.as_str()) => Ok(Listing::default()),
            Variant::Legacy => Ok(Listing::parse_chains(&self.print_all(family)?, self.table, chains)),
        }
    }

    /// The whole table.
    pub(crate) fn read_all(&self, family: AddressFamily) -> Result<Listing, Error> {
        self.print_all(family).map(|text| Listing::parse_table(&text, self.table))
    }

    fn print_all(&self, family: AddressFamily) -> Result<String, Error> {
        let program = self.find(family, "save")?;
        let run = run(&program, &["-t", self.table.as_str()], "")?;
        if !run.success {
            return Err(Error::kernel(
                format!("run {} -t {}", program.display(), self.table.as_str()),
                run.complaint(),
            ));
        }
        Ok(run.stdout)
    }

    /// The kernel tells cheaply what chains there are, and the tool prints those that are asked for
    /// without looking at the others, which may be a hundred thousand rules of a service proxy.
    fn read_nft(&self, family: AddressFamily, chains: &[&str]) -> Result<Listing, Error> {
        let socket = Socket::open().map_err(|e| Error::kernel("reach nf_tables", e))?;
        let table = table_id(family, self.table);
        let mut print = Batch::of(family, self.table);
        for chain in chains {
            let there = socket.chain(&table, chain);
            if there.map_err(|e| Error::kernel(format!("read chain {table} {chain}"), e))?.is_some() {
                print.push(Op::Print((*chain).to_owned()));
            }
        }
        if print.is_empty() {
            return Ok(Listing::default());
        }
        let program = self.find(family, "restore")?;
        let run = run(&program, &["--noflush"], &print.to_string())?;
        if run.success {
            return Ok(Listing::parse_table(&run.stdout, self.table));
        }
        // A chain that went away in between.
        self.read_all(family)
    }

    /// Makes the changes, all or none.
    pub(crate) fn commit(&self, batch: &Batch) -> Result<(), Refusal> {
        if batch.is_empty() {
            return Ok(());
        }
        let program = self.find(batch.family, "restore").map_err(Refusal::Failed)?;
        // At least a second, and whole ones: the tool takes no less.
        let wait = self.deadline.saturating_duration_since(Instant::now()).as_secs().max(1).to_string();
        let input = batch.to_string();
        for line in input.lines().filter(|_| log::log_enabled!(log::Level::Debug)) {
            log::debug!("{}: {line}", program.display());
        }
        let run = run(&program, &["--noflush", "--wait", &wait], &input);
        legacy::forget();
        let run = run.map_err(Refusal::Failed)?;
        if run.success {
            return Ok(());
        }
        let said = run.complaint();
        if self.variant == Variant::Legacy && said.contains("xtables lock") {
            return Err(Refusal::Failed(Error::XtablesLock {
                program: program.display().to_string(),
                seconds: wait,
                holder: lock_holder(),
            }));
        }
        Err(Refusal::Rules(format!("{}: {said}", program.display())))
    }

    /// Whether there is time for another attempt.
    pub(crate) fn has_time(&self) -> bool {
        Instant::now() < self.deadline
    }
}

/// The lock file of the legacy tools, where the environment names no other.
fn lock_file() -> PathBuf {
    std::env::var_os("XTABLES_LOCKFILE").map_or_else(|| PathBuf::from("/run/xtables.lock"), PathBuf::from)
}

/// Who holds the legacy tools' lock, as far as it can be told.
fn lock_holder() -> String {
    let unknown = || "someone who cannot be told".to_owned();
    let Ok(meta) = std::fs::metadata(lock_file()) else { return unknown() };
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else { return unknown() };
    let Some(pid) = holder_in(&locks, (meta.dev(), meta.ino())) else { return unknown() };
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name.is_empty() { format!("process {pid}") } else { format!("process {pid} ({})", name.trim()) }
}

/// The holder of a file's lock in the text of `/proc/locks` (proc_locks(5)): number, kind, mode,
/// access, process, and the file as major:minor:inode, the device's numbers in hexadecimal. Who
/// merely waits has an arrow behind the number.
fn holder_in(locks: &str, (dev, ino): (u64, u64)) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{ino}", nix::sys::stat::major(dev), nix::sys::stat::minor(dev));
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [_, "FLOCK" | "POSIX" | "OFDLCK", _, _, pid, is, ..] if *is == file => pid.parse().ok(),
            _ => None,
        }
    })
}

/// How a program ended.
#[derive(Debug)]
struct Run {
    success: bool,
    ending: String,
    stdout: String,
    stderr: String,
}

impl Run {
    /// What it said, on one line.
    fn complaint(&self) -> String {
        let said: Vec<&str> = self.stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if said.is_empty() { self.ending.clone() } else { said.join("; ") }
    }
}

/// Runs a program with this on its standard input, and kills it when it does not come to an end.
fn run(program: &Path, arguments: &[&str], input: &str) -> Result<Run, Error> {
    let shown = program.display();
    let failed = |what: &str, error: std::io::Error| Error::kernel(format!("{what} {shown}"), error);
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = end_with_us(&mut command).spawn().map_err(|e| failed("run", e))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let child = Mutex::new(child);
    let watch = Watch::default();
    let (out, err, written) = std::thread::scope(|scope| {
        scope.spawn(|| watch.kill_late(&child));
        let writer = scope.spawn(|| stdin.map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes())));
        let errors = scope.spawn(|| text(stderr));
        let out = text(stdout);
        let err = errors.join().unwrap_or_default();
        watch.done();
        let written = writer.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
        (out, err, written)
    });
    let status = child.lock().unwrap_or_else(PoisonError::into_inner).wait();
    let status = status.map_err(|e| failed("wait for", e))?;
    if watch.killed() {
        let limit = RUN_LIMIT.as_secs();
        return Err(Error::IptablesHangs { program: shown.to_string(), seconds: limit });
    }
    if status.success() {
        // It has seen a part of its input and taken it for the whole. Of one that failed, what it said tells
        // why it did not read on.
        written.map_err(|e| failed("write to", e))?;
    }
    Ok(Run { success: status.success(), ending: status.to_string(), stdout: out, stderr: err })
}

fn text(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // What cannot be read to its end is a program that failed, and its status says so.
        let _ = from.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Kills a program that is late.
#[derive(Debug, Default)]
struct Watch {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Watch {
    fn kill_late(&self, child: &Mutex<Child>) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, RUN_LIMIT, |(done, _)| !*done);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            state.1 = true;
            // It may have ended just now, which is as good.
            let _ = child.lock().unwrap_or_else(PoisonError::into_inner).kill();
        }
    }

    fn done(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = true;
        self.changed.notify_all();
    }

    fn killed(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found() {
        let locks = "1: FLOCK  ADVISORY  WRITE 21770 00:27:4 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 99 00:27:5 0 EOF\n\
                     2: POSIX  ADVISORY  READ 20654 fe:00:10133507 0 EOF\n";
        let device = nix::sys::stat::makedev(0, 0x27);
        assert_eq!(holder_in(locks, (device, 4)), Some(21770));
        assert_eq!(holder_in(locks, (device, 5)), None, "it waits");
        assert_eq!(holder_in(locks, (nix::sys::stat::makedev(0xfe, 0), 10_133_507)), Some(20654));
        assert_eq!(holder_in(locks, (device, 6)), None);
    }

    #[test]
    fn programs_are_run_to_their_end() {
        let long = "x".repeat(300_000);
        let run = run(Path::new("/bin/cat"), &[], &long).unwrap();
        assert!(run.success);
        assert_eq!(run.stdout.len(), long.len());
        let run = super::run(Path::new("/bin/sh"), &["-c", "echo why >&2; exit 3"], &long).unwrap();
        assert_eq!((run.success, run.complaint().as_str()), (false, "why"));
        // It took nothing for the whole.
        assert!(super::run(Path::new("/bin/sh"), &["-c", "exit 0"], &long).is_err());
        assert!(super::run(Path::new("/bin/sh"), &["-c", "exit 0"], "").is_ok());
        assert!(super::run(Path::new("/nowhere/tool"), &[], "").is_err());
    }
}
