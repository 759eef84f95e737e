//! `firewall`: lets a container's packets through the node's firewall, and keeps bridges apart.

mod config;
mod dbus;
mod firewalld;

use std::net::IpAddr;

use cni_dataplane::ebpf;
use cni_dataplane::firewall::{self, BridgeUse, FirewallRequest, Held, IngressPolicy, Means};
use cni_dataplane::owner::{AttachmentHash, Owner};
use cni_kernel::route::{Link, RouteSocket};
use cni_spec::{AddResult, CniError, ErrorCode, Version};

use crate::interface::shared::container::Container;
use crate::interface::shared::failed;
use crate::plugin::{Belonging, NodeRequest, Plugin, Request};
use config::{Choice, Config};
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

    fn versions(&self) -> &'static [Version] {
        const { since_0_4_0() }
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let config = Config::read(request.config)?;
        let previous = previous(request)?;
        let wanted = wanted(request, &config, previous)?;
        if config.policy != IngressPolicy::Open {
            // The BPF programs put packets past the chains that keep containers apart.
            ebpf::leave_addresses(wanted.addresses.iter().copied());
        }
        let admitted = firewall::admit(&wanted).map_err(CniError::from).and_then(|()| match wanted.means {
            Means::Firewalld => Zone::open(&config.zone)?.add(&wanted.addresses),
            Means::Iptables | Means::Nftables => Ok(()),
        });
        if let Err(error) = admitted {
            if let Err(left) = take_away(request, &config.zone, config.policy) {
                log::warn!("take back what was made for {}: {left}", request.attachment);
            }
            return Err(error);
        }
        Ok(previous.clone())
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        let (choice, zone, policy) = config::for_removal(request.config);
        let told = told_addresses(request);
        // A container of the reference's, of whom nothing is recorded.
        let may_be_in_zone = !told.is_empty() && matches!(choice, Choice::Auto | Choice::Firewalld);
        if may_be_in_zone && firewall::held(&request.attachment)?.is_none() && firewalld::seems_to_run() {
            Zone::open(&zone)?.remove(&told)?;
        }
        take_away(request, &zone, policy)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let config = Config::read(request.config)?;
        let mut wanted = wanted(request, &config, previous(request)?)?;
        if config.choice == Choice::Auto {
            // What ran when the container came counts.
            wanted.means = firewall::held(&request.attachment)?.map_or(wanted.means, |held| held.means);
        }
        firewall::check(&wanted)?;
        if wanted.means != Means::Firewalld {
            return Ok(());
        }
        match Zone::open(&config.zone)?.missing(&wanted.addresses)? {
            None => Ok(()),
            Some(address) => {
                let msg = format!("firewalld: {address} is not in zone {}", config.zone);
                Err(CniError::internal(msg))
            }
        }
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let Some(valid) = &request.config.valid_attachments else { return Ok(()) };
        let (_, zone, _) = config::for_removal(request.config);
        let mut result = Ok(());
        for held in firewall::dead(&request.config.name, valid)? {
            result = result.and(forget(&held, &zone));
        }
        for (bridge, needed) in firewall::separated_bridges()? {
            if !needed && bridge_use(&bridge, None)? == BridgeUse::Unused {
                result = result.and(firewall::rejoin(&bridge).map_err(CniError::from));
            }
        }
        result
    }

    fn belongings(&self, request: &Request<'_>) -> Result<Vec<Box<dyn Belonging>>, CniError> {
        let config = Config::read(request.config)?;
        let wanted = wanted(request, &config, previous(request)?)?;
        Ok(vec![Box::new(Rules { wanted, zone: config.zone })])
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let config = Config::read(request.config)?;
        let unavailable = |reason: String| CniError::new(ErrorCode::NotAvailable, reason);
        let means = means(config.choice);
        if config.choice == Choice::Firewalld
            && !firewalld::is_running().map_err(|error| unavailable(error.msg))?
        {
            return Err(unavailable("firewalld does not run".to_owned()));
        }
        firewall::status(means, config.policy).map_err(|error| unavailable(error.to_string()))
    }
}

const fn since_0_4_0() -> &'static [Version] {
    Version::ALL.split_at(4).1
}

fn previous<'a>(request: &'a Request<'_>) -> Result<&'a AddResult, CniError> {
    let previous = request.config.prev_result.as_ref();
    previous.ok_or_else(|| CniError::config("missing prevResult from earlier plugin"))
}

/// How it is to be done.
fn means(choice: Choice) -> Means {
    match choice {
        Choice::Iptables => Means::Iptables,
        Choice::Nftables => Means::Nftables,
        Choice::Firewalld => Means::Firewalld,
        Choice::Auto if firewalld::seems_to_run() => Means::Firewalld,
        Choice::Auto => Means::Iptables,
    }
}

