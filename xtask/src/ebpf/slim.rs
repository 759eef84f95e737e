// SPDX-License-Identifier: MIT OR Apache-2.0

//! Removes the sections of an object that no loader reads: DWARF debugging information, and the relocations
//! of BTF.
//!
//! The kernel reads types and line numbers from `.BTF` and `.BTF.ext`, which were made of the DWARF sections;
//! these are nine tenths of the file. The relocations of `.BTF` and `.BTF.ext`, a quarter of the rest, are for
//! linkers: their results are in these sections already, and aya and libbpf ignore them. On most machines,
//! binutils' strip does not support BPF. Offsets are those of ELF-64: elf(5).

use std::ops::Range;

/// The version of this step, a part of the key under which its results are cached.
pub(super) const VERSION: &str = "2";

/// Length of the file header, and of an entry of the table of sections.
const HEADER: usize = 64;

/// The same object with these sections empty; they stay in the table so that no index changes. None if it is
/// not a little-endian ELF-64 file, or a table exceeds it.
pub(super) fn slim(object: &[u8]) -> Option<Vec<u8>> {
    if object.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] || half(object, 0x3a)? != HEADER {
        return None;
    }
    let (table, count) = (long(object, 0x28)?, half(object, 0x3c)?);
    let entry = |index: usize| object.get(table + index * HEADER..table + (index + 1) * HEADER);
    let names = content(entry(half(object, 0x3e)?)?)?;
    let names = object.get(names)?;
    let mut slim = object.get(..HEADER)?.to_vec();
    let mut entries = Vec::new();
    for index in 0..count {
        let mut header = entry(index)?.to_vec();
        let name = names.get(word(&header, 0)?..)?;
        let place = if is_unread(name) || word(&header, 4)? == 0 { 0..0 } else { content(&header)? };
        slim.resize(slim.len().next_multiple_of(long(&header, 0x30)?.clamp(1, 4096)), 0);
        header.get_mut(0x18..0x20)?.copy_from_slice(&(slim.len() as u64).to_le_bytes());
        header.get_mut(0x20..0x28)?.copy_from_slice(&(place.len() as u64).to_le_bytes());
        slim.extend_from_slice(object.get(place)?);
        entries.extend(header);
    }
    slim.resize(slim.len().next_multiple_of(8), 0);
    let table = slim.len() as u64;
    slim.extend(entries);
    slim.get_mut(0x28..0x30)?.copy_from_slice(&table.to_le_bytes());
    Some(slim)
}

fn is_unread(name: &[u8]) -> bool {
    // The prefix `.rel.BTF` also matches `.rel.BTF.ext`.
    [&b".debug_"[..], b".rel.debug_", b".rel.BTF"].iter().any(|start| name.starts_with(start))
}

/// The range of a section's bytes.
fn content(header: &[u8]) -> Option<Range<usize>> {
    let (start, size) = (long(header, 0x18)?, long(header, 0x20)?);
    Some(start..start.checked_add(size)?)
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..at + 2)?.try_into().ok().map(|bytes| u16::from_le_bytes(bytes).into())
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..at + 4)?.try_into().ok().and_then(|bytes| u32::from_le_bytes(bytes).try_into().ok())
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..at + 8)?.try_into().ok().and_then(|bytes| u64::from_le_bytes(bytes).try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTIONS: [(&[u8], &[u8]); 6] = [
        (b".text", b"text"),
        (b".debug_info", b"debug!"),
        (b".BTF.ext", b"lines"),
        (b".rel.BTF.ext", b"relocated"),
        (b".rel.text", b"calls"),
        (b".names", b""),
    ];

    /// An object with a section without a name, and then [`SECTIONS`], the last of which has the names.
    fn object() -> Vec<u8> {
        let mut names = vec![0];
        for (name, _) in SECTIONS {
            names.extend_from_slice(name);
            names.push(0);
        }
        let mut object = vec![0; HEADER];
        object[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        let mut table = vec![0; HEADER];
        let mut start_of_name = 1_usize;
        for (name, content) in SECTIONS {
            let content = if name == b".names" { &names[..] } else { content };
            let mut header = vec![0; HEADER];
            header[..4].copy_from_slice(&u32::try_from(start_of_name).unwrap().to_le_bytes());
            header[4] = 1;
            header[0x18..0x20].copy_from_slice(&(object.len() as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(content.len() as u64).to_le_bytes());
            object.extend(content);
            table.extend(header);
            start_of_name += name.len() + 1;
        }
        let start = object.len() as u64;
        object[0x28..0x30].copy_from_slice(&start.to_le_bytes());
        (object[0x3a], object[0x3c], object[0x3e]) = (64, 7, 6);
        object.extend(table);
        object
    }

    fn section(object: &[u8], index: usize) -> &[u8] {
        let table = long(object, 0x28).unwrap();
        &object[content(&object[table + index * HEADER..]).unwrap()]
    }

    #[test]
    fn debugging_sections_and_relocations_of_btf_are_emptied_and_others_kept() {
        let slim = slim(&object()).unwrap();
        let kept = [&b"text"[..], b"", b"lines", b"", b"calls"];
        assert_eq!(std::array::from_fn(|index| section(&slim, index + 1)), kept);
        assert!(section(&slim, 6).ends_with(b".names\0"));
        for gone in [&b"debug!"[..], b"relocated"] {
            assert!(!slim.windows(gone.len()).any(|window| window == gone));
        }
    }

    #[test]
    fn a_truncated_or_other_file_is_refused() {
        let object = object();
        for length in 0..object.len() {
            assert_eq!(slim(&object[..length]), None, "{length}");
        }
        assert_eq!(slim(b"#!/bin/sh, and a file that is long enough to have a header in it, by far"), None);
    }
}
