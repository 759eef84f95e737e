// SPDX-License-Identifier: GPL-3.0-or-later

//! Tells the BPF programs which flows they must not carry: follows the rules of all programs, and looks at the
//! containers' links. The maps of another version of the programs are left alone.

use std::time::{Duration, Instant};

use cni_dataplane::ebpf::Follower;
use cni_nftables::notify::{Notification, Notifications, TableChange};

/// The time between two looks at the containers' links and the legacy tables.
const LOOK: Duration = Duration::from_millis(700);
/// A change of the rules often comes with others.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The part of a processor that looks may take: one twentieth.
const SHARE: u32 = 20;
/// The part that looks may take while other programs change rules: a quarter. Reading 200,000 rules takes a second, and
/// kube-proxy or a firewall may change some of them all the time.
const SHARE_OF_CHANGES: u32 = 4;
/// Our own tables, whose rules are about flows. Each ADD and DEL changes their elements.
const OWN: [&str; 2] = ["slipway", "slipway-firewall"];

/// Follows the rules until `is_over`.
pub(super) fn follow(is_over: impl Fn() -> bool) {
    let mut rules = Notifications::open().inspect_err(|error| log::debug!("{error}")).ok();
    let mut follower = Follower::default();
    let (mut took, mut last_error) = (Duration::ZERO, String::new());
    let mut pause = Duration::ZERO;
    while !is_over() {
        let are_other = wait(&mut rules, pause, took * SHARE_OF_CHANGES);
        let begin = Instant::now();
        let error = follower.look(are_other).err().map(|error| error.to_string()).unwrap_or_default();
        if !error.is_empty() && error != last_error {
            log::warn!("{error}");
        }
        last_error = error;
        took = begin.elapsed();
        pause = LOOK.max(took * SHARE);
    }
}

/// Waits for the pause, or until shortly after a commit that touched rules, but for `least` in any case. Returns
/// whether there was such a commit.
fn wait(rules: &mut Option<Notifications>, pause: Duration, least: Duration) -> bool {
    let begin = Instant::now();
    let mut end = begin + pause;
    let mut are_other = false;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        let Some(socket) = rules else {
            std::thread::sleep(left);
            break;
        };
        match socket.next(left) {
            Ok(Some(notification)) if touches_rules(&notification) => {
                are_other = true;
                end = end.min(after_change(Instant::now(), begin + least));
            }
            Ok(_) => {}
            Err(error) => {
                log::debug!("{error}");
                *rules = None;
            }
        }
    }
    are_other
}

/// The time of the look after a change that is noticed now.
fn after_change(now: Instant, earliest: Instant) -> Instant {
    (now + DEBOUNCE).max(earliest)
}

/// True for all changes but those of elements of our own tables.
fn touches_rules(notification: &Notification) -> bool {
    let Notification::Generation(generation) = notification else { return true };
    let is_own = |name: &str, change: TableChange| OWN.contains(&name) && change < TableChange::Contents;
    generation.tables.iter().any(|(table, change)| !is_own(&table.name, *change))
}

#[cfg(test)]
mod tests {
    use cni_nftables::notify::Generation;
    use cni_nftables::{Family, TableId};

    use super::*;

    #[test]
    fn containers_of_ours_are_no_reason_to_read_the_rules() {
        let commit = |name: &str, change| {
            let tables = [(TableId::new(Family::Inet, name), change)].into();
            touches_rules(&Notification::Generation(Generation { number: 1, process: None, tables }))
        };
        assert!(!commit("slipway", TableChange::ElementsAdded));
        assert!(!commit("slipway", TableChange::ElementsDeleted));
        assert!(!commit("slipway-firewall", TableChange::ElementsAdded));
        for change in [TableChange::ElementsAdded, TableChange::Contents, TableChange::Deleted] {
            assert!(commit("filter", change), "{change:?}");
        }
        assert!(touches_rules(&Notification::Lost));
    }

    #[test]
    fn changes_of_a_large_ruleset_do_not_keep_a_processor_busy() {
        let now = Instant::now();
        let after_look = |took: Duration| after_change(now, now + took * SHARE_OF_CHANGES) - now;
        assert_eq!(after_look(Duration::from_millis(2)), DEBOUNCE);
        assert_eq!(after_look(Duration::from_secs(1)), Duration::from_secs(4));
    }
}
