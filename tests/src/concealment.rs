// SPDX-License-Identifier: GPL-2.0-or-later

//! Folders that a node sees empty, although the machine has files in them.
//!
//! A checkout may lie below such a folder, in root's home or in /var/lib/jenkins for instance. Therefore whatever the
//! tests themselves need (the checkout, the binaries, the programs that `cargo xtask test` has unpacked) is bound to
//! its old path again.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::mount::{MsFlags, mount};

use crate::binaries::bin_dir;

/// Mounts an empty tmpfs over a folder, in the mount namespace of the calling thread.
pub(crate) fn conceal(folder: &Path) {
    conceal_but(folder, &needed());
}

/// Does the same, but keeps these paths visible.
fn conceal_but(folder: &Path, kept: &[PathBuf]) {
    let folder = folder.canonicalize().unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let open = |path: &PathBuf| File::open(path).unwrap_or_else(|e| panic!("open {}: {e}", path.display()));
    // An open descriptor still leads to the files that the tmpfs covers.
    let kept: Vec<_> = kept
        .iter()
        .filter(|path| **path != folder && path.starts_with(&folder))
        .map(|path| (path, open(path)))
        .collect();
    mount(Some("tmpfs"), &folder, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=0755"))
        .unwrap_or_else(|e| panic!("mount a private {}: {e}", folder.display()));
    for (path, file) in kept {
        fs::create_dir_all(path).unwrap_or_else(|e| panic!("make {}: {e}", path.display()));
        let there = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
        mount(Some(there.as_str()), path, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
            .unwrap_or_else(|e| panic!("keep {}: {e}", path.display()));
    }
}

/// True for a folder of the machine that a node sees although its parent is concealed.
pub(crate) fn is_kept(folder: &Path) -> bool {
    kept().iter().any(|kept| kept == folder)
}

/// True if this folder contains such a kept folder, so nothing in it may be removed.
pub(crate) fn has_kept(folder: &Path) -> bool {
    kept().iter().any(|kept| kept.starts_with(folder))
}

fn kept() -> &'static [PathBuf] {
    static NEEDED: OnceLock<Vec<PathBuf>> = OnceLock::new();
    NEEDED.get_or_init(needed)
}

/// The folders that tests read and run programs from, none of them inside another.
fn needed() -> Vec<PathBuf> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned);
    // The test runs from target/<profile>/deps/<test>-<hash>.
    let profile = std::env::current_exe().ok().and_then(|test| test.ancestors().nth(2).map(Path::to_owned));
    let variables = std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("SLIPWAY_"));
    let named: Vec<PathBuf> =
        variables.flat_map(|(_, value)| std::env::split_paths(&value).collect::<Vec<_>>()).collect();
    let all = [Some(bin_dir()), checkout, profile, Some(std::env::temp_dir())].into_iter().flatten();
    let mut all: Vec<PathBuf> = all
        .chain(named.into_iter().filter(|path| path.is_absolute()))
        .filter_map(|path| path.canonicalize().ok())
        .filter(|path| path.is_dir())
        .collect();
    all.sort();
    all.dedup_by(|path, before| path.starts_with(before));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Node;
    use crate::space::quoted;

    #[test]
    fn a_program_below_a_concealed_folder_still_runs() {
        let node = Node::new();
        node.cmd_input(
            "sh -e",
            "mkdir -p '/run/home/a b/bin' /run/home/other; cp /bin/true '/run/home/a b/bin'",
        );
        let kept = PathBuf::from("/run/home/a b");
        node.run(|| conceal_but(Path::new("/run/home"), std::slice::from_ref(&kept)));
        node.cmd(&quoted(kept.join("bin/true")));
        assert_eq!(node.list("/run/home"), ["a b"], "the rest is hidden");
        node.write("/run/home/new", "");
    }

    #[test]
    fn folders_that_tests_need_are_kept_once() {
        let needed = needed();
        assert!(
            needed.iter().any(|kept| Path::new(env!("CARGO_MANIFEST_DIR")).starts_with(kept)),
            "{needed:?}"
        );
        assert!(needed.iter().any(|kept| bin_dir().starts_with(kept)), "{needed:?}");
        assert!(needed.windows(2).all(|pair| !pair[1].starts_with(&pair[0])), "{needed:?}");
    }
}
