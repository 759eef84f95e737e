// SPDX-License-Identifier: GPL-3.0-or-later

//! The committed inputs in `tests/fuzz/seeds`, with a folder for each target.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::target::Target;

/// The maximum size of the seeds of all targets, in bytes.
pub const LIMIT: u64 = 2 << 20;

#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds")
}

/// The seeds of a target, ordered by file name. A target without a folder has none.
///
/// # Errors
/// A file cannot be read.
pub fn seeds(folder: &Path, target: &Target) -> io::Result<Vec<Vec<u8>>> {
    files(&folder.join(target.name))?.iter().map(fs::read).collect()
}

/// The files in a folder, sorted. Empty if the folder does not exist.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut all = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    all.retain(|path| path.is_file());
    all.sort();
    Ok(all)
}

/// The size of all seeds in bytes.
///
/// # Errors
/// A folder cannot be read.
pub fn size(folder: &Path) -> io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        for file in files(&entry?.path())? {
            sum += fs::metadata(file)?.len();
        }
    }
    Ok(sum)
}

/// Writes new seeds for a target, until the seeds of all targets reach [`LIMIT`] or `most` are written. Returns their
/// number.
///
/// # Errors
/// A file cannot be written.
pub fn add(folder: &Path, target: &Target, inputs: &[Vec<u8>], most: usize) -> io::Result<usize> {
    let own = folder.join(target.name);
    fs::create_dir_all(&own)?;
    let (mut left, mut written) = (LIMIT.saturating_sub(size(folder)?), 0);
    for input in inputs {
        let length = input.len() as u64;
        if length > left || written == most {
            break;
        }
        let path = own.join(name(input));
        if !path.exists() {
            fs::write(path, input)?;
            left -= length;
            written += 1;
        }
    }
    Ok(written)
}

/// The file name for an input: the FNV-1a hash of its bytes.
#[must_use]
pub fn name(input: &[u8]) -> String {
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TARGETS;

    #[test]
    fn seeds_are_written_once_and_within_the_limit() {
        let temp = tempfile::tempdir().unwrap();
        let target = &TARGETS[0];
        assert!(seeds(temp.path(), target).unwrap().is_empty());
        let inputs = [b"a".to_vec(), b"b".to_vec(), vec![0; 3 << 20]];
        assert_eq!(add(temp.path(), target, &inputs, 9).unwrap(), 2);
        assert_eq!(add(temp.path(), target, &inputs, 9).unwrap(), 0);
        assert_eq!(add(temp.path(), target, &[b"c".to_vec(), b"d".to_vec()], 1).unwrap(), 1);
        assert_eq!((seeds(temp.path(), target).unwrap().len(), size(temp.path()).unwrap()), (3, 3));
    }
}
