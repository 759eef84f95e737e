// SPDX-License-Identifier: MIT OR Apache-2.0

//! A kernel from Debian's packages, made ready: image, modules, configuration.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

use crate::arch::Arch;
use crate::kernels::{self, Kernel, Source};
use xtask_base::apt_root::AptRoot;
use xtask_base::error::{Error, Result};
use xtask_base::run::{self, tool};

/// The packages that one kernel is split into, by what comes before its release in their names. Up to
/// 6.18 `linux-image` had it all.
const PARTS: [&str; 4] = ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"];

/// A kernel in the cache.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    /// The output of `uname -r`.
    pub(crate) release: String,
    /// The image for the emulator.
    pub(crate) image: PathBuf,
    /// The folder with `kernel/` and the lists of depmod(8); no module in it is compressed.
    pub(crate) modules: PathBuf,
    /// The text of its configuration.
    pub(crate) config: String,
}

/// Takes the kernel from the cache, or fetches it from the first place that has it whole.
pub(crate) fn fetch(kernel: &Kernel, refresh: Refresh) -> Result<Ready> {
    let dir = kernels::cache()?.join("kernels").join(kernel.packages());
    if refresh == Refresh::No
        && let Ok(ready) = Ready::at(&dir)
    {
        return Ok(ready);
    }
    let mut reasons = Vec::new();
    for source in &kernel.from {
        match fetch_from(kernel.arch, source, &dir) {
            Ok(ready) => return Ok(ready),
            Err(e) => reasons.push(format!("{}: {e}", source.suite)),
        }
    }
    Err(Error::Failed(reasons.join("; ")))
}

/// The choice between the kernel in the cache and a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refresh {
    No,
    Yes,
}

fn fetch_from(arch: Arch, source: &Source, dir: &Path) -> Result<Ready> {
    let root = arch.packages(&[&source.suite])?;
    let (prefix, _) = source.package.split_once('*').unwrap_or((&source.package, ""));
    let mut found = root.names(prefix)?;
    found.retain(|name| matches(&source.package, name));
    found.sort_by_key(|name| Reverse(version_key(name)));
    let mut reason = format!("no package is called {}", source.package);
    // The archive drops old packages part by part, so the newest kernel may be the only complete one.
    for package in found.iter().take(3) {
        match fetch_package(&root, package, dir) {
            Ok(ready) => return Ok(ready),
            Err(e) => reason = format!("{package}: {e}"),
        }
    }
    Err(Error::Failed(reason))
}

fn fetch_package(root: &AptRoot, package: &str, dir: &Path) -> Result<Ready> {
    let release = package.strip_prefix(PARTS[0]).unwrap_or(package);
    let fresh = dir.with_extension("new");
    let remove = |old: &Path| match old.exists() {
        true => fs::remove_dir_all(old).map_err(|e| Error::file("remove", old, e)),
        false => Ok(()),
    };
    remove(&fresh)?;
    fs::create_dir_all(&fresh).map_err(|e| Error::file("create the directory", &fresh, e))?;
    for part in PARTS {
        let name = format!("{part}{release}");
        if root.names(&name)?.contains(&name) {
            let unpacked = root.fetch(&name)?;
            run::capture(tool("cp", &["--archive", "--link", "--"]).arg(unpacked.join(".")).arg(&fresh))?;
        }
    }
    lay_out(&fresh, release)?;
    // The old kernel is removed only now, because it remains in use if there is no network.
    remove(dir)?;
    fs::rename(&fresh, dir).map_err(|e| Error::file("rename", &fresh, e))?;
    Ready::at(dir)
}

