// SPDX-License-Identifier: MIT OR Apache-2.0

//! Locks between operations. Each operation opens the lock files itself, as in a process of its own.
#![allow(clippy::unwrap_used, reason = "a panic is how a test reports a failure")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use cni_runtime::exec::{CallFuture, Exec};
use cni_runtime::verbs::PluginCall;
use cni_runtime::{CallOptions, Cancel, Container, GcScope, Network, NetworkError, Runtime};
use serde_json::json;

/// Long enough for a call that must not wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// A plugin that reports its call to the test, and ends when the test ends it.
struct Slow {
    begun: mpsc::SyncSender<()>,
    end: Mutex<mpsc::Receiver<()>>,
}

impl Exec for Slow {
    fn exec<'a>(&'a self, _: &'a [PathBuf], _: &'a PluginCall, _: &'a CallOptions) -> CallFuture<'a> {
        Box::pin(async {
            self.begun.send(()).unwrap();
            self.end.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            Ok(b"{}".to_vec())
        })
    }
}

/// A plugin that is quick.
struct Quick;

impl Exec for Quick {
    fn exec<'a>(&'a self, _: &'a [PathBuf], _: &'a PluginCall, _: &'a CallOptions) -> CallFuture<'a> {
        Box::pin(async { Ok(b"{}".to_vec()) })
    }
}

fn network(name: &str) -> Network {
    Network::builder(name).plugin(json!({"type": "p"})).build().unwrap()
}

fn container(id: &str) -> Container {
    Container::new(id, "eth0").netns("/run/netns/x")
}

/// Runs `test` while `slow` runs in another thread, and ends that.
fn during(slow: impl Fn(&Runtime) + Send + Sync, test: impl Fn(&Runtime)) {
    let cache = tempfile::tempdir().unwrap();
    let builder = || Runtime::builder().cache(cache.path());
    let quick = builder().exec(Arc::new(Quick)).build();
    let (begun, begins) = mpsc::sync_channel(1);
    let (ends, end) = mpsc::channel();
    let runtime = builder().exec(Arc::new(Slow { begun, end: Mutex::new(end) })).build();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| slow(&runtime));
        begins.recv_timeout(PATIENCE).unwrap();
        test(&quick);
        ends.send(()).unwrap();
        running.join().unwrap();
    });
    quick.del(&network("n"), &container("one")).unwrap();
}

fn waits(runtime: &Runtime, operation: impl Fn(&Runtime) -> Result<(), NetworkError>) {
    let short = runtime.with(CallOptions::new().limit(Duration::from_millis(60)));
    let error = operation(&short).unwrap_err();
    assert!(matches!(&error, NetworkError::Lock(error) if error.is_timeout()), "{error}");
    // A cancellation ends the wait.
    let cancel = Cancel::new().unwrap();
    let cancelled = runtime.with(CallOptions::new().cancel(cancel.clone()));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            cancel.cancel();
        });
        let error = operation(&cancelled).unwrap_err();
        assert!(matches!(error, NetworkError::Cancelled), "{error}");
    });
    assert!(begin.elapsed() < PATIENCE);
}

#[test]
fn calls_for_one_container_are_serialised_and_others_are_not() {
    during(
        |runtime| drop(runtime.add(&network("n"), &container("one")).unwrap()),
        |runtime| {
            waits(runtime, |runtime| runtime.del(&network("n"), &container("one")));
            waits(runtime, |runtime| runtime.add(&network("n"), &container("one")).map(drop));
            waits(runtime, |runtime| runtime.check(&network("n"), &container("one")));
            // The container's other networks, too.
            waits(runtime, |runtime| runtime.del(&network("other"), &container("one")));
            drop(runtime.add(&network("n"), &container("two")).unwrap());
            runtime.del(&network("n"), &container("two")).unwrap();
        },
    );
}

