// SPDX-License-Identifier: GPL-2.0-or-later

//! The common keys of the plugins that make a single link.

use cni_kernel::AddressFamily;
use cni_kernel::mac::Mac;
use cni_kernel::route::{Link, NewKind, NewLink, RouteError, RouteSocket};
use cni_spec::{Args, CniError, Dns, ErrorCode, NetConf, check_link_name};
use serde::Deserialize;

use super::Site;
use crate::interface::shared::failed;
use crate::interface::shared::host::Host;

/// The keys of a link on a master link, checked as far as possible without the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Below {
    /// `master`; none for the link of the default route.
    pub(crate) master: Option<String>,
    pub(crate) place: Place,
    /// `mtu`, not checked; 0 means the master's.
    pub(crate) mtu: i64,
    /// `dns`.
    pub(crate) dns: Dns,
}

/// The namespace of the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The node's.
    Node,
    /// The container's: `linkInContainer`.
    Container,
}

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    master: String,
    link_in_container: bool,
    mtu: i64,
    dns: Dns,
}

/// The keys of plugins whose link may have a chosen MAC address.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MacKeys {
    mac: String,
    runtime_config: WithMac,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WithMac {
    mac: String,
}

impl Below {
    /// Reads the keys.
    ///
    /// # Errors
    /// Code 7 for a value that cannot be used.
    pub(crate) fn new(config: &NetConf) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        let master = (!keys.master.is_empty()).then_some(keys.master);
        if let Some(name) = &master {
            check_link_name(name).map_err(|error| CniError::config(format!("key \"master\": {error}")))?;
        }
        let place = if keys.link_in_container { Place::Container } else { Place::Node };
        Ok(Self { master, place, mtu: keys.mtu, dns: keys.dns })
    }

    /// Finds the master.
    pub(crate) fn find(&self, site: &Site) -> Result<Link, CniError> {
        match self.place {
            Place::Node => self.find_in(&site.host.route, RouteSocket::open),
            Place::Container => {
                self.find_in(&site.container.route, || RouteSocket::open_in(site.container.namespace()))
            }
        }
    }

    /// Makes a link on the master, in the container, down, under the site's name.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel refuses: the name is taken, or the master cannot have such a link.
    pub(crate) fn create(
        &self,
        site: &Site,
        master: &Link,
        kind: NewKind,
        mac: Option<Mac>,
        mtu: Option<u32>,
    ) -> Result<(), RouteError> {
        let new = NewLink { name: &site.name, kind, below: Some(master), netns: None, mac, mtu };
        match self.place {
            Place::Container => site.container.route.create_link(&new),
            Place::Node => {
                let netns = Some(site.container.namespace());
                site.host.route.create_link(&NewLink { netns, ..new })
            }
        }
    }

    /// Finds the master for a STATUS, which has no container; none if it is in the container.
    ///
    /// # Errors
    /// Code 50 if there is no such link.
    pub(crate) fn status(&self) -> Result<Option<Link>, CniError> {
        match self.place {
            Place::Container => Ok(None),
            Place::Node => self
                .find_in(&Host::open()?.route, RouteSocket::open)
                .map(Some)
                .map_err(|error| unavailable(&error)),
        }
    }

    /// Does the same as [`Below::status`], and checks the MTU against the master's.
    ///
    /// # Errors
    /// Code 50 if there is no such link, or its MTU is smaller.
    pub(crate) fn status_with_mtu(&self) -> Result<(), CniError> {
        let master = self.status()?;
        master.map_or(Ok(None), |master| self.mtu(&master)).map(drop).map_err(|error| unavailable(&error))
    }

    /// `open` opens another socket in the same namespace.
    fn find_in(
        &self,
        route: &RouteSocket,
        open: impl Fn() -> Result<RouteSocket, RouteError>,
    ) -> Result<Link, CniError> {
        if let Some(name) = &self.master {
            let missing = || CniError::internal(format!("failed to lookup master {name:?}: Link not found"));
            return route.find_link(name).map_err(failed)?.ok_or_else(missing);
        }
        for family in AddressFamily::BOTH {
            let default = open().and_then(|route| route.default_route(family)).map_err(failed)?;
            if let Some(index) = default.and_then(|default| default.link) {
                return route.link_by_index(index).map_err(failed);
            }
        }
        Err(CniError::internal("no default route interface found"))
    }

    /// The MTU to set; none for that of the master.
    ///
    /// # Errors
    /// Code 7 if it exceeds the master's.
    pub(crate) fn mtu(&self, master: &Link) -> Result<Option<u32>, CniError> {
        match u32::try_from(self.mtu) {
            Ok(0) => Ok(None),
            Ok(mtu) if mtu <= master.mtu => Ok(Some(mtu)),
            _ => Err(CniError::config(format!(
                "invalid MTU {}, must be [0, master MTU({})]",
                self.mtu, master.mtu
            ))),
        }
    }
}

