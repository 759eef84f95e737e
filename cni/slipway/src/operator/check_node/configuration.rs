// SPDX-License-Identifier: GPL-2.0-or-later

//! The node's settings and the networks, as the administrator has written them. A misspelt key has no effect, and
//! nothing fails because of it.

use std::io::{self, ErrorKind};
use std::path::Path;

use cni_kernel::bounded;
use cni_plugins::keys;
use cni_plugins::node_defaults::NodeDefaults;
use cni_runtime::config::{self, FileVerdict, LoadError};
use cni_spec::ListError;

use super::{Finding, State, judged};

/// A key that a later version knows is as unknown as a misspelt one.
const UNKNOWN: &str = "a key that this version does not know has no effect";
const FIX: &str = "correct or delete it, unless it is meant for another version or another program";

/// The node's settings, and a finding if they cannot be used or have unknown keys. Settings that cannot be used count
/// as none.
pub(super) fn settings() -> (NodeDefaults, Option<Finding>) {
    const WHAT: &str = "settings of the node";
    match NodeDefaults::read() {
        Ok(settings) if settings.unknown_keys.is_empty() => (settings, None),
        Ok(settings) => {
            let found = settings.unknown_keys_text();
            (settings, Some(Finding::new(WHAT, State::Warning, found).reason(UNKNOWN).fix(FIX)))
        }
        Err(error) => {
            let found = Finding::new(WHAT, State::Missing, error.to_string())
                .reason("no container can be added")
                .fix("see the error");
            (NodeDefaults::default(), Some(found))
        }
    }
}

/// The files of networks, and a finding for each of them that cannot be read or has unknown keys.
pub(super) fn networks(directory: &Path) -> (Vec<FileVerdict>, Vec<Finding>) {
    match config::load_all(directory) {
        Ok(files) => {
            let findings = files.iter().flat_map(of_file).collect();
            (files, findings)
        }
        Err(error) => (Vec::new(), vec![Finding::unread("networks", &error)]),
    }
}

fn of_file(file: &FileVerdict) -> Vec<Finding> {
    let subject = format!("network in {}", file.path.display());
    match &file.network {
        Ok(_) => {}
        Err(error) if is_unread(error) => {
            let unread = Finding::unread(subject, &error.reason_in(&file.path));
            return vec![unread.reason("a runtime cannot read it either").fix("see the error")];
        }
        Err(_) => return Vec::new(),
    }
    judged(&subject, unknown_keys(&file.path), |keys| {
        let has_some = !keys.is_empty();
        has_some.then(|| Finding::new(&subject, State::Warning, keys.join(", ")).reason(UNKNOWN).fix(FIX))
    })
}

/// True if nobody knows what is in the file. Everything else that is wrong with a file is the runtime's to report: the
/// directory may have files that are not meant as networks, such as a configuration of loopback without a name.
fn is_unread(error: &LoadError) -> bool {
    match error {
        // The file was removed since the directory was listed, or is a link that leads nowhere.
        LoadError::Read { error, .. } => error.kind() != ErrorKind::NotFound,
        LoadError::List { error, .. } => matches!(error, ListError::Json(_)),
        _ => false,
    }
}

fn unknown_keys(path: &Path) -> io::Result<Vec<String>> {
    let file = serde_json::from_slice(&bounded::read(path, bounded::CONFIGURATION)?)?;
    Ok(keys::unknown_in_network(&file).iter().map(ToString::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("10-good.conflist", r#"{"name": "good", "plugins": [{"type": "bridge"}]}"#);
        write("20-half.conflist", r#"{"name": "half", "#);
        std::os::unix::fs::symlink("30-circle.conf", folder.path().join("30-circle.conf")).unwrap();
        write("99-loopback.conf", r#"{"cniVersion": "0.3.1", "type": "loopback"}"#);
        std::os::unix::fs::symlink("nowhere", folder.path().join("99-nowhere.conf")).unwrap();
        let (files, findings) = networks(folder.path());
        assert_eq!(files.iter().filter(|file| file.network.is_ok()).count(), 1);
        let named = |finding: &Finding| {
            let is_unread = finding.found.starts_with("could not be read: ");
            (finding.state, is_unread, finding.subject.rsplit('/').next().map(str::to_owned))
        };
        let found: Vec<_> = findings.iter().map(named).collect();
        let unread = |name: &str| (State::Warning, true, Some(name.to_owned()));
        assert_eq!(found, [unread("20-half.conflist"), unread("30-circle.conf")], "{findings:?}");
    }

    #[test]
    fn a_directory_that_cannot_be_listed_is_named_and_a_missing_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(networks(&folder.path().join("none")).1, []);
        let (files, findings) = networks(&file);
        assert!(files.is_empty());
        assert_eq!((findings.len(), findings[0].state), (1, State::Warning), "{findings:?}");
        assert!(findings[0].found.starts_with("could not be read: "), "{findings:?}");
    }
}
