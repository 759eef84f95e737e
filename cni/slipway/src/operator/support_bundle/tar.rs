// SPDX-License-Identifier: GPL-2.0-or-later

//! A tar archive of plain files: the form `ustar` of POSIX.1-1988 (pax(1), section "ustar Interchange
//! Format").

use std::io::{self, Write};

const BLOCK: usize = 512;
/// The longest name that fits without a prefix.
const NAME_MAX: usize = 100;
/// Readable and writable by the owner alone.
const MODE: u64 = 0o600;

/// A writer of an archive. [`Archive::finish`] ends it.
pub(super) struct Archive<W> {
    out: W,
    /// The time of all files, in seconds since 1970.
    time: u64,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W, time: u64) -> Self {
        Self { out, time }
    }

    /// Adds a file.
    ///
    /// # Errors
    /// The name is empty or too long, or writing fails.
    pub(super) fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let length = u64::try_from(content.len()).map_err(io::Error::other)?;
        self.out.write_all(&header(name, length, self.time)?)?;
        self.out.write_all(content)?;
        let rest = content.len() % BLOCK;
        if rest > 0 {
            self.out.write_all([0; BLOCK].get(rest..).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Writes the end of the archive and returns its writer.
    ///
    /// # Errors
    /// Writing fails.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn header(name: &str, length: u64, time: u64) -> io::Result<[u8; BLOCK]> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} does not fit into a tar header"),
        ));
    }
    let mut block = [0; BLOCK];
    put(&mut block, 0, name.as_bytes());
    put(&mut block, 100, octal(MODE, 7)?.as_bytes());
    put(&mut block, 108, octal(0, 7)?.as_bytes());
    put(&mut block, 116, octal(0, 7)?.as_bytes());
    put(&mut block, 124, octal(length, 11)?.as_bytes());
    put(&mut block, 136, octal(time, 11)?.as_bytes());
    // The checksum counts blanks in its own place.
    put(&mut block, 148, b"        ");
    put(&mut block, 156, b"0");
    put(&mut block, 257, b"ustar\x0000");
    put(&mut block, 265, b"root");
    put(&mut block, 297, b"root");
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    put(&mut block, 148, octal(sum, 6)?.as_bytes());
    put(&mut block, 154, b"\0 ");
    Ok(block)
}

fn put(block: &mut [u8; BLOCK], at: usize, bytes: &[u8]) {
    for (to, from) in block.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

fn octal(number: u64, digits: usize) -> io::Result<String> {
    let text = format!("{number:0digits$o}");
    if text.len() > digits {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{number} does not fit into a tar header"),
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_reads_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let long = format!("{}/b", "a".repeat(98));
        let files: [(&str, Vec<u8>); 4] = [
            ("empty.txt", Vec::new()),
            ("some/text.txt", b"hello\n".to_vec()),
            ("block", vec![7; BLOCK]),
            (&long, vec![9; 3 * BLOCK + 1]),
        ];
        let mut archive = Archive::new(Vec::new(), 1_700_000_000);
        for (name, content) in &files {
            archive.add(name, content).unwrap();
        }
        let path = dir.path().join("x.tar");
        std::fs::write(&path, archive.finish().unwrap()).unwrap();
        let run = std::process::Command::new("tar").arg("-xpf").arg(&path).current_dir(dir.path()).status();
        assert!(run.unwrap().success());
        for (name, content) in &files {
            let file = dir.path().join(name);
            assert_eq!(&std::fs::read(&file).unwrap(), content, "{name}");
            let data = std::fs::metadata(&file).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::mode(&data.permissions());
            assert_eq!(mode & 0o7777, 0o600, "{name}");
        }
    }

    #[test]
    fn names_and_sizes_that_do_not_fit_are_refused() {
        let mut archive = Archive::new(Vec::new(), 0);
        assert!(archive.add("", b"").is_err());
        assert!(archive.add(&"a".repeat(101), b"").is_err());
        assert!(header("a", 1 << 40, 0).is_err());
        assert!(archive.finish().unwrap().iter().all(|byte| *byte == 0), "no file was started");
    }
}
