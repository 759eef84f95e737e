// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd status`: asks the running agent for its state, and prints it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value;
use slipway_cli::Failure;
use slipwayd::host::run_dir::SOCKET;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The usual directory of the agent.
const DIRECTORY: &str = "/run/slipway";
/// The time limit for the reply.
const LIMIT: Duration = Duration::from_secs(5);
/// The longest reply that is read, in bytes.
const LONGEST: usize = 4 << 20;

/// The agent's state cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    #[error("slipwayd does not run: connect to {0:?}: {1}")]
    Connect(PathBuf, io::Error),
    #[error("read from {0:?}: no reply within {limit} s", limit = LIMIT.as_secs())]
    TimedOut(PathBuf),
    #[error("read from {0:?}: {1}")]
    Read(PathBuf, Box<dyn std::error::Error + Send + Sync>),
    #[error("the agent replied {0}")]
    Refused(StatusCode),
}

/// Reads the document of the agent at a socket, or at the usual one.
///
/// # Errors
/// [`StatusError`] if no agent runs, or it does not reply with a document.
pub(crate) async fn read(socket: Option<&str>) -> Result<Value, StatusError> {
    ask(socket, "/status").await
}

/// Reads a page of the agent at a socket, or at the usual one.
///
/// # Errors
/// As [`read`].
pub(crate) async fn ask(socket: Option<&str>, page: &str) -> Result<Value, StatusError> {
    let path = socket.map_or_else(|| Path::new(DIRECTORY).join(SOCKET), PathBuf::from);
    let stream = UnixStream::connect(&path).await;
    let stream = stream.map_err(|error| StatusError::Connect(path.clone(), error))?;
    match timeout(LIMIT, request(stream, page)).await {
        Ok(Ok((StatusCode::OK, body))) => {
            serde_json::from_slice(&body).map_err(|error| StatusError::Read(path, error.into()))
        }
        Ok(Ok((status, _))) => Err(StatusError::Refused(status)),
        Ok(Err(error)) => Err(StatusError::Read(path, error)),
        Err(_) => Err(StatusError::TimedOut(path)),
    }
}

async fn request(
    stream: UnixStream,
    page: &str,
) -> Result<(StatusCode, Vec<u8>), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let reply = async {
        let request = Request::get(page).header(HOST, "slipwayd").body(String::new())?;
        let (head, body) = sender.send_request(request).await?.into_parts();
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((
            head.status,
            Limited::new(body, LONGEST).collect().await?,
        ))
    };
    // The connection's future moves the bytes; it may end first.
    let (reply, _ended) = tokio::join!(reply, connection);
    reply.map(|(status, body)| (status, body.to_bytes().to_vec()))
}

/// The fields of the document that are printed as text.
#[derive(Deserialize)]
struct Status {
    node: String,
    version: String,
    since: String,
    node_list_complete: bool,
    reason: Option<String>,
    subnets: Vec<String>,
    mtu: Option<u32>,
    nodes: u64,
    routes: u64,
    tunnel: Option<Tunnel>,
    wireguard: Option<WireGuard>,
    refused: Vec<String>,
    troubles: Vec<String>,
    trouble_count: usize,
    addresses: Vec<Range>,
    former_addresses: Vec<Former>,
    former_address_count: usize,
    garbage: Option<Garbage>,
    last_comparison: Option<Comparison>,
}

#[derive(Deserialize)]
struct Tunnel {
    device: String,
    vni: u32,
    port: u16,
    local: String,
    peers: u64,
}

#[derive(Deserialize)]
struct WireGuard {
    device: String,
    port: u16,
    public_key: Option<String>,
    peers: u64,
}

#[derive(Deserialize)]
struct Range {
    range: String,
    used: u64,
    free: u64,
}

/// An address of a pod from a former pod CIDR.
#[derive(Deserialize)]
struct Former {
    address: String,
    container: Option<String>,
    interface: Option<String>,
}

#[derive(Deserialize)]
struct Garbage {
    suspected: u64,
    deleted: u64,
    failed: u64,
    troubles: Vec<String>,
}

#[derive(Deserialize)]
struct Comparison {
    time: String,
    seconds: f64,
    changes: u64,
}

/// Prints the document, as text or JSON.
///
/// # Errors
/// `out` cannot be written, or the agent is of another version, whose document has other fields.
pub(crate) fn print(document: Value, is_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    if is_json {
        return Ok(slipway_cli::json::print(document, out)?);
    }
    let other =
        |error| Failure::failed(format!("the agent is of another version: {error}; use --output json"));
    let status: Status = serde_json::from_value(document).map_err(other)?;
    for (name, value) in rows(&status) {
        writeln!(out, "{name:<14}{value}")?;
    }
    Ok(())
}

