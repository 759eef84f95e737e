//! What the delegate was told at ADD, kept until DEL.
//!
//! `<dataDir>/<container>` is the reference's file, so that either can delete what the other has made. Two
//! attachments of one container would share it: ours are in `<dataDir>/.slipway/<container>:<interface>`
//! besides (a colon is in no container ID and no interface name).

use std::path::Path;

use cni_kernel::dir::{DirError, DurableDir};
use cni_spec::Attachment;

/// The largest file that is read, in bytes: as large as a configuration may be.
const LIMIT: usize = 16 << 20;
/// The folder that only we make.
pub(crate) const OURS: &str = ".slipway";

/// The directory of saved configurations.
#[derive(Debug)]
pub(super) struct Saved {
    shared: DurableDir,
    ours: DurableDir,
}

impl Saved {
    /// Makes the directory where it is not there.
    pub(super) fn create(path: &Path) -> Result<Self, DirError> {
        let shared = DurableDir::create(path, 0o700)?;
        let ours = shared.subdir(OURS, 0o700)?;
        Ok(Self { shared, ours })
    }

    /// None when there is no such directory.
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

    pub(super) fn get(&self, attachment: &Attachment) -> Result<Option<Vec<u8>>, DirError> {
        match self.ours.read(name(attachment), LIMIT)? {
            Some(config) => Ok(Some(config)),
            None => self.shared.read(attachment.container_id(), LIMIT),
        }
    }

    /// The reference's file stays while another attachment of the container has one.
    pub(super) fn forget(&self, attachment: &Attachment) -> Result<(), DirError> {
        self.ours.remove(name(attachment))?;
        let prefix = format!("{}:", attachment.container_id());
        let others = self.ours.list()?.iter().any(|other| other.to_string_lossy().starts_with(&prefix));
        if !others {
            self.shared.remove(attachment.container_id())?;
        }
        Ok(())
    }

    /// Removes what processes left that were killed while they wrote.
    pub(super) fn sweep(&self) -> Result<(), DirError> {
        self.shared.remove_stale_temporaries()?;
        self.ours.remove_stale_temporaries().map(drop)
    }

    /// All container IDs and, where it is known, the interface.
    pub(super) fn list(&self) -> Result<Vec<(String, Option<String>)>, DirError> {
        let mut all = Vec::new();
        for name in self.ours.list()? {
            if let Some((container, ifname)) = name.to_string_lossy().split_once(':') {
                all.push((container.to_owned(), Some(ifname.to_owned())));
            }
        }
        for name in self.shared.list()? {
            let name = name.to_string_lossy().into_owned();
            if name != OURS && !all.iter().any(|(container, _)| *container == name) {
                all.push((name, None));
            }
        }
        Ok(all)
    }

    /// The reference's file of a container.
    pub(super) fn of_container(&self, container: &str) -> Result<Option<Vec<u8>>, DirError> {
        self.shared.read(container, LIMIT)
    }

    /// Removes the reference's file of a container.
    pub(super) fn forget_container(&self, container: &str) -> Result<(), DirError> {
        self.shared.remove(container).map(drop)
    }
}

fn name(attachment: &Attachment) -> String {
    format!("{}:{}", attachment.container_id(), attachment.ifname())
}
