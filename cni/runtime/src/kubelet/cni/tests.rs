// SPDX-License-Identifier: MIT OR Apache-2.0

use cni_spec::{CniError, ErrorCode, PortMapping};
use tempfile::TempDir;

use super::super::tests::{settings, settings_with};
use super::super::{EVENT_DETAIL_POD_CIDR, EVENT_POD_CIDR_CHANGE};
use super::*;
use crate::CallError;
use crate::exec::{CallFuture, Expected, Fake};
use crate::verbs::{Command, PluginCall};

const RESULT: &str = r#"{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.5/24"}]}"#;

struct Stage {
    directory: TempDir,
    cache: TempDir,
}

impl Stage {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), cache: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.directory.path().join(name), content).unwrap();
    }

    fn list(&self) {
        let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "bridge", "capabilities": {"portMappings": true, "bandwidth": true}},
        ]});
        self.write("10-pods.conflist", &list.to_string());
    }

    async fn driver(&self, fake: &Fake, settings: InitSettings) -> CniDriver {
        let driver = CniDriver::probe(self.directory.path(), []);
        let mut driver = driver.cache(self.cache.path()).exec(Arc::new(Valid(fake.clone())));
        driver.init(settings).await.unwrap();
        driver
    }

    async fn status(&self) -> String {
        let driver = self.driver(&Fake::default(), settings()).await;
        driver.status().await.err().map_or_else(|| "ready".to_owned(), |error| error.to_string())
    }
}

/// Plugins of version 1.0.0, but for those of the names `missing` and `old`. All other calls are the fake's.
struct Valid(Fake);

impl Exec for Valid {
    fn exec<'a>(
        &'a self,
        directories: &'a [PathBuf],
        call: &'a PluginCall,
        options: &'a CallOptions,
    ) -> CallFuture<'a> {
        if call.command != Command::Version {
            return self.0.exec(directories, call, options);
        }
        let supports = |version: &str| {
            Ok(json!({"cniVersion": version, "supportedVersions": [version]}).to_string().into_bytes())
        };
        Box::pin(async move {
            match &*call.plugin {
                "missing" => Err(CallError::NotFound(CniError::internal("failed to find plugin"))),
                "old" => supports("0.3.1"),
                _ => supports("1.0.0"),
            }
        })
    }
}

fn pod() -> Pod {
    Pod::new("shop", "web", "c1")
}

fn script(steps: &[(&str, Command)]) -> Fake {
    Fake::new(steps.iter().map(|(plugin, command)| match command {
        Command::Add => Expected::call(*plugin, Command::Add).prints(RESULT),
        command => Expected::call(*plugin, *command),
    }))
}

