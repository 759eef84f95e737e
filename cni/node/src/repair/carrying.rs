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
/// Our own table, whose rules are about flows.
const OWN: &str = "slipway";

/// Follows the rules until `is_over`.
pub(super) fn follow(is_over: impl Fn() -> bool) {
    let mut rules = Notifications::open().inspect_err(|error| log::debug!("{error}")).ok();
    let mut follower = Follower::default();
    let (mut pause, mut last_error) = (Duration::ZERO, String::new());
    while !is_over() {
        let are_other = wait(&mut rules, pause);
        let begin = Instant::now();
        let error = follower.look(are_other).err().map(|error| error.to_string()).unwrap_or_default();
        if !error.is_empty() && error != last_error {
            log::warn!("{error}");
        }
        last_error = error;
        pause = LOOK.max(begin.elapsed() * SHARE);
    }
}

/// Waits for the pause, or until shortly after a commit that touched rules. Returns whether there was such a commit.
fn wait(rules: &mut Option<Notifications>, pause: Duration) -> bool {
    let mut end = Instant::now() + pause;
    let mut are_other = false;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        let Some(socket) = rules else {
            std::thread::sleep(left);
            break;
        };
        match socket.next(left) {
            Ok(Some(notification)) if touches_rules(&notification) => {
                are_other = true;
                end = end.min(Instant::now() + DEBOUNCE);
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

/// True for all changes but those of elements of our own table.
fn touches_rules(notification: &Notification) -> bool {
    let Notification::Generation(generation) = notification else { return true };
    let is_own = |name: &str, change: TableChange| name == OWN && change < TableChange::Contents;
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
        for change in [TableChange::ElementsAdded, TableChange::Contents, TableChange::Deleted] {
            assert!(commit("filter", change), "{change:?}");
        }
        assert!(touches_rules(&Notification::Lost));
    }
}
