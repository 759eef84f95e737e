// SPDX-License-Identifier: GPL-2.0-or-later

//! host-local: addresses from ranges, reserved in files on this node.
//!
//! The files are the reference's, so that either plugin set can take over from the other while pods run.
//! `store` describes the files and why they survive a crash; `index` describes the file from which an ADD or
//! a DEL reads the reservations without reading the directory.

mod abandoned;
mod avoidance;
mod config;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod index;
mod ledger;
pub mod leftovers;
mod mark;
pub(crate) mod other_networks;
mod owner;
mod range;
pub mod reservation_life;
mod resolv;
mod search;
mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use cni_kernel::bounded;
use cni_spec::{AddResult, Attachment, CniError, Dns, ErrorCode, IpConfig, NetConf, Version};
use cni_state::host_local::{Range, number};
use cni_state::subnet_file::{SubnetFile, SubnetFileError};
use ipnet::IpNet;
use nix::errno::Errno;

use self::avoidance::Avoidance;
use self::config::{Config, RawConfig};
use self::ledger::{Ledger, Reservation, ReserveError};
use self::range::RangeSet;
use self::search::{Block, next_free};
pub use self::store::StoreError;
use self::store::{Staged, Store};
use crate::plugin::{Env, NodeRequest, Plugin, Request};

/// The IPAM plugin `host-local`.
#[derive(Debug)]
pub struct HostLocal;

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        "host-local"
    }

    fn summary(&self) -> &'static str {
        "gives addresses from ranges, reserved in files on this node"
    }

    fn is_ipam(&self) -> bool {
        true
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        config::decodes()
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        resolve(request.config, request.env).map(drop)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let config = resolve(request.config, request.env)?;
        let config = with_subnets(config, request.config.version)?;
        let dns = match &config.resolv_conf {
            Some(path) => read_resolv_conf(path)?,
            None => Dns::default(),
        };
        let mut store = Store::create(&config.data_dir, request.attachment.network())?;
        let ips = allocate(&mut store, &config, request)?;
        Ok(AddResult { interfaces: Vec::new(), ips, routes: config.routes, dns })
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        let Some(store) = open(request.config, request.attachment.network())? else { return Ok(()) };
        // A runtime calls DEL several times for each sandbox; only the first one finds reservations.
        if !ledger::index_shows_none(&store, &request.attachment) {
            release(&store, &request.attachment)?;
        }
        Ok(())
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let attachment = &request.attachment;
        let owned = match open(request.config, attachment.network())? {
            Some(store) => Ledger::open(&store)?.owned(attachment)?,
            None => Vec::new(),
        };
        if owned.is_empty() {
            let id = attachment.container_id();
            let text = format!("host-local: Failed to find address added by container {id}");
            return Err(CniError::internal(text));
        }
        Ok(())
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let Some(valid) = &request.config.valid_attachments else { return Ok(()) };
        let Some(store) = open(request.config, &request.config.name)? else { return Ok(()) };
        Ledger::open(&store)?.retain(valid)?;
        Ok(store.sync()?)
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let config = resolve(request.config, request.env)?;
        let config = with_subnets(config, request.config.version).map_err(|error| match error.code {
            ErrorCode::InvalidConfig => error,
            _ => CniError { code: ErrorCode::NotAvailable, ..error },
        })?;
        let unusable = |error: &dyn std::fmt::Display| {
            let text = format!("host-local: dataDir {:?} is not usable: {error}", config.data_dir);
            CniError::new(ErrorCode::NotAvailable, text)
        };
        let mut store =
            Store::create(&config.data_dir, &request.config.name).map_err(|error| unusable(&error))?;
        // The probes are as many files as an ADD makes.
        let probes = config.sets.iter().map(|_| store.probe()).collect::<Result<Vec<_>, _>>();
        let probes = probes.map_err(|error| unusable(&error))?;
        store.make_ours(&config.data_dir, &request.config.name);
        let mut ledger = Ledger::open(&store).map_err(|error| unusable(&error))?;
        drop(probes);
        let gateways = gateways(&config);
        for set in &config.sets {
            let last = None;
            let free =
                next_free(set, last, &gateways, |block| ledger.taken(block)).map_err(|e| unusable(&e))?;
            let is_wanted = |address| set.range_of(address).is_some();
            if free.is_none()
                && abandoned::find(&store, &request.config.name, is_wanted)
                    .map_err(|error| unusable(&error))?
                    .is_empty()
            {
                return Err(CniError::new(ErrorCode::NotAvailable, exhausted(set)));
            }
        }
        Ok(())
    }
}

impl From<StoreError> for CniError {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::Lock(error) if error.is_timeout() => ErrorCode::TryAgainLater,
            _ => ErrorCode::Io,
        };
        Self::new(code, format!("host-local: {error}"))
    }
}

