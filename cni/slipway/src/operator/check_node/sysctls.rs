// SPDX-License-Identifier: GPL-2.0-or-later

//! Settings of the kernel below `/proc/sys`.

use std::path::Path;

use cni_kernel::sysctl::{self, SysctlError};

use super::{Finding, State, judged};

/// The subject of the finding about the node's own ports.
const LOCAL_PORTS: &str = "ports free for publishing";

/// A setting of the kernel, its purpose, and the judgement of its values.
struct Setting {
    name: &'static str,
    why: &'static str,
    judge: fn(&str) -> (State, &'static str),
}

const SETTINGS: &[Setting] = &[
    Setting {
        name: "net/ipv4/ip_forward",
        why: "packets between containers and other hosts are forwarded",
        judge: |value| match value {
            "1" => (State::Ok, "on"),
            _ => (State::Note, "off: a bridge that is a gateway switches it on"),
        },
    },
    Setting {
        name: "net/ipv6/conf/all/forwarding",
        why: "packets between containers and other hosts are forwarded",
        judge: |value| match value {
            "1" => (State::Ok, "on"),
            _ => (State::Note, "off: a bridge that is an IPv6 gateway switches it on"),
        },
    },
    Setting {
        name: "net/ipv4/conf/all/route_localnet",
        why: "127.0.0.1 of the node must not be reachable from outside; Slipway sets it for single links only",
        judge: |value| match value {
            "0" => (State::Ok, "off"),
            _ => (
                State::Warning,
                "on for every interface: switch it off, unless something else guards 127.0.0.0/8",
            ),
        },
    },
    Setting {
        name: "net/ipv4/conf/all/rp_filter",
        why: "strict filtering drops packets that arrive on another interface than replies would leave by",
        judge: |value| match value {
            "1" => (State::Note, "strict: traffic with asymmetric routes is dropped"),
            "2" => (State::Ok, "loose"),
            _ => (State::Ok, "off"),
        },
    },
    Setting {
        name: "net/bridge/bridge-nf-call-iptables",
        why: "with it, frames between containers on one bridge pass the forward chains as well",
        judge: |value| match value {
            "0" => (State::Ok, "off"),
            _ => (
                State::Note,
                "on: forward chains of other programs see traffic within a bridge, and a container \
                 reaches its own published port only with hairpinMode",
            ),
        },
    },
    Setting {
        name: "net/bridge/bridge-nf-call-ip6tables",
        why: "while it is on, [::1]:hostPort does not answer: the bridge translates replies too early",
        judge: |value| match value {
            "0" => (State::Ok, "off"),
            _ => (
                State::Warning,
                "on: published ports do not answer on [::1]; set it to 0 if nothing needs it",
            ),
        },
    },
];

/// All findings about the settings in this directory.
pub(super) fn findings(directory: &Path) -> Vec<Finding> {
    let judge = |setting: &Setting| {
        judged(setting.name, value_of(directory, setting.name), |value| {
            value.map(|value| {
                let (state, words) = (setting.judge)(&value);
                Finding::new(setting.name, state, format!("{value} ({words})")).reason(setting.why)
            })
        })
    };
    let mut found: Vec<Finding> = SETTINGS.iter().flat_map(judge).collect();
    found.extend(local_ports(directory));
    found
}

/// None if the setting belongs to a module that is not loaded, or to another namespace.
pub(super) fn value_of(directory: &Path, setting: &str) -> Result<Option<String>, SysctlError> {
    match sysctl::get_below(directory, setting) {
        Err(error) if error.is_not_found() => Ok(None),
        value => value.map(Some),
    }
}

/// The ports of the node's own connections.
fn local_ports(directory: &Path) -> Vec<Finding> {
    let read = || {
        let range = value_of(directory, "net/ipv4/ip_local_port_range")?;
        let reserved = value_of(directory, "net/ipv4/ip_local_reserved_ports")?;
        Ok::<_, SysctlError>(range.map(|range| (range, reserved.unwrap_or_default())))
    };
    judged(LOCAL_PORTS, read(), |found| found.and_then(|(range, reserved)| of_ports(&range, &reserved)))
}

fn of_ports(range: &str, reserved: &str) -> Option<Finding> {
    const WHY: &str = "an outgoing connection and a published port of the same number do not collide, \
                       but a published port hides a server of the node with the same port";
    let mut ends = range.split_whitespace();
    let (first, last) = (ends.next()?, ends.next()?);
    let reserved =
        if reserved.is_empty() { "none reserved".to_owned() } else { format!("reserved: {reserved}") };
    let found = format!("{first} to {last} are the node's own for outgoing connections, {reserved}");
    Some(
        Finding::new(LOCAL_PORTS, State::Note, found)
            .reason(WHY)
            .fix("publish ports outside of the range, or list them in net.ipv4.ip_local_reserved_ports"),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::operator::check_node::tests::is_unread;

    #[test]
    fn a_setting_that_cannot_be_read_is_named_and_a_missing_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(findings(dir.path()), []);
        let file = |name: &str| dir.path().join(name);
        let ports = ["net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports"];
        for name in SETTINGS.iter().map(|setting| setting.name).chain(ports) {
            fs::create_dir_all(file(name)).unwrap();
        }
        let found = findings(dir.path());
        is_unread(&found);
        assert_eq!(found.len(), SETTINGS.len() + 1, "{found:?}");
        // The reserved ports alone are not taken for none.
        fs::remove_dir(file(ports[0])).unwrap();
        fs::write(file(ports[0]), "32768\t60999\n").unwrap();
        is_unread(&local_ports(dir.path()));
        fs::remove_dir(file(ports[1])).unwrap();
        assert!(local_ports(dir.path())[0].found.ends_with("none reserved"));
    }

    #[test]
    fn each_value_of_a_setting_is_judged() {
        for setting in SETTINGS {
            for value in ["0", "1", "2"] {
                assert!(!(setting.judge)(value).1.is_empty(), "{}", setting.name);
            }
        }
    }
}
