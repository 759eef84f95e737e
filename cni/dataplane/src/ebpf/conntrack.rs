// SPDX-License-Identifier: GPL-2.0-or-later

//! Sysctls that let connection tracking cope with seeing only one packet per direction in every two ticks.

use cni_kernel::sysctl::{self, SysctlError};

use crate::Error;

/// Set, because the window check would find such packets invalid.
const LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";
/// Set, because conntrack would otherwise compare a RST with the acknowledgment of the last packet that it has seen.
const ANY_RST: &str = "net/netfilter/nf_conntrack_tcp_ignore_invalid_rst";
/// Raised, because this shorter timeout for connections with unacknowledged data would otherwise apply to idle
/// connections whose last acknowledgment was carried by the BPF programs.
const UNACKNOWLEDGED: &str = "net/netfilter/nf_conntrack_tcp_timeout_unacknowledged";
const ESTABLISHED: &str = "net/netfilter/nf_conntrack_tcp_timeout_established";

/// Prepares conntrack for missing packets, before it misses any. The settings exist only after the connection
/// tracking module is loaded. The first container's rules load the module, and the ADD of that container calls this
/// function as well.
pub(super) fn prepare() -> Result<(), Error> {
    let failed = |e: SysctlError| Error::kernel("let conntrack miss packets", e);
    let set = |name: &str, value: &str| sysctl::ensure(name, value).map_err(failed);
    let get = |name: &str| match sysctl::get(name) {
        Err(error) if error.is_not_found() => Ok(None),
        value => value.map(Some).map_err(failed),
    };
    if get(LIBERAL)?.is_none() {
        return Ok(());
    }
    set(LIBERAL, "1")?;
    // The setting exists since Linux 5.14.
    if get(ANY_RST)?.is_some() {
        set(ANY_RST, "1")?;
    }
    if let Some(timeout) = get(ESTABLISHED)? {
        set(UNACKNOWLEDGED, &timeout)?;
    }
    Ok(())
}
