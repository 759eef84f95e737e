// SPDX-License-Identifier: GPL-2.0-or-later

//! firewalld: addresses in one of its zones, over D-Bus.

use std::net::IpAddr;

use cni_kernel::dbus::{Bus, BusError, Reply, Target};
use cni_spec::CniError;
use ipnet::IpNet;

const NAME: &str = "org.fedoraproject.FirewallD1";
const ZONE: Target = Target {
    name: NAME,
    path: "/org/fedoraproject/FirewallD1",
    interface: "org.fedoraproject.FirewallD1.zone",
};

/// firewalld's error codes for an address that is not in the zone.
const GONE: [&str; 4] = ["UNKNOWN_SOURCE", "ZONE_CONFLICT", "NOT_ENABLED", "INVALID_ZONE"];

/// True if firewalld is running, which means that its name on the system bus has an owner. False without a bus.
pub(super) fn is_running() -> Result<bool, CniError> {
    match has_owner() {
        Err(error @ BusError::Unreachable(_)) => {
            log::debug!("{error}");
            Ok(false)
        }
        known => known.map_err(failed),
    }
}

/// Like [`is_running`], but also false if the bus does not answer, or refuses this process, because root of a user
/// namespace can connect to the node's bus but is refused there.
pub(super) fn seems_to_run() -> Result<bool, CniError> {
    known_or_refused(has_owner())
}

fn known_or_refused(has_owner: Result<bool, BusError>) -> Result<bool, CniError> {
    match has_owner {
        // firewalld may run: then the container needs its zone, and its address must leave the zone.
        Err(error) if error.is_transient() => Err(failed(error)),
        Err(error @ BusError::Unreachable(_)) => {
            log::debug!("{error}");
            Ok(false)
        }
        Err(error) => {
            log::warn!("{error}: firewalld counts as not running");
            Ok(false)
        }
        Ok(runs) => Ok(runs),
    }
}

fn has_owner() -> Result<bool, BusError> {
    Bus::system().and_then(|mut bus| bus.has_owner(NAME))
}

pub(super) struct Zone<'a> {
    bus: Bus,
    name: &'a str,
}

impl<'a> Zone<'a> {
    pub(super) fn open(name: &'a str) -> Result<Self, CniError> {
        Ok(Self { bus: Bus::system().map_err(failed)?, name })
    }

    /// Adds addresses to the zone, all or none. An address that is in the zone already stays.
    pub(super) fn add(&mut self, addresses: &[IpAddr]) -> Result<(), CniError> {
        let mut added = Vec::new();
        for address in addresses {
            match self.call("addSource", *address) {
                Ok(_) => added.push(*address),
                Err(BusError::Refused { message, .. }) if has_code(&message, "ZONE_ALREADY_SET") => {}
                Err(error) => {
                    if let Err(left) = self.remove(&added) {
                        log::warn!("{left}");
                    }
                    return Err(failed(error));
                }
            }
        }
        Ok(())
    }

    /// Removes addresses from the zone. An address that is missing or in another zone is not an error.
    ///
    /// # Errors
    /// firewalld's first other error; all other addresses were removed.
    pub(super) fn remove(&mut self, addresses: &[IpAddr]) -> Result<(), CniError> {
        let mut result = Ok(());
        for address in addresses {
            match self.call("removeSource", *address) {
                Err(BusError::Refused { message, .. })
                    if GONE.iter().any(|code| has_code(&message, code)) => {}
                Err(error) => result = result.and(Err(failed(error))),
                Ok(_) => {}
            }
        }
        result
    }

    /// True if one of the addresses is in the zone. Changes nothing.
    pub(super) fn has_any(&mut self, addresses: &[IpAddr]) -> Result<bool, CniError> {
        for address in addresses {
            match self.call("querySource", *address) {
                Ok(Reply::Bool(true)) => return Ok(true),
                Ok(_) => {}
                Err(BusError::Refused { message, .. })
                    if GONE.iter().any(|code| has_code(&message, code)) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(false)
    }

    /// The first of the addresses that is not in the zone.
    pub(super) fn missing(&mut self, addresses: &[IpAddr]) -> Result<Option<IpAddr>, CniError> {
        for address in addresses {
            if self.call("querySource", *address).map_err(failed)? != Reply::Bool(true) {
                return Ok(Some(*address));
            }
        }
        Ok(None)
    }

    fn call(&mut self, member: &str, address: IpAddr) -> Result<Reply, BusError> {
        self.bus.call(ZONE, member, &[self.name, &IpNet::from(address).to_string()])
    }
}

/// True if an error of firewalld begins with this code, as in
/// `ZONE_ALREADY_SET: '10.0.0.2/32' already bound to 'trusted'`.
fn has_code(message: &str, code: &str) -> bool {
    message.split(':').next() == Some(code)
}

#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn failed(error: BusError) -> CniError {
    CniError::internal(format!("firewalld: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io;

    use nix::errno::Errno;

    use super::*;

    #[test]
    fn firewalld_may_run_after_an_error_that_passes() {
        let io = |source: io::Error| BusError::Io { operation: "authenticate".to_owned(), source };
        for errno in [Errno::EMFILE, Errno::ENOMEM] {
            assert!(known_or_refused(Err(io(errno.into()))).is_err(), "{errno}");
        }
        let operation = || "authenticate".to_owned();
        for refused in [
            BusError::Unreachable("no socket".to_owned()),
            io(io::ErrorKind::UnexpectedEof.into()),
            BusError::Protocol { operation: operation(), reason: "not accepted" },
            BusError::Refused { operation: operation(), name: "a.b".to_owned(), message: String::new() },
        ] {
            assert!(!known_or_refused(Err(refused)).unwrap());
        }
        assert!(known_or_refused(Ok(true)).unwrap() && !known_or_refused(Ok(false)).unwrap());
    }
}