/// Opens the network's reservations; none if there is no directory. The configuration's ranges are ignored,
/// so that reservations of earlier ranges are found too.
fn open(config: &NetConf, network: &str) -> Result<Option<Store>, CniError> {
    let data_dir = config.decode::<RawConfig>()?.data_dir()?;
    Ok(Store::open(&data_dir, network)?)
}

fn resolve(config: &NetConf, env: &Env) -> Result<Config, CniError> {
    Ok(config.decode::<RawConfig>()?.resolve(config.version, env)?)
}

/// Adds the range sets of the configuration's file, if it names one.
///
/// A missing or invalid file is a transient condition, for which the specification has code 11 (section
/// "Error"): the node's agent writes it, without a change of the configuration. Code 50 is that of STATUS.
fn with_subnets(mut config: Config, version: Version) -> Result<Config, CniError> {
    let Some(path) = config.subnet_file.clone() else { return Ok(config) };
    let file = SubnetFile::read(&path).map_err(|error| {
        let code = match error {
            SubnetFileError::Missing(_) | SubnetFileError::Content { .. } => ErrorCode::TryAgainLater,
            SubnetFileError::Refused { .. } | SubnetFileError::File(_) => ErrorCode::Io,
        };
        let text = format!("host-local: ipam.subnetFile: {error}; the node's agent writes this file");
        CniError::new(code, text)
    })?;
    config
        .add_subnets(&file, version)
        .map_err(|error| CniError::config(format!("host-local: ipam.subnetFile {path:?}: {error}")))?;
    Ok(config)
}

/// The most bytes of a `resolv.conf`. The resolvers read a few lines of it.
const LARGEST_RESOLV_CONF: u64 = 1 << 20;

fn read_resolv_conf(path: &Path) -> Result<Dns, CniError> {
    let text = bounded::read(path, LARGEST_RESOLV_CONF).map_err(|error| {
        let reason = match error.raw_os_error() {
            Some(code) => Errno::from_raw(code).to_string(),
            None => error.to_string(),
        };
        CniError::new(ErrorCode::Io, format!("ipam.resolvConf: read {path:?}: {reason}"))
    })?;
    Ok(resolv::parse(&String::from_utf8_lossy(&text)))
}

/// A chosen address.
struct Choice<'a> {
    address: IpAddr,
    range: &'a Range,
}

/// Reserves one address of each range set: all or none.
fn allocate(store: &mut Store, config: &Config, request: &Request<'_>) -> Result<Vec<IpConfig>, CniError> {
    let attachment = &request.attachment;
    let (text, record) = (owner::text(attachment), mark::record(&store.boot, request.netns.as_deref()));
    let stage = || store.stage(&text, record.as_deref());
    let staged: Vec<Staged> = config.sets.iter().map(|_| stage()).collect::<Result<_, _>>()?;
    store.make_ours(&config.data_dir, attachment.network());
    let choices = reserve(store, config, request, &staged)?;
    Ok(choices.iter().map(Choice::to_ip_config).collect())
}

/// The part of [`allocate`] under the locks.
fn reserve<'a>(
    store: &Store,
    config: &'a Config,
    request: &Request<'_>,
    staged: &[Staged],
) -> Result<Vec<Choice<'a>>, CniError> {
    let attachment = &request.attachment;
    let mut ledger = Ledger::open(store)?;
    // If a network is called under two names at once, the later choice sees the reservation of the earlier one.
    let _all_networks = other_networks::lock(&config.data_dir);
    let mut avoidance = Avoidance::of(&config.data_dir, request.config);
    let mut tries = 0;
    loop {
        let choices = choose(&mut ledger, &mut avoidance, store, config, attachment)?;
        let reservations: Vec<Reservation<'_>> = (choices.iter().zip(staged).enumerate())
            .map(|(set, (choice, staged))| Reservation { set, address: choice.address, staged })
            .collect();
        match ledger.reserve(attachment, &reservations) {
            Ok(()) => return Ok(choices),
            Err(ReserveError::Store(error)) => return Err(error.into()),
            // Another program made the file without the lock, and without a visible change of the directory's
            // mtime.
            Err(error @ ReserveError::Taken(_)) if tries == 2 => {
                return Err(CniError::new(ErrorCode::TryAgainLater, format!("host-local: {error}")));
            }
            Err(ReserveError::Taken(_)) => ledger.rebuild()?,
        }
        tries += 1;
    }
}

