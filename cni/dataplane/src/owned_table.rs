// SPDX-License-Identifier: GPL-2.0-or-later

//! A table of nf_tables that Slipway owns: its socket, the chain that marks its layout, and how it is changed.

use std::time::{Duration, Instant};

use cni_kernel::lock::FileLock;
use cni_nftables::{
    ChainInfo, ElementId, ElementInfo, Error as NftError, Family, Socket, TableId, TableInfo, Transaction,
};

use crate::lock::{self, Mode};
use crate::{Error, NfTablesLack};

/// The lock of a process that repeats its commit, because the first one was stale.
const QUEUE: &str = "commits.lock";

/// How long an operation is repeated while other processes change the ruleset.
const PATIENCE: Duration = Duration::from_secs(15);

/// The prefix of the name of the empty chain that marks a layout. The number is in a chain's name because the kernel
/// cannot change a table's comment, but an upgrade can replace a chain in the same batch.
const MARKER: &str = "schema-";

/// A table, and the newest of its layouts that this version knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Definition {
    pub(crate) family: Family,
    pub(crate) name: &'static str,
    /// Family and name, for messages.
    pub(crate) label: &'static str,
    pub(crate) schema: u32,
}

impl Definition {
    pub(crate) fn id(&self) -> TableId {
        TableId::new(self.family, self.name)
    }
}

/// The name of the chain that marks this layout.
pub(crate) fn marker(schema: u32) -> String {
    format!("{MARKER}{schema}")
}

/// The layout that a chain with this name marks.
pub(crate) fn schema_of(chain: &str) -> Option<u32> {
    chain.strip_prefix(MARKER)?.parse().ok()
}

/// A table in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct OwnedTable {
    pub(crate) socket: Socket,
    pub(crate) table: TableId,
    definition: Definition,
}

impl OwnedTable {
    /// Opens the socket. The table may be missing.
    pub(crate) fn open(definition: Definition) -> Result<Self, Error> {
        let socket = Socket::open().map_err(|e| unreachable_nf_tables("reach nf_tables", e))?;
        Ok(Self { socket, table: definition.id(), definition })
    }

    /// Reads the ruleset's generation.
    pub(crate) fn generation(&self) -> Result<u32, Error> {
        generation(&self.socket)
    }

    /// Reads the table itself.
    pub(crate) fn info(&self) -> Result<Option<TableInfo>, Error> {
        let read = self.socket.table(&self.table);
        read.map_err(|e| unreachable_nf_tables(&format!("read table {}", self.definition.label), e))
    }

    /// Reads one of its chains.
    pub(crate) fn chain(&self, name: &str) -> Result<Option<ChainInfo>, Error> {
        let read = self.socket.chain(&self.table, name);
        read.map_err(|e| Error::kernel(format!("read chain {name} of table {}", self.definition.label), e))
    }

    /// Reads its chains of these names.
    pub(crate) fn chains_named(&self, names: &[&str]) -> Result<Vec<ChainInfo>, Error> {
        let read = self.socket.chains_named(&self.table, names);
        read.map_err(|e| Error::kernel(format!("read chains of table {}", self.definition.label), e))
    }

    /// Lists its chains.
    pub(crate) fn chains(&self) -> Result<Vec<ChainInfo>, Error> {
        let read = self.socket.chains(&self.table);
        read.map_err(|e| Error::kernel(format!("list the chains of table {}", self.definition.label), e))
    }

    /// Reads one of its elements.
    pub(crate) fn element(&self, id: &ElementId) -> Result<Option<ElementInfo>, Error> {
        let read = self.socket.element(id);
        read.map_err(|e| Error::kernel(format!("read table {}", self.definition.label), e))
    }

    /// Finds out which layout the table has, the present one or an earlier one. None if there is no table.
    ///
    /// While another process removes or makes the table, it may appear without its chains, because each object is
    /// read separately. The table is then read again until the ruleset has not changed between two reads.
    ///
    /// # Errors
    /// [`Error::ForeignTable`] for a table without a marker; [`Error::NewerSchema`] for a later layout, which may
    /// contain more than this version knows.
    pub(crate) fn schema(&self) -> Result<Option<u32>, Error> {
        let mut found = self.look_for_schema();
        let begun = Instant::now();
        while matches!(found, Err(Error::ForeignTable { .. })) && begun.elapsed() < PATIENCE {
            let before = self.generation()?;
            found = self.look_for_schema();
            if self.generation()? == before {
                break;
            }
        }
        found
    }

    fn look_for_schema(&self) -> Result<Option<u32>, Error> {
        let Definition { label: table, schema: known, .. } = self.definition;
        if self.chain(&marker(known))?.is_some() {
            return Ok(Some(known));
        }
        match self.chains()?.iter().filter_map(|chain| schema_of(&chain.name)).max() {
            None if self.info()?.is_none() => Ok(None),
            None => Err(Error::ForeignTable { table }),
            Some(found) if found > known => Err(Error::NewerSchema { table, found, known }),
            found => Ok(found),
        }
    }

