// SPDX-License-Identifier: GPL-2.0-or-later

//! Compares podman's containers with our driver and with netavark's own bridge driver and its nftables rules, in one
//! run. `SLIPWAY_BIN_DIR` names a folder with a release build, and `SLIPWAY_RUNTIMES` the folder with the packages, as
//! `cargo xtask test --runtimes` leaves them:
//! `cargo test --package slipway-tests --test real -- --ignored --nocapture figures`

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use slipway_tests::image::{WEB, ask_once};
use slipway_tests::measure::on_one_processor;
use slipway_tests::system::unpacked;
use slipway_tests::{Space, at, patience};

use super::World;

/// The drivers, each of which has a network.
const DRIVERS: [&str; 2] = ["slipway", "bridge"];
/// How many containers are started one after the other with each driver.
const SINGLE: usize = 15;
/// How many containers are started at once.
const BURST: u16 = 50;
/// The duration of one measurement of packets, and the number of measurements.
const PACKETS: Duration = Duration::from_secs(1);
const ROUNDS: usize = 21;

#[test]
#[ignore = "a measurement"]
fn trixie() {
    figures("trixie");
}

#[test]
#[ignore = "a measurement"]
fn unstable() {
    figures("unstable");
}

fn figures(suite: &str) {
    let packages = unpacked(suite, "usr/lib/podman/netavark").expect("SLIPWAY_RUNTIMES names the packages");
    {
        let world = World::new(&packages).expect("the driver is under test");
        DRIVERS.iter().for_each(|driver| prepare(&world, driver));
        one_after_the_other(&world, suite);
        at_once(&world, suite);
    }
    // Each driver has a separate node, because on a common one packets would pass the rules of both.
    let worlds = DRIVERS.map(|driver| {
        let world = World::new(&packages).expect("the driver is under test");
        prepare(&world, driver);
        world
    });
    packets(&worlds, suite);
}

fn prepare(world: &World, driver: &str) {
    let number = driver.len();
    let options = format!("--subnet 10.9{number}.0.0/24 --subnet fd00:9{number}::/64 --disable-dns");
    world.podman(&format!("network create --driver {driver} {options} {driver}-net"));
    // The first container creates the tables.
    world.run_web("first", &format!("--network {driver}-net --publish 8080:80"));
    world.podman("rm --force first");
}

/// Measures `podman run` until the first reply, and `podman rm --force`, and how long each takes without a driver.
fn one_after_the_other(world: &World, suite: &str) {
    let mut times = [const { [const { Vec::new() }; 3] }; 3];
    for _ in 0..SINGLE {
        for (of_driver, options) in times.iter_mut().zip(["slipway-net", "bridge-net", "none"]) {
            let is_none = options == "none";
            let publish = if is_none { "" } else { " --publish 8080:80" };
            let begin = Instant::now();
            world.run_web("web", &format!("--network {options}{publish}"));
            if !is_none {
                world.answers(8080);
            }
            of_driver[0].push(begin.elapsed());
            if !is_none {
                let begin = Instant::now();
                world.podman("network reload web");
                of_driver[2].push(begin.elapsed());
            }
            let begin = Instant::now();
            world.podman("rm --force --time 0 web");
            of_driver[1].push(begin.elapsed());
        }
    }
    for (of_driver, name) in times.iter_mut().zip(["slipway", "bridge", "no network"]) {
        let [run, rm, reload] = of_driver.each_mut().map(|all| median(all));
        eprintln!("FIGURE {suite} {name}: run to first reply {run}, rm {rm}, network reload {reload} ms");
    }
}

impl World {
    /// Waits for a reply from a published port, retrying without pauses.
    fn answers(&self, port: u16) {
        let begin = Instant::now();
        while ask_once(&self.client, at(self.client.node_v4, port), Duration::from_millis(300)).is_err() {
            assert!(begin.elapsed() < patience(), "port {port} does not answer");
        }
    }
}

fn median(all: &mut [Duration]) -> String {
    all.sort_unstable();
    all.get(all.len() / 2)
        .map_or_else(|| "-".to_owned(), |middle| format!("{:.0}", middle.as_secs_f64() * 1e3))
}

