// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits until all packets that are in a netfilter hook have left it.
#![allow(unsafe_code, reason = "membarrier is a system call that nix does not wrap")]

use std::time::Duration;

use nix::libc;

/// `MEMBARRIER_CMD_GLOBAL` (`linux/membarrier.h`) waits for an RCU grace period. netfilter's hooks run inside RCU
/// read-side critical sections.
const GLOBAL: libc::c_long = 1;
/// How long to wait if membarrier(2) is missing: longer than a packet stays in a hook.
const FALLBACK: Duration = Duration::from_millis(100);

/// Waits until all packets that are in a netfilter hook now have left it, which takes 10 to 30 ms.
pub fn wait_for_packets() {
    let zero: libc::c_long = 0;
    // SAFETY: the call takes two numbers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, zero, zero) };
    if result != 0 {
        log::debug!("membarrier: {}; waiting for {FALLBACK:?}", std::io::Error::last_os_error());
        std::thread::sleep(FALLBACK);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_wait_ends() {
        super::wait_for_packets();
    }
}
