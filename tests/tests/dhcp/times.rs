//! What happens as time goes by, and when servers are not kind: leases of seconds, of a server that does as
//! the test says.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;
use slipway_tests::{Attach, Pod, within};

use crate::server::{DISCOVER, Heard, Lie, RELEASE, Rules, Say, Server};
use crate::stage::{Stage, address, is_up};

/// A container with a lease of that server.
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

    /// How often the server was asked for more time.
    fn extensions(&self, to_all: bool) -> usize {
        self.server.count(|heard| heard.extends(to_all))
    }

    fn del(&self) {
        self.stage.network(&json!({})).del(&Attach::new(&self.pod)).expect("DEL");
        assert_eq!(self.stage.leases(), Vec::<String>::new());
        assert!(!self.pod.has_link("eth0"));
    }
}

#[test]
fn a_lease_is_renewed_with_its_server_when_that_says_so() {
    ours_alone!();
    let scene = Scene::added(Rules { times: [2, 100, 200], ..Rules::default() });
    let start = Instant::now();
    scene.stage.wait("it is renewed", || scene.extensions(false) >= 2);
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!((scene.extensions(true), scene.server.count(|heard| heard.kind == DISCOVER)), (0, 1));
    assert!(is_up(&scene.pod));
    scene.del();
    scene.stage.wait("the server hears it", || scene.server.count(|heard| heard.kind == RELEASE) == 1);
}

#[test]
fn all_servers_are_asked_when_its_own_is_silent() {
    ours_alone!();
    let rules = Rules { times: [1, 3, 60], renew: Say::Nothing, ..Rules::default() };
    let scene = Scene::added(rules);
    scene.stage.wait("it is rebound", || scene.extensions(true) >= 1);
    assert!(scene.extensions(false) >= 1);
    // And again at its time: the lease goes on.
    scene.stage.wait("it is rebound again", || scene.extensions(true) >= 2);
    assert!(is_up(&scene.pod));
    scene.del();
}

#[test]
fn a_lease_that_runs_out_takes_the_link_with_it() {
    ours_alone!();
    let scene = Scene::added(Rules { times: [1, 2, 4], ..Rules::default() });
    let silent = |rules: &mut Rules| {
        *rules = Rules { discover: Say::Nothing, renew: Say::Nothing, rebind: Say::Nothing, ..rules.clone() };
    };
    scene.server.change(silent);
    let start = Instant::now();
    assert!(is_up(&scene.pod));
    scene.stage.wait("the link goes off", || !is_up(&scene.pod));
    assert!(start.elapsed() >= Duration::from_secs(3), "too early: {:?}", start.elapsed());
    scene.stage.wait("the daemon forgets it", || scene.stage.leases().is_empty());
    let failure = scene.stage.network(&json!({})).check(&Attach::new(&scene.pod)).expect_err("CHECK");
    assert_eq!(failure.error.msg, "error calling DHCP.Renew: there is no lease for pod/lan/eth0");
    scene.del();
}

/// A server that was started again and knows nobody: the address is asked for again, and given.
#[test]
fn a_lease_that_a_server_forgot_is_asked_for_again() {
    ours_alone!();
    let scene = Scene::added(Rules { times: [1, 50, 100], ..Rules::default() });
    scene.server.change(|rules| rules.renew = Say::No);
    scene.stage.wait("it is asked for again", || scene.server.count(Heard::selects) >= 3);
    let again = scene.server.heard().into_iter().rfind(|heard| heard.kind == DISCOVER).expect("a message");
    assert_eq!(again.options[&50], [10, 77, 0, 50], "the address that the container has");
    assert!(is_up(&scene.pod));
    scene.del();
}

/// The container has the old address: another one is of no use to it.
#[test]
fn a_lease_of_another_address_is_given_back() {
    ours_alone!();
    let scene = Scene::added(Rules { times: [1, 50, 100], ..Rules::default() });
    scene.server.change(|rules| {
        *rules = Rules { renew: Say::No, address: [10, 77, 0, 60].into(), ..rules.clone() };
    });
    scene.stage.wait("the link goes off", || !is_up(&scene.pod));
    scene.stage.wait("the other one is given back", || {
        scene.server.count(|heard| heard.kind == RELEASE && heard.from.octets() == [10, 77, 0, 60]) == 1
    });
    scene.stage.wait("the daemon forgets it", || scene.stage.leases().is_empty());
    scene.del();
}

