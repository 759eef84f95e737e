// SPDX-License-Identifier: GPL-3.0-or-later

//! firewalld's reloads, starts and stops, as the system bus reports them. A complete reload empties its zones and flushes all
//! rules of iptables; with legacy iptables the kernel reports no change.

use std::thread;
use std::time::Duration;

use cni_kernel::dbus::{Bus, BusError, Target};

use super::damage::{Damage, FirewalldChange};

const NAME: &str = "org.fedoraproject.FirewallD1";
const SERVER: Target = Target { name: NAME, path: "/org/fedoraproject/FirewallD1", interface: NAME };
/// The signal after a reload, and the bus's when firewalld starts or stops.
const RULES: [&str; 2] = [
    "type='signal',interface='org.fedoraproject.FirewallD1',member='Reloaded'",
    "type='signal',sender='org.freedesktop.DBus',interface='org.freedesktop.DBus',member='NameOwnerChanged',\
     arg0='org.fedoraproject.FirewallD1'",
];
/// The time between two attempts to reach a bus.
const RETRY: Duration = Duration::from_secs(5);
/// The time within which a waiting thread notices that nobody listens any more.
const ALIVE: Duration = Duration::from_millis(500);

/// Reports firewalld's changes until `report` returns false. A node may have no bus, or get one later.
pub(super) fn watch(report: impl Fn(Option<Damage>) -> bool) {
    let mut last_error = String::new();
    loop {
        match follow(&report) {
            Ok(()) => return,
            Err(error) => {
                // The same error is logged only once, because most nodes have no bus.
                let error = error.to_string();
                if error != last_error {
                    log::debug!("firewalld's reloads are not noticed: {error}");
                    last_error = error;
                }
            }
        }
        let mut waited = Duration::ZERO;
        while waited < RETRY {
            if !report(None) {
                return;
            }
            thread::sleep(ALIVE);
            waited += ALIVE;
        }
    }
}

/// Reports until nobody listens.
fn follow(report: &impl Fn(Option<Damage>) -> bool) -> Result<(), BusError> {
    let mut bus = Bus::system()?;
    RULES.iter().try_for_each(|rule| bus.subscribe(rule))?;
    loop {
        let signal = bus.next_signal(ALIVE)?;
        let change = signal.and_then(|signal| match (signal.member.as_str(), signal.texts.as_slice()) {
            ("Reloaded", _) if signal.interface == NAME => Some(FirewalldChange::Reloaded),
            ("NameOwnerChanged", [name, _, new]) if name == NAME => match new.is_empty() {
                true => Some(FirewalldChange::Stopped),
                false => Some(FirewalldChange::Started),
            },
            _ => None,
        });
        if change == Some(FirewalldChange::Started) {
            // firewalld owns its name on the bus before its rules are in place, and answers when they are.
            if let Err(error) = bus.call(SERVER, "getDefaultZone", &[]) {
                log::debug!("wait for firewalld: {error}");
            }
        }
        if !report(change.map(Damage::Firewalld)) {
            return Ok(());
        }
    }
}
