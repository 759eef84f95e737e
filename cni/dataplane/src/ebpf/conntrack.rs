// SPDX-License-Identifier: GPL-2.0-or-later

//! Settings for connection tracking that sees only one packet of a direction in two ticks.

use cni_kernel::sysctl;

use crate::Error;

/// The window check would find such packets invalid.
const LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";
/// Otherwise conntrack compares a RST with the acknowledgment of a packet that it has seen.
const ANY_RST: &str = "net/netfilter/nf_conntrack_tcp_ignore_invalid_rst";
/// The shorter timeout of connections with unacknowledged data would apply to idle connections whose last
/// acknowledgment was carried.
const UNACKNOWLEDGED: &str = "net/netfilter/nf_conntrack_tcp_timeout_unacknowledged";
const ESTABLISHED: &str = "net/netfilter/nf_conntrack_tcp_timeout_established";

/// Lets conntrack miss packets, before it misses any. The settings exist only once connection tracking is loaded. The
/// first container's rules load it, and the ADD of that container calls this function, too.
pub(super) fn prepare() -> Result<(), Error> {
    let set = |name: &str, value: &str| {
        sysctl::ensure(name, value).map_err(|e| Error::kernel("let conntrack miss packets", e))
    };
    if sysctl::get(LIBERAL).is_err_and(|error| error.is_not_found()) {
        return Ok(());
    }
    set(LIBERAL, "1")?;
    // Missing before Linux 5.14.
    if sysctl::get(ANY_RST).is_ok() {
        set(ANY_RST, "1")?;
    }
    if let Ok(timeout) = sysctl::get(ESTABLISHED) {
        set(UNACKNOWLEDGED, &timeout)?;
    }
    Ok(())
}