#[test]
fn an_answer_without_a_mask_is_no_lease() {
    ours_alone!();
    let scene = Scene::new(Rules { mask: None, ..Rules::default() });
    let network = scene.stage.network(&json!({}));
    let failure = network.add(&Attach::new(&scene.pod)).expect_err("ADD");
    assert_eq!(
        failure.error.msg,
        "error calling DHCP.Allocate: DHCP option Subnet Mask not found in DHCPACK"
    );
    scene.stage.wait("it is given back", || scene.server.count(|heard| heard.kind == RELEASE) == 1);
    assert!(!scene.pod.has_link("eth0"));
    assert_eq!(scene.stage.leases(), Vec::<String>::new());
}

/// The container has never had to ask for its server's hardware address, and nobody would tell it now.
#[test]
fn a_server_whose_hardware_address_nobody_tells_hears_a_release() {
    ours_alone!();
    let scene = Scene::new(Rules::default());
    scene.stage.node.sysctl("net/ipv4/conf/lan0/arp_ignore", "8");
    for round in 1..=3 {
        scene.stage.network(&json!({})).add(&Attach::new(&scene.pod)).expect("ADD");
        scene.del();
        let heard = || scene.server.count(|heard| heard.kind == RELEASE);
        scene.stage.wait("the server hears it", || heard() == round);
    }
}

/// RFC 2131, section 4.4.1: whoever knew the address as somebody else's knows better at once. lan0 learns
/// of nobody but those who announce themselves.
#[test]
fn neighbours_are_told_who_has_the_address() {
    ours_alone!();
    let scene = Scene::new(Rules::default());
    scene.stage.node.sysctl("net/ipv4/conf/lan0/arp_accept", "1");
    scene.stage.node.cmd("ip neigh add 10.77.0.50 lladdr 02:00:00:00:00:01 dev lan0 nud stale");
    scene.stage.network(&json!({})).add(&Attach::new(&scene.pod)).expect("ADD");
    let known = scene.stage.node.cmd("ip neigh show 10.77.0.50 dev lan0");
    assert!(known.contains(&format!("lladdr {} ", scene.pod.mac("eth0"))), "{known}");
    scene.del();
}

#[test]
fn a_silent_server_is_not_waited_for_for_ever() {
    ours_alone!();
    let scene = Scene::new(Rules { discover: Say::Nothing, ..Rules::default() });
    scene.stage.stop("daemon", Signal::SIGTERM);
    scene.stage.start_daemon(&["-timeout=1500ms", "--resendtimeout", "5s"]);
    let network = scene.stage.network(&json!({}));
    let start = Instant::now();
    let failure = network.add(&Attach::new(&scene.pod)).expect_err("ADD");
    assert_eq!(
        failure.error.msg,
        "error calling DHCP.Allocate: no more tries: no DHCP server answered on eth0"
    );
    assert!(start.elapsed() < within(Duration::from_secs(20)), "{:?}", start.elapsed());
    // A packet may be lost: it was sent more than once in one try.
    assert!(scene.server.count(|heard| heard.kind == DISCOVER) >= 2);
    assert!(!scene.pod.has_link("eth0"));
    scene.del();
}

/// A server that refuses what it has offered; the next try is better.
#[test]
fn a_refusal_is_tried_again() {
    ours_alone!();
    let scene = Scene::new(Rules { select: Say::No, ..Rules::default() });
    let network = scene.stage.network(&json!({}));
    let attach = Attach::new(&scene.pod);
    std::thread::scope(|scope| {
        let add = scope.spawn(|| network.add(&attach).expect("ADD"));
        scene.stage.wait("it is refused", || scene.server.count(Heard::selects) >= 1);
        scene.server.change(|rules| rules.select = Say::Yes);
        assert_eq!(address(&add.join().expect("no panic")), "10.77.0.50");
    });
    scene.del();
}

/// The runtime gives up: what is being asked for is not wanted any more.
#[test]
fn del_ends_an_add_that_waits() {
    ours_alone!();
    let scene = Scene::new(Rules { discover: Say::Nothing, ..Rules::default() });
    let network = scene.stage.network(&json!({}));
    let attach = Attach::new(&scene.pod);
    let config = network.configs(Some(&attach)).remove(0);
    let alone = json!({"cniVersion": "1.1.0", "name": "lan", "type": "dhcp", "ipam": {"type": "dhcp"}});
    let call = |verb: &str| scene.stage.node.plugin("dhcp").command(verb).for_pod(&scene.pod).config(&alone);
    let running = network.prepare("ADD", &config, Some(&attach)).spawn();
    scene.stage.wait("the server is asked", || scene.server.count(|heard| heard.kind == DISCOVER) >= 1);
    let twice = call("ADD").run().error();
    assert_eq!(twice.code, 11, "{twice:?}");
    assert_eq!(twice.msg, "error calling DHCP.Allocate: another call requests a lease for pod/lan/eth0");
    let start = Instant::now();
    call("DEL").run().ok();
    assert!(start.elapsed() < within(Duration::from_secs(10)), "{:?}", start.elapsed());
    assert_eq!(running.wait().error().msg, "error calling DHCP.Allocate: stopped");
    scene.del();
}

