// SPDX-License-Identifier: MIT OR Apache-2.0

//! Properties of the machines for lists of any length and plugins that fail anywhere.

use std::collections::HashSet;

use cni_spec::{CniError, Version};
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// The calls and the result of a machine whose calls end with `outcomes`; after these all succeed.
fn run<V: Verb>(mut verb: V, outcomes: &[Kind]) -> (Vec<PluginCall>, Result<V::Output, NetworkError>) {
    let mut calls = Vec::new();
    let mut last = None;
    loop {
        match verb.next(last.take()) {
            Step::Done(done) => return (calls, done),
            Step::Call(call) => {
                last = Some(outcomes.get(calls.len()).copied().unwrap_or(Kind::Good).outcome(&call));
                calls.push(call);
                assert!(calls.len() < 100, "the machine does not end");
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Good,
    Fails,
    Garbage,
    NotFound,
    TimedOut,
    Cancelled,
}

impl Kind {
    fn outcome(self, call: &PluginCall) -> Outcome {
        match (self, call.command) {
            (Self::Good, Command::Version) => {
                Ok(br#"{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}"#.to_vec())
            }
            (Self::Good, _) => Ok(b"{}".to_vec()),
            (Self::Fails, _) => Err(CallError::Failed(CniError::internal("failed"))),
            (Self::Garbage, Command::Add | Command::Version) => Ok(b"{".to_vec()),
            // The output of other commands is not read.
            (Self::Garbage, _) => Err(CallError::Failed(CniError::internal("garbage"))),
            (Self::NotFound, _) => Err(CallError::NotFound(CniError::internal("not found"))),
            (Self::TimedOut, _) => Err(CallError::TimedOut(std::time::Duration::from_secs(1))),
            (Self::Cancelled, _) => Err(CallError::Cancelled),
        }
    }
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let good = prop_oneof![
        8 => Just(Kind::Good),
        1 => Just(Kind::Fails),
        1 => Just(Kind::Garbage),
        1 => Just(Kind::NotFound),
        1 => Just(Kind::TimedOut),
        1 => Just(Kind::Cancelled),
    ];
    prop::collection::vec(good, 0..16)
}

fn network(plugins: usize) -> Network {
    (0..plugins)
        .fold(Network::builder("n"), |list, index| list.plugin(json!({"type": format!("p{index}")})))
        .version(Version::V1_1_0)
        .build()
        .unwrap()
}

fn names(calls: &[PluginCall], command: Command) -> Vec<usize> {
    let of_command = calls.iter().filter(|call| call.command == command);
    of_command.map(|call| call.plugin[1..].parse().unwrap()).collect()
}

fn container() -> Container {
    Container::new("c", "eth0")
}

#[test]
fn the_first_plugins_failure_undoes_nothing_of_an_earlier_add() {
    let network = network(2);
    for (outcomes, had_interface, undone) in [
        ([Kind::Fails, Kind::Good, Kind::Good], true, 0),
        ([Kind::Fails, Kind::Good, Kind::Good], false, 1),
        // The first plugin has made something: its chain accepts interfaces that exist.
        ([Kind::Good, Kind::Fails, Kind::Good], true, 2),
    ] {
        let add = Add::new(&network, &container(), &[]).undo(true).had_interface(had_interface);
        let (calls, done) = run(add, &outcomes);
        assert_eq!(names(&calls, Command::Del).len(), undone);
        assert_eq!(matches!(done, Err(NetworkError::Undone { .. })), undone > 0);
    }
}

fn is_ascending(indices: &[usize]) -> bool {
    indices.iter().copied().eq(0..indices.len())
}

proptest! {
    #[test]
    fn no_plugin_gets_a_command_twice(
        plugins in 1usize..6, outcomes in kinds(), undo: bool, keep_going: bool, verb in 0..6,
    ) {
        let network = network(plugins);
        let (container, path) = (container(), []);
        let calls = match verb {
            0 => run(Add::new(&network, &container, &path).undo(undo), &outcomes).0,
            1 => run(Del::new(&network, &container, &path, None).keep_going(keep_going), &outcomes).0,
            2 => run(Check::new(&network, &container, &path, None), &outcomes).0,
            3 => run(Gc::new(&network, &path, GcScope::NoList, Vec::new()), &outcomes).0,
            4 => run(Status::new(&network, &path), &outcomes).0,
            _ => run(Validate::new(&network, &path), &outcomes).0,
        };
        let distinct: HashSet<_> = calls.iter().map(|call| (&call.plugin, call.command)).collect();
        prop_assert_eq!(distinct.len(), calls.len());
        for call in &calls {
            prop_assert_eq!(call.env.len(), 6);
            prop_assert_eq!(call.var("CNI_COMMAND").unwrap(), call.command.as_str());
        }
    }

    #[test]
    fn add_calls_in_order_up_to_the_first_failure(plugins in 1usize..6, outcomes in kinds()) {
        let network = network(plugins);
        let (calls, done) = run(Add::new(&network, &container(), &[]), &outcomes);
        let first_bad = outcomes.iter().position(|kind| *kind != Kind::Good).filter(|index| *index < plugins);
        prop_assert!(is_ascending(&names(&calls, Command::Add)));
        prop_assert_eq!(calls.len(), first_bad.map_or(plugins, |index| index + 1));
        prop_assert_eq!(done.is_err(), first_bad.is_some());
    }

    /// Also after a cancellation; a plugin that was not found has nothing to undo.
    #[test]
    fn an_undo_calls_del_of_what_was_called_in_reverse_order(plugins in 1usize..6, outcomes in kinds()) {
        let network = network(plugins);
        let (calls, done) = run(Add::new(&network, &container(), &[]).undo(true), &outcomes);
        let added = names(&calls, Command::Add);
        let Some(bad) = outcomes.iter().take(plugins).position(|kind| *kind != Kind::Good) else {
            prop_assert_eq!(calls.len(), plugins);
            return Ok(());
        };
        let mut undone = added.clone();
        if outcomes[bad] == Kind::NotFound {
            undone.pop();
        }
        undone.reverse();
        // An undo that is cancelled itself ends early: no driver does that.
        let cancelled = outcomes.iter().skip(added.len()).take(undone.len()).position(|k| *k == Kind::Cancelled);
        undone.truncate(cancelled.map_or(usize::MAX, |index| index + 1));
        prop_assert_eq!(names(&calls, Command::Del), undone);
        for call in &calls {
            prop_assert_eq!(call.undo, call.command == Command::Del);
        }
        if calls.len() > added.len() {
            let undo_failed = outcomes.iter().skip(added.len()).take(calls.len() - added.len()).any(|k| *k != Kind::Good);
            match done.unwrap_err() {
                NetworkError::Undone { undo, .. } => prop_assert_eq!(undo.is_some(), undo_failed),
                other => prop_assert!(false, "{}", other),
            }
        }
    }

    #[test]
    fn del_calls_in_reverse_order_and_reports_every_error(
        plugins in 1usize..6, outcomes in kinds(), keep_going: bool,
    ) {
        let network = network(plugins);
        let (calls, done) =
            run(Del::new(&network, &container(), &[], None).keep_going(keep_going), &outcomes);
        let mut called = names(&calls, Command::Del);
        let is_end = |kind: &Kind| if keep_going { *kind == Kind::Cancelled } else { *kind != Kind::Good };
        let end = outcomes.iter().position(is_end).map_or(plugins, |index| plugins.min(index + 1));
        prop_assert_eq!(called.len(), end);
        called.iter_mut().for_each(|index| *index = plugins - 1 - *index);
        prop_assert!(is_ascending(&called));
        let bad = outcomes.iter().take(end).filter(|kind| **kind != Kind::Good).count();
        prop_assert_eq!(done.err().map_or(0, |error| error.calls().len()), bad);
    }

    #[test]
    fn gc_and_validate_report_every_error(plugins in 1usize..6, outcomes in kinds()) {
        let network = network(plugins);
        let end = outcomes.iter().position(|kind| *kind == Kind::Cancelled);
        let end = end.map_or(plugins, |index| plugins.min(index + 1));
        let bad = outcomes.iter().take(end).filter(|kind| **kind != Kind::Good).count();
        let (calls, done) = run(Gc::new(&network, &[], GcScope::NoList, Vec::new()), &outcomes);
        prop_assert!(is_ascending(&names(&calls, Command::Gc)));
        prop_assert_eq!((calls.len(), done.err().map_or(0, |error| error.calls().len())), (end, bad));
        let (calls, done) = run(Validate::new(&network, &[]), &outcomes);
        prop_assert_eq!((calls.len(), done.err().map_or(0, |error| error.calls().len())), (end, bad));
    }
}
