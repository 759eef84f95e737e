// SPDX-License-Identifier: MIT OR Apache-2.0

//! The journal of pending attachments, which a set-up is about to make.
//!
//! There is a file for each sandbox in `<cache directory>/pending`. It is written before the first plugin is called,
//! and deleted when every attachment is cached or undone. If the set-up is killed, a teardown of the pod or a GC
//! finds in this file what the cache does not contain yet.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cni_kernel::dir::{DirError, DurableDir};
use cni_spec::{Attachment, AttachmentError, ListError, text};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cache::{Cached, PENDING};
use crate::container::Container;
use crate::error::NetworkError;
use crate::network::Network;

/// The largest file that is read, in bytes. Several of the largest configurations fit.
const LIMIT: usize = 256 << 20;
/// The form of the file.
const KIND: &str = "slipwayPendingV1";

/// An attachment of a pod that is to be made, checked or removed.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The network.
    pub network: Network,
    /// The container.
    pub container: Container,
}

/// The journal below a cache's directory.
#[derive(Debug)]
pub(crate) struct Journal {
    files: DurableDir,
}

/// Why a file does not belong to this journal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidFile {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("unknown kind {}", text::quote(.0))]
    Kind(String),
    #[error("file name does not match the sandbox inside ({0})")]
    Sandbox(String),
    #[error("config is not base64")]
    Base64,
    #[error("config: {0}")]
    Config(#[from] ListError),
    #[error(transparent)]
    Name(#[from] AttachmentError),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    kind: String,
    container_id: String,
    attachments: Vec<Entry>,
}

/// An attachment, with libcni's keys.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    config: String,
    if_name: String,
    netns: String,
    cni_args: Vec<(String, String)>,
    capability_args: Map<String, Value>,
}

impl Planned {
    pub(crate) fn attachment(&self) -> Result<Attachment, NetworkError> {
        Ok(self.network.attachment(&self.container)?)
    }

    /// True if both have the same network, sandbox and interface.
    fn is_same(&self, other: &Self) -> bool {
        let Self { network, container } = other;
        self.is_of(network.name(), &container.id, &container.ifname)
    }

    /// True if this is the cached attachment.
    pub(crate) fn is_cached_as(&self, cached: &Cached) -> bool {
        let of = &cached.attachment;
        self.is_of(of.network(), of.container_id(), of.ifname())
    }

    fn is_of(&self, network: &str, id: &str, ifname: &str) -> bool {
        let Self { network: own, container } = self;
        own.name() == network && container.id == id && container.ifname == ifname
    }

    fn entry(&self) -> Entry {
        let Container { netns, ifname, args, capabilities, .. } = &self.container;
        Entry {
            config: STANDARD.encode(self.network.bytes()),
            if_name: ifname.clone(),
            netns: netns.clone(),
            cni_args: args.clone(),
            capability_args: capabilities.clone(),
        }
    }

    fn of(entry: Entry, id: &str) -> Result<Self, InvalidFile> {
        let Entry { config, if_name, netns, cni_args, capability_args } = entry;
        let config = STANDARD.decode(config).map_err(|_| InvalidFile::Base64)?;
        let network = Network::from_bytes(config)?;
        let mut container = Container::new(id, if_name).netns(netns);
        (container.args, container.capabilities) = (cni_args, capability_args);
        network.attachment(&container)?;
        Ok(Self { network, container })
    }
}

