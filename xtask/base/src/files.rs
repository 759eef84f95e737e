// SPDX-License-Identifier: MIT OR Apache-2.0

//! Operations on files, whose errors name the operation and the file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

pub fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    fs::read_to_string(path).map_err(|e| Error::file("read", path, e))
}

pub fn read_bytes(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let path = path.as_ref();
    fs::read(path).map_err(|e| Error::file("read", path, e))
}

pub fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
    let path = path.as_ref();
    fs::write(path, content).map_err(|e| Error::file("write", path, e))
}

pub fn create(path: impl AsRef<Path>) -> Result<fs::File> {
    let path = path.as_ref();
    fs::File::create(path).map_err(|e| Error::file("create", path, e))
}

/// Creates a directory, and those above it that are missing.
pub fn create_dir(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    fs::create_dir_all(path).map_err(|e| Error::file("create the directory", path, e))
}

pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let from = from.as_ref();
    fs::copy(from, to).map(drop).map_err(|e| Error::file("copy", from, e))
}

pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let from = from.as_ref();
    fs::rename(from, to).map_err(|e| Error::file("rename", from, e))
}

/// The paths of a directory's entries, sorted.
pub fn list(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let folder = folder.as_ref();
    let failed = |e| Error::file("list", folder, e);
    let entries = fs::read_dir(folder).map_err(failed)?;
    let mut paths = entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// The paths of all files below a directory, sorted, without files in directories whose names `is_entered` rejects.
/// Symbolic links are not followed.
pub fn below(folder: impl AsRef<Path>, is_entered: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.as_ref().to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in list(folder)? {
            let is_folder = path.is_dir() && !path.is_symlink();
            if !is_folder {
                found.push(path);
            } else if path.file_name().is_some_and(|name| is_entered(&name.to_string_lossy())) {
                folders.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// True for directories with sources: neither cargo's target nor hidden.
pub fn has_sources(name: &str) -> bool {
    name != "target" && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_below_chosen_folders() {
        let top = crate::workspace::scratch("files-test").unwrap();
        for folder in ["a/b", ".hidden", "target"] {
            create_dir(top.join(folder)).unwrap();
            write(top.join(folder).join("x"), "").unwrap();
        }
        assert_eq!(below(&top, has_sources).unwrap(), [top.join("a/b/x")]);
        assert_eq!(below(&top, |_| true).unwrap().len(), 3);
        let error = read(top.join("none")).unwrap_err().to_string();
        assert!(error.starts_with(&format!("read {}/none: ", top.display())), "{error}");
    }
}
