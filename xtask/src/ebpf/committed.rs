// SPDX-License-Identifier: MIT OR Apache-2.0

//! The object in the repository, `ebpf/object/slipway.o`, and the file beside it that says what it was built from.
//!
//! The compiler's version is part of that: another one gives other bytes, so only the same one can prove that the object
//! comes from its sources.

use std::fs;
use std::path::{Path, PathBuf};

use super::sources;
use xtask_base::error::{Error, Result};

const FOLDER: &str = "ebpf/object";

/// An object that was built from the present sources.
#[derive(Debug)]
pub(super) struct Committed {
    pub(super) object: PathBuf,
    /// As [`super::toolchain::Toolchain::identity`] names it.
    pub(super) compiler: String,
}

impl Committed {
    /// The object of a checkout, if it was built from the sources with this digest.
    pub(super) fn current(checkout: &Path, digest: &str) -> Option<Self> {
        let folder = checkout.join(FOLDER);
        let about = fs::read_to_string(folder.join(sources::BUILT_FROM)).ok()?;
        if sources::field(&about, "sources")? != digest {
            return None;
        }
        let compiler = sources::field(&about, "compiler")?.to_owned();
        Some(Self { object: folder.join("slipway.o"), compiler })
    }

    /// Replaces the object.
    pub(super) fn write(checkout: &Path, built: &Path, digest: &str, compiler: &str) -> Result<()> {
        let folder = checkout.join(FOLDER);
        fs::create_dir_all(&folder).map_err(|e| Error::file("create the directory", &folder, e))?;
        let object = folder.join("slipway.o");
        fs::copy(built, &object).map_err(|e| Error::file("copy", built, e))?;
        let about = folder.join(sources::BUILT_FROM);
        let text = format!("sources: {digest}\ncompiler: {compiler}\n");
        fs::write(&about, text).map_err(|e| Error::file("write", &about, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask_base::workspace;

    #[test]
    fn an_object_counts_for_the_sources_it_was_built_from_only() {
        let checkout = workspace::scratch("committed-test").unwrap();
        let built = checkout.join("built.o");
        fs::write(&built, "bytes").unwrap();
        Committed::write(&checkout, &built, "d1", "rustc 1 (LLVM 2), bpf-linker 3").unwrap();
        let committed = Committed::current(&checkout, "d1").unwrap();
        assert_eq!(committed.compiler, "rustc 1 (LLVM 2), bpf-linker 3");
        assert_eq!(fs::read(committed.object).unwrap(), b"bytes");
        assert!(Committed::current(&checkout, "d2").is_none());
    }
}