#[test]
fn gc_runs_without_any_other_call_of_the_network() {
    during(
        |runtime| drop(runtime.add(&network("n"), &container("one")).unwrap()),
        |runtime| {
            waits(runtime, |runtime| runtime.gc(&network("n"), GcScope::NoList));
            runtime.gc(&network("other"), GcScope::NoList).unwrap();
        },
    );
    during(
        |runtime| runtime.gc(&network("n"), GcScope::NoList).unwrap(),
        |runtime| {
            waits(runtime, |runtime| runtime.add(&network("n"), &container("one")).map(drop));
            waits(runtime, |runtime| runtime.del(&network("n"), &container("one")));
            drop(runtime.add(&network("other"), &container("one")).unwrap());
            runtime.del(&network("other"), &container("one")).unwrap();
        },
    );
}

/// A GC in a process of its own, which is killed while it waits for an ADD.
#[test]
fn a_killed_gc_holds_no_lock() {
    during(
        |runtime| drop(runtime.add(&network("n"), &container("one")).unwrap()),
        |runtime| {
            let mut gc = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "gc_in_a_process", "--ignored"])
                .env(CACHE, runtime.cache_dir())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let short = runtime.with(CallOptions::new().limit(Duration::from_millis(60)));
            let add = |container: &str| short.add(&network("n"), &self::container(container));
            // A new ADD waits for the GC.
            let begin = Instant::now();
            let error = loop {
                match add("two") {
                    Err(error) => break error,
                    Ok(_) => assert!(begin.elapsed() < PATIENCE, "the GC does not wait"),
                }
                assert!(gc.try_wait().unwrap().is_none());
            };
            assert!(matches!(&error, NetworkError::Lock(error) if error.is_timeout()), "{error}");
            gc.kill().unwrap();
            gc.wait().unwrap();
            drop(add("two").unwrap());
            runtime.del(&network("n"), &container("two")).unwrap();
        },
    );
}

/// The directory of the cache, for [`gc_in_a_process`].
const CACHE: &str = "SLIPWAY_TEST_CACHE";

#[test]
#[ignore = "a process of another test"]
fn gc_in_a_process() {
    let cache = std::env::var_os(CACHE).unwrap();
    let runtime = Runtime::builder().cache(cache).exec(Arc::new(Quick)).build();
    runtime.gc(&network("n"), GcScope::NoList).unwrap();
}

#[test]
fn a_runtime_without_locks_waits_for_nothing_and_makes_no_file() {
    let cache = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder().cache(cache.path()).without_locks().exec(Arc::new(Quick)).build();
    runtime.add(&network("n"), &container("one")).unwrap();
    assert!(!cache.path().join("locks").exists());
}

/// A DEL deletes the lock file that the other threads wait for.
#[test]
fn a_deleted_lock_file_lets_no_two_calls_run_at_once() {
    struct Busy(Mutex<()>);
    impl Exec for Busy {
        fn exec<'a>(&'a self, _: &'a [PathBuf], _: &'a PluginCall, _: &'a CallOptions) -> CallFuture<'a> {
            Box::pin(async {
                let _running = self.0.try_lock().expect("another call for this container runs");
                std::thread::sleep(Duration::from_millis(1));
                Ok(b"{}".to_vec())
            })
        }
    }
    let cache = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder().cache(cache.path()).exec(Arc::new(Busy(Mutex::new(())))).build();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..10 {
                    runtime.add(&network("n"), &container("one")).unwrap();
                    runtime.del(&network("n"), &container("one")).unwrap();
                }
            });
        }
    });
    let locks: Vec<_> = std::fs::read_dir(cache.path().join("locks")).unwrap().collect();
    assert_eq!(locks.len(), 1, "{locks:?}");
}

/// A DEL of another implementation deletes the cached result, and knows no lock file.
#[test]
fn gc_deletes_lock_files_of_containers_that_are_gone() {
    let cache = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder().cache(cache.path()).exec(Arc::new(Quick)).build();
    let names = |part: &str| {
        let entries = std::fs::read_dir(cache.path().join(part)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name.contains("-one") || name.contains("-two"));
        names.sort();
        names
    };
    for id in ["one", "two"] {
        runtime.add(&network("n"), &container(id)).unwrap();
    }
    assert_eq!(names("locks"), ["container-one", "container-two"]);
    for result in names("results").iter().filter(|name| name.contains("-one-")) {
        std::fs::remove_file(cache.path().join("results").join(result)).unwrap();
    }
    runtime.gc(&network("n"), GcScope::NoList).unwrap();
    assert_eq!(names("locks"), ["container-two"]);
}
