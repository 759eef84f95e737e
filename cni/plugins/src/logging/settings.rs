//! The key `log` of the node's settings.

use std::path::{Path, PathBuf};

use log::LevelFilter;
use serde::Deserialize;

/// The keys as they are written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct LogKeys {
    level: Option<String>,
    file: Option<PathBuf>,
    max_size: Option<u64>,
    journal: bool,
}

/// Where log lines go besides standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub(super) level: LevelFilter,
    pub(super) file: Option<PathBuf>,
    /// How large the file grows before it is set aside, in bytes.
    pub(super) max_size: u64,
    pub(super) journal: bool,
}

/// The largest file, unless the settings have another number.
const MAX_SIZE: u64 = 8 << 20;

impl LogKeys {
    /// Checks the keys; none if no line goes anywhere.
    ///
    /// # Errors
    /// A value that is none of those allowed; the text names the key.
    pub(crate) fn check(self) -> Result<Option<LogSettings>, String> {
        let level = self.level.as_deref().unwrap_or("info");
        let level: LevelFilter = level.parse().map_err(|_| {
            format!("key \"log\": level {level:?} is none of off, error, warn, info, debug, trace")
        })?;
        let absolute = |path: &Path| path.is_absolute() && path.file_name().is_some();
        if let Some(path) = self.file.as_deref().filter(|path| !absolute(path)) {
            return Err(format!("key \"log\": file {path:?} is no absolute path of a file"));
        }
        let max_size = self.max_size.unwrap_or(MAX_SIZE);
        if !(64 << 10..=1 << 30).contains(&max_size) {
            return Err(format!("key \"log\": maxSize is a number from 65536 to 1073741824, not {max_size}"));
        }
        let settings = LogSettings { level, file: self.file, max_size, journal: self.journal };
        Ok(Some(settings).filter(|settings| settings.file.is_some() || settings.journal))
    }
}