/// Chooses an address from each set. Reserves nothing, but frees addresses whose owners are gone where none is free.
fn choose<'a>(
    ledger: &mut Ledger<'_>,
    avoidance: &mut Avoidance,
    store: &Store,
    config: &'a Config,
    attachment: &Attachment,
) -> Result<Vec<Choice<'a>>, CniError> {
    let mut requested = config.requested.clone();
    let mut owned = ledger.owned(attachment)?;
    let gateways = gateways(config);
    let mut choices = Vec::with_capacity(config.sets.len());
    for (at, set) in config.sets.iter().enumerate() {
        let wish = requested.iter().position(|address| set.range_of(*address).is_some());
        let wish = wish.map(|at| requested.remove(at));
        let failed = |text: String| CniError::internal(format!("failed to allocate for range {at}: {text}"));
        let choice = match wish.and_then(|address| Some((address, set.range_of(address)?))) {
            Some((address, range)) => {
                if gateways.contains(&address) {
                    return Err(failed(format!("requested ip {address} is subnet's gateway")));
                }
                let (block, place) = Block::of(address);
                let is_abandoned = |ledger: &mut Ledger<'_>| {
                    let freed = ledger.free_abandoned(attachment.network(), |one| one == address)?;
                    Ok::<bool, CniError>(freed > 0)
                };
                if ledger.taken(block)?.has(place) {
                    if !is_abandoned(ledger)? {
                        let text =
                            format!("requested IP address {address} is not available in range set {set}");
                        return Err(failed(text));
                    }
                    // The freed address may have been the container's own, reserved for an earlier namespace.
                    owned = ledger.owned(attachment)?;
                }
                Some(Choice { address, range })
            }
            None => {
                let is_wanted = |address| set.range_of(address).is_some();
                let last = store.last(at);
                let mut free = avoidance.next_free(set, last, &gateways, |block| ledger.taken(block))?;
                if free.is_none()
                    && !owned.iter().any(|address| is_wanted(*address))
                    && ledger.free_abandoned(attachment.network(), is_wanted)? > 0
                {
                    free = avoidance.next_free(set, last, &gateways, |block| ledger.taken(block))?;
                }
                if free.is_none() {
                    free = next_free(set, last, &gateways, |block| ledger.taken(block))?;
                }
                free.map(|(address, range)| Choice { address, range })
            }
        };
        if let Some(twice) = owned.iter().find(|address| set.range_of(**address).is_some()) {
            let id = attachment.container_id();
            let text = format!("{twice} has been allocated to {id}, duplicate allocation is not allowed");
            return Err(failed(text));
        }
        choices.push(choice.ok_or_else(|| failed(exhausted(set)))?);
    }
    if requested.is_empty() {
        return Ok(choices);
    }
    let left: Vec<String> = requested.iter().map(ToString::to_string).collect();
    Err(CniError::internal(format!("failed to allocate all requested IPs: {}", left.join(" "))))
}

impl Choice<'_> {
    fn to_ip_config(&self) -> IpConfig {
        // The range's prefix length fits its address's family.
        let address = IpNet::new(self.address, self.range.subnet.prefix_len());
        IpConfig {
            interface: None,
            address: address.unwrap_or_else(|_| IpNet::from(self.address)),
            gateway: Some(self.range.gateway),
        }
    }
}

/// Frees the attachment's addresses.
fn release(store: &Store, attachment: &Attachment) -> Result<(), StoreError> {
    let mut ledger = Ledger::open(store)?;
    let addresses = ledger.owned(attachment)?;
    if addresses.is_empty() {
        return Ok(());
    }
    let released = ledger.release(attachment, &addresses);
    drop(ledger);
    released.and(store.sync())
}

/// The number of containers that can get addresses from a configuration. Each takes one from every range set.
pub(crate) fn addresses(config: &NetConf) -> Result<u64, CniError> {
    let resolved = with_subnets(resolve(config, &Env::default())?, config.version)?;
    let gateways: BTreeSet<IpAddr> = gateways(&resolved).into_iter().collect();
    let of_range = |range: &Range| {
        let reserved = gateways.iter().filter(|gateway| range.contains(**gateway));
        (number(range.last) - number(range.first)).saturating_add(1).saturating_sub(reserved.count() as u128)
    };
    let of_set = |set: &RangeSet| set.ranges().iter().map(of_range).fold(0, u128::saturating_add);
    let least = resolved.sets.iter().map(of_set).min().unwrap_or_default();
    Ok(u64::try_from(least).unwrap_or(u64::MAX))
}

/// Every gateway of the configuration. None is allocated, even if another range includes it.
fn gateways(config: &Config) -> Vec<IpAddr> {
    config.sets.iter().flat_map(RangeSet::ranges).map(|range| range.gateway).collect()
}

fn exhausted(set: &RangeSet) -> String {
    format!("no IP addresses available in range set: {set}")
}
