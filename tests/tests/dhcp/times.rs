// SPDX-License-Identifier: GPL-2.0-or-later

//! Timers and refusals, with leases of a few seconds from a server that the test controls.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;
use slipway_tests::{Attach, Pod, slipway_only, within};

use crate::server::{DISCOVER, RELEASE, Received, Reply, RogueOffer, Rules, Server, soon};
use crate::stage::{Stage, address, is_up};

/// A container on a network with the test's server.
struct Scene {
    server: Server,
    stage: Stage,
    pod: Pod,
}

impl Scene {
    fn new(rules: Rules) -> Self {
        let stage = Stage::new();
        let server = Server::start(&stage, rules);
        stage.start_daemon(&["-resendmax", "2s"]);
        let pod = stage.node.pod("pod");
        Self { server, stage, pod }
    }

    fn added(rules: Rules) -> Self {
        let scene = Self::new(rules);
        let network = scene.stage.network(&json!({}));
        let result = network.add(&Attach::new(&scene.pod)).expect("ADD");
        assert_eq!(address(&result), "10.77.0.50");
        scene
    }

    /// Counts the client's renewals, or its rebindings if `to_all`.
    fn extensions(&self, to_all: bool) -> usize {
        self.server.count(|received| received.extends(to_all))
    }

    fn del(&self) {
        self.stage.network(&json!({})).del(&Attach::new(&self.pod)).expect("DEL");
        assert_eq!(self.stage.leases(), Vec::<String>::new());
        assert!(!self.pod.has_link("eth0"));
    }
}

#[test]
fn a_lease_is_renewed_at_t1() {
    slipway_only!();
    let scene = Scene::added(Rules { times: soon([2, 100, 200]), ..Rules::default() });
    let start = Instant::now();
    scene.stage.wait("it is renewed", || scene.extensions(false) >= 2);
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!((scene.extensions(true), scene.server.count(|received| received.kind == DISCOVER)), (0, 1));
    assert!(is_up(&scene.pod));
    scene.del();
    scene.stage.wait("the server receives the release", || {
        scene.server.count(|received| received.kind == RELEASE) == 1
    });
}

#[test]
fn a_lease_is_rebound_when_its_server_is_silent() {
    slipway_only!();
    let rules = Rules { times: soon([1, 3, 60]), renew: Reply::None, ..Rules::default() };
    let scene = Scene::added(rules);
    scene.stage.wait("it is rebound", || scene.extensions(true) >= 1);
    assert!(scene.extensions(false) >= 1);
    // The lease is rebound a second time.
    scene.stage.wait("it is rebound again", || scene.extensions(true) >= 2);
    assert!(is_up(&scene.pod));
    scene.del();
}

#[test]
fn the_link_is_set_down_when_the_lease_ends() {
    slipway_only!();
    let scene = Scene::added(Rules { times: soon([1, 2, 4]), ..Rules::default() });
    let silent = |rules: &mut Rules| {
        *rules = Rules { discover: Reply::None, renew: Reply::None, rebind: Reply::None, ..rules.clone() };
    };
    scene.server.change(silent);
    let start = Instant::now();
    assert!(is_up(&scene.pod));
    scene.stage.wait("the link is set down", || !is_up(&scene.pod));
    assert!(start.elapsed() >= Duration::from_secs(3), "too early: {:?}", start.elapsed());
    scene.stage.wait("the daemon forgets it", || scene.stage.leases().is_empty());
    let failure = scene.stage.network(&json!({})).check(&Attach::new(&scene.pod)).expect_err("CHECK");
    assert_eq!(failure.error.msg, "error calling DHCP.Renew: there is no lease for pod/lan/eth0");
    scene.del();
}

/// The server has restarted and forgotten its leases. The daemon requests the same address and gets it.
#[test]
fn a_lease_that_the_server_forgot_is_requested_again() {
    slipway_only!();
    let scene = Scene::added(Rules { times: soon([1, 50, 100]), ..Rules::default() });
    scene.server.change(|rules| rules.renew = Reply::Refuse);
    scene.stage.wait("the address is requested again", || scene.server.count(Received::selects) >= 3);
    let again =
        scene.server.received().into_iter().rfind(|received| received.kind == DISCOVER).expect("a message");
    assert_eq!(again.options[&50], [10, 77, 0, 50], "option 50 is the container's address");
    assert!(is_up(&scene.pod));
    scene.del();
}

/// The container keeps its address, so the daemon releases a lease for another address.
#[test]
fn a_lease_of_another_address_is_released() {
    slipway_only!();
    let scene = Scene::added(Rules { times: soon([1, 50, 100]), ..Rules::default() });
    scene.server.change(|rules| {
        *rules = Rules { renew: Reply::Refuse, address: [10, 77, 0, 60].into(), ..rules.clone() };
    });
    scene.stage.wait("the link is set down", || !is_up(&scene.pod));
    scene.stage.wait("the other lease is released", || {
        scene.server.count(|received| received.kind == RELEASE && received.from.octets() == [10, 77, 0, 60])
            == 1
    });
    scene.stage.wait("the daemon forgets it", || scene.stage.leases().is_empty());
    scene.del();
}

