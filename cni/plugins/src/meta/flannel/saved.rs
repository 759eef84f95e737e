// SPDX-License-Identifier: GPL-2.0-or-later

//! The delegate's configuration, saved at ADD for DEL.
//!
//! `<dataDir>/<container>` is the reference's file, so each plugin set can delete what the other one attached. Because
//! all attachments of a container share that file, each of ours has a second one,
//! `<dataDir>/.slipway/<container>:<interface>` (neither container IDs nor interface names have a colon).

use std::path::Path;

use cni_kernel::dir::{DirError, DurableDir};
use cni_spec::{Attachment, CniError, ErrorCode};
use serde_json::{Map, Value};

/// The largest file that is read, in bytes: as large as a configuration may be.
const LIMIT: usize = 16 << 20;
/// The folder of our own files.
pub const OURS: &str = ".slipway";

/// The saved configuration of an attachment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No file.
    Nothing,
    /// Only files without a usable configuration.
    Broken,
    /// The delegate's configuration.
    Whole(Map<String, Value>),
}

/// The attachment that a file's name represents.
#[derive(Debug)]
pub(super) struct SavedName {
    pub(super) container: String,
    /// None for a file of the reference.
    pub(super) ifname: Option<String>,
}

/// The folder of saved configurations.
#[derive(Debug)]
pub(super) struct Saved {
    shared: DurableDir,
    ours: DurableDir,
}

impl Saved {
    /// Opens the folder; makes it if missing.
    pub(super) fn create(path: &Path) -> Result<Self, DirError> {
        let shared = DurableDir::create(path, 0o700)?;
        let ours = shared.subdir(OURS, 0o700)?;
        Ok(Self { shared, ours })
    }

