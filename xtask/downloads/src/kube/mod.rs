// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kubernetes' programs for the tests of its network, with Debian's etcd and ipset.

mod build;

use std::env;
use std::path::{Path, PathBuf};

use xtask_base::apt_root::AptRoot;
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::progress::Stages;
use xtask_base::workspace::{self, Lock};

use build::Build;

/// The variable with their directory, for the tests.
pub const VARIABLE: &str = "SLIPWAY_KUBE_DIR";

/// The suites with tests that need the programs.
pub const SUITES: [&str; 4] = ["network_matrix", "cluster_nodes", "cluster", "kubelets"];

/// A program of Debian's source package `kubernetes`, which no binary package has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Program {
    /// The name of its file, and of its folder below `cmd` in the source.
    name: &'static str,
    /// True if only nodes with kubelets, and their control plane, need it.
    of_kubelets: bool,
}

/// The programs that can be built.
const PROGRAMS: [Program; 5] = [
    Program { name: "kube-proxy", of_kubelets: false },
    Program { name: "kube-apiserver", of_kubelets: false },
    Program { name: "kube-controller-manager", of_kubelets: true },
    Program { name: "kube-scheduler", of_kubelets: true },
    Program { name: "kubelet", of_kubelets: true },
];

/// The programs that VMs get. An emulated API server needs minutes to start: a single test uses it there.
pub const FOR_VMS: [&str; 5] = ["kube-proxy", "kube-apiserver", "etcd", "ipset", "libipset.so.13"];

/// Debian's suite with etcd 3.4.
const SUITE: &str = "bookworm";

/// The directory with the programs, etcd and ipset for the tests; none if something is missing, which is printed. With
/// `asked`, missing programs are built first. If only those of kubelets are missing, the other tests run.
///
/// # Errors
/// A build that fails; with `require`, also a build that this machine cannot begin, or etcd or ipset
/// that cannot be fetched.
pub fn provide(asked: bool, stages: &Stages, require: bool) -> Result<Option<PathBuf>> {
    if asked {
        build_missing(stages, require)?;
    }
    let mut found = Ok(None);
    stages.run("Kubernetes", |_| {
        found = find();
        Ok(match &found {
            Ok(Some(dir)) => match names(&missing_in(dir)) {
                none if none.is_empty() => dir.display().to_string(),
                missing => format!("no {missing}; `cargo xtask test --kube` builds them"),
            },
            Ok(None) if !asked => {
                "no kube-proxy, no kube-apiserver; `cargo xtask test --kube` builds them".to_owned()
            }
            Ok(None) => "no kube-proxy, no kube-apiserver".to_owned(),
            Err(_) => "no etcd or ipset".to_owned(),
        })
    })?;
    match found {
        Err(e) if !require => {
            println!("  SKIP  the tests with kube-proxy, for etcd and ipset could not be fetched: {e}");
            Ok(None)
        }
        found => found,
    }
}

/// True if the directory has the programs of a cluster with kubelets.
pub fn has_kubelet(dir: &Path) -> bool {
    missing_in(dir).is_empty()
}

/// Builds missing programs; prints a line if this machine cannot.
fn build_missing(stages: &Stages, require: bool) -> Result<()> {
    let dir = directory()?;
    if missing_in(&dir).is_empty() {
        return Ok(());
    }
    let _lock = Lock::take(&dir.join("build.lock"))?;
    // Another run may have built them.
    let missing = missing_in(&dir);
    if missing.is_empty() {
        return Ok(());
    }
    let names = names(&missing);
    println!(
        "  {names}: built from Debian's source of Kubernetes (up to half an hour of CPU; an interrupted build \
              continues)"
    );
    let mut prepared = None;
    stages.run("Kubernetes' source", |_| {
        let build = prepared.insert(Build::prepare(&missing));
        Ok(build.as_ref().map_or("cannot be built", |_| "with Debian's Go").to_owned())
    })?;
    let build = match prepared {
        Some(Err(e)) if !require => {
            println!("  SKIP  the tests that need {names}, which cannot be built: {e}");
            return Ok(());
        }
        Some(build) => build?,
        None => return Ok(()),
    };
    stages.run("generated sources", |log| build.generate(log).map(|()| String::new()))?;
    for program in missing {
        stages.run(&format!("build {}", program.name), |log| build.program(program, log))?;
    }
    build.finish()
}

/// The directory with the programs that tests need, etcd and ipset.
pub fn programs() -> Result<PathBuf> {
    find()?.ok_or_else(|| Error::Failed("no kube-apiserver: `cargo xtask test --kube` builds it".to_owned()))
}

/// The directory with the programs; none if one is missing that not only kubelets need. etcd and ipset are fetched.
fn find() -> Result<Option<PathBuf>> {
    let dir = directory()?;
    if missing_in(&dir).iter().any(|program| !program.of_kubelets) {
        return Ok(None);
    }
    for (package, file) in fetched() {
        let program = dir.join(file.file_name().unwrap_or_default());
        if !program.is_file() {
            copy(&AptRoot::open(SUITE)?.fetch(package)?.join(file), &program)?;
        }
    }
    Ok(Some(dir))
}

/// Packages of [`SUITE`], and a file of each. kube-proxy calls ipset(8) in mode IPVS.
fn fetched() -> [(&'static str, PathBuf); 3] {
    let libraries = format!("usr/lib/{}-linux-gnu", env::consts::ARCH);
    [
        ("etcd-server", PathBuf::from("usr/bin/etcd")),
        ("ipset", PathBuf::from("usr/sbin/ipset")),
        ("libipset13", PathBuf::from(libraries).join("libipset.so.13")),
    ]
}

fn directory() -> Result<PathBuf> {
    workspace::scratch("kube")
}

fn missing_in(dir: &Path) -> Vec<Program> {
    PROGRAMS.iter().filter(|program| !dir.join(program.name).is_file()).copied().collect()
}

/// The programs' names, for people.
fn names(programs: &[Program]) -> String {
    programs.iter().map(|program| program.name).collect::<Vec<_>>().join(", ")
}

/// Copies a program. The file with its name is always a whole one.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let part = to.with_extension("part");
    files::copy(from, &part)?;
    files::rename(&part, to)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn missing_programs_are_built() {
        let dir = std::env::temp_dir().join(format!("slipway-kube-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let missing = || names(&missing_in(&dir));
        let all = "kube-proxy, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet";
        assert_eq!(missing(), all);
        // The rest of a killed copy does not count as a program.
        fs::write(dir.join("kube-proxy.part"), "half").unwrap();
        assert_eq!(missing(), all);
        fs::write(dir.join("built"), "whole").unwrap();
        copy(&dir.join("built"), &dir.join("kube-proxy")).unwrap();
        assert_eq!(fs::read(dir.join("kube-proxy")).unwrap(), b"whole");
        fs::write(dir.join("kube-apiserver"), "").unwrap();
        assert_eq!(missing(), "kube-controller-manager, kube-scheduler, kubelet");
        fs::remove_dir_all(&dir).unwrap();
    }
}
