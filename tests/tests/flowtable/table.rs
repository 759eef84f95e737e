// SPDX-License-Identifier: GPL-2.0-or-later

//! The flowtable in nftables is created, extended, repaired and removed.

use slipway_tests::{BridgeNetfilter, FLOWTABLE, Proto, at, has_flowtable, needs};

use crate::flows::{kernel, offloaded, passed, watch};
use crate::world::{PORT, Web, World};
use cni_nftables::{Family, Links, Socket, TableId};

/// Returns the names of the flowtable's links, or `None` without a flowtable. nft is not used, because older versions
/// cannot read the attributes of newer kernels.
pub(crate) fn devices(world: &World) -> Option<Vec<String>> {
    let table = TableId::new(Family::Inet, "slipway");
    let found = world.node.run(|| Socket::open().and_then(|socket| socket.flowtable(&table, "flows")));
    let links = found.expect("nf_tables").map(|flowtable| flowtable.devices)?;
    let containers = links.contains(&Links::Beginning("veth".to_owned()));
    assert_eq!(containers, kernel() >= (7, 0), "newer kernels want containers' own links in it: {links:?}");
    let named = links.into_iter().filter_map(|links| match links {
        Links::Named(name) => Some(name),
        Links::Beginning(_) => None,
    });
    let mut names: Vec<String> = named.collect();
    names.sort();
    Some(names)
}

fn settings(world: &World, text: &str) {
    world.node.write("/etc/cni/slipway.json", text);
}

#[test]
fn bridges_and_uplinks_join_and_named_links_replace_uplinks() {
    needs!(has_flowtable(), FLOWTABLE);
    let world = World::new(BridgeNetfilter::Off);
    let uplink = world.client.node_link.clone();
    let _one = Web::published(&world, &world.network(1), "one");
    assert_eq!(devices(&world).as_deref(), Some(&["br1".to_owned(), uplink.clone()][..]));
    let second = Web::new(&world, &world.network(2), "two", |a| a.port(Proto::Tcp, PORT + 1, 80));
    assert_eq!(devices(&world), Some(vec!["br1".to_owned(), "br2".to_owned(), uplink]));
    // The kernel removes a deleted link from the flowtable. Newer kernels keep its name for a new link of the same
    // name.
    world.network(2).del(&second.attach).expect("DEL");
    world.node.cmd("ip link delete br2");
    assert!(devices(&world).is_some_and(|names| names.contains(&"br1".to_owned())));
    let _third = Web::new(&world, &world.network(2), "three", |a| a.port(Proto::Tcp, PORT + 1, 80));
    assert_eq!(devices(&world).map(|names| names.len()), Some(3));
    world.client.expect(Proto::Tcp, (world.client.node_v4, PORT + 1), "three");

    let world = World::new(BridgeNetfilter::Off);
    settings(&world, r#"{"flowtable": {"devices": ["lo", "not-there"]}}"#);
    let _one = Web::published(&world, &world.network(1), "one");
    assert_eq!(devices(&world), Some(vec!["br1".to_owned(), "lo".to_owned()]));
}

#[test]
fn a_connection_survives_switching_it_off_and_on() {
    needs!(has_flowtable(), FLOWTABLE);
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let _web = Web::published(&world, &network, "web");
    watch(&world);
    let to = at(world.client.node_v4, PORT);
    let mut flow = world.client.dial(Proto::Tcp, None, to, slipway_tests::QUICK * 5).expect("a connection");
    let mut request =
        |times| (0..times).for_each(|_| assert_eq!(flow.request().expect("an answer").who, "web"));
    request(20);
    assert_eq!(offloaded(&world).len(), 1);
    settings(&world, r#"{"flowtable": false}"#);
    let next = Web::new(&world, &network, "next", |a| a.port(Proto::Tcp, PORT + 1, 80));
    let table = world.node.cmd("nft list table inet slipway");
    assert!(!table.contains("flow") && !table.contains("ct mark"), "{table}");
    let before = passed(&world);
    request(20);
    assert!(passed(&world) - before >= 40, "packets still bypass the forward hook");
    settings(&world, r#"{"flowtable": true}"#);
    network.del(&next.attach).expect("DEL");
    let _again = Web::new(&world, &network, "again", |a| a.port(Proto::Tcp, PORT + 2, 80));
    request(20);
    assert_eq!(offloaded(&world).len(), 1, "the connection is not offloaded again");
}

#[test]
fn add_restores_it_after_a_flush() {
    needs!(has_flowtable(), FLOWTABLE);
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let web = Web::published(&world, &network, "web");
    let whole = world.node.cmd("nft list chain inet slipway forward");
    assert!(whole.contains("flow add @flows"), "{whole}");
    for damage in ["flush table inet slipway", "flush chain inet slipway forward", "flush ruleset"] {
        world.node.nft(damage);
        network.del(&web.attach).expect("DEL");
        network.add(&web.attach).expect("ADD");
        assert_eq!(world.node.cmd("nft list chain inet slipway forward"), whole, "{damage}");
        assert_eq!(devices(&world).map(|names| names.len()), Some(2), "{damage}");
        network.check(&web.attach).expect("CHECK");
    }
    // The table is the same after it has been saved and loaded.
    let saved = world.node.cmd("nft list table inet slipway");
    if slipway_tests::nft_loads_ranges() {
        world.node.nft(&format!("delete table inet slipway\n{saved}"));
        network.check(&web.attach).expect("CHECK");
        assert_eq!(devices(&world).map(|names| names.len()), Some(2));
    }
    network.del(&web.attach).expect("DEL");
}

/// Several concurrent first ADDs try to create the flowtable.
#[test]
fn concurrent_first_containers_share_it() {
    needs!(has_flowtable(), FLOWTABLE);
    let world = World::new(BridgeNetfilter::Off);
    let names = ["one", "two", "three", "four"];
    std::thread::scope(|scope| {
        for (number, name) in (1..).zip(names) {
            let world = &world;
            scope.spawn(move || {
                let network = world.network(number);
                drop(Web::new(world, &network, name, |a| a.port(Proto::Tcp, PORT + u16::from(number), 80)));
            });
        }
    });
    assert_eq!(devices(&world).map(|names| names.len()), Some(5), "four bridges and the uplink");
    let chain = world.node.cmd("nft list chain inet slipway forward");
    assert_eq!(chain.matches("flow add").count(), 1, "{chain}");
}
