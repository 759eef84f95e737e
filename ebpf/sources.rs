// SPDX-License-Identifier: MIT OR GPL-2.0-only

// The digest of the BPF object's sources. Included by cni/dataplane's build script, which checks that an
// object was built from these sources, and by the task that builds it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The files and directories below `ebpf` on which the object depends.
const SOURCES: [&str; 4] = ["Cargo.toml", "Cargo.lock", "abi", "programs"];

/// The file next to the committed object that tells what it was built from.
pub(crate) const BUILT_FROM: &str = "built-from.txt";

/// The value of a line `NAME: VALUE` of that file.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// SHA-256, in hexadecimal, of the names and contents of the sources in the directory `ebpf`.
pub(crate) fn digest(ebpf: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(ebpf, Path::new(source), &mut files)?;
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let name = file.to_string_lossy().into_owned();
        let content = fs::read(ebpf.join(&file))?;
        for part in [name.as_bytes(), &content] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Collects the files below a path, relative to the directory `ebpf`.
fn collect(ebpf: &Path, path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let full = ebpf.join(path);
    if !full.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(full)? {
        let name = entry?.file_name();
        // Temporary files of editors.
        let text = name.to_string_lossy();
        if !text.starts_with('.') && !text.ends_with('~') && text != "target" {
            collect(ebpf, &path.join(name), files)?;
        }
    }
    Ok(())
}
