// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask release`: builds and checks what is published for a version. Tagging, signing and publishing
//! are the releaser's.

mod provenance;
mod sbom;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::binaries::{self, Proof};
use crate::built::{Built, Program};
use crate::package::Format;
use provenance::File;
use sbom::Subject;
use xtask::ebpf;
use xtask_base::checkout;
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::progress::{Log, Stages};
use xtask_base::run::{self, tool};
use xtask_base::workspace;

/// The processors that a release is built for.
const PROCESSORS: [&str; 2] = ["x86_64", "aarch64"];

/// Build what is published for a version, and check it.
///
/// The version must be the CHANGELOG's newest, nothing may be uncommitted, and the version's tag must be
/// free. The binaries are built and checked as by `dist --verify`, on a machine with an x86-64 processor.
/// Next to them are their packages, their bills of materials (CycloneDX), their manual pages and completions, the sources,
/// the provenance (SLSA) and the checksums. Nothing is tagged, signed or uploaded: the commands for that are printed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Report what would prevent a release, and build all the same
    #[arg(long)]
    dry_run: bool,
    /// Neither build the binaries twice nor run them: only to try the task
    #[arg(long, requires = "dry_run")]
    quick: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let stages = Stages::new("release")?;
    let version = version()?;
    let mut obstacles = Vec::new();
    stages.run("version", |_| {
        obstacles = find_obstacles(&version)?;
        if obstacles.is_empty() {
            return Ok(version.clone());
        }
        let list = format!("not ready: {}", obstacles.join("; "));
        if args.dry_run { Ok(list) } else { Err(Error::Failed(list)) }
    })?;
    let out = workspace::target().join("release").join(&version);
    workspace::remove(&out)?;
    files::create_dir(&out)?;
    for processor in PROCESSORS {
        let proof = Proof { verify: !args.quick, test: !args.quick };
        let built = binaries::make(processor, proof, &stages)?;
        for (program, binary) in &built.programs {
            stages.run(&format!("bill of {} for {processor}", program.name), |log| {
                let name = format!("{}-{version}-{processor}-linux", program.name);
                bill(&built, *program, binary, &version, &out.join(name), log)
            })?;
        }
        let formats = [Format::Deb, Format::Rpm];
        let packages =
            binaries::packages(&built, &formats, &binaries::out_dir(processor), proof.verify, &stages)?;
        for package in files::list(&packages)? {
            files::copy(&package, out.join(package.file_name().unwrap_or_default()))?;
        }
        // The manual is the same for every processor.
        stages.run("manual", |_| manual(&built.share, &version, &out))?;
    }
    stages.run("sources", |_| sources(&version, &out))?;
    stages.run("provenance", |_| provenance(&version, &out))?;
    stages.run("checksums", |_| checksums(&out))?;
    println!("{}", out.display());
    if obstacles.is_empty() {
        println!("{}", next_steps(&version, &out));
    } else {
        println!("a release would have stopped: {}", obstacles.join("; "));
    }
    Ok(())
}

fn version() -> Result<String> {
    let version = package()?["version"].as_str().map(str::to_owned);
    version.ok_or_else(|| Error::Failed("the package slipway has no version".to_owned()))
}

/// The metadata of the package `slipway`.
fn package() -> Result<Value> {
    let metadata = checkout::metadata()?;
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    let found = packages.find(|package| package["name"] == "slipway");
    found.cloned().ok_or_else(|| Error::Failed("no package slipway in the workspace".to_owned()))
}

/// The reasons not to release a version.
fn find_obstacles(version: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let path = workspace::root().join("CHANGELOG.md");
    let changelog = files::read(&path)?;
    found.extend(changelog_obstacle(&changelog, version));
    let manifest = workspace::root().join("ebpf/Cargo.toml");
    let programs = files::read(&manifest)?;
    if !programs.lines().any(|line| line == format!("version = \"{version}\"")) {
        found.push(format!("ebpf/Cargo.toml has another version than {version}"));
    }
    let git = |words: &[&str]| run::capture(tool("git", words).current_dir(workspace::root()));
    let changed = git(&["status", "--porcelain"])?.lines().count();
    if changed > 0 {
        found.push(format!("{changed} files differ from the commit"));
    }
    let tag = format!("refs/tags/v{version}^{{commit}}");
    if let Ok(tagged) = git(&["rev-parse", "--quiet", "--verify", &tag])
        && tagged != git(&["rev-parse", "HEAD"])?
    {
        found.push(format!("the tag v{version} is on another commit"));
    }
    let stale = stale_kernels()?;
    if !stale.is_empty() {
        found.push(format!("docs/reports/kernels.md has stale rows: {}", stale.join(", ")));
    }
    Ok(found)
}

