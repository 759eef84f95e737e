// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waiting until every packet in transit through a netfilter hook has left it.
#![allow(unsafe_code, reason = "membarrier is a system call that nix does not wrap")]

use std::time::Duration;

use nix::libc;

/// `MEMBARRIER_CMD_GLOBAL` (`linux/membarrier.h`) waits for an RCU grace period; netfilter's hooks run under
/// RCU.
const GLOBAL: libc::c_long = 1;
/// The wait where membarrier(2) is missing: longer than a packet stays in a hook.
const FALLBACK: Duration = Duration::from_millis(100);

/// Waits until all packets that are in a netfilter hook at the call have left it: 10 to 30 ms.
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
