// SPDX-License-Identifier: GPL-3.0-or-later

//! WireGuard's keys as text, and the file with this node's private key.
//!
//! The file is next to that of the subnets, on a tmpfs: a key survives the agent, is new after each boot, and is never on a
//! disk.

use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cni_kernel::dir::{Access, DirError, DurableDir};
use cni_kernel::route::{PrivateKey, PublicKey};
use nix::errno::Errno;

/// The name of the file.
pub const FILE: &str = "wireguard.key";
/// The mode of the key's file: for root only.
const MODE: u32 = 0o600;
/// The mode of its directory, which other programs read.
const DIRECTORY_MODE: u32 = 0o755;
/// The length of a key's text: 32 bytes in base64 (RFC 4648, section 4).
const TEXT: usize = 44;

/// This node's private key can be neither read nor made.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The directory or the file cannot be read or written.
    #[error(transparent)]
    File(#[from] DirError),
    /// The kernel has no random bytes.
    #[error("make a private key: {0}")]
    Random(getrandom::Error),
}

/// The text of a public key, as `wg show` prints it.
#[must_use]
pub fn text(key: &PublicKey) -> String {
    STANDARD.encode(key.0)
}

/// Reads the text of a public key; none if no node can have it. A key of zero bytes is invalid, because the kernel
/// shows a missing key that way.
#[must_use]
pub fn parse(text: &str) -> Option<PublicKey> {
    let bytes = bytes(text)?;
    (bytes != [0; 32]).then_some(PublicKey(bytes))
}

fn bytes(text: &str) -> Option<[u8; 32]> {
    if text.len() != TEXT {
        return None;
    }
    STANDARD.decode(text).ok()?.try_into().ok()
}

/// This node's private key: the one in the file, or else a new one, which is written to the file. A file that is
/// damaged, or that other users may read, is replaced.
///
/// # Errors
/// [`KeyError`].
pub(super) fn load_or_make(directory: &Path) -> Result<PrivateKey, KeyError> {
    let dir = DurableDir::create(directory, DIRECTORY_MODE)?;
    match read(&dir) {
        Ok(key) => return Ok(key),
        Err(KeyFileFault::Missing) => {}
        // The file may have a sound key, and the other nodes would drop this node's packets until they know a new one.
        Err(KeyFileFault::Unread(error)) => return Err(error.into()),
        Err(unusable) => log::warn!("{}: {unusable}: making a new key", directory.join(FILE).display()),
    }
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(KeyError::Random)?;
    let key = PrivateKey::new(random);
    // As `wg genkey` prints it.
    let content = format!("{}\n", STANDARD.encode(key.bytes()));
    dir.replace(FILE, content.as_bytes(), MODE)?;
    Ok(key)
}

/// Removes the file. True if it was there.
///
/// # Errors
/// [`KeyError::File`].
pub(super) fn remove(directory: &Path) -> Result<bool, KeyError> {
    match DurableDir::open(directory) {
        Ok(dir) => Ok(dir.remove(FILE)?),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The reason why the file has no key for this node.
#[derive(Debug, thiserror::Error)]
enum KeyFileFault {
    #[error("missing")]
    Missing,
    #[error("{0}")]
    NotAFile(DirError),
    #[error("{0}")]
    Unread(DirError),
    #[error("other users may read it")]
    Exposed,
    #[error("not a key of 32 bytes in base64")]
    Content,
}

fn read(dir: &DurableDir) -> Result<PrivateKey, KeyFileFault> {
    let file = dir.open_file(FILE, Access::Read).map_err(unopened)?;
    let unread = |error: io::Error| {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO));
        KeyFileFault::Unread(DirError::System { operation: "read", path: dir.path().join(FILE), errno })
    };
    if file.metadata().map_err(unread)?.mode() & 0o077 != 0 {
        return Err(KeyFileFault::Exposed);
    }
    let mut content = Vec::new();
    file.take(TEXT as u64 + 2).read_to_end(&mut content).map_err(unread)?;
    let text = std::str::from_utf8(&content).map_err(|_| KeyFileFault::Content)?;
    bytes(text.trim_end()).map(PrivateKey::new).ok_or(KeyFileFault::Content)
}

