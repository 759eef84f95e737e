// SPDX-License-Identifier: GPL-2.0-or-later

//! Chains of other programs at the forward hook that drop by default.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use cni_dataplane::dropping::{self, DroppingChain, Form};
use cni_dataplane::iptables::Variant;
use cni_dataplane::node::{self, ForwardChain};
use cni_dataplane::{AddressFamily, Backend, Dataplane};

use super::{Finding, State, existing};

/// The consequence of a chain that drops.
const REASON: &str = "traffic to and from containers passes only if one of its rules accepts it";

/// All findings about these chains.
pub(super) fn findings() -> Vec<Finding> {
    let mut found = of_nftables();
    found.extend(legacy(AddressFamily::V4));
    found.extend(legacy(AddressFamily::V6));
    found
}

/// The chains that drop forwarded packets of a family unless one of their rules accepts them.
pub(in crate::operator) fn dropping_chains(family: AddressFamily) -> Vec<DroppingChain> {
    let of_other = match family {
        AddressFamily::V4 => "ip6 ",
        AddressFamily::V6 => "ip ",
    };
    let chains = node::forward_chains().unwrap_or_default();
    let dropping = chains.iter().filter(|chain| chain.drops && !chain.name.starts_with(of_other));
    let mut all: Vec<DroppingChain> = dropping.map(DroppingChain::of_nftables).collect();
    let (command, tables) = legacy_names(family);
    if legacy_tables(tables).is_ok_and(|tables| tables.iter().any(|table| table == "filter"))
        && matches!(legacy_policy(command), Ok(Some(policy)) if policy != "ACCEPT")
    {
        let name = format!("FORWARD of {command}");
        all.push(DroppingChain::of_iptables(Variant::Legacy, family, name));
    }
    all
}

fn of_nftables() -> Vec<Finding> {
    const WHAT: &str = "chains of other programs at the forward hook";
    let chains = match node::forward_chains() {
        Ok(chains) => chains,
        Err(error) => return vec![Finding::unread(WHAT, &error)],
    };
    if chains.iter().all(|chain| !chain.drops) {
        let found = match chains.len() {
            0 => "none".to_owned(),
            count => format!("{count}, none drops by default"),
        };
        return vec![Finding::ok(WHAT, found)];
    }
    let dropping = chains.iter().filter(|chain| chain.drops);
    let of_chain = |chain: &ForwardChain| {
        let family = match chain.name.split_once(' ') {
            Some(("ip", _)) => Some(AddressFamily::V4),
            Some(("ip6", _)) => Some(AddressFamily::V6),
            _ => None,
        };
        let found = format!("policy drop at the forward hook, {} rules", chain.rules);
        finding(&DroppingChain::of_nftables(chain), format!("chain {}", chain.name), found, family)
    };
    dropping.map(of_chain).collect()
}

/// The finding about a chain that drops. One that accepts the published ports of all containers is only noted.
fn finding(chain: &DroppingChain, what: String, found: String, family: Option<AddressFamily>) -> Finding {
    let published = Dataplane::default().list().unwrap_or_default();
    let of_family = |ip: &IpAddr| family.is_none_or(|family| AddressFamily::of(*ip) == family);
    let mut containers = published.iter().map(|one| one.port.container).filter(of_family).peekable();
    if containers.peek().is_some() && containers.all(|container| chain.admits(container)) {
        return Finding::new(what, State::Note, format!("{found}; it accepts the published ports"))
            .reason(REASON);
    }
    let networks = dropping::container_networks().unwrap_or_default();
    Finding::new(what, State::Warning, found).reason(REASON).fix(remedy(chain, &chain.commands(&networks)))
}

