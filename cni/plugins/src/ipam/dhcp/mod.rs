//! dhcp: addresses from a DHCP server on the container's link. A lease must be kept as long as the container
//! lives, which a plugin does not: `slipway dhcp daemon` does, and the plugin tells it what to do.

mod config;
pub mod daemon;
mod exchange;
mod flags;
mod frame;
mod keeper;
mod lease;
mod leases;
pub(crate) mod leftovers;
mod message;
mod protocol;

use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use cni_spec::{AddResult, CniError, ErrorCode, Version};
use serde_json::{Map, Value};

use self::config::RawConfig;
use self::lease::Owner;
use self::protocol::{Reply, Request as Call};
use crate::plugin::{NodeRequest, Plugin, Request};

/// How long the daemon is waited for. It gives up after the time that its flag `-resendtimeout` says.
const PATIENCE: Duration = Duration::from_secs(600);

/// The IPAM plugin `dhcp`.
#[derive(Debug)]
pub struct Dhcp;

impl Plugin for Dhcp {
    fn name(&self) -> &'static str {
        "dhcp"
    }

    fn summary(&self) -> &'static str {
        "gives addresses from a DHCP server on the container's link, by a daemon"
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let config: RawConfig = request.config.decode()?;
        let (options, priority) = (config.options(request.args)?, config.priority()?);
        let netns = request.netns.clone().unwrap_or_default();
        let owner = Owner::of(&request.attachment);
        let stream = connect(&config.socket())?;
        let mut result = leased("Allocate", stream, &Call::Allocate { owner, netns, options })?;
        for route in &mut result.routes {
            route.priority = priority;
        }
        Ok(result)
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        let config: RawConfig = request.config.decode()?;
        let owner = Owner::of(&request.attachment);
        let has_lease = daemon::has_file(Path::new(daemon::STATE), &owner);
        match connect(&config.socket()) {
            Ok(stream) => call(stream, "Release", &Call::Release { owner }).map(drop),
            // Without a daemon nobody keeps leases. One that is on the disk will be kept again.
            Err(_) if !has_lease => Ok(()),
            Err(error) => Err(CniError { code: ErrorCode::TryAgainLater, ..error }),
        }
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let config: RawConfig = request.config.decode()?;
        let owner = Owner::of(&request.attachment);
        let result = leased("Renew", connect(&config.socket())?, &Call::Renew { owner })?;
        let Some(before) = &request.config.prev_result else { return Ok(()) };
        let addresses: Vec<IpAddr> = before.ips.iter().map(|ip| ip.address.addr()).collect();
        match result.ips.iter().find(|ip| !addresses.contains(&ip.address.addr())) {
            None => Ok(()),
            Some(ip) => {
                let (address, ifname) = (ip.address.addr(), request.attachment.ifname());
                Err(CniError::internal(format!("dhcp: Failed to match addr {address} on interface {ifname}")))
            }
        }
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let Some(valid) = &request.config.valid_attachments else { return Ok(()) };
        let config: RawConfig = request.config.decode()?;
        let network = request.config.name.clone();
        match connect(&config.socket()) {
            Ok(stream) => {
                let owners = valid.iter().map(Owner::of).collect();
                call(stream, "Retain", &Call::Retain { network, owners }).map(drop)
            }
            Err(_) if !daemon::has_files(Path::new(daemon::STATE), &network) => Ok(()),
            Err(error) => Err(CniError { code: ErrorCode::TryAgainLater, ..error }),
        }
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let config: RawConfig = request.config.decode()?;
        config.options("")?;
        let unavailable = |error: CniError| CniError { code: ErrorCode::NotAvailable, ..error };
        let stream = connect(&config.socket()).map_err(unavailable)?;
        call(stream, "Ping", &Call::Ping).map(drop).map_err(unavailable)
    }
}

/// A call whose answer is a lease.
fn leased(method: &str, stream: UnixStream, what: &Call) -> Result<AddResult, CniError> {
    let object = call(stream, method, what)?;
    AddResult::from_object(Version::V1_1_0, &object)
        .map_err(|e| CniError::internal(format!("error calling DHCP.{method}: {e}")))
}

fn connect(path: &Path) -> Result<UnixStream, CniError> {
    let told = |text: String| {
        let msg = format!("error dialing DHCP daemon: dial unix {}: {text}", path.display());
        CniError::new(ErrorCode::Io, msg)
    };
    let failed = |e: std::io::Error| told(e.to_string());
    let stream = UnixStream::connect(path).map_err(failed)?;
    protocol::expect_root(&stream).map_err(told)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    Ok(stream)
}

fn call(mut stream: UnixStream, method: &str, call: &Call) -> Result<Map<String, Value>, CniError> {
    let failed =
        |error: CniError| CniError { msg: format!("error calling DHCP.{method}: {}", error.msg), ..error };
    let io = |e: std::io::Error| failed(CniError::new(ErrorCode::Io, e.to_string()));
    protocol::write(&mut stream, call).map_err(io)?;
    match protocol::read(&mut stream).map_err(failed)? {
        Reply::Done(object) => Ok(object),
        Reply::Failed(error) => Err(failed(error)),
    }
}
