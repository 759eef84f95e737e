// SPDX-License-Identifier: GPL-2.0-or-later

//! Keys of several IPAM plugins: routes, and addresses in `args`.

use cni_spec::text::parse_net;
use cni_spec::{CniError, Route};
use serde::Deserialize;

/// Why a key's value cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("{key}: invalid CIDR address: {value}")]
    Cidr { key: String, value: String },
    #[error("{key}: invalid IP address: {value}")]
    Address { key: String, value: String },
    #[error("{key}: {value} is out of range")]
    Number { key: String, value: i64 },
    #[error("{key}: {message}")]
    Shape { key: String, message: String },
}

impl KeyError {
    pub(crate) fn cidr(key: &str, value: &str) -> Self {
        Self::Cidr { key: key.to_owned(), value: value.to_owned() }
    }

    pub(crate) fn address(key: &str, value: &str) -> Self {
        Self::Address { key: key.to_owned(), value: value.to_owned() }
    }
}

impl From<KeyError> for CniError {
    fn from(error: KeyError) -> Self {
        Self::config(error.to_string())
    }
}

/// An element of `ipam.routes`; null counts as absent everywhere, as in the reference.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawRoute {
    dst: Option<String>,
    gw: Option<String>,
    mtu: Option<i64>,
    advmss: Option<i64>,
    priority: Option<i64>,
    table: Option<i64>,
    scope: Option<i64>,
}

/// The key `args` of the specification's CONVENTIONS.md.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawArgs {
    cni: Option<RawCniArgs>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct RawCniArgs {
    ips: Option<Vec<String>>,
}

impl RawArgs {
    /// `args.cni.ips`.
    pub(crate) fn ips(&self) -> impl Iterator<Item = &String> {
        self.cni.iter().flat_map(|cni| &cni.ips).flatten()
    }
}

/// `ipam.routes`, checked.
pub(crate) fn routes(raw: Option<&[RawRoute]>) -> Result<Vec<Route>, KeyError> {
    raw.unwrap_or_default().iter().enumerate().map(|(at, route)| route.resolve(at)).collect()
}

impl RawRoute {
    fn resolve(&self, at: usize) -> Result<Route, KeyError> {
        let key = |name: &str| format!("ipam.routes[{at}].{name}");
        let dst = self.dst.as_deref().unwrap_or_default();
        let gw = match self.gw.as_deref() {
            None | Some("") => None,
            Some(text) => Some(text.parse().map_err(|_| KeyError::address(&key("gw"), text))?),
        };
        let number = |name: &str, value: Option<i64>| {
            let value = value.unwrap_or_default();
            u32::try_from(value).map_err(|_| KeyError::Number { key: key(name), value })
        };
        let scope = self
            .scope
            .map(|value| u8::try_from(value).map_err(|_| KeyError::Number { key: key("scope"), value }));
        let dst = parse_net(dst).ok_or_else(|| KeyError::cidr(&key("dst"), dst))?;
        Ok(Route {
            dst,
            gw,
            mtu: number("mtu", self.mtu)?,
            advmss: number("advmss", self.advmss)?,
            priority: number("priority", self.priority)?,
            table: self.table.map(|_| number("table", self.table)).transpose()?,
            scope: scope.transpose()?,
        })
    }
}
