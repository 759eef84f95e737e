// SPDX-License-Identifier: GPL-2.0-or-later

//! The chain bridge + portmap with masquerade in each backend: a call of any verb is killed or fails at its system
//! calls. Afterwards the other pod is untouched, DEL removes everything, and a fresh ADD succeeds.

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Disturbance, Host, Network, Node, Output, PROGRAMS, PluginCall, Pod, Point, Proto, Snapshot,
    disturbed, error_points, every_call, failures, has_programs, host_local, kill_points, needs,
    needs_iptables, one_in, sample, slipway_only,
};

use crate::{Outcome, config_for, outcome};

/// A backend, and the variant of iptables that the node uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backend {
    pub(crate) name: &'static str,
    pub(crate) variant: &'static str,
}

pub(crate) const NFTABLES: Backend = Backend { name: "nftables", variant: "nft" };
pub(crate) const IPTABLES: Backend = Backend { name: "iptables", variant: "nft" };
pub(crate) const LEGACY: Backend = Backend { name: "iptables", variant: "legacy" };
pub(crate) const EBPF: Backend = Backend { name: "ebpf", variant: "nft" };

/// A node with a running pod, and another pod to attach and detach.
pub(crate) struct Scene {
    pub(crate) node: Node,
    _client: Host,
    first: Pod,
    pod: Pod,
    /// The result of the first pod's ADD, which its CHECK needs.
    result: Value,
    backend: Backend,
}

impl Scene {
    pub(crate) fn new(backend: Backend) -> Self {
        let (node, client) = Node::with_client();
        for family in ["iptables", "ip6tables"] {
            node.cmd(&format!("{family}-{} -t mangle -N KUBE-IPTABLES-HINT", backend.variant));
        }
        // The BPF programs are attached to the links of default routes.
        node.cmd(&format!("ip route add default via {}", client.v4));
        let (first, pod) = (node.pod("first"), node.pod("pod"));
        for pod in [&first, &pod] {
            pod.sysctl("net/ipv6/conf/default/accept_dad", "0");
        }
        let mut scene = Self { node, _client: client, first, pod, result: Value::Null, backend };
        let result = scene.network().add(&scene.first()).expect("ADD of the first pod");
        scene.result = result;
        scene
    }

    pub(crate) fn network(&self) -> Network<'_> {
        let backend = self.backend.name;
        let network = self.node.network(json!({
            "name": "net",
            "plugins": [
                {
                    "type": "bridge", "bridge": "br0", "isGateway": true, "hairpinMode": true, "ipMasq": true,
                    "ipMasqBackend": backend, "ipam": host_local("10.88.0.0/24", "fd00:88::/64"),
                },
                {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
            ],
        }));
        network.remember(&self.first(), self.result.clone());
        network
    }

    pub(crate) fn first(&self) -> Attach {
        Attach::new(&self.first).port(Proto::Tcp, 8080, 80)
    }

    pub(crate) fn attach(&self) -> Attach {
        let attach = Attach::new(&self.pod).port(Proto::Tcp, 9000, 80).port(Proto::Udp, 9000, 80);
        attach.port_on("192.0.2.1", Proto::Tcp, 9001, 80)
    }

    /// The kernel's state and the files, without what is derived from the reservations and temporary files of a killed
    /// writer, which later calls remove.
    pub(crate) fn state(&self) -> Snapshot {
        Snapshot::take(&self.node, &[&*self.pod, &*self.first]).without(&[
            "last_reserved_ip",
            "networks/.slipway/",
            "/.slipway-tmp-",
        ])
    }

    /// The number of containers that the BPF programs serve.
    pub(crate) fn served(&self) -> Value {
        self.node.programs()["containers"].clone()
    }

    /// Asserts that DEL leaves nothing, that ADD, CHECK and DEL then succeed, and that the first pod is unchanged.
    #[track_caller]
    pub(crate) fn ends_clean(&self, network: &Network<'_>, before: &(Snapshot, Value), why: &str) {
        let attach = self.attach();
        let delete = |what: &str| {
            network.del(&attach).unwrap_or_else(|failure| panic!("{why}: {what}: {failure}"));
            let changes = before.0.changes_in_the_end(|| self.state());
            assert!(changes.is_empty(), "{why}: {what} left:\n{}", changes.join("\n"));
            assert_eq!(self.served(), before.1, "{why}: containers after {what}");
        };
        delete("DEL");
        network.add(&attach).unwrap_or_else(|failure| panic!("{why}: a fresh ADD: {failure}"));
        network.check(&attach).unwrap_or_else(|failure| panic!("{why}: its CHECK: {failure}"));
        network.check(&self.first()).unwrap_or_else(|failure| panic!("{why}: CHECK of the first: {failure}"));
        delete("its DEL");
    }
}

