// SPDX-License-Identifier: MIT OR Apache-2.0

//! An API server with its etcd, and a client for it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use crate::process::Process;
use xtask_base::error::{Error, Result};
use xtask_base::files;

/// The node's own address, at which the server listens.
pub(super) const ADDRESS: &str = "10.50.0.1";
/// The token of a user with all rights.
const TOKEN: &str = "bench";
/// The type of an object.
pub(super) const JSON: &str = "application/json";
/// A key for the tokens of service accounts, of which there are none: P-256, as RFC 5915 writes it.
const KEY: &str = "-----BEGIN EC PRIVATE KEY-----\nMDECAQEEIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHoAoGCCqGSM49AwEH\n\
                   -----END EC PRIVATE KEY-----\n";
/// The longest start of the server.
const START: Duration = Duration::from_secs(240);

#[derive(Debug)]
pub(super) struct Server {
    /// The file with the access to it.
    pub(super) kubeconfig: PathBuf,
    _server: Process,
    _etcd: Process,
}

impl Server {
    /// Starts both and waits until the server is ready.
    pub(super) async fn start(programs: &Path, directory: &Path) -> Result<(Self, Client)> {
        let write = |name: &str, text: String| {
            let path = directory.join(name);
            files::write(&path, text).map(|()| path)
        };
        files::create_dir(directory)?;
        let tokens = write("tokens", format!("{TOKEN},admin,1,system:masters\n"))?;
        let key = write("key", KEY.to_owned())?;
        let shown = |path: &Path| path.display().to_string();
        let etcd = Process::logged(
            &programs.join("etcd"),
            &[
                format!("--data-dir={}", shown(&directory.join("etcd"))),
                "--unsafe-no-fsync=true".to_owned(),
                "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            ],
            &directory.join("etcd.log"),
        )?;
        let certificates = directory.join("certificates");
        let server = Process::logged(
            &programs.join("kube-apiserver"),
            &[
                "--etcd-servers=http://127.0.0.1:2379".to_owned(),
                format!("--cert-dir={}", shown(&certificates)),
                "--secure-port=6443".to_owned(),
                format!("--bind-address={ADDRESS}"),
                format!("--advertise-address={ADDRESS}"),
                format!("--token-auth-file={}", shown(&tokens)),
                "--authorization-mode=AlwaysAllow".to_owned(),
                "--disable-admission-plugins=ServiceAccount".to_owned(),
                "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                format!("--service-account-key-file={}", shown(&key)),
                format!("--service-account-signing-key-file={}", shown(&key)),
                // The client's own requests are not what is measured.
                "--max-requests-inflight=2000".to_owned(),
                "--max-mutating-requests-inflight=1000".to_owned(),
            ],
            &directory.join("apiserver.log"),
        )?;
        let certificate = certificates.join("apiserver.crt");
        let until = Instant::now() + START;
        let client = loop {
            if certificate.exists()
                && let Ok(client) = client(&certificate).await
                && ask(&client, "GET", JSON, "/readyz", &Value::Null).await.is_ok()
            {
                break client;
            }
            if Instant::now() >= until {
                return Err(Error::Failed(format!("the API server is not ready, see {}", shown(directory))));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        let kubeconfig = write("config", config(&certificate).to_string())?;
        Ok((Self { kubeconfig, _server: server, _etcd: etcd }, client))
    }
}

fn config(certificate: &Path) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{ "name": "bench", "cluster": {
            "server": format!("https://{ADDRESS}:6443"), "certificate-authority": certificate,
        } }],
        "users": [{ "name": "bench", "user": { "token": TOKEN } }],
        "contexts": [{ "name": "bench", "context": { "cluster": "bench", "user": "bench" } }],
    })
}

async fn client(certificate: &Path) -> Result<Client> {
    let failed = |e: &dyn std::fmt::Display| Error::Failed(format!("prepare the client: {e}"));
    let config: Kubeconfig = serde_json::from_value(config(certificate)).map_err(|e| failed(&e))?;
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
    Client::try_from(config.map_err(|e| failed(&e))?).map_err(|e| failed(&e))
}

pub(super) async fn ask(
    client: &Client,
    method: &str,
    kind: &str,
    path: &str,
    body: &Value,
) -> Result<String> {
    let failed = |e: &dyn std::fmt::Display| Error::Failed(format!("{method} {path}: {e}"));
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = http::Request::builder().method(method).uri(path).header("Content-Type", kind).body(body);
    client.request_text(request.map_err(|e| failed(&e))?).await.map_err(|e| failed(&e))
}
