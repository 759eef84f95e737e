// SPDX-License-Identifier: MIT OR Apache-2.0

//! Encodes and decodes results in the forms of all versions of the specification.
//!
//! There are three forms. Results of 0.1.0 and 0.2.0 have one address per family. Those of 0.3.0 to 0.4.0 have
//! interfaces and lists of addresses, each with its `version`. Those of 1.0.0 and 1.1.0 drop that key and have
//! additional attributes. The order of keys and an empty `dns` follow the reference's output, because users compare it:
//! up to 0.4.0, the order is that of the struct, with `"dns": {}`; from 1.0.0 on, keys are sorted and an empty `dns` is
//! omitted.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::field::{self, json_error};
use crate::{AddResult, Dns, Interface, IpConfig, Route, Version, fold, text};

/// Why a result cannot be decoded, or cannot be encoded in a version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResultError {
    /// The bytes are not JSON or not an object.
    #[error("failed to unmarshal raw result: {0}")]
    Json(String),
    /// A value does not fit its key.
    #[error("{0}")]
    Key(#[from] fold::FoldError),
    /// The version is unknown.
    #[error("unsupported CNI result version {0}")]
    UnknownVersion(String),
    /// The version in the result belongs to another form.
    #[error("result type supports {supported} but unmarshalled CNIVersion is {found}")]
    OtherForm {
        /// The versions of the required form.
        supported: &'static str,
        /// The value of `cniVersion` in the result, quoted.
        found: String,
    },
    /// There is no address, and 0.1.0 and 0.2.0 cannot express that.
    #[error("cannot convert: no valid IP addresses")]
    NoAddress,
    /// The version to convert to is unknown.
    #[error("no converter for CNI result version {from} to {to}")]
    NoConverter {
        /// The result's version.
        from: Version,
        /// The version to convert to.
        to: String,
    },
}

/// The three forms of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The form of 0.1.0 and 0.2.0.
    PerFamily,
    /// The form of 0.3.0, 0.3.1 and 0.4.0.
    Lists,
    /// The form of 1.0.0 and 1.1.0.
    Current,
}

impl Form {
    fn of(version: Version) -> Self {
        match version {
            Version::V0_1_0 | Version::V0_2_0 => Self::PerFamily,
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => Self::Lists,
            Version::V1_0_0 | Version::V1_1_0 => Self::Current,
        }
    }

    /// The versions that have this form, as the reference lists them in its message.
    fn supported(self) -> &'static str {
        match self {
            Self::PerFamily => "[ 0.1.0 0.2.0]",
            Self::Lists => "[0.3.0 0.3.1 0.4.0]",
            Self::Current => "[1.0.0 1.1.0]",
        }
    }
}

impl AddResult {
    /// Decodes a result of `version`. The result's own `cniVersion` may be missing; otherwise, it must belong to the
    /// same form.
    ///
    /// # Errors
    /// [`ResultError::OtherForm`], or [`ResultError::Key`] if a value does not fit.
    pub fn from_object(version: Version, object: &Map<String, Value>) -> Result<Self, ResultError> {
        let form = Form::of(version);
        let declared: Head = fold::from_map(object)?;
        if !declared.cni_version.is_empty() {
            let same = Version::parse(&declared.cni_version).is_some_and(|v| Form::of(v) == form);
            if !same {
                let found = text::quote(&declared.cni_version);
                return Err(ResultError::OtherForm { supported: form.supported(), found });
            }
        }
        match form {
            Form::PerFamily => Ok(fold::from_map::<PerFamily>(object)?.into_result()),
            Form::Lists | Form::Current => Ok(fold::from_map::<Lists>(object)?.into_result(form)),
        }
    }

    /// Decodes the output of a delegate (or, in a runtime, of a plugin). A result without `cniVersion` has the
    /// configuration's version, and `null` is an empty result.
    ///
    /// # Errors
    /// [`ResultError::Json`], [`ResultError::UnknownVersion`], or [`ResultError::Key`] if a value does not
    /// fit.
    pub fn from_output(config: Version, output: &[u8]) -> Result<Self, ResultError> {
        let object: Option<Map<String, Value>> =
            serde_json::from_slice(output).map_err(|e| ResultError::Json(json_error(&e)))?;
        let object = object.unwrap_or_default();
        let version = match fold::get(&object, "cniVersion") {
            Some(Value::String(declared)) if !declared.is_empty() => {
                Version::parse(declared).ok_or_else(|| ResultError::UnknownVersion(text::quote(declared)))?
            }
            _ => config,
        };
        Self::from_object(version, &object)
    }

