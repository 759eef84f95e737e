// SPDX-License-Identifier: GPL-3.0-or-later

//! Mutated Nodes: nonsense in any field harms no other Node, no route of another program is touched, and nothing panics.

use std::cell::Cell;
use std::io::Write as _;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use cni_kernel::route::{LOCAL_TABLE, MAIN_TABLE, Route};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{RngAlgorithm, TestCaseResult, TestRng, TestRunner};

use super::super::routes::{self, Change as RouteChange, METRIC, PROTOCOL, plan};
use super::*;

/// The variable with the number of mutated Nodes.
const CASES: &str = "SLIPWAY_MUTATED_NODES";
/// The variable with the seed; the time of day if it is not set.
const SEED: &str = "SLIPWAY_SEED";
/// The number of Nodes for which starting another thread pays off, and after which a long run reports its progress.
const SHARE: u32 = 10_000;

/// A change of a JSON text or value. Numbers choose the place, modulo what there is.
#[derive(Debug, Clone)]
enum Change {
    /// Replaces a value.
    Value(usize, Value),
    /// Removes a value of an object or a list.
    Remove(usize),
    /// Copies a value to another place.
    Copy(usize, usize),
    /// Replaces a byte of the text.
    Byte(usize, u8),
    /// Repeats a piece of the text at another place.
    Repeat(usize, usize, usize),
}

/// Names of other Nodes, and others that are unfit for file names or for a terminal.
const NAMES: [&str; 8] = [OWN, "good", "far", "a", "..", "../../etc/passwd", "\u{1b}[2J", "\u{202e}node"];

/// Points in time.
const TIMES: [&str; 6] = [
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:60Z",
    "-262144-01-01T00:00:00Z",
    "2026-13-41T25:61:61Z",
    "2026-01-01T00:00:00.9999999999999+99:99",
    "2026-01-01",
];

fn changes() -> impl Strategy<Value = Change> {
    let place = any::<usize>;
    let value = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[0-9a-f.:/]{0,24}".prop_map(Value::from),
        (0_usize..300).prop_map(|length| "\n".repeat(length).into()),
        (250_usize..260).prop_map(|length| "9".repeat(length).into()),
        Just(json!([])),
        Just(json!({})),
        Just(json!([[[{"a": null}]]])),
        Just(json!(vec!["10.244.1.0/24"; 40])),
        Just(json!(vec![json!({"type": "InternalIP", "address": "192.168.50.11"}); 40])),
        Just(json!("0.0.0.0/0")),
        Just(json!("10.244.1.0/24")),
        Just(json!("192.168.50.11")),
        Just(json!("192.168.50.10")),
        select(vec![json!(u64::MAX), json!(i64::MIN), json!(f64::MAX), json!(-0.0)]),
        select(vec![253, 254, 70_000]).prop_map(|length| "a".repeat(length).into()),
        select(NAMES.to_vec()).prop_map(Value::from),
        select(TIMES.to_vec()).prop_map(Value::from),
    ];
    prop_oneof![
        6 => (place(), value).prop_map(|(at, value)| Change::Value(at, value)),
        1 => place().prop_map(Change::Remove),
        2 => (place(), place()).prop_map(|(from, to)| Change::Copy(from, to)),
        1 => (place(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        1 => (place(), place(), 0_usize..40).prop_map(|(from, to, length)| Change::Repeat(from, to, length)),
    ]
}

/// The paths of all values (RFC 6901), but for the whole.
fn paths(value: &Value) -> Vec<String> {
    fn collect(value: &Value, path: &str, paths: &mut Vec<String>) {
        let children: Vec<(String, &Value)> = match value {
            Value::Object(map) => {
                map.iter().map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value)).collect()
            }
            Value::Array(list) => {
                list.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect()
            }
            _ => return,
        };
        for (key, child) in children {
            let path = format!("{path}/{key}");
            collect(child, &path, paths);
            paths.push(path);
        }
    }
    let mut all = Vec::new();
    collect(value, "", &mut all);
    all
}

