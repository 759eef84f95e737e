//! Lists of plugins as people use them, each as a whole: real packets, and every verb over the list.
//!
//! What a plugin does alone is in its own suite. Here is what only shows when they are chained: results that
//! go from one to the next, a CHECK that finds what any of them has lost, a failure in the middle, and the
//! order in which runtimes call them.

mod failures;
mod losses;
mod pairs;
mod removal;
mod runtimes;
mod status;
mod traffic;
mod versions;
mod world;

/// One test of one list, where the kernel has what the list needs.
macro_rules! tried {
    ($chain:expr, $test:path) => {
        if let Some(feature) = $chain.lacks() {
            slipway_tests::skip!(feature);
        }
        let Some(world) = World::of($chain) else { return };
        $test(&world);
    };
}

/// The same tests for each list.
macro_rules! chains {
    ($($name:ident: $chain:expr;)*) => {
        $(
            mod $name {
                use crate::world::{Chain, World};

                #[test]
                fn packets_go_as_each_plugin_says() {
                    tried!($chain, crate::traffic::packets_go_as_each_plugin_says);
                }

                #[test]
                fn check_names_what_is_lost() {
                    tried!($chain, crate::losses::check_names_what_is_lost);
                }

                #[test]
                fn del_needs_nothing_and_may_come_again() {
                    tried!($chain, crate::removal::del_needs_nothing_and_may_come_again);
                }

                #[test]
                fn gc_leaves_the_living_alone() {
                    tried!($chain, crate::removal::gc_leaves_the_living_alone);
                }

                #[test]
                fn status_asks_each_plugin() {
                    tried!($chain, crate::status::status_asks_each_plugin);
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
