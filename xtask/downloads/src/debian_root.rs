// SPDX-License-Identifier: MIT OR Apache-2.0

//! A Debian system in a folder, made by debootstrap(8): the image that a container file begins with, and the system that
//! packages are installed on.

use std::fs;
use std::path::{Path, PathBuf};

use xtask_base::apt_root::{self, AptRoot, KEYRING};
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::progress::Log;
use xtask_base::run::{self, tool};
use xtask_base::workspace::{self, Lock};

/// The layout of the systems. A change of this text makes them again.
const LAYOUT: &str = "layout 1\n";

/// The suite whose debootstrap is used: it knows the names of all that are made.
const NEWEST: &str = "unstable";

/// The smallest system of a suite that has apt, made once. It is for reading: what runs in it gets a writable
/// layer above.
pub fn minimal(suite: &str, log: &Log) -> Result<PathBuf> {
    let root = workspace::scratch("debian")?.join(suite);
    let _lock = Lock::take(&root.with_extension("lock"))?;
    let stamp = root.with_extension("from");
    if fs::read_to_string(&stamp).is_ok_and(|from| from == LAYOUT) {
        return Ok(root);
    }
    if run::which("wget").is_none() {
        return Err(Error::Failed("debootstrap needs wget: install it".to_owned()));
    }
    let mirror = apt_root::debian_mirror(suite)?
        .ok_or_else(|| Error::Failed(format!("no mirror of Debian {suite} is known to apt")))?;
    let unpacked = AptRoot::open(NEWEST)?.fetch("debootstrap")?;
    let fresh = root.with_extension("new");
    for old in [&stamp, &root, &fresh] {
        workspace::remove(old)?;
    }
    // The mounts of debootstrap end with the namespace.
    let mut command = tool("unshare", &["--mount"]);
    command.arg(unpacked.join("usr/sbin/debootstrap"));
    command.args(["--variant=minbase", &format!("--keyring={KEYRING}"), suite]);
    command.arg(&fresh).arg(&mirror).env("DEBOOTSTRAP_DIR", unpacked.join("usr/share/debootstrap"));
    for scheme in ["http", "https"] {
        if let Some(proxy) = proxy(scheme)? {
            command.env(format!("{scheme}_proxy"), proxy);
        }
    }
    run::log(&mut command, &log.file)?;
    workspace::remove(&fresh.join("var/cache/apt/archives"))?;
    files::rename(&fresh, &root)?;
    files::write(&stamp, LAYOUT)?;
    Ok(root)
}

/// The lower folders of an overlay: more programs, which are unpacked and not configured, over the smallest system of their
/// suite. Programs are fetched once per name and suite.
pub fn with_programs(name: &str, packages: &[&str], suite: &str, log: &Log) -> Result<PathBuf> {
    let base = minimal(suite, log)?;
    let folder = workspace::scratch(name)?.join(suite);
    let _lock = Lock::take(&folder.with_extension("lock"))?;
    let stamp = folder.with_extension("complete");
    let wanted = packages.join(" ");
    if fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(lower(&folder, &base));
    }
    workspace::remove(&folder)?;
    apt_root::merged_usr(&folder)?;
    AptRoot::open(suite)?.fetch_all(packages, &folder)?;
    files::write(&stamp, wanted)?;
    Ok(lower(&folder, &base))
}

fn lower(folder: &Path, base: &Path) -> PathBuf {
    PathBuf::from(format!("{}:{}", folder.display(), base.display()))
}

/// The proxy of the machine's apt, which wget does not know.
fn proxy(scheme: &str) -> Result<Option<String>> {
    let printed = run::capture(&mut tool("apt-config", &["dump", &format!("Acquire::{scheme}::Proxy")]))?;
    Ok(value(&printed))
}

/// The value in a line `Name "value";`.
fn value(line: &str) -> Option<String> {
    let value = line.lines().next()?.split('"').nth(1)?;
    (!value.is_empty() && value != "DIRECT").then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_is_that_of_apt() {
        let dump = "Acquire::http::Proxy \"http://proxy.example:3142\";\n";
        assert_eq!(value(dump).as_deref(), Some("http://proxy.example:3142"));
        for none in ["", "Acquire::http::Proxy \"\";\n", "Acquire::http::Proxy \"DIRECT\";\n"] {
            assert_eq!(value(none), None);
        }
    }
}
