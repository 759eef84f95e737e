// SPDX-License-Identifier: MIT OR Apache-2.0

//! The list of kernels, `vm-tests/kernels.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use crate::arch::Arch;
use xtask_base::error::{Error, Result};
use xtask_base::workspace;

/// The whole list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kernels {
    /// Options that each must have, without the `CONFIG_` before them.
    pub(crate) promised: Vec<String>,
    /// Names of modules, with `*` for any text.
    pub(crate) modules: Vec<String>,
    /// Modules that are loaded at the start.
    pub(crate) preload: Vec<String>,
    /// The test programs that are run where only a part of the tests is.
    pub(crate) smoke: Vec<String>,
    /// The test programs that are run on ARM64.
    #[serde(default)]
    pub(crate) arm64: Vec<String>,
    /// Of some of these, only the tests whose names contain a text.
    #[serde(default)]
    pub(crate) arm64_only: BTreeMap<String, String>,
    /// Test programs that are never run in the VMs.
    #[serde(default)]
    pub(crate) left_out: Vec<LeftOut>,
    /// Test programs whose tests do not run side by side.
    #[serde(default)]
    pub(crate) one_by_one: Vec<String>,
    /// Test programs that need kube-proxy, which is on a disk of the VM.
    #[serde(default)]
    pub(crate) kubernetes: Vec<String>,
    /// Test programs that run `slipwayd`, which is built for the VMs of these only.
    #[serde(default)]
    pub(crate) slipwayd: Vec<String>,
    /// Features that all VMs lack because of their programs, not of their kernels.
    #[serde(default)]
    pub(crate) anywhere: Vec<Missing>,
    /// In the order of the file.
    pub(crate) kernel: Vec<Kernel>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kernel {
    /// The name for people.
    pub(crate) name: String,
    /// Its processor.
    #[serde(default)]
    pub(crate) arch: Arch,
    /// True if the smoke test of every run may use it.
    #[serde(default)]
    pub(crate) smoke: bool,
    /// Its sources, the best first.
    #[serde(default)]
    pub(crate) from: Vec<Source>,
    /// The name of another kernel of the list, in place of sources: this one is the same, but lacks the modules of
    /// `without` or boots with the arguments of `boot`.
    #[serde(default)]
    pub(crate) same_as: Option<String>,
    /// Names of modules that are left out, with `*` for any text.
    #[serde(default)]
    pub(crate) without: Vec<String>,
    /// More arguments of the kernel.
    #[serde(default)]
    pub(crate) boot: Vec<String>,
    /// The test programs that are run on it; if there are none, those of its processor.
    #[serde(default)]
    pub(crate) suites: Vec<String>,
    /// The promised options that it lacks.
    #[serde(default)]
    pub(crate) missing: Vec<Missing>,
}

/// A place for a kernel's package.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Source {
    /// Debian's name of the suite.
    pub(crate) suite: String,
    /// The package's name, with `*` for any text.
    pub(crate) package: String,
}

/// A test program that is not run in VMs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeftOut {
    /// Its name.
    pub(crate) suite: String,
    /// The reason, for people; must not be empty.
    pub(crate) reason: String,
}

/// An option that a kernel lacks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Missing {
    /// Its name without the `CONFIG_`; without an option for it, the release that introduced it.
    #[serde(default)]
    pub(crate) option: Option<String>,
    /// The feature as the tests name it when they skip.
    pub(crate) feature: String,
    /// The reason, for people; must not be empty.
    pub(crate) reason: String,
}

/// A fault of the list.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{0}")]
    Form(#[from] toml::de::Error),
    #[error("{0} is there twice")]
    NamedTwice(String),
    #[error("no reason is given for {0}")]
    NoReason(String),
    #[error(
        "{0} names neither packages in `from` nor a kernel with packages for the same processor in `same_as`"
    )]
    NoPackages(String),
}

/// A difference between the list and the configuration in a kernel's package.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WrongOption {
    #[error("CONFIG_{0} is promised and not set")]
    NotSet(String),
    #[error("CONFIG_{0} is listed as missing and is set")]
    Set(String),
}

