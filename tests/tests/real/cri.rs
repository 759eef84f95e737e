// SPDX-License-Identifier: GPL-2.0-or-later

//! A client of the Container Runtime Interface that acts like kubelet and sends gRPC through curl. The few messages
//! that the tests need are encoded field by field.
//!
//! The field numbers are those of k8s.io/cri-api, `pkg/apis/runtime/v1/api.proto`. The encoding is that of protocol
//! buffers (<https://protobuf.dev/programming-guides/encoding/>). A gRPC message begins with a byte for the compression
//! and four bytes for the length (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>).

use std::process::Command;

use slipway_tests::Space;
use slipway_tests::image::{PAUSE, WEB};

/// containerd's socket, which has the same path in the system and on the node.
pub(crate) const SOCKET: &str = "/run/containerd/containerd.sock";

/// A message to be sent.
#[derive(Debug, Default, Clone)]
struct Message(Vec<u8>);

impl Message {
    /// Appends a field of wire type 0: an integer, an enumeration or a boolean.
    fn number(mut self, field: u8, value: u64) -> Self {
        self.0.push(field << 3);
        self.varint(value);
        self
    }

    /// Appends a field of wire type 2: a string or an embedded message.
    fn bytes(mut self, field: u8, value: &[u8]) -> Self {
        self.0.push(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn text(self, field: u8, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    fn message(self, field: u8, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }

    fn varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// The values of a field in a received message, in order. Integers are left out.
fn values(mut bytes: &[u8], field: u64) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = take_varint(&mut bytes);
        match key & 7 {
            0 => drop(take_varint(&mut bytes)),
            1 => assert!(bytes.split_off(..8).is_some()),
            5 => assert!(bytes.split_off(..4).is_some()),
            2 => {
                let length = usize::try_from(take_varint(&mut bytes)).expect("a length");
                let value =
                    bytes.split_off(..length).expect("the message has as many bytes as its length field");
                if key >> 3 == field {
                    found.push(value);
                }
            }
            other => panic!("wire type {other}"),
        }
    }
    found
}

/// The integer in a field of a received message, or 0, the default, which is not transmitted.
fn number(mut bytes: &[u8], field: u64) -> u64 {
    let mut found = 0;
    while !bytes.is_empty() {
        let key = take_varint(&mut bytes);
        match key & 7 {
            0 => {
                let value = take_varint(&mut bytes);
                if key >> 3 == field {
                    found = value;
                }
            }
            2 => {
                let length = usize::try_from(take_varint(&mut bytes)).expect("a length");
                bytes.split_off(..length).expect("the message has as many bytes as its length field");
            }
            other => panic!("wire type {other}"),
        }
    }
    found
}

fn take_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first().expect("a whole integer");
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// The first value of a field, or an empty one, the default, which is not transmitted.
fn first(bytes: &[u8], field: u64) -> &[u8] {
    values(bytes, field).first().copied().unwrap_or_default()
}

/// A pod as kubelet describes it.
#[derive(Debug, Clone)]
pub(crate) struct PodConfig {
    /// The pod's name, unique among the running pods.
    pub(crate) name: String,
    /// The number of earlier pods with this name.
    pub(crate) attempt: u32,
    /// The published ports.
    pub(crate) ports: Vec<Port>,
    /// The parent of the pod's control group.
    pub(crate) cgroup: String,
}

/// A published port.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    /// True for UDP, false for TCP.
    pub(crate) udp: bool,
    /// The node's port.
    pub(crate) host: u16,
    pub(crate) container: u16,
    /// The node's address, or empty for all addresses.
    pub(crate) host_ip: &'static str,
}

impl PodConfig {
    /// `PodSandboxConfig`
    fn message(&self) -> Message {
        let metadata = Message::default().text(1, &self.name).text(2, &self.name).text(3, "default");
        let metadata = metadata.number(4, self.attempt.into());
        let mut config = Message::default().message(1, &metadata).text(2, &self.name);
        for port in &self.ports {
            // `PortMapping`: protocol, container_port, host_port, host_ip
            let mapping = Message::default().number(1, u64::from(port.udp)).number(2, port.container.into());
            let mapping = mapping.number(3, port.host.into()).text(4, port.host_ip);
            config = config.message(5, &mapping);
        }
        // `LinuxPodSandboxConfig`: cgroup_parent
        config.message(8, &Message::default().text(1, &self.cgroup))
    }
}

/// The content of `PodSandboxStatus`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodStatus {
    /// True if the sandbox is running.
    pub(crate) ready: bool,
    /// The sandbox's addresses, the primary one first.
    pub(crate) ips: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Cri<'n>(pub(crate) &'n Space);

