//! dhcp and its daemon: with a real server (dnsmasq), and with one that does as a test says.

/// Ends a test of what other implementations do not promise.
macro_rules! ours_alone {
    () => {
        if slipway_tests::is_peer() {
            return;
        }
    };
}

/// The same, and one that talks to the real server.
macro_rules! needs_dnsmasq {
    () => {
        ours_alone!();
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
