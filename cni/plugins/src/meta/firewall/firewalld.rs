//! firewalld: addresses in one of its zones, asked for over D-Bus.

use std::net::IpAddr;

use cni_spec::CniError;
use ipnet::IpNet;

use super::dbus::{Answer, Bus, BusError, Target};

const NAME: &str = "org.fedoraproject.FirewallD1";
const ZONE: Target = Target {
    name: NAME,
    path: "/org/fedoraproject/FirewallD1",
    interface: "org.fedoraproject.FirewallD1.zone",
};

/// Error codes of firewalld for an address that is not in the zone.
const GONE: [&str; 4] = ["UNKNOWN_SOURCE", "ZONE_CONFLICT", "NOT_ENABLED", "INVALID_ZONE"];

/// Whether firewalld runs: somebody has its name on the system bus. Without a bus it does not.
///
/// # Errors
/// When the bus is there and does not answer.
pub(super) fn is_running() -> Result<bool, CniError> {
    match ask() {
        Err(BusError::Unreachable(why)) => {
            log::debug!("{why}");
            Ok(false)
        }
        asked => asked.map_err(failed),
    }
}

/// Whether firewalld runs, as far as can be told, for those who do not depend on it: root of a user namespace
/// reaches the machine's bus and is not let in.
pub(super) fn seems_to_run() -> bool {
    match ask() {
        Ok(runs) => runs,
        Err(BusError::Unreachable(why)) => {
            log::debug!("{why}");
            false
        }
        Err(error) => {
            log::warn!("{error}: firewalld counts as not running");
            false
        }
    }
}

fn ask() -> Result<bool, BusError> {
    Bus::system().and_then(|mut bus| bus.has_owner(NAME))
}

/// A zone of firewalld.
pub(super) struct Zone<'a> {
    bus: Bus,
    name: &'a str,
}

impl<'a> Zone<'a> {
    pub(super) fn open(name: &'a str) -> Result<Self, CniError> {
        Ok(Self { bus: Bus::system().map_err(failed)?, name })
    }

    /// Puts addresses into the zone, all or none. One that is there already stays.
    ///
    /// # Errors
    /// What firewalld says: that there is no such zone, that another zone has the address.
    pub(super) fn add(&mut self, addresses: &[IpAddr]) -> Result<(), CniError> {
        let mut added = Vec::new();
        for address in addresses {
            match self.call("addSource", *address) {
                Ok(_) => added.push(*address),
                Err(BusError::Refused { message, .. }) if says(&message, "ZONE_ALREADY_SET") => {}
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

    /// Takes addresses out of the zone. One that is not there, or is in another one, is no error.
    ///
    /// # Errors
    /// What firewalld says.
    pub(super) fn remove(&mut self, addresses: &[IpAddr]) -> Result<(), CniError> {
        let mut result = Ok(());
        for address in addresses {
            match self.call("removeSource", *address) {
                Err(BusError::Refused { message, .. }) if GONE.iter().any(|code| says(&message, code)) => {}
                Err(error) => result = result.and(Err(failed(error))),
                Ok(_) => {}
            }
        }
        result
    }

    /// True if one of the addresses is in the zone. Changes nothing.
    ///
    /// # Errors
    /// firewalld's error, but for those of an address that is not in the zone.
    pub(super) fn has_any(&mut self, addresses: &[IpAddr]) -> Result<bool, CniError> {
        for address in addresses {
            match self.call("querySource", *address) {
                Ok(Answer::Bool(true)) => return Ok(true),
                Ok(_) => {}
                Err(BusError::Refused { message, .. }) if GONE.iter().any(|code| says(&message, code)) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(false)
    }

    /// The first of the addresses that is not in the zone.
    ///
    /// # Errors
    /// What firewalld says.
    pub(super) fn missing(&mut self, addresses: &[IpAddr]) -> Result<Option<IpAddr>, CniError> {
        for address in addresses {
            if self.call("querySource", *address).map_err(failed)? != Answer::Bool(true) {
                return Ok(Some(*address));
            }
        }
        Ok(None)
    }

    fn call(&mut self, member: &str, address: IpAddr) -> Result<Answer, BusError> {
        self.bus.call(ZONE, member, &[self.name, &IpNet::from(address).to_string()])
    }
}

/// firewalld's errors begin with a code: `ZONE_ALREADY_SET: '10.0.0.2/32' already bound to 'trusted'`.
fn says(message: &str, code: &str) -> bool {
    message.split(':').next() == Some(code)
}

#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn failed(error: BusError) -> CniError {
    CniError::internal(format!("firewalld: {error}"))
}
