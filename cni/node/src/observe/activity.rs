// SPDX-License-Identifier: GPL-3.0-or-later

//! The last calls of plugins and the last repairs, for [`crate::top`].

use std::collections::VecDeque;
use std::time::Duration;

use cni_state::documents::{Activity, Call, RepairRecord};
use cni_state::report::{Report, Verb};
use k8s_openapi::jiff::Timestamp;

use crate::repair::Repair;

/// The number of calls that are kept.
const CALLS: usize = 200;
/// The number of repairs that are kept.
const REPAIRS: usize = 20;
/// The most texts of a repair.
const TEXTS: usize = 10;

/// The last events; the newest is last.
#[derive(Debug, Default)]
pub(super) struct ActivityLog {
    calls: VecDeque<Call>,
    repairs: VecDeque<RepairRecord>,
}

impl ActivityLog {
    /// Takes over a report. Only ADD and DEL are kept: others come every few seconds.
    pub(super) fn called(&mut self, report: &Report, time: Timestamp) {
        if !matches!(report.verb, Verb::Add | Verb::Del) {
            return;
        }
        let call = Call {
            time: time.to_string(),
            verb: report.verb.as_str().to_owned(),
            plugin: report.plugin.clone(),
            network: report.network.clone(),
            microseconds: microseconds(report.took),
            code: report.code,
        };
        push(&mut self.calls, CALLS, call);
    }

    /// Takes over a repair. One without a reason that found nothing is not kept.
    pub(super) fn repaired(&mut self, repair: &Repair, time: Timestamp) {
        let repaired = RepairRecord {
            time: time.to_string(),
            damages: repair.damages.iter().take(TEXTS).map(ToString::to_string).collect(),
            restored: repair.restored.as_ref().map_or(0, |done| done.restored.len()),
            failed: repair.failures().take(TEXTS).collect(),
            microseconds: microseconds(repair.took),
        };
        if !repaired.damages.is_empty() || repaired.restored > 0 || !repaired.failed.is_empty() {
            push(&mut self.repairs, REPAIRS, repaired);
        }
    }

    pub(super) fn activity(&self, node: &str) -> Activity {
        let (calls, repairs) = (self.calls.iter().cloned().collect(), self.repairs.iter().cloned().collect());
        Activity { node: node.to_owned(), calls, repairs }
    }
}

fn push<T>(queue: &mut VecDeque<T>, most: usize, item: T) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(item);
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::damage::Damage;
    use crate::repair::program::Restoration;

    #[test]
    fn the_last_calls_and_repairs_are_kept() {
        let mut recent = ActivityLog::default();
        let time = Timestamp::UNIX_EPOCH;
        let report = |verb, micros| Report {
            plugin: "bridge".to_owned(),
            verb,
            network: "pods".to_owned(),
            took: Duration::from_micros(micros),
            code: Some(11),
        };
        recent.called(&report(Verb::Status, 0), time);
        (0..=CALLS as u64).for_each(|micros| recent.called(&report(Verb::Add, micros), time));
        let restored = |restored: &[&str]| {
            let restored = restored.iter().map(|text| (*text).to_owned()).collect();
            Ok(Restoration { restored, failed: Vec::new() })
        };
        let repair = |damages: &[Damage], lines: &[&str]| Repair {
            damages: damages.iter().cloned().collect(),
            restored: restored(lines),
            programs: Ok(false),
            took: Duration::from_millis(3),
        };
        recent.repaired(&repair(&[], &[]), time);
        recent.repaired(&repair(&[], &["table"]), time);
        recent.repaired(&repair(&[Damage::Addresses], &[]), time);
        let Activity { node, calls, repairs } = recent.activity("node-1");
        assert_eq!((node.as_str(), calls.len()), ("node-1", CALLS));
        assert_eq!((calls[0].microseconds, calls[0].code, calls[0].verb.as_str()), (1, Some(11), "ADD"));
        let kept: Vec<_> = repairs.iter().map(|one| (one.restored, one.damages.join(", "))).collect();
        assert_eq!(kept, [(1, String::new()), (0, "the node's addresses changed".to_owned())]);
    }
}