#[tokio::test]
async fn the_first_valid_file_is_the_default_network() {
    let stage = Stage::new();
    let shown = stage.directory.path().display().to_string();
    let uninitialized = "cni config uninitialized: ";
    assert_eq!(stage.status().await, format!("{uninitialized}No networks found in {shown}"));
    stage.write("05-bad.conf", "{");
    stage.write("06-list.conf", r#"{"name": "n", "plugins": [{"type": "bridge"}]}"#);
    stage.write("07-empty.conflist", r#"{"name": "n", "plugins": []}"#);
    assert_eq!(stage.status().await, format!("{uninitialized}No valid networks found in {shown}"));
    // The plugins of the next two files cannot be called.
    stage.write("08-missing.conf", r#"{"cniVersion": "1.0.0", "name": "n", "type": "missing"}"#);
    let plugins = json!([{"type": "bridge"}, {"type": "old"}, {"type": "missing"}]);
    let list = json!({"cniVersion": "1.0.0", "name": "n", "plugins": plugins});
    stage.write("09-old.conflist", &list.to_string());
    assert_eq!(stage.status().await, format!("{uninitialized}No valid networks found in {shown}"));
    stage.list();
    stage.write("20-later.conf", r#"{"cniVersion": "1.0.0", "name": "later", "type": "ptp"}"#);
    assert_eq!(stage.status().await, "ready");
    let driver = stage.driver(&Fake::default(), settings()).await;
    let mut passed_over = Vec::new();
    assert_eq!(driver.default_network(&mut passed_over).await.unwrap().name(), "pods");
    let reason = |message: &String| message.replace(&format!("{shown}/"), "");
    assert_eq!(
        passed_over.iter().map(reason).collect::<Vec<_>>(),
        [
            "Error loading CNI config file 05-bad.conf: error parsing configuration list: failed to parse plugin config 0: error parsing configuration: unexpected end of JSON input",
            "Error loading CNI config file 06-list.conf: error parsing configuration list: failed to parse plugin config 0: error parsing configuration: missing 'type'",
            "Error loading CNI config file 07-empty.conflist: error parsing configuration list: no plugins in list",
            "Error validating CNI config file 08-missing.conf: failed to find plugin",
            "Error validating CNI config file 09-old.conflist: plugin old does not support config version \"1.0.0\"; failed to find plugin",
        ]
    );
    // A reading that finds the same logs nothing.
    assert_eq!(driver.state.read().unwrap().passed_over, passed_over);
}

#[tokio::test]
async fn no_pod_is_set_up_before_there_is_a_network() {
    let stage = Stage::new();
    let driver = stage.driver(&Fake::default(), settings()).await;
    for error in [driver.set_up_pod(&pod()).await, driver.tear_down_pod(&pod()).await] {
        assert!(error.unwrap_err().to_string().starts_with("cni config uninitialized: No networks found"));
    }
    // A network that appears is found by the next status, and stays when its file is gone.
    stage.list();
    driver.status().await.unwrap();
    std::fs::remove_file(stage.directory.path().join("10-pods.conflist")).unwrap();
    driver.status().await.unwrap();
}

#[tokio::test]
async fn loopback_comes_before_the_network_and_both_are_deleted() {
    let stage = Stage::new();
    stage.list();
    let fake = script(&[
        ("loopback", Command::Add),
        ("bridge", Command::Add),
        ("loopback", Command::Del),
        ("bridge", Command::Del),
        ("loopback", Command::Del),
        ("bridge", Command::Del),
    ]);
    let ports = vec![PortMapping {
        host_port: 8080,
        container_port: 80,
        protocol: "TCP".into(),
        host_ip: String::new(),
    }];
    let driver = stage.driver(&fake, settings_with(ports)).await;
    let pod = pod().annotation("kubernetes.io/egress-bandwidth", "10M");
    driver.set_up_pod(&pod).await.unwrap();
    driver.tear_down_pod(&pod).await.unwrap();
    // Once more, without an attachment in the cache.
    driver.tear_down_pod(&pod).await.unwrap();
    let calls = fake.calls();
    let add: Value = serde_json::from_slice(&calls[1].stdin).unwrap();
    assert_eq!(
        add["runtimeConfig"],
        json!({
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}],
            "bandwidth": {"egressRate": 10_000_000, "egressBurst": 2_147_483_647_u64},
        })
    );
    assert_eq!(
        calls[1].var("CNI_ARGS").unwrap(),
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=c1"
    );
    assert_eq!(calls[0].var("CNI_IFNAME").unwrap(), "lo");
    assert_eq!(calls[1].var("CNI_NETNS").unwrap(), "/run/netns/c1");
}

#[tokio::test]
async fn a_failed_set_up_leaves_nothing() {
    let stage = Stage::new();
    stage.list();
    let failure = CallError::Failed(CniError::new(ErrorCode::Internal, "no uplink"));
    let fake = Fake::new([
        Expected::call("loopback", Command::Add).prints(RESULT),
        Expected::call("bridge", Command::Add).fails(failure),
        Expected::call("bridge", Command::Del),
        Expected::call("loopback", Command::Del),
    ]);
    let driver = stage.driver(&fake, settings()).await;
    let error = driver.set_up_pod(&pod()).await.unwrap_err().to_string();
    assert!(error.contains("plugin type=\"bridge\" failed (add): no uplink"), "{error}");
}

#[tokio::test]
async fn a_missing_file_or_namespace_does_not_fail_a_teardown() {
    let stage = Stage::new();
    stage.list();
    let fails = |plugin: &str, text: &str| {
        let error = CallError::Failed(CniError::new(ErrorCode::Internal, text));
        Expected::call(plugin, Command::Del).fails(error)
    };
    let fake = Fake::new([
        fails("loopback", "anything"),
        fails("bridge", "open /run/netns/c1: no such file or directory"),
        Expected::call("loopback", Command::Del),
        fails("bridge", "device busy"),
    ]);
    let driver = stage.driver(&fake, settings()).await;
    let lost = Pod::new("shop", "web", "lost");
    driver.tear_down_pod(&lost).await.unwrap();
    let error = driver.tear_down_pod(&lost).await.unwrap_err().to_string();
    assert!(error.contains("device busy"), "{error}");
    assert_eq!(fake.calls()[1].var("CNI_NETNS").unwrap(), "");
    let error = driver.set_up_pod(&lost).await.unwrap_err().to_string();
    assert_eq!(error, "CNI failed to retrieve network namespace path: no sandbox");
    let error = driver.pod_network_status(&lost).await.unwrap_err().to_string();
    assert_eq!(error, "CNI failed to retrieve network namespace path: no sandbox");
}

#[tokio::test]
async fn a_network_with_ranges_waits_for_the_pod_cidr() {
    let stage = Stage::new();
    let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "bridge", "capabilities": {"ipRanges": true}},
    ]});
    stage.write("10-pods.conflist", &list.to_string());
    let fake = script(&[("loopback", Command::Add), ("bridge", Command::Add)]);
    let driver = stage.driver(&fake, settings()).await;
    assert_eq!(driver.status().await.unwrap_err().to_string(), "no PodCIDR set");
    for cidr in ["10.1.0.0/24,fd00:1::/64", "10.2.0.0/24"] {
        let details = Map::from_iter([(EVENT_DETAIL_POD_CIDR.to_owned(), cidr.into())]);
        driver.event(EVENT_POD_CIDR_CHANGE, &details).await;
    }
    driver.event(EVENT_POD_CIDR_CHANGE, &Map::new()).await;
    driver.event("other", &Map::new()).await;
    driver.set_up_pod(&pod()).await.unwrap();
    let add: Value = serde_json::from_slice(&fake.calls()[1].stdin).unwrap();
    assert_eq!(
        add["runtimeConfig"]["ipRanges"],
        json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]])
    );
}

#[test]
fn a_vendors_plugins_are_searched_for_last() {
    let driver = CniDriver::probe(Path::new(""), [PathBuf::new(), "/a".into()]).vendor_prefix("/v");
    let network = Network::builder("n").plugin(json!({"type": "sdn"})).build().unwrap();
    assert_eq!(driver.runtime(&network).plugin_dirs(), [PathBuf::from("/a"), "/v/opt/sdn/bin".into()]);
    assert_eq!(driver.directory, Path::new("/etc/cni/net.d"));
    let default = CniDriver::probe(Path::new(""), []);
    assert_eq!(
        default.runtime(&loopback()).plugin_dirs(),
        [PathBuf::from("/opt/cni/bin"), "/opt/loopback/bin".into()]
    );
}
