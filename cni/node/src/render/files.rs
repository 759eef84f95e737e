// SPDX-License-Identifier: GPL-3.0-or-later

//! Files other than the objects of the API server.

use ipnet::IpNet;
use serde::Serialize;

use super::{Deployment, NAME, RenderError, pod, yaml};

/// The directory of the agent on a node without a DaemonSet, next to the plugins.
const PLUGINS: &str = "/opt/cni/bin";

/// A file of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum File {
    /// All objects of Kubernetes.
    Manifests,
    /// The container file.
    Containerfile,
    /// The kustomize base.
    Kustomization,
    /// The configuration of a kind cluster.
    Kind,
    /// The systemd unit.
    Systemd,
}

/// All files, with the words that name them and their own names.
pub const FILES: [(File, &str, &str); 5] = [
    (File::Manifests, "manifests", "slipway.yaml"),
    (File::Containerfile, "containerfile", "Containerfile"),
    (File::Kustomization, "kustomization", "kustomization.yaml"),
    (File::Kind, "kind", "kind.yaml"),
    (File::Systemd, "systemd", "slipwayd.service"),
];

/// The configuration of a kind cluster.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KindCluster {
    api_version: &'static str,
    kind: &'static str,
    networking: KindNetworking,
    nodes: [KindNode; 2],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KindNetworking {
    #[serde(rename = "disableDefaultCNI")]
    disable_default_cni: bool,
    ip_family: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_subnet: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_subnet: Option<String>,
}

#[derive(Serialize)]
struct KindNode {
    role: &'static str,
}

/// A kustomize base.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Kustomization {
    api_version: &'static str,
    kind: &'static str,
    resources: [&'static str; 1],
}

impl Deployment {
    /// The text of a file.
    ///
    /// # Errors
    /// [`RenderError`] if YAML has no form for a value.
    pub fn text(&self, file: File) -> Result<String, RenderError> {
        match file {
            File::Manifests => self.manifests(),
            File::Containerfile => Ok(containerfile()),
            File::Kustomization => yaml(&[kustomization()]),
            File::Kind => yaml(&[self.kind()]),
            File::Systemd => Ok(self.unit()),
        }
    }

    /// Two nodes without kind's own network.
    fn kind(&self) -> KindCluster {
        let joined = |nets: &[IpNet]| {
            let texts: Vec<String> = nets.iter().map(ToString::to_string).collect();
            (!texts.is_empty()).then(|| texts.join(","))
        };
        let has = |is: fn(&IpNet) -> bool| self.cluster_cidrs.iter().any(is);
        let family = match (has(|net| net.addr().is_ipv4()), has(|net| net.addr().is_ipv6())) {
            (true, true) => "dual",
            (false, true) => "ipv6",
            _ => "ipv4",
        };
        KindCluster {
            api_version: "kind.x-k8s.io/v1alpha4",
            kind: "Cluster",
            networking: KindNetworking {
                disable_default_cni: true,
                ip_family: family,
                pod_subnet: joined(&self.cluster_cidrs),
                service_subnet: joined(&self.service_cidrs),
            },
            nodes: [KindNode { role: "control-plane" }, KindNode { role: "worker" }],
        }
    }

    /// The unit for a node without a DaemonSet.
    fn unit(&self) -> String {
        let words: Vec<String> = self.arguments(&[]).iter().map(|word| quoted(word)).collect();
        let capabilities = pod::CAPABILITIES.map(|name| format!("CAP_{name}")).join(" ");
        format!(
            "[Unit]\n\
             Description=Keeps the node in the network of its Kubernetes cluster\n\
             Documentation=man:slipwayd-run(8)\n\
             After=network.target\n\
             # The API server may be away for long.\n\
             StartLimitIntervalSec=0\n\
             \n\
             [Service]\n\
             Type=exec\n\
             # A file may replace both.\n\
             Environment=NODE_NAME=%H KUBECONFIG=/etc/kubernetes/{NAME}.conf\n\
             EnvironmentFile=-/etc/default/{NAME}\n\
             ExecStart={PLUGINS}/{NAME} {words}\n\
             Restart=always\n\
             RestartSec=2\n\
             # Plugins need the subnets while the service is stopped.\n\
             RuntimeDirectory=slipway\n\
             RuntimeDirectoryPreserve=yes\n\
             ConfigurationDirectory=cni/net.d\n\
             # Plugins that delete garbage write there.\n\
             StateDirectory=cni\n\
             CapabilityBoundingSet={capabilities}\n\
             NoNewPrivileges=yes\n\
             ProtectSystem=strict\n\
             # Repairs and deletions: the state of plugins, the lock of legacy iptables, a file for flannel.\n\
             ReadWritePaths=/run\n\
             ProtectHome=yes\n\
             ProtectClock=yes\n\
             ProtectHostname=yes\n\
             ProtectKernelLogs=yes\n\
             PrivateTmp=yes\n\
             LockPersonality=yes\n\
             MemoryDenyWriteExecute=yes\n\
             RestrictRealtime=yes\n\
             RestrictSUIDSGID=yes\n\
             RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6\n\
             # Repairs enter namespaces of mounts and of containers' networks, and make ones to try features.\n\
             RestrictNamespaces=mnt net\n\
             SystemCallArchitectures=native\n\
             SystemCallFilter=@system-service @mount bpf setns unshare\n\
             SystemCallErrorNumber=EPERM\n\
             \n\
             [Install]\n\
             WantedBy=multi-user.target\n",
            words = words.join(" "),
        )
    }
}

