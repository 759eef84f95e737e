// SPDX-License-Identifier: GPL-2.0-or-later

//! The options of a network: `podman network create --opt KEY=VALUE`.

use super::types::Words;

/// The names of all options, for messages.
const KEYS: &str = "backend, firewall, ipMasq, isolate, metric, mode, mtu, no_default_route, vlan";
/// Backends of published ports and masquerade.
const BACKENDS: [&str; 3] = ["nftables", "iptables", "ebpf"];
/// Backends of the plugin firewall.
const FIREWALLS: [&str; 3] = ["nftables", "iptables", "firewalld"];

/// Options about work that the driver does only for bridges that it manages, not for the bridge of another program.
const OF_MANAGED: [&str; 4] = ["backend", "firewall", "ipMasq", "isolate"];

/// The program that manages the bridge, in netavark's words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// The driver: it makes the bridge, gives it the gateway's address, and deletes it with the last container.
    #[default]
    Managed,
    /// Another program: the bridge exists, and containers are only joined to it.
    Unmanaged,
}

/// The values of the option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isolate {
    /// Only strict networks do not reach the network.
    Open,
    /// Networks with this value or a strict one, and this network, do not reach each other.
    Isolated,
    /// No other network reaches this one, and it reaches none.
    Strict,
}

impl Isolate {
    /// The value with that name. netavark uses the words, and Slipway's other options use the numbers.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "false" | "0" => Some(Self::Open),
            "true" | "1" => Some(Self::Isolated),
            "strict" => Some(Self::Strict),
            _ => None,
        }
    }

    /// The policy of the plugin firewall.
    pub(super) const fn policy(self) -> &'static str {
        match self {
            Self::Open => "listed",
            Self::Isolated => "same-bridge",
            Self::Strict => "strict",
        }
    }
}

/// The options, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) mtu: Option<u32>,
    pub(super) vlan: Option<u16>,
    pub(super) mode: Mode,
    /// The networks that this one is kept apart from; without the option it depends on the caller.
    pub(super) isolate: Option<Isolate>,
    /// The metric of default routes; without it the lowest free one.
    pub(super) metric: Option<u32>,
    pub(super) no_default_route: bool,
    pub(super) masquerade: bool,
    /// The backend of ports and masquerade; without it the node's.
    pub(super) backend: Option<String>,
    /// The backend of the plugin firewall.
    pub(super) firewall: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mtu: None,
            vlan: None,
            mode: Mode::Managed,
            isolate: None,
            metric: None,
            no_default_route: false,
            masquerade: true,
            backend: None,
            firewall: None,
        }
    }
}

/// An option that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OptionError {
    #[error("option {0:?} is not known: there are {KEYS}")]
    Unknown(String),
    /// The option has no such value.
    #[error("option {key}={value:?} is not {expected}")]
    Value {
        key: String,
        value: String,
        /// The values that it may have.
        expected: String,
    },
    /// The driver would do nothing with the option.
    #[error(
        "option {0:?} is not supported with mode=unmanaged: the bridge's owner translates and filters packets"
    )]
    OfManaged(String),
    /// The container's options have no effect.
    #[error("option {0:?} of a container in a network is not supported")]
    OfContainer(String),
}

