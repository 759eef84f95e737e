// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds the BPF object that the binary will carry: the one that `cargo xtask ebpf` has built, or else the committed
//! one.
//!
//! If neither was built from the present sources, the crate is built all the same, and reports at run time that it
//! has no eBPF backend, because building BPF programs needs a compiler that not everybody has.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

#[path = "../../ebpf/sources.rs"]
mod sources;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../..");
    // Cargo rebuilds this crate every time if a file that it watches does not exist.
    let built = root.join("target/ebpf");
    let _ = fs::create_dir_all(&built);
    let ebpf = root.join("ebpf");
    for watched in [ebpf.clone(), built.clone()] {
        println!("cargo::rerun-if-changed={}", watched.display());
    }
    println!("cargo::rustc-check-cfg=cfg(ebpf_object)");
    let current = sources::digest(&ebpf)?;
    if let Some(bytes) = built_object(&built, &current).or_else(|| committed_object(&ebpf, &current)) {
        let out = PathBuf::from(std::env::var("OUT_DIR")?);
        fs::write(out.join("slipway.o"), &bytes)?;
        // Computed here, because it would cost every ADD a millisecond.
        let version: String = Sha256::digest(&bytes).iter().take(8).map(|b| format!("{b:02x}")).collect();
        println!("cargo::rustc-env=SLIPWAY_EBPF_VERSION={version}");
        println!("cargo::rustc-cfg=ebpf_object");
    }
    Ok(())
}

fn built_object(folder: &Path, sources: &str) -> Option<Vec<u8>> {
    let built_from = fs::read_to_string(folder.join("slipway.o.sources")).ok()?;
    (built_from.trim() == sources).then(|| fs::read(folder.join("slipway.o")).ok())?
}

fn committed_object(ebpf: &Path, sources: &str) -> Option<Vec<u8>> {
    let folder = ebpf.join("object");
    let about = fs::read_to_string(folder.join(sources::BUILT_FROM)).ok()?;
    (sources::field(&about, "sources")? == sources).then(|| fs::read(folder.join("slipway.o")).ok())?
}
