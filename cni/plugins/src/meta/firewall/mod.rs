// SPDX-License-Identifier: GPL-2.0-or-later

//! `firewall`: lets a container's packets through the node's firewall, and isolates bridges.

mod bridge;
mod config;
mod firewalld;

use std::net::IpAddr;

use cni_dataplane::firewall::{
    self, BridgeUse, FirewallLock, FirewallRecord, FirewallRequest, IngressPolicy, Means,
};
use cni_dataplane::owner::AttachmentHash;
use cni_spec::{AddResult, CniError, ErrorCode, Version};

use crate::expected::Expected;
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use bridge::Leaving;
use config::{Choice, Config, Removal};
use firewalld::Zone;

/// The `firewall` plugin.
#[derive(Debug)]
pub struct Firewall;

impl Plugin for Firewall {
    fn name(&self) -> &'static str {
        "firewall"
    }

    fn summary(&self) -> &'static str {
        "lets packets of the container through the node's firewall"
    }

    fn place(&self) -> Place {
        Place::Chained
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        config::decodes()
    }

    fn versions(&self) -> &'static [Version] {
        const { since_0_4_0() }
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        let _removal = Removal::read(request.config);
        Config::read(request.config).map(drop)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let config = Config::read(request.config)?;
        let previous = previous(request)?;
        let wanted = wanted(request, &config, previous)?;
        let lock = FirewallLock::for_add(&wanted)?;
        let earlier = firewall::held(&request.attachment)?;
        let is_repeated = earlier.is_some();
        if let Err(error) = make(&wanted, earlier, &lock) {
            drop(lock);
            // The rules of an earlier ADD stay, because its container is running.
            if !is_repeated
                && let Err(left) = take_away(request, &config.zone, config.policy, &FirewallLock::for_del())
            {
                log::warn!("undo the ADD of {}: {left}", request.attachment);
            }
            return Err(error);
        }
        Ok(previous.clone())
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        let Removal { choice, zone, policy } = Removal::read(request.config);
        let previous = previous_addresses(request);
        let held = firewall::held(&request.attachment)?;
        if held.is_none() && !may_be_left(request, &previous)? {
            return Ok(());
        }
        let lock = match &held {
            Some(held) if !held.needs_lock() => FirewallLock::not_needed(),
            _ => FirewallLock::for_del(),
        };
        // A container that the reference attached has no record.
        let may_be_in_zone = !previous.is_empty() && matches!(choice, Choice::Auto | Choice::Firewalld);
        if may_be_in_zone && held.is_none() && firewalld::seems_to_run()? {
            let owner = AttachmentHash::of(&request.attachment);
            Zone::open(&zone)?.remove(&firewall::own_addresses(owner, &previous)?)?;
        }
        take_away(request, &zone, policy, &lock)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let config = Config::read(request.config)?;
        let wanted = as_recorded(wanted(request, &config, previous(request)?)?, &config)?;
        firewall::check(&wanted)?;
        compare_zone(&wanted)
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let Some(valid) = &request.config.valid_attachments else { return Ok(()) };
        let zone = Removal::read(request.config).zone;
        let mut result = Ok(());
        for held in firewall::dead(&request.config.name, valid)? {
            result = result.and(forget(&held, &zone));
        }
        for bridge in firewall::needlessly_separated()? {
            let lock = FirewallLock::for_del();
            if bridge::use_of(&bridge, Leaving::default())? == BridgeUse::Unused {
                result = result.and(firewall::rejoin(&bridge, &lock).map_err(CniError::from));
            }
        }
        result
    }

    fn expected(&self, request: &Request<'_>) -> Result<Vec<Box<dyn Expected>>, CniError> {
        let config = Config::read(request.config)?;
        let wanted = as_recorded(wanted(request, &config, previous(request)?)?, &config)?;
        Ok(vec![Box::new(Rules { wanted })])
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let config = Config::read(request.config)?;
        let unavailable = |reason: String| CniError::new(ErrorCode::NotAvailable, reason);
        let unusable = |error: cni_dataplane::Error| unavailable(error.to_string());
        let means = means(config.choice).map_err(|error| unavailable(error.msg))?;
        if config.choice == Choice::Firewalld
            && !firewalld::is_running().map_err(|error| unavailable(error.msg))?
        {
            return Err(unavailable("firewalld does not run".to_owned()));
        }
        let isolator = firewall::isolator_for(means, config.policy).map_err(unusable)?;
        firewall::status(means, config.policy, isolator).map_err(unusable)
    }
}

