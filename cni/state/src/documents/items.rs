// SPDX-License-Identifier: MIT OR Apache-2.0

//! The reports of `slipway restore` and `slipway migrate`, with an item for each object of the dataplane.

use serde::{Deserialize, Serialize};

/// `slipway restore`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restore {
    /// False if something failed.
    pub ok: bool,
    pub items: Vec<RestoreItem>,
}

/// A thing that was checked. Without an owner, all containers share it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreItem {
    pub network: Option<String>,
    pub container: Option<String>,
    pub interface: Option<String>,
    pub item: String,
    pub state: RestoreState,
    pub reason: String,
}

/// The state of a thing at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RestoreState {
    /// It existed.
    Present,
    /// It is missing, and this is a dry run.
    Missing,
    /// It was missing and was restored.
    Restored,
    /// It was left alone.
    Skipped,
    /// It could not be checked or restored.
    Failed,
}

impl RestoreState {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Missing => "missing",
            Self::Restored => "restored",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }
}

/// `slipway migrate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migrate {
    /// False if something failed.
    pub ok: bool,
    pub items: Vec<MigrateItem>,
}

/// A thing that was found. The owner's fields are missing if it is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrateItem {
    pub network: Option<String>,
    pub container: Option<String>,
    pub interface: Option<String>,
    pub item: String,
    /// The backend that had it; none for records of the firewall plugin, which are not moved.
    pub from: Option<String>,
    pub to: Option<String>,
    pub state: String,
    pub reason: String,
}