/// The JSON text of a Node after the changes. Changes of values come before those of the text.
fn mutated(changes: &[Change]) -> Vec<u8> {
    let mut value =
        object("mutated", 50, &["10.244.2.0/24", "fd44:0:0:2::/64"], &["192.168.50.12", "fd60::2"]);
    let key = super::super::key::text(&PublicKey([9; 32]));
    value["metadata"]["annotations"] = json!({
        VXLAN_MAC: "02:00:00:00:00:0c", VXLAN_PORT: "4789", WIREGUARD_KEY: key, WIREGUARD_PORT: "51820",
    });
    value["metadata"]["deletionTimestamp"] = json!("2026-02-01T00:00:00Z");
    value["spec"]["unschedulable"] = json!(true);
    value["spec"]["taints"] = json!([{"key": "a", "effect": "NoSchedule"}]);
    value["status"]["conditions"] = json!([{"type": "PreparedDevice", "status": "True"}]);
    for change in changes {
        let paths = paths(&value);
        let path = |at: &usize| paths.get(at % paths.len().max(1)).map_or("", String::as_str);
        match change {
            Change::Value(at, new) => *value.pointer_mut(path(at)).unwrap() = new.clone(),
            Change::Copy(from, to) => {
                let copy = value.pointer(path(from)).unwrap().clone();
                *value.pointer_mut(path(to)).unwrap() = copy;
            }
            Change::Remove(at) => {
                let (parent, key) = path(at).rsplit_once('/').unwrap_or_default();
                match value.pointer_mut(parent) {
                    Some(Value::Object(map)) => drop(map.remove(&key.replace("~1", "/").replace("~0", "~"))),
                    Some(Value::Array(list)) => drop(list.pop()),
                    _ => {}
                }
            }
            Change::Byte(..) | Change::Repeat(..) => {}
        }
    }
    let mut text = value.to_string().into_bytes();
    for change in changes {
        let length = text.len();
        match change {
            Change::Byte(at, byte) => text[at % length] = *byte,
            Change::Repeat(from, to, count) => {
                let from = from % length;
                let piece = text[from..(from + count).min(length)].to_vec();
                let to = to % length;
                text.splice(to..to, piece);
            }
            _ => {}
        }
    }
    text
}

/// Destinations of routes: those of Nodes, and others.
const DESTINATIONS: [&str; 10] = [
    "10.244.1.0/24",
    "10.244.2.0/24",
    "10.244.3.0/24",
    "10.244.9.0/24",
    "192.168.50.0/24",
    "0.0.0.0/0",
    "fd44:0:0:1::/64",
    "fd44:0:0:2::/64",
    "fd44:0:0:9::/64",
    "::/0",
];
/// Origins: `boot`, `static`, `bird`, `dhcp`, `bgp` of FRR, others; and ours, as often as all of them.
const PROTOCOLS: [u8; 12] =
    [0, 2, 4, 12, 16, 186, PROTOCOL, PROTOCOL, PROTOCOL, PROTOCOL, PROTOCOL, PROTOCOL];
const METRICS: [u32; 6] = [0, 1, METRIC, METRIC, 1024, u32::MAX];
const TABLES: [u32; 4] = [MAIN_TABLE, MAIN_TABLE, LOCAL_TABLE, 100];
const GATEWAYS: [&str; 4] = ["192.168.50.11", "192.168.50.12", "192.168.50.99", "fd50::11"];

