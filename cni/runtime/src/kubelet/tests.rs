// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of the frame's types; a host and a driver for the other unit tests.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cni_spec::{CniError, PortMapping};
use serde_json::{Map, Value};

use super::{
    BoxError, HairpinMode, HookFuture, Host, InitSettings, NetworkPlugin, Pod, PodNetworkStatus, is_gone,
    join_errors, port_mappings,
};
use crate::error::{CallError, NetworkError};

/// Knows the namespace of every sandbox but those that are `lost`.
pub(super) struct Sandboxes {
    pub(super) ports: Vec<PortMapping>,
}

impl Host for Sandboxes {
    fn netns(&self, sandbox_id: &str) -> Result<PathBuf, BoxError> {
        match sandbox_id {
            "lost" => Err("no sandbox".into()),
            id => Ok(format!("/run/netns/{id}").into()),
        }
    }

    fn port_mappings(&self, _sandbox_id: &str) -> Result<Vec<PortMapping>, BoxError> {
        Ok(self.ports.clone())
    }
}

pub(super) fn settings() -> InitSettings {
    settings_with(Vec::new())
}

pub(super) fn settings_with(ports: Vec<PortMapping>) -> InitSettings {
    InitSettings {
        host: Arc::new(Sandboxes { ports }),
        hairpin_mode: HairpinMode::None,
        non_masquerade_cidr: super::DEFAULT_NON_MASQUERADE_CIDR.to_owned(),
        mtu: None,
        purpose: super::Purpose::SetUp,
    }
}

/// Writes down its calls.
#[derive(Clone, Default)]
pub(super) struct Recorder {
    pub(super) name: String,
    pub(super) failure: Option<&'static str>,
    pub(super) calls: Arc<Mutex<Vec<String>>>,
}

impl Recorder {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    fn record(&self, call: String) -> Result<(), BoxError> {
        self.calls.lock().unwrap().push(call);
        self.failure.map_or(Ok(()), |failure| Err(failure.into()))
    }
}

impl NetworkPlugin for Recorder {
    fn init(&mut self, settings: InitSettings) -> HookFuture<'_, ()> {
        Box::pin(async move { self.record(format!("init {}", settings.hairpin_mode)) })
    }

    fn event<'a>(
        &'a self,
        name: &'a str,
        details: &'a Map<String, Value>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move { drop(self.record(format!("{name} {}", Value::from(details.clone())))) })
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_up_pod<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, ()> {
        Box::pin(async move {
            self.record(format!("setup {}", pod.sandbox_id))?;
            tokio::time::sleep(Duration::from_millis(30)).await;
            self.record(format!("end {}", pod.sandbox_id))
        })
    }

    fn tear_down_pod<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, ()> {
        Box::pin(async move { self.record(format!("teardown {}", pod.sandbox_id)) })
    }

    fn pod_network_status<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, Option<PodNetworkStatus>> {
        Box::pin(async move {
            self.record(format!("status {}", pod.sandbox_id))?;
            Ok(None)
        })
    }

    fn status(&self) -> HookFuture<'_, ()> {
        Box::pin(async move { self.record("status".to_owned()) })
    }
}

#[test]
fn only_published_ports_are_passed_on() {
    let mapping = |host_port| PortMapping {
        host_port,
        container_port: 80,
        protocol: "TCP".into(),
        host_ip: String::new(),
    };
    assert_eq!(
        port_mappings(&[mapping(8080), mapping(0)]),
        serde_json::json!([
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}
        ])
    );
}

#[test]
fn errors_are_joined_as_kubernetes_does() {
    assert_eq!(join_errors(&["a"]), "a");
    assert_eq!(join_errors(&["a", "b"]), "[a, b]");
}

#[test]
fn a_missing_file_does_not_excuse_the_failure_of_another_plugin() {
    let failed = |text: &str| NetworkError::FromPlugin(CallError::Failed(CniError::internal(text)));
    let (missing, busy) = ("open /run/netns/c1: No such file or directory", "device busy");
    assert!(is_gone(&failed(missing)) && !is_gone(&failed(busy)));
    for (second, expected) in [(missing, true), (busy, false)] {
        let both = NetworkError::Several(vec![failed(missing), failed(second)]);
        assert_eq!(is_gone(&both), expected, "{both}");
    }
}
