// SPDX-License-Identifier: MIT OR Apache-2.0

//! bpf-linker, which links the compiler's output to one object.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::toolchain::Toolchain;
use xtask_base::error::{Error, Result};
use xtask_base::run::cargo;

pub(super) const VERSION: &str = "0.13.0";
/// The LLVM versions that this version supports.
const LLVM: [&str; 3] = ["21", "22", "23"];

/// The linker's path; it is built if the cache does not have it. It uses the compiler's own LLVM library, as
/// bitcode of one version of LLVM may not be readable by another.
pub(super) fn ensure(
    toolchain: &Toolchain,
    cache: &Path,
    execute: &impl Fn(&mut Command) -> Result<()>,
) -> Result<PathBuf> {
    let library = toolchain.libllvm()?;
    let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let home = cache.join(format!("bpf-linker-{VERSION}-{name}"));
    let program = home.join("bin/bpf-linker");
    let starts = |program: &Path| {
        Command::new(program).arg("--version").env("LD_LIBRARY_PATH", folder(&library)).output()
    };
    if starts(&program).is_ok_and(|output| output.status.success()) {
        return Ok(program);
    }
    let major = toolchain.llvm_major()?;
    if !LLVM.contains(&major.as_str()) {
        return Err(Error::Failed(format!(
            "{toolchain} has LLVM {major}; bpf-linker {VERSION} supports {}",
            LLVM.join(", ")
        )));
    }
    // Of LLVM, the build needs only the library, under the name that linkers look for.
    let prefix = home.join("prefix");
    let link = prefix.join("lib/libLLVM.so");
    fs::create_dir_all(prefix.join("lib")).map_err(|e| Error::file("create the directory", &prefix, e))?;
    let _ = fs::remove_file(&link);
    symlink(&library, &link).map_err(|e| Error::file("make the link", &link, e))?;
    let work = home.join("build");
    let mut command = cargo(&["install", "bpf-linker", "--locked", "--force", "--no-default-features"]);
    command.args(["--version", &format!("={VERSION}"), "--features", &format!("llvm-{major}")]);
    command.arg("--root").arg(&home).arg("--target-dir").arg(&work).env("LLVM_PREFIX", &prefix);
    command.env("LD_LIBRARY_PATH", folder(&library));
    // The objects are small: a faster build matters more than a fast linker.
    for (key, value) in [("OPT_LEVEL", "1"), ("DEBUG", "0"), ("LTO", "off"), ("CODEGEN_UNITS", "16")] {
        command.env(format!("CARGO_PROFILE_RELEASE_{key}"), value);
    }
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        command.env_remove(name);
    }
    execute(&mut command)?;
    let _ = fs::remove_dir_all(&work);
    Ok(program)
}

fn folder(library: &Path) -> &Path {
    library.parent().unwrap_or(library)
}
