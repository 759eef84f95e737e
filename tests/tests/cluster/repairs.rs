// SPDX-License-Identifier: GPL-2.0-or-later

//! Running agents repair what other programs change.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use slipway_tests::ClusterNode;
use slipwayd::cluster::agent;
use slipwayd::cluster::desired::TunnelMode;
use slipwayd::cluster::source::Snapshot;
use tokio::sync::watch;

use crate::Lab;

/// A part of the agent ends when this future is ready.
pub(crate) type Stop = Pin<Box<dyn Future<Output = ()>>>;

/// Runs a part of the agent on a node during `body`.
pub(crate) fn during<R, E>(node: &ClusterNode, part: impl FnOnce(Stop) -> R + Send, body: impl FnOnce())
where
    R: Future<Output = Result<(), E>>,
    E: Debug + Send,
{
    let ended = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let seen = Arc::clone(&ended);
        let agent = scope.spawn(move || {
            node.run(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let stop = Box::pin(async move {
                    while !seen.load(Ordering::Relaxed) {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                });
                runtime.expect("a tokio runtime").block_on(part(stop))
            })
        });
        // A failed assertion must not leave the agent running.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        ended.store(true, Ordering::Relaxed);
        agent.join().expect("no panic").expect("the agent runs");
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Runs the agent of a node during `body`.
pub(crate) fn with_agent(lab: &Lab, number: u8, body: impl FnOnce()) {
    let settings = Arc::new(lab.settings(number));
    let (_sender, snapshots) = watch::channel(Arc::new(Snapshot::new(lab.nodes.clone(), true)));
    let run = |stop: Stop| agent::run(settings, snapshots, stop, |_, report| drop(report.expect("a report")));
    during(lab.node(number), run, body);
}

/// Waits for at most a minute until the condition is true, and returns how long that took.
#[track_caller]
pub(crate) fn until(what: &str, is_so: impl FnMut() -> bool) -> Duration {
    slipway_tests::until(Duration::from_secs(60), what, is_so)
}

#[test]
fn what_others_delete_comes_back() {
    let mut lab = Lab::new(2, TunnelMode::Always);
    lab.settle();
    let node = lab.node(1);
    let shows = |line: &str, text: &str| node.try_cmd(line).stdout.contains(text);
    with_agent(&lab, 1, || {
        for (delete, show, text) in [
            ("ip route del 10.244.2.0/24", "ip route show", "10.244.2.0/24"),
            ("ip -6 route del fd44:0:0:2::/64", "ip -6 route show", "fd44:0:0:2::/64"),
            (
                "ip route replace 10.244.2.0/24 via 192.168.50.9 proto 83 metric 512",
                "ip route show 10.244.2.0/24",
                "slipway-vxlan",
            ),
            ("ip address del 10.244.1.1/24 dev slipway0", "ip address show dev slipway0", "10.244.1.1/24"),
            ("ip link set slipway0 down", "ip link show slipway0 up", "slipway0"),
            ("ip link del slipway0", "ip address show dev slipway0", "10.244.1.1/24"),
            ("ip link set slipway-vxlan down", "ip route show", "10.244.2.0/24"),
            ("ip link del slipway-vxlan", "ip route show", "10.244.2.0/24"),
        ] {
            node.cmd(delete);
            let took = until(delete, || shows(show, text));
            println!("{delete}: {took:?}");
        }
        until("FDB", || shows("bridge fdb show dev slipway-vxlan", "192.168.50.12"));
        until("neighbour", || shows("ip neigh show dev slipway-vxlan", "10.244.2.0"));
    });
}
