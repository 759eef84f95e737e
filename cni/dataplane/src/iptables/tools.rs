// SPDX-License-Identifier: GPL-2.0-or-later

//! Runs the programs of iptables: finds them, passes their input, and kills a program that hangs.

use std::fmt;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use cni_kernel::is_transient;
use cni_kernel::process::kill_with_parent;
use cni_nftables::{Family, Socket, TableId};
use nix::errno::Errno;

use super::batch::Batch;
use super::legacy;
use super::listing::Listing;
use super::names::TableName;
use crate::chain_name::ChainName;
use crate::{AddressFamily, Cause, Error};

/// How long an operation waits for the lock of the legacy tools, both families together.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// How long a program may run after waiting for the lock. The legacy tools read or write 200,000 rules in a second.
const RUN_LIMIT: Duration = Duration::from_secs(60);

/// What the legacy tools print if another process holds their lock.
const LOCKED: &str = "xtables lock";

/// Folders that are searched after those in `PATH`, because runtimes start plugins with a short `PATH`.
const USUAL_FOLDERS: [&str; 5] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin"];

/// The two implementations of iptables. Each has its own tables in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// `iptables-nft`, whose tables are `ip nat` and `ip6 nat` in nf_tables.
    Nft,
    /// `iptables-legacy`, which uses the older tables of the kernel.
    Legacy,
}

impl Variant {
    pub const ALL: [Self; 2] = [Self::Nft, Self::Legacy];

    /// The name in the output of `iptables --version` and in the names of the programs.
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

/// The tables of a family and a variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub variant: Variant,
    pub family: AddressFamily,
}

impl Place {
    /// All four places.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let of = |family| Variant::ALL.into_iter().map(move |variant| Self { variant, family });
        AddressFamily::BOTH.into_iter().flat_map(of)
    }
}

/// The nat table's name in nf_tables.
pub(crate) fn nat_table(family: AddressFamily) -> TableId {
    table_id(family, TableName::Nat)
}

/// A table's name in nf_tables.
pub(crate) fn table_id(family: AddressFamily, table: TableName) -> TableId {
    let family = match family {
        AddressFamily::V4 => Family::Ip,
        AddressFamily::V6 => Family::Ip6,
    };
    TableId::new(family, table.as_str())
}

/// The first executable program of this name.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter(|dir| dir.is_absolute());
    folders.chain(USUAL_FOLDERS.map(PathBuf::from)).map(|dir| dir.join(name)).find(|file| {
        std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

/// The variant of the program `iptables`, determined by symbolic links or else by the program's version. None if the
/// program is missing or cannot run.
///
/// # Errors
/// [`Error::Kernel`] if the program cannot be run at the moment.
pub(crate) fn default_variant() -> Result<Option<Variant>, Error> {
    let Some(file) = find("iptables") else { return Ok(None) };
    // If the links cannot be followed, the version decides.
    let target = file.canonicalize().unwrap_or_default();
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    match Variant::ALL.into_iter().find(|variant| name.contains(variant.as_str())) {
        None => variant_of(Command::new(&file).arg("--version").stdin(Stdio::null()).output()),
        named => Ok(named),
    }
}

/// The variant of a program by the output of `--version`. None if it cannot run.
fn variant_of(run: std::io::Result<Output>) -> Result<Option<Variant>, Error> {
    const WHAT: &str = "ask iptables for its version";
    match run {
        Ok(run) => {
            // The trial of both variants tells more about a program that was killed.
            if run.status.signal().is_some() {
                return Ok(None);
            }
            // Before 1.8, there was only the legacy variant, whose version output does not name it.
            let is_nft = text(&run).contains("nf_tables");
            Ok(Some(if is_nft { Variant::Nft } else { Variant::Legacy }))
        }
        Err(e) => match e.raw_os_error().map(Errno::from_raw) {
            Some(errno) if is_transient(errno) => Err(Error::kernel(WHAT, e)),
            _ => Ok(None),
        },
    }
}

/// The reason why a batch was not committed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Another attempt would fail as well.
    Failed(Error),
    /// The batch does not fit the ruleset. The text is the tool's message.
    Ruleset(String),
}

/// The programs of one variant and family, for one operation on one table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tools {
    pub(crate) variant: Variant,
    pub(crate) family: AddressFamily,
    table: TableName,
    deadline: Instant,
}

impl Tools {
    pub(crate) fn new(place: Place, table: TableName) -> Self {
        let Place { variant, family } = place;
        Self { variant, family, table, deadline: Instant::now() + PATIENCE }
    }

    pub(crate) fn nat(place: Place) -> Self {
        Self::new(place, TableName::Nat)
    }

