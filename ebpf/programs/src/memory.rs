// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Copying and clearing memory word by word. The compiler would otherwise call `memmove` and `memset`, which
//! work byte by byte, and which the verifier has to follow; it does not replace volatile accesses.

/// Copies a value whose size is a multiple of 8 bytes, or of 4.
#[inline(always)]
pub(crate) fn copy<T: Copy>(from: *const T, to: *mut T) {
    // SAFETY: the callers pass pointers to whole values, which consist of integers and are aligned to 4 bytes
    // at least (to 8 if their alignment is 8).
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

/// Clears a value that consists of integers.
#[inline(always)]
pub(crate) fn clear<T: Copy>(to: *mut T) {
    // SAFETY: as in `copy`.
    unsafe {
        for word in 0..size_of::<T>() / 4 {
            to.cast::<u32>().add(word).write_volatile(0);
        }
    }
}
