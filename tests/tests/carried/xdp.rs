// SPDX-License-Identifier: GPL-2.0-or-later

//! XDP programs that are loaded without a compiler.

use std::ffi::CString;
use std::io;

use nix::libc::{SYS_bpf, c_long, syscall};

/// `BPF_PROG_LOAD` and `BPF_OBJ_PIN` (linux/bpf.h).
const LOAD: c_long = 5;
const PIN: c_long = 6;
/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;

#[allow(
    unsafe_code,
    reason = "bpf(2) is a system call that no crate wraps for a program of two instructions"
)]
fn bpf(command: c_long, attributes: &[u64]) -> io::Result<c_long> {
    // SAFETY: the kernel reads `attributes` and the memory to which they point, and the callers keep both alive.
    let result = unsafe { syscall(SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Pins a program that drops all packets (`r0 = XDP_DROP; exit`).
pub(crate) fn pin_one_that_drops(path: &str) -> io::Result<()> {
    let instructions: [u64; 2] = [0x1_0000_00b7, 0x95];
    let license = CString::new("GPL").expect("a text");
    let count = instructions.len() as u64;
    let load =
        [u64::from(XDP) | count << 32, instructions.as_ptr() as u64, license.as_ptr() as u64, 0, 0, 0, 0, 0];
    let program = bpf(LOAD, &load)?;
    let path = CString::new(path).expect("a path");
    let pinned = bpf(PIN, &[path.as_ptr() as u64, program.unsigned_abs()]);
    // The pin keeps the program loaded.
    nix::unistd::close(i32::try_from(program).expect("a descriptor"))?;
    pinned.map(drop)
}