/// The request of a container that the reference attached, which has all its rules but no record. The argument is the
/// request of a CHECK.
///
/// # Errors
/// Code 7 for the configuration; rules or records that cannot be read.
pub fn unrecorded(request: &Request<'_>) -> Result<Option<FirewallRequest>, CniError> {
    let config = Config::read(request.config)?;
    let wanted = wanted(request, &config, previous(request)?)?;
    // Rules in nftables are their own record.
    if wanted.means == Means::Nftables || firewall::held(&request.attachment)?.is_some() {
        return Ok(None);
    }
    let compared = firewall::check(&wanted).map_err(CniError::from).and_then(|()| compare_zone(&wanted));
    Ok(compared.is_ok().then_some(wanted))
}

const fn since_0_4_0() -> &'static [Version] {
    Version::ALL.split_at(4).1
}

fn previous<'a>(request: &'a Request<'_>) -> Result<&'a AddResult, CniError> {
    let previous = request.config.prev_result.as_ref();
    previous.ok_or_else(|| CniError::config("missing prevResult from earlier plugin"))
}

/// The means that a choice results in on this node now.
fn means(choice: Choice) -> Result<Means, CniError> {
    match choice {
        Choice::Iptables => Ok(Means::Iptables),
        Choice::Nftables => Ok(Means::Nftables),
        Choice::Firewalld => Ok(Means::Firewalld),
        Choice::Auto if firewalld::seems_to_run()? => Ok(Means::Firewalld),
        Choice::Auto => Ok(firewall::default_means()?),
    }
}

/// The request with what the ADD chose where the configuration leaves a choice, even if iptables was installed since
/// then, or firewalld has started or stopped.
fn as_recorded(wanted: FirewallRequest, config: &Config) -> Result<FirewallRequest, CniError> {
    let Some(held) = firewall::held(&wanted.attachment)? else { return Ok(wanted) };
    let means = if config.choice == Choice::Auto { held.means } else { wanted.means };
    let is_same = (means, wanted.policy) == (held.means, held.policy);
    let isolator = if is_same { held.isolator } else { firewall::isolator_for(means, wanted.policy)? };
    Ok(FirewallRequest { means, isolator, ..wanted })
}

fn wanted(request: &Request<'_>, config: &Config, previous: &AddResult) -> Result<FirewallRequest, CniError> {
    // A link in the container may have the name of one on the node.
    let first = previous.interfaces.first().filter(|interface| interface.sandbox.is_empty());
    let bridge = first.map(|interface| interface.name.clone()).unwrap_or_default();
    if config.policy != IngressPolicy::Open {
        let refused = |why: &str| CniError::config(format!("ingressPolicy: {why}"));
        if bridge.is_empty() {
            return Err(refused("prevResult has no bridge to isolate"));
        }
        cni_spec::check_ifname(&bridge).map_err(|error| refused(&error.to_string()))?;
        // iptables would match every interface whose name begins like this.
        if bridge.ends_with('+') {
            return Err(refused(&format!("a bridge called {bridge:?} cannot be isolated")));
        }
    }
    let fits = cni_spec::check_ifname(&bridge).is_ok();
    previous.check_addresses()?;
    let means = means(config.choice)?;
    Ok(FirewallRequest {
        attachment: request.attachment.clone(),
        means,
        isolator: firewall::isolator_for(means, config.policy)?,
        zone: config.zone.clone(),
        addresses: addresses(previous),
        bridge: if fits { bridge } else { String::new() },
        policy: config.policy,
        admin_chain: config.admin_chain.clone(),
    })
}

/// All addresses of the result, each once.
fn addresses(previous: &AddResult) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = previous.ips.iter().map(|ip| ip.address.addr()).collect();
    all.sort();
    all.dedup();
    all
}

fn previous_addresses(request: &Request<'_>) -> Vec<IpAddr> {
    request.config.prev_result.as_ref().map(addresses).unwrap_or_default()
}

/// Makes the rules of an attachment, which has the record `earlier`. First removes the addresses that only the earlier
/// ADD added to a zone, because the new record no longer names that zone or these addresses.
fn make(
    wanted: &FirewallRequest,
    earlier: Option<FirewallRecord>,
    lock: &FirewallLock,
) -> Result<(), CniError> {
    if let Some(held) = earlier {
        let stays = |address: &IpAddr| {
            let known = held.zone.is_empty() || held.zone == wanted.zone;
            wanted.means == Means::Firewalld && known && wanted.addresses.contains(address)
        };
        let stale: Vec<IpAddr> = held.addresses.iter().filter(|one| !stays(one)).copied().collect();
        leave_zone(&FirewallRecord { addresses: stale, ..held }, &wanted.zone)?;
    }
    firewall::admit(wanted, lock)?;
    match wanted.means {
        Means::Firewalld => Zone::open(&wanted.zone)?.add(&wanted.addresses),
        Means::Iptables | Means::Nftables => Ok(()),
    }
}

