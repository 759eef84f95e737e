// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes a package in Debian's format, deb(5).

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use flate2::{Compression, GzBuilder};
use md5::{Digest, Md5};
use tar::{EntryType, Header};

use super::{Entry, Package, REVISION, Role, scripts};
use xtask_base::error::{Error, Result};

/// The file of a package: its name and its bytes.
pub(super) fn write(package: &Package) -> Result<(String, Vec<u8>)> {
    let name = format!("{}_{}-{REVISION}_{}.deb", package.name, package.version, package.processor.deb);
    let archive = members(package).map_err(|e| Error::system(format!("write {name}"), e))?;
    Ok((name, archive))
}

fn members(package: &Package) -> io::Result<Vec<u8>> {
    let mut archive = ar::Builder::new(Vec::new());
    let (control, data) = (control(package)?, data(package)?);
    let format = b"2.0\n".to_vec();
    for (name, content) in [("debian-binary", format), ("control.tar.gz", control), ("data.tar.gz", data)] {
        let mut header = ar::Header::new(name.as_bytes().to_vec(), content.len() as u64);
        header.set_mode(0o100_644);
        header.set_mtime(package.time);
        archive.append(&header, content.as_slice())?;
    }
    archive.into_inner()
}

fn control(package: &Package) -> io::Result<Vec<u8>> {
    let mut archive = Archive::new(package.time);
    archive.folder(".")?;
    let conffiles = paths_of(package, Role::Configuration);
    if !conffiles.is_empty() {
        archive.file("./conffiles", conffiles.as_bytes(), 0o644)?;
    }
    archive.file("./control", fields(package).as_bytes(), 0o644)?;
    archive.file("./md5sums", md5sums(package).as_bytes(), 0o644)?;
    for (name, text) in scripts::deb(package) {
        archive.file(&format!("./{name}"), text.as_bytes(), 0o755)?;
    }
    let (triggered, triggers) = scripts::TRIGGERS;
    if package.name == triggered {
        archive.file("./triggers", triggers.as_bytes(), 0o644)?;
    }
    archive.finish()
}

fn data(package: &Package) -> io::Result<Vec<u8>> {
    let mut archive = Archive::new(package.time);
    archive.folder(".")?;
    let mut folders = BTreeSet::new();
    for (path, entry) in &package.entries {
        for (end, _) in path.match_indices('/') {
            if folders.insert(&path[..end]) {
                archive.folder(&format!("./{}", &path[..end]))?;
            }
        }
        let name = format!("./{path}");
        match entry {
            Entry::Folder => archive.folder(&name)?,
            Entry::File(content, role) => archive.file(&name, content, role.mode())?,
            Entry::Link(target) => archive.link(&name, target)?,
        }
    }
    archive.finish()
}

/// A compressed archive whose entries belong to root.
struct Archive {
    tar: tar::Builder<Vec<u8>>,
    time: u64,
}

impl Archive {
    fn new(time: u64) -> Self {
        Self { tar: tar::Builder::new(Vec::new()), time }
    }

    fn header(&self, kind: EntryType, mode: u32, size: usize) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size as u64);
        header.set_mtime(self.time);
        header.set_uid(0);
        header.set_gid(0);
        header
    }

    /// tar's own function would remove the `./` that Debian's paths begin with.
    fn append(&mut self, mut header: Header, path: &str, content: &[u8]) -> io::Result<()> {
        let field = &mut header.as_old_mut().name;
        let bytes = path.as_bytes();
        let Some(place) = field.get_mut(..bytes.len()) else {
            return Err(io::Error::other(format!("{path}: longer than {} bytes", field.len())));
        };
        place.copy_from_slice(bytes);
        if let Some(gnu) = header.as_gnu_mut() {
            for field in [&mut gnu.uname, &mut gnu.gname] {
                field[..4].copy_from_slice(b"root");
            }
        }
        header.set_cksum();
        self.tar.append(&header, content)
    }

    fn folder(&mut self, path: &str) -> io::Result<()> {
        self.append(self.header(EntryType::Directory, 0o755, 0), &format!("{path}/"), b"")
    }

    fn file(&mut self, path: &str, content: &[u8], mode: u32) -> io::Result<()> {
        self.append(self.header(EntryType::Regular, mode, content.len()), path, content)
    }

    fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        let mut header = self.header(EntryType::Symlink, 0o777, 0);
        header.set_link_name_literal(target)?;
        self.append(header, path, b"")
    }

    fn finish(self) -> io::Result<Vec<u8>> {
        compressed(&self.tar.into_inner()?)
    }
}

