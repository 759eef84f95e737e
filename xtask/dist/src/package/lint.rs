// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks packages with lintian and rpmlint, which run in a Debian system below the target folder. A warning is repaired, or
//! has its reason in [`overrides`].

use std::path::{Path, PathBuf};

use xtask_base::error::Result;
use xtask_base::files;
use xtask_base::progress::Log;
use xtask_base::run::{self, tool};
use xtask_base::workspace::{self, Lock};
use xtask_downloads::debian_root;

/// The suite of the programs.
pub(super) const SUITE: &str = "trixie";
/// The packages of the programs. `rpm` is also for the tests.
const PACKAGES: [&str; 3] = ["lintian", "rpm", "rpmlint"];

/// Lintian's warnings that stay, with the reasons: lintian(1), in the package itself.
const LINTIAN: [(&str, &str); 2] = [
    ("slipway", include_str!("overrides/slipway.lintian")),
    ("slipwayd", include_str!("overrides/slipwayd.lintian")),
];
/// The same for rpmlint.
const RPMLINT: &str = include_str!("overrides/rpmlint.toml");

/// Mounts the system and runs a command in it; the packages are in /mnt. The mounts end with the namespace.
const IN_SYSTEM: &str = r#"
place=$1 lower=$2 folder=$3; shift 3
mount -t tmpfs tmpfs "$place"
mkdir "$place/upper" "$place/work" "$place/root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$place/upper,workdir=$place/work" "$place/root"
mount --bind "$folder" "$place/root/mnt"
mount --rbind /dev "$place/root/dev"
mount -t proc proc "$place/root/proc"
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root chroot "$place/root" sh -e -c "$@"
"#;

/// The overrides that a package brings.
pub(super) fn overrides(package: &str) -> &'static str {
    LINTIAN.iter().find(|(name, _)| *name == package).map_or("", |(_, text)| text)
}

/// Checks all packages in a folder.
pub(crate) fn check(folder: &Path, log: &Log) -> Result<String> {
    let lower = programs(log)?;
    let mut checked = Vec::new();
    for (end, words) in [
        ("deb", "lintian --allow-root --no-cfg --tag-display-limit 0 --fail-on error,warning /mnt/*.deb"),
        ("rpm", "rpmlint --config /tmp/rpmlint.toml --strict /mnt/*.rpm"),
    ] {
        let count = packages(folder, end)?;
        if count == 0 {
            continue;
        }
        let place = workspace::scratch("lint")?;
        let _lock = Lock::take(&place.with_extension("lock"))?;
        let script = format!("cat > /tmp/rpmlint.toml <<'END'\n{RPMLINT}END\n{words}");
        let mut command = tool("unshare", &["--mount", "--pid", "--fork", "sh", "-e", "-c", IN_SYSTEM, "sh"]);
        command.args([&place, &lower, &workspace::absolute(folder)?]).arg(script);
        run::log(&mut command, &log.file)?;
        checked.push(format!("{count} of {end}"));
    }
    Ok(format!("no error and no warning without a reason: {}", checked.join(", ")))
}

fn packages(folder: &Path, end: &str) -> Result<usize> {
    let is_wanted = |path: &PathBuf| path.extension().is_some_and(|found| found == end);
    Ok(files::list(folder)?.into_iter().filter(is_wanted).count())
}

/// The lower folders of the system: the programs upon a bare system of their suite.
pub(crate) fn programs(log: &Log) -> Result<PathBuf> {
    debian_root::with_programs("package-tools", &PACKAGES, SUITE, log)
}
