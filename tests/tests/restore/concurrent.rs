// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway restore` concurrently with ADDs and DELs.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use slipway_tests::{
    Attach, IPTABLES, Proto, addresses_of, at, has_iptables, has_ipv6, needs, quoted, sample, slipway, until,
    within,
};

use crate::{PORT, SERVED, Web, World, count};

/// A container is deleted after its ports were restored and before the command ends. The ports must be withdrawn again.
#[test]
fn a_container_deleted_during_a_restore_keeps_nothing() {
    let world = World::new();
    let network = world.bridge(1);
    let web = Web::published(&world, &network, "web", PORT);
    let path = network.cache_path(&web.attach);
    // The open file makes the kernel keep the namespace, and with it the link, for a while.
    let _netns = world.node.run(|| File::open(web.path()).expect("open the namespace"));
    // The lookup of the container's cache file is delayed.
    let file = path.rsplit('/').next().expect("a name");
    world.node.cmd("nft flush ruleset");
    let report = std::thread::scope(|scope| {
        let restoring = scope.spawn(|| world.restore_held_up(file, within(Duration::from_secs(2))).0);
        for _ in 0..200 {
            if world.node.ruleset().contains("hostports4 {") && world.node.slipway("ports").contains("8080") {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // The remaining steps of a DEL whose portmap call found nothing to delete.
        web.vanish();
        world.node.cmd(&format!("rm {path}"));
        restoring.join().expect("no panic")
    });
    let of_web = report["items"].as_array().unwrap().iter().filter(|thing| thing["container"] == "web");
    assert!(
        of_web.clone().count() > 0 && of_web.clone().all(|thing| thing["state"] != "restored"),
        "{report:#}"
    );
    assert!(
        report.to_string().contains("the container was deleted concurrently: removed again"),
        "{report:#}"
    );
    let left = world.node.ruleset();
    assert!(!left.contains("slipway1"), "{left}");
}

/// As the test before, with iptables, and the DEL removes the container's record after the command has written it. The
/// chains have no record then, which does not make them another container's.
#[test]
fn chains_whose_record_a_del_removed_are_withdrawn() {
    needs!(has_iptables(), IPTABLES);
    let world = World::new();
    let network = world.network(1, "bridge", [json!({}), json!({"backend": "iptables"})]);
    let web = Web::published(&world, &network, "web", PORT);
    let path = network.cache_path(&web.attach);
    let file = path.rsplit('/').next().expect("a name");
    world.node.cmd("nft flush ruleset");
    let dnat = || world.node.cmd("iptables-save -t nat").matches("CNI-DN-").count();
    assert_eq!(dnat(), 0);
    let (report, code) = std::thread::scope(|scope| {
        let restoring = scope.spawn(|| world.restore_held_up(file, within(Duration::from_secs(2))));
        for _ in 0..400 {
            if dnat() > 0 && world.node.slipway("ports").contains("8080") {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(dnat() > 0, "the port was not restored");
        world.node.cmd("nft flush map inet slipway owners");
        web.vanish();
        world.node.cmd(&format!("rm {path}"));
        restoring.join().expect("no panic")
    });
    assert_eq!((code, dnat()), (0, 0), "{report:#}");
}

/// A program of iptables that stops while a file exists, and says so in another file.
const STOPPING: &str = "#!/bin/sh
if [ -e /run/hold ]; then
    : > /run/held
    while [ -e /run/hold ]; do sleep 0.02; done
fi
PATH=${PATH#/run/bin:}
exec \"${0##*/}\" \"$@\"
";

/// A container is deleted after the chains of its ports were restored. While the command removes them again, a
/// container with the same ID is added, whose chains have the same names. The program that removes them is held up
/// until the ADD has either made its chains or waits for the command.
#[test]
fn a_container_added_during_a_withdrawal_keeps_its_chains() {
    needs!(has_iptables(), IPTABLES);
    let world = &World::new();
    for family in ["iptables", "ip6tables"] {
        let program = format!("/run/bin/{family}-nft-restore");
        world.node.write(&program, STOPPING);
        world.node.cmd(&format!("chmod 755 {program}"));
    }
    let network = &world.network(1, "bridge", [json!({}), json!({"backend": "iptables"})]);
    let web = Web::published(world, network, "web", PORT);
    let path = network.cache_path(&web.attach);
    let file = path.rsplit('/').next().expect("a name");
    world.node.cmd("nft flush ruleset");
    let chains = |family: &str| world.node.cmd(&format!("{family}-save -t nat")).matches("CNI-DN-").count();
    assert_eq!(chains("iptables"), 0);
    let pause = within(Duration::from_secs(4));
    let restore = format!(
        "env PATH=/run/bin:{} strace -f -qq -o /dev/null -P {file} -e inject=openat:delay_enter={}:when=2+ {} restore \
         --output json",
        std::env::var("PATH").expect("a PATH"),
        pause.as_micros(),
        quoted(slipway())
    );
    let (report, code, attach) = std::thread::scope(|scope| {
        let restoring = scope.spawn(|| World::told(&world.node.try_cmd(&restore)));
        let last = if has_ipv6() { "ip6tables" } else { "iptables" };
        until(Duration::from_secs(10), "the ports were restored", || chains(last) > 0);
        // The command looks at the chains once more before it reads the cache again.
        std::thread::sleep(pause / 4);
        world.node.write("/run/hold", "");
        // What remains of a DEL whose portmap call found nothing to delete. The bridge's DEL would look for chains as
        // well, so the reservations are removed without it.
        world.node.cmd("rm -r /var/lib/cni/networks");
        web.vanish();
        world.node.cmd(&format!("rm {path}"));
        until(Duration::from_secs(20), "the command removes the chains", || {
            world.node.read("/run/held").is_some()
        });
        let pod = world.node.pod("web");
        let attach = Attach::new(&pod).port(Proto::Tcp, PORT + 1, SERVED);
        let adding = scope.spawn(move || network.add(&attach).map(|_| attach));
        let end = Instant::now() + Duration::from_secs(3);
        while !adding.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        world.node.cmd("rm /run/hold");
        let attach = adding.join().expect("no panic").unwrap_or_else(|failure| panic!("ADD: {failure}"));
        let (report, code) = restoring.join().expect("no panic");
        (report, code, attach)
    });
    assert_eq!(code, 0, "{report:#}");
    assert!(report.to_string().contains("removed again"), "{report:#}");
    network.write_cache(&attach);
    network.check(&attach).unwrap_or_else(|failure| panic!("CHECK: {failure}"));
    let ports = world.node.slipway("ports");
    assert!(ports.contains(&format!(":{} ", PORT + 1)) && !ports.contains(&format!(":{PORT} ")), "{ports}");
}

/// A container is deleted while the command waits for a migration's end, after it has found what the container lacks. Its
/// link, which the command cannot put back any more, is no failure.
#[test]
fn a_container_deleted_while_a_restore_waits_is_no_failure() {
    let world = World::new();
    let network = world.bridge(1);
    let web = Web::published(&world, &network, "web", PORT);
    let other = Web::published(&world, &network, "other", PORT + 1);
    let port = network.cached(&web.attach).expect("a result")["interfaces"][1]["name"].clone();
    world.node.cmd(&format!("ip link set {} nomaster", port.as_str().expect("a name")));
    let lock = world.node.run(|| {
        std::fs::create_dir_all("/run/slipway").expect("make the folder");
        let file = File::options().create(true).truncate(false).write(true).open("/run/slipway/migrate.lock");
        let file = file.expect("open the lock");
        file.lock().expect("lock it");
        file
    });
    let (report, code) = std::thread::scope(|scope| {
        let restoring = scope.spawn(|| world.restore(""));
        std::thread::sleep(within(Duration::from_millis(500)));
        web.leave(&world, &network);
        drop(lock);
        restoring.join().expect("no panic")
    });
    assert_eq!((code, count(&report, "failed")), (0, 0), "{report:#}");
    assert!(report.to_string().contains("the container was deleted concurrently"), "{report:#}");
    let ports = world.node.slipway("ports");
    assert!(!ports.contains(":8080 ") && ports.contains(&other.ips[0].to_string()), "{ports}");
}

/// A container is attached anew, in the same namespace, after its ports were restored and before the command ends, as by
/// `podman network reload`. Its new ports stay, whether the runtime has already stored the new attachment or not.
#[test]
fn a_container_attached_anew_during_a_restore_keeps_its_ports() {
    for (is_stored_soon, subnet) in [(true, 1), (false, 2)] {
        let world = World::new();
        let network = world.bridge(subnet);
        let web = Web::published(&world, &network, "web", PORT);
        let path = network.cache_path(&web.attach);
        let file = path.rsplit('/').next().expect("a name");
        world.node.cmd("nft flush ruleset");
        let (report, address) = std::thread::scope(|scope| {
            let restoring = scope.spawn(|| world.restore_held_up(file, within(Duration::from_secs(2))));
            for _ in 0..400 {
                if world.node.ruleset().contains("hostports4 {")
                    && world.node.slipway("ports").contains("8080")
                {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            web.leave(&world, &network);
            let result = network.add(&web.attach).expect("ADD");
            let address = addresses_of(&result)[0];
            assert_ne!(address, web.ips[0]);
            if is_stored_soon {
                network.write_cache(&web.attach);
            }
            let (report, code) = restoring.join().expect("no panic");
            assert_eq!(code, 0, "{report:#}");
            (report, address)
        });
        let what = if is_stored_soon { "attached anew" } else { "deleted" };
        assert!(report.to_string().contains(&format!("the container was {what} concurrently")), "{report:#}");
        network.write_cache(&web.attach);
        let ports = world.node.slipway("ports");
        assert!(
            ports.contains(&format!("{address}:{SERVED}")) && !ports.contains(&web.ips[0].to_string()),
            "{ports}"
        );
        let (report, _) = world.restore("--dry-run");
        assert_eq!(count(&report, "missing"), 0, "{report:#}");
    }
}

/// A DEL is delayed between two plugins while restorations run. Nothing that the first plugin has removed may come
/// back, because the bridge has no rules of its own and its DEL would not remove them. The namespace continues to
/// exist, so the rules would remain with it.
#[test]
fn a_container_whose_del_has_begun_gets_nothing_back() {
    let world = World::new();
    let limit = json!({
        "type": "bandwidth", "ingressRate": 400_000, "ingressBurst": 24_224, "egressRate": 400_000,
        "egressBurst": 24_224,
    });
    let network = world.chain(1, "bridge", [json!({"ipMasq": false}), json!({})], vec![limit]);
    let web = Web::published(&world, &network, "web", PORT);
    let result = network.cached(&web.attach).expect("a result");
    let del = |plugin| network.call_one(plugin, "DEL", &web.attach, &result).ok();
    let is_published = || world.node.slipway("ports").contains("8080");
    let marks = || world.node.cmd("ls /run/slipway/deleting").lines().count();
    for plugin in [2, 1] {
        del(plugin);
        let (report, code) = world.restore("");
        assert!(code == 0 && count(&report, "restored") == 0, "{report:#}");
        assert!(report.to_string().contains("the container is being deleted"), "{report:#}");
        assert_eq!((is_published(), marks()), (plugin == 2, 1), "{report:#}");
    }
    // As the control, an ADD ends the deletion.
    del(0);
    assert_eq!(marks(), 0);
    for plugin in [1, 0] {
        del(plugin);
    }
    network.add(&web.attach).expect("ADD");
    network.write_cache(&web.attach);
    assert_eq!(marks(), 0);
    world.node.cmd("nft flush ruleset");
    assert!(world.restored() > 0 && is_published());
    web.leave(&world, &network);
    let left = world.node.ruleset();
    assert!(!left.contains("slipway1") && marks() == 0, "{left}");
}

/// A container is deleted by a chain whose interface plugin is from another plugin set. The mark of the DEL remains,
/// and the next ADD of the same container removes it.
#[test]
fn a_mark_that_no_plugin_removed_ends_with_the_next_add() {
    let world = World::new();
    let network = world.bridge(1);
    let web = Web::published(&world, &network, "web", PORT);
    let result = network.cached(&web.attach).expect("a result");
    network.call_one(1, "DEL", &web.attach, &result).ok();
    let (report, _) = world.restore("");
    assert!(!world.node.slipway("ports").contains("8080"), "{report:#}");
    network.call_one(1, "ADD", &web.attach, &result).ok();
    world.node.cmd("nft flush ruleset");
    let (report, _) = world.restore("");
    assert!(world.node.slipway("ports").contains("8080"), "{report:#}");
}

/// Containers are added and deleted while the ruleset is repeatedly flushed and restored. In the end, live containers
/// have their ports, and others have nothing.
#[test]
fn adds_and_dels_with_concurrent_flushes_and_restores_end_correctly() {
    const ROUNDS: u16 = 4;
    let world = World::new();
    let network = world.bridge(1);
    let steady = Web::published(&world, &network, "steady", PORT);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let coming = scope.spawn(|| {
            for round in 0..ROUNDS {
                let pods: Vec<Web> = (0..3)
                    .map(|n| {
                        let name = format!("p{round}{n}");
                        Web::new(&world, &network, &name, |a| a.port(Proto::Tcp, 9000 + n, SERVED))
                    })
                    .collect();
                for pod in pods {
                    pod.leave(&world, &network);
                    pod.vanish();
                }
            }
            done.store(true, Ordering::SeqCst);
        });
        for _ in 0..40 {
            if done.load(Ordering::SeqCst) {
                break;
            }
            world.node.cmd("nft flush ruleset");
            // The report may name a container that is deleted concurrently; no call may hang or crash.
            let output = world.node.try_slipway("restore");
            assert!(matches!(output.code, Some(0 | 1)), "{output}");
        }
        coming.join().expect("no panic");
    });
    let (report, code) = world.restore("");
    assert_eq!(code, 0, "{report:#}");
    for (proto, to) in crate::each(world.node_ips(), PORT) {
        world.client.expect(proto, to, "steady");
    }
    let left = world.node.ruleset();
    let of_others = left.lines().find(|line| line.contains("slipway1") && !line.contains("steady"));
    assert_eq!(of_others, None, "{left}");
    drop(steady);
}

#[test]
fn two_concurrent_restores_do_the_same_as_one() {
    let world = World::new();
    let network = world.bridge(1);
    let pods: Vec<Web> =
        (0..5).map(|n| Web::published(&world, &network, &format!("p{n}"), PORT + n)).collect();
    world.node.cmd("nft flush ruleset");
    let command = quoted(slipway());
    std::thread::scope(|scope| {
        let both: Vec<_> =
            (0..2).map(|_| scope.spawn(|| world.node.try_cmd(&format!("{command} restore")))).collect();
        for one in both {
            let output = one.join().expect("no panic");
            assert_eq!(output.code, Some(0), "{output}");
        }
    });
    for (n, pod) in (0..5).zip(&pods) {
        world.client.expect(Proto::Tcp, at(world.client.node_v4, PORT + n), pod.name());
        network.check(&pod.attach).expect("CHECK");
    }
    assert_eq!(world.restored(), 0);
}

/// The ruleset is flushed at each netlink message of a call. If the call reads one part of the table before the flush
/// and another part after it, it must not complete the table without the owner's marker, because all later calls would
/// then refuse the table.
#[test]
fn after_a_flush_at_any_moment_of_an_add_the_next_add_succeeds() {
    const REQUESTS: usize = 30;
    let world = World::new();
    let network = world.network(1, "bridge", [json!({"ipMasq": false}), json!({})]);
    let steady = world.node.pod("steady");
    let steady = Attach::new(&steady).port(Proto::Tcp, PORT, SERVED);
    for nth in sample(1..=REQUESTS) {
        let (pod, next) = (world.node.pod("pod"), world.node.pod("next"));
        let attach = Attach::new(&pod).port(Proto::Tcp, 9001, SERVED);
        network.add(&steady).expect("ADD that makes the table");
        let result = network.add_first(&attach);
        let mut config = network.configs(Some(&attach)).swap_remove(1);
        config["prevResult"] = result;
        let inject = format!("inject=sendto:delay_enter=700000:when={nth}");
        let strace = ["strace", "-f", "-qq", "-o", "/run/trace", "-e", "trace=sendto", "-e", &inject];
        let running = network.prepare("ADD", &config, Some(&attach)).through(&strace).spawn();
        let begun = Instant::now();
        // strace logs a call's entry before it delays the call.
        let sent = || world.node.read("/run/trace").unwrap_or_default().lines().count() >= nth;
        while !sent() && begun.elapsed() < within(Duration::from_secs(2)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        world.node.cmd("nft flush ruleset");
        // For this call, the flush may have come too late.
        running.wait();
        let attach_next = Attach::new(&next).port(Proto::Tcp, 9002, SERVED);
        network.add(&attach_next).unwrap_or_else(|e| panic!("request {nth}: {e}"));
        for attach in [&attach_next, &attach, &steady] {
            network.del(attach).unwrap_or_else(|e| panic!("request {nth}: {e}"));
        }
        world.node.cmd("rm -f /run/trace");
        pod.remove();
        next.remove();
    }
}