/// The bytes as `gzip -9n` writes them: without a name and a time.
pub(super) fn compressed(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::best());
    writer.write_all(bytes)?;
    writer.finish()
}

/// The paths of files with a role, a line each.
fn paths_of(package: &Package, wanted: Role) -> String {
    let is_wanted = |entry: &Entry| matches!(entry, Entry::File(_, role) if *role == wanted);
    let found = package.entries.iter().filter(|(_, entry)| is_wanted(entry));
    found.map(|(path, _)| format!("/{path}\n")).collect()
}

/// The control file: deb-control(5).
fn fields(package: &Package) -> String {
    let mut text = String::new();
    let mut field = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}: {value}");
    };
    field("Package", package.name);
    field("Version", &format!("{}-{REVISION}", package.version));
    field("Architecture", package.processor.deb);
    field("Maintainer", &package.maintainer);
    field("Installed-Size", &installed_size(package).to_string());
    match package.depends {
        Some(name) => field("Depends", &format!("{name} (= {}-{REVISION})", package.version)),
        // For the plugins' backend `iptables`, and for the runtimes that call them.
        None => {
            field("Suggests", "iptables");
            field("Enhances", "containerd, cri-o, podman");
        }
    }
    field("Section", "net");
    field("Priority", "optional");
    field("Description", package.summary);
    for (index, paragraph) in package.description.iter().enumerate() {
        if index > 0 {
            text.push_str(" .\n");
        }
        for line in paragraph.lines() {
            text.push_str(&format!(" {line}\n"));
        }
    }
    text
}

/// As dpkg-gencontrol(1) estimates it: each file in whole KiB, and one for any other entry.
fn installed_size(package: &Package) -> usize {
    let sizes = package.entries.values().map(|entry| match entry {
        Entry::File(content, _) => content.len().div_ceil(1024),
        Entry::Folder | Entry::Link(_) => 1,
    });
    let folders: BTreeSet<&str> = package
        .entries
        .keys()
        .flat_map(|path| path.match_indices('/').map(|(end, _)| &path[..end]))
        .collect();
    sizes.sum::<usize>() + folders.len()
}

/// The checksums of all files that are no configuration.
fn md5sums(package: &Package) -> String {
    let mut text = String::new();
    for (path, entry) in &package.entries {
        if let Entry::File(content, role) = entry
            && *role != Role::Configuration
        {
            let sum: String = Md5::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
            text.push_str(&format!("{sum}  {path}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::sample;
    use super::*;
    use xtask_base::run::{self, tool};
    use xtask_base::workspace;

    #[test]
    fn dpkg_reads_what_is_written() {
        let (name, bytes) = write(&sample("slipway")).unwrap();
        assert_eq!(
            (name.as_str(), write(&sample("slipway")).unwrap().1),
            ("slipway_1.2.3-1_amd64.deb", bytes.clone())
        );
        let path = workspace::scratch("deb-test").unwrap().join(name);
        fs::write(&path, bytes).unwrap();
        let dpkg = |words: &[&str]| run::capture(tool("dpkg-deb", words).arg(&path)).unwrap();
        let listed = dpkg(&["--contents"]);
        let listed: Vec<(&str, &str)> = listed
            .lines()
            .map(|line| {
                let path = line.find("./").map_or("", |at| &line[at..]);
                (line.split(' ').next().unwrap_or_default(), path)
            })
            .collect();
        for entry in [
            ("drwxr-xr-x", "./usr/lib/"),
            ("-rwxr-xr-x", "./usr/bin/try"),
            ("-rw-r--r--", "./etc/default/try"),
            ("drwxr-xr-x", "./usr/lib/try/empty/"),
            ("lrwxrwxrwx", "./usr/lib/try/link -> ../../bin/try"),
        ] {
            assert!(listed.contains(&entry), "{entry:?} is not in {listed:#?}");
        }
        let fields = dpkg(&["--field"]);
        assert!(fields.contains("\nDepends: other (= 1.2.3-1)\n"), "{fields}");
        assert!(fields.ends_with("Description: Summary\n One.\n .\n Two,\n longer.\n"), "{fields}");
        assert_eq!(dpkg(&["--info"]).matches("conffiles").count(), 1);
    }

    #[test]
    fn a_path_that_is_too_long_is_refused() {
        let mut package = sample("slipway");
        package.entries.insert(format!("usr/{}", "a".repeat(100)), Entry::Folder);
        assert!(write(&package).unwrap_err().to_string().contains("longer than 100 bytes"));
    }
}