/// Compares firewalld's zone with the wanted addresses, if firewalld is the means.
fn compare_zone(wanted: &FirewallRequest) -> Result<(), CniError> {
    if wanted.means != Means::Firewalld {
        return Ok(());
    }
    match Zone::open(&wanted.zone)?.missing(&wanted.addresses)? {
        None => Ok(()),
        Some(address) => {
            let msg = format!("firewalld: {address} is not in zone {}", wanted.zone);
            Err(CniError::internal(msg))
        }
    }
}

/// True if something may be left of an attachment without a record, such as the reference's: a rule or a zone with one
/// of its addresses, or a bridge that is isolated although no container needs it. Only looks, because a runtime calls
/// DEL several times for each sandbox, and only the first call finds something.
fn may_be_left(request: &Request<'_>, previous: &[IpAddr]) -> Result<bool, CniError> {
    let Removal { choice, zone, policy } = Removal::read(request.config);
    let own = firewall::own_addresses(AttachmentHash::of(&request.attachment), previous)?;
    if firewall::may_have_rules(&own)? {
        return Ok(true);
    }
    let may_be_in_zone = !own.is_empty() && matches!(choice, Choice::Auto | Choice::Firewalld);
    if may_be_in_zone && firewalld::seems_to_run()? && Zone::open(&zone)?.has_any(&own)? {
        return Ok(true);
    }
    let bridge = previous_bridge(request);
    let separated =
        policy != IngressPolicy::Open && !bridge.is_empty() && firewall::may_be_needlessly_separated(bridge)?;
    Ok(separated && bridge::use_of(bridge, Leaving::of(request)?)? == BridgeUse::Unused)
}

fn previous_bridge<'a>(request: &'a Request<'_>) -> &'a str {
    let first = request.config.prev_result.as_ref().and_then(|previous| previous.interfaces.first());
    first.map(|interface| interface.name.as_str()).unwrap_or_default()
}

/// Removes the attachment's rules, whichever means made them.
fn take_away(
    request: &Request<'_>,
    zone: &str,
    policy: IngressPolicy,
    lock: &FirewallLock,
) -> Result<(), CniError> {
    let attachment = &request.attachment;
    let held = firewall::held(attachment)?;
    if let Some(held) = &held {
        leave_zone(held, zone)?;
    }
    let bridge = held.as_ref().map_or_else(|| previous_bridge(request), |held| held.bridge.as_str());
    // Only chains need to know who uses the bridge: the sets of our own table list what each attachment needs.
    // A container without a record may be the reference's, which makes chains.
    let separated = held.as_ref().map_or(policy != IngressPolicy::Open, FirewallRecord::isolates_in_chains);
    let bridge_use =
        if separated { bridge::use_of(bridge, Leaving::of(request)?)? } else { BridgeUse::Unknown };
    Ok(firewall::dismiss(attachment, &previous_addresses(request), bridge, bridge_use, lock)?)
}

/// Removes addresses from the zone that the record names, or from the configured one. If firewalld is not running,
/// there are no zones. An address that another attachment uses by now stays.
fn leave_zone(held: &FirewallRecord, configured: &str) -> Result<(), CniError> {
    if held.means != Means::Firewalld || held.addresses.is_empty() || !firewalld::is_running()? {
        return Ok(());
    }
    let zone = if held.zone.is_empty() { configured } else { &held.zone };
    Zone::open(zone)?.remove(&firewall::own_addresses(held.owner.attachment_hash, &held.addresses)?)
}

fn forget(held: &FirewallRecord, zone: &str) -> Result<(), CniError> {
    let lock = if held.needs_lock() { FirewallLock::for_del() } else { FirewallLock::not_needed() };
    leave_zone(held, zone)?;
    let bridge_use = if held.isolates_in_chains() {
        bridge::use_of(&held.bridge, Leaving::recorded(held.owner.attachment_hash))?
    } else {
        BridgeUse::Unknown
    };
    Ok(firewall::forget(held, bridge_use, &lock)?)
}

/// The attachment's rules, which a flush of the ruleset or a reload of firewalld deletes.
struct Rules {
    wanted: FirewallRequest,
}

impl Expected for Rules {
    fn name(&self) -> String {
        "rules of the firewall".to_owned()
    }

    fn is_rules(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        firewall::check_record(&self.wanted)?;
        compare_zone(&self.wanted)
    }

    fn put_back(&self) -> Result<(), CniError> {
        let lock = FirewallLock::for_add(&self.wanted)?;
        make(&self.wanted, firewall::held(&self.wanted.attachment)?, &lock)
    }

    fn take_away(&self) -> Result<(), CniError> {
        let (wanted, lock) = (&self.wanted, FirewallLock::for_del());
        if let Some(held) = firewall::held(&wanted.attachment)? {
            leave_zone(&held, &wanted.zone)?;
        }
        let (bridge, bridge_use) = (wanted.bridge.as_str(), BridgeUse::Unknown);
        Ok(firewall::dismiss(&wanted.attachment, &wanted.addresses, bridge, bridge_use, &lock)?)
    }
}
