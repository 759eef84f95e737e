// SPDX-License-Identifier: GPL-2.0-or-later

//! Kubernetes' control plane: an API server with its etcd.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::Member;
use crate::daemon::Daemon;
use crate::pace::{is_slow, within};
use crate::space::Space;

/// The programs of the control plane, in the directory that `SLIPWAY_KUBE_DIR` names. `cargo xtask test` sets the
/// variable.
const CONTROL_PLANE: [&str; 2] = ["kube-apiserver", "etcd"];

/// The feature that [`api_server_programs`] checks, for [`crate::skip!`].
pub const API_SERVER: &str = "kube-apiserver";

/// The token of a user with all rights.
pub const KUBE_TOKEN: &str = "matrix";

/// etcd's log, as the control plane's namespace sees it.
const ETCD_LOG: &str = "/run/kube/etcd.log";
/// The API server's log, as the control plane's namespace sees it.
const SERVER_LOG: &str = "/run/kube/apiserver.log";
/// Without service accounts, pods do not depend on the controllers that create those.
const WITHOUT_ACCOUNTS: &str = "--disable-admission-plugins=ServiceAccount";
/// The key with which tokens of service accounts are signed, as the control plane's namespace sees it.
pub(crate) const KEY: &str = "/run/kube/key";
/// The API server's certificate together with that of the authority it created for itself.
pub(crate) const CERTIFICATE: &str = "/run/kube/certificates/apiserver.crt";

/// The directory with Kubernetes' programs, if it contains this one.
pub fn kube_programs(program: &str) -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("SLIPWAY_KUBE_DIR")?);
    dir.join(program).is_file().then_some(dir)
}

/// The same directory, if it [has an API server](has_api_server).
pub fn api_server_programs() -> Option<PathBuf> {
    kube_programs("kube-apiserver").filter(|dir| has_api_server(dir))
}

/// True if the directory has an API server and etcd, and the machine is fast enough to run many of them. In an emulated
/// VM, each needs minutes to start.
pub fn has_api_server(programs: &Path) -> bool {
    !is_slow() && CONTROL_PLANE.iter().all(|name| programs.join(name).is_file())
}

/// An API server with its etcd, in the control plane's namespace.
#[derive(Debug)]
pub struct ApiServer<'a> {
    control: &'a Member,
    programs: PathBuf,
    pub url: String,
    options: &'static [&'static str],
    server: Option<Daemon>,
    _etcd: Daemon,
}

impl<'a> ApiServer<'a> {
    /// Starts etcd and the server, which needs some seconds until [`ApiServer::wait`] returns. All users have all
    /// rights.
    pub fn start(programs: &Path, control: &'a Member) -> Self {
        Self::start_with(programs, control, &["--authorization-mode=AlwaysAllow", WITHOUT_ACCOUNTS], "")
    }

    /// Starts a server like [`ApiServer::start`], but users have only the rights that roles give them.
    pub fn start_with_roles(programs: &Path, control: &'a Member) -> Self {
        Self::start_with(programs, control, &["--authorization-mode=RBAC", WITHOUT_ACCOUNTS], "")
    }

    /// Starts a server like [`ApiServer::start`], but kubelets have the rights of their nodes, and other users those
    /// that roles give them. `tokens` has a line `TOKEN,USER,UID,"GROUP"` for each of them. Pods have service accounts,
    /// which require the controllers.
    pub fn start_for_nodes(programs: &Path, control: &'a Member, tokens: &str) -> Self {
        Self::start_with(programs, control, &["--authorization-mode=Node,RBAC"], tokens)
    }

