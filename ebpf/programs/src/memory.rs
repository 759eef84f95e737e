// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Copies, compares and clears memory word by word. The compiler would otherwise call `memmove` and `memset`,
//! which work byte by byte, so that the verifier would have to follow each byte. It does not replace volatile
//! accesses by such calls.

/// Copies a value whose size is a multiple of 4 bytes, or of 8 bytes if its alignment is 8.
#[inline(always)]
pub(crate) fn copy<T: Copy>(from: *const T, to: *mut T) {
    // SAFETY: the callers pass pointers to whole values, which consist of integers and are aligned to at
    // least 4 bytes, or to 8 bytes if that is the alignment of their type.
    unsafe {
        if align_of::<T>() == 8 {
            for word in 0..size_of::<T>() / 8 {
                to.cast::<u64>().add(word).write_volatile(from.cast::<u64>().add(word).read_volatile());
            }
        } else {
            for word in 0..size_of::<T>() / 4 {
                to.cast::<u32>().add(word).write_volatile(from.cast::<u32>().add(word).read_volatile());
            }
        }
    }
}

/// True if two values whose size is a multiple of 4 bytes are equal.
#[inline(always)]
pub(crate) fn same<T: Copy>(one: *const T, other: *const T) -> bool {
    let mut differing = 0;
    // SAFETY: as in `copy`.
    unsafe {
        for word in 0..size_of::<T>() / 4 {
            differing |=
                one.cast::<u32>().add(word).read_volatile() ^ other.cast::<u32>().add(word).read_volatile();
        }
    }
    differing == 0
}

/// Clears a value that consists of integers and whose size is a multiple of 4 bytes.
#[inline(always)]
pub(crate) fn clear<T: Copy>(to: *mut T) {
    // SAFETY: as in `copy`.
    unsafe {
        for word in 0..size_of::<T>() / 4 {
            to.cast::<u32>().add(word).write_volatile(0);
        }
    }
}
