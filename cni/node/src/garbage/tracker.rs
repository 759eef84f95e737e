// SPDX-License-Identifier: GPL-3.0-or-later

//! The decision which attachments are garbage, without input and output.
//!
//! An attachment is due if two complete lists, the grace period apart, do not have its sandbox, nor any complete list in
//! between, and its file is the same. A list that fails changes nothing: the next complete one decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use cni_spec::Attachment;

use super::inventory::Inventory;

/// The attachments whose sandboxes the lists do not have.
#[derive(Debug)]
pub struct Tracker {
    grace: Duration,
    missing: BTreeMap<Attachment, Absence>,
}

#[derive(Debug)]
struct Absence {
    /// The first list without it.
    since: Instant,
    /// The time of the file that names it.
    written: Option<SystemTime>,
    /// The next try, after one that did not delete it.
    again: Option<Instant>,
    /// The reason why the last attempt did not delete it.
    trouble: Option<String>,
}

impl Tracker {
    /// Tracks nothing yet.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        Self { grace, missing: BTreeMap::new() }
    }

    /// Takes over a complete list of sandboxes, with the attachments that were known before the list was asked for. The order
    /// matters: an attachment that is made after the list is not missing in it. Returns those that are due.
    #[must_use]
    pub fn observe(&mut self, now: Instant, known: &Inventory, listed: &BTreeSet<String>) -> Vec<Attachment> {
        let is_listed = |one: &Attachment| listed.contains(one.container_id());
        self.missing.retain(|one, missing| known.get(one) == Some(&missing.written) && !is_listed(one));
        for (one, written) in known.iter().filter(|(one, _)| !is_listed(one)) {
            self.missing.entry(one.clone()).or_insert_with(|| Absence {
                since: now,
                written: *written,
                again: None,
                trouble: None,
            });
        }
        let is_due = |missing: &Absence| {
            // Two lists are needed, even without a grace period.
            missing.since < now
                && now.duration_since(missing.since) >= self.grace
                && missing.again.is_none_or(|again| again <= now)
        };
        self.missing.iter().filter(|(_, missing)| is_due(missing)).map(|(one, _)| one.clone()).collect()
    }

    /// Forgets an attachment that was deleted.
    pub fn forget(&mut self, attachment: &Attachment) {
        self.missing.remove(attachment);
    }

    /// Forgets all attachments: there is no runtime that could list them.
    pub fn clear(&mut self) {
        self.missing.clear();
    }

    /// Keeps an attachment for another grace period, for a reason.
    pub fn keep(&mut self, attachment: &Attachment, now: Instant, reason: String) {
        if let Some(missing) = self.missing.get_mut(attachment) {
            missing.again = Some(now + self.grace);
            missing.trouble = Some(reason);
        }
    }

    /// The number of attachments that were missing in the last complete list.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.missing.len()
    }

    /// The reasons why attachments were not deleted.
    pub fn troubles(&self) -> impl Iterator<Item = (&Attachment, &str)> {
        self.missing.iter().filter_map(|(one, missing)| Some((one, missing.trouble.as_deref()?)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GRACE: Duration = Duration::from_secs(100);

    fn attachment(number: u8) -> Attachment {
        Attachment::new("pods", &format!("{number:064x}"), "eth0").unwrap()
    }

    fn known(numbers: &[u8], seconds: u64) -> Inventory {
        let written = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        numbers.iter().map(|number| (attachment(*number), Some(written))).collect()
    }

    fn listed(numbers: &[u8]) -> BTreeSet<String> {
        numbers.iter().map(|number| attachment(*number).container_id().to_owned()).collect()
    }

    #[test]
    fn an_attachment_is_due_after_the_grace() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut tracker = Tracker::new(GRACE);
        let mut sweep =
            |seconds, list: &[u8]| tracker.observe(at(seconds), &known(&[1, 2], 0), &listed(list));
        assert_eq!(sweep(0, &[1]), []);
        assert_eq!(sweep(99, &[1]), []);
        assert_eq!(sweep(100, &[1]), [attachment(2)]);
        // A list that contains the sandbox starts the grace period again.
        assert_eq!(sweep(101, &[1, 2]), []);
        assert_eq!(sweep(102, &[1]), []);
        assert_eq!(sweep(201, &[1]), []);
        assert_eq!(sweep(202, &[1]), [attachment(2)]);
        tracker.keep(&attachment(2), at(202), "it is in use".to_owned());
        assert_eq!(tracker.observe(at(301), &known(&[1, 2], 0), &listed(&[1])), []);
        assert_eq!(tracker.troubles().map(|(_, reason)| reason).collect::<Vec<_>>(), ["it is in use"]);
        assert_eq!(tracker.observe(at(302), &known(&[1, 2], 0), &listed(&[1])), [attachment(2)]);
        // The attachment has a new file, because the container was attached again.
        assert_eq!(tracker.observe(at(303), &known(&[1, 2], 7), &listed(&[1])), []);
        assert_eq!((tracker.missing(), tracker.troubles().count()), (1, 0));
        // The attachment's file is gone: a DEL succeeded.
        assert_eq!(tracker.observe(at(500), &known(&[1], 7), &listed(&[1])), []);
        assert_eq!(tracker.missing(), 0);
    }

    #[test]
    fn two_lists_are_needed_without_a_grace() {
        let begin = Instant::now();
        let mut tracker = Tracker::new(Duration::ZERO);
        assert_eq!(tracker.observe(begin, &known(&[1], 0), &listed(&[])), []);
        assert_eq!(tracker.observe(begin, &known(&[1], 0), &listed(&[])), []);
        let next = begin + Duration::from_millis(1);
        assert_eq!(tracker.observe(next, &known(&[1], 0), &listed(&[])), [attachment(1)]);
    }

    /// A pod, in seconds: its ADD ends at `added`, the runtime lists it `delay` later, up to `removed`; its DEL ends
    /// `lasting` later, or never.
    #[derive(Debug, Clone)]
    struct Pod {
        added: u64,
        delay: u64,
        removed: u64,
        deleted: Option<u64>,
    }

    impl Pod {
        fn is_known(&self, now: u64) -> bool {
            self.added <= now && self.deleted.is_none_or(|deleted| now < deleted)
        }

        fn is_listed(&self, now: u64) -> bool {
            (self.added + self.delay..self.removed).contains(&now)
        }
    }

    fn pod() -> impl Strategy<Value = Pod> {
        let times = (0_u64..1000, 0..GRACE.as_secs(), 0_u64..1000, prop::option::of(0_u64..300));
        times.prop_map(|(added, delay, life, deleting)| {
            let removed = added + delay + life;
            Pod { added, delay, removed, deleted: deleting.map(|lasting| removed + lasting) }
        })
    }

    /// A sweep: the time since the one before, the time between the files and the list, and the kind of list.
    #[derive(Debug, Clone)]
    enum List {
        Complete,
        /// The runtime does not reply.
        Failed,
        /// A runtime that knows nothing replies.
        Empty,
    }

    fn sweeps() -> impl Strategy<Value = Vec<(u64, u64, List)>> {
        let kind = prop_oneof![6 => Just(List::Complete), 2 => Just(List::Failed), 1 => Just(List::Empty)];
        prop::collection::vec((0_u64..150, 0_u64..20, kind), 0..60)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 500, ..ProptestConfig::default() })]

        /// With true lists, no attachment of a pod that is being added, or that the runtime lists, is ever due, whatever
        /// lists fail. An empty list in between does no harm: none is due by it alone.
        #[test]
        fn a_live_attachment_is_never_due(
            pods in prop::collection::vec(pod(), 1..8),
            sweeps in sweeps(),
        ) {
            let begin = Instant::now();
            let mut tracker = Tracker::new(GRACE);
            let mut now = 0;
            // For each pod the first of the complete lists without it that end with the last list.
            let mut missing: Vec<Option<u64>> = vec![None; pods.len()];
            for (pause, delay, list) in sweeps {
                let files = now + pause;
                now = files + delay;
                let numbers = |is: &dyn Fn(&Pod) -> bool| -> Vec<u8> {
                    (0..).zip(&pods).filter(|(_, pod)| is(pod)).map(|(number, _)| number).collect()
                };
                let known = known(&numbers(&|pod| pod.is_known(files)), 0);
                let answer = match list {
                    List::Failed => continue,
                    List::Empty => Vec::new(),
                    List::Complete => numbers(&|pod| pod.is_listed(now)),
                };
                for (number, since) in (0..).zip(&mut missing) {
                    let is_missing = known.contains_key(&attachment(number)) && !answer.contains(&number);
                    *since = is_missing.then(|| since.unwrap_or(now));
                }
                let due = tracker.observe(begin + Duration::from_secs(now), &known, &listed(&answer));
                for (number, (pod, since)) in (0..).zip(pods.iter().zip(&missing)) {
                    if !due.contains(&attachment(number)) {
                        continue;
                    }
                    prop_assert!(!answer.contains(&number), "it is in the list");
                    let since = since.expect("it was missing");
                    prop_assert!(now - since >= GRACE.as_secs(), "missing for {} s", now - since);
                    // Only true lists decide.
                    if matches!(list, List::Complete) && since >= pod.added + pod.delay {
                        prop_assert!(now >= pod.removed, "{pod:?} at {now}");
                    }
                }
            }
        }

        /// Lists that are all true or failed: a pod that lives is not due, and a pod whose DEL never came is, in the end.
        #[test]
        fn true_lists_find_the_garbage_and_nothing_else(
            pods in prop::collection::vec(pod(), 1..8),
            pauses in prop::collection::vec((1_u64..50, any::<bool>()), 0..80),
        ) {
            let begin = Instant::now();
            let mut tracker = Tracker::new(GRACE);
            let mut now = 0;
            let numbers = |is: &dyn Fn(&Pod) -> bool| -> Vec<u8> {
                (0..).zip(&pods).filter(|(_, pod)| is(pod)).map(|(number, _)| number).collect()
            };
            let mut sweep = |now: u64| {
                let known = known(&numbers(&|pod| pod.is_known(now)), 0);
                let listed = listed(&numbers(&|pod| pod.is_listed(now)));
                tracker.observe(begin + Duration::from_secs(now), &known, &listed)
            };
            for (pause, fails) in pauses {
                now += pause;
                if !fails {
                    for one in sweep(now) {
                        let number = pods.iter().enumerate().find(|(number, _)| {
                            attachment(u8::try_from(*number).unwrap()) == one
                        });
                        let (_, pod) = number.expect("a pod");
                        prop_assert!(now >= pod.removed, "{pod:?} at {now}");
                    }
                }
            }
            let end = 10_000;
            let _first = sweep(end);
            let garbage: Vec<Attachment> =
                numbers(&|pod| pod.deleted.is_none()).into_iter().map(attachment).collect();
            prop_assert_eq!(sweep(end + GRACE.as_secs()), garbage);
        }
    }
}
