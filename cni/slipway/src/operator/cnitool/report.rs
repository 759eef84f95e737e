// SPDX-License-Identifier: GPL-2.0-or-later

//! The tool's output in forms that the CNI project's tool does not have.

use std::io::{self, Write};

use cni_runtime::{Network, NetworkError, Runtime};
use cni_spec::{AddResult, Interface, IpConfig, fold};
use cni_state::documents::{CnitoolOutcome, PluginVerdict};
use serde_json::Value;

use slipway_cli::columns;

/// A plugin of a network: the versions that it supports, or the reason why it cannot be used.
pub(super) struct Verdict {
    plugin: String,
    supported: Option<Vec<String>>,
    error: Option<NetworkError>,
}

impl Verdict {
    /// Calls VERSION of each plugin.
    pub(super) fn of_plugins(runtime: &Runtime, network: &Network) -> Vec<Self> {
        let wanted = network.list().version.as_str();
        let kinds = network.list().plugins.iter().map(|plugin| fold::get(plugin, "type"));
        kinds
            .map(|kind| {
                let plugin = kind.and_then(Value::as_str).unwrap_or_default().to_owned();
                match runtime.versions(&plugin) {
                    Ok(supported) => {
                        let error = (!supported.iter().any(|one| one == wanted)).then(|| {
                            NetworkError::UnsupportedVersion {
                                plugin: plugin.clone(),
                                version: wanted.to_owned(),
                            }
                        });
                        Self { plugin, supported: Some(supported), error }
                    }
                    Err(error) => Self { plugin, supported: None, error: Some(error) },
                }
            })
            .collect()
    }

    /// True if the plugin exists and supports the network's version.
    pub(super) fn is_good(&self) -> bool {
        self.error.is_none()
    }

    /// Prints a line for each plugin.
    pub(super) fn table(all: &[Self], out: &mut dyn Write) -> io::Result<()> {
        let line = |one: &Self| {
            let versions = one.supported.as_ref().map_or_else(|| "-".to_owned(), |all| all.join(" "));
            [one.plugin.clone(), versions, one.result()]
        };
        columns::print(["PLUGIN", "VERSIONS", "RESULT"], &all.iter().map(line).collect::<Vec<_>>(), out)
    }

    fn result(&self) -> String {
        self.error.as_ref().map_or_else(|| "ok".to_owned(), ToString::to_string)
    }

    fn document(&self) -> PluginVerdict {
        PluginVerdict {
            kind: self.plugin.clone(),
            supported_versions: self.supported.clone(),
            error: self.error.as_ref().map(ToString::to_string),
        }
    }
}

/// The document of a command without a result of the specification's.
pub(super) fn document(
    network: &Network,
    command: &str,
    error: Option<&NetworkError>,
    verdicts: Option<&[Verdict]>,
) -> CnitoolOutcome {
    let errors: Vec<String> = match (error, verdicts) {
        (Some(NetworkError::Several(all)), _) => all.iter().map(ToString::to_string).collect(),
        (Some(error), _) => vec![error.to_string()],
        (None, verdicts) => {
            let errors = verdicts.unwrap_or_default().iter().filter_map(|one| one.error.as_ref());
            errors.map(ToString::to_string).collect()
        }
    };
    CnitoolOutcome {
        network: network.name().to_owned(),
        cni_version: network.list().version.as_str().to_owned(),
        command: command.to_owned(),
        ok: errors.is_empty(),
        errors,
        plugins: verdicts.map(|verdicts| verdicts.iter().map(Verdict::document).collect()),
    }
}