    fn start_with(
        programs: &Path,
        control: &'a Member,
        options: &'static [&'static str],
        tokens: &str,
    ) -> Self {
        // The server needs a default route, because it looks up the route's link.
        control.cmd("ip route add default dev eth0");
        // etcd listens on the loopback for the API server and for the tests.
        control.cmd("ip link set lo up");
        control.run(|| {
            std::fs::create_dir("/run/kube").expect("create /run/kube");
            let tokens = format!("{KUBE_TOKEN},admin,1,system:masters\n{tokens}");
            std::fs::write("/run/kube/tokens", tokens).expect("write the tokens");
            std::fs::write(KEY, key()).expect("write the key");
        });
        let etcd = control.daemon(
            programs.join("etcd"),
            &[
                "--data-dir=/run/kube/etcd",
                "--unsafe-no-fsync=true",
                "--listen-peer-urls=http://127.0.0.1:2380",
            ],
            ETCD_LOG,
        );
        let url = format!("https://{}:6443", control.addresses[0]);
        let mut server =
            Self { control, programs: programs.to_owned(), url, options, server: None, _etcd: etcd };
        server.resume();
        server
    }

    /// Kills the server. etcd keeps the server's objects.
    pub fn stop(&mut self) {
        self.server = None;
    }

    pub fn resume(&mut self) {
        let v4 = self.control.addresses[0];
        let address = format!("--bind-address={v4}");
        let advertised = format!("--advertise-address={v4}");
        let key = format!("--service-account-key-file={KEY}");
        let signing_key = format!("--service-account-signing-key-file={KEY}");
        self.server = Some(self.control.daemon(
            self.programs.join("kube-apiserver"),
            &[
                self.options,
                &[
                "--etcd-servers=http://127.0.0.1:2379",
                "--cert-dir=/run/kube/certificates",
                "--secure-port=6443",
                &address,
                &advertised,
                "--token-auth-file=/run/kube/tokens",
                "--service-cluster-ip-range=10.96.0.0/16,fd96::/112",
                // Two alpha features of this version are needed: load balancers with both TCP and UDP ports, and
                // mounted tokens that expire, as later versions mount them by default.
                "--feature-gates=IPv6DualStack=true,MixedProtocolLBService=true,BoundServiceAccountTokenVolume=true",
                "--service-account-issuer=https://kubernetes.default.svc",
                &key,
                &signing_key,
                ],
            ]
            .concat(),
            SERVER_LOG,
        ));
    }

    pub fn wait(&self) {
        let ready = || self.curl("GET", "application/json", "/readyz", "").0 == Some(0);
        let server = self.server.as_ref().expect("the server was stopped");
        wait_until_ready("the API server", self.control, SERVER_LOG, server, ready);
    }

    pub fn kubeconfig(&self) -> String {
        self.kubeconfig_of(&json!({"token": KUBE_TOKEN}))
    }

    /// The same as [`ApiServer::kubeconfig`], with a user's credentials such as `{"tokenFile": "/run/token"}`.
    pub fn kubeconfig_of(&self, user: &Value) -> String {
        use base64::Engine as _;
        let authority = base64::engine::general_purpose::STANDARD.encode(self.certificate());
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [
                {"name": "test", "cluster": {"server": self.url, "certificate-authority-data": authority}},
            ],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        })
        .to_string()
    }

    pub(crate) fn control(&self) -> &Space {
        self.control
    }

    pub fn accepts(&self, token: &str) -> bool {
        self.request(token, "GET", "application/json", "/api/v1/nodes", "").0 == Some(0)
    }

    /// The server's certificate together with that of its authority.
    pub fn certificate(&self) -> String {
        self.control.run(|| std::fs::read_to_string(CERTIFICATE)).expect("read the certificate")
    }

    pub fn get(&self, path: &str) -> Value {
        self.expect("GET", "application/json", path, "")
    }

    /// Reads an object or a list that a test polls. None if the server does not return it. The report of a failure
    /// omits these requests.
    pub fn look(&self, path: &str) -> Option<Value> {
        let mut command = self.command(KUBE_TOKEN, "GET", "application/json", path);
        command.stdin(Stdio::null());
        let output =
            self.control.run(move || command.output()).ok().filter(|output| output.status.success())?;
        serde_json::from_slice(&output.stdout).ok()
    }

    pub fn has(&self, path: &str) -> bool {
        self.curl("GET", "application/json", path, "").0 == Some(0)
    }

    /// Creates an object and returns it with the server's defaults.
    pub fn create(&self, path: &str, object: &Value) -> Value {
        self.expect("POST", "application/json", path, &object.to_string())
    }

    /// Creates an object like [`ApiServer::create`], but from YAML.
    pub fn create_yaml(&self, path: &str, object: &str) -> Value {
        self.expect("POST", "application/yaml", path, object)
    }

    /// A token of a service account, like the tokens that the account's pods get.
    pub fn token(&self, namespace: &str, account: &str) -> String {
        let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        self.create(&path, &request)["status"]["token"].as_str().expect("a token").to_owned()
    }

    pub fn patch(&self, path: &str, patch: &Value) {
        self.expect("PATCH", "application/merge-patch+json", path, &patch.to_string());
    }

    /// Merges a patch that the server must refuse, and returns its reply.
    pub fn refused_patch(&self, path: &str, patch: &Value) -> String {
        let (code, reply) = self.curl("PATCH", "application/merge-patch+json", path, &patch.to_string());
        assert_ne!(code, Some(0), "PATCH {path}: {reply}\n{patch}");
        reply
    }

    pub fn delete(&self, path: &str) {
        self.expect("DELETE", "application/json", path, "");
    }

    /// Lets etcd discard all earlier revisions of its objects.
    pub fn compact(&self) {
        let ask = |path: &str, body: Value| -> Value {
            let url = format!("http://127.0.0.1:2379/v3/kv/{path}");
            let reply = self.control.cmd_input(
                &format!("curl --silent --show-error --fail-with-body --max-time 20 --data-binary @- {url}"),
                &body.to_string(),
            );
            serde_json::from_str(&reply).expect("etcd replies with JSON")
        };
        let revision = ask("range", json!({"key": "AA=="}))["header"]["revision"].clone();
        ask("compaction", json!({"revision": revision, "physical": true}));
    }

    fn expect(&self, method: &str, kind: &str, path: &str, body: &str) -> Value {
        let (code, reply) = self.curl(method, kind, path, body);
        assert_eq!(code, Some(0), "{method} {path}: {reply}\n{body}");
        serde_json::from_str(&reply).expect("the API server replies with JSON")
    }

    /// The exit code of curl, and the server's reply.
    fn curl(&self, method: &str, kind: &str, path: &str, body: &str) -> (Option<i32>, String) {
        self.request(KUBE_TOKEN, method, kind, path, body)
    }

    fn request(
        &self,
        token: &str,
        method: &str,
        kind: &str,
        path: &str,
        body: &str,
    ) -> (Option<i32>, String) {
        let output = self.control.exec(self.command(token, method, kind, path), body.as_bytes());
        (output.code, output.stdout + &output.stderr)
    }

    /// A curl command that reads the request's body from standard input.
    fn command(&self, token: &str, method: &str, kind: &str, path: &str) -> Command {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail-with-body", "--insecure"]);
        command.args(["--max-time", &within(Duration::from_secs(20)).as_secs().to_string()]);
        command.args(["--oauth2-bearer", token, "--request", method]);
        command.args(["--header", &format!("Content-Type: {kind}"), "--data-binary", "@-"]);
        command.arg(format!("{}{path}", self.url));
        command
    }
}

pub fn wait_until_ready(name: &str, place: &Space, log: &str, program: &Daemon, ready: impl Fn() -> bool) {
    let begin = Instant::now();
    while !ready() {
        assert!(
            program.runs() && begin.elapsed() < within(Duration::from_secs(240)),
            "{name} is not ready after {:?}:\n{}",
            begin.elapsed(),
            place.cmd(&format!("tail -n 40 {log}")),
        );
        // Polling starts programs, which take processor time from the one that is waited for.
        thread::sleep(within(Duration::from_millis(100)));
    }
}

/// A P-256 key for the tokens of service accounts, in the format of RFC 5915.
fn key() -> String {
    use base64::Engine as _;
    let secret = [7; 32];
    let mut der = vec![0x30, 0x31, 2, 1, 1, 4, 0x20];
    der.extend(secret);
    der.extend([0xa0, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7]);
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----\n")
}
