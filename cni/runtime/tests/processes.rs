// SPDX-License-Identifier: MIT OR Apache-2.0

//! Plugins as processes: shell scripts in a temporary directory.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports a failure")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cni_runtime::runtime::Builder;
use cni_runtime::{CallError, CallOptions, Cancel, Container, Network, NetworkError, Runtime, Trace};
use serde_json::json;
use tempfile::TempDir;

const RESULT: &str = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.22.0.2/24"}]}"#;
/// Far more than a pipe holds.
const LARGE: usize = 1 << 20;

struct Plugin {
    dir: TempDir,
}

impl Plugin {
    fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn add(&self, network: &Network, options: &CallOptions) -> Result<cni_spec::AddResult, NetworkError> {
        self.builder().options(options.clone()).build().add(network, &container())
    }

    fn builder(&self) -> Builder {
        Runtime::builder().plugin_dir(self.path()).cache(self.path())
    }
}

fn container() -> Container {
    Container::new("c1", "eth0").netns("/run/netns/c1")
}

fn network() -> Network {
    Network::builder("n").plugin(json!({"type": "plugin"})).build().unwrap()
}

fn call_error(result: &Result<cni_spec::AddResult, NetworkError>) -> CallError {
    let error = result.as_ref().unwrap_err();
    error.calls()[0].clone()
}

#[test]
fn output_and_large_input_pass_through() {
    let plugin = Plugin::new(&format!(
        "head -c {LARGE} /dev/zero >&2; cat >$0.input; test $TRACEPARENT = 00-ab || exit 3; echo '{RESULT}'"
    ));
    let large = "x".repeat(LARGE);
    let network = Network::builder("n").plugin(json!({"type": "plugin", "large": large})).build().unwrap();
    let trace = Trace { parent: "00-ab".into(), ..Trace::default() };
    let options = CallOptions::new().trace(trace).stderr(|_, line| assert_eq!(line.len(), LARGE));
    let added = plugin.add(&network, &options).unwrap();
    assert_eq!(added.ips[0].address.to_string(), "10.22.0.2/24");
    assert!(std::fs::read_to_string(plugin.path().join("plugin.input")).unwrap().contains(&large));
}

/// Sixty times as much as fits into a line of the sink.
#[test]
fn standard_error_without_a_line_feed_is_passed_on_in_parts() {
    const WRITTEN: usize = 60 << 20;
    let plugin = Plugin::new(&format!("head -c {WRITTEN} /dev/zero >&2; echo '{RESULT}'"));
    let lengths: Arc<Mutex<Vec<usize>>> = Arc::default();
    let seen = Arc::clone(&lengths);
    let options = CallOptions::new().stderr(move |_, line| seen.lock().unwrap().push(line.len()));
    plugin.add(&network(), &options).unwrap();
    let lengths = lengths.lock().unwrap();
    assert!(lengths.iter().all(|length| *length <= 1 << 20), "{lengths:?}");
    assert_eq!(lengths.iter().sum::<usize>(), WRITTEN);
    // The error of a plugin that fails shows the beginning and the end.
    let plugin = Plugin::new("echo first >&2; head -c 9999999 /dev/zero >&2; echo last >&2; exit 3");
    let error = call_error(&plugin.add(&network(), &CallOptions::new())).to_string();
    assert!(error.starts_with("netplugin failed: \"first\\n") && error.ends_with("last\\n\": exit status 3"));
    assert!(error.contains(" bytes left out]") && error.len() < 1 << 18, "{} bytes", error.len());
}

/// `yes` never ends.
#[test]
fn a_plugin_that_prints_without_an_end_is_killed() {
    let plugin = Plugin::new("echo $$ >$0.pid; exec yes");
    let error = call_error(&plugin.add(&network(), &CallOptions::new())).to_string();
    let path = plugin.path().join("plugin");
    assert_eq!(error, format!("{}: wrote more than 16 MiB to standard output: killed", path.display()));
    let pid = std::fs::read_to_string(path.with_extension("pid")).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "it has ended");
}

#[test]
fn a_plugin_need_not_read_its_input() {
    let plugin = Plugin::new(&format!("exec <&-; echo '{RESULT}'"));
    let network =
        Network::builder("n").plugin(json!({"type": "plugin", "x": "x".repeat(LARGE)})).build().unwrap();
    plugin.add(&network, &CallOptions::new()).unwrap();
}

