// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads how full the kernel's tables of flows and neighbours are.

use std::fs;
use std::io::{self, ErrorKind};

use crate::AddressFamily;
use crate::sysctl::{self, SysctlError};

/// How full a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// The number of its entries.
    pub entries: u64,
    /// The number of entries beyond which the kernel refuses new ones.
    pub limit: u64,
}

impl Fill {
    /// True if at least this percentage of the limit is used.
    #[must_use]
    pub const fn reaches(&self, percent: u64) -> bool {
        self.limit > 0 && self.entries.saturating_mul(100) / self.limit >= percent
    }

    /// How many flows conntrack tracks in the calling thread's namespace. None without conntrack.
    ///
    /// # Errors
    /// [`SysctlError::Read`] if a setting exists and cannot be read.
    pub fn of_flows() -> Result<Option<Self>, SysctlError> {
        let entries = number("net/netfilter/nf_conntrack_count")?;
        let limit = number("net/netfilter/nf_conntrack_max")?;
        Ok(entries.zip(limit).map(|(entries, limit)| Self { entries, limit }))
    }
}

/// The table of a family's neighbours, which all network namespaces share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbours {
    /// How full the table is.
    pub fill: Fill,
    /// How many entries were refused since the node booted, because the table was full.
    pub refused: u64,
}

impl Neighbours {
    /// Reads the table of a family. None in a namespace other than the machine's first one, because the kernel
    /// provides the statistics only there.
    ///
    /// # Errors
    /// The statistics or the setting exist and cannot be read.
    pub fn of(family: AddressFamily) -> io::Result<Option<Self>> {
        let file = match family {
            AddressFamily::V4 => "arp_cache",
            AddressFamily::V6 => "ndisc_cache",
        };
        let path = format!("/proc/thread-self/net/stat/{file}");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io::Error::new(error.kind(), format!("read {path}: {error}"))),
        };
        let limit = number(Self::setting(family)).map_err(io::Error::other)?;
        Ok(limit.and_then(|limit| Self::parse(&text, limit)))
    }

    /// The name of the setting with the limit.
    #[must_use]
    pub const fn setting(family: AddressFamily) -> &'static str {
        match family {
            AddressFamily::V4 => "net/ipv4/neigh/default/gc_thresh3",
            AddressFamily::V6 => "net/ipv6/neigh/default/gc_thresh3",
        }
    }

    /// Parses a header, followed by a line of hexadecimal numbers for each processor (`neigh_stat_seq_show` in
    /// net/core/neighbour.c).
    fn parse(text: &str, limit: u64) -> Option<Self> {
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next()?.split_whitespace().collect();
        let place = |name: &str| names.iter().position(|one| *one == name);
        let (entries, fulls) = (place("entries")?, place("table_fulls")?);
        let rows: Vec<Vec<u64>> = lines
            .map(|line| {
                line.split_whitespace().filter_map(|word| u64::from_str_radix(word, 16).ok()).collect()
            })
            .collect();
        // Each line contains the number of entries in the whole table.
        let entries = *rows.first()?.get(entries)?;
        Some(Self {
            fill: Fill { entries, limit },
            refused: rows.iter().filter_map(|row| row.get(fulls)).sum(),
        })
    }
}

/// None if this kernel or namespace has no such setting.
fn number(setting: &str) -> Result<Option<u64>, SysctlError> {
    match sysctl::get(setting) {
        Ok(value) => Ok(value.parse().ok()),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_neighbours_are_those_of_all_processors() {
        let text = "entries  allocs   table_fulls\n00000334 0000e3ef 00000002\n00000334 0000e65d 00000001\n";
        let read = Neighbours::parse(text, 1024).unwrap();
        assert_eq!(read, Neighbours { fill: Fill { entries: 820, limit: 1024 }, refused: 3 });
        assert!(read.fill.reaches(80) && !read.fill.reaches(81));
        assert!(!Fill { entries: 1, limit: 0 }.reaches(80));
        for text in ["", "entries\n", "entries table_fulls\n\n", "entries table_fulls\nx y\n"] {
            assert_eq!(Neighbours::parse(text, 1024), None, "{text:?}");
        }
    }
}
