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
    /// The owner's network; null for what all containers share.
    pub network: Option<String>,
    pub container: Option<String>,
    pub interface: Option<String>,
    /// The object, for people.
    pub item: String,
    pub state: RestoreState,
    /// Why the object has this state; may be empty.
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
    /// The owner's network; null if the owner is unknown.
    pub network: Option<String>,
    pub container: Option<String>,
    pub interface: Option<String>,
    /// The object, for people.
    pub item: String,
    /// The backend that had the object; null for records of the firewall plugin.
    pub from: Option<String>,
    /// The backend that the object moves to.
    pub to: Option<String>,
    /// `moved`, `to_move`, `removed`, `skipped`, `failed`, `recorded` or `to_record`.
    pub state: String,
    /// Why the object has this state; may be empty.
    pub reason: String,
}