impl Options {
    /// Reads the options of a network.
    pub(super) fn of(words: Option<&Words>) -> Result<Self, OptionError> {
        let mut options = Self::default();
        for (key, value) in words.into_iter().flatten() {
            options.set(key, value)?;
        }
        let is_of_managed = |key: &&String| OF_MANAGED.contains(&key.as_str());
        match words.into_iter().flat_map(|words| words.keys()).find(is_of_managed) {
            Some(key) if options.mode == Mode::Unmanaged => Err(OptionError::OfManaged(key.clone())),
            _ => Ok(options),
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), OptionError> {
        let refused =
            |expected: String| OptionError::Value { key: key.to_owned(), value: value.to_owned(), expected };
        let switch = || match value {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(refused("true or false".to_owned())),
        };
        let number = |first: u32, last: u32| {
            let valid = value.parse().ok().filter(|number| (first..=last).contains(number));
            valid.ok_or_else(|| refused(format!("a number from {first} to {last}")))
        };
        let one_of = |all: &[&str]| match all.contains(&value) {
            true => Ok(value.to_owned()),
            false => Err(refused(all.join(", "))),
        };
        match key {
            "backend" => self.backend = Some(one_of(&BACKENDS)?),
            "firewall" => self.firewall = Some(one_of(&FIREWALLS)?),
            "ipMasq" => self.masquerade = switch()?,
            "isolate" => {
                let expected = || refused("true, false or strict".to_owned());
                self.isolate = Some(Isolate::from_name(value).ok_or_else(expected)?);
            }
            "metric" => self.metric = Some(number(0, u32::MAX)?),
            "mode" => {
                self.mode = match value {
                    "" | "managed" => Mode::Managed,
                    "unmanaged" => Mode::Unmanaged,
                    _ => return Err(refused("managed, unmanaged".to_owned())),
                }
            }
            "mtu" => self.mtu = Some(number(0, 65_535)?).filter(|mtu| *mtu != 0),
            "no_default_route" => self.no_default_route = switch()?,
            "vlan" => self.vlan = Some(u16::try_from(number(1, 4094)?).unwrap_or(u16::MAX)),
            _ => return Err(OptionError::Unknown(key.to_owned())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[(&str, &str)]) -> Result<Options, String> {
        let words = words.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Options::of(Some(&words)).map_err(|error| error.to_string())
    }

    #[test]
    fn every_option_is_read() {
        let all = [
            ("backend", "ebpf"),
            ("firewall", "iptables"),
            ("ipMasq", "0"),
            ("isolate", "true"),
            ("metric", "7"),
            ("mode", "managed"),
            ("mtu", "1400"),
            ("no_default_route", "1"),
            ("vlan", "5"),
        ];
        let expected = Options {
            mtu: Some(1400),
            vlan: Some(5),
            mode: Mode::Managed,
            isolate: Some(Isolate::Isolated),
            metric: Some(7),
            no_default_route: true,
            masquerade: false,
            backend: Some("ebpf".to_owned()),
            firewall: Some("iptables".to_owned()),
        };
        assert_eq!(of(&all), Ok(expected));
        assert_eq!(all.map(|(key, _)| key).join(", "), KEYS);
        assert_eq!(Options::of(None), Ok(Options::default()));
        let unmanaged = [("metric", "7"), ("mode", "unmanaged"), ("mtu", "1400"), ("vlan", "5")];
        assert_eq!(of(&unmanaged).map(|options| options.mode), Ok(Mode::Unmanaged));
        assert_eq!(of(&[("mtu", "0")]), Ok(Options::default()), "0 is no value, as in netavark");
    }

    #[test]
    fn an_unmanaged_bridge_has_no_options_of_a_managed_one() {
        for (key, value) in
            [("backend", "nftables"), ("firewall", "nftables"), ("ipMasq", "false"), ("isolate", "true")]
        {
            let text = format!(
                "option {key:?} is not supported with mode=unmanaged: the bridge's owner translates and filters packets"
            );
            assert_eq!(of(&[(key, value), ("mode", "unmanaged")]), Err(text));
            assert!(of(&[(key, value), ("mode", "managed")]).is_ok());
        }
    }

    #[test]
    fn other_values_are_refused_by_name() {
        for (key, value, text) in [
            ("isolate", "yes", "option isolate=\"yes\" is not true, false or strict"),
            ("vlan", "4095", "option vlan=\"4095\" is not a number from 1 to 4094"),
            ("mtu", "x", "option mtu=\"x\" is not a number from 0 to 65535"),
            ("backend", "pf", "option backend=\"pf\" is not nftables, iptables, ebpf"),
            ("mode", "x", "option mode=\"x\" is not managed, unmanaged"),
            (
                "vrf",
                "red",
                "option \"vrf\" is not known: there are backend, firewall, ipMasq, isolate, metric, mode, mtu, no_default_route, vlan",
            ),
        ] {
            assert_eq!(of(&[(key, value)]), Err(text.to_owned()));
        }
    }
}
