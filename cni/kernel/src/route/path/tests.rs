// SPDX-License-Identifier: MIT OR Apache-2.0

use rtnetlink::packet_core::Emitable;

use super::*;

fn round_trip(route: &Route) -> Route {
    let message = route.message();
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    decode(&bytes, 0).unwrap().remove(0)
}

#[test]
fn an_encoded_route_decodes_to_the_same() {
    let mut route = Route::to("10.1.2.0/24".parse().unwrap());
    route.gateway = Some("10.1.0.1".parse().unwrap());
    route.link = Some(7);
    route.source = Some("10.1.0.9".parse().unwrap());
    route.metric = 50;
    route.table = 1000;
    route.mtu = 1400;
    route.advmss = 1300;
    route.onlink = true;
    let back = round_trip(&route);
    // RTPROT_BOOT
    assert_eq!(back, Route { scope: Some(RouteScope::UNIVERSE), protocol: 3, ..route });

    let local = Route { kind: RouteKind::Local, link: Some(3), ..Route::to("::1/128".parse().unwrap()) };
    assert_eq!(round_trip(&local), Route { scope: Some(RouteScope::HOST), protocol: 3, ..local });
}

#[test]
fn the_scope_follows_from_the_next_hop() {
    let mut route = Route::to("10.1.2.3/24".parse().unwrap());
    assert_eq!(round_trip(&route).scope, Some(RouteScope::LINK));
    assert_eq!(round_trip(&route).dst, "10.1.2.0/24".parse().unwrap(), "masked");
    route.scope = Some(RouteScope::HOST);
    assert_eq!(round_trip(&route).scope, Some(RouteScope::HOST));
}

#[test]
fn each_next_hop_is_a_route() {
    let route = Route { metric: 7, ..Route::default_of(AddressFamily::V4) };
    let hop = |index: u8, gateway: u8| {
        // struct rtnexthop (its length, flags, weight, link), then RTA_GATEWAY.
        [16, 0, 0, 0, index, 0, 0, 0, 8, 0, 5, 0, 10, 0, 0, gateway]
    };
    let both = [hop(3, 1), hop(4, 2)].concat();
    let via = |link, gateway: &str| Route {
        link: Some(link),
        gateway: Some(gateway.parse().unwrap()),
        ..route.clone()
    };
    assert_eq!(by_hop(&both, &route), [via(3, "10.0.0.1"), via(4, "10.0.0.2")]);
    assert_eq!(by_hop(&both[..20], &route), [via(3, "10.0.0.1")], "cut");
    assert!(by_hop(&[0; 16], &route).is_empty(), "a hop without length");
}

#[test]
fn a_short_reply_is_an_error() {
    assert!(decode(&[2; 11], 0).is_err());
    assert!(decode(&[], 0).is_err());
}
