// SPDX-License-Identifier: GPL-2.0-or-later

//! Mutated configurations and environments. A plugin must answer each either with an error of the specification or with
//! a success that DEL undoes. It must never crash, hang or leave anything behind.

use serde_json::{Map, Value, json};

use crate::node::{Node, Pod};
use crate::plugin::Output;
use crate::random::Random;
use crate::sample::{sample_by, stride};
use crate::snapshot::Snapshot;
use crate::tally::tally;

fn nasty_values() -> Vec<Value> {
    let mut deep = json!(1);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(-1),
        json!(1),
        json!(65_536),
        json!(4_294_967_296_u64),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1.5),
        json!(1e300),
        json!(""),
        json!(" "),
        json!(".."),
        json!("../../../tmp/x"),
        json!("/"),
        json!("a\nb"),
        json!("a\"b; flush ruleset"),
        json!("a\u{0}b"),
        json!("\u{202e}é"),
        json!("x".repeat(5000)),
        json!("10.1.2.3"),
        json!("10.1.2.0/24"),
        json!("0.0.0.0/0"),
        json!("255.255.255.255/32"),
        json!("::/0"),
        json!("fd00::/127"),
        json!("::ffff:10.0.0.0/104"),
        json!("lo"),
        json!("eth0"),
        json!("br0"),
        json!("02:00:00:00:00:01"),
        json!("ff:ff:ff:ff:ff:ff"),
        json!([]),
        json!([null]),
        json!([[]]),
        json!({}),
        json!({ "": {} }),
        json!([1, "a", {}, []]),
        deep,
    ]
}

/// Collects every place in a value as a JSON pointer.
fn places(value: &Value, at: &str, into: &mut Vec<String>) {
    let escape = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                let place = format!("{at}/{}", escape(key));
                into.push(place.clone());
                places(inner, &place, into);
            }
        }
        Value::Array(list) => {
            for (index, inner) in list.iter().enumerate() {
                let place = format!("{at}/{index}");
                into.push(place.clone());
                places(inner, &place, into);
            }
        }
        _ => {}
    }
}

fn mutate(config: &mut Value, random: &mut Random, nasty: &[Value]) {
    let mut all = Vec::new();
    places(config, "", &mut all);
    // Name, version and type are mutated rarely, because the few checks on them are soon exercised.
    let kept = |place: &&String| ["/name", "/cniVersion", "/type", "/ipam/type"].contains(&place.as_str());
    all.retain(|place| !kept(&place) || random.below(20) == 0);
    if all.is_empty() {
        return;
    }
    let place = random.pick(&all).clone();
    match random.below(6) {
        0 => {
            let (parent, key) = place.rsplit_once('/').expect("a pointer");
            match config.pointer_mut(parent) {
                Some(Value::Object(map)) => drop(map.remove(key)),
                Some(Value::Array(list)) => drop(list.pop()),
                _ => {}
            }
        }
        1 => {
            // Adds the same key in another spelling.
            let (parent, key) = place.rsplit_once('/').expect("a pointer");
            if let Some(Value::Object(map)) = config.pointer_mut(parent) {
                map.insert(key.to_uppercase(), random.pick(nasty).clone());
            }
        }
        2 => {
            let from = random.pick(&all).clone();
            if let (Some(value), Some(to)) = (config.pointer(&from).cloned(), config.pointer_mut(&place)) {
                *to = value;
            }
        }
        _ => {
            if let Some(value) = config.pointer_mut(&place) {
                *value = random.pick(nasty).clone();
            }
        }
    }
}

fn bytes_of(config: &Value, random: &mut Random) -> Vec<u8> {
    let mut bytes = config.to_string().into_bytes();
    if random.below(10) == 0 {
        let at = usize::try_from(random.below(bytes.len() as u64)).expect("an index");
        match random.below(3) {
            0 => bytes[at] = random.next().to_le_bytes()[0],
            1 => bytes.truncate(at),
            _ => drop(bytes.splice(at..at, b"\xff{[,\"".iter().copied())),
        }
    }
    bytes
}

/// Now and then returns an environment variable with a wrong value.
fn spoil(random: &mut Random) -> Option<(&'static str, &'static str)> {
    const KEYS: &[&str] = &["CNI_ARGS", "CNI_NETNS", "CNI_IFNAME", "CNI_CONTAINERID"];
    const TEXTS: &[&str] = &[
        "",
        "..",
        "/",
        "a b",
        "lo",
        "IP=1;",
        "IgnoreUnknown=1;IP=10.88.0.7",
        "x=y",
        "/proc/self/ns/mnt",
        "/etc/passwd",
        "\u{e9}\n",
    ];
    let spoilt = random.below(8) == 0;
    let pair = (*random.pick(KEYS), *random.pick(TEXTS));
    spoilt.then_some(pair)
}

struct Run<'a> {
    node: &'a Node,
    pod: &'a Pod,
    plugin: &'static str,
    seed: u64,
}

