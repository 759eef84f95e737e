// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds the BPF object that `cargo xtask ebpf` has built, for the binary to carry.
//!
//! Without it, or with one that was built from other sources, the crate is built all the same, and reports at
//! run time that it has no eBPF backend: BPF programs need a compiler that not everybody has.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

#[path = "../../ebpf/sources.rs"]
mod sources;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../..");
    // A file that cargo watches must exist, or cargo builds this crate each time.
    let built = root.join("target/ebpf");
    let _ = fs::create_dir_all(&built);
    let (object, digest) = (built.join("slipway.o"), built.join("slipway.o.sources"));
    let ebpf = root.join("ebpf");
    for watched in [ebpf.clone(), built.clone()] {
        println!("cargo::rerun-if-changed={}", watched.display());
    }
    println!("cargo::rustc-check-cfg=cfg(ebpf_object)");
    let current = sources::digest(&ebpf)?;
    if fs::read_to_string(&digest).is_ok_and(|built_from| built_from.trim() == current) && object.is_file() {
        let out = PathBuf::from(std::env::var("OUT_DIR")?);
        let bytes = fs::read(&object)?;
        fs::write(out.join("slipway.o"), &bytes)?;
        // An ADD would need a millisecond for it.
        let version: String = Sha256::digest(&bytes).iter().take(8).map(|b| format!("{b:02x}")).collect();
        println!("cargo::rustc-env=SLIPWAY_EBPF_VERSION={version}");
        println!("cargo::rustc-cfg=ebpf_object");
    }
    Ok(())
}