/// Measures a burst: all containers are started at once, and when each has replied, all are removed at once.
fn at_once(world: &World, suite: &str) {
    let group = world.system.cgroup();
    for round in 0..3 {
        for driver in DRIVERS {
            let script = format!(
                "i=0; while [ $i -lt {BURST} ]; do podman run --detach --name web$i --env WHO=web$i --cgroup-parent {group} \
                 --network {driver}-net --publish $((8100 + i)):80 {WEB} >/dev/null & i=$((i + 1)); done; wait"
            );
            let begin = Instant::now();
            world.system.run(&["/bin/busybox", "sh", "-c", &script]);
            (0..BURST).for_each(|number| world.answers(8100 + number));
            let started = begin.elapsed();
            let begin = Instant::now();
            world.podman("rm --force --time 0 --all");
            let removed = begin.elapsed();
            eprintln!(
                "FIGURE {suite} {driver}: burst of {BURST}, round {round}: run {:.1} s, rm {:.1} s",
                started.as_secs_f64(),
                removed.as_secs_f64()
            );
        }
    }
}

/// Measures the throughput and the connections per second through a published port, on a node with few and with many
/// ports. The client, the server and the kernel's work for them share one processor, so that its time is compared. The
/// drivers alternate, and so does the one that comes first.
fn packets(worlds: &[World; DRIVERS.len()], suite: &str) {
    for ports in [1, 500] {
        for (world, driver) in worlds.iter().zip(DRIVERS) {
            // Every other port is published, because a range would become a single rule. The measured ports come last.
            let mut publish = String::new();
            for port in 1..ports {
                publish.push_str(&format!(" --publish {}:{}", 20_000 + 2 * port, 10_000 + port));
            }
            world.run_web(
                "web",
                &format!(
                    "--network {driver}-net{publish} --publish 8080:80 --publish 8081:81 --publish 8083:82"
                ),
            );
            world.answers(8080);
        }
        let mut rates = [const { Vec::new() }; DRIVERS.len()];
        let mut streams = [const { Vec::new() }; DRIVERS.len()];
        for round in 0..ROUNDS {
            for turn in 0..DRIVERS.len() {
                let number = (round + turn) % DRIVERS.len();
                let world = &worlds[number];
                let (inside, to) = (world.inside("web"), |port| at(world.client.node_v4, port));
                rates[number].push(connections(&inside, &world.client, to(8081)));
                streams[number].push(stream(&inside, &world.client, to(8083)));
            }
        }
        for ((driver, rates), streams) in DRIVERS.iter().zip(&mut rates).zip(&mut streams) {
            // These are the quartiles.
            let [rate, stream] = [rates, streams].map(|all| {
                all.sort_by(f64::total_cmp);
                [1, 2, 3].map(|quarter| all[all.len() * quarter / 4])
            });
            eprintln!(
                "FIGURE {suite} {driver}: {ports} published ports: {:.0} ({:.0} to {:.0}) connections/s, {:.1} ({:.1} \
                 to {:.1}) Gbit/s",
                rate[1], rate[0], rate[2], stream[1], stream[0], stream[2]
            );
        }
        worlds.iter().for_each(|world| drop(world.podman("rm --force --time 0 --all")));
    }
}

/// The number of connections per second, made one after the other, each with a request and a reply of one byte.
fn connections(inside: &Space, client: &Space, to: SocketAddr) -> f64 {
    let listener = inside.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 81)).expect("listen"));
    let until = Instant::now() + PACKETS;
    let server = thread::spawn(move || {
        on_one_processor();
        let mut byte = [0];
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            match stream.read(&mut byte) {
                Ok(1) if byte[0] == b'x' => stream.write_all(&byte).expect("reply"),
                _ => return,
            }
        }
    });
    let connect = || TcpStream::connect(to).expect("connect");
    let count = client.run(|| {
        on_one_processor();
        let mut count = 0.0;
        while Instant::now() < until {
            let mut stream = connect();
            let mut byte = *b"x";
            stream.write_all(&byte).and_then(|()| stream.read_exact(&mut byte)).expect("a reply");
            count += 1.0;
        }
        // The server ends when a connection has no request.
        drop(connect());
        count
    });
    server.join().expect("the server ends");
    count / PACKETS.as_secs_f64()
}

/// The throughput of one connection from the client, in 10^9 bits per second.
fn stream(inside: &Space, client: &Space, to: SocketAddr) -> f64 {
    let listener = inside.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 82)).expect("listen"));
    let server = thread::spawn(move || {
        on_one_processor();
        let (mut stream, _) = listener.accept().expect("a connection");
        let (mut buffer, mut bytes) = (vec![0; 1 << 17], 0.0);
        let begin = Instant::now();
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            bytes += f64::from(u32::try_from(read).expect("a small number"));
        }
        bytes * 8.0 / begin.elapsed().as_secs_f64() / 1e9
    });
    client.run(|| {
        on_one_processor();
        let mut stream = TcpStream::connect(to).expect("connect");
        let (buffer, until) = (vec![0; 1 << 17], Instant::now() + PACKETS);
        while Instant::now() < until {
            stream.write_all(&buffer).expect("write");
        }
    });
    server.join().expect("the server ends")
}