#[test]
fn the_time_limit_kills_the_plugin_and_its_children() {
    let plugin = Plugin::new("sleep 600 & echo $! >>$0.pids; echo $$ >>$0.pids; wait");
    let begin = Instant::now();
    let limit = Duration::from_millis(300);
    let added = plugin.add(&network(), &CallOptions::new().limit(limit));
    assert_eq!(call_error(&added), CallError::TimedOut(limit));
    assert!(begin.elapsed() < Duration::from_secs(20));
    let pids = std::fs::read_to_string(plugin.path().join("plugin.pids")).unwrap();
    let [child, own] = pids.lines().collect::<Vec<_>>()[..] else { panic!("{pids}") };
    until_gone(child);
    // Not a zombie: this process may run for years.
    assert!(!Path::new("/proc").join(own).exists(), "{own} is not reaped");
}

#[test]
fn a_process_that_holds_the_pipes_open_delays_nobody() {
    let plugin = Plugin::new(&format!("setsid sleep 20 & echo $! >>$0.pids; echo '{RESULT}'"));
    let begin = Instant::now();
    plugin.add(&network(), &CallOptions::new()).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    for pid in std::fs::read_to_string(plugin.path().join("plugin.pids")).unwrap().lines() {
        // Not killed: it may be a daemon.
        assert!(state(pid).is_some());
        let killed = std::process::Command::new("kill").arg(pid).status().unwrap();
        assert!(killed.success());
    }
}

#[test]
fn a_cancellation_kills_the_plugin() {
    let plugin = Plugin::new("echo $$ >>$0.pids; exec sleep 600");
    let cancel = Cancel::new().unwrap();
    let other = cancel.clone();
    let pids = plugin.path().join("plugin.pids");
    let canceller = std::thread::spawn(move || {
        while std::fs::read_to_string(&pids).unwrap_or_default().lines().count() == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        other.cancel();
    });
    let added = plugin.add(&network(), &CallOptions::new().cancel(cancel));
    canceller.join().unwrap();
    assert_eq!(call_error(&added), CallError::Cancelled);
    for pid in std::fs::read_to_string(plugin.path().join("plugin.pids")).unwrap().lines() {
        until_gone(pid);
    }
}

#[test]
fn dropping_the_future_kills_the_plugin_and_its_children() {
    let plugin = Plugin::new("sleep 600 & echo $! >>$0.pids; echo $$ >>$0.pids; wait");
    let pids = plugin.path().join("plugin.pids");
    let event_loop = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    event_loop.block_on(async {
        let runtime = plugin.builder().build_async();
        let (network, container) = (network(), container());
        {
            let add = runtime.add(&network, &container);
            let started = async {
                while std::fs::read_to_string(&pids).unwrap_or_default().lines().count() < 2 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                added = add => panic!("{added:?}"),
                () = started => {}
            }
        }
        // The lock is released: this waits for nothing.
        let quick = runtime.with(CallOptions::new().limit(Duration::from_secs(10)));
        tokio::time::timeout(Duration::from_millis(500), quick.check(&network, &container))
            .await
            .expect_err("CHECK runs the same script");
    });
    for pid in std::fs::read_to_string(&pids).unwrap().lines() {
        until_gone(pid);
    }
}

#[test]
fn lines_of_standard_error_arrive_as_they_are_written() {
    let plugin = Plugin::new("echo one >&2; echo two >&2; printf three >&2; exit 7");
    let lines = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&lines);
    let options = CallOptions::new()
        .stderr(move |call, line| seen.lock().unwrap().push(format!("{} {line}", call.command)));
    let added = plugin.add(&network(), &options);
    assert_eq!(call_error(&added).to_string(), r#"netplugin failed: "one\ntwo\nthree": exit status 7"#);
    assert_eq!(*lines.lock().unwrap(), ["ADD one", "ADD two", "ADD three"]);
}

/// The letter of a process's state. None if it has ended.
fn state(pid: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next().filter(|state| *state != 'Z')
}

#[track_caller]
fn until_gone(pid: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while state(pid).is_some() {
        assert!(Instant::now() < deadline, "process {pid} runs on");
        std::thread::sleep(Duration::from_millis(5));
    }
}