impl Run<'_> {
    fn state(&self) -> Snapshot {
        let derived = ["last_reserved_ip", "networks/.slipway/", "folder ", "/lock"];
        // The bridge, its addresses and its subnets' chains belong to all containers, so they remain. If a mutation removes
        // the name or the whole delegate of flannel, the bridge has the plugin's default name.
        let shared = [" br0 ", "\"br0\"", " cni0 ", "\"cni0\"", "nft chain", "nft rule"];
        let derived: Vec<&str> = derived.into_iter().chain(shared).collect();
        Snapshot::take(self.node, &[self.pod]).without(&derived)
    }

    fn call(&self, verb: &str, bytes: &[u8], spoilt: Option<(&str, &str)>) -> Output {
        let call = self.node.plugin(self.plugin).command(verb).for_pod(self.pod).stdin(bytes);
        match spoilt {
            Some((key, value)) => call.env(key, value).run(),
            None => call.run(),
        }
    }

    #[track_caller]
    fn judge(&self, output: &Output) -> bool {
        let call = format!("SLIPWAY_SEED={}: {}{}", self.seed, output.process.line, output.process);
        assert!(matches!(output.process.code, Some(0 | 1)), "{call}");
        assert!(!output.process.stderr.contains("panicked"), "{call}");
        match output.process.code {
            Some(1) => {
                let failure = output.error();
                assert!(failure.code != 0 && !failure.msg.is_empty(), "{call}");
                assert!(!failure.msg.contains("panic"), "{call}");
                false
            }
            _ => true,
        }
    }
}

/// A call that a plugin must refuse, or whose effect DEL must undo.
struct Input {
    verb: &'static str,
    bytes: Vec<u8>,
    spoilt: Option<(&'static str, &'static str)>,
}

/// The next call, with a mutation of `config`.
fn input(config: &Value, random: &mut Random, nasty: &[Value]) -> Input {
    let mut mutated = config.clone();
    for _ in 0..=random.below(3) {
        mutate(&mut mutated, random, nasty);
    }
    // A bridge outlives its last container, so mutations must not make several.
    if mutated.get("bridge").is_none_or(|name| name.is_null() || name.is_string()) {
        mutated["bridge"] = json!("br0");
    }
    if let Some(ipam) = mutated.get_mut("ipam").and_then(Value::as_object_mut) {
        keep_inside(ipam);
    }
    // The same applies to a bridge that flannel asks for.
    if let Some(delegate) = mutated.get_mut("delegate").and_then(Value::as_object_mut)
        && delegate.get("type") == Some(&json!("bridge"))
    {
        delegate.insert("bridge".to_owned(), json!("br0"));
    }
    let bytes = bytes_of(&mutated, random);
    let verb = *random.pick(&["ADD", "ADD", "ADD", "ADD", "CHECK", "DEL", "GC", "STATUS"]);
    Input { verb, bytes, spoilt: spoil(random) }
}

/// Calls a plugin with mutated configurations: `SLIPWAY_GARBAGE` of them (default 150), or a sample of these. A failure
/// prints a seed, with which `SLIPWAY_SEED` repeats the run. `logs` are files in which the plugin logs its calls.
pub fn feed(plugin: &'static str, config: &Value, node: &Node, pod: &Pod, logs: &[&str]) {
    let number = |key: &str, default: u64| {
        std::env::var(key).ok().map_or(default, |text| text.parse().expect("a number"))
    };
    let seed = number("SLIPWAY_SEED", 1);
    let run = Run { node, pod, plugin, seed };
    // The unchanged configuration comes first, so that bridge, tables and folders exist before the first snapshot.
    let plain = config.to_string();
    for verb in ["ADD", "DEL"] {
        let output = run.node.plugin(plugin).command(verb).for_pod(run.pod).stdin(plain.as_str()).run();
        let _ = output.ok();
    }
    let before = run.state();
    let (mut succeeded, mut refused) = (0, 0);
    let (mut random, nasty) = (Random::new(seed), nasty_values());
    let all = (0..number("SLIPWAY_GARBAGE", 150)).map(|_| input(config, &mut random, &nasty)).enumerate();
    // The calls are short, so the sample is twice as dense as that of other tests.
    let tried = sample_by(all, stride().div_ceil(2));
    let last = tried.len() - 1;
    for (at, (number, Input { verb, bytes, spoilt })) in tried.into_iter().enumerate() {
        tally("mutated inputs", 1);
        let output = run.call(verb, &bytes, spoilt);
        let success = run.judge(&output);
        let counter = if success { &mut succeeded } else { &mut refused };
        *counter += 1;
        if verb == "ADD" && success {
            // As a runtime would, DEL gets the same configuration and environment.
            let del = run.call("DEL", &bytes, spoilt);
            assert!(run.judge(&del), "SLIPWAY_SEED={seed}: DEL: {}{}", del.process.line, del.process);
        }
        if at == last || at % 10 == 9 || (verb == "ADD" && !success && at % 3 == 0) {
            let mut changes = before.changes(&run.state());
            changes.retain(|change| !logs.iter().any(|log| change.contains(&format!("file {log} "))));
            let call =
                format!("SLIPWAY_SEED={seed}, call {number}: {}{}", output.process.line, output.process);
            assert!(
                changes.is_empty(),
                "{}\n{call}\n{}",
                changes.join("\n"),
                String::from_utf8_lossy(&bytes)
            );
        }
    }
    // A sample of a dozen calls may consist of successes only, or of refusals only.
    let is_small = succeeded + refused < 20;
    assert!(is_small || succeeded > 0 && refused > 0, "{succeeded} succeeded, {refused} were refused");
}

/// Drops `dataDir`, so that reservations of mutated configurations stay where the harness looks for them.
fn keep_inside(ipam: &mut Map<String, Value>) {
    if ipam.get("dataDir").is_some_and(Value::is_string) {
        ipam.remove("dataDir");
    }
}