/// Prints the result of an ADD: a line for each address, and for each interface without one.
pub(super) fn table(result: &AddResult, out: &mut dyn Write) -> io::Result<()> {
    let mut lines = Vec::new();
    for (index, interface) in result.interfaces.iter().enumerate() {
        let before = lines.len();
        let own = result.ips.iter().filter(|ip| ip.interface == Some(index));
        lines.extend(own.map(|ip| line(Some(interface), Some(ip))));
        if lines.len() == before {
            lines.push(line(Some(interface), None));
        }
    }
    let without = |ip: &&IpConfig| ip.interface.is_none_or(|index| index >= result.interfaces.len());
    lines.extend(result.ips.iter().filter(without).map(|ip| line(None, Some(ip))));
    columns::print(["INTERFACE", "NAMESPACE", "MAC", "ADDRESS", "GATEWAY"], &lines, out)
}

/// The cells of a line. A missing value is shown as a dash.
fn line(interface: Option<&Interface>, ip: Option<&IpConfig>) -> [String; 5] {
    let namespace = interface.map(|one| if one.sandbox.is_empty() { "host" } else { &one.sandbox });
    let cells = [
        interface.map(|one| one.name.clone()),
        namespace.map(str::to_owned),
        interface.map(|one| one.mac.clone()),
        ip.map(|ip| ip.address.to_string()),
        ip.and_then(|ip| ip.gateway).map(|gateway| gateway.to_string()),
    ];
    cells.map(|cell| cell.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cni_runtime::CallError;
    use cni_runtime::exec::{Expected, Fake};
    use cni_runtime::verbs::Command;
    use cni_spec::{CniError, Version};
    use serde_json::json;

    use super::*;
    use slipway_cli::checks;

    fn network() -> Network {
        let list = Network::builder("pods").plugin(json!({"type": "bridge"}));
        list.plugin(json!({"type": "portmap"})).plugin(json!({"type": "gone"})).build().unwrap()
    }

    fn verdicts() -> Vec<Verdict> {
        let fake = Fake::new([
            Expected::call("bridge", Command::Version)
                .prints(r#"{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}"#),
            Expected::call("portmap", Command::Version)
                .prints(r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#),
            Expected::call("gone", Command::Version)
                .fails(CallError::NotFound(CniError::internal("no such plugin"))),
        ]);
        Verdict::of_plugins(&Runtime::builder().exec(Arc::new(fake)).build(), &network())
    }

    #[test]
    fn json_is_as_documented() {
        let verdicts = verdicts();
        let good = document(&network(), "status", None, None);
        assert!(good.ok && good.errors.is_empty());
        let failed = document(&network(), "validate", None, Some(&verdicts));
        assert_eq!((failed.ok, failed.errors.len()), (false, 2));
        checks::assert_documented("slipway cnitool", &[good, failed]);
    }

    #[test]
    fn each_plugin_has_a_line() {
        let mut out = Vec::new();
        Verdict::table(&verdicts(), &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "\
PLUGIN   VERSIONS     RESULT
bridge   1.0.0 1.1.0  ok
portmap  1.0.0        plugin portmap does not support config version \"1.1.0\"
gone     -            no such plugin
"
        );
    }

    #[test]
    fn each_address_has_a_line_and_each_interface() {
        let output = json!({
            "interfaces": [{"name": "cni0", "mac": "02:00:00:00:00:01"}, {"name": "eth0", "sandbox": "/run/netns/a"}],
            "ips": [
                {"interface": 1, "address": "10.22.0.2/24", "gateway": "10.22.0.1"},
                {"interface": 1, "address": "fd00::2/64"},
                {"address": "192.0.2.1/32"},
            ],
        });
        let result = AddResult::from_output(Version::V1_1_0, output.to_string().as_bytes()).unwrap();
        let mut out = Vec::new();
        table(&result, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "\
INTERFACE  NAMESPACE     MAC                ADDRESS       GATEWAY
cni0       host          02:00:00:00:00:01  -             -
eth0       /run/netns/a  -                  10.22.0.2/24  10.22.0.1
eth0       /run/netns/a  -                  fd00::2/64    -
-          -             -                  192.0.2.1/32  -
"
        );
    }
}