/// Offers that no container can use, each for another reason, and what names it.
fn lies() -> Vec<(Lie, &'static str)> {
    let address = |address| Lie { address, ..Lie::default() };
    let options = |options: &[u8]| Lie { options: options.to_vec(), ..Lie::default() };
    vec![
        (address([127, 0, 0, 1]), "no container can have address 127.0.0.1/24"),
        (address([224, 1, 1, 1]), "no container can have address 224.1.1.1/24"),
        (address([255, 255, 255, 255]), "no container can have address 255.255.255.255/24"),
        (address([10, 77, 0, 0]), "no container can have address 10.77.0.0/24"),
        (address([10, 77, 0, 255]), "no container can have address 10.77.0.255/24"),
        (Lie { mask: [0; 4], ..Lie::default() }, "no container can have address 10.77.0.66/0"),
        (Lie { mask: [255, 0, 255, 0], ..Lie::default() }, "255.0.255.0"),
        (options(&[3, 4, 127, 0, 0, 1]), "no router can have address 127.0.0.1"),
        (options(&[121, 8, 24, 10, 9, 9, 224, 0, 0, 1]), "no router can have address 224.0.0.1"),
    ]
}

/// The other server is quicker, and offers what cannot be: the lease is that of the better offer.
#[test]
fn offers_that_no_container_can_use_are_passed_over() {
    ours_alone!();
    let lies = lies().into_iter().map(|(lie, _)| lie).collect();
    let scene = Scene::added(Rules { lies, ..Rules::default() });
    assert!(scene.pod.cmd("ip -br address show eth0").contains("10.77.0.50/24"));
    let selected = scene.server.heard().into_iter().find(Heard::selects).expect("a choice");
    assert_eq!(
        (&selected.options[&54][..], &selected.options[&50][..]),
        (&[10, 77, 0, 1][..], &[10, 77, 0, 50][..])
    );
    scene.del();
}

#[test]
fn without_a_usable_offer_the_error_names_the_reason() {
    ours_alone!();
    let scene = Scene::new(Rules { discover: Say::Nothing, ..Rules::default() });
    scene.stage.stop("daemon", Signal::SIGTERM);
    scene.stage.start_daemon(&["-timeout=2s", "--resendtimeout", "2100ms"]);
    let network = scene.stage.network(&json!({}));
    for (lie, reason) in lies().into_iter().step_by(3) {
        scene.server.change(|rules| rules.lies = vec![lie]);
        let start = Instant::now();
        let failure = network.add(&Attach::new(&scene.pod)).expect_err("ADD");
        let text = "error calling DHCP.Allocate: no more tries: no DHCP server offers a usable lease: ";
        assert!(failure.error.msg.starts_with(text) && failure.error.msg.contains(reason), "{failure}");
        assert!(start.elapsed() < within(Duration::from_secs(10)), "{:?}", start.elapsed());
        assert!(!scene.pod.has_link("eth0"));
    }
    assert_eq!(scene.server.count(Heard::selects), 0, "nothing is taken");
    assert_eq!(scene.stage.leases(), Vec::<String>::new());
}

/// RFC 2131, section 4.4.5: without an acknowledgment that can be used the lease goes on to its end, and no further.
#[test]
fn a_renewal_with_a_mask_that_cannot_be_is_none() {
    ours_alone!();
    let scene = Scene::added(Rules { times: [1, 3, 6], ..Rules::default() });
    let start = Instant::now();
    scene.server.change(|rules| rules.mask = Some([0, 0, 0, 0].into()));
    scene.stage.wait("it is asked for again", || scene.extensions(true) >= 1);
    assert!(is_up(&scene.pod));
    assert!(scene.pod.cmd("ip -br address show eth0").contains("10.77.0.50/24"));
    scene.stage.wait("the link goes off", || !is_up(&scene.pod));
    assert!(start.elapsed() >= Duration::from_secs(4), "too early: {:?}", start.elapsed());
    scene.stage.wait("the daemon forgets it", || scene.stage.leases().is_empty());
    scene.del();
}

/// An acknowledgment of another address than the container's is another's.
#[test]
fn a_renewal_of_an_address_that_cannot_be_is_none() {
    ours_alone!();
    let scene = Scene::added(Rules { times: [1, 3, 6], ..Rules::default() });
    scene.server.change(|rules| rules.address = [127, 0, 0, 1].into());
    scene.stage.wait("the link goes off", || !is_up(&scene.pod));
    assert!(!scene.pod.cmd("ip -br address show").contains("127.0.0.1"));
    assert_eq!(scene.server.count(|heard| heard.from.is_loopback()), 0);
    scene.del();
}