/// The kernels whose results are of an older product.
fn stale_kernels() -> Result<Vec<String>> {
    let printed = run::capture(&mut run::cargo(&["run", "--quiet", "--package", "xtask-vm", "--", "stale"]))?;
    Ok(printed.lines().map(str::to_owned).collect())
}

/// The CHANGELOG's newest entry must be `## [VERSION] - YYYY-MM-DD`. An entry without text may precede it.
fn changelog_obstacle(changelog: &str, version: &str) -> Option<String> {
    let mut entries = changelog.split("\n## [").skip(1).peekable();
    entries.next_if(|entry| entry.split_once('\n').is_some_and(|(_, text)| text.trim().is_empty()));
    let heading = entries.next()?.lines().next().unwrap_or_default();
    let is_dated = heading.strip_prefix(&format!("{version}] - ")).is_some_and(|date| {
        date.len() == 10 && date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
    });
    (!is_dated).then(|| format!("CHANGELOG.md begins with [{heading}, not with [{version}] and a date"))
}

/// Copies a binary and writes its bill of materials, which must agree with the list that the binary carries.
fn bill(
    built: &Built,
    program: Program,
    binary: &Path,
    version: &str,
    to: &Path,
    log: &Log,
) -> Result<String> {
    files::copy(binary, to)?;
    let content = files::read_bytes(to)?;
    let subject = Subject {
        program,
        version,
        triple: &built.triple,
        sha256: &sha256(to)?,
        time: &checkout::commit_time("%cI")?,
        libraries: &built.libraries,
        has_bpf_programs: ebpf::is_in(&content)?,
    };
    let bill = sbom::bill(&subject)?;
    let listed = listed(&binaries::dependency_list(binary, log)?);
    let missing: Vec<&String> = bill.crates.difference(&listed).collect();
    let is_known = |name: &&String| bill.crates.contains(*name) || bill.compiled_with.contains(*name);
    let unknown: Vec<&String> = listed.iter().filter(|name| !is_known(name)).collect();
    if !missing.is_empty() || !unknown.is_empty() {
        return Err(Error::Failed(format!(
            "the binary's own list lacks {missing:?} of the bill, and has {unknown:?} that cargo does not know"
        )));
    }
    let text = serde_json::to_string_pretty(&bill.document)
        .map_err(|e| Error::Failed(format!("print the bill of materials: {e}")))?;
    let path = PathBuf::from(format!("{}.cdx.json", to.display()));
    files::write(&path, text + "\n")?;
    let components = bill.document["components"].as_array().map_or(0, Vec::len);
    Ok(format!("{components} components, {} of them crates that the binary lists", bill.crates.len()))
}

/// The crates in a binary's own list. The kinds in that list are useless, because cargo-auditable takes a procedural
/// macro with tests for a library.
fn listed(list: &Value) -> BTreeSet<String> {
    let packages = list["packages"].as_array().into_iter().flatten();
    packages
        .filter_map(|package| Some(format!("{} {}", package["name"].as_str()?, package["version"].as_str()?)))
        .collect()
}

/// Writes the manual pages and completions as an archive, with the commit's time. An archive that is there must
/// be the same.
fn manual(share: &Path, version: &str, out: &Path) -> Result<String> {
    let name = format!("slipway-{version}-manual.tar.gz");
    let (path, new) = (out.join(&name), out.join(".manual.tar.gz"));
    let time = format!("--mtime=@{}", checkout::commit_time("%ct")?);
    let words =
        ["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"];
    let mut tar = tool("tar", &words);
    // gzip by itself would write its time into the archive.
    tar.args([&time, "--use-compress-program=gzip --no-name", "--file"]).arg(&new);
    run::capture(tar.arg("--directory").arg(share).args(["bash-completion", "fish", "man", "zsh"]))?;
    if path.exists() {
        run::capture(tool("cmp", &[]).args([&new, &path]))?;
    }
    files::rename(&new, &path)?;
    Ok(name)
}

/// Writes the sources of the commit as an archive.
fn sources(version: &str, out: &Path) -> Result<String> {
    let name = format!("slipway-{version}.tar.gz");
    let prefix = format!("--prefix=slipway-{version}/");
    let mut git = tool("git", &["archive", "--format=tar.gz", &prefix, "--output"]);
    run::capture(git.arg(out.join(&name)).arg("HEAD").current_dir(workspace::root())).map(|_| name)
}

