// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads the elements of BPF hash maps, thousands at a time (Linux 5.6). Reading them key by key would take two
//! system calls for each element, and ten times as long.
#![allow(unsafe_code, reason = "bpf is a system call that nix does not wrap")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::libc;

// enum bpf_cmd (`linux/bpf.h`)
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const MAP_LOOKUP_BATCH: libc::c_long = 24;
// enum bpf_map_type
const HASH: u32 = 1;
const LRU_HASH: u32 = 9;
/// The size of [`Info`].
const INFO: u32 = 16;
/// The most elements of one call. The kernel never splits a bucket, and refuses (ENOSPC) if a bucket has more.
const CHUNK: u32 = 4096;

/// The beginning of `struct bpf_map_info`.
#[repr(C)]
#[derive(Debug, Default)]
struct Info {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
}

/// The part of `union bpf_attr` for `BPF_OBJ_GET_INFO_BY_FD`. Addresses are 64 bits on all architectures.
#[repr(C)]
#[derive(Debug)]
struct InfoAttributes {
    object: u32,
    length: u32,
    info: u64,
}

/// The part of `union bpf_attr` for batches.
#[repr(C)]
#[derive(Debug)]
struct BatchAttributes {
    /// The address of the position at which to continue, or 0 for the beginning.
    from: u64,
    /// The address to which the kernel writes the position for the next call.
    to: u64,
    keys: u64,
    values: u64,
    /// Before the call, the number of elements for which there is room; afterwards, the number of elements read.
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// Calls `each` with key and value of each element. Elements that change concurrently may be missing.
///
/// # Errors
/// EINVAL before Linux 5.6, or if the map is neither a hash nor an LRU hash; EPERM without CAP_BPF.
pub fn read_elements(map: BorrowedFd<'_>, mut each: impl FnMut(&[u8], &[u8])) -> Result<(), Errno> {
    let Info { kind, key_size, value_size, .. } = info(map)?;
    if !matches!(kind, HASH | LRU_HASH) || key_size == 0 || value_size == 0 {
        return Err(Errno::EINVAL);
    }
    let (key_size, value_size) = (key_size as usize, value_size as usize);
    let mut keys = vec![0_u8; CHUNK as usize * key_size];
    let mut values = vec![0_u8; CHUNK as usize * value_size];
    let mut place = None;
    loop {
        let (next, count) = read_batch(map, place, &mut keys, &mut values)?;
        let elements = keys.chunks_exact(key_size).zip(values.chunks_exact(value_size));
        elements.take(count).for_each(|(key, value)| each(key, value));
        match next {
            Some(next) => place = Some(next),
            None => return Ok(()),
        }
    }
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    // An open descriptor is not negative.
    fd.as_raw_fd().cast_unsigned()
}

fn info(map: BorrowedFd<'_>) -> Result<Info, Errno> {
    let mut info = Info::default();
    let address = ptr::from_mut(&mut info).expose_provenance() as u64;
    let attributes = InfoAttributes { object: number(map), length: INFO, info: address };
    // SAFETY: the kernel reads `attributes`, and writes at most `INFO` bytes to `info`; both live through the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            OBJ_GET_INFO_BY_FD,
            ptr::from_ref(&attributes),
            size_of::<InfoAttributes>(),
        )
    };
    Errno::result(result).map(|_| info)
}

/// Reads up to [`CHUNK`] elements, for which the slices have room. Returns their number and the position at which to
/// continue, or none at the end.
fn read_batch(
    map: BorrowedFd<'_>,
    from: Option<u32>,
    keys: &mut [u8],
    values: &mut [u8],
) -> Result<(Option<u32>, usize), Errno> {
    // In a hash map, the position is the number of a bucket.
    let (from, mut to) = (from.as_ref().map_or(ptr::null(), ptr::from_ref), 0_u32);
    let mut attributes = BatchAttributes {
        from: from.expose_provenance() as u64,
        to: ptr::from_mut(&mut to).expose_provenance() as u64,
        keys: keys.as_mut_ptr().expose_provenance() as u64,
        values: values.as_mut_ptr().expose_provenance() as u64,
        count: CHUNK,
        map: number(map),
        element_flags: 0,
        flags: 0,
    };
    // SAFETY: the kernel reads `attributes` and the four bytes at `from`. It writes `attributes.count`, four bytes to
    // `to`, and to `keys` and `values` at most CHUNK keys and values of the map, for which `read_elements` made them.
    // All live through the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            MAP_LOOKUP_BATCH,
            ptr::from_mut(&mut attributes),
            size_of::<BatchAttributes>(),
        )
    };
    let next = match Errno::result(result) {
        Ok(_) => Some(to),
        Err(Errno::ENOENT) => None,
        Err(errno) => return Err(errno),
    };
    Ok((next, attributes.count.min(CHUNK) as usize))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_file_that_is_no_map_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut count = 0;
        assert!(read_elements(file.as_fd(), |_, _| count += 1).is_err());
        assert_eq!(count, 0);
    }

    #[test]
    fn the_kernel_reads_as_much_as_there_is() {
        assert_eq!((size_of::<InfoAttributes>(), size_of::<BatchAttributes>()), (16, 56));
        assert_eq!(size_of::<Info>(), INFO as usize);
        assert_eq!(std::mem::offset_of!(BatchAttributes, count), 32);
    }
}
