//! Where things are in the checkout.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The checkout's top folder.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Cargo's target folder.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// A folder below the target folder that the tasks themselves use, made when it is missing.
///
/// # Errors
/// The folder that could not be made.
pub(crate) fn scratch(name: &str) -> Result<PathBuf> {
    let path = target().join("xtask").join(name);
    fs::create_dir_all(&path).map_err(|e| Error::file("create the directory", &path, e))?;
    Ok(path)
}

/// A path that a user gave, made absolute: tasks change what is mounted where, not the folder.
///
/// # Errors
/// It does not exist.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).map_err(|e| Error::file("look at", path, e))
}