fn rows(status: &Status) -> Vec<(&'static str, String)> {
    let unknown = || "-".to_owned();
    let joined = |texts: &[String]| if texts.is_empty() { unknown() } else { texts.join(", ") };
    let mut rows = vec![
        ("node", status.node.clone()),
        ("version", status.version.clone()),
        ("since", status.since.clone()),
        ("list of Nodes", if status.node_list_complete { "complete" } else { "not complete" }.to_owned()),
        ("ready", status.reason.as_ref().map_or("yes".to_owned(), |reason| format!("no: {reason}"))),
        ("subnets", joined(&status.subnets)),
        ("MTU", status.mtu.map_or_else(unknown, |mtu| mtu.to_string())),
        ("nodes", status.nodes.to_string()),
        ("routes", status.routes.to_string()),
    ];
    let tunnel = status.tunnel.as_ref().map(|tunnel| {
        let Tunnel { device, vni, port, local, peers } = tunnel;
        format!("{device}, VNI {vni}, UDP port {port}, from {local}, {peers} peers")
    });
    rows.push(("tunnel", tunnel.unwrap_or_else(unknown)));
    if let Some(WireGuard { device, port, public_key, peers }) = &status.wireguard {
        let key = public_key.as_deref().unwrap_or("-");
        rows.push(("WireGuard", format!("{device}, UDP port {port}, key {key}, {peers} peers")));
    }
    if !status.refused.is_empty() {
        rows.push(("refused", status.refused.join(", ")));
    }
    let compared = status.last_comparison.as_ref().map(|last| {
        let Comparison { time, seconds, changes } = last;
        format!("{time}, {:.1} ms, {changes} changes", seconds * 1e3)
    });
    rows.push(("compared", compared.unwrap_or_else(unknown)));
    for Range { range, used, free } in &status.addresses {
        rows.push(("addresses", format!("{range}: {used} used, {free} free")));
    }
    for Former { address, container, interface } in &status.former_addresses {
        let owner = [container, interface].map(|part| part.clone().unwrap_or_else(unknown)).join(" ");
        rows.push(("former", format!("{address} of {owner}, until it ends")));
    }
    let left_out = status.former_address_count.saturating_sub(status.former_addresses.len());
    if left_out > 0 {
        rows.push(("former", format!("and {left_out} more")));
    }
    if let Some(Garbage { suspected, deleted, failed, troubles }) = &status.garbage {
        rows.push(("garbage", format!("{suspected} suspected, {deleted} deleted, {failed} failed")));
        rows.extend(troubles.iter().map(|trouble| ("trouble", trouble.clone())));
    }
    rows.extend(status.troubles.iter().map(|trouble| ("trouble", trouble.clone())));
    let left_out = status.trouble_count.saturating_sub(status.troubles.len());
    if left_out > 0 {
        rows.push(("trouble", format!("and {left_out} more")));
    }
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn printed(document: &Value) -> String {
        let mut text = Vec::new();
        print(document.clone(), false, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_document_is_printed_as_text() {
        let mut document = json!({
            "node": "node-1", "version": "0.1.0", "since": "2026-11-23T11:50:15Z", "node_list_complete": true,
            "ready": true, "reason": null, "subnets": ["10.244.1.0/24", "fd44:0:0:1::/64"], "mtu": 1450,
            "nodes": 3, "routes": 4,
            "tunnel": {"device": "slipway-vxlan", "vni": 1, "port": 4789, "local": "192.168.50.11", "peers": 2},
            "wireguard": {"device": "slipway-wg", "port": 51820, "public_key": "AbC=", "peers": 3},
            "refused": ["10.244.0.0/16", "10.244.9.0/24"],
            "troubles": ["node a: no pod CIDR"], "trouble_count": 3,
            "addresses": [{"range": "10.244.1.0/24", "used": 2, "free": 251}],
            "former_addresses": [
                {"address": "10.9.0.2", "container": "8f3a", "interface": "eth0"},
                {"address": "10.9.0.3", "container": null, "interface": null},
            ],
            "former_address_count": 5,
            "garbage": {"suspected": 2, "deleted": 1, "failed": 0, "troubles": ["garbage: 8f3b is not deleted"]},
            "last_comparison": {"time": "2026-11-23T11:50:45Z", "seconds": 0.00314, "changes": 0},
        });
        let expected = "node          node-1\nversion       0.1.0\nsince         2026-11-23T11:50:15Z\n\
                        list of Nodes complete\nready         yes\nsubnets       10.244.1.0/24, fd44:0:0:1::/64\n\
                        MTU           1450\nnodes         3\nroutes        4\n\
                        tunnel        slipway-vxlan, VNI 1, UDP port 4789, from 192.168.50.11, 2 peers\n\
                        WireGuard     slipway-wg, UDP port 51820, key AbC=, 3 peers\n\
                        refused       10.244.0.0/16, 10.244.9.0/24\n\
                        compared      2026-11-23T11:50:45Z, 3.1 ms, 0 changes\n\
                        addresses     10.244.1.0/24: 2 used, 251 free\n\
                        former        10.9.0.2 of 8f3a eth0, until it ends\nformer        10.9.0.3 of - -, until it ends\n\
                        former        and 3 more\ngarbage       2 suspected, 1 deleted, 0 failed\n\
                        trouble       garbage: 8f3b is not deleted\ntrouble       node a: no pod CIDR\n\
                        trouble       and 2 more\n";
        assert_eq!(printed(&document), expected);
        document["reason"] = json!("this node has no pod CIDR");
        for key in ["mtu", "tunnel", "wireguard", "last_comparison", "garbage"] {
            document[key] = Value::Null;
        }
        document["refused"] = json!([]);
        document["subnets"] = json!([]);
        let text = printed(&document);
        for line in ["ready         no: this node has no pod CIDR", "subnets       -", "MTU           -"] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
        assert!(!text.contains("WireGuard") && !text.contains("refused"), "{text}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_agent_that_does_not_run_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("slipwayd.sock");
        let error = read(path.to_str()).await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("slipwayd does not run: connect to {path:?}: No such file")),
            "{error}"
        );
    }
}
