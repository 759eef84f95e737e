// SPDX-License-Identifier: GPL-3.0-or-later

//! The DaemonSet's pods: an init container that installs the plugins, and the agent.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, Container, EnvVar, EnvVarSource, HTTPGetAction, HostPathVolumeSource,
    ObjectFieldSelector, PodSecurityContext, PodSpec, Probe, ResourceRequirements, SELinuxOptions,
    SeccompProfile, SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Deployment, NAME};
use crate::cluster::access::NODE_NAME;

/// The capabilities of the agent. All but the first are for repairs: `slipway restore` runs in the mount namespace of
/// process 1, as it does when an operator calls it.
pub const CAPABILITIES: [&str; 6] =
    ["NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE", "SYS_RESOURCE"];
/// The capability of the init container, because archives of plugin sets make /opt/cni/bin the property of users other
/// than root.
pub(crate) const INSTALL_CAPABILITY: &str = "DAC_OVERRIDE";
/// The node's settings in the agent's container, which has `/proc/sys` read-only.
pub(crate) const SYSCTL_DIR: &str = "/host/proc/sys";

/// The address at which the agent replies to probes alone.
const PROBES: (&str, i32) = ("127.0.0.1", 9255);
/// The directory of the programs in the image.
pub(super) const PROGRAMS: &str = "/usr/local/bin";

/// A directory of the node in a container.
struct Directory {
    name: &'static str,
    path: &'static str,
    inside: &'static str,
    /// False where the node has it anyway.
    create: bool,
    read_only: bool,
}

const PLUGINS: Directory = directory("plugins", "/opt/cni/bin");

/// The directories of the agent.
const DIRECTORIES: [Directory; 5] = [
    directory("configuration", "/etc/cni/net.d"),
    directory("run", "/run/slipway"),
    Directory { inside: "/host/proc/sys/net", create: false, ..directory("settings", "/proc/sys/net") },
    Directory { read_only: true, ..directory("state", "/var/lib/cni") },
    Directory { read_only: true, ..PLUGINS },
];

const fn directory(name: &'static str, path: &'static str) -> Directory {
    Directory { name, path, inside: path, create: true, read_only: false }
}

impl Directory {
    fn volume(&self) -> Volume {
        let kind = if self.create { "DirectoryOrCreate" } else { "Directory" };
        Volume {
            name: self.name.to_owned(),
            host_path: Some(HostPathVolumeSource {
                path: self.path.to_owned(),
                type_: Some(kind.to_owned()),
            }),
            ..Volume::default()
        }
    }

    fn mount(&self) -> VolumeMount {
        VolumeMount {
            name: self.name.to_owned(),
            mount_path: self.inside.to_owned(),
            read_only: self.read_only.then_some(true),
            ..VolumeMount::default()
        }
    }
}

/// The annotations of the pods: AppArmor for versions of Kubernetes that have no field for it.
pub(super) fn annotations(deployment: &Deployment) -> Option<BTreeMap<String, String>> {
    let name = || format!("container.apparmor.security.beta.kubernetes.io/{NAME}");
    let has_field = deployment.kubernetes.has_app_armor_field();
    (!has_field).then(|| [(name(), "unconfined".to_owned())].into())
}

pub(super) fn spec(deployment: &Deployment) -> PodSpec {
    PodSpec {
        service_account_name: Some(NAME.to_owned()),
        automount_service_account_token: Some(true),
        host_network: Some(true),
        // Process 1 is the node's, in whose mount namespace repairs run.
        host_pid: Some(true),
        // The agent must not use the cluster's DNS, because that needs pods.
        dns_policy: Some("Default".to_owned()),
        priority_class_name: Some("system-node-critical".to_owned()),
        node_selector: Some([("kubernetes.io/os".to_owned(), "linux".to_owned())].into()),
        tolerations: Some(tolerations()),
        security_context: Some(PodSecurityContext {
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..SeccompProfile::default()
            }),
            // Where SELinux enforces, the default type may not write to the node's directories.
            se_linux_options: Some(SELinuxOptions {
                type_: Some("spc_t".to_owned()),
                level: Some("s0".to_owned()),
                ..SELinuxOptions::default()
            }),
            ..PodSecurityContext::default()
        }),
        termination_grace_period_seconds: Some(10),
        init_containers: Some(vec![install(deployment)]),
        containers: vec![agent(deployment)],
        volumes: Some(DIRECTORIES.iter().map(Directory::volume).collect()),
        ..PodSpec::default()
    }
}

