// SPDX-License-Identifier: GPL-2.0-or-later

//! The key `log` of the node's settings.

use std::path::{Path, PathBuf};

use log::LevelFilter;
use serde::Deserialize;

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct LogKeys {
    level: Option<String>,
    file: Option<PathBuf>,
    max_size: Option<u64>,
    journal: bool,
}

/// The outputs of log lines besides standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub(super) level: LevelFilter,
    pub(super) file: Option<PathBuf>,
    /// The size in bytes at which the file is renamed.
    pub(super) max_size: u64,
    pub(super) journal: bool,
}

/// Why the keys cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LogError {
    #[error("key \"log\": level {0:?} is not off, error, warn, info, debug or trace")]
    Level(String),
    #[error("key \"log\": file {0:?} is not an absolute path of a file")]
    File(PathBuf),
    #[error("key \"log\": maxSize {0} is not a number from 65536 to 1073741824")]
    MaxSize(u64),
}

/// The default of `maxSize`.
const MAX_SIZE: u64 = 8 << 20;

impl LogKeys {
    /// Checks the keys; none if they name no output.
    pub(crate) fn check(self) -> Result<Option<LogSettings>, LogError> {
        let level = self.level.as_deref().unwrap_or("info");
        let level: LevelFilter = level.parse().map_err(|_| LogError::Level(level.to_owned()))?;
        let absolute = |path: &Path| path.is_absolute() && path.file_name().is_some();
        if let Some(path) = self.file.as_deref().filter(|path| !absolute(path)) {
            return Err(LogError::File(path.to_path_buf()));
        }
        let max_size = self.max_size.unwrap_or(MAX_SIZE);
        if !(64 << 10..=1 << 30).contains(&max_size) {
            return Err(LogError::MaxSize(max_size));
        }
        let settings = LogSettings { level, file: self.file, max_size, journal: self.journal };
        Ok(Some(settings).filter(|settings| settings.file.is_some() || settings.journal))
    }
}