#[test]
fn an_acknowledgment_without_a_mask_is_refused() {
    slipway_only!();
    let scene = Scene::new(Rules { mask: None, ..Rules::default() });
    let network = scene.stage.network(&json!({}));
    let failure = network.add(&Attach::new(&scene.pod)).expect_err("ADD");
    assert_eq!(
        failure.error.msg,
        "error calling DHCP.Allocate: DHCP option Subnet Mask not found in DHCPACK"
    );
    scene
        .stage
        .wait("the lease is released", || scene.server.count(|received| received.kind == RELEASE) == 1);
    assert!(!scene.pod.has_link("eth0"));
    assert_eq!(scene.stage.leases(), Vec::<String>::new());
}

/// The server does not answer ARP requests, and the container has not resolved its MAC address before.
#[test]
fn a_server_that_ignores_arp_receives_the_release() {
    slipway_only!();
    let scene = Scene::new(Rules::default());
    scene.stage.node.sysctl("net/ipv4/conf/lan0/arp_ignore", "8");
    for round in 1..=3 {
        scene.stage.network(&json!({})).add(&Attach::new(&scene.pod)).expect("ADD");
        scene.del();
        let received = || scene.server.count(|received| received.kind == RELEASE);
        scene.stage.wait("the server receives the release", || received() == round);
    }
}

/// The client announces its address (RFC 2131, section 4.4.1), so that a neighbour with a stale entry learns the new
/// MAC address. lan0 accepts new entries only from announcements.
#[test]
fn neighbours_learn_the_new_mac_address() {
    slipway_only!();
    let scene = Scene::new(Rules::default());
    scene.stage.node.sysctl("net/ipv4/conf/lan0/arp_accept", "1");
    scene.stage.node.cmd("ip neigh add 10.77.0.50 lladdr 02:00:00:00:00:01 dev lan0 nud stale");
    scene.stage.network(&json!({})).add(&Attach::new(&scene.pod)).expect("ADD");
    let known = scene.stage.node.cmd("ip neigh show 10.77.0.50 dev lan0");
    assert!(known.contains(&format!("lladdr {} ", scene.pod.mac("eth0"))), "{known}");
    scene.del();
}

#[test]
fn an_add_with_a_silent_server_times_out() {
    slipway_only!();
    let scene = Scene::new(Rules { discover: Reply::None, ..Rules::default() });
    scene.stage.stop("daemon", Signal::SIGTERM);
    scene.stage.start_daemon(&["-timeout=1500ms", "--resendtimeout", "5s"]);
    let network = scene.stage.network(&json!({}));
    let start = Instant::now();
    let failure = network.add(&Attach::new(&scene.pod)).expect_err("ADD");
    assert_eq!(failure.error.msg, "error calling DHCP.Allocate: no more tries");
    assert_eq!(failure.error.details, "");
    let log = scene.stage.daemon_log();
    assert!(log.contains("no DHCP server answered on eth0"), "{log}");
    assert!(start.elapsed() < within(Duration::from_secs(20)), "{:?}", start.elapsed());
    // The client repeats a message within one try, because packets may be lost.
    assert!(scene.server.count(|received| received.kind == DISCOVER) >= 2);
    assert!(!scene.pod.has_link("eth0"));
    scene.del();
}

/// The server refuses a request for its own offer, and the next try succeeds.
#[test]
fn a_refused_request_is_repeated() {
    slipway_only!();
    let scene = Scene::new(Rules { select: Reply::Refuse, ..Rules::default() });
    let network = scene.stage.network(&json!({}));
    let attach = Attach::new(&scene.pod);
    std::thread::scope(|scope| {
        let add = scope.spawn(|| network.add(&attach).expect("ADD"));
        scene.stage.wait("it is refused", || scene.server.count(Received::selects) >= 1);
        scene.server.change(|rules| rules.select = Reply::Accept);
        assert_eq!(address(&add.join().expect("no panic")), "10.77.0.50");
    });
    scene.del();
}

/// The runtime gives up, and its DEL stops an ADD that is still waiting.
#[test]
fn del_ends_an_add_that_waits() {
    slipway_only!();
    let scene = Scene::new(Rules { discover: Reply::None, ..Rules::default() });
    let network = scene.stage.network(&json!({}));
    let attach = Attach::new(&scene.pod);
    let config = network.configs(Some(&attach)).remove(0);
    let config_of_dhcp =
        json!({"cniVersion": "1.1.0", "name": "lan", "type": "dhcp", "ipam": {"type": "dhcp"}});
    let call = |verb: &str| {
        scene.stage.node.plugin("dhcp").command(verb).for_pod(&scene.pod).config(&config_of_dhcp)
    };
    let running = network.prepare("ADD", &config, Some(&attach)).spawn();
    scene.stage.wait("the server is asked", || scene.server.count(|received| received.kind == DISCOVER) >= 1);
    let twice = call("ADD").run().error();
    assert_eq!(twice.code, 11, "{twice:?}");
    assert_eq!(twice.msg, "error calling DHCP.Allocate: another call requests a lease for pod/lan/eth0");
    let start = Instant::now();
    call("DEL").run().ok();
    assert!(start.elapsed() < within(Duration::from_secs(10)), "{:?}", start.elapsed());
    assert_eq!(running.wait().error().msg, "error calling DHCP.Allocate: stopped");
    scene.del();
}

