// SPDX-License-Identifier: GPL-2.0-or-later

//! Routes with a distinct protocol number beside routes of other programs.

use std::num::NonZeroU8;

use cni_kernel::AddressFamily;
use cni_kernel::route::{DuplicateDetection, Existing, LinkChange, MAIN_TABLE, Route};

use super::World;

/// `RTPROT_STATIC` of `linux/rtnetlink.h`.
const FOREIGN: u8 = 4;
const OWN: NonZeroU8 = NonZeroU8::new(111).unwrap();

struct Case {
    family: AddressFamily,
    net: &'static str,
    dst: &'static str,
    gateways: [&'static str; 2],
}

const CASES: [Case; 2] = [
    Case {
        family: AddressFamily::V4,
        net: "192.0.2.1/24",
        dst: "10.9.0.0/24",
        gateways: ["192.0.2.8", "192.0.2.9"],
    },
    Case { family: AddressFamily::V6, net: "fd00::1/64", dst: "fd09::/64", gateways: ["fd00::8", "fd00::9"] },
];

impl Case {
    /// A namespace, and the routes to the destination through each of the two gateways.
    fn world(&self) -> (World, Route, Route) {
        let world = World::new();
        let (inner, outer) = world.veth("eth0", "veth0a");
        world.host.change_link(&outer, &LinkChange::new().up()).unwrap();
        world.pod.change_link(&inner, &LinkChange::new().up()).unwrap();
        world.host.add_address(&outer, self.net.parse().unwrap(), DuplicateDetection::Skip).unwrap();
        let route = |gateway: &str, protocol| Route {
            gateway: Some(gateway.parse().unwrap()),
            link: Some(outer.index),
            protocol,
            ..Route::to(self.dst.parse().unwrap())
        };
        let own = route(self.gateways[0], OWN.get());
        let foreign = route(self.gateways[1], FOREIGN);
        (world, own, foreign)
    }

    /// The protocol and the gateway of each route to the destination.
    fn present(&self, world: &World) -> Vec<(u8, Option<String>)> {
        let routes = world.host.routes(self.family, MAIN_TABLE).unwrap().into_iter();
        let mut found: Vec<_> = routes
            .filter(|route| route.dst == self.dst.parse().unwrap())
            .map(|route| (route.protocol, route.gateway.map(|gateway| gateway.to_string())))
            .collect();
        found.sort();
        found
    }
}

#[test]
fn a_foreign_route_to_the_same_prefix_survives() {
    for case in CASES {
        let (world, own, foreign) = case.world();
        world.host.add_route(&foreign, Existing::Refuse).unwrap();
        let same = Route { protocol: OWN.get(), ..foreign.clone() };
        for missing in [&own, &same] {
            let error = world.host.delete_own_route(missing).unwrap_err();
            assert!(error.is_not_found(), "{error}");
        }
        let foreign_only = [(FOREIGN, Some(case.gateways[1].to_owned()))];
        assert_eq!(case.present(&world), foreign_only, "{}", case.family);

        world.host.add_route(&own, Existing::Append).unwrap();
        assert_eq!(case.present(&world).len(), 2, "{}", case.family);
        world.host.delete_own_route(&own).unwrap();
        assert_eq!(case.present(&world), foreign_only, "{}", case.family);
        // The route has another protocol number, which `delete_route` ignores.
        world.host.delete_route(&same).unwrap();
        assert_eq!(case.present(&world), [], "{}", case.family);
    }
}

#[test]
fn only_the_route_with_this_gateway_and_metric_is_deleted() {
    for case in CASES {
        let (world, own, foreign) = case.world();
        let other = Route { gateway: foreign.gateway, metric: 50, ..own.clone() };
        world.host.add_route(&own, Existing::Refuse).unwrap();
        world.host.add_route(&other, Existing::Refuse).unwrap();
        let mixed = Route { metric: 50, ..own.clone() };
        assert!(world.host.delete_own_route(&mixed).unwrap_err().is_not_found());
        world.host.delete_own_route(&own).unwrap();
        assert_eq!(case.present(&world), [(OWN.get(), Some(case.gateways[1].to_owned()))]);
        world.host.delete_own_route(&other).unwrap();
        assert!(world.host.delete_own_route(&other).unwrap_err().is_not_found());
    }
}

#[test]
fn routes_are_listed_by_their_origin() {
    for case in CASES {
        let (world, own, foreign) = case.world();
        // If they had the same metric, IPv6 would merge them into one route with two next hops.
        let own = Route { metric: 512, ..own };
        let elsewhere = Route { table: 1000, ..own.clone() };
        world.host.add_route(&foreign, Existing::Refuse).unwrap();
        assert_eq!(world.host.routes_of_protocol(case.family, MAIN_TABLE, OWN).unwrap(), []);
        world.host.add_route(&own, Existing::Refuse).unwrap();
        world.host.add_route(&elsewhere, Existing::Refuse).unwrap();
        let found = world.host.routes_of_protocol(case.family, MAIN_TABLE, OWN).unwrap();
        let found: Vec<_> = found.iter().map(|route| (route.dst, route.gateway, route.protocol)).collect();
        assert_eq!(found, [(own.dst, own.gateway, OWN.get())], "{}", case.family);
        let found = world.host.routes_of_protocol(case.family, 1000, OWN).unwrap();
        assert_eq!(found.len(), 1, "{}", case.family);
        assert_eq!(world.host.routes_of_protocol(case.family, 2000, OWN).unwrap(), []);
    }
}
