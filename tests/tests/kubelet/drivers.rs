// SPDX-License-Identifier: GPL-2.0-or-later

use std::path::PathBuf;
use std::sync::Arc;

use cni_runtime::kubelet::{
    CniDriver, HairpinMode, Host, InitSettings, Manager, NetworkPlugin as _, Pod, Purpose, StatusError,
};
use serde_json::json;
use slipway_tests::{Proto, Reference, Snapshot, quoted};
use slipwayd::network_plugin::CniDirectories;

use crate::Kubelet;

/// A plugin that creates a link for each pod, so that the effect of a call can be seen.
const PROGRAM: &str = r#"#!/bin/sh
echo "$@" >> /run/exec/calls
case $1 in
    setup) ip link add "sdn-$4" type bridge ;;
    teardown) ip link delete "sdn-$4" 2>/dev/null || true ;;
    status) echo '{"apiVersion": "v1beta1", "kind": "PodNetworkStatus", "ip": "10.9.8.7"}' ;;
esac
"#;

#[test]
fn an_exec_plugin_is_called_for_each_pod() {
    let kubelet = Kubelet::new();
    let node = &kubelet.node;
    node.write("/run/exec/mycompany~sdn/sdn", PROGRAM);
    node.cmd("chmod +x /run/exec/mycompany~sdn/sdn");
    let mut options = kubelet.options("mycompany/sdn");
    options.network_plugin_dir = Some("/run/exec".into());
    let manager = kubelet.start(&options);
    let (_space, pod) = kubelet.sandbox("web", &[]);
    let addresses = kubelet.set_up(&manager, &pod);
    assert_eq!(addresses[0].to_string(), "10.9.8.7");
    assert!(node.has_link("sdn-web"));
    for _ in 0..2 {
        kubelet.tear_down(&manager, &pod);
        assert!(!node.has_link("sdn-web"));
    }
    assert_eq!(
        node.read("/run/exec/calls").expect("calls"),
        "init\nsetup shop web web\nstatus shop web web\nteardown shop web web\nteardown shop web web\n"
    );
    options.network_plugin = Some("sdn".into());
    let host = Arc::clone(&kubelet.sandboxes) as Arc<dyn Host>;
    let directories = kubelet.directories();
    let error = kubelet.run(|| options.start(&directories, host, Purpose::SetUp)).expect_err("another name");
    assert_eq!(error.to_string(), "Network plugin \"sdn\" not found.");
    // A wrong answer makes the request for the status fail.
    node.write("/run/exec/mycompany~sdn/sdn", "#!/bin/sh\necho '{\"kind\": \"Pod\"}'\n");
    let error = kubelet.run(|| manager.pod_network_status(&pod)).expect_err("another kind");
    assert!(matches!(error.error.downcast_ref(), Some(StatusError::Kind { .. })), "{error}");
}

fn list() -> String {
    let bridge = json!({
        "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true,
        "ipam": {"type": "host-local", "subnet": "10.77.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
    });
    let portmap = json!({"type": "portmap", "snat": true, "capabilities": {"portMappings": true}});
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, portmap]}).to_string()
}

/// The directory of our plugins, and one of reference plugins if there is any.
fn plugin_directories(kubelet: &Kubelet) -> Vec<PathBuf> {
    let ours = kubelet.node.bin().to_owned();
    [ours].into_iter().chain(Reference::any().map(|reference| reference.dir().to_owned())).collect()
}

#[test]
fn pods_of_the_cni_driver_are_reached_by_their_ports() {
    let kubelet = Kubelet::new();
    let client = kubelet.node.host("client");
    for directory in plugin_directories(&kubelet) {
        let directories = CniDirectories { plugins: vec![directory.clone()], ..kubelet.directories() };
        kubelet.node.cmd("rm -rf /run/net.d");
        let manager = kubelet.start_in(&kubelet.options("cni"), &directories);
        let error = kubelet.run(|| manager.status()).expect_err("no network");
        assert_eq!(error.to_string(), "cni config uninitialized: No networks found in /run/net.d");
        let (space, pod) = kubelet.sandbox("web", &[(8080, 80)]);
        let before = Snapshot::take(&kubelet.node, &[&space]);
        let error = kubelet.try_set_up(&manager, &pod).expect_err("no network");
        assert!(
            error.to_string().contains("failed to set up pod \"web_shop\" network: cni config"),
            "{error}"
        );
        before.assert_same(&Snapshot::take(&kubelet.node, &[&space]));

        kubelet.node.write("/run/net.d/10-pods.conflist", list());
        kubelet.run(|| manager.status()).expect("a network");
        let addresses = kubelet.set_up(&manager, &pod);
        let _server = space.serve(Proto::Tcp, "0.0.0.0:80", "web");
        client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
        space.expect(Proto::Tcp, (addresses[0], 80), "web");
        // The loopback is up, so the pod reaches itself.
        space.expect(Proto::Tcp, ([127, 0, 0, 1], 80), "web");
        // The configuration and the namespace disappear, but the cache still contains what to delete.
        kubelet.node.cmd("rm -rf /run/net.d");
        drop(_server);
        space.remove();
        kubelet.sandboxes.0.lock().expect("not poisoned").remove("web");
        for _ in 0..2 {
            kubelet.tear_down(&manager, &pod);
        }
        client.expect_none(Proto::Tcp, (client.node_v4, 8080));
        assert_eq!(leases(&kubelet, "pods"), Vec::<String>::new(), "{}", directory.display());
        kubelet.node.cmd("ip link delete br0");
    }
}