    /// The other family's programs, with the same deadline.
    pub(crate) fn with_family(self, family: AddressFamily) -> Self {
        Self { family, ..self }
    }

    /// Finds the program of this family with the suffix `restore` or `save`.
    pub(crate) fn program(&self, suffix: &str) -> Result<PathBuf, Error> {
        let family = match self.family {
            AddressFamily::V4 => "iptables",
            AddressFamily::V6 => "ip6tables",
        };
        let name = format!("{family}-{}-{suffix}", self.variant);
        if let Some(program) = find(&name) {
            return Ok(program);
        }
        match find(&format!("{family}-{suffix}")) {
            Some(program) if default_variant()? == Some(self.variant) => Ok(program),
            _ => Err(Error::NoIptables { program: name }),
        }
    }

    /// The command that empties a chain, for people. Empty if the chain's name cannot be part of a command.
    pub(crate) fn emptying(&self, chain: &str) -> String {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if ChainName::new(chain).is_err() || !chain.bytes().all(is_plain) {
            return String::new();
        }
        let family = match self.family {
            AddressFamily::V4 => "iptables",
            AddressFamily::V6 => "ip6tables",
        };
        let name = format!("{family}-{}", self.variant);
        let program = if find(&name).is_some() { name.as_str() } else { family };
        format!("{program} -t {} -F {chain}", self.table.as_str())
    }

    /// Reads those of the given chains that exist.
    pub(crate) fn read(&self, chains: &[&str]) -> Result<Listing, Error> {
        match self.variant {
            Variant::Nft => self.read_nft(chains),
            // The tool would create a table that does not exist.
            Variant::Legacy if !legacy::has_table(self.family, self.table)? => Ok(Listing::default()),
            Variant::Legacy => Ok(Listing::parse_chains(&self.print_table()?, self.table, chains)),
        }
    }

    pub(super) fn print_table(&self) -> Result<String, Error> {
        let (program, run) = self.list()?;
        if !run.status.success() {
            let operation = format!("run {} -t {}", program.display(), self.table.as_str());
            return Err(Error::kernel(operation, Cause::Tool(complaint(&run))));
        }
        Ok(text(&run))
    }

    /// Checks whether the program can list the table.
    pub(super) fn try_to_list(&self) -> Result<(), Error> {
        let (program, run) = self.list()?;
        self.works(&program, &run)
    }

    /// Checks whether the program can add these rules, given as its input.
    pub(super) fn try_rules(&self, rules: &str) -> Result<(), Error> {
        let program = self.program("restore")?;
        let run = run(&program, &["--noflush", "--wait", "1"], rules)?;
        // The process that holds the lock uses the same tables, so the kernel has them.
        if self.variant == Variant::Legacy && complaint(&run).contains(LOCKED) {
            return Ok(());
        }
        self.works(&program, &run)
    }

    fn works(&self, program: &Path, run: &Output) -> Result<(), Error> {
        if run.status.success() {
            return Ok(());
        }
        if let Some(signal) = run.status.signal() {
            // The kernel may have killed the program for lack of memory, for instance, which says nothing about the
            // tables.
            let killed = std::io::Error::other(format!("killed by signal {signal}"));
            return Err(Error::kernel(format!("try {}", program.display()), killed));
        }
        let program = program.display().to_string();
        Err(Error::IptablesFails { program, table: self.table.as_str(), complaint: complaint(run) })
    }

    fn list(&self) -> Result<(PathBuf, Output), Error> {
        let program = self.program("save")?;
        let run = run(&program, &["-t", self.table.as_str()], "")?;
        Ok((program, run))
    }

    /// Makes the tool print only these chains, because a service proxy may have a hundred thousand rules in the
    /// table. Asking the kernel which of the chains exist is cheap.
    fn read_nft(&self, chains: &[&str]) -> Result<Listing, Error> {
        let socket = Socket::open().map_err(|e| Error::kernel("reach nf_tables", e))?;
        let table = table_id(self.family, self.table);
        let mut print = Batch::new(self.table);
        for chain in chains {
            let found = socket.chain(&table, chain);
            if found.map_err(|e| Error::kernel(format!("read chain {table} {chain}"), e))?.is_some() {
                print.print(chain);
            }
        }
        if print.is_empty() {
            return Ok(Listing::default());
        }
        let run = run(&self.program("restore")?, &["--noflush"], &print.to_string())?;
        if run.status.success() {
            return Ok(Listing::parse(&text(&run), self.table));
        }
        // A chain has been deleted since the kernel was asked.
        self.print_table().map(|text| Listing::parse(&text, self.table))
    }

