// SPDX-License-Identifier: GPL-2.0-or-later

//! The cost of an ADD and a DEL of host-local with more and more reservations present: whole processes,
//! state on a real disk, fsync on.
//!
//! `cargo bench -p slipway-tests --bench host_local`; with `SLIPWAY_PEER_DIR` the plugin in that
//! folder is measured too, alternating with ours, each in a directory of its own.
#![allow(clippy::print_stdout, reason = "printing its table is what it is for")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PRESENT: [u32; 4] = [0, 1_000, 10_000, 60_000];
const ROUNDS: usize = 101;

struct Contender {
    name: &'static str,
    program: PathBuf,
    data: tempfile::TempDir,
}

impl Contender {
    fn call(&self, verb: &str, id: &str) -> Duration {
        let data = self.data.path();
        let config = serde_json::json!({
            "cniVersion": "1.0.0", "name": "net", "type": "bench",
            "ipam": { "type": "host-local", "subnet": "10.0.0.0/8", "dataDir": data },
        });
        let mut command = Command::new(&self.program);
        command.env_clear().envs([
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", id),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/run/netns/none"),
            ("CNI_PATH", "/none"),
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let start = Instant::now();
        let mut child = command.spawn().expect("start the plugin");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(config.to_string().as_bytes()).expect("write the configuration");
        drop(stdin);
        let status = child.wait().expect("wait for the plugin");
        assert!(status.success(), "{verb} of {}: {status}", self.name);
        start.elapsed()
    }

    /// Reservations as both would have written them, without the cost of as many processes.
    fn fill(&self, count: u32) {
        let dir = self.data.path().join("net");
        std::fs::create_dir_all(&dir).expect("make the network's directory");
        for n in 0..count {
            let address = std::net::Ipv4Addr::from(0x0a00_0002 + n);
            let content = format!("{n:064x}\r\neth0");
            std::fs::write(dir.join(address.to_string()), content).expect("write a reservation");
            if n + 1 == count {
                std::fs::write(dir.join("last_reserved_ip.0"), address.to_string()).expect("write the last");
            }
        }
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
}

fn main() {
    let mut programs = vec![("ours", slipway_tests::plugin_dir().join("host-local"))];
    if let Some(peer) = std::env::var_os("SLIPWAY_PEER_DIR") {
        // The harness takes the peer for the plugins under test; here both are wanted.
        let ours = std::env::var_os("SLIPWAY_BIN_DIR").expect("SLIPWAY_BIN_DIR with SLIPWAY_PEER_DIR");
        programs = vec![
            ("ours", Path::new(&ours).join("host-local")),
            ("peer", Path::new(&peer).join("host-local")),
        ];
    }
    println!("reservations  who    ADD p50 ms  DEL p50 ms  first call ms");
    for present in PRESENT {
        let contenders: Vec<Contender> = (programs.iter())
            .map(|(name, program)| {
                let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on the disk");
                Contender { name, program: program.clone(), data }
            })
            .collect();
        contenders.iter().for_each(|contender| contender.fill(present));
        // Ours reads the directory once, to make its index.
        let first: Vec<Duration> = contenders.iter().map(|c| c.call("ADD", "first")).collect();
        let mut times = vec![(Vec::new(), Vec::new()); contenders.len()];
        // A peer that needs a second per call is measured less often.
        let rounds = if contenders.len() > 1 && present > 1_000 { 11 } else { ROUNDS };
        for round in 0..rounds {
            for (contender, (adds, dels)) in contenders.iter().zip(&mut times) {
                let id = format!("bench-{round}");
                adds.push(contender.call("ADD", &id));
                dels.push(contender.call("DEL", &id));
            }
        }
        for ((contender, (adds, dels)), first) in contenders.iter().zip(times).zip(first) {
            let (add, del, first) = (median(adds), median(dels), first.as_secs_f64() * 1000.0);
            println!("{present:>12}  {:<5}  {add:>10.2}  {del:>10.2}  {first:>13.1}", contender.name);
        }
    }
}
