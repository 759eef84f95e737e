// SPDX-License-Identifier: GPL-2.0-or-later

//! The power fails at any moment while containers come and go.
//!
//! The node's /var/lib/cni is a file system on a [`RecordedDisk`]. Afterwards the disk is set back to each flush of its
//! cache, and to moments between two flushes with a random part of what was not flushed, and mounted on a node that has
//! just booted. What a call had reported as done must be there, what it had deleted must be gone, and an interrupted call
//! must block no address.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use slipway_tests::{
    Node, RECORDED_DISKS, Random, RecordedDisk, address_of, quoted, sample, skip, slipway, slipway_only,
    tally,
};

const DISK: &str = "/var/lib/cni";
const FLANNEL: &str = "flat";
/// The network of a container whose name begins with f is flannel's.
const STEPS: [(Verb, &str); 11] = [
    (Verb::Add, "a"),
    (Verb::Add, "f1"),
    (Verb::Add, "b"),
    (Verb::Del, "a"),
    (Verb::Add, "c"),
    (Verb::Del, "f1"),
    (Verb::Add, "a"),
    (Verb::Del, "b"),
    (Verb::Add, "f2"),
    (Verb::Add, "d"),
    (Verb::Del, "c"),
];
/// The directory of manual pages and completions.
const SHARE: &str = "/run/share";
/// The containers' addresses in the other network: a /29 without the network's, the gateway's and the last one.
const ROOM: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Add,
    Del,
}

/// A call, with the events of the disk at its begin and its end.
#[derive(Debug)]
struct Step {
    verb: Verb,
    pod: &'static str,
    begun: usize,
    done: usize,
    /// The address that the ADD returned.
    address: Option<String>,
}

fn network_of(pod: &str) -> &'static str {
    if pod.starts_with('f') { FLANNEL } else { "pods" }
}

/// Writes what the node needs beside its disk, and makes the folder for that.
fn configure(node: &Node) {
    node.cmd(&format!("mkdir -p {DISK}"));
    let pods = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{
        "type": "bridge", "bridge": "pods0", "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.9.0.0/29"},
    }]});
    let flat = json!({"cniVersion": "1.0.0", "name": FLANNEL, "plugins": [{"type": "flannel"}]});
    node.write("/run/net.d/10-pods.conflist", pods.to_string());
    node.write("/run/net.d/20-flat.conflist", flat.to_string());
    node.write(
        "/run/flannel/subnet.env",
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n",
    );
}

/// The call of a runtime that stores its attachments durably. Returns the address of an ADD.
fn call(node: &Node, verb: Verb, pod: &str) -> Result<Option<String>, String> {
    let word = if verb == Verb::Add { "add" } else { "del" };
    let output = node.try_cmd(&format!(
        "env NETCONFPATH=/run/net.d CNI_PATH={} {} cnitool {word} {} /run/netns/{pod}",
        quoted(node.bin()),
        quoted(slipway()),
        network_of(pod)
    ));
    if output.code != Some(0) {
        return Err(format!("{word} {pod}: {output}"));
    }
    if verb == Verb::Del {
        return Ok(None);
    }
    let result: Value = serde_json::from_str(&output.stdout).map_err(|error| format!("{error}: {output}"))?;
    Ok(Some(address_of(&result, 0).to_string()))
}

/// The names of a folder, except of files that only Slipway uses: locks, and temporary files that it removes later.
fn visible(node: &Node, folder: &str) -> Vec<String> {
    let mut names = node.list(&format!("{DISK}/{folder}"));
    names.retain(|name| !name.starts_with('.'));
    names
}

/// The addresses with a reservation, and its first line.
fn reservations(node: &Node, network: &str) -> BTreeMap<String, String> {
    let folder = format!("{DISK}/networks/{network}");
    let names = node.reserved(network);
    let owner = |name: &String| node.read(&format!("{folder}/{name}")).unwrap_or_default();
    names
        .iter()
        .map(|name| (name.clone(), owner(name).lines().next().unwrap_or_default().to_owned()))
        .collect()
}

/// What is wrong on a node that booted with this content of the disk.
fn faults(image: &[u8], cut: usize, steps: &[Step]) -> Vec<String> {
    let node = Node::new();
    configure(&node);
    node.write("/run/image", image);
    node.write("/run/boot_id", "01234567-89ab-4cde-8f01-23456789abcd\n");
    node.cmd("mount --bind /run/boot_id /proc/sys/kernel/random/boot_id");
    node.cmd(&format!("mount -t ext4 -o loop /run/image {DISK}"));
    let found = faults_on(&node, cut, steps);
    node.cmd(&format!("umount {DISK}"));
    found
}

