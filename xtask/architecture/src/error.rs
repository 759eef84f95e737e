// SPDX-License-Identifier: MIT OR Apache-2.0

//! The errors of reading sources and manifests.

use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("parse {}: {source}", path.display())]
    Rust { path: PathBuf, source: syn::Error },
    #[error("parse {}: {source}", path.display())]
    Manifest { path: PathBuf, source: toml::de::Error },
    #[error("{} has no {key}", path.display())]
    Missing { path: PathBuf, key: &'static str },
}

pub(crate) fn text(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}
