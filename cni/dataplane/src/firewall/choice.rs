// SPDX-License-Identifier: GPL-2.0-or-later

//! Chooses the kind of rules if the configuration does not.

use super::table::FirewallTable;
use super::{IngressPolicy, Isolator, Means};
use crate::Error;
use crate::iptables::filter;

/// The means for a configuration that names no backend, on a node where firewalld does not run: the one that already
/// has rules of containers, or else iptables if it works, or else our own table.
///
/// With rules of both kinds, packets would have to pass two independent lists of what is let through. So the node
/// keeps one kind until its last container is gone.
///
/// # Errors
/// nf_tables or the legacy tables cannot be read.
pub fn default_means() -> Result<Means, Error> {
    if filter::holds_containers()? {
        return Ok(Means::Iptables);
    }
    match FirewallTable::open()? {
        Some(table) if !table.holds_rules()? => {}
        Some(_) => return Ok(Means::Nftables),
        None => return Ok(Means::Iptables),
    }
    Ok(if iptables_works()? { Means::Iptables } else { Means::Nftables })
}

/// The kind of rules that carry out a policy. With firewalld, these are the reference's chains if iptables works.
///
/// # Errors
/// As for [`default_means`].
pub fn isolator_for(means: Means, policy: IngressPolicy) -> Result<Isolator, Error> {
    Ok(match means {
        Means::Nftables => Isolator::Nftables,
        _ if policy.needs_sets() => Isolator::Nftables,
        Means::Iptables => Isolator::Iptables,
        Means::Firewalld if policy == IngressPolicy::Open => Isolator::Iptables,
        Means::Firewalld if FirewallTable::open()?.is_none() || iptables_works()? => Isolator::Iptables,
        Means::Firewalld => Isolator::Nftables,
    })
}

fn iptables_works() -> Result<bool, Error> {
    match filter::tools() {
        Ok(_) => Ok(true),
        Err(error @ (Error::NoIptables { .. } | Error::IptablesFails { .. })) => {
            log::debug!("{error}: nftables is used");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