fn faults_on(node: &Node, cut: usize, steps: &[Step]) -> Vec<String> {
    let mut found = Vec::new();
    let mut attached: BTreeMap<&str, &String> = BTreeMap::new();
    let known: BTreeSet<&str> = steps.iter().filter(|step| step.begun < cut).map(|step| step.pod).collect();
    let interrupted = steps.iter().find(|step| step.begun < cut && cut < step.done).map(|step| step.pod);
    for step in steps.iter().take_while(|step| step.done <= cut) {
        match (step.verb, &step.address) {
            (Verb::Add, Some(address)) => attached.insert(step.pod, address),
            _ => attached.remove(step.pod),
        };
    }
    attached.retain(|pod, _| Some(*pod) != interrupted);
    let cached = visible(node, "results");
    let delegations = visible(node, "flannel");
    for (pod, address) in &attached {
        let network = network_of(pod);
        let owner = reservations(node, network).remove(*address).unwrap_or_default();
        // The runtime stores the result under the container's ID.
        let file = cached.iter().find(|name| name.starts_with(&format!("{network}-{owner}-")));
        let result = file.and_then(|name| node.read(&format!("{DISK}/results/{name}"))).unwrap_or_default();
        if owner.is_empty() || !result.contains(address.as_str()) {
            found.push(format!(
                "{pod} with {address} was lost: reserved for {owner:?}, stored result {result:?}"
            ));
        }
        if network == FLANNEL && !delegations.contains(&owner) {
            found.push(format!("the delegated configuration of {pod} was lost: {delegations:?}"));
        }
    }
    // A call that did not end may have left its files, and another container's must not be there.
    let spare = usize::from(interrupted.is_some());
    if cached.len() > attached.len() + spare || delegations.len() > attached.len() + spare {
        found.push(format!("of deleted containers: {cached:?} {delegations:?}, attached {attached:?}"));
    }
    // The runtime starts new containers before it has removed the former ones.
    let mut taken: BTreeSet<String> = attached.values().map(|address| (*address).clone()).collect();
    let mut add = |name: &str| {
        node.pod(name);
        match call(node, Verb::Add, name) {
            Ok(Some(address)) if taken.insert(address.clone()) => None,
            Ok(address) => Some(format!("{name} got {address:?}, which another container has")),
            Err(error) => Some(error),
        }
    };
    found.extend(add("new"));
    for pod in known {
        found.extend(call(node, Verb::Del, pod).err());
    }
    found.extend(
        (1..ROOM).filter_map(|number| add(&format!("next{number}"))).filter(|fault| !fault.contains("got")),
    );
    let reserved = reservations(node, "pods");
    if reserved.len() != ROOM || reserved.values().collect::<BTreeSet<_>>().len() != ROOM {
        found.push(format!("addresses are blocked: {reserved:?}"));
    }
    let left = (reservations(node, FLANNEL), visible(node, "flannel"));
    if !left.0.is_empty() || !left.1.is_empty() {
        found.push(format!("left of flannel's network: {left:?}"));
    }
    found
}

/// After a power cut at any moment, no attachment that a call reported is lost, no deleted one is back, no address is given
/// out twice or blocked, and DEL works. As the control, a file that nobody flushes is lost.
#[test]
fn a_power_cut_loses_and_blocks_nothing() {
    slipway_only!();
    let node = Node::new();
    configure(&node);
    let Some(disk) = RecordedDisk::new(&node) else { skip!(RECORDED_DISKS) };
    node.cmd(&format!("mount -t ext4 {} {DISK}", disk.device()));
    for pod in STEPS.map(|(_, pod)| pod).iter().collect::<BTreeSet<_>>() {
        node.pod(pod);
    }
    node.write(&format!("{DISK}/careless"), "not flushed");
    let careless = disk.position();
    let steps = STEPS.map(|(verb, pod)| {
        let begun = disk.position();
        let address = call(&node, verb, pod).unwrap_or_else(|error| panic!("{error}"));
        Step { verb, pod, begun, done: disk.position(), address }
    });
    let end = disk.position();
    let flushes = disk.flushes(end);
    assert!(flushes.len() > 2 * STEPS.len(), "{flushes:?}");
    let mut random = Random::seeded();
    let mut cuts: Vec<usize> = flushes.clone();
    cuts.extend(flushes.windows(2).filter(|pair| pair[1] - pair[0] > 2).map(|pair| {
        pair[0] + 1 + usize::try_from(random.below((pair[1] - pair[0] - 1) as u64)).expect("an index")
    }));
    cuts.push(end);
    cuts.sort_unstable();
    let mut found = Vec::new();
    let tried = sample(cuts);
    for cut in &tried {
        let image = disk.after_power_cut(*cut, &mut random);
        let faults = faults(&image, *cut, &steps);
        found.extend(faults.into_iter().map(|fault| format!("cut after event {cut} of {end}: {fault}")));
    }
    tally("power cuts", tried.len() as u64);
    assert!(found.is_empty(), "{}\n{steps:#?}", found.join("\n"));
    let image = disk.after_power_cut(careless, &mut random);
    assert!(!image.windows(11).any(|bytes| bytes == b"not flushed"), "{careless} of {end}");
}

/// After a power cut, each manual page and each script of an installation is complete or absent. The next installation
/// would take an empty file for another program's, and refuse to replace it.
#[test]
fn a_power_cut_after_an_installation_does_not_stop_the_next_one() {
    slipway_only!();
    let node = Node::new();
    let Some(disk) = RecordedDisk::new(&node) else { skip!(RECORDED_DISKS) };
    let install = format!("{} install --to /run/cni-bin --share-dir {SHARE}", quoted(slipway()));
    node.cmd(&format!("mkdir -p {SHARE}"));
    node.cmd(&format!("mount -t ext4 {} {SHARE}", disk.device()));
    node.cmd(&install);
    // If another program flushes a file of its own, ext4 stores the names of all files, but not their content.
    node.cmd(&format!("dd if=/dev/zero of={SHARE}/other bs=1 count=1 conv=fsync"));
    let image = disk.after_power_cut(disk.position(), &mut Random::seeded());
    let booted = Node::new();
    booted.write("/run/image", image);
    booted.cmd(&format!("mkdir -p {SHARE}"));
    booted.cmd(&format!("mount -t ext4 -o loop /run/image {SHARE}"));
    let empty = booted.cmd(&format!("find {SHARE} -type f -size 0"));
    let again = booted.try_cmd(&install);
    booted.cmd(&format!("umount {SHARE}"));
    assert_eq!((empty.as_str(), again.code), ("", Some(0)), "{again}");
}
