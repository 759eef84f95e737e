// SPDX-License-Identifier: GPL-2.0-or-later

//! The BPF programs as this binary carries them.

use crate::Error;

/// Aligned for the loader.
#[cfg(ebpf_object)]
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

#[cfg(ebpf_object)]
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/slipway.o")));

/// The BPF programs as an ELF object, if this binary was built with them.
#[must_use]
pub fn object() -> Option<&'static [u8]> {
    #[cfg(ebpf_object)]
    return Some(&OBJECT.0);
    #[cfg(not(ebpf_object))]
    None
}

/// The BPF programs of this binary.
///
/// # Errors
/// [`Error::NoEbpf`] if it was built without.
pub(super) fn of_this_binary() -> Result<&'static [u8], Error> {
    object().ok_or_else(|| Error::NoEbpf("this binary was built without the BPF programs".to_owned()))
}

/// A digest of the object: the name of this version of the BPF programs.
pub(super) const fn version() -> &'static str {
    #[cfg(ebpf_object)]
    return env!("SLIPWAY_EBPF_VERSION");
    #[cfg(not(ebpf_object))]
    "none"
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_version_is_the_digest_of_the_object() {
        if let Some(object) = object() {
            let digest: String = Sha256::digest(object).iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(version().len() == 16 && digest.starts_with(version()), "{digest} {}", version());
        }
    }

    #[test]
    fn an_object_is_a_bpf_object() {
        // Machine 247 is EM_BPF: elf(5), linux/elf-em.h.
        if let Some(object) = object() {
            assert_eq!((&object[..4], object[18]), (&b"\x7fELF"[..], 247));
        }
    }
}