impl Journal {
    /// Opens the journal's directory below that of a cache. None if it is missing.
    pub(crate) fn open(cache: &Path) -> Result<Option<Self>, DirError> {
        match DurableDir::open(&cache.join(PENDING)) {
            Ok(files) => Ok(Some(Self { files })),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the journal's directory below that of a cache, and creates it if it is missing.
    pub(crate) fn create(cache: &Path) -> Result<Self, DirError> {
        Ok(Self { files: DurableDir::create(&cache.join(PENDING), 0o700)? })
    }

    /// Adds attachments of a sandbox. An earlier attachment with the same name is replaced.
    pub(crate) fn add(&self, sandbox: &str, planned: &[Planned]) -> Result<(), DirError> {
        let mut all = self.read(sandbox)?;
        all.retain(|one| !planned.iter().any(|new| new.is_same(one)));
        all.extend_from_slice(planned);
        self.write(sandbox, &all)
    }

    /// Removes attachments of a sandbox.
    pub(crate) fn remove(&self, sandbox: &str, done: &[Planned]) -> Result<(), DirError> {
        let mut left = self.read(sandbox)?;
        left.retain(|one| !done.iter().any(|done| done.is_same(one)));
        if left.is_empty() { self.files.remove(sandbox).map(drop) } else { self.write(sandbox, &left) }
    }

    /// The attachments of a sandbox in the order of their ADDs. A file that cannot be used is logged.
    pub(crate) fn read(&self, sandbox: &str) -> Result<Vec<Planned>, DirError> {
        let Some(bytes) = self.files.read(sandbox, LIMIT)? else { return Ok(Vec::new()) };
        Ok(parse(sandbox, &bytes).unwrap_or_else(|error| {
            log::warn!(
                "{}: not a file of pending attachments: {error}",
                self.files.path().join(sandbox).display()
            );
            Vec::new()
        }))
    }

    /// All attachments, by sandbox.
    pub(crate) fn all(&self) -> Result<Vec<Planned>, DirError> {
        let mut names = self.files.list()?;
        names.sort();
        let mut all = Vec::new();
        for name in names.iter().filter_map(|name| name.to_str()) {
            all.extend(self.read(name)?);
        }
        Ok(all)
    }

    /// Deletes old temporary files, which processes left when they were killed.
    pub(crate) fn sweep(&self) -> Result<(), DirError> {
        self.files.remove_stale_temporaries().map(drop)
    }

    fn write(&self, sandbox: &str, all: &[Planned]) -> Result<(), DirError> {
        let file = File {
            kind: KIND.to_owned(),
            container_id: sandbox.to_owned(),
            attachments: all.iter().map(Planned::entry).collect(),
        };
        self.files.put(sandbox, text::compact(&file).as_bytes(), 0o600)
    }
}

pub(crate) fn parse(sandbox: &str, bytes: &[u8]) -> Result<Vec<Planned>, InvalidFile> {
    let File { kind, container_id, attachments } = serde_json::from_slice(bytes)?;
    if kind != KIND {
        return Err(InvalidFile::Kind(kind));
    }
    if container_id != sandbox {
        return Err(InvalidFile::Sandbox(container_id));
    }
    attachments.into_iter().map(|entry| Planned::of(entry, sandbox)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn planned(network: &str, ifname: &str) -> Planned {
        let network = Network::builder(network).plugin(json!({"type": "bridge", "isGateway": true})).build();
        let container = Container::new("s1", ifname)
            .netns("/run/netns/s1")
            .arg("IgnoreUnknown", "1")
            .arg("K8S_POD_NAME", "web")
            .capability("portMappings", json!([{"hostPort": 8080, "containerPort": 80}]));
        Planned { network: network.unwrap(), container }
    }

    #[test]
    fn attachments_read_back_the_same_until_they_are_removed() {
        let cache = tempfile::tempdir().unwrap();
        assert!(Journal::open(cache.path()).unwrap().is_none());
        let journal = Journal::create(cache.path()).unwrap();
        let [pods, storage] = [planned("pods", "eth0"), planned("storage", "net1")];
        journal.add("s1", &[pods.clone(), storage.clone()]).unwrap();
        assert_eq!(journal.read("s1").unwrap(), [pods.clone(), storage.clone()]);
        assert!(journal.read("s2").unwrap().is_empty());
        // A second set-up replaces attachments that have the same names.
        let mut changed = pods.clone();
        changed.container.netns = "/run/netns/other".to_owned();
        journal.add("s1", std::slice::from_ref(&changed)).unwrap();
        assert_eq!(journal.all().unwrap(), [storage.clone(), changed.clone()]);
        journal.remove("s1", &[pods]).unwrap();
        assert_eq!(journal.read("s1").unwrap(), std::slice::from_ref(&storage));
        journal.remove("s1", &[storage]).unwrap();
        assert!(std::fs::read_dir(cache.path().join("pending")).unwrap().next().is_none());
        journal.remove("s1", &[changed]).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_used_is_left_out_and_replaced() {
        let cache = tempfile::tempdir().unwrap();
        let journal = Journal::create(cache.path()).unwrap();
        let good = |sandbox: &str| {
            let attachments = vec![planned("pods", "eth0").entry()];
            json!(File { kind: KIND.to_owned(), container_id: sandbox.to_owned(), attachments })
        };
        assert_eq!(parse("s1", good("s1").to_string().as_bytes()).unwrap(), [planned("pods", "eth0")]);
        let mut cases = vec![json!("{"), json!({"kind": "other"}), good("s2")];
        for (pointer, value) in [
            ("/kind", "slipwayPendingV2"),
            ("/attachments/0/config", "!"),
            ("/attachments/0/config", "e30="),
            ("/attachments/0/ifName", "../x"),
        ] {
            let mut file = good("s1");
            *file.pointer_mut(pointer).unwrap() = value.into();
            cases.push(file);
        }
        for case in cases {
            std::fs::write(cache.path().join("pending/s1"), case.to_string()).unwrap();
            assert!(journal.read("s1").unwrap().is_empty(), "{case}");
        }
        journal.add("s1", &[planned("pods", "eth0")]).unwrap();
        assert_eq!(journal.all().unwrap().len(), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _parsed = parse("s1", &bytes);
        }

        #[test]
        fn any_parameters_read_back_the_same(
            args in prop::collection::vec(("\\PC{0,8}", "\\PC{0,8}"), 0..4),
            netns in "\\PC{0,20}",
            alias in "\\PC{0,8}",
        ) {
            let mut one = planned("pods", "eth0");
            one.container.args = args;
            one.container.netns = netns;
            one.container.capabilities.insert("aliases".to_owned(), json!([alias]));
            let file = File {
                kind: KIND.to_owned(), container_id: "s1".to_owned(), attachments: vec![one.entry()],
            };
            prop_assert_eq!(parse("s1", text::compact(&file).as_bytes()).unwrap(), [one]);
        }
    }
}
