// SPDX-License-Identifier: GPL-2.0-or-later

//! Common plugin lists as a whole, with real packets and every verb.
//!
//! Each plugin has a separate suite. This one tests what only chaining shows: results that are passed between plugins,
//! CHECK after any of them has lost an object, a failure in the middle of the list, and the order of a runtime's calls.

mod failures;
mod losses;
mod pairs;
mod removal;
mod runtimes;
mod status;
mod traffic;
mod versions;
mod world;

/// Runs a test with a list, if the kernel supports it.
macro_rules! tried {
    ($chain:expr, $test:path) => {
        if let Some(feature) = $chain.lacks() {
            slipway_tests::skip!(feature);
        }
        let Some(world) = World::of($chain) else { return };
        $test(&world);
    };
}

/// Generates the same tests for each list.
macro_rules! chains {
    ($($name:ident: $chain:expr;)*) => {
        $(
            mod $name {
                use crate::world::{Chain, World};

                #[test]
                fn packets_pass_through_every_plugin() {
                    tried!($chain, crate::traffic::packets_pass_through_every_plugin);
                }

                #[test]
                fn check_names_the_plugin_that_lost_an_object() {
                    tried!($chain, crate::losses::check_names_the_plugin_that_lost_an_object);
                }

                #[test]
                fn del_works_without_namespace_or_result_and_twice() {
                    tried!($chain, crate::removal::del_works_without_namespace_or_result_and_twice);
                }

                #[test]
                fn gc_keeps_valid_attachments() {
                    tried!($chain, crate::removal::gc_keeps_valid_attachments);
                }

                #[test]
                fn status_reports_each_plugins_failure() {
                    tried!($chain, crate::status::status_reports_each_plugins_failure);
                }

                #[test]
                fn a_plugin_that_fails_leaves_nothing() {
                    tried!($chain, crate::failures::a_plugin_that_fails_leaves_nothing);
                }
            }
        )*
    };
}

chains! {
    everything: Chain::Everything("nftables");
    everything_by_iptables: Chain::Everything("iptables");
    flannel: Chain::Flannel;
    kubenet: Chain::Kubenet;
    macvlan_and_sbr: Chain::Second;
    ptp_and_portmap: Chain::Routed;
}