    /// Opens the folder; none if missing.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, DirError> {
        match DurableDir::open(path) {
            Ok(shared) => {
                let ours = shared.subdir(OURS, 0o700)?;
                Ok(Some(Self { shared, ours }))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn put(&self, attachment: &Attachment, config: &[u8]) -> Result<(), DirError> {
        self.ours.replace(name(attachment), config, 0o600)?;
        self.shared.replace(attachment.container_id(), config, 0o600)
    }

    /// The content of the attachment's own file, else that of the reference's file.
    pub(super) fn raw(&self, attachment: &Attachment) -> Result<Option<Vec<u8>>, DirError> {
        match self.ours.read(name(attachment), LIMIT)? {
            Some(config) => Ok(Some(config)),
            None => self.shared.read(attachment.container_id(), LIMIT),
        }
    }

    /// The configuration in the first of the two files that has one. The reference's file may belong to
    /// another attachment of the container: if the attachment has a file of its own, the network must match.
    pub(super) fn get(&self, attachment: &Attachment) -> Result<Found, DirError> {
        let ours = self.ours.read(name(attachment), LIMIT);
        if let Some(config) = ours.as_ref().ok().and_then(Option::as_deref).and_then(whole) {
            return Ok(Found::Whole(config));
        }
        let shared = self.shared.read(attachment.container_id(), LIMIT);
        let only_shared = matches!(ours, Ok(None));
        let fits = |config: &Map<String, Value>| only_shared || is_of(config, attachment.network());
        let config = shared.as_ref().ok().and_then(Option::as_deref).and_then(whole);
        if let Some(config) = config.filter(fits) {
            return Ok(Found::Whole(config));
        }
        Ok(if ours?.is_none() && shared?.is_none() { Found::Nothing } else { Found::Broken })
    }

    /// The configuration in the attachment's own file, if its network matches. A broken file names no
    /// network.
    pub(super) fn own(&self, attachment: &Attachment) -> Result<Option<Map<String, Value>>, DirError> {
        let config = self.ours.read(name(attachment), LIMIT)?.as_deref().and_then(whole);
        Ok(config.filter(|config| is_of(config, attachment.network())))
    }

    /// True if the attachment's own file is about the same interface in another network. A runtime also calls DEL after
    /// an ADD that was refused because the interface belongs to that network.
    pub(super) fn is_of_another(&self, attachment: &Attachment) -> Result<bool, DirError> {
        let ours = match self.ours.read(name(attachment), LIMIT) {
            Err(error) if !error.is_transient() => None,
            ours => ours?,
        };
        let config = ours.as_deref().and_then(whole);
        Ok(config.is_some_and(|config| !is_of(&config, attachment.network())))
    }

    /// Removes the attachment's files. The reference's file stays as long as another attachment of the container has a
    /// file.
    pub(super) fn forget(&self, attachment: &Attachment) -> Result<(), DirError> {
        self.ours.remove(name(attachment))?;
        let prefix = format!("{}:", attachment.container_id());
        let others = self.ours.list()?.iter().any(|other| other.to_string_lossy().starts_with(&prefix));
        if !others {
            self.shared.remove(attachment.container_id())?;
        }
        Ok(())
    }

    /// Removes temporary files of processes that were killed.
    pub(super) fn sweep(&self) -> Result<(), DirError> {
        self.shared.remove_stale_temporaries()?;
        self.ours.remove_stale_temporaries().map(drop)
    }

    /// All attachments that have files.
    pub(super) fn list(&self) -> Result<Vec<SavedName>, DirError> {
        let mut all: Vec<SavedName> = Vec::new();
        for name in self.ours.list()? {
            if let Some((container, ifname)) = name.to_string_lossy().split_once(':') {
                all.push(SavedName { container: container.to_owned(), ifname: Some(ifname.to_owned()) });
            }
        }
        for name in self.shared.list()? {
            let name = name.to_string_lossy().into_owned();
            if name != OURS && !all.iter().any(|one| one.container == name) {
                all.push(SavedName { container: name, ifname: None });
            }
        }
        Ok(all)
    }

    /// The configuration in the reference's file of a container, if it is usable.
    pub(super) fn of_container(&self, container: &str) -> Result<Option<Map<String, Value>>, DirError> {
        Ok(self.shared.read(container, LIMIT)?.as_deref().and_then(whole))
    }

    /// Removes the reference's file of a container.
    pub(super) fn forget_container(&self, container: &str) -> Result<(), DirError> {
        self.shared.remove(container).map(drop)
    }
}

/// The CNI error of a failed read or write.
pub(super) fn failed(error: &DirError) -> CniError {
    CniError::new(ErrorCode::Io, format!("flannel: {error}"))
}

/// True if a delegate's configuration belongs to that network.
pub(super) fn is_of(config: &Map<String, Value>, network: &str) -> bool {
    config.get("name").and_then(Value::as_str) == Some(network)
}

/// Parses a delegate's configuration; none if it does not name the delegate.
pub(crate) fn whole(bytes: &[u8]) -> Option<Map<String, Value>> {
    let config: Map<String, Value> = serde_json::from_slice(bytes).ok()?;
    let kind = config.get("type").and_then(Value::as_str);
    kind.is_some_and(|kind| !kind.is_empty()).then_some(config)
}

fn name(attachment: &Attachment) -> String {
    format!("{}:{}", attachment.container_id(), attachment.ifname())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_usable_file_counts() {
        const OURS: &str = r#"{"type":"bridge","name":"n","x":"ours"}"#;
        const SHARED: &str = r#"{"type":"bridge","name":"n","x":"shared"}"#;
        const FOREIGN: &str = r#"{"type":"bridge","name":"other","x":"foreign"}"#;
        let folder = tempfile::tempdir().unwrap();
        let saved = Saved::create(folder.path()).unwrap();
        let attachment = Attachment::new("n", "c", "eth0").unwrap();
        let get = |ours: Option<&str>, shared: Option<&str>| {
            for (name, content) in [(".slipway/c:eth0", ours), ("c", shared)] {
                let path = folder.path().join(name);
                match content {
                    Some(content) => std::fs::write(path, content).unwrap(),
                    None => drop(std::fs::remove_file(path)),
                }
            }
            match saved.get(&attachment).unwrap() {
                Found::Nothing => "nothing".to_owned(),
                Found::Broken => "broken".to_owned(),
                Found::Whole(config) => config["x"].as_str().unwrap().to_owned(),
            }
        };
        assert_eq!(get(None, None), "nothing");
        assert_eq!(get(Some(OURS), Some(FOREIGN)), "ours");
        assert_eq!(get(Some(OURS), None), "ours");
        assert_eq!(get(None, Some(SHARED)), "shared");
        // The reference plugin's DEL uses its file, too.
        assert_eq!(get(None, Some(FOREIGN)), "foreign");
        for broken in ["", "{", "[]", "{}", r#"{"type":7}"#, r#"{"type":""}"#] {
            assert_eq!(get(Some(OURS), Some(broken)), "ours");
            assert_eq!(get(Some(broken), Some(SHARED)), "shared", "{broken}");
            for shared in [None, Some(broken), Some(FOREIGN)] {
                assert_eq!(get(Some(broken), shared), "broken", "{broken} {shared:?}");
            }
            assert_eq!(get(None, Some(broken)), "broken", "{broken}");
        }
        // A GC needs a file that names the network.
        let own = |content: &str| {
            std::fs::write(folder.path().join(".slipway/c:eth0"), content).unwrap();
            saved.own(&attachment).unwrap().is_some()
        };
        assert_eq!([OURS, FOREIGN, "{", ""].map(own), [true, false, false, false]);
        // An unreadable file is an error.
        let _ = get(None, None);
        std::fs::create_dir(folder.path().join(".slipway/c:eth0")).unwrap();
        assert!(saved.get(&attachment).is_err());
        std::fs::write(folder.path().join("c"), SHARED).unwrap();
        assert!(matches!(saved.get(&attachment), Ok(Found::Whole(_))));
    }
}
