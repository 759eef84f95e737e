// SPDX-License-Identifier: GPL-2.0-or-later

//! dhcp: addresses from a DHCP server on the container's link. A lease must be renewed as long as the container lives,
//! but the plugin's process ends, so the plugin asks `slipway dhcp daemon` to do it.

mod config;
pub mod daemon;
mod exchange;
mod frame;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod keeper;
mod lease;
mod leases;
pub mod leftovers;
mod message;
mod protocol;

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use cni_kernel::dir::DirError;
use cni_spec::{AddResult, CniError, ErrorCode, Version};
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, setsockopt, sockopt};
use nix::sys::time::TimeVal;
use serde_json::{Map, Value};

use self::config::RawConfig;
use self::lease::Owner;
use self::protocol::{Reply, Request as Call};
use crate::plugin::{NodeRequest, Plugin, Request};

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

    fn is_ipam(&self) -> bool {
        true
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        config::decodes()
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        let config: RawConfig = request.config.decode()?;
        config.priority()?;
        Ok(config.options(request.args).map(drop)?)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let config: RawConfig = request.config.decode()?;
        let (options, priority) = (config.options(request.args)?, config.priority()?);
        let netns = request.netns.clone().unwrap_or_default();
        let owner = Owner::of(&request.attachment);
        let mut result = leased(&config.socket(), &Call::Allocate { owner, netns, options })?;
        for route in &mut result.routes {
            route.priority = priority;
        }
        Ok(result)
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        let config: RawConfig = request.config.decode()?;
        let owner = Owner::of(&request.attachment);
        let has_lease = leftovers::has_lease(Path::new(config::STATE), &owner);
        give_back(&config.socket(), &Call::Release { owner }, has_lease)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let config: RawConfig = request.config.decode()?;
        let owner = Owner::of(&request.attachment);
        let result = leased(&config.socket(), &Call::Renew { owner })?;
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
        let has_leases = leftovers::has_leases(Path::new(config::STATE), &network);
        let owners = valid.iter().map(Owner::of).collect();
        give_back(&config.socket(), &Call::Retain { network, owners }, has_leases)
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let config: RawConfig = request.config.decode()?;
        config.options("")?;
        let unavailable = |error: CniError| CniError { code: ErrorCode::NotAvailable, ..error };
        let stream = connect(&config.socket(), &Call::Ping).map_err(unavailable)?;
        call(stream, &Call::Ping).map(drop).map_err(unavailable)
    }
}

/// Sends a request whose reply is a lease.
fn leased(socket: &Path, what: &Call) -> Result<AddResult, CniError> {
    let object = call(connect(socket, what)?, what)?;
    AddResult::from_object(Version::V1_1_0, &object)
        .map_err(|e| CniError::internal(format!("error calling DHCP.{}: {e}", what.method())))
}

/// Sends a request that releases leases. Without a daemon it succeeds if there are none on disk.
fn give_back(socket: &Path, what: &Call, has_leases: Result<bool, DirError>) -> Result<(), CniError> {
    let has_leases = has_leases.unwrap_or_else(|error| {
        log::warn!("{error}");
        true
    });
    match connect(socket, what) {
        Ok(stream) => call(stream, what).map(drop),
        // A daemon that starts later would keep the leases on disk.
        Err(error) if error.code != ErrorCode::TryAgainLater && !has_leases => Ok(()),
        Err(error) => Err(CniError { code: ErrorCode::TryAgainLater, ..error }),
    }
}

/// Connects to the daemon.
///
/// # Errors
/// Code 11 if the daemon's queue stays full; code 5 if there is no daemon, or not root's.
fn connect(path: &Path, what: &Call) -> Result<UnixStream, CniError> {
    let failed = |text: String| {
        let msg = format!("error dialing DHCP daemon: dial unix {}: {text}", path.display());
        CniError::new(ErrorCode::Io, msg)
    };
    let stream = dial(path, what).map_err(|errno| match errno {
        Errno::EAGAIN => CniError { code: ErrorCode::TryAgainLater, ..failed(silence(what)) },
        errno => failed(io::Error::from(errno).to_string()),
    })?;
    protocol::expect_root(&stream).map_err(|error| failed(error.to_string()))?;
    Ok(stream)
}

/// Connects with the request's time limit, which the standard library cannot: the queue of a daemon that
/// hangs fills up, and connect(2) blocks then.
fn dial(path: &Path, what: &Call) -> Result<UnixStream, Errno> {
    let fd = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let seconds = i64::try_from(what.patience().as_secs()).unwrap_or(i64::MAX);
    let patience = TimeVal::new(seconds, 0);
    setsockopt(&fd, sockopt::SendTimeout, &patience)?;
    setsockopt(&fd, sockopt::ReceiveTimeout, &patience)?;
    socket::connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(UnixStream::from(fd))
}

fn silence(what: &Call) -> String {
    format!("the daemon has not answered for {} s", what.patience().as_secs())
}

fn call(mut stream: UnixStream, what: &Call) -> Result<Map<String, Value>, CniError> {
    let failed = |error: CniError| CniError {
        msg: format!("error calling DHCP.{}: {}", what.method(), error.msg),
        ..error
    };
    let failed_io = |operation: &str, error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => failed(CniError::new(ErrorCode::TryAgainLater, silence(what))),
        _ => failed(protocol::failed(operation, &error)),
    };
    protocol::write(&mut stream, what).map_err(|e| failed_io("write to", e))?;
    let line = protocol::read_line(&mut stream).map_err(|e| failed_io("read from", e))?;
    match protocol::parse(&line).map_err(failed)? {
        Reply::Done(object) => Ok(object),
        Reply::Failed(error) => Err(failed(error)),
    }
}
