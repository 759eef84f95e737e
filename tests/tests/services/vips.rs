// SPDX-License-Identifier: GPL-2.0-or-later

//! An address of a load balancer, or an external IP, that also belongs to the node. The Service must answer at its
//! port.

use std::net::IpAddr;

use slipway_tests::Node;

use crate::kube_proxy::{self, Mode};
use crate::{Backend, Ingress, Stage, address, on_each_backend};

/// Addresses of the node on its link to the client.
fn vips() -> [IpAddr; 2] {
    [address("192.0.2.100"), address("2001:db8::100")]
}

struct World {
    stage: Stage,
    mode: Mode,
    /// The Service's endpoint.
    web: Ingress,
}

impl World {
    fn new(backend: Backend, mode: Mode) -> Self {
        let stage = match mode {
            Mode::Iptables(variant) => Stage::on_node_of(backend, variant),
            Mode::Nftables => Stage::new(backend),
        };
        stage.addresses("add", &vips(), &stage.client.node_link);
        let web = stage.pod(2, "service", |attach| attach);
        Self { stage, mode, web }
    }

    fn engine(&self) {
        for (vip, endpoint) in vips().into_iter().zip(self.web.addresses) {
            kube_proxy::write(&self.stage.node, self.mode, vip, endpoint);
        }
    }

    fn again(&self) {
        for vip in vips() {
            kube_proxy::remove(&self.stage.node, self.mode, vip, self.stage.backend == Backend::Iptables);
        }
        self.engine();
    }

    fn expect(&self, when: &str) {
        for vip in vips() {
            self.stage.expect(vip, "service", when);
        }
        self.stage.expect_published(when);
    }
}

/// Runs the test with every combination of backend and mode in which the outcome does not depend on the order of
/// creation. It does where the chains of iptables and those of kube-proxy's table have the same priority.
fn each(backend: Backend, test: impl Fn(World)) {
    for mode in Mode::ALL {
        if mode == Mode::Iptables("legacy")
            && Node::new().try_cmd("iptables-legacy -t nat -S").code != Some(0)
        {
            slipway_tests::skip!("legacy iptables");
        }
        if backend != Backend::Iptables || mode != Mode::Nftables {
            eprintln!("backend {} with kube-proxy in mode {mode:?}", backend.name());
            test(World::new(backend, mode));
        }
    }
}

on_each_backend!(
    the_service_answers_if_it_was_there_first,
    the_service_answers_if_it_came_later,
    the_service_answers_after_a_restoration
);

fn the_service_answers_if_it_was_there_first(backend: Backend) {
    each(backend, |world| {
        world.engine();
        let _ingress = world.stage.publish();
        world.expect("kube-proxy first");
    });
}

fn the_service_answers_if_it_came_later(backend: Backend) {
    each(backend, |world| {
        let _ingress = world.stage.publish();
        for vip in vips() {
            world.stage.expect(vip, "ingress", "no kube-proxy yet");
        }
        world.engine();
        // The BPF programs look for kube-proxy when a runtime calls STATUS.
        world.stage.network(1).status().expect("STATUS");
        world.expect("kube-proxy later");
        world.again();
        world.expect("kube-proxy again");
    });
}

fn the_service_answers_after_a_restoration(backend: Backend) {
    each(backend, |world| {
        if world.stage.backend == Backend::Iptables {
            return;
        }
        world.engine();
        let _ingress = world.stage.publish();
        world.stage.node.nft("delete table inet slipway");
        world.stage.node.slipway("restore");
        world.expect("restored");
    });
}
