// SPDX-License-Identifier: GPL-2.0-or-later

//! A table of nf_tables that Slipway owns: the socket to it, the chain that marks its layout, and changes to
//! it.

use std::time::{Duration, Instant};

use cni_kernel::lock::FileLock;
use cni_nftables::{
    ChainInfo, ElementId, ElementInfo, Error as NftError, Family, Socket, TableId, TableInfo, Transaction,
};

use crate::lock::{self, Mode};
use crate::{Error, NfTablesLack};

/// The lock of the process whose commit was stale and that repeats it.
const QUEUE: &str = "commits.lock";

/// Time limit for repeating an operation while other processes change the ruleset.
const PATIENCE: Duration = Duration::from_secs(15);

/// Prefix of the name of the empty chain that marks a layout. The kernel cannot change a table's
/// comment, so the number is in the name of a chain, which an upgrade replaces in its batch.
const MARKER: &str = "schema-";

/// A table, and the newest layout of it that this version knows.
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

/// The name of the chain that marks a layout.
pub(crate) fn marker(schema: u32) -> String {
    format!("{MARKER}{schema}")
}

/// The layout that a chain of this name marks.
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

    /// Reads which layout the table has, today's or an earlier one; none if there is no table.
    ///
    /// A table that another process is just removing or making may appear without its chains, because each object is
    /// read separately. The table is read again until the ruleset has not changed between two reads.
    ///
    /// # Errors
    /// [`Error::ForeignTable`] for a table without a marker, [`Error::NewerSchema`] for a later layout, which
    /// may hold more than is known here.
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

    /// Like [`transact`], through this socket.
    pub(crate) fn transact<T>(
        &self,
        operation: &str,
        build: impl FnMut(u32) -> Result<(Transaction, T), Error>,
    ) -> Result<T, Error> {
        transact(&self.socket, operation, build)
    }
}

/// Builds a batch from what the ruleset holds, and commits it if the ruleset's generation is still the same. If another
/// process was faster, the batch is built again. Returns what was built along with the batch. An empty batch is not
/// committed.
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

/// The outcome of a [`transact`] that has nothing to change.
pub(crate) fn unchanged<T>(value: T) -> Result<(Transaction, T), Error> {
    Ok((Transaction::new(), value))
}

fn generation(socket: &Socket) -> Result<u32, Error> {
    socket.generation().map_err(|e| unreachable_nf_tables("read the ruleset's generation", e))
}

/// Distinguishes a kernel without nf_tables from one that refuses.
fn unreachable_nf_tables(operation: &str, error: NftError) -> Error {
    match error.unsupported() {
        Some(_) => NfTablesLack::Refusal(error).into(),
        None => Error::kernel(operation, error),
    }
}

/// Turns the lack of nf_tables into an empty result: there is nothing to read or to remove.
pub(crate) fn unless_no_nf_tables<T: Default>(result: Result<T, Error>) -> Result<T, Error> {
    match result {
        Err(Error::NoNfTables(_)) => Ok(T::default()),
        other => other,
    }
}

/// Bounded repetition after commits that another process's commit made stale.
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

    /// Waits before a commit is repeated: the first time until no other process repeats one, later not at all. With
    /// random pauses instead, an unlucky process would wait for seconds.
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

    /// Sleeps before another attempt. Fails if that would not help.
    pub(crate) fn wait(&mut self, operation: &str, failure: NftError) -> Result<(), Error> {
        // Any other failure would repeat, because what was read is still true in an unchanged generation.
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
        // Uniform in a window that doubles up to 64 ms. The clock's low digits and the process ID are random
        // enough to spread processes that began together.
        let window = 1u64 << self.attempts.min(6);
        let seed = u64::from(Instant::now().duration_since(self.since).subsec_nanos())
            ^ u64::from(std::process::id());
        let micros = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        std::thread::sleep(Duration::from_micros(micros % (window * 1000)));
    }
}
