//! Waiting until every packet that is on its way through a hook has left it.
#![allow(unsafe_code, reason = "membarrier is a system call that nix does not wrap")]

use std::time::Duration;

use nix::libc;

/// `MEMBARRIER_CMD_GLOBAL` (`linux/membarrier.h`): the kernel waits for a grace period of RCU, and packets
/// are in netfilter's hooks under RCU alone.
const GLOBAL: libc::c_long = 1;
/// Where the call is not to be had: longer than a packet is on its way through a hook.
const INSTEAD: Duration = Duration::from_millis(100);

/// Waits until all packets that were in one of netfilter's hooks at the call have left it. It takes some 10
/// to 30 ms.
pub fn wait_for_packets() {
    let zero: libc::c_long = 0;
    // SAFETY: the call takes two numbers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, zero, zero) };
    if result != 0 {
        log::debug!("membarrier: {}; waiting for {INSTEAD:?}", std::io::Error::last_os_error());
        std::thread::sleep(INSTEAD);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_comes_to_an_end() {
        super::wait_for_packets();
    }
}