impl Kernels {
    /// Reads the list.
    pub(crate) fn load() -> Result<Self> {
        let path = workspace::root().join("vm-tests/kernels.toml");
        let text = fs::read_to_string(&path).map_err(|e| Error::file("read", &path, e))?;
        Self::parse(&text).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, Fault> {
        let mut list: Self = toml::from_str(text)?;
        let mut names = BTreeSet::new();
        for kernel in &list.kernel {
            if !names.insert(&kernel.name) {
                return Err(Fault::NamedTwice(kernel.name.clone()));
            }
        }
        let mut named = list.kernel.iter().flat_map(|kernel| &kernel.missing).chain(&list.anywhere);
        if let Some(missing) = named.find(|missing| missing.reason.trim().is_empty()) {
            return Err(Fault::NoReason(missing.feature.clone()));
        }
        if let Some(left_out) = list.left_out.iter().find(|one| one.reason.trim().is_empty()) {
            return Err(Fault::NoReason(format!("leaving {} out", left_out.suite)));
        }
        let all = list.kernel.clone();
        for kernel in &mut list.kernel {
            if let Some(name) = &kernel.same_as {
                let is_same =
                    |one: &&Kernel| one.name == *name && one.arch == kernel.arch && one.same_as.is_none();
                kernel.from = all.iter().find(is_same).map(|one| one.from.clone()).unwrap_or_default();
            }
            if kernel.from.is_empty() {
                return Err(Fault::NoPackages(kernel.name.clone()));
            }
        }
        Ok(list)
    }

    /// True if a skip of this form, `<test>: skipped: needs <feature>`, is one of those named.
    pub(crate) fn allows(&self, kernel: &Kernel, skip: &str) -> bool {
        let feature = skip.split_once(": skipped: needs ").map(|(_, feature)| feature.trim());
        let mut named = kernel.missing.iter().chain(&self.anywhere);
        named.any(|missing| Some(missing.feature.as_str()) == feature)
    }

    /// The test programs that are run on a kernel if none is named; all of them if the list is empty.
    pub(crate) fn suites<'a>(&'a self, kernel: &'a Kernel) -> &'a [String] {
        match kernel.arch {
            _ if !kernel.suites.is_empty() => &kernel.suites,
            Arch::Amd64 => &[],
            Arch::Arm64 => &self.arm64,
        }
    }

    /// The test programs that are run on at least one of these kernels if none is named; all of them if the list is empty.
    pub(crate) fn suites_of_any(&self, kernels: &[&Kernel]) -> Vec<String> {
        let mut names = BTreeSet::new();
        for suites in kernels.iter().map(|kernel| self.suites(kernel)) {
            if suites.is_empty() {
                return Vec::new();
            }
            names.extend(suites.iter().cloned());
        }
        names.into_iter().collect()
    }

    /// The text in the names of the tests that are run of a test program; all of its tests are run if there is none.
    pub(crate) fn only(&self, arch: Arch, suite: &str) -> Option<&String> {
        match arch {
            Arch::Amd64 => None,
            Arch::Arm64 => self.arm64_only.get(suite),
        }
    }

    /// The kernels for a processor that were asked for, in the order of the list; all of them when none was.
    pub(crate) fn select(&self, names: &[String], arch: Arch) -> Result<Vec<&Kernel>> {
        let mut wanted: Vec<&Kernel> = self.kernel.iter().filter(|kernel| kernel.arch == arch).collect();
        if let Some(unknown) = names.iter().find(|name| wanted.iter().all(|kernel| !kernel.is_called(name))) {
            let known: Vec<&str> = wanted.iter().map(|kernel| kernel.name.as_str()).collect();
            let arch = arch.debian();
            return Err(Error::Failed(format!(
                "no kernel {unknown} for {arch} in the list: {}",
                known.join(", ")
            )));
        }
        wanted.retain(|kernel| names.is_empty() || names.iter().any(|name| kernel.is_called(name)));
        Ok(wanted)
    }
}

impl Kernel {
    /// The name of the kernel whose packages these are.
    pub(crate) fn packages(&self) -> &str {
        self.same_as.as_ref().unwrap_or(&self.name)
    }

    /// True if this is its name, in which that of the processor may be left out.
    fn is_called(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name).map(|rest| rest.trim_start_matches('-'));
        rest.is_some_and(|rest| rest.is_empty() || rest == self.arch.debian())
    }

