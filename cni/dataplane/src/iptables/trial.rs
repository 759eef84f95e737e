// SPDX-License-Identifier: GPL-2.0-or-later

//! Tries out the programs of iptables. An installed program does not necessarily work, because many kernels lack the
//! tables of the legacy variant.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cni_kernel::dir::DurableDir;
use nix::sched::{CloneFlags, unshare};

use super::names::TableName;
use super::tools::{self, Place, Tools, Variant};
use crate::run_dir::RUN_DIR;
use crate::{AddressFamily, Error};

/// The chain for the rules of a trial. Nothing jumps to it.
const CHAIN: &str = "CNI-TRIAL";
/// The longest record that is read, in bytes.
const LONGEST: usize = 8192;

/// Makes the programs of a variant list a table and add rules with the same matches and targets as ours, for each
/// family that the kernel has. On a kernel without x_tables, iptables-nft can list tables but cannot add such rules.
///
/// # Errors
/// [`Error::NoIptables`] if a program is missing, [`Error::IptablesFails`] if one fails.
pub(super) fn try_out(variant: Variant, table: TableName) -> Result<(), Error> {
    tools::programs(variant)?;
    // The legacy tools create the table that they list, with its hooks, so the trial runs in a namespace of its own.
    let work = || {
        let own = unshare(CloneFlags::CLONE_NEWNET);
        if let Err(errno) = &own {
            log::debug!("make a network namespace: {errno}: iptables only lists a table");
        }
        families().try_for_each(|family| {
            let tools = Tools::new(Place { variant, family }, table);
            tools.try_to_list()?;
            own.map_or(Ok(()), |()| tools.try_rules(&rules(family, table)))
        })
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work);
        let thread =
            thread.map_err(|error| Error::kernel("start a thread to try iptables".to_owned(), error))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The input of iptables-restore with a rule of each kind that containers get.
fn rules(family: AddressFamily, table: TableName) -> String {
    let target = match family {
        AddressFamily::V4 => "192.0.2.1:80",
        AddressFamily::V6 => "[2001:db8::1]:80",
    };
    let comment = "-m comment --comment trial";
    let rules = match table {
        TableName::Nat => [
            format!("-p tcp {comment} -m multiport --dports 80 -j DNAT --to-destination {target}"),
            format!("{comment} -j MASQUERADE"),
        ],
        TableName::Filter | TableName::Mangle => [
            format!("{comment} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
            format!("{comment} -j RETURN"),
        ],
    };
    let rules = rules.map(|rule| format!("-A {CHAIN} {rule}\n")).concat();
    format!("*{}\n:{CHAIN} - [0:0]\n{rules}COMMIT\n", table.as_str())
}

/// The families that the kernel has. Without IPv6 (`ipv6.disable=1`), no table of that family can be listed.
fn families() -> impl Iterator<Item = AddressFamily> {
    let has_ipv6 = Path::new("/proc/sys/net/ipv6").is_dir();
    AddressFamily::BOTH.into_iter().filter(move |family| *family == AddressFamily::V4 || has_ipv6)
}

/// The first of the variants that works.
///
/// The answer is recorded below /run for as long as the programs are the same, so that an ADD does not repeat a trial
/// that succeeded. A failure is not recorded, because loading a module later can end it.
///
/// # Errors
/// If no variant works, the error of the first one that is installed, or [`Error::NoIptables`]. If a trial was cut
/// short, the error of that trial: trying the next variant could choose it although this one works, and containers
/// would have rules in both.
pub(super) fn first_working(candidates: &[Variant], table: TableName) -> Result<Variant, Error> {
    let record = record_text(candidates, table);
    if let Some(variant) = recorded(&record, table) {
        return Ok(variant);
    }
    first_tried(candidates, table)
}

/// Like [`first_working`], but ignores the record.
pub(super) fn first_tried(candidates: &[Variant], table: TableName) -> Result<Variant, Error> {
    let mut reason: Option<Error> = None;
    for variant in candidates.iter().copied() {
        let error = match try_out(variant, table) {
            Ok(()) => {
                write_record(&record_text(candidates, table), table, variant);
                return Ok(variant);
            }
            Err(error @ (Error::NoIptables { .. } | Error::IptablesFails { .. })) => error,
            Err(error) => return Err(error),
        };
        log::debug!("iptables-{variant} does not work: {error}");
        let is_better =
            |old: &Error| matches!((old, &error), (Error::NoIptables { .. }, Error::IptablesFails { .. }));
        if reason.as_ref().is_none_or(is_better) {
            reason = Some(error);
        }
    }
    remove_record(table);
    Err(match reason {
        Some(error @ Error::IptablesFails { .. }) => error,
        _ => Error::NoIptables { program: "iptables".to_owned() },
    })
}

/// The name of a table's record in the run directory.
fn record_name(table: TableName) -> String {
    format!("iptables-{}", table.as_str())
}

/// The candidates in their order, with the identity of their programs' files. If a file changes, the record is no
/// longer valid.
fn record_text(candidates: &[Variant], table: TableName) -> String {
    let mut text = String::new();
    for variant in candidates {
        for family in AddressFamily::BOTH {
            let program = Tools::new(Place { variant: *variant, family }, table).program("restore").ok();
            let file = program.and_then(|program| Some((fs::metadata(&program).ok()?, program)));
            let file = file.map(|(meta, program)| {
                format!("{} {} {} {}", program.display(), meta.dev(), meta.ino(), meta.mtime())
            });
            text += &format!("{variant} {}\n", file.unwrap_or_default());
        }
    }
    text
}

/// The variant in the record, if the record is still valid.
fn recorded(expected: &str, table: TableName) -> Option<Variant> {
    let directory = DurableDir::open(Path::new(RUN_DIR)).ok()?;
    let text = String::from_utf8(directory.read(record_name(table), LONGEST).ok()??).ok()?;
    let variant = text.strip_prefix(expected)?.trim_end();
    Variant::ALL.into_iter().find(|known| known.as_str() == variant)
}

/// Records the variant that works. If this fails, the next ADD repeats the trial.
fn write_record(text: &str, table: TableName, variant: Variant) {
    let written = DurableDir::create(Path::new(RUN_DIR), 0o755).and_then(|directory| {
        directory.replace(record_name(table), format!("{text}{variant}\n").as_bytes(), 0o600)
    });
    if let Err(error) = written {
        log::debug!("{error}: iptables will be tried again");
    }
}

fn remove_record(table: TableName) {
    let removed =
        DurableDir::open(Path::new(RUN_DIR)).and_then(|directory| directory.remove(record_name(table)));
    if let Err(error) = removed {
        log::debug!("{error}");
    }
}
