// SPDX-License-Identifier: GPL-2.0-or-later

//! Tables and JSON on standard output.

use std::io::{self, Write as _};
use std::net::IpAddr;

use cni_runtime::Cached;
use cni_runtime::pods::{Attached, Networks, Pod, parse_args};
use cni_spec::AddResult;
use serde_json::{Value, json};

/// The number of the JSON's form, which changes when a key is removed or gets another meaning.
const SCHEMA: u32 = 1;

/// The attachments of a pod.
pub(crate) fn attached(pod: &Pod, all: &[Attached], is_json: bool) -> io::Result<()> {
    if !is_json {
        let rows = all.iter().map(|one| {
            let Attached { network, ifname, result, .. } = one;
            vec![network.clone(), ifname.clone(), addresses(result), mac(result, ifname)]
        });
        return table(&["NETWORK", "INTERFACE", "ADDRESSES", "MAC"], rows);
    }
    let attachments: Vec<Value> = all
        .iter()
        .map(|one| {
            // A result that the version cannot express was refused by the ADD.
            let result = one.result.to_object(one.version).unwrap_or_default();
            json!({"network": one.network, "interface": one.ifname, "result": result})
        })
        .collect();
    let Pod { namespace, name, uid, sandbox, netns, .. } = pod;
    print(&json!({
        "schema": SCHEMA,
        "pod": {"namespace": namespace, "name": name, "uid": uid, "sandbox": sandbox, "netns": netns},
        "attachments": attachments,
    }))
}

/// The addresses of a pod that a network plugin of kubelet has set up.
pub(crate) fn addresses_of(pod: &Pod, addresses: &[IpAddr], is_json: bool) -> io::Result<()> {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let Pod { namespace, name, sandbox, .. } = pod;
    if !is_json {
        let row = vec![format!("{namespace}/{name}"), sandbox.clone(), addresses.join(" ")];
        return table(&["POD", "SANDBOX", "ADDRESSES"], std::iter::once(row));
    }
    print(&json!({
        "schema": SCHEMA,
        "pod": {"namespace": namespace, "name": name, "sandbox": sandbox},
        "addresses": addresses,
    }))
}

/// Cached attachments.
pub(crate) fn cached(all: &[Cached], is_json: bool) -> io::Result<()> {
    let rows = all.iter().map(|one| {
        let args = parse_args(&one.args);
        let arg = |wanted: &str| {
            args.iter().find(|(key, _)| key == wanted).map(|(_, value)| value.clone()).unwrap_or_default()
        };
        let pod = match (arg("K8S_POD_NAMESPACE"), arg("K8S_POD_NAME")) {
            (namespace, name) if name.is_empty() => namespace,
            (namespace, name) => format!("{namespace}/{name}"),
        };
        let netns = one.netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let (attachment, addresses) = (&one.attachment, addresses(&one.result));
        let (sandbox, network, ifname) =
            (attachment.container_id(), attachment.network(), attachment.ifname());
        vec![pod, sandbox.to_owned(), network.to_owned(), ifname.to_owned(), addresses, netns]
    });
    if !is_json {
        return table(&["POD", "SANDBOX", "NETWORK", "INTERFACE", "ADDRESSES", "NETNS"], rows);
    }
    let keys = ["pod", "sandbox", "network", "interface", "addresses", "netns"];
    let attachments: Vec<Value> = rows
        .map(|row| keys.iter().map(ToString::to_string).zip(row.into_iter().map(Value::from)).collect())
        .collect();
    print(&json!({"schema": SCHEMA, "attachments": attachments}))
}

/// The files of the configuration directory.
pub(crate) fn networks(networks: &Networks, is_json: bool) -> io::Result<()> {
    let default = networks.default_network().map(|network| network.name().to_owned());
    let verdicts = networks.verdicts().iter();
    if is_json {
        let files: Vec<Value> = verdicts
            .map(|verdict| {
                let path = verdict.path.display().to_string();
                match &verdict.network {
                    Ok(name) => json!({"path": path, "network": name}),
                    Err(reason) => json!({"path": path, "skipped": reason.to_string()}),
                }
            })
            .collect();
        return print(&json!({"schema": SCHEMA, "default_network": default, "files": files}));
    }
    let rows = verdicts.map(|verdict| {
        let (name, note) = match &verdict.network {
            Ok(name) if Some(name) == default.as_ref() => (name.clone(), "default".to_owned()),
            Ok(name) => (name.clone(), String::new()),
            Err(reason) => (String::new(), format!("skipped: {reason}")),
        };
        vec![verdict.path.display().to_string(), name, note]
    });
    table(&["FILE", "NETWORK", "NOTE"], rows)
}

fn addresses(result: &AddResult) -> String {
    let all: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
    all.join(",")
}

fn mac(result: &AddResult, ifname: &str) -> String {
    let own =
        result.interfaces.iter().find(|interface| interface.name == ifname && !interface.sandbox.is_empty());
    own.map(|interface| interface.mac.clone()).unwrap_or_default()
}

fn print(value: &Value) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{value:#}")
}

/// Prints rows with a heading, and `-` for an empty cell.
fn table(heading: &[&str], rows: impl Iterator<Item = Vec<String>>) -> io::Result<()> {
    let heading = heading.iter().map(ToString::to_string).collect();
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let mut out = io::stdout().lock();
    for row in &rows {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let cell = if cell.is_empty() { "-" } else { cell };
            format!("{cell:<width$}", width = width(column))
        });
        let line: Vec<String> = cells.collect();
        writeln!(out, "{}", line.join("  ").trim_end())?;
    }
    Ok(())
}
