// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway support-bundle`: collects what a bug report needs into one tar file.
//!
//! Only the owner can read it (mode 0600). Of configurations it has the values of known keys in the form that
//! the key asks for; of all others the type and the length. The command lists the files, for a look before
//! the bundle is shared.

mod collect;
mod redact;
mod system;
mod tar;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use collect::{Part, Places};
use tar::Archive;

use cni_runtime::config;
use slipway_cli::Failure;

use super::directories::PluginDirs;

/// Collect what a bug report needs into one tar file
///
/// Changes nothing on the node. Only the owner can read the file; one that exists is not overwritten. Of configurations it
/// has the values of known keys; of all other values only the type and the length. Review it before you share it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  slipway support-bundle
  slipway support-bundle --file slipway-support.tar
  slipway support-bundle --config-dir /etc/containers/cni --plugin-dir /usr/lib/cni")]
pub(super) struct Args {
    /// The file to write [default: slipway-support-TIME.tar]
    #[arg(short = 'o', long, alias = "output", value_name = "FILE")]
    file: Option<PathBuf>,
    /// The directory of the networks' configurations
    #[arg(long, value_name = "DIR", default_value = config::DIRECTORY)]
    config_dir: PathBuf,
    #[command(flatten)]
    plugins: PluginDirs,
}

/// The directory in the archive.
const FOLDER: &str = "slipway-support";

/// Writes the file and lists its contents.
pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let usual = || PathBuf::from(format!("{FOLDER}-{time}.tar"));
    let file = args.file.clone().unwrap_or_else(usual);
    let parts = collect::all(&Places { configurations: &args.config_dir, plugins: &args.plugins.all() });
    write(&file, &parts, time).map_err(|e| Failure::Failed(format!("write {}: {e}", file.display())))?;
    summary(&file, &parts, out)?;
    Ok(0)
}

/// Creates the file. One that exists is not overwritten; an incomplete one is removed.
fn write(path: &Path, parts: &[Part], time: u64) -> io::Result<()> {
    let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let written = fill(file, parts, time);
    if written.is_err() {
        std::fs::remove_file(path)?;
    }
    written
}

fn fill(file: File, parts: &[Part], time: u64) -> io::Result<()> {
    let mut archive = Archive::new(BufWriter::new(file), time);
    for part in parts {
        archive.add(&format!("{FOLDER}/{}", part.name), &part.content)?;
    }
    archive.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

fn summary(path: &Path, parts: &[Part], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}: readable by its owner only\n", path.display())?;
    let width = parts.iter().map(|part| part.name.len()).max().unwrap_or(0);
    for part in parts {
        writeln!(out, "  {:width$}  {:7}  {}", part.name, part.content.len(), part.about)?;
    }
    writeln!(
        out,
        "\nBefore you share it, look it over: `tar -xf {}` unpacks it into {FOLDER}. Names of networks, container\n\
         IDs, addresses, links and routes of this node are in it. Configurations have the values of known keys\n\
         that hold names, addresses, paths, numbers and switches; of all else they have the type and the length.\n\
         Logs are not in it: see the runtime's, and the key `log` of /etc/cni/slipway.json.",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_exists_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tar");
        std::fs::write(&path, "mine").unwrap();
        assert_eq!(write(&path, &[], 0).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        let long = Part { name: "a".repeat(100), about: "", content: Vec::new() };
        let other = dir.path().join("y.tar");
        assert!(write(&other, &[long], 0).is_err());
        assert!(!other.exists(), "an incomplete file is removed");
    }
}
