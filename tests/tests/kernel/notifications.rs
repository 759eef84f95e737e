// SPDX-License-Identifier: GPL-2.0-or-later

//! Notifications from routing netlink.

use std::time::Duration;

use cni_kernel::netns::Netns;
use cni_kernel::route::{
    DuplicateDetection, Existing, Link, LinkChange, Notification, NotificationGroup, Notifications, Route,
    RouteSocket,
};
use ipnet::IpNet;
use slipway_tests::within;

use super::World;

const ALL: [NotificationGroup; 3] =
    [NotificationGroup::Links, NotificationGroup::Addresses, NotificationGroup::Routes];

/// The maximum number of notifications that a test skips before the one for which it waits.
const MOST: usize = 1000;

/// Reads notifications until one is wanted.
fn wait_for(socket: &mut Notifications, what: &str, wanted: impl Fn(&Notification) -> bool) {
    for _ in 0..MOST {
        match socket.next(within(Duration::from_secs(10))).unwrap() {
            Some(seen) if wanted(&seen) => return,
            Some(_) => {}
            None => panic!("no notification of {what}"),
        }
    }
    panic!("{MOST} notifications without {what}");
}

fn read_all(socket: &mut Notifications) -> Vec<Notification> {
    let mut all = Vec::new();
    while let Some(next) = socket.read().unwrap() {
        all.push(next);
        assert!(all.len() < MOST, "notifications without end");
    }
    all
}

fn is_link(seen: &Notification, name: &str, is_up: bool, is_deleted: bool) -> bool {
    matches!(seen, Notification::Link { link, deleted }
        if link.name == name && link.up == is_up && *deleted == is_deleted)
}

fn is_address(seen: &Notification, net: IpNet, is_deleted: bool) -> bool {
    matches!(seen, Notification::Address { address, deleted }
        if address.net == net && *deleted == is_deleted)
}

fn is_route(seen: &Notification, wanted: &Route, is_deleted: bool) -> bool {
    matches!(seen, Notification::Route { route, deleted }
        if (route.dst, route.link, route.protocol) == (wanted.dst, wanted.link, wanted.protocol)
            && *deleted == is_deleted)
}

#[test]
fn changes_of_links_addresses_and_routes_are_reported() {
    let world = World::new();
    let mut socket = Notifications::open_in(&world.host_netns, &ALL).unwrap();
    assert_eq!(socket.read().unwrap(), None, "nothing changed yet");
    let bridge = world.bridge("br0");
    wait_for(&mut socket, "br0", |seen| {
        is_link(seen, "br0", true, false)
            && matches!(seen, Notification::Link { link, .. }
                if (link.index, link.mac, &link.kind) == (bridge.index, bridge.mac, &bridge.kind))
    });
    for (net, to) in [("10.1.2.3/24", "10.9.0.0/24"), ("fd00::3/64", "fd09::/64")] {
        let net: IpNet = net.parse().unwrap();
        world.host.add_address(&bridge, net, DuplicateDetection::Skip).unwrap();
        wait_for(&mut socket, "a new address", |seen| is_address(seen, net, false));
        let route = Route { link: Some(bridge.index), protocol: 111, ..Route::to(to.parse().unwrap()) };
        world.host.add_route(&route, Existing::Refuse).unwrap();
        wait_for(&mut socket, "a new route", |seen| is_route(seen, &route, false));
        world.host.delete_route(&route).unwrap();
        wait_for(&mut socket, "a deleted route", |seen| is_route(seen, &route, true));
        world.host.delete_address(&bridge, net).unwrap();
        wait_for(&mut socket, "a deleted address", |seen| is_address(seen, net, true));
    }
    world.host.change_link(&bridge, &LinkChange::new().down()).unwrap();
    wait_for(&mut socket, "br0 down", |seen| is_link(seen, "br0", false, false));
    world.host.delete_link(&bridge).unwrap();
    wait_for(&mut socket, "br0 deleted", |seen| is_link(seen, "br0", false, true));
}

