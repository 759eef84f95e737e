// SPDX-License-Identifier: MIT OR Apache-2.0

//! An API server with its etcd, and a client for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use xtask_base::error::{Error, Result};

/// The node's own address, at which the server listens.
pub(super) const ADDRESS: &str = "10.50.0.1";
/// The token of a user with all rights.
const TOKEN: &str = "bench";
/// The type of an object.
pub(super) const JSON: &str = "application/json";
/// The longest start of the server.
const START: Duration = Duration::from_secs(240);

/// A process that is killed when it is dropped.
#[derive(Debug)]
pub(super) struct Process(Child);

/// The running server.
#[derive(Debug)]
pub(super) struct Server {
    /// The file with the access to it.
    pub(super) kubeconfig: PathBuf,
    _server: Process,
    _etcd: Process,
}

impl Process {
    /// Starts a program with its output in a file.
    pub(super) fn start(program: &Path, arguments: &[String], log: &Path) -> Result<Self> {
        let output = fs::File::create(log).map_err(|e| Error::file("create", log, e))?;
        let errors = output.try_clone().map_err(|e| Error::file("open", log, e))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(output).stderr(errors);
        command.spawn().map(Self).map_err(|e| Error::file("start", program, e))
    }

    /// Its number.
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        for result in [self.0.kill(), self.0.wait().map(drop)] {
            if let Err(e) = result {
                eprintln!("end a process: {e}");
            }
        }
    }
}

impl Server {
    /// Starts both and waits until the server is ready.
    pub(super) async fn start(programs: &Path, directory: &Path) -> Result<(Self, Client)> {
        let write = |name: &str, text: String| {
            let path = directory.join(name);
            fs::write(&path, text).map_err(|e| Error::file("write", &path, e)).map(|()| path)
        };
        fs::create_dir_all(directory).map_err(|e| Error::file("create", directory, e))?;
        let tokens = write("tokens", format!("{TOKEN},admin,1,system:masters\n"))?;
        let key = write("key", key())?;
        let shown = |path: &Path| path.display().to_string();
        let etcd = Process::start(
            &programs.join("etcd"),
            &[
                format!("--data-dir={}", shown(&directory.join("etcd"))),
                "--unsafe-no-fsync=true".to_owned(),
                "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            ],
            &directory.join("etcd.log"),
        )?;
        let certificates = directory.join("certificates");
        let server = Process::start(
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

/// A kubeconfig.
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

/// Sends a request and reads the reply.
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

/// A key for the tokens of service accounts, of which there are none: P-256, as RFC 5915 writes it.
fn key() -> String {
    use base64::Engine as _;
    let mut der = vec![0x30, 0x31, 2, 1, 1, 4, 0x20];
    der.extend([7; 32]);
    der.extend([0xa0, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7]);
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----\n")
}