/// One call of a plugin of the chain, made ready by [`Case::prepare`].
#[derive(Debug, Clone, Copy)]
struct Case {
    verb: &'static str,
    /// The place of the plugin in the list.
    at: usize,
}

impl Case {
    /// Brings the node into the state in which the call comes, and returns the call.
    fn prepare(self, scene: &Scene, network: &Network<'_>) -> PluginCall {
        let attach = scene.attach();
        let mut config = match self.verb {
            "ADD" => config_for(network, &attach, self.at, "ADD"),
            "STATUS" | "GC" => network.configs(None).swap_remove(self.at),
            _ => network.configs(Some(&attach)).swap_remove(self.at),
        };
        match self.verb {
            "ADD" | "STATUS" => {}
            "GC" => {
                network.add(&attach).expect("ADD");
                config["cni.dev/valid-attachments"] = json!([{"containerID": "first", "ifname": "eth0"}]);
            }
            _ => config["prevResult"] = network.add(&attach).expect("ADD"),
        }
        let of_container = !matches!(self.verb, "GC" | "STATUS");
        network.prepare(self.verb, &config, of_container.then_some(&attach))
    }

    /// Asserts what must be true right after the disturbed call, before anything is cleaned up.
    #[track_caller]
    fn assert_after(
        self,
        scene: &Scene,
        network: &Network<'_>,
        prepared: &Snapshot,
        ended: &Output,
        why: &str,
    ) {
        match self.verb {
            // They only read.
            "CHECK" | "STATUS" => {
                let changes = prepared.changes_in_the_end(|| scene.state());
                assert!(changes.is_empty(), "{why}: {} changed:\n{}", self.verb, changes.join("\n"));
            }
            "GC" => network.gc_plugins(&json!([{"containerID": "first", "ifname": "eth0"}])).unwrap_or_else(
                |failures| panic!("{why}: the next GC: {failures:?} after {}", ended.process),
            ),
            _ => {}
        }
    }
}

/// A plain run tries one in so many points or failures.
fn thinned(backend: Backend) -> usize {
    match backend.name {
        _ if every_call() => 1,
        // These call programs, each of which starts for some milliseconds.
        "iptables" => 6,
        _ => 3,
    }
}

fn each(backend: Backend, verb: &'static str, mut test: impl FnMut(&Scene, Case)) {
    let scene = Scene::new(backend);
    let network = scene.network();
    let before = (scene.state(), scene.served());
    scene.ends_clean(&network, &before, "before anything is disturbed");
    for at in 0..2 {
        test(&scene, Case { verb, at });
    }
}

fn killed(backend: Backend, verb: &'static str) {
    each(backend, verb, |scene, case| {
        let network = scene.network();
        let before = (scene.state(), scene.served());
        let (output, found) = kill_points(&scene.node, case.prepare(scene, &network));
        let _ = output.ok();
        scene.ends_clean(&network, &before, "traced");
        let found: Vec<Point> =
            found.into_iter().filter(|point| every_call() || point.after_change).collect();
        for point in sample(one_in(found, case.at, thinned(backend))) {
            let why = format!("{case:?} killed at {point:?}");
            let call = case.prepare(scene, &network);
            let prepared = scene.state();
            let output = disturbed(&scene.node, call, &point, Disturbance::Kill);
            case.assert_after(scene, &network, &prepared, &output, &why);
            scene.ends_clean(&network, &before, &why);
        }
    });
}

fn fails(backend: Backend, verb: &'static str) {
    each(backend, verb, |scene, case| {
        let network = scene.network();
        let before = (scene.state(), scene.served());
        let (output, found) = error_points(&scene.node, case.prepare(scene, &network));
        let _ = output.ok();
        scene.ends_clean(&network, &before, "traced");
        for (point, errno) in failures(found, case.at, 2 * thinned(backend)) {
            let why = format!("{case:?}: {} number {} fails with {errno}", point.syscall, point.nth);
            let call = case.prepare(scene, &network);
            let prepared = scene.state();
            let output = disturbed(&scene.node, call, &point, Disturbance::Error(errno));
            let outcome = outcome(&output, &why);
            case.assert_after(scene, &network, &prepared, &output, &why);
            if (verb, outcome) == ("ADD", Outcome::Refused) {
                let changes = prepared.changes_in_the_end(|| scene.state());
                assert!(changes.is_empty(), "{why}: left:\n{}\n{}", changes.join("\n"), output.process);
            }
            scene.ends_clean(&network, &before, &why);
        }
    });
}