/// Returns unusable offers, each with its reason in the error message.
fn rogue_offers() -> Vec<(RogueOffer, &'static str)> {
    let address = |address| RogueOffer { address, ..RogueOffer::default() };
    let options = |options: &[u8]| RogueOffer { options: options.to_vec(), ..RogueOffer::default() };
    vec![
        (address([127, 0, 0, 1]), "no container can have address 127.0.0.1/24"),
        (address([224, 1, 1, 1]), "no container can have address 224.1.1.1/24"),
        (address([255, 255, 255, 255]), "no container can have address 255.255.255.255/24"),
        (address([10, 77, 0, 0]), "no container can have address 10.77.0.0/24"),
        (address([10, 77, 0, 255]), "no container can have address 10.77.0.255/24"),
        (RogueOffer { mask: [0; 4], ..RogueOffer::default() }, "no container can have address 10.77.0.66/0"),
        (RogueOffer { mask: [255, 0, 255, 0], ..RogueOffer::default() }, "255.0.255.0"),
        (options(&[3, 4, 127, 0, 0, 1]), "no router can have address 127.0.0.1"),
        (options(&[121, 8, 24, 10, 9, 9, 224, 0, 0, 1]), "no router can have address 224.0.0.1"),
    ]
}

/// Another server's unusable offers arrive first, and the client selects the usable one.
#[test]
fn unusable_offers_are_ignored() {
    slipway_only!();
    let rogue_offers = rogue_offers().into_iter().map(|(offer, _)| offer).collect();
    let scene = Scene::added(Rules { rogue_offers, ..Rules::default() });
    assert!(scene.pod.cmd("ip -br address show eth0").contains("10.77.0.50/24"));
    let selected = scene.server.received().into_iter().find(Received::selects).expect("a choice");
    assert_eq!(
        (&selected.options[&54][..], &selected.options[&50][..]),
        (&[10, 77, 0, 1][..], &[10, 77, 0, 50][..])
    );
    scene.del();
}

#[test]
fn without_a_usable_offer_the_error_names_the_reason() {
    slipway_only!();
    let scene = Scene::new(Rules { discover: Reply::None, ..Rules::default() });
    scene.stage.stop("daemon", Signal::SIGTERM);
    scene.stage.start_daemon(&["-timeout=2s", "--resendtimeout", "2100ms"]);
    let network = scene.stage.network(&json!({}));
    for (offer, reason) in rogue_offers().into_iter().step_by(3) {
        scene.server.change(|rules| rules.rogue_offers = vec![offer]);
        let start = Instant::now();
        let failure = network.add(&Attach::new(&scene.pod)).expect_err("ADD");
        assert_eq!(failure.error.msg, "error calling DHCP.Allocate: no more tries");
        let log = scene.stage.daemon_log();
        let named =
            |line: &str| line.contains("no DHCP server offers a usable lease: ") && line.contains(reason);
        assert!(log.lines().any(named), "{reason}: {log}");
        assert!(start.elapsed() < within(Duration::from_secs(10)), "{:?}", start.elapsed());
        assert!(!scene.pod.has_link("eth0"));
    }
    assert_eq!(scene.server.count(Received::selects), 0, "requests for an unusable offer");
    assert_eq!(scene.stage.leases(), Vec::<String>::new());
}

/// Without a valid acknowledgment, the lease ends when its time is over (RFC 2131, section 4.4.5).
#[test]
fn a_renewal_with_an_invalid_mask_is_ignored() {
    slipway_only!();
    let scene = Scene::added(Rules { times: soon([1, 3, 10]), ..Rules::default() });
    let start = Instant::now();
    scene.server.change(|rules| rules.mask = Some([0, 0, 0, 0].into()));
    scene.stage.wait("the address is requested again", || scene.extensions(true) >= 1);
    assert!(is_up(&scene.pod));
    assert!(scene.pod.cmd("ip -br address show eth0").contains("10.77.0.50/24"));
    scene.stage.wait("the link is set down", || !is_up(&scene.pod));
    assert!(start.elapsed() >= Duration::from_secs(4), "too early: {:?}", start.elapsed());
    scene.stage.wait("the daemon forgets it", || scene.stage.leases().is_empty());
    scene.del();
}

/// The client ignores an acknowledgment for another address.
#[test]
fn a_renewal_of_another_address_is_ignored() {
    slipway_only!();
    let scene = Scene::added(Rules { times: soon([1, 3, 6]), ..Rules::default() });
    scene.server.change(|rules| rules.address = [127, 0, 0, 1].into());
    scene.stage.wait("the link is set down", || !is_up(&scene.pod));
    assert!(!scene.pod.cmd("ip -br address show").contains("127.0.0.1"));
    assert_eq!(scene.server.count(|received| received.from.is_loopback()), 0);
    scene.del();
}
