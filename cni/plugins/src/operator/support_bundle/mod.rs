//! `slipway support-bundle`: what a report of a bug needs, in one tar file.
//!
//! Only the owner can read it (mode 0600). Of configurations it has the values of known keys that have the
//! form that the key asks for; of all others the type and the length. It lists its files, so that they can be
//! looked over before the bundle is shared.

mod collect;
mod redact;
mod tar;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use collect::{Part, Places};
use tar::Archive;

use crate::operator::said;

/// Arguments of `slipway support-bundle`.
pub const USAGE: &str = "[-o FILE] [--config-dir DIR] [--plugin-dir DIR]";

/// The folder in the archive.
const FOLDER: &str = "slipway-support";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    file: Option<PathBuf>,
    configurations: PathBuf,
    plugins: PathBuf,
}

/// Writes the file and says what is in it: exit code 0, 1 when it cannot be written, 2 for wrong arguments.
pub fn support_bundle_command(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let options = match parse(args) {
        Ok(options) => options,
        Err(reason) => return said(writeln!(err, "slipway support-bundle: {reason}"), 2),
    };
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let file = options.file.unwrap_or_else(|| PathBuf::from(format!("{FOLDER}-{time}.tar")));
    let parts = collect::all(&Places { configurations: &options.configurations, plugins: &options.plugins });
    if let Err(error) = write(&file, &parts, time) {
        return said(writeln!(err, "slipway support-bundle: write {}: {error}", file.display()), 1);
    }
    said(summary(&file, &parts, out), 0)
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options =
        Options { file: None, configurations: "/etc/cni/net.d".into(), plugins: "/opt/cni/bin".into() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (name, inline) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (arg.as_str(), None),
        };
        if !["-o", "--output", "--config-dir", "--plugin-dir"].contains(&name) {
            return Err(format!("unknown argument {arg:?}"));
        }
        let value = inline.or_else(|| args.next().cloned()).ok_or_else(|| format!("{name} needs a value"))?;
        match name {
            "--config-dir" => options.configurations = value.into(),
            "--plugin-dir" => options.plugins = value.into(),
            _ => options.file = Some(value.into()),
        }
    }
    Ok(options)
}

/// Makes the file. One that is there already is left alone; half a one is taken away.
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
    writeln!(out, "{}: readable by its owner alone\n", path.display())?;
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
    fn arguments() {
        let parse = |args: &[&str]| parse(&args.iter().map(|&a| a.to_owned()).collect::<Vec<_>>());
        let options = parse(&["-o", "x.tar", "--config-dir=/a", "--plugin-dir", "/b"]).unwrap();
        let wanted =
            Options { file: Some("x.tar".into()), configurations: "/a".into(), plugins: "/b".into() };
        assert_eq!(options, wanted);
        assert_eq!(parse(&["-o"]).unwrap_err(), "-o needs a value");
        assert_eq!(parse(&["x.tar"]).unwrap_err(), "unknown argument \"x.tar\"");
    }

    #[test]
    fn a_file_that_is_there_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tar");
        std::fs::write(&path, "mine").unwrap();
        assert_eq!(write(&path, &[], 0).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        let long = Part { name: "a".repeat(100), about: "", content: Vec::new() };
        let other = dir.path().join("y.tar");
        assert!(write(&other, &[long], 0).is_err());
        assert!(!other.exists(), "half a file is taken away");
    }
}