fn wanted(request: &Request<'_>, config: &Config, previous: &AddResult) -> Result<FirewallRequest, CniError> {
    let bridge = previous.interfaces.first().map(|interface| interface.name.clone()).unwrap_or_default();
    if config.policy != IngressPolicy::Open {
        let refused = |why: &str| CniError::config(format!("ingressPolicy: {why}"));
        if bridge.is_empty() {
            return Err(refused("prevResult names no bridge that could be kept apart"));
        }
        cni_spec::check_ifname(&bridge).map_err(|error| refused(&error.to_string()))?;
        // To iptables it would mean every name that begins so.
        if bridge.ends_with('+') {
            return Err(refused(&format!("a bridge called {bridge:?} cannot be kept apart")));
        }
    }
    let fits = cni_spec::check_ifname(&bridge).is_ok();
    Ok(FirewallRequest {
        attachment: request.attachment.clone(),
        means: means(config.choice),
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

fn told_addresses(request: &Request<'_>) -> Vec<IpAddr> {
    request.config.prev_result.as_ref().map(addresses).unwrap_or_default()
}

/// Takes away what the attachment has, by whatever means.
fn take_away(request: &Request<'_>, zone: &str, policy: IngressPolicy) -> Result<(), CniError> {
    let attachment = &request.attachment;
    let held = firewall::held(attachment)?;
    if let Some(held) = &held {
        leave_zone(held, zone)?;
    }
    let first = request.config.prev_result.as_ref().and_then(|previous| previous.interfaces.first());
    let told = first.map(|interface| interface.name.as_str()).unwrap_or_default();
    let bridge = held.as_ref().map_or(told, |held| held.bridge.as_str());
    let separated =
        policy != IngressPolicy::Open || held.as_ref().is_some_and(|held| held.policy != IngressPolicy::Open);
    let bridge_use = if separated { bridge_use(bridge, Some(request))? } else { BridgeUse::Unknown };
    Ok(firewall::dismiss(attachment, &told_addresses(request), (bridge, bridge_use))?)
}

/// Where firewalld does not run any more, its zones are gone.
fn leave_zone(held: &Held, zone: &str) -> Result<(), CniError> {
    if held.means == Means::Firewalld && firewalld::is_running()? {
        return Zone::open(zone)?.remove(&held.addresses);
    }
    Ok(())
}

fn forget(held: &Held, zone: &str) -> Result<(), CniError> {
    leave_zone(held, zone)?;
    let bridge_use = match held.policy {
        IngressPolicy::Open => BridgeUse::Unknown,
        _ => bridge_use(&held.bridge, None)?,
    };
    Ok(firewall::forget(held, bridge_use)?)
}

/// Whether there are containers on a bridge of whom nothing is recorded, such as the reference's: they may
/// need it apart. The container that a DEL is about does not count.
fn bridge_use(bridge: &str, leaving: Option<&Request<'_>>) -> Result<BridgeUse, CniError> {
    let host = RouteSocket::open().map_err(failed)?;
    let Some(link) = host.find_link(bridge).map_err(failed)? else { return Ok(BridgeUse::Unused) };
    let own = match leaving {
        Some(request) => own_port(request)?,
        None => None,
    };
    let links = host.links().map_err(failed)?;
    let is_own = |port: &Link| Some(port.index) == own || leaving.is_some_and(|request| is_of(port, request));
    let ports = links.iter().filter(|port| port.master == Some(link.index) && !is_own(port)).count();
    let recorded = firewall::recorded_on(bridge, leaving.map(|request| &request.attachment))?;
    Ok(if ports > recorded { BridgeUse::Unknown } else { BridgeUse::Unused })
}

/// The number of the node's end of the container's link.
fn own_port(request: &Request<'_>) -> Result<Option<u32>, CniError> {
    let Some(container) = Container::open_if_there(request.netns.as_deref())? else { return Ok(None) };
    let link = container.route.find_link(request.attachment.ifname()).map_err(failed)?;
    Ok(link.and_then(|link| link.peer))
}

/// Whether a port has the attachment's name on it, as bridge writes it: the link outlives the namespace's path
/// for a while.
fn is_of(port: &Link, request: &Request<'_>) -> bool {
    let owner = Owner::from_comment(&port.alias);
    owner.is_some_and(|owner| owner.attachment_hash == AttachmentHash::of(&request.attachment))
}

/// What a flush of the ruleset takes away.
struct Rules {
    wanted: FirewallRequest,
    zone: String,
}

impl Belonging for Rules {
    fn name(&self) -> String {
        "rules of the firewall".to_owned()
    }

    fn check(&self) -> Result<(), CniError> {
        Ok(firewall::check(&self.wanted)?)
    }

    fn put_back(&self) -> Result<(), CniError> {
        firewall::admit(&self.wanted)?;
        match self.wanted.means {
            Means::Firewalld => Zone::open(&self.zone)?.add(&self.wanted.addresses),
            Means::Iptables | Means::Nftables => Ok(()),
        }
    }

    fn take_away(&self) -> Result<(), CniError> {
        let wanted = &self.wanted;
        if let Some(held) = firewall::held(&wanted.attachment)? {
            leave_zone(&held, &self.zone)?;
        }
        let bridge = (wanted.bridge.as_str(), BridgeUse::Unknown);
        Ok(firewall::dismiss(&wanted.attachment, &wanted.addresses, bridge)?)
    }
}
