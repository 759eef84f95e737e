// SPDX-License-Identifier: MIT OR Apache-2.0

//! Paths in the checkout, and locks.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files;

/// The checkout's top folder.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Cargo's home, which holds the sources of dependencies.
pub fn cargo_home() -> Result<PathBuf> {
    let own = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    own.or_else(home).ok_or_else(|| Error::Failed("neither CARGO_HOME nor HOME is set".to_owned()))
}

/// The user's cache folder of the tasks, for what does not depend on the checkout: `$XDG_CACHE_HOME/slipway-build`, by
/// default below `~/.cache`; it is created if missing.
pub fn cache() -> Result<PathBuf> {
    let own = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let dir = own.or_else(home).unwrap_or_else(|| target().join("xtask")).join("slipway-build");
    // The tasks run and link files in it, so no other user may write there.
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(|e| Error::file("create the directory", &dir, e))?;
    Ok(dir)
}

/// A folder of the tasks below the target folder; it is created if missing.
pub fn scratch(name: &str) -> Result<PathBuf> {
    let path = target().join("xtask").join(name);
    files::create_dir(&path)?;
    Ok(path)
}

/// Removes a file, or a folder with everything in it. Succeeds if nothing is there.
pub fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path, e)),
        _ => Ok(()),
    }
}

/// A lock against other runs of xtask, held until the value is dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "closing the file gives the lock back")] File);

impl Lock {
    /// Waits for the exclusive lock.
    pub fn take(path: &Path) -> Result<Self> {
        let file = Self::open(path)?;
        file.lock().map_err(|e| Error::file("lock", path, e))?;
        Ok(Self(file))
    }

    /// Waits for the shared lock.
    pub fn share(path: &Path) -> Result<Self> {
        let file = Self::open(path)?;
        file.lock_shared().map_err(|e| Error::file("lock", path, e))?;
        Ok(Self(file))
    }

    fn open(path: &Path) -> Result<File> {
        files::create(path)
    }
}

/// Makes a user's path absolute. Relative ones would fail after a change of mounts.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).map_err(|e| Error::file("find", path, e))
}