/// A word of systemd's command lines: specifiers and variables are not expanded.
fn quoted(word: &str) -> String {
    let word = word.replace('%', "%%").replace('$', "$$");
    if word.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"'\\".contains(&byte)) {
        return word;
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The image: both static binaries on Debian's smallest image, which has a shell for diagnosis. The binaries run once, so
/// that those of another processor are found when the image is built.
fn containerfile() -> String {
    let programs = pod::PROGRAMS;
    format!(
        "# slipway and slipwayd from `cargo xtask dist` are next to this file.\n\
         FROM docker.io/library/debian:trixie-slim\n\
         LABEL org.opencontainers.image.title=\"slipway\"\n\
         LABEL org.opencontainers.image.description=\"CNI plugins and the node's agent\"\n\
         LABEL org.opencontainers.image.version=\"{version}\"\n\
         LABEL org.opencontainers.image.licenses=\"GPL-2.0-or-later AND GPL-3.0-or-later\"\n\
         COPY --chmod=0755 slipway slipwayd {programs}/\n\
         RUN [\"{programs}/slipway\", \"version\"]\n\
         RUN [\"{programs}/slipwayd\", \"version\"]\n\
         ENTRYPOINT [\"{programs}/{NAME}\"]\n",
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// A base: an overlay names the image with `images`.
fn kustomization() -> Kustomization {
    let (_, _, manifests) = FILES[0];
    Kustomization {
        api_version: "kustomize.config.k8s.io/v1beta1",
        kind: "Kustomization",
        resources: [manifests],
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::{Value, json};

    use super::*;
    use crate::render::sample;

    fn parsed(text: &str) -> Value {
        serde_saphyr::from_str(text).unwrap()
    }

    #[test]
    fn a_kind_cluster_has_no_network_of_its_own() {
        let text = sample().text(File::Kind).unwrap();
        let networking = &parsed(&text)["networking"];
        let want = json!({
            "disableDefaultCNI": true, "ipFamily": "dual",
            "podSubnet": "10.244.0.0/16,fd44::/32", "serviceSubnet": "10.96.0.0/16",
        });
        assert_eq!(*networking, want);
        let bare = Deployment { cluster_cidrs: Vec::new(), service_cidrs: Vec::new(), ..sample() };
        let networking = &parsed(&bare.text(File::Kind).unwrap())["networking"];
        assert_eq!(*networking, json!({ "disableDefaultCNI": true, "ipFamily": "ipv4" }));
    }

    #[test]
    fn the_kustomize_base_has_the_manifests() {
        let base = parsed(&sample().text(File::Kustomization).unwrap());
        assert_eq!(base["resources"], json!(["slipway.yaml"]));
        assert_eq!(FILES[0].0, File::Manifests);
    }

    #[test]
    fn words_of_the_unit_are_taken_literally() {
        for (word, want) in [
            ("--cluster-cidr=10.244.0.0/16", "--cluster-cidr=10.244.0.0/16"),
            ("--network-name=a b", "\"--network-name=a b\""),
            ("a%H$b\\\"c", "\"a%%H$$b\\\\\\\"c\""),
        ] {
            assert_eq!(quoted(word), want);
        }
    }

    #[test]
    fn the_unit_has_the_rights_of_the_container() {
        let unit = sample().text(File::Systemd).unwrap();
        let line = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        let capabilities: Vec<&str> = line("CapabilityBoundingSet=")
            .split(' ')
            .map(|name| name.strip_prefix("CAP_").unwrap())
            .collect();
        assert_eq!(capabilities, pod::CAPABILITIES);
        assert_eq!(
            line("ExecStart="),
            "/opt/cni/bin/slipwayd run --cluster-cidr=10.244.0.0/16,fd44::/32 --tunnel=always \
             --remove-taint=node.example/starting:NoSchedule"
        );
        systemd_reads(&unit);
    }

    /// systemd, if this machine has it, reports nothing but the missing program.
    fn systemd_reads(unit: &str) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slipwayd.service");
        // The test replaces the program by one that exists everywhere.
        std::fs::write(&path, unit.replace("ExecStart=/opt/cni/bin/slipwayd", "ExecStart=/bin/true"))
            .unwrap();
        let mut command = Command::new("systemd-analyze");
        match command.args(["verify", "--man=no"]).arg(&path).output() {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                assert!(!text.contains("slipwayd.service"), "{text}");
            }
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
        }
    }
}