/// Without a free process, as at the limit of a control group, no thread can be started. Each call of a program of
/// iptables needs some.
#[test]
fn a_thread_that_cannot_be_started_is_an_error_and_leaves_nothing() {
    slipway_only!();
    needs_iptables!();
    let scene = Scene::new(IPTABLES);
    let network = scene.network();
    let before = (scene.state(), scene.served());
    let case = Case { verb: "ADD", at: 0 };
    let threads = |nth: usize| Point { syscall: "clone3".to_owned(), nth, after_change: true };
    let disturb = |nth: usize| {
        let call = case.prepare(&scene, &network);
        disturbed(&scene.node, call, &threads(nth), Disturbance::Error("EAGAIN"))
    };
    let mut refused = 0;
    // A call that is never made proves that the rest of the test does not depend on strace.
    for nth in sample(1..24).into_iter().chain([10_000]) {
        let why = format!("clone3 number {nth} fails");
        let output = disturb(nth);
        assert!(!output.process.stderr.contains("panicked"), "{why}: {}", output.process);
        if outcome(&output, &why) == Outcome::Refused {
            let failure = output.error();
            assert!(!failure.msg.contains("bug at"), "{why}: {failure:?}");
            refused += 1;
            assert!(nth < 10_000, "{why}: {failure:?}");
            let changes = before.0.changes_in_the_end(|| scene.state());
            assert!(changes.is_empty(), "{why}: left:\n{}\n{}", changes.join("\n"), output.process);
        }
        scene.ends_clean(&network, &before, &why);
    }
    assert!(refused > 1, "{refused} refused");
}

/// Generates the tests of a backend.
macro_rules! backends {
    ($($module:ident: $backend:expr, $verbs:tt, $needs:tt;)*) => {
        $(
            mod $module {
                use super::*;
                backends! { tests $backend, $verbs, $needs }
            }
        )*
    };
    (tests $backend:expr, [$($verb:literal $killed:ident $fails:ident),*], $needs:tt) => {
        $(
            #[test]
            fn $killed() {
                slipway_only!();
                backends!(needs $needs);
                killed($backend, $verb);
            }

            #[test]
            fn $fails() {
                slipway_only!();
                backends!(needs $needs);
                fails($backend, $verb);
            }
        )*
    };
    (needs {}) => {};
    (needs {iptables}) => { needs_iptables!() };
    (needs {programs}) => { needs!(has_programs(), PROGRAMS) };
}

// ADD and DEL of bridge and portmap with nftables have tests of their own.
backends! {
    nftables: NFTABLES, [
        "CHECK" killed_in_check any_call_of_its_check_fails,
        "GC" killed_in_gc any_call_of_its_gc_fails,
        "STATUS" killed_in_status any_call_of_its_status_fails
    ], {};
    iptables_nft: IPTABLES, [
        "ADD" killed_in_add any_call_of_its_add_fails,
        "DEL" killed_in_del any_call_of_its_del_fails,
        "CHECK" killed_in_check any_call_of_its_check_fails,
        "GC" killed_in_gc any_call_of_its_gc_fails,
        "STATUS" killed_in_status any_call_of_its_status_fails
    ], {iptables};
    iptables_legacy: LEGACY, [
        "ADD" killed_in_add any_call_of_its_add_fails,
        "DEL" killed_in_del any_call_of_its_del_fails,
        "CHECK" killed_in_check any_call_of_its_check_fails,
        "GC" killed_in_gc any_call_of_its_gc_fails,
        "STATUS" killed_in_status any_call_of_its_status_fails
    ], {iptables};
    ebpf: EBPF, [
        "ADD" killed_in_add any_call_of_its_add_fails,
        "DEL" killed_in_del any_call_of_its_del_fails,
        "CHECK" killed_in_check any_call_of_its_check_fails,
        "GC" killed_in_gc any_call_of_its_gc_fails,
        "STATUS" killed_in_status any_call_of_its_status_fails
    ], {programs};
}