/// The addresses that host-local has reserved for a network.
fn leases(kubelet: &Kubelet, network: &str) -> Vec<String> {
    let mut names = kubelet.node.list(&format!("/var/lib/cni/networks/{network}"));
    names.retain(|name| name.starts_with(|c: char| c.is_ascii_digit()) || name.starts_with('f'));
    names
}

#[test]
fn plugins_of_a_vendor_are_found_below_opt() {
    let kubelet = Kubelet::new();
    let node = &kubelet.node;
    node.write("/run/net.d/10-pods.conflist", list().replace("portmap", "tuning"));
    node.cmd("mkdir -p /run/plugins /run/vendor/opt/bridge/bin");
    for (plugin, directory) in [
        ("loopback", "plugins"),
        ("host-local", "plugins"),
        ("bridge", "vendor/opt/bridge/bin"),
        ("tuning", "plugins"),
    ] {
        node.cmd(&format!("ln -s {} /run/{directory}/{plugin}", quoted(node.bin().join(plugin))));
    }
    let mut driver =
        CniDriver::probe("/run/net.d".as_ref(), ["/run/plugins".into()]).vendor_prefix("/run/vendor");
    let settings = InitSettings {
        host: Arc::clone(&kubelet.sandboxes) as Arc<dyn Host>,
        hairpin_mode: HairpinMode::None,
        non_masquerade_cidr: String::new(),
        mtu: None,
        purpose: Purpose::SetUp,
    };
    kubelet.run(|| driver.init(settings)).expect("it starts");
    let manager = Manager::new(Box::new(driver));
    let (_space, pod) = kubelet.sandbox("web", &[]);
    assert_eq!(kubelet.set_up(&manager, &pod)[0].to_string(), "10.77.0.2");
    kubelet.tear_down(&manager, &pod);
}

#[test]
fn a_missing_file_does_not_fail_a_teardown() {
    const PLUGIN: &str = r#"#!/bin/sh
cat > /dev/null
[ "$CNI_COMMAND" = VERSION ] && echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}'
[ "$CNI_COMMAND" = DEL ] || exit 0
echo '{"cniVersion": "1.0.0", "code": 100, "msg": "open /run/sdn/web: no such file or directory"}'
exit 1
"#;
    let kubelet = Kubelet::new();
    let node = &kubelet.node;
    node.write("/run/net.d/10-sdn.conf", r#"{"cniVersion": "1.0.0", "name": "sdn", "type": "sdn"}"#);
    for (plugin, text) in [("sdn", PLUGIN), ("loopback", PLUGIN)] {
        node.write(&format!("/run/plugins/{plugin}"), text);
        node.cmd(&format!("chmod +x /run/plugins/{plugin}"));
    }
    let directories = CniDirectories { plugins: vec!["/run/plugins".into()], ..kubelet.directories() };
    let manager = kubelet.start_in(&kubelet.options("cni"), &directories);
    let pod = Pod::new("shop", "web", "web");
    kubelet.tear_down(&manager, &pod);
    node.write("/run/plugins/sdn", PLUGIN.replace("no such file or directory", "device busy"));
    let error = kubelet.run(|| manager.tear_down_pod(&pod)).expect_err("another error");
    assert!(error.to_string().contains("device busy"), "{error}");
}

/// kubelet repeats a set-up that it believes to have failed. The pod keeps its network, even if the cache is lost.
#[test]
fn a_second_set_up_of_a_running_pod_is_refused_and_changes_nothing() {
    for plugin in ["cni", "kubenet"] {
        let kubelet = Kubelet::new();
        let client = kubelet.node.host("client");
        kubelet.node.write("/run/net.d/10-pods.conflist", list());
        let mut options = kubelet.options(plugin);
        options.pod_cidr = Some("10.180.1.0/24".to_owned());
        let manager = kubelet.start(&options);
        let (space, pod) = kubelet.sandbox("web", &[(8080, 80)]);
        let addresses = kubelet.set_up(&manager, &pod);
        let _server = space.serve(Proto::Tcp, "0.0.0.0:80", "web");
        for lost in [false, true] {
            if lost {
                kubelet.node.cmd("rm -r /var/lib/cni/results");
            }
            let state = || Snapshot::take(&kubelet.node, &[&*space]).without(&["networks/.slipway/"]);
            let before = state();
            let error = kubelet.try_set_up(&manager, &pod).expect_err("it is attached").to_string();
            assert!(error.contains(if lost { "already exists" } else { "is attached already" }), "{error}");
            if !lost {
                before.assert_same(&state());
            }
            assert_eq!(kubelet.addresses(&manager, &pod), addresses, "{plugin}");
            client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
            assert!(space.cmd("ip -o link show lo").contains("UP"), "{plugin}");
        }
        kubelet.tear_down(&manager, &pod);
        assert!(!space.has_link("eth0"), "{plugin}");
    }
}