    /// Compares the configuration in the kernel's package with the list.
    pub(crate) fn wrong_options(&self, promised: &[String], config: &str) -> Vec<WrongOption> {
        let set: BTreeSet<&str> = config
            .lines()
            .filter_map(|line| line.strip_prefix("CONFIG_")?.split_once('='))
            .filter(|(_, value)| matches!(*value, "y" | "m"))
            .map(|(name, _)| name)
            .collect();
        let missing: BTreeSet<&str> = self.missing.iter().filter_map(|one| one.option.as_deref()).collect();
        let unset = promised.iter().filter(|name| !set.contains(&***name) && !missing.contains(&***name));
        let unset = unset.map(|name| WrongOption::NotSet(name.clone()));
        let stale = missing.intersection(&set).map(|name| WrongOption::Set((*name).to_owned()));
        unset.chain(stale).collect()
    }
}

/// The folder of the unpacked kernels, the emulator and the runs.
pub(crate) fn cache() -> Result<PathBuf> {
    workspace::scratch("vm")
}

/// Prints the kernels of which a plain run of the tests tries one.
pub(crate) fn print_marked() -> Result<()> {
    print!("{}", marked(&Kernels::load()?));
    Ok(())
}

fn marked(list: &Kernels) -> String {
    let names = |smoke: bool| {
        let of_list = list.kernel.iter().filter(|kernel: &&Kernel| kernel.smoke == smoke);
        of_list.map(|kernel| kernel.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    format!(
        "The suites {} run on Linux {}, a plain run's on one of these\n\
         Mutated Nodes and reports of plugins: a million of each; a plain run tries thousands\n\
         Not in --full: other suites on these kernels, and Linux {} (`cargo xtask vm-test`); podman, containerd and \
         cnitool (`cargo xtask test --runtimes`)\n",
        list.smoke.join(", "),
        names(true),
        names(false)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_marked_kernels_has_them_all() {
        let list = Kernels::load().unwrap();
        let printed = marked(&list);
        assert!(list.kernel.iter().all(|kernel| printed.contains(&kernel.name)), "{printed}");
    }
    use std::path::Path;

    fn kernel() -> Kernel {
        Kernel {
            name: "5.10".to_owned(),
            arch: Arch::Amd64,
            smoke: false,
            from: Vec::new(),
            same_as: None,
            without: Vec::new(),
            boot: Vec::new(),
            suites: Vec::new(),
            missing: vec![Missing {
                option: Some("NETKIT".to_owned()),
                feature: "netkit".to_owned(),
                reason: "it came with 6.7".to_owned(),
            }],
        }
    }

    #[test]
    fn the_test_programs_that_run_slipwayd_are_listed() {
        let list = Kernels::load().unwrap();
        let folder = workspace::root().join("tests/tests");
        let files = |suite: &Path| -> Vec<PathBuf> {
            if suite.is_dir() {
                fs::read_dir(suite).unwrap().map(|entry| entry.unwrap().path()).collect()
            } else {
                vec![suite.to_owned()]
            }
        };
        let runs_it = |suite: &PathBuf| {
            let mut rust =
                files(suite).into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
            rust.any(|path| fs::read_to_string(path).unwrap().contains("slipwayd()"))
        };
        let suites = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let name = |suite: PathBuf| suite.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut found: Vec<String> = suites.filter(runs_it).map(name).collect();
        found.retain(|name| list.left_out.iter().all(|one| one.suite != *name));
        found.sort();
        assert_eq!(found, list.slipwayd);
    }

    #[test]
    fn the_committed_list_is_well_formed() {
        let list = Kernels::load().unwrap();
        assert!(list.kernel.iter().any(|kernel| kernel.smoke));
        assert!(list.kernel.iter().all(|kernel| !kernel.from.is_empty()));
        assert!(list.kernel.iter().all(|kernel| kernel.arch == Arch::Amd64 || !kernel.smoke));
        assert!(list.arm64_only.keys().all(|suite| list.arm64.contains(suite)));
        let folder = workspace::root().join("tests/tests");
        let of_kernels = list.kernel.iter().map(|kernel| &kernel.suites);
        for suite in [&list.smoke, &list.arm64].into_iter().chain(of_kernels).flatten() {
            assert!(folder.join(suite).is_dir() || folder.join(format!("{suite}.rs")).is_file(), "{suite}");
            assert!(list.left_out.iter().all(|one| one.suite != *suite), "{suite}");
        }
    }

    #[test]
    fn a_kernel_that_is_the_same_as_another_has_its_packages() {
        let list = Kernels::load().unwrap();
        let find = |name: &str| list.kernel.iter().find(|kernel| kernel.name == name).unwrap();
        let (plain, without) = (find("6.12"), find("6.12-without-iptables"));
        assert_eq!((without.packages(), &without.from), ("6.12", &plain.from));
        assert!(!without.without.is_empty() && !without.suites.is_empty());
        // A run of it alone builds and runs its test programs; one with others, all that one of them runs.
        assert_eq!(list.suites(without), without.suites);
        let mut sorted = without.suites.clone();
        sorted.sort();
        assert_eq!(list.suites_of_any(&[without]), sorted);
        assert_eq!(list.suites_of_any(&[without, plain]), Vec::<String>::new());
        let text = |same_as: &str| {
            format!(
                "promised = []\nmodules = []\npreload = []\nsmoke = []\n\
                 [[kernel]]\nname = \"a\"\nfrom = [{{ suite = \"s\", package = \"p\" }}]\n\
                 [[kernel]]\nname = \"b\"\nsame_as = \"{same_as}\"\n"
            )
        };
        assert!(Kernels::parse(&text("a")).is_ok());
        for wrong in ["b", "c"] {
            let error = Kernels::parse(&text(wrong)).unwrap_err().to_string();
            assert!(error.starts_with("b names neither packages"), "{error}");
        }
    }

    #[test]
    fn a_kernel_is_selected_by_name_and_processor() {
        let list = Kernels::load().unwrap();
        let names = |names: &[&str], arch: Arch| -> Result<Vec<String>> {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let found = list.select(&names, arch)?;
            Ok(found.into_iter().map(|kernel| kernel.name.clone()).collect())
        };
        assert_eq!(names(&["6.1"], Arch::Amd64).unwrap(), ["6.1"]);
        assert_eq!(names(&["6.1"], Arch::Arm64).unwrap(), ["6.1-arm64"]);
        assert_eq!(names(&["6.1-arm64"], Arch::Arm64).unwrap(), ["6.1-arm64"]);
        for (unknown, arch) in [("6", Arch::Amd64), ("6.1-arm64", Arch::Amd64), ("5.10", Arch::Arm64)] {
            let text = names(&[unknown], arch).unwrap_err().to_string();
            assert!(text.starts_with(&format!("no kernel {unknown} for ")), "{text}");
        }
        let all = [Arch::Amd64, Arch::Arm64].map(|arch| names(&[], arch).unwrap().len());
        assert!(all[1] >= 2 && all[0] + all[1] == list.kernel.len(), "{all:?}");
    }

    #[test]
    fn a_kernel_is_named_once_and_what_it_lacks_has_a_reason() {
        let head = "promised = []\nmodules = []\npreload = []\nsmoke = []\n";
        let twice = "[[kernel]]\nname = \"a\"\nfrom = []\n".repeat(2);
        let fault = |kernels: &str| Kernels::parse(&format!("{head}{kernels}")).unwrap_err().to_string();
        assert_eq!(fault(&twice), "a is there twice");
        let bare = "[[kernel]]\nname = \"a\"\nfrom = []\nmissing = [{ feature = \"x\", reason = \" \" }]\n";
        assert_eq!(fault(bare), "no reason is given for x");
    }

    #[test]
    fn options_are_compared_both_ways() {
        let promised = ["VETH".to_owned(), "NETKIT".to_owned()];
        let wrong = |config| {
            let found = kernel().wrong_options(&promised, config);
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(wrong("CONFIG_VETH=m\n# CONFIG_NETKIT is not set\n").is_empty());
        assert_eq!(wrong("# nothing\n"), ["CONFIG_VETH is promised and not set"]);
        let both = "CONFIG_VETH=y\nCONFIG_NETKIT=y\n";
        assert_eq!(wrong(both), ["CONFIG_NETKIT is listed as missing and is set"]);
    }

    #[test]
    fn only_a_named_feature_may_be_skipped() {
        let mut list = Kernels::load().unwrap();
        list.anywhere = vec![Missing { feature: "old tools".to_owned(), ..kernel().missing[0].clone() }];
        assert!(list.allows(&kernel(), "node::links::netkit: skipped: needs netkit"));
        assert!(list.allows(&kernel(), "node::rules: skipped: needs old tools"));
        assert!(!list.allows(&kernel(), "node::links::netkit: skipped: needs vrf"));
        assert!(!list.allows(&kernel(), "needs netkit"));
    }
}