    /// Commits the batch: either all changes or none.
    pub(crate) fn commit(&self, batch: &Batch) -> Result<(), Refusal> {
        if batch.is_empty() {
            return Ok(());
        }
        let program = self.program("restore").map_err(Refusal::Failed)?;
        // The tool accepts whole seconds, at least one.
        let wait = self.deadline.saturating_duration_since(Instant::now()).as_secs().max(1).to_string();
        let input = batch.to_string();
        for line in input.lines().filter(|_| log::log_enabled!(log::Level::Debug)) {
            log::debug!("{}: {line}", program.display());
        }
        let run = run(&program, &["--noflush", "--wait", &wait], &input);
        let run = run.map_err(Refusal::Failed)?;
        if run.status.success() {
            return Ok(());
        }
        let complaint = complaint(&run);
        if self.variant == Variant::Legacy && complaint.contains(LOCKED) {
            return Err(Refusal::Failed(Error::XtablesLock {
                program: program.display().to_string(),
                seconds: wait,
                holder: lock_holder(),
            }));
        }
        Err(Refusal::Ruleset(format!("{}: {complaint}", program.display())))
    }

    /// Reads the chains, unless `seen` is given, and commits the changes that they need. Repeats both as long as
    /// other processes change the same chains.
    ///
    /// An outdated `seen` does no harm, because the tool refuses a batch that does not fit the ruleset.
    pub(crate) fn update(
        &self,
        operation: &str,
        chains: &[&str],
        seen: Option<Listing>,
        mut changes: impl FnMut(&Listing) -> Batch,
    ) -> Result<(), Error> {
        let mut listing = seen.map_or_else(|| self.read(chains), Ok)?;
        let mut attempts = 0;
        loop {
            let complaint = match self.commit(&changes(&listing)) {
                Ok(()) => return Ok(()),
                Err(Refusal::Failed(error)) => return Err(error),
                Err(Refusal::Ruleset(complaint)) => complaint,
            };
            attempts += 1;
            let now = self.read(chains)?;
            // The batch was refused twice for the same rules, so other processes are not the cause.
            if now == listing && attempts > 1 {
                return Err(Error::kernel(operation, Cause::Tool(complaint)));
            }
            if Instant::now() >= self.deadline {
                let (operation, millis) = (operation.to_owned(), PATIENCE.as_millis());
                return Err(Error::Busy { operation, attempts, millis });
            }
            listing = now;
        }
    }
}

/// Finds the programs of both families.
pub(super) fn programs(variant: Variant) -> Result<Vec<PathBuf>, Error> {
    let all = AddressFamily::BOTH.into_iter().flat_map(|family| [(family, "restore"), (family, "save")]);
    all.map(|(family, suffix)| Tools::nat(Place { variant, family }).program(suffix)).collect()
}

/// True if the programs of both families are installed.
pub(super) fn are_installed(variant: Variant) -> Result<bool, Error> {
    match programs(variant) {
        Ok(_) => Ok(true),
        Err(Error::NoIptables { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The process that holds the legacy tools' lock, as far as it can be found.
fn lock_holder() -> String {
    let file = std::env::var_os("XTABLES_LOCKFILE").map_or_else(|| "/run/xtables.lock".into(), PathBuf::from);
    let pid = std::fs::metadata(file)
        .ok()
        .and_then(|meta| holder_in(&std::fs::read_to_string("/proc/locks").ok()?, meta.dev(), meta.ino()));
    let Some(pid) = pid else { return "an unknown process".to_owned() };
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name.is_empty() { format!("process {pid}") } else { format!("process {pid} ({})", name.trim()) }
}

/// Finds the holder of a file's lock in the text of `/proc/locks` (proc_locks(5)). A line has a number, kind, mode,
/// access, process, and the file as major:minor:inode, with the device's numbers in hexadecimal. A waiting process
/// has an arrow after the number.
fn holder_in(locks: &str, dev: u64, ino: u64) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{ino}", nix::sys::stat::major(dev), nix::sys::stat::minor(dev));
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [_, "FLOCK" | "POSIX" | "OFDLCK", _, _, pid, is, ..] if *is == file => pid.parse().ok(),
            _ => None,
        }
    })
}

