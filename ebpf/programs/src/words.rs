//! Copying and clearing, word by word. The compiler would call functions for it (`memmove`, `memset`) that go
//! byte by byte, at run time and under the verifier's eyes; it leaves volatile accesses as they are.

/// Copies a value whose size is a multiple of 8 bytes, or of 4.
#[inline(always)]
pub(crate) fn copy<T: Copy>(from: *const T, to: *mut T) {
    // SAFETY: the callers have pointers to whole values, which are made of integers, aligned to 4 bytes at least
    // (to 8 if their alignment says so).
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

/// Whether two values whose size is a multiple of 4 bytes are the same.
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

/// A number that depends on each word of a value whose size is a multiple of 4 bytes.
#[inline(always)]
pub(crate) fn mix<T: Copy>(value: *const T) -> u32 {
    let mut mixed = 0_u32;
    // SAFETY: as in `copy`.
    unsafe {
        for word in 0..size_of::<T>() / 4 {
            mixed =
                mixed.wrapping_mul(0x9e37_79b1).wrapping_add(value.cast::<u32>().add(word).read_volatile());
        }
    }
    mixed.wrapping_mul(0x9e37_79b1) >> 16
}

/// Makes a value of integers all zeros.
#[inline(always)]
pub(crate) fn clear<T: Copy>(to: *mut T) {
    // SAFETY: as in `copy`.
    unsafe {
        for word in 0..size_of::<T>() / 4 {
            to.cast::<u32>().add(word).write_volatile(0);
        }
    }
}