/// A node without a network has taints, which the agent's pod must tolerate to remove them.
fn tolerations() -> Vec<Toleration> {
    let exists = || Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() };
    vec![
        Toleration { effect: Some("NoSchedule".to_owned()), ..exists() },
        Toleration { effect: Some("NoExecute".to_owned()), ..exists() },
        Toleration { key: Some("CriticalAddonsOnly".to_owned()), ..exists() },
    ]
}

/// The container that installs the plugins and keeps a copy of those that it replaces.
fn install(deployment: &Deployment) -> Container {
    Container {
        name: "install".to_owned(),
        image: Some(deployment.image.clone()),
        command: Some(vec![format!("{PROGRAMS}/slipway")]),
        args: Some(["install", "--replace"].map(str::to_owned).into()),
        resources: Some(requests()),
        security_context: Some(security(&[INSTALL_CAPABILITY], None)),
        volume_mounts: Some(vec![PLUGINS.mount()]),
        ..Container::default()
    }
}

fn agent(deployment: &Deployment) -> Container {
    let has_field = deployment.kubernetes.has_app_armor_field();
    let unconfined = AppArmorProfile { type_: "Unconfined".to_owned(), ..AppArmorProfile::default() };
    Container {
        name: NAME.to_owned(),
        image: Some(deployment.image.clone()),
        command: Some(vec![format!("{PROGRAMS}/slipwayd")]),
        args: Some(deployment.arguments(&["--host-mounts", &format!("--sysctl-dir={SYSCTL_DIR}")])),
        env: Some(vec![EnvVar {
            name: NODE_NAME.to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: "spec.nodeName".to_owned(),
                    ..ObjectFieldSelector::default()
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        }]),
        resources: Some(requests()),
        security_context: Some(security(&CAPABILITIES, has_field.then_some(unconfined))),
        volume_mounts: Some(DIRECTORIES.iter().map(Directory::mount).collect()),
        liveness_probe: Some(probe("/healthz")),
        readiness_probe: Some(probe("/readyz")),
        ..Container::default()
    }
}

/// An HTTP request to the agent, which does not listen on the node's addresses.
fn probe(path: &str) -> Probe {
    let (host, port) = PROBES;
    Probe {
        http_get: Some(HTTPGetAction {
            host: Some(host.to_owned()),
            port: IntOrString::Int(port),
            path: Some(path.to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(10),
        timeout_seconds: Some(5),
        ..Probe::default()
    }
}

fn requests() -> ResourceRequirements {
    let requests = [("cpu", "10m"), ("memory", "32Mi")];
    let quantity = |(name, amount): (&str, &str)| (name.to_owned(), Quantity(amount.to_owned()));
    ResourceRequirements {
        requests: Some(requests.into_iter().map(quantity).collect()),
        ..ResourceRequirements::default()
    }
}

/// Root with these capabilities, and a file system that is read-only but for the mounts.
fn security(capabilities: &[&str], app_armor: Option<AppArmorProfile>) -> SecurityContext {
    SecurityContext {
        run_as_user: Some(0),
        run_as_group: Some(0),
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            add: Some(capabilities.iter().map(|name| (*name).to_owned()).collect()),
        }),
        app_armor_profile: app_armor,
        ..SecurityContext::default()
    }
}
