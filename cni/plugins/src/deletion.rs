// SPDX-License-Identifier: GPL-2.0-or-later

//! Marks of attachments whose DEL has begun.
//!
//! Each DEL of a chain runs in its own process, and on a busy node seconds may pass between two of them. Meanwhile the
//! attachment lacks what the first DEL has removed, while the container still runs and the runtime still knows it. Only the
//! mark distinguishes it from an attachment that another program has damaged. A restoration leaves marked attachments alone.
//!
//! The DEL of a chained plugin makes the mark before it removes anything. The DEL of the link's plugin, which is the last
//! one, removes the mark, and so does an ADD of the same attachment. If the link's plugin belongs to another plugin set, the
//! mark stays until a later DEL removes it because of its age. No call fails because of a mark.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cni_dataplane::RUN_DIR;
use cni_dataplane::owner::AttachmentHash;
use cni_kernel::dir::{Access, DirError, DurableDir};
use cni_kernel::is_transient;
use cni_spec::text::hex;
use cni_spec::{AddResult, Attachment, CniError, NetConf, Version};
use nix::net::if_::if_nametoindex;

use crate::plugin::{Place, Plugin, Request};

/// The directory of the marks in [`RUN_DIR`].
const DIRECTORY: &str = "deleting";
/// The age at which later DELs remove a mark. A runtime repeats a failed DEL within minutes.
const OLD: Duration = Duration::from_secs(600);
/// On average, one of this many DELs looks for old marks.
const SWEEP: u8 = 32;

/// Calls the plugin's DEL, and marks the attachment until the last DEL has succeeded.
pub(crate) fn during_del(plugin: &dyn Plugin, request: &Request<'_>) -> Result<(), CniError> {
    let attachment = &request.attachment;
    if plugin.place() == Place::Chained && may_be_restored(request) {
        log_failure(attachment, directory().and_then(|marks| set(&marks, attachment)));
    }
    plugin.del(request)?;
    if plugin.place() == Place::Link {
        log_failure(attachment, clear(attachment));
    }
    Ok(())
}

/// Removes the mark of an earlier DEL, because the attachment is being made again.
pub(crate) fn before_add(plugin: &dyn Plugin, attachment: &Attachment) {
    if plugin.place() != Place::Apart {
        log_failure(attachment, clear(attachment));
    }
}

/// True if a DEL of the attachment has begun, and no ADD has begun since.
///
/// # Errors
/// [`DirError::is_transient`] if nobody knows.
pub fn has_begun(attachment: &Attachment) -> Result<bool, DirError> {
    is_marked(&path(), attachment)
}

fn is_marked(marks: &Path, attachment: &Attachment) -> Result<bool, DirError> {
    match DurableDir::open(marks).and_then(|marks| marks.exists(name(attachment))) {
        Err(error) if error.is_transient() => Err(error),
        // A DEL could set no mark either.
        Err(_) => Ok(false),
        known => known,
    }
}

/// True if a restoration might take this DEL for damage. That needs the result of an ADD, which the runtime passes to the DEL
/// from specification 0.4.0 on, the container's namespace, and the attachment's links on the node. Without this test, a
/// DEL that finds nothing would write a mark.
fn may_be_restored(request: &Request<'_>) -> bool {
    let NetConf { prev_result, version, .. } = request.config;
    let is_known = prev_result.is_some() || *version < Version::V0_4_0;
    // All links of the result must exist, because one of them is the bridge, which stays after the DEL. A link that
    // cannot be looked up now may exist.
    let on_node = |result: &AddResult| {
        result
            .interfaces
            .iter()
            .filter(|end| end.sandbox.is_empty())
            .all(|end| if_nametoindex(&*end.name).map_or_else(is_transient, |_index| true))
    };
    is_known && request.netns.as_deref().is_some_and(Path::exists) && prev_result.as_ref().is_none_or(on_node)
}

fn path() -> PathBuf {
    Path::new(RUN_DIR).join(DIRECTORY)
}

fn directory() -> Result<DurableDir, DirError> {
    DurableDir::open(&path())
        .or_else(|_| DurableDir::create(Path::new(RUN_DIR), 0o755)?.subdir(DIRECTORY, 0o700))
}

/// The name of a mark is a hash, because a container's name may be longer than a file's.
fn name(attachment: &Attachment) -> OsString {
    hex(&AttachmentHash::of(attachment).0).into()
}

fn set(marks: &DurableDir, attachment: &Attachment) -> Result<(), DirError> {
    marks.open_file(name(attachment), Access::WriteOrCreate(0o600))?;
    let AttachmentHash([.., last]) = AttachmentHash::of(attachment);
    if last % SWEEP == 0 { sweep(marks, SystemTime::now()) } else { Ok(()) }
}

/// Removes marks that were made long before.
fn sweep(marks: &DurableDir, now: SystemTime) -> Result<(), DirError> {
    for name in marks.list()? {
        let made =
            marks.open_file(&name, Access::Read).ok().and_then(|file| file.metadata().ok()?.modified().ok());
        if made.is_some_and(|made| now.duration_since(made).is_ok_and(|age| age > OLD)) {
            marks.remove(&name)?;
        }
    }
    Ok(())
}

fn clear(attachment: &Attachment) -> Result<(), DirError> {
    match DurableDir::open(&path()) {
        Ok(marks) if marks.exists(name(attachment))? => marks.remove(name(attachment)).map(drop),
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

fn log_failure(attachment: &Attachment, done: Result<(), DirError>) {
    if let Err(error) = done {
        log::warn!("the mark that {attachment} is being deleted: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_marks_are_swept() {
        let temp = tempfile::tempdir().unwrap();
        let marks = DurableDir::open(temp.path()).unwrap();
        let attachment = Attachment::new("pods", "8f3a", "eth0").unwrap();
        set(&marks, &attachment).unwrap();
        for (later, is_there) in [(OLD / 2, true), (2 * OLD, false)] {
            sweep(&marks, SystemTime::now() + later).unwrap();
            assert_eq!(marks.exists(name(&attachment)).unwrap(), is_there);
        }
        assert!(!is_marked(&temp.path().join("missing"), &attachment).unwrap());
        // The clock has been set back since the mark was made.
        set(&marks, &attachment).unwrap();
        sweep(&marks, SystemTime::UNIX_EPOCH).unwrap();
        assert!(is_marked(temp.path(), &attachment).unwrap());
    }
}