/// Brings the packages' files into one layout, from each of Debian's: `vmlinuz`,
/// `config`, `release`, and the modules under `usr/lib/modules`, where depmod looks by itself or not.
fn lay_out(dir: &Path, release: &str) -> Result<()> {
    let wanted = [("vmlinuz", "vmlinuz"), ("config", "config")];
    for (name, to) in wanted {
        let places = [
            dir.join(format!("boot/{name}-{release}")),
            dir.join(format!("usr/lib/modules/{release}/{name}")),
            dir.join(format!("lib/modules/{release}/{name}")),
        ];
        let from = places.iter().find(|place| place.is_file());
        let from = from.ok_or_else(|| Error::Failed(format!("its packages have no {name}")))?;
        fs::copy(from, dir.join(to)).map_err(|e| Error::file("copy", from, e))?;
    }
    let modules = module_dir(dir, release);
    if !modules.join("kernel").is_dir() {
        return Err(Error::Failed("its packages have no modules".to_owned()));
    }
    for (suffix, program) in [("xz", "xz"), ("zst", "zstd"), ("gz", "gzip")] {
        expand(&modules, suffix, program)?;
    }
    // The two names of the folder lead to the same place, as on an installed system.
    if dir.join("usr/lib/modules").is_dir() && !dir.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", dir.join("lib"))
            .map_err(|e| Error::file("make the link", &dir.join("lib"), e))?;
    }
    run::capture(tool("depmod", &["-b"]).arg(dir).arg(release))?;
    let stamp = dir.join("release");
    fs::write(&stamp, release).map_err(|e| Error::file("write", &stamp, e))
}

/// Unpacks compressed modules once, here: an emulated processor needs seconds for it.
fn expand(modules: &Path, suffix: &str, program: &str) -> Result<()> {
    let pattern = format!("*.ko.{suffix}");
    let compressed = run::capture(tool("find", &[]).arg(modules).args(["-name", &pattern]))?;
    let files: Vec<&str> = compressed.lines().collect();
    for some in files.chunks(500) {
        run::capture(tool(program, &["-d", "-q", "-f"]).args(some))?;
    }
    // zstd keeps what it has read.
    for file in files.iter().map(Path::new).filter(|file| file.exists()) {
        fs::remove_file(file).map_err(|e| Error::file("remove", file, e))?;
    }
    Ok(())
}

fn module_dir(dir: &Path, release: &str) -> PathBuf {
    let merged = dir.join("usr/lib/modules").join(release);
    if merged.is_dir() { merged } else { dir.join("lib/modules").join(release) }
}

impl Ready {
    fn at(dir: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read_to_string(&path).map_err(|e| Error::file("read", &path, e))
        };
        let release = read("release")?;
        let modules = module_dir(dir, &release);
        Ok(Self { image: dir.join("vmlinuz"), config: read("config")?, modules, release })
    }
}

/// True if a name matches a pattern in which `*` stands for any text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, rest)) => name.strip_prefix(head).is_some_and(|tail| {
            (0..=tail.len()).any(|at| tail.is_char_boundary(at) && matches(rest, &tail[at..]))
        }),
    }
}

/// Orders names by the numbers in them: `6.1.0-9` before `6.1.0-10`.
fn version_key(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_text() {
        let pattern = "linux-image-6.1.*-cloud-amd64";
        assert!(matches(pattern, "linux-image-6.1.0-56-cloud-amd64"));
        for other in [
            "linux-image-6.12.1-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64-unsigned",
            "linux-image-6.1-cloud-amd64",
        ] {
            assert!(!matches(pattern, other), "{other}");
        }
        assert!(matches("bridge", "bridge") && !matches("bridge", "br_netfilter"));
        assert!(matches("*", "") && matches("nft_*", "nft_nat"));
    }

    #[test]
    fn newer_is_by_number() {
        let mut names = vec!["linux-image-6.1.0-9-x", "linux-image-6.1.0-56-x", "linux-image-6.1.0-10-x"];
        names.sort_by_key(|name| Reverse(version_key(name)));
        assert_eq!(names, ["linux-image-6.1.0-56-x", "linux-image-6.1.0-10-x", "linux-image-6.1.0-9-x"]);
    }
}
