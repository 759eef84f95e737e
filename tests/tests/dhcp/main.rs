// SPDX-License-Identifier: GPL-2.0-or-later

//! dhcp and its daemon, with dnsmasq and with a server that the tests control.

/// Ends a test that other implementations need not pass.
macro_rules! slipway_only {
    () => {
        if slipway_tests::is_peer() {
            return;
        }
    };
}

/// Ends the test as above, and skips it without dnsmasq.
macro_rules! needs_dnsmasq {
    () => {
        slipway_only!();
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