/// Writes the provenance of all files that are there.
fn provenance(version: &str, out: &Path) -> Result<String> {
    let described = |path: &Path, name: String| Ok(File { name, sha256: sha256(path)? });
    let lock = |name: &&str| described(&workspace::root().join(name), (*name).to_owned());
    let locks = provenance::LOCKS.iter().map(lock).collect::<Result<Vec<_>>>()?;
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let files =
        files::list(out)?.iter().map(|path| described(path, name(path))).collect::<Result<Vec<_>>>()?;
    let printed = |mut command: Command| run::capture(command.current_dir(workspace::root()));
    let (commit, compiler) =
        (printed(tool("git", &["rev-parse", "HEAD"]))?, printed(tool("rustc", &["--version"]))?);
    let package = package()?;
    let build = provenance::Build {
        version,
        processors: &PROCESSORS,
        commit: commit.trim(),
        repository: package["repository"].as_str(),
        compiler: compiler.trim(),
        locks: &locks,
        files: &files,
    };
    let text = serde_json::to_string_pretty(&provenance::statement(&build))
        .map_err(|e| Error::Failed(format!("print the provenance: {e}")))?;
    let name = format!("slipway-{version}.provenance.json");
    files::write(out.join(&name), text + "\n")?;
    Ok(name)
}

/// Writes `SHA256SUMS` over all files.
fn checksums(out: &Path) -> Result<String> {
    let paths = files::list(out)?;
    let names: Vec<_> = paths.iter().filter_map(|path| path.file_name()).collect();
    let sums = run::capture(tool("sha256sum", &[]).args(&names).current_dir(out))?;
    let path = out.join("SHA256SUMS");
    files::write(&path, sums)?;
    run::capture(tool("sha256sum", &["--check", "--strict", "SHA256SUMS"]).current_dir(out))?;
    Ok(format!("{} files", names.len()))
}

fn sha256(path: &Path) -> Result<String> {
    let printed = run::capture(tool("sha256sum", &[]).arg(path))?;
    Ok(printed.split(' ').next().unwrap_or_default().to_owned())
}

/// The releaser's next commands.
fn next_steps(version: &str, out: &Path) -> String {
    format!(
        "To release it:\n\n    git tag --sign v{version} --message 'Slipway {version}'\n    cd {out}\n    \
         gpg --armor --detach-sign SHA256SUMS\n    git push origin v{version}\n\nand upload the files of that \
         folder (docs/releasing.md).",
        out = out.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_provenance_has_the_checksums_of_the_files_and_the_commit() {
        let out = tempfile::tempdir().unwrap();
        std::fs::write(out.path().join("slipway-0.1.0-x86_64-linux"), "binary").unwrap();
        let name = provenance("0.1.0", out.path()).unwrap();
        let statement: Value =
            serde_json::from_slice(&std::fs::read(out.path().join(&name)).unwrap()).unwrap();
        let subject = &statement["subject"][0];
        assert_eq!(subject["name"], "slipway-0.1.0-x86_64-linux");
        // printf binary | sha256sum
        assert_eq!(
            subject["digest"]["sha256"],
            "9a3a45d01531a20e89ac6ae10b0b0beb0492acd7216a368aa062d1a5fecaf9cd"
        );
        let sources = &statement["predicate"]["buildDefinition"]["resolvedDependencies"][0];
        assert_eq!(sources["digest"]["gitCommit"].as_str().map(str::len), Some(40));
        checksums(out.path()).unwrap();
        let sums = std::fs::read_to_string(out.path().join("SHA256SUMS")).unwrap();
        assert!(sums.contains(&name), "{sums}");
    }

    #[test]
    fn the_changelog_must_begin_with_the_version_and_a_date() {
        let obstacle = |text: &str| changelog_obstacle(&format!("# Changelog\n\n{text}"), "0.2.0");
        assert_eq!(obstacle("## [0.2.0] - 2026-11-22\n\n- x\n"), None);
        assert_eq!(obstacle("## [Unreleased]\n\n## [0.2.0] - 2026-11-22\n\n- x\n"), None);
        for wrong in [
            "## [Unreleased]\n\n- y\n\n## [0.2.0] - 2026-11-22\n",
            "## [0.1.0] - 2026-11-22\n\n- x\n",
            "## [0.2.0]\n\n- x\n",
            "## [0.2.0] - soon\n\n- x\n",
        ] {
            assert!(obstacle(wrong).is_some(), "{wrong}");
        }
    }
}