/// Routes that the kernel may have, of all origins.
fn kernels() -> impl Strategy<Value = Vec<Route>> {
    vec(any::<[u8; 6]>(), 0..10).prop_map(|all| {
        let mut routes: Vec<Route> = Vec::new();
        for [dst, protocol, metric, table, gateway, link] in all {
            let choose = |list: &[&'static str], at: u8| list[usize::from(at) % list.len()];
            let route = Route {
                protocol: PROTOCOLS[usize::from(protocol) % PROTOCOLS.len()],
                metric: METRICS[usize::from(metric) % METRICS.len()],
                table: TABLES[usize::from(table) % TABLES.len()],
                gateway: Some(ip(choose(&GATEWAYS, gateway))),
                link: Some(u32::from(link % 4)),
                ..Route::to(net(choose(&DESTINATIONS, dst)))
            };
            // IPv6 routes of one subnet and metric are next hops of one, with an origin each.
            let excludes = |other: &Route| {
                has_key_of(other, &route) && (route.dst.addr().is_ipv4() || is_own(other) == is_own(&route))
            };
            if !routes.iter().any(excludes) {
                routes.push(route);
            }
        }
        routes
    })
}

fn is_own(route: &Route) -> bool {
    (route.table, route.protocol) == (MAIN_TABLE, PROTOCOL)
}

/// True if two routes have the same key in the kernel.
fn has_key_of(one: &Route, other: &Route) -> bool {
    (one.table, one.dst, one.metric) == (other.table, other.dst, other.metric)
}

/// The routes after the changes, as the kernel makes them: it refuses to add one with the key of another, replaces one
/// whatever its origin, and deletes one of the origin that is given.
fn changed(shown: &[Route], changes: &[RouteChange]) -> Vec<Route> {
    let mut routes = shown.to_vec();
    for change in changes {
        match change {
            RouteChange::Add(new) => {
                if !routes.iter().any(|one| has_key_of(one, new)) {
                    routes.push(new.clone());
                }
            }
            RouteChange::Replace(new) => match routes.iter_mut().find(|one| has_key_of(one, new)) {
                Some(one) => *one = new.clone(),
                None => routes.push(new.clone()),
            },
            RouteChange::Delete(old) => {
                routes.retain(|one| !has_key_of(one, old) || one.protocol != old.protocol);
            }
        }
    }
    routes
}

/// Plans the routes of a desired state: none of another program changes, ours become the wanted ones, and a second
/// comparison has nothing to do.
fn assert_foreign_routes_stay(desired: &Desired, shown: &[Route], keep_others: bool) -> TestCaseResult {
    let mut wanted = routes::wanted(desired, Some(7), Some(8));
    wanted.extend(desired.refused.iter().map(|prefix| routes::refusal(*prefix)));
    let changes = plan(&wanted, shown, keep_others).changes;
    let after = changed(shown, &changes);
    let foreign =
        |routes: &[Route]| -> Vec<Route> { routes.iter().filter(|route| !is_own(route)).cloned().collect() };
    prop_assert_eq!(foreign(shown), foreign(&after), "{:?}", changes);
    let again = plan(&wanted, &after, keep_others).changes;
    prop_assert!(again.is_empty(), "{:?} after {:?}", again, changes);
    let is_wanted = |route: &Route| wanted.iter().any(|wanted| wanted.dst == route.dst);
    prop_assert!(keep_others || after.iter().filter(|route| is_own(route)).all(is_wanted), "{:?}", after);
    Ok(())
}

/// The Nodes that a mutated Node must not harm, with their routes in each mode.
struct Others {
    nodes: Nodes,
    routes: [Vec<String>; 4],
}

/// The desired states with each use of VXLAN, and with WireGuard.
fn in_modes(nodes: &Nodes) -> [Desired; 4] {
    let modes = [TunnelMode::Auto, TunnelMode::Always, TunnelMode::Never].map(settings);
    let [auto, always, never] = modes;
    [auto, always, never, encrypting()].map(|settings| desired(nodes, &name(OWN), &here(), &settings))
}

impl Others {
    fn new() -> Self {
        let nodes = all([
            with_key(
                node("good", 1, &["10.244.1.0/24", "fd44:0:0:1::/64"], &["192.168.50.11", "fd50::11"]),
                2,
            ),
            with_key(announcing(node("far", 2, &["10.244.3.0/24"], &["192.168.60.3"]), None), 3),
            own_node(),
        ]);
        let routes = in_modes(&nodes).map(|desired| routes(&desired));
        assert_eq!(routes.each_ref().map(Vec::len), [3, 1, 2, 3]);
        Self { nodes, routes }
    }

    fn check(&self, changes: &[Change], kernel: &[Route], keep_others: bool) -> TestCaseResult {
        let Ok(object) = serde_json::from_slice::<NodeObject>(&mutated(changes)) else { return Ok(()) };
        let Ok(mut node) = Node::read(&object) else { return Ok(()) };
        let with = |node: Node| {
            let mut nodes = self.nodes.clone();
            nodes.insert(node.name.clone(), Arc::new(node));
            nodes
        };
        // A Node cannot give itself another Node's name or age, so here the desired state only has to be sound.
        let nodes = with(node.clone());
        let any = desired(&nodes, &name(OWN), &here(), &settings(TunnelMode::Auto));
        assert_sound(&nodes, &here(), &any);
        assert_foreign_routes_stay(&any, kernel, keep_others)?;
        if self.nodes.contains_key(&node.name) {
            return Ok(());
        }
        node.created = Some(1_767_225_600 + 50);
        let nodes = with(node.clone());
        for (desired, before) in in_modes(&nodes).iter().zip(&self.routes) {
            assert_sound(&nodes, &here(), desired);
            prop_assert_eq!(&routes_without(desired, &node.name), before);
            assert_foreign_routes_stay(desired, kernel, keep_others)?;
        }
        Ok(())
    }

    /// Checks so many mutated Nodes, which the seed determines.
    fn run(&self, seed: u64, cases: u32) {
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let inputs = (vec(changes(), 1..6), kernels(), any::<bool>());
        let done = Cell::new(0_u32);
        let outcome = TestRunner::new_with_rng(config, rng).run(&inputs, |(changes, kernel, keep)| {
            done.set(done.get() + 1);
            if done.get().is_multiple_of(SHARE) {
                // The macros' output is captured: a run that prints nothing for minutes counts as stuck.
                let _ = writeln!(std::io::stderr(), "{} of {cases} mutated Nodes", done.get());
            }
            self.check(&changes, &kernel, keep)
        });
        if let Err(error) = outcome {
            panic!("{SEED}={seed} {CASES}={cases}: {error}");
        }
    }
}

#[test]
fn mutated_nodes_harm_no_other() {
    let cases: u32 = std::env::var(CASES).map_or(5_000, |text| text.parse().unwrap());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seed: u64 = std::env::var(SEED).map_or(now, |text| text.parse().unwrap());
    println!("{SEED}={seed} {CASES}={cases}");
    let others = Others::new();
    let processors =
        thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1));
    let threads = processors.min(cases / SHARE).max(1);
    thread::scope(|scope| {
        for number in 0..threads {
            let others = &others;
            let share = cases / threads + u32::from(number < cases % threads);
            scope.spawn(move || others.run(seed.wrapping_add(number.into()), share));
        }
    });
}
