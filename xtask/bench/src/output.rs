// SPDX-License-Identifier: MIT OR Apache-2.0

//! The figures of a run: printed, saved, and read again.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::workspace;

/// A run's figures, as the files in docs/data have them.
pub(crate) trait Report: Serialize + DeserializeOwned {
    /// The name of its file, without the ending.
    const NAME: &str;

    /// The figures for the terminal.
    fn text(&self) -> String;

    /// Each sample, for reports that keep them.
    fn csv(&self) -> Option<&str> {
        None
    }
}

/// Prints the figures, and writes them below the target folder and to `save`, which is relative to the checkout.
pub(crate) fn publish<R: Report>(report: &R, save: Option<&Path>) -> Result<()> {
    println!("\n{}", report.text());
    let out = workspace::target().join("bench");
    let failed = |e| Error::Failed(format!("print the figures: {e}"));
    let json = serde_json::to_string_pretty(report).map_err(failed)? + "\n";
    for dir in [Some(out), save.map(|dir| workspace::root().join(dir))].into_iter().flatten() {
        files::create_dir(&dir)?;
        for (ending, text) in [("json", Some(&*json)), ("csv", report.csv())] {
            let Some(text) = text else { continue };
            let path = dir.join(R::NAME).with_extension(ending);
            files::write(&path, text)?;
            println!("written: {}", path.display());
        }
    }
    Ok(())
}

pub(crate) fn read<R: Report>(path: &Path) -> Result<R> {
    let text = files::read(path)?;
    serde_json::from_str(&text).map_err(|e| Error::Failed(format!("decode {}: {e}", path.display())))
}
