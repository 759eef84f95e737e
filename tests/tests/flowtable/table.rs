//! The flowtable as a part of the table: made, joined, mended, taken away.

use slipway_tests::{BridgeNetfilter, FLOWTABLE, Proto, at, has_flowtable, needs};

use crate::flows::{kernel, offloaded, passed, watch};
use crate::world::{PORT, Web, World};
use cni_nftables::{Family, Links, Socket, TableId};

/// The links that are in the flowtable by their names; none if there is no flowtable. Older versions of nft cannot
/// read what newer kernels say of it.
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
    // A link that goes leaves by itself; newer kernels keep its name, for one that comes in its place.
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
fn it_is_switched_off_and_on_under_a_running_connection() {
    needs!(has_flowtable(), FLOWTABLE);
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let _web = Web::published(&world, &network, "web");
    watch(&world);
    let to = at(world.client.node_v4, PORT);
    let mut talk = world.client.dial(Proto::Tcp, None, to, slipway_tests::QUICK * 5).expect("a connection");
    let mut say = |times| (0..times).for_each(|_| assert_eq!(talk.say().expect("an answer").who, "web"));
    say(20);
    assert_eq!(offloaded(&world).len(), 1);
    settings(&world, r#"{"flowtable": false}"#);
    let next = Web::new(&world, &network, "next", |a| a.port(Proto::Tcp, PORT + 1, 80));
    let table = world.node.cmd("nft list table inet slipway");
    assert!(!table.contains("flow") && !table.contains("ct mark"), "{table}");
    let before = passed(&world);
    say(20);
    assert!(passed(&world) - before >= 40, "every packet passes the forward hook again");
    settings(&world, r#"{"flowtable": true}"#);
    network.del(&next.attach).expect("DEL");
    let _again = Web::new(&world, &network, "again", |a| a.port(Proto::Tcp, PORT + 2, 80));
    say(20);
    assert_eq!(offloaded(&world).len(), 1, "the connection is still known as ours");
}

#[test]
fn what_somebody_flushed_is_put_back() {
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
    // A table that was saved and loaded again is the same.
    let saved = world.node.cmd("nft list table inet slipway");
    if slipway_tests::nft_loads_ranges() {
        world.node.nft(&format!("delete table inet slipway\n{saved}"));
        network.check(&web.attach).expect("CHECK");
        assert_eq!(devices(&world).map(|names| names.len()), Some(2));
    }
    network.del(&web.attach).expect("DEL");
}

/// First ADDs at the same moment all want to make it.
#[test]
fn several_first_containers_at_once() {
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