fn unopened(error: DirError) -> KeyFileFault {
    match error.errno() {
        _ if error.is_not_found() => KeyFileFault::Missing,
        // A folder or FIFO, a symbolic link, and a socket.
        None | Some(Errno::ELOOP | Errno::ENXIO) => KeyFileFault::NotAFile(error),
        Some(_) => KeyFileFault::Unread(error),
    }
}

/// The directory of the file, which is also the directory of the file of subnets.
pub(super) fn directory(subnet_file: &Path) -> PathBuf {
    let dir = subnet_file.parent().filter(|dir| !dir.as_os_str().is_empty());
    dir.unwrap_or(Path::new(".")).to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn public_keys_have_one_text() {
        let key = PublicKey([0xa5; 32]);
        assert_eq!((parse(&text(&key)), text(&key).len()), (Some(key), TEXT));
        let (zero, good) = (STANDARD.encode([0; 32]), text(&key));
        let bad = [
            "",
            &zero,
            &good[..43],
            &format!("{good}="),
            &format!(" {}", &good[..43]),
            &good.replace('=', "A"),
            // Trailing bits that are not 0.
            &good.replace("U=", "V="),
            &STANDARD.encode([7; 31]),
            &STANDARD.encode([7; 33]),
            &"é".repeat(22),
        ];
        for text in bad {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_key_survives_the_agent_and_is_for_root_only() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("run/slipway");
        let key = load_or_make(&dir).unwrap();
        let path = dir.join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(load_or_make(&dir).unwrap(), key);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "no temporary file");
        assert!(remove(&dir).unwrap() && !remove(&dir).unwrap());
        assert_ne!(load_or_make(&dir).unwrap(), key, "a new one");
    }

    #[test]
    fn a_damaged_or_exposed_key_is_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join(FILE);
        let mut last = load_or_make(temp.path()).unwrap();
        let expose = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o640)).unwrap();
        let link = |path: &Path| {
            let target = path.with_extension("other");
            fs::rename(path, &target).unwrap();
            symlink(&target, path).unwrap();
        };
        let damages: [&dyn Fn(&Path); 5] = [
            &expose,
            &link,
            &|path: &Path| fs::write(path, "").unwrap(),
            &|path: &Path| fs::write(path, [0xff; 44]).unwrap(),
            &|path: &Path| fs::write(path, "A".repeat(1000)).unwrap(),
        ];
        for damage in damages {
            damage(&path);
            let key = load_or_make(temp.path()).unwrap();
            assert_ne!(key, last);
            assert_eq!(load_or_make(temp.path()).unwrap(), key);
            let metadata = fs::symlink_metadata(&path).unwrap();
            assert!(metadata.is_file() && metadata.permissions().mode() & 0o777 == 0o600);
            last = key;
        }
    }

    #[test]
    fn a_key_that_can_be_neither_read_nor_replaced_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join(FILE)).unwrap();
        assert!(matches!(load_or_make(temp.path()), Err(KeyError::File(_))));
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "no temporary file");
    }

    #[test]
    fn a_file_that_cannot_be_read_now_may_have_the_key() {
        let refused = |errno| DirError::System { operation: "open", path: FILE.into(), errno };
        for errno in [Errno::EMFILE, Errno::ENOMEM, Errno::EIO, Errno::EACCES] {
            assert!(matches!(unopened(refused(errno)), KeyFileFault::Unread(_)), "{errno}");
        }
        assert!(matches!(unopened(refused(Errno::ENOENT)), KeyFileFault::Missing));
        for error in [refused(Errno::ELOOP), refused(Errno::ENXIO), DirError::NotAFile { path: FILE.into() }]
        {
            assert!(matches!(unopened(error), KeyFileFault::NotAFile(_)));
        }
    }

    #[test]
    fn the_key_is_next_to_the_file_of_subnets() {
        assert_eq!(directory(Path::new("/run/slipway/subnet.json")), Path::new("/run/slipway"));
        assert_eq!(directory(Path::new("subnet.json")), Path::new("."));
    }
}