    /// Like the function [`transact`], with this table's socket.
    pub(crate) fn transact<T>(
        &self,
        operation: &str,
        build: impl FnMut(u32) -> Result<(Transaction, T), Error>,
    ) -> Result<T, Error> {
        transact(&self.socket, operation, build)
    }
}

/// Builds a batch from what the ruleset contains, and commits it if the ruleset's generation is still the same. If
/// another process was faster, the batch is built again. Returns what `build` returned together with the batch. An
/// empty batch is not committed.
///
/// # Errors
/// The error of `build`, [`Error::Kernel`] if the kernel refuses the batch, or [`Error::Busy`] if the ruleset
/// changed at every attempt.
pub(crate) fn transact<T>(
    socket: &Socket,
    operation: &str,
    mut build: impl FnMut(u32) -> Result<(Transaction, T), Error>,
) -> Result<T, Error> {
    let mut patience = Patience::new();
    loop {
        let generation = generation(socket)?;
        let (batch, value) = build(generation)?;
        if batch.is_empty() {
            return Ok(value);
        }
        match socket.commit(&batch, Some(generation)) {
            Ok(()) => return Ok(value),
            Err(failure) => patience.queue(operation, failure)?,
        }
    }
}

/// What `build` returns if there is nothing to change.
pub(crate) fn unchanged<T>(value: T) -> Result<(Transaction, T), Error> {
    Ok((Transaction::new(), value))
}

fn generation(socket: &Socket) -> Result<u32, Error> {
    socket.generation().map_err(|e| unreachable_nf_tables("read the ruleset's generation", e))
}

/// Tells a kernel without nf_tables from a kernel that refuses a request.
fn unreachable_nf_tables(operation: &str, error: NftError) -> Error {
    match error.unsupported() {
        Some(_) => NfTablesLack::Refusal(error).into(),
        None => Error::kernel(operation, error),
    }
}

/// Treats a kernel without nf_tables as an empty result, because there is nothing to read or to remove.
pub(crate) fn unless_no_nf_tables<T: Default>(result: Result<T, Error>) -> Result<T, Error> {
    match result {
        Err(Error::NoNfTables(_)) => Ok(T::default()),
        other => other,
    }
}

/// Limits how often and how long a commit is repeated after another process's commit has made it stale.
#[derive(Debug)]
pub(crate) struct Patience {
    since: Instant,
    attempts: u32,
    /// The lock [`QUEUE`].
    turn: Option<FileLock>,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), attempts: 0, turn: None }
    }

    /// Waits before a commit is repeated. The first time, this waits until no other process repeats a commit; later
    /// calls do not wait. With random pauses instead, an unlucky process would wait for seconds.
    fn queue(&mut self, operation: &str, failure: NftError) -> Result<(), Error> {
        if !failure.is_stale_generation() {
            return self.wait(operation, failure);
        }
        let passed = self.count(operation)?;
        if self.turn.is_none() {
            match lock::take(QUEUE, Mode::Exclusive, PATIENCE.saturating_sub(passed)) {
                Ok(turn) => self.turn = Some(turn),
                Err(error) => {
                    log::debug!("{error}");
                    self.sleep();
                }
            }
        }
        Ok(())
    }

    /// Sleeps before another attempt. Fails if another attempt would not help.
    pub(crate) fn wait(&mut self, operation: &str, failure: NftError) -> Result<(), Error> {
        // Any other failure would occur again, because in an unchanged generation what was read is still true.
        if !failure.is_stale_generation() && !failure.is_busy() {
            return Err(Error::kernel(operation, failure));
        }
        self.pause(operation)
    }

    /// Sleeps before another attempt.
    pub(crate) fn pause(&mut self, operation: &str) -> Result<(), Error> {
        self.count(operation)?;
        self.sleep();
        Ok(())
    }

    /// Counts an attempt, and returns the time since the first one began.
    fn count(&mut self, operation: &str) -> Result<Duration, Error> {
        self.attempts += 1;
        let passed = self.since.elapsed();
        if passed > PATIENCE {
            let operation = operation.to_owned();
            return Err(Error::Busy { operation, attempts: self.attempts, millis: passed.as_millis() });
        }
        Ok(passed)
    }

    fn sleep(&self) {
        // The pause is chosen uniformly from a window that doubles up to 64 ms. The clock's low digits and the
        // process ID are random enough to spread processes that began at the same time.
        let window = 1u64 << self.attempts.min(6);
        let seed = u64::from(Instant::now().duration_since(self.since).subsec_nanos())
            ^ u64::from(std::process::id());
        let micros = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        std::thread::sleep(Duration::from_micros(micros % (window * 1000)));
    }
}
