// SPDX-License-Identifier: GPL-2.0-or-later

//! The default route is found among many other routes, and is the same as in a complete listing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use cni_kernel::AddressFamily;
use cni_kernel::route::{Existing, LinkChange, MAIN_TABLE, Route, RouteKind, RouteSocket, Rule};
use ipnet::IpNet;
use nix::time::{ClockId, clock_gettime};

use super::World;

/// A namespace with two links that are up.
fn world() -> (World, [u32; 2]) {
    let world = World::new();
    let links = ["one", "two"].map(|name| {
        let (inner, outer) = world.veth(&format!("in-{name}"), name);
        world.host.change_link(&outer, &LinkChange::new().up()).unwrap();
        world.pod.change_link(&inner, &LinkChange::new().up()).unwrap();
        outer.index
    });
    (world, links)
}

/// The lowest processor time of three runs.
fn cost(mut work: impl FnMut()) -> Duration {
    let clock = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let once = |_| {
        let begin = clock();
        work();
        clock() - begin
    };
    (0..3).map(once).min().unwrap()
}

fn host_route(family: AddressFamily, number: u32) -> IpNet {
    let address: IpAddr = match family {
        AddressFamily::V4 => Ipv4Addr::from((10 << 24) + number).into(),
        AddressFamily::V6 => Ipv6Addr::from((0xfd00 << 112) + u128::from(number)).into(),
    };
    address.into()
}

#[test]
fn finding_it_costs_the_same_next_to_many_routes() {
    let (world, [link, _]) = world();
    for family in AddressFamily::BOTH {
        let default = Route { link: Some(link), ..Route::default_of(family) };
        world.host.add_route(&default, Existing::Refuse).unwrap();
        for number in 0..20_000 {
            let route = Route { link: Some(link), ..Route::to(host_route(family, number)) };
            world.host.add_route(&route, Existing::Append).unwrap();
        }
        let list = cost(|| assert!(world.host.routes(family, MAIN_TABLE).unwrap().len() > 20_000));
        let mut sockets = [(); 3].map(|()| RouteSocket::open_in(&world.host_netns).unwrap()).into_iter();
        let find = cost(|| {
            let socket = sockets.next().unwrap();
            assert_eq!(socket.default_link(family).unwrap(), Some(link));
        });
        assert!(10 * find < list, "{family}: {find:?}, and {list:?} for the whole list");
    }
}

/// The cases that have a rule, and those with two routes of the same metric.
const RULE: &str = "a rule that leads to another table";
const SAME: &str = "two of the same metric";

#[test]
fn it_is_that_of_the_whole_list() {
    type Change = fn(&mut Route, [u32; 2]);
    let cases: [(&str, &[Change]); 10] = [
        ("none", &[]),
        ("one", &[|route, [one, _]| route.link = Some(one)]),
        (
            "the lower metric",
            &[
                |route, [one, _]| (route.link, route.metric) = (Some(one), 2000),
                |route, [_, two]| (route.link, route.metric) = (Some(two), 1500),
            ],
        ),
        (
            "one that leads nowhere first",
            &[
                |route, _| (route.kind, route.metric) = (RouteKind::UNREACHABLE, 10),
                |route, [one, _]| (route.link, route.metric) = (Some(one), 20),
            ],
        ),
        (
            "longer prefixes of the same address",
            &[
                |route, [_, two]| {
                    let prefix = if route.dst.addr().is_ipv4() { 1 } else { 3 };
                    (route.link, route.dst) = (Some(two), IpNet::new(route.dst.addr(), prefix).unwrap());
                },
                |route, [_, two]| {
                    let prefix = route.dst.max_prefix_len() - 2;
                    (route.link, route.dst) = (Some(two), IpNet::new(route.dst.addr(), prefix).unwrap());
                },
                |route, [one, _]| route.link = Some(one),
            ],
        ),
        (
            "only a longer prefix",
            &[|route, [one, _]| {
                (route.link, route.dst) = (Some(one), IpNet::new(route.dst.addr(), 1).unwrap());
            }],
        ),
        ("another table", &[|route, [one, _]| (route.link, route.table) = (Some(one), 100)]),
        (
            RULE,
            &[
                |route, [one, _]| route.link = Some(one),
                |route, [_, two]| (route.link, route.table) = (Some(two), 100),
            ],
        ),
        (SAME, &[|route, [_, two]| route.link = Some(two), |route, [one, _]| route.link = Some(one)]),
        (
            "others behind it",
            &[
                |route, [one, _]| route.link = Some(one),
                |route, [_, two]| {
                    route.link = Some(two);
                    route.dst = host_route(AddressFamily::of(route.dst.addr()), 1);
                },
            ],
        ),
    ];
    for (case, changes) in cases {
        let (world, links) = world();
        for family in AddressFamily::BOTH {
            for change in changes {
                let mut route = Route::default_of(family);
                change(&mut route, links);
                let added = world.host.add_route(&route, Existing::Append);
                added.unwrap_or_else(|error| panic!("{case}: {error}"));
            }
            if case == RULE {
                let all = Rule { family, source: None, table: 100, priority: Some(10), only_source: true };
                world.host.add_rule(&all).unwrap();
            }
            let all = world.host.routes(family, MAIN_TABLE).unwrap().into_iter();
            let usable = all.filter(|route| route.is_default() && route.kind == RouteKind::Unicast);
            let expected = usable.min_by_key(|route| route.metric);
            assert_eq!(
                expected.is_some(),
                !["none", "only a longer prefix", "another table"].contains(&case)
            );
            assert_eq!(world.default_route(family), expected, "{case}, {family}");
            let socket = RouteSocket::open_in(&world.host_netns).unwrap();
            let link = expected.and_then(|route| route.link);
            let found = socket.default_link(family).unwrap();
            let is_any = family == AddressFamily::V6 && case == SAME && found.is_some();
            assert!(found == link || is_any, "{case}, {family}: {found:?} instead of {link:?}");
        }
    }
}
