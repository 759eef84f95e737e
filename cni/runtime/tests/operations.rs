// SPDX-License-Identifier: MIT OR Apache-2.0

//! Operations with scripted plugins: order, inputs, the cache, errors.
#![allow(clippy::unwrap_used, reason = "a panic is how a test reports a failure")]

use std::path::PathBuf;
use std::sync::Arc;

use cni_runtime::exec::{Expected, Fake};
use cni_runtime::runtime::Builder;
use cni_runtime::verbs::{Command, PluginCall};
use cni_runtime::{CallError, CallOptions, Cancel, Container, GcScope, Network, NetworkError, Runtime};
use cni_spec::{Attachment, CniError, Version};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Case {
    dir: TempDir,
    network: Network,
}

impl Case {
    fn new() -> Self {
        let network = Network::builder("pods")
            .plugin(json!({"type": "bridge"}))
            .plugin(json!({"type": "portmap", "name": "ports", "capabilities": {"portMappings": true}}))
            .build()
            .unwrap();
        Self { dir: tempfile::tempdir().unwrap(), network }
    }

    /// Runs `test` and the calls that it must make.
    #[track_caller]
    fn run(&self, script: &[Expected], test: impl Fn(&Runtime)) -> Vec<PluginCall> {
        self.run_with(script, |builder| builder, test)
    }

    #[track_caller]
    fn run_with(
        &self,
        script: &[Expected],
        settings: impl Fn(Builder) -> Builder,
        test: impl Fn(&Runtime),
    ) -> Vec<PluginCall> {
        let fake = Fake::new(script.iter().cloned());
        let builder = Runtime::builder().plugin_dir("/plugins").cache(self.cache());
        test(&settings(builder).exec(Arc::new(fake.clone())).build());
        fake.calls()
    }

    fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    /// The files of the cache and the locks.
    fn files(runtime: &Runtime, directory: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(runtime.cache_dir().join(directory)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn container() -> Container {
    Container::new("c1", "eth0")
        .netns("/run/netns/c1")
        .arg("A", "b")
        .arg("C", "d")
        .capability("portMappings", json!([{"hostPort": 8080, "containerPort": 80}]))
        .capability("mac", "02:00:00:00:00:01")
}

fn first() -> Value {
    json!({"cniVersion": "1.1.0", "ips": [{"address": "10.22.0.2/24"}]})
}

fn last() -> Value {
    json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0"}], "ips": [{"address": "10.22.0.2/24"}]})
}

fn call(plugin: &str, command: Command) -> Expected {
    Expected::call(plugin, command)
}

fn added() -> [Expected; 2] {
    [
        call("bridge", Command::Add).prints(first().to_string()),
        call("portmap", Command::Add).prints(last().to_string()),
    ]
}

fn failing(plugin: &str, command: Command, message: &str) -> Expected {
    call(plugin, command).fails(CallError::Failed(CniError::internal(message)))
}

fn missing(plugin: &str, command: Command) -> Expected {
    call(plugin, command).fails(CallError::NotFound(CniError::internal("no such plugin")))
}

fn input(call: &PluginCall) -> Value {
    serde_json::from_slice(&call.stdin).unwrap()
}

#[test]
fn each_plugin_gets_the_result_before_it_and_its_capabilities() {
    let case = Case::new();
    let calls = case.run(&added(), |runtime| {
        let result = runtime.add(&case.network, &container()).unwrap();
        assert_eq!(result.interfaces[0].name, "eth0");
        assert_eq!(Case::files(runtime, "results"), ["pods-c1-eth0"]);
    });
    assert_eq!(input(&calls[0]), json!({"type": "bridge", "name": "pods", "cniVersion": "1.1.0"}));
    assert_eq!(
        input(&calls[1]),
        json!({
            "type": "portmap", "name": "pods", "cniVersion": "1.1.0", "capabilities": {"portMappings": true},
            "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}, "prevResult": first(),
        })
    );
    let vars: Vec<_> = calls[0].env.iter().map(|(name, value)| (&**name, value.to_str().unwrap())).collect();
    assert_eq!(
        vars,
        [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/c1"),
            ("CNI_ARGS", "A=b;C=d"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/plugins"),
        ]
    );
}

#[test]
fn check_and_del_get_the_cached_result() {
    let case = Case::new();
    let script = [
        call("bridge", Command::Check),
        call("portmap", Command::Check),
        call("portmap", Command::Del),
        call("bridge", Command::Del),
        call("portmap", Command::Del),
        call("bridge", Command::Del),
    ];
    let calls = case.run(&[&added()[..], &script].concat(), |runtime| {
        runtime.add(&case.network, &container()).unwrap();
        runtime.check(&case.network, &container()).unwrap();
        assert_eq!(runtime.attachments("c1").unwrap()[0].network(), case.network);
        runtime.del(&case.network, &container()).unwrap();
        assert!(runtime.attachments("c1").unwrap().is_empty());
        assert!(Case::files(runtime, "results").is_empty());
        assert_eq!(Case::files(runtime, "locks"), ["network-pods"]);
        runtime.del(&case.network, &container()).unwrap();
    });
    assert!(calls[2..6].iter().all(|call| input(call)["prevResult"] == last()));
    assert!(calls[6..].iter().all(|call| input(call).get("prevResult").is_none()));
}

#[test]
fn a_failed_add_is_left_as_it_is_unless_asked() {
    let case = Case::new();
    let script = [added()[0].clone(), failing("portmap", Command::Add, "port is taken")];
    case.run(&script, |runtime| {
        let error = runtime.add(&case.network, &container()).unwrap_err();
        assert_eq!(error.to_string(), r#"plugin type="portmap" name="ports" failed (add): port is taken"#);
        assert!(Case::files(runtime, "results").is_empty());
        assert_eq!(Case::files(runtime, "locks"), ["network-pods"]);
    });
}

#[test]
fn a_failed_add_is_undone_and_both_errors_are_reported() {
    let case = Case::new();
    let script = [
        added()[0].clone(),
        failing("portmap", Command::Add, "port is taken"),
        call("portmap", Command::Del),
        failing("bridge", Command::Del, "link is busy"),
    ];
    let calls = case.run_with(&script, Builder::undo_failed_add, |runtime| {
        let error = runtime.add(&case.network, &container()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "plugin type=\"portmap\" name=\"ports\" failed (add): port is taken\n\
             undo of the failed add: plugin type=\"bridge\" failed (delete): link is busy"
        );
        let messages: Vec<_> = error.calls().iter().map(ToString::to_string).collect();
        assert_eq!(messages, ["port is taken", "link is busy"]);
    });
    assert!(calls[2..].iter().all(|call| input(call)["prevResult"] == first()));
    // A plugin that does not exist has nothing to undo.
    let script = [added()[0].clone(), missing("portmap", Command::Add), call("bridge", Command::Del)];
    case.run_with(&script, Builder::undo_failed_add, |runtime| {
        let error = runtime.add(&case.network, &container()).unwrap_err();
        assert!(matches!(error, NetworkError::Undone { undo: None, .. }), "{error}");
    });
    // Nothing was called: an error of its own.
    case.run_with(&[missing("bridge", Command::Add)], Builder::undo_failed_add, |runtime| {
        let error = runtime.add(&case.network, &container()).unwrap_err();
        assert!(matches!(error, NetworkError::Plugin { .. }), "{error}");
    });
}

#[test]
fn an_add_whose_result_cannot_be_cached_is_undone() {
    let case = Case::new();
    std::fs::create_dir_all(case.cache()).unwrap();
    std::fs::write(case.cache().join("results"), "not a directory").unwrap();
    let script = [&added()[..], &[call("portmap", Command::Del), call("bridge", Command::Del)]].concat();
    case.run_with(&script, Builder::undo_failed_add, |runtime| {
        let error = runtime.add(&case.network, &container()).unwrap_err();
        let NetworkError::Undone { error, undo: None } = error else { panic!("{error}") };
        assert!(matches!(*error, NetworkError::Cache(_)), "{error}");
    });
}

#[test]
fn del_stops_at_a_failure_unless_it_is_to_continue() {
    let case = Case::new();
    let script = [&added()[..], &[failing("portmap", Command::Del, "busy")]].concat();
    case.run(&script, |runtime| {
        runtime.add(&case.network, &container()).unwrap();
        let error = runtime.del(&case.network, &container()).unwrap_err();
        assert_eq!(error.to_string(), r#"plugin type="portmap" name="ports" failed (delete): busy"#);
    });
    let script = [missing("portmap", Command::Del), failing("bridge", Command::Del, "busy")];
    case.run_with(&script, Builder::keep_deleting, |runtime| {
        let error = runtime.del(&case.network, &container()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "plugin type=\"portmap\" name=\"ports\" failed (delete): no such plugin\n\
             plugin type=\"bridge\" failed (delete): busy"
        );
        // For another DEL.
        assert_eq!(Case::files(runtime, "results"), ["pods-c1-eth0"]);
    });
}

#[test]
fn a_cancelled_operation_calls_no_plugin_but_to_undo() {
    let case = Case::new();
    let token = Cancel::new().unwrap();
    token.cancel();
    let options = CallOptions::new().cancel(token);
    case.run_with(&[], Builder::keep_deleting, |runtime| {
        let runtime = runtime.with(options.clone());
        for error in [
            runtime.add(&case.network, &container()).unwrap_err(),
            runtime.del(&case.network, &container()).unwrap_err(),
            runtime.gc(&case.network, GcScope::NoList).unwrap_err(),
            runtime.status(&case.network).unwrap_err(),
        ] {
            assert!(error.to_string().ends_with("cancelled"), "{error}");
        }
    });
    // Cancelled while portmap runs.
    let script = [
        added()[0].clone(),
        call("portmap", Command::Add).fails(CallError::Cancelled),
        call("portmap", Command::Del),
        call("bridge", Command::Del),
    ];
    case.run_with(&script, Builder::undo_failed_add, |runtime| {
        let error = runtime.add(&case.network, &container()).unwrap_err();
        assert!(matches!(error, NetworkError::Undone { undo: None, .. }), "{error}");
    });
}

#[test]
fn gc_tells_no_list_from_an_empty_one() {
    let case = Case::new();
    let of = |id: &str| Container { id: id.into(), ..container() };
    let gc = [call("bridge", Command::Gc), call("portmap", Command::Gc)];
    let del = [call("portmap", Command::Del), call("bridge", Command::Del)];
    let add = |runtime: &Runtime, id: &str| drop(runtime.add(&case.network, &of(id)).unwrap());
    let valid = [Attachment::new("pods", "c2", "eth0").unwrap()];
    let scopes = [
        (GcScope::NoList, 0, 2),
        (GcScope::AllBut(&valid), 1, 1),
        (GcScope::AllBut(&[]), 2, 0),
        (GcScope::Cached, 2, 0),
    ];
    for (scope, deleted, left) in scopes {
        let dels = vec![del.to_vec(); deleted].concat();
        let script = [&added()[..], &added(), &dels, &gc].concat();
        let case = Case { dir: tempfile::tempdir().unwrap(), network: case.network.clone() };
        let calls = case.run(&script, |runtime| {
            add(runtime, "c1");
            add(runtime, "c2");
            runtime.gc(&case.network, scope).unwrap();
            assert_eq!(Case::files(runtime, "results").len(), left, "{scope:?}");
        });
        let input = input(calls.last().unwrap());
        let list = match scope {
            GcScope::AllBut([]) => json!([]),
            GcScope::AllBut(_) => json!([{"containerID": "c2", "ifname": "eth0"}]),
            GcScope::NoList | GcScope::Cached => Value::Null,
        };
        assert_eq!(input["cni.dev/valid-attachments"], list);
        assert_eq!(input["cni.dev/attachments"], list);
        assert_eq!(input.get("cni.dev/attachments").is_some(), scope.list().is_some());
    }
}

#[test]
fn gc_continues_after_errors() {
    let case = Case::new();
    let script = [
        &added()[..],
        &[
            failing("portmap", Command::Del, "busy"),
            failing("bridge", Command::Gc, "no"),
            call("portmap", Command::Gc),
        ],
    ];
    case.run(&script.concat(), |runtime| {
        runtime.add(&case.network, &container()).unwrap();
        let error = runtime.gc(&case.network, GcScope::AllBut(&[])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to delete stale attachment c1 eth0: plugin type=\"portmap\" name=\"ports\" failed (delete): \
             busy\nfailed to GC plugin bridge: no"
        );
    });
}

#[test]
fn a_single_configuration_is_cached_as_such_and_its_errors_are_the_plugins() {
    let mut case = Case::new();
    let config = json!({"type": "ptp", "name": "one", "cniVersion": "1.1.0"});
    case.network = Network::single(config.to_string()).unwrap();
    let script = [
        call("ptp", Command::Add).prints(last().to_string()),
        call("ptp", Command::Check),
        call("ptp", Command::Status),
        call("ptp", Command::Gc),
        failing("ptp", Command::Del, "busy"),
    ];
    case.run(&script, |runtime| {
        runtime.add(&case.network, &container()).unwrap();
        let cached = runtime.attachments("c1").unwrap().remove(0);
        assert_eq!(serde_json::from_slice::<Value>(&cached.config).unwrap(), config);
        assert_eq!(cached.network(), case.network);
        runtime.check(&case.network, &container()).unwrap();
        runtime.status(&case.network).unwrap();
        runtime.gc(&case.network, GcScope::NoList).unwrap();
        let error = runtime.del(&cached.network(), &cached.container()).unwrap_err();
        assert_eq!(error.to_string(), "busy");
    });
}

#[test]
fn a_bare_result_of_old_libcni_is_used() {
    let case = Case::new();
    let old = json!({"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.22.0.9/24"}], "dns": {}});
    let results = case.cache().join("results");
    std::fs::create_dir_all(&results).unwrap();
    std::fs::write(results.join("pods-c1-eth0"), old.to_string()).unwrap();
    let script = [
        call("bridge", Command::Check),
        call("portmap", Command::Check),
        call("portmap", Command::Del),
        call("bridge", Command::Del),
    ];
    let calls = case.run(&script, |runtime| {
        runtime.check(&case.network, &container()).unwrap();
        runtime.del(&case.network, &container()).unwrap();
        assert!(Case::files(runtime, "results").is_empty());
    });
    for call in &calls {
        // In the form of the list's version.
        assert_eq!(
            input(call)["prevResult"],
            json!({"cniVersion": "1.1.0", "ips": [{"address": "10.22.0.9/24"}]})
        );
    }
}

#[test]
fn commands_that_a_version_lacks() {
    let mut case = Case::new();
    case.network =
        Network::builder("n").version(Version::V0_3_1).plugin(json!({"type": "p"})).build().unwrap();
    let calls = case.run(
        &[call("p", Command::Add).prints(r#"{"cniVersion":"0.3.1"}"#), call("p", Command::Del)],
        |runtime| {
            runtime.add(&case.network, &container()).unwrap();
            runtime.status(&case.network).unwrap();
            runtime.gc(&case.network, GcScope::NoList).unwrap();
            let error = runtime.check(&case.network, &container()).unwrap_err();
            assert_eq!(
                error.to_string(),
                "configuration version \"0.3.1\" does not support the CHECK command"
            );
            runtime.del(&case.network, &container()).unwrap();
        },
    );
    assert!(input(&calls[1]).get("prevResult").is_none());
}

#[test]
fn invalid_names_call_no_plugin_and_make_no_file() {
    let case = Case::new();
    case.run(&[], |runtime| {
        for container in
            [Container::new("../c", "eth0"), Container::new("", "eth0"), Container::new("c", "a/b")]
        {
            for error in [
                runtime.add(&case.network, &container).unwrap_err(),
                runtime.del(&case.network, &container).unwrap_err(),
                runtime.check(&case.network, &container).unwrap_err(),
            ] {
                assert!(matches!(error, NetworkError::Name(_)), "{error}");
            }
        }
        let network = Network::builder("../n").plugin(json!({"type": "p"})).build().unwrap();
        assert!(matches!(runtime.gc(&network, GcScope::NoList), Err(NetworkError::Name(_))));
        assert!(!runtime.cache_dir().exists());
    });
}

#[test]
fn validate_reports_every_plugin_without_the_version() {
    let case = Case::new();
    let script = [
        call("bridge", Command::Version).prints(r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#),
        missing("portmap", Command::Version),
    ];
    case.run(&script, |runtime| {
        let error = runtime.validate(&case.network).unwrap_err();
        assert_eq!(
            error.to_string(),
            "plugin bridge does not support config version \"1.1.0\"\nno such plugin"
        );
    });
}

#[test]
#[should_panic(expected = "call of bridge STATUS, expected bridge ADD")]
fn a_fake_refuses_a_call_that_is_not_next() {
    let case = Case::new();
    let fake = Fake::new(added());
    let runtime = Runtime::builder().cache(case.dir.path()).exec(Arc::new(fake)).build();
    drop(runtime.status(&case.network));
}

#[test]
#[should_panic(expected = "calls that were not made")]
fn a_fake_refuses_calls_that_are_missing() {
    drop(Fake::new(added()));
}
