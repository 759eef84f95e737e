// SPDX-License-Identifier: GPL-2.0-or-later

//! dhcp and its daemon, with dnsmasq and with a server that the tests control.

/// Ends the calling test for another implementation, and skips it if dnsmasq is not installed.
macro_rules! needs_dnsmasq {
    () => {
        slipway_tests::slipway_only!();
        slipway_tests::needs!(crate::stage::has_dnsmasq(), "dnsmasq");
    };
}

mod daemon;
mod garbage;
mod lease;
mod links;
mod plugins;
mod server;
mod stage;
mod times;
