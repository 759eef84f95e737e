// SPDX-License-Identifier: GPL-2.0-or-later

//! The BPF programs that are embedded in this binary.

use nix::sys::utsname::uname;

use crate::{EbpfLack, Error};

/// Aligned as the loader requires.
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
pub(super) fn of_this_binary() -> Result<&'static [u8], Error> {
    if uname().is_ok_and(|kernel| is_real_time(&kernel.version().to_string_lossy())) {
        return Err(EbpfLack::RealTimeKernel.into());
    }
    object().ok_or_else(|| EbpfLack::NotBuilt.into())
}

/// True if this version, as printed by `uname -v`, belongs to a kernel with PREEMPT_RT. There, one softirq may
/// preempt another on the same processor, and both would use the same scratch memory of the programs. This can happen
/// since Linux 6.18 (without PREEMPT_RT_NEEDS_BH_LOCK), but earlier kernels are refused as well.
fn is_real_time(version: &str) -> bool {
    version.split_whitespace().any(|word| word == "PREEMPT_RT")
}

/// A digest of the object, which is the name of this version of the BPF programs.
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
            let digest = cni_spec::text::hex(&Sha256::digest(object));
            assert!(version().len() == 16 && digest.starts_with(version()), "{digest} {}", version());
        }
    }

    #[test]
    fn a_real_time_kernel_is_known_by_its_version() {
        assert!(is_real_time("#1 SMP PREEMPT_RT Debian 6.12.48-1 (2025-09-20)"));
        assert!(!is_real_time("#1 SMP PREEMPT_DYNAMIC Debian 6.12.48-1 (2025-09-20)"));
    }

    #[test]
    fn an_object_is_a_bpf_object() {
        // Machine 247 is EM_BPF (elf(5), linux/elf-em.h).
        if let Some(object) = object() {
            assert_eq!((&object[..4], object[18]), (&b"\x7fELF"[..], 247));
        }
    }
}
