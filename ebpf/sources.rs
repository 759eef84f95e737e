// SPDX-License-Identifier: MIT OR GPL-2.0-only

// The digest of the sources of the BPF object. This file is included by cni/dataplane's build script, which
// looks for an object that was built from the present sources, and by the task that builds the object.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The files and directories below `ebpf` on which the object depends.
const SOURCES: [&str; 4] = ["Cargo.toml", "Cargo.lock", "abi", "programs"];

/// The file next to the committed object that says what the object was built from.
pub(crate) const BUILT_FROM: &str = "built-from.txt";

/// The value of the line `NAME: VALUE` in that file.
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
        // Temporary files of editors and build output are not sources.
        let text = name.to_string_lossy();
        if !text.starts_with('.') && !text.ends_with('~') && text != "target" {
            collect(ebpf, &path.join(name), files)?;
        }
    }
    Ok(())
}