/// What a program wrote to standard error, as one line, or its exit status if it wrote nothing.
fn complaint(run: &Output) -> String {
    let text = String::from_utf8_lossy(&run.stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { run.status.to_string() } else { lines.join("; ") }
}

/// Runs a program with this standard input, and kills it after [`RUN_LIMIT`].
fn run(program: &Path, arguments: &[&str], input: &str) -> Result<Output, Error> {
    let shown = program.display();
    let failed = |what: &str, error: std::io::Error| Error::kernel(format!("{what} {shown}"), error);
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = kill_with_parent(&mut command).spawn().map_err(|e| failed("run", e))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let child = Mutex::new(child);
    let child = || child.lock().unwrap_or_else(PoisonError::into_inner);
    let (ended, ending) = mpsc::channel::<()>();
    let talked = std::thread::scope(|scope| {
        let kill_if_late = move || {
            let late = ending.recv_timeout(RUN_LIMIT) == Err(RecvTimeoutError::Timeout);
            // An error means that the program has just ended.
            late && child().kill().is_ok()
        };
        let write = || stdin.map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
        let start = || {
            let killer = Builder::new().spawn_scoped(scope, kill_if_late)?;
            let writer = Builder::new().spawn_scoped(scope, write)?;
            Ok((killer, writer, Builder::new().spawn_scoped(scope, || read_all(stderr))?))
        };
        let (killer, writer, errors) = match start() {
            Ok(threads) => threads,
            Err(error) => {
                // The node cannot start another thread. The threads that were started end together with the program.
                let _ended = child().kill();
                drop(ended);
                return Err(error);
            }
        };
        let stdout = read_all(stdout);
        // Only a message, without which the exit status is reported.
        let stderr = errors.join().ok().and_then(Result::ok).unwrap_or_default();
        drop(ended);
        let written = writer.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
        Ok((stdout, stderr, written, killer.join().unwrap_or_default()))
    });
    // Needed after a failure as well, because a program for which nobody waits stays a zombie.
    let status = child().wait().map_err(|e| failed("wait for", e))?;
    let (stdout, stderr, written, killed) = talked.map_err(|e| failed("start a thread for", e))?;
    if killed {
        return Err(Error::IptablesHangs { program: shown.to_string(), seconds: RUN_LIMIT.as_secs() });
    }
    if status.success() {
        // The program would have treated a part of its input as the whole. A program that failed prints its own
        // reason.
        written.map_err(|e| failed("write to", e))?;
    }
    // Without a part of the output, a chain would seem to be empty.
    let stdout = stdout.map_err(|e| failed("read the output of", e))?;
    Ok(Output { status, stdout, stderr })
}

fn text(run: &Output) -> String {
    String::from_utf8_lossy(&run.stdout).into_owned()
}

fn read_all(from: Option<impl Read>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        from.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_holds_a_lock_is_found() {
        let locks = "1: FLOCK  ADVISORY  WRITE 21770 00:27:4 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 99 00:27:5 0 EOF\n\
                     2: POSIX  ADVISORY  READ 20654 fe:00:10133507 0 EOF\n";
        let device = nix::sys::stat::makedev(0, 0x27);
        assert_eq!(holder_in(locks, device, 4), Some(21770));
        assert_eq!(holder_in(locks, device, 5), None, "it waits");
        assert_eq!(holder_in(locks, nix::sys::stat::makedev(0xfe, 0), 10_133_507), Some(20654));
        assert_eq!(holder_in(locks, device, 6), None);
    }

    #[test]
    fn only_a_program_that_ran_shows_its_variant() {
        let ran = |status, printed: &str| {
            let status = std::process::ExitStatus::from_raw(status);
            variant_of(Ok(Output { status, stdout: printed.into(), stderr: Vec::new() }))
        };
        assert_eq!(ran(0, "iptables v1.8.10 (nf_tables)\n").unwrap(), Some(Variant::Nft));
        assert_eq!(ran(0, "iptables v1.6.1\n").unwrap(), Some(Variant::Legacy));
        assert_eq!(ran(9, "").unwrap(), None, "it was killed");
        let refused = |errno: Errno| variant_of(Err(std::io::Error::from_raw_os_error(errno as i32)));
        assert!(refused(Errno::EAGAIN).is_err());
        assert_eq!(refused(Errno::ENOEXEC).unwrap(), None, "another try would end in the same way");
    }

    #[test]
    fn programs_are_run_to_their_end() {
        let long = "x".repeat(300_000);
        let run = run(Path::new("/bin/cat"), &[], &long).unwrap();
        assert!(run.status.success());
        assert_eq!(run.stdout.len(), long.len());
        let run = super::run(Path::new("/bin/sh"), &["-c", "echo why >&2; exit 3"], &long).unwrap();
        assert_eq!((run.status.success(), complaint(&run).as_str()), (false, "why"));
        // The program ended successfully without reading all of its input.
        assert!(super::run(Path::new("/bin/sh"), &["-c", "exit 0"], &long).is_err());
        assert!(super::run(Path::new("/bin/sh"), &["-c", "exit 0"], "").is_ok());
        assert!(super::run(Path::new("/nowhere/tool"), &[], "").is_err());
    }
}
