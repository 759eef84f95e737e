//! Where things are in the checkout.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The checkout's top folder.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// A folder below the target folder that the tasks themselves use, made when it is missing.
///
/// # Errors
/// The folder that could not be made.
pub fn scratch(name: &str) -> Result<PathBuf> {
    let path = target().join("xtask").join(name);
    fs::create_dir_all(&path).map_err(|e| Error::file("create the directory", &path, e))?;
    Ok(path)
}

/// A lock that other runs of xtask respect, as long as this value lives.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing the file gives the lock back")] File);

impl Lock {
    /// Waits until nobody else has it.
    ///
    /// # Errors
    /// The file cannot be made, or locked.
    pub(crate) fn take(path: &Path) -> Result<Self> {
        let file = Self::open(path)?;
        file.lock().map_err(|e| Error::file("lock", path, e))?;
        Ok(Self(file))
    }

    /// Waits until nobody has it for himself; others may share it.
    ///
    /// # Errors
    /// As [`Lock::take`].
    pub(crate) fn share(path: &Path) -> Result<Self> {
        let file = Self::open(path)?;
        file.lock_shared().map_err(|e| Error::file("lock", path, e))?;
        Ok(Self(file))
    }

    fn open(path: &Path) -> Result<File> {
        File::create(path).map_err(|e| Error::file("make", path, e))
    }
}

/// A path that a user gave, made absolute: tasks change what is mounted where, not the folder.
///
/// # Errors
/// It does not exist.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).map_err(|e| Error::file("look at", path, e))
}
