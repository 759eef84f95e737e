// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kubernetes' programs for the tests of its network: kube-proxy and an API server, with Debian's etcd.

use std::fs;
use std::path::{Path, PathBuf};

use crate::apt_root::AptRoot;
use crate::error::{Error, Result};
use crate::workspace;

/// The variable with their directory, for the tests.
pub(crate) const VARIABLE: &str = "SLIPWAY_KUBE_DIR";

/// The programs of Debian's source package `kubernetes`, which no binary package has.
const BUILT: [&str; 2] = ["kube-proxy", "kube-apiserver"];

/// The suite with etcd 3.4, its package and the program in it.
const ETCD: (&str, &str, &str) = ("bookworm", "etcd-server", "usr/bin/etcd");

/// The directory with the programs; none if they were not put there. etcd is fetched.
///
/// # Errors
/// etcd cannot be fetched.
pub(crate) fn find() -> Result<Option<PathBuf>> {
    let dir = workspace::scratch("kube")?;
    if !BUILT.iter().all(|name| dir.join(name).is_file()) {
        return Ok(None);
    }
    let etcd = dir.join("etcd");
    if !etcd.is_file() {
        let (suite, package, program) = ETCD;
        copy(&AptRoot::open(suite)?.fetch(package)?.join(program), &etcd)?;
    }
    Ok(Some(dir))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let part = to.with_extension("part");
    fs::copy(from, &part).map_err(|e| Error::file("copy", from, e))?;
    fs::rename(&part, to).map_err(|e| Error::file("rename", &part, e))
}