/// When a port leaves its bridge, the kernel reports to the group of links that the port was deleted, although the link
/// still exists.
#[test]
fn a_port_that_leaves_its_bridge_is_not_reported_as_deleted() {
    let world = World::new();
    let bridge = world.bridge("br0");
    let (_, port) = world.veth("eth0", "veth0a");
    world.host.change_link(&port, &LinkChange::new().master(&bridge).up()).unwrap();
    let mut socket = Notifications::open_in(&world.host_netns, &[NotificationGroup::Links]).unwrap();
    world.host.change_link(&port, &LinkChange::new().no_master()).unwrap();
    let all = read_all(&mut socket);
    let changes: Vec<bool> = all
        .iter()
        .filter_map(|seen| match seen {
            Notification::Link { link, deleted } if link.name == "veth0a" => Some(*deleted),
            _ => None,
        })
        .collect();
    assert!(!changes.is_empty() && !changes.contains(&true), "{all:?}");
}

#[test]
fn only_the_chosen_groups_and_the_own_namespace_are_reported() {
    let world = World::new();
    let mut here = Notifications::open_in(&world.host_netns, &[NotificationGroup::Addresses]).unwrap();
    let mut there = Notifications::open_in(&world.pod_netns, &ALL).unwrap();
    let bridge = world.bridge("br0");
    let net = "10.1.2.3/24".parse().unwrap();
    world.host.add_address(&bridge, net, DuplicateDetection::Skip).unwrap();
    let all = read_all(&mut here);
    assert!(all.iter().any(|seen| is_address(seen, net, false)), "{all:?}");
    assert!(all.iter().all(|seen| matches!(seen, Notification::Address { .. })), "{all:?}");
    assert_eq!(read_all(&mut there), []);
}

#[test]
fn a_slow_reader_sees_the_loss_and_all_that_follows() {
    let world = World::new();
    let bridge = world.bridge("br0");
    let mut socket = Notifications::open_in(&world.host_netns, &ALL).unwrap();
    socket.set_receive_buffer(4096).unwrap();
    let route = |number: u8| Route {
        link: Some(bridge.index),
        protocol: 111,
        ..Route::to(IpNet::new([10, 9, number, 0].into(), 24).unwrap())
    };
    for number in 0..200 {
        world.host.add_route(&route(number), Existing::Refuse).unwrap();
    }
    let all = read_all(&mut socket);
    assert_eq!(all, [Notification::Lost], "once, and nothing from before");
    // If the queue had not been emptied, the kernel would drop this notification.
    world.host.delete_route(&route(7)).unwrap();
    wait_for(&mut socket, "the route", |seen| is_route(seen, &route(7), true));
    assert_eq!(read_all(&mut socket), []);
}

#[test]
fn waiting_ends_with_the_time_and_with_a_change() {
    let netns = super::new_netns();
    let mut socket = Notifications::open_in(&netns, &ALL).unwrap();
    let begin = std::time::Instant::now();
    assert_eq!(socket.next(Duration::from_millis(50)).unwrap(), None);
    assert!(begin.elapsed() >= Duration::from_millis(50));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            let lo = Link { index: 1, name: "lo".to_owned(), ..Link::default() };
            let change = LinkChange::new().up();
            RouteSocket::open_in(&netns).unwrap().change_link(&lo, &change).unwrap();
        });
        wait_for(&mut socket, "lo", |seen| is_link(seen, "lo", true, false));
    });
}

#[test]
fn a_socket_of_the_own_namespace_needs_no_entry() {
    let netns = super::new_netns();
    let opened = netns.run(|| {
        let socket = Notifications::open(&ALL).unwrap();
        (socket, Netns::current().unwrap().id())
    });
    let (mut socket, id) = opened.unwrap();
    assert_eq!(id, netns.id());
    assert_eq!(socket.read().unwrap(), None);
}