/// The remedy for a chain that drops. The text between backquotes works when it is pasted.
fn remedy(chain: &DroppingChain, commands: &str) -> String {
    const PLUGIN: &str =
        "or chain the plugin firewall with backend iptables, which does so for each container";
    match chain.form {
        Form::DockerUser => {
            format!("`{commands}`: Docker leaves DOCKER-USER alone, but a boot empties it; {PLUGIN}")
        }
        Form::Iptables => format!(
            "`{commands}`, until FORWARD is loaded again (ufw: DEFAULT_FORWARD_POLICY in /etc/default/ufw; where Docker \
             runs, in its chain DOCKER-USER); {PLUGIN}"
        ),
        Form::DockerNftables => format!(
            "`{commands}`, until Docker starts again; lasting: \"ip-forward-no-drop\": true in /etc/docker/daemon.json, \
             or forwarding that is on before Docker starts (/etc/sysctl.d)"
        ),
        Form::Nftables => format!(
            "add rules to it that accept the containers' network in both directions, where the chain is defined, and \
             now: `{commands}`"
        ),
        Form::Bridge => "add rules to it that accept the containers' network in both directions".to_owned(),
    }
}

/// The command, and the list of tables, of legacy iptables for a family.
const fn legacy_names(family: AddressFamily) -> (&'static str, &'static str) {
    match family {
        AddressFamily::V4 => ("iptables-legacy", "ip_tables_names"),
        AddressFamily::V6 => ("ip6tables-legacy", "ip6_tables_names"),
    }
}

/// The tables that are loaded. A kernel without legacy iptables has no such list.
fn legacy_tables(names: &str) -> io::Result<Vec<String>> {
    let text = existing(fs::read_to_string(Path::new("/proc/self/net").join(names)))?.unwrap_or_default();
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// The tables of legacy iptables, which nft does not list.
fn legacy(family: AddressFamily) -> Vec<Finding> {
    let (command, names) = legacy_names(family);
    let what = format!("tables of {command}");
    let tables = match legacy_tables(names) {
        Ok(tables) if tables.is_empty() => return vec![Finding::ok(what, "none")],
        Ok(tables) => tables,
        Err(error) => {
            return vec![
                Finding::unread(what, &error)
                    .reason("nft does not list them, and a policy of DROP in one would stop traffic to containers")
                    .fix("run this command as root"),
            ];
        }
    };
    let active = Finding::new(what, State::Note, tables.join(", "))
        .reason("their chains see the traffic, and nft does not list them");
    if !tables.iter().any(|table| table == "filter") {
        return vec![active];
    }
    let chain = format!("{command} FORWARD");
    let policy = match legacy_policy(command) {
        Ok(Some(policy)) if policy == "ACCEPT" => Finding::ok(chain, "policy ACCEPT"),
        Ok(Some(policy)) => {
            let dropping = DroppingChain::of_iptables(Variant::Legacy, family, chain.clone());
            finding(&dropping, chain, format!("policy {policy}"), Some(family))
        }
        unknown => {
            let unread = match unknown {
                Err(error) => Finding::unread(chain, &error),
                Ok(_) => Finding::new(chain, State::Warning, "unknown: the command is missing"),
            };
            unread
                .reason("if its policy is DROP, traffic to containers passes only where a rule accepts it")
                .fix(format!("look at it with `{command} -S FORWARD`"))
        }
    };
    vec![active, policy]
}

/// Asks the command. None if there is no such command. Call this only if the table is loaded, because asking would load
/// it.
fn legacy_policy(command: &str) -> io::Result<Option<String>> {
    let mut asking = Command::new(command);
    asking.args(["--wait", "2", "-t", "filter", "-S", "FORWARD"]).stdin(Stdio::null());
    let Some(output) = existing(asking.output())? else { return Ok(None) };
    let text = String::from_utf8_lossy(&output.stdout);
    match policy_of(&text).filter(|_| output.status.success()) {
        Some(policy) => Ok(Some(policy.to_owned())),
        None => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(format!("{command}: {}: {}", output.status, complaint.trim())))
        }
    }
}

/// The policy in the output of `iptables -S FORWARD`.
fn policy_of(rules: &str) -> Option<&str> {
    rules.lines().find_map(|line| line.strip_prefix("-P FORWARD "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_found_among_the_rules() {
        let rules = "-P FORWARD DROP\n-A FORWARD -j DOCKER-USER\n";
        assert_eq!(policy_of(rules), Some("DROP"));
        assert_eq!(policy_of("-A FORWARD -j X\n"), None);
    }
}