    /// The result as a JSON object in the form of this version.
    ///
    /// # Errors
    /// [`ResultError::NoAddress`] if `version` is 0.1.0 or 0.2.0 and there is no address.
    pub fn to_object(&self, version: Version) -> Result<Map<String, Value>, ResultError> {
        let value = match Form::of(version) {
            Form::PerFamily => serde_json::to_value(PerFamily::of(self, version)?),
            form => serde_json::to_value(Lists::of(self, version, form)),
        };
        match value {
            Ok(Value::Object(object)) => Ok(object),
            Ok(_) | Err(_) => {
                Err(ResultError::NoConverter { from: Version::V1_1_0, to: version.to_string() })
            }
        }
    }

    /// The result as the reference prints it in this version: indented by four spaces, without a final newline.
    ///
    /// # Errors
    /// [`ResultError::NoAddress`] if `version` is 0.1.0 or 0.2.0 and there is no address.
    pub fn print(&self, version: Version) -> Result<String, ResultError> {
        Ok(match Form::of(version) {
            Form::PerFamily => text::pretty(&PerFamily::of(self, version)?),
            Form::Lists => text::pretty(&Lists::of(self, version, Form::Lists)),
            // The result goes through a map, which sorts the keys.
            Form::Current => text::pretty(&self.to_object(version)?),
        })
    }
}

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[derive(Default)]
struct Head {
    cni_version: String,
}

/// A result in the form of 0.1.0 and 0.2.0.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PerFamily {
    #[serde(skip_serializing_if = "String::is_empty")]
    cni_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<FamilyConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<FamilyConfig>,
    dns: Dns,
}

#[derive(Serialize, Deserialize)]
struct FamilyConfig {
    #[serde(deserialize_with = "field::cidr")]
    ip: IpNet,
    #[serde(default, deserialize_with = "field::address", skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

impl PerFamily {
    fn of(result: &AddResult, version: Version) -> Result<Self, ResultError> {
        let first = |v4: bool| {
            let ip = result.ips.iter().find(|ip| is_v4(&ip.address) == v4)?;
            let routes = result.routes.iter().filter(|r| is_v4(&r.dst) == v4);
            Some(FamilyConfig {
                ip: ip.address,
                gateway: ip.gateway,
                routes: routes.map(|r| Route::new(r.dst, r.gw)).collect(),
            })
        };
        let (ip4, ip6) = (first(true), first(false));
        if ip4.is_none() && ip6.is_none() {
            return Err(ResultError::NoAddress);
        }
        Ok(Self { cni_version: version.to_string(), ip4, ip6, dns: result.dns.clone() })
    }

    fn into_result(self) -> AddResult {
        let mut result = AddResult { dns: self.dns, ..AddResult::default() };
        for family in [self.ip4, self.ip6].into_iter().flatten() {
            result.ips.push(IpConfig { interface: None, address: family.ip, gateway: family.gateway });
            result.routes.extend(family.routes);
        }
        result
    }
}

/// A result in the form of 0.3.0 and later.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Lists {
    #[serde(skip_serializing_if = "String::is_empty")]
    cni_version: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<Address>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dns: Option<Dns>,
}

/// An address. `version` is written up to 0.4.0 and never read, because the address implies it.
#[derive(Serialize, Deserialize)]
struct Address {
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interface: Option<usize>,
    #[serde(deserialize_with = "field::cidr")]
    address: IpNet,
    #[serde(default, deserialize_with = "field::address", skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
}

impl Lists {
    fn of(result: &AddResult, version: Version, form: Form) -> Self {
        let old = form == Form::Lists;
        let address = |ip: &IpConfig| Address {
            version: old.then(|| if is_v4(&ip.address) { "4" } else { "6" }),
            interface: ip.interface,
            address: ip.address,
            gateway: ip.gateway,
        };
        let empty = result.dns == Dns::default();
        Self {
            cni_version: version.to_string(),
            interfaces: result.interfaces.iter().map(|i| in_form(i, form)).collect(),
            ips: result.ips.iter().map(address).collect(),
            routes: result.routes.clone(),
            dns: (old || !empty).then(|| result.dns.clone()),
        }
    }

    fn into_result(self, form: Form) -> AddResult {
        let ip = |a: Address| IpConfig { interface: a.interface, address: a.address, gateway: a.gateway };
        AddResult {
            interfaces: self.interfaces.iter().map(|i| in_form(i, form)).collect(),
            ips: self.ips.into_iter().map(ip).collect(),
            routes: self.routes,
            dns: self.dns.unwrap_or_default(),
        }
    }
}

/// The interface with the keys of a form. The last three keys were added in 1.0.0.
fn in_form(interface: &Interface, form: Form) -> Interface {
    let mut interface = interface.clone();
    if form == Form::Lists {
        interface.mtu = 0;
        interface.socket_path.clear();
        interface.pci_id.clear();
    }
    interface
}

fn is_v4(net: &IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}

impl Serialize for AddResult {
    /// Serializes the result in the form of the newest version.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_object(Version::V1_1_0).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

#[cfg(test)]
mod tests;