impl Cri<'_> {
    /// Calls `RunPodSandbox` and returns the sandbox's ID.
    pub(crate) fn run_pod(&self, pod: &PodConfig) -> Result<String, String> {
        let request = Message::default().message(1, &pod.message());
        self.call("RuntimeService/RunPodSandbox", &request).map(|answer| text(first(&answer, 1)))
    }

    /// `StopPodSandbox`
    pub(crate) fn stop_pod(&self, id: &str) -> Result<(), String> {
        self.call("RuntimeService/StopPodSandbox", &Message::default().text(1, id)).map(drop)
    }

    /// `RemovePodSandbox`
    pub(crate) fn remove_pod(&self, id: &str) -> Result<(), String> {
        self.call("RuntimeService/RemovePodSandbox", &Message::default().text(1, id)).map(drop)
    }

    /// `PodSandboxStatus`
    pub(crate) fn pod_status(&self, id: &str) -> Result<PodStatus, String> {
        let answer = self.call("RuntimeService/PodSandboxStatus", &Message::default().text(1, id))?;
        let status = first(&answer, 1);
        let network = first(status, 5);
        let ips = values(network, 1).into_iter().chain(values(network, 2).into_iter().map(|ip| first(ip, 1)));
        // state: SANDBOX_READY is 0
        Ok(PodStatus { ready: number(status, 3) == 0, ips: ips.map(text).collect() })
    }

    /// Calls `ListPodSandbox` and returns the sandboxes' IDs.
    pub(crate) fn pods(&self) -> Result<Vec<String>, String> {
        let answer = self.call("RuntimeService/ListPodSandbox", &Message::default())?;
        Ok(values(&answer, 1).into_iter().map(|pod| text(first(pod, 1))).collect())
    }

    /// Calls `CreateContainer` and `StartContainer` for the web server, which answers with the name `who`.
    pub(crate) fn start_web(&self, pod: &PodConfig, id: &str, who: &str) -> Result<(), String> {
        let env = Message::default().text(1, "WHO").text(2, who);
        let container = Message::default()
            .message(1, &Message::default().text(1, "web"))
            .message(2, &Message::default().text(1, WEB))
            .message(6, &env);
        let request = Message::default().text(1, id).message(2, &container).message(3, &pod.message());
        let answer = self.call("RuntimeService/CreateContainer", &request)?;
        let request = Message::default().bytes(1, first(&answer, 1));
        self.call("RuntimeService/StartContainer", &request).map(drop)
    }

    /// The network's condition according to `Status`: `None` if the network is ready, otherwise the reason.
    pub(crate) fn network_trouble(&self) -> Result<Option<String>, String> {
        let answer = self.call("RuntimeService/Status", &Message::default())?;
        let conditions = values(first(&answer, 1), 1);
        let network = conditions.into_iter().find(|condition| first(condition, 1) == b"NetworkReady");
        let network = network.ok_or("Status does not speak of the network")?;
        Ok((number(network, 2) == 0).then(|| text(first(network, 4))))
    }

    /// True if the runtime has imported both images.
    pub(crate) fn has_images(&self) -> bool {
        [WEB, PAUSE].iter().all(|name| {
            let image = Message::default().text(1, name);
            let answer = self.call("ImageService/ImageStatus", &Message::default().message(1, &image));
            answer.is_ok_and(|answer| !first(&answer, 1).is_empty())
        })
    }

    /// Sends one request. The error is either the server's message or curl's.
    fn call(&self, method: &str, request: &Message) -> Result<Vec<u8>, String> {
        let mut input = vec![0];
        input.extend(u32::try_from(request.0.len()).expect("a small message").to_be_bytes());
        input.extend(&request.0);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let answer = folder.path().join("answer");
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--http2-prior-knowledge", "--unix-socket", SOCKET]);
        command.args(["--header", "content-type: application/grpc", "--header", "te: trailers"]);
        command
            .args(["--data-binary", "@-", "--dump-header", "-", "--max-time", "50", "--output"])
            .arg(&answer);
        command.arg(format!("http://localhost/runtime.v1.{method}"));
        let output = self.0.exec(command, &input);
        if output.code != Some(0) {
            return Err(format!("{method}: {}", output.stderr.trim_end()));
        }
        // The trailers follow the headers.
        let field =
            |name: &str| output.stdout.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        match field("grpc-status:") {
            Some("0") => {
                let bytes = std::fs::read(&answer).map_err(|e| format!("{method}: no answer: {e}"))?;
                Ok(bytes.get(5..).unwrap_or_default().to_vec())
            }
            _ => Err(format!("{method}: {}", field("grpc-message:").unwrap_or("no status"))),
        }
    }
}
