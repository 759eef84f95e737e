// SPDX-License-Identifier: MIT OR Apache-2.0

//! The image of a disk with programs that are too big for the first root file system, which is in memory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::kernels;
use xtask_base::error::{Error, Result};
use xtask_base::run::{self, tool};
use xtask_downloads::kube;

/// Writes the image with some of Kubernetes' programs, and returns its path. A VM that still reads an older image keeps
/// that image.
///
/// The file system is ext4 without a journal, because ext4 is in every kernel and mke2fs(8) on every system.
pub(crate) fn write(from: &Path) -> Result<PathBuf> {
    let (image, files) = (kernels::cache()?.join("kubernetes.ext4"), kernels::cache()?.join("kubernetes"));
    fs::create_dir_all(&files).map_err(|e| Error::file("create the directory", &files, e))?;
    for name in kube::FOR_VMS.map(|name| from.join(name)) {
        let to = files.join(name.file_name().unwrap_or_default());
        fs::copy(&name, &to).map_err(|e| Error::file("copy", &name, e))?;
    }
    write_image(&files, &image)?;
    Ok(image)
}

fn write_image(from: &Path, image: &Path) -> Result<()> {
    let part = image.with_extension("part");
    let file = File::create(&part).map_err(|e| Error::file("create", &part, e))?;
    file.set_len(size(from)?).map_err(|e| Error::file("set the size of", &part, e))?;
    let options = ["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E", "root_owner=0:0", "-d"];
    run::capture(tool("mke2fs", &options).arg(from).arg(&part))?;
    fs::rename(&part, image).map_err(|e| Error::file("rename", &part, e))
}

/// The size of an image in bytes: of the files, and a tenth and 4 MiB for the file system itself.
fn size(from: &Path) -> Result<u64> {
    let entries = fs::read_dir(from).map_err(|e| Error::file("list", from, e))?;
    let mut bytes = 0;
    for entry in entries {
        let length =
            entry.and_then(|entry| entry.metadata()).map_err(|e| Error::file("list", from, e))?.len();
        bytes += length.next_multiple_of(4096);
    }
    Ok((bytes + bytes / 10 + (4 << 20)).next_multiple_of(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask_base::workspace;

    #[test]
    fn an_image_has_room_for_its_files() {
        let dir = workspace::scratch("disk-test").unwrap();
        let (from, image) = (dir.join("files"), dir.join("image"));
        fs::create_dir_all(&from).unwrap();
        for bytes in [0, 1, 5000, 30 << 20] {
            fs::write(from.join("program"), vec![1; bytes]).unwrap();
            fs::write(from.join("small"), "1").unwrap();
            write_image(&from, &image).unwrap();
            assert!(fs::metadata(&image).unwrap().len() > bytes as u64);
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