/// Checks for a STATUS that the kernel supports this kind of link (`IFLA_INFO_KIND`).
///
/// # Errors
/// Code 50 if it does not.
pub(crate) fn kind_status(kind: &str) -> Result<(), CniError> {
    match RouteSocket::open().and_then(|route| route.can_create(kind)).map_err(failed)? {
        true => Ok(()),
        false => Err(unavailable(&format_args!("the kernel has no links of kind {kind}"))),
    }
}

/// The error of a STATUS.
pub(crate) fn unavailable(error: &dyn std::fmt::Display) -> CniError {
    CniError::new(ErrorCode::NotAvailable, error.to_string())
}

/// The MAC address for the link, from `runtimeConfig`, `CNI_ARGS` or the key `mac`: the first that is set.
///
/// # Errors
/// Code 7 for an address that a link cannot have; code 4 if it comes from `CNI_ARGS`.
pub(crate) fn mac(config: &NetConf, args: &str) -> Result<Option<Mac>, CniError> {
    let keys: MacKeys = config.decode()?;
    let args = Args::parse(args, &["MAC"])?;
    let all = [
        (keys.runtime_config.mac.as_str(), ErrorCode::InvalidConfig),
        (args.get("MAC").unwrap_or_default(), ErrorCode::InvalidEnvironment),
        (keys.mac.as_str(), ErrorCode::InvalidConfig),
    ];
    let Some((text, code)) = all.into_iter().find(|(mac, _)| !mac.is_empty()) else { return Ok(None) };
    let refused = |why: String| CniError::new(code, format!("invalid args {text} for MAC addr: {why}"));
    let mac: Mac = text.parse().map_err(|error| refused(format!("{error}")))?;
    if mac.is_multicast() || mac.is_zero() {
        return Err(refused(format!("address {mac}: a link cannot have this MAC address")));
    }
    Ok(Some(mac))
}

#[cfg(test)]
pub(crate) fn decodes() -> crate::keys::probe::Fields {
    &crate::keys::probe::fields::<Keys>() | &crate::interface::shared::advertisements::decodes()
}

#[cfg(test)]
pub(crate) fn decodes_mac() -> crate::keys::probe::Fields {
    crate::keys::probe::fields::<MacKeys>()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_configuration::configuration;

    #[test]
    fn keys_are_read() {
        let below = Below::new(&configuration("x", &json!({}))).unwrap();
        assert_eq!((below.master, below.place, below.mtu), (None, Place::Node, 0));
        let keys = json!({"master": "eth0", "linkInContainer": true, "mtu": 1400, "dns": {"domain": "a"}});
        let below = Below::new(&configuration("x", &keys)).unwrap();
        assert_eq!((below.master.as_deref(), below.place, below.mtu), (Some("eth0"), Place::Container, 1400));
        assert_eq!(below.dns.domain, "a");
        let error = Below::new(&configuration("x", &json!({"master": "a/b"}))).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidConfig);
        assert!(error.msg.starts_with("key \"master\": "), "{error}");
    }

    #[test]
    fn the_runtimes_address_takes_precedence() {
        let address = |keys: &Value, args: &str| {
            mac(&configuration("x", keys), args).map(|mac| mac.map(|mac| mac.to_string()).unwrap_or_default())
        };
        let all = json!({"mac": "02:00:00:00:00:03", "runtimeConfig": {"mac": "02:00:00:00:00:01"}});
        let own = json!({"mac": "02:00:00:00:00:03"});
        assert_eq!(address(&all, "MAC=02:00:00:00:00:02").unwrap(), "02:00:00:00:00:01");
        assert_eq!(address(&own, "MAC=02:00:00:00:00:02").unwrap(), "02:00:00:00:00:02");
        assert_eq!(address(&own, "").unwrap(), "02:00:00:00:00:03");
        assert_eq!(address(&json!({}), "").unwrap(), "");
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_references_text() {
        let error = mac(&configuration("x", &json!({"mac": "02:zz"})), "").unwrap_err();
        assert_eq!(error.msg, "invalid args 02:zz for MAC addr: address 02:zz: invalid MAC address");
        assert_eq!(error.code, ErrorCode::InvalidConfig);
        let error = mac(&configuration("x", &json!({})), "MAC=01:00:5e:00:00:01").unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidEnvironment);
        let error = mac(&configuration("x", &json!({})), "FOO=1").unwrap_err();
        assert_eq!(error.msg, "ARGS: unknown args [\"FOO=1\"]");
    }
}
