// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls a driver, with one call at a time for each pod, but with different pods in parallel.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::{Map, Value};
use tokio::sync::OwnedMutexGuard;

use cni_spec::text;

use super::{BoxError, EVENT_DETAIL_POD_CIDR, EVENT_POD_CIDR_CHANGE, NetworkPlugin, Pod, PodNetworkStatus};

/// A failed hook.
#[derive(Debug, thiserror::Error)]
#[error("networkPlugin {driver} failed {action}: {error}")]
pub struct HookError {
    driver: String,
    action: String,
    /// The driver's error.
    pub error: BoxError,
}

/// Calls a driver, with one lock per pod.
pub struct Manager {
    driver: Box<dyn NetworkPlugin>,
    pods: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    pod_cidr: tokio::sync::Mutex<String>,
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manager").field("driver", &self.driver.name()).finish_non_exhaustive()
    }
}

impl Manager {
    /// A manager for this driver, which must already have been started.
    #[must_use]
    pub fn new(driver: Box<dyn NetworkPlugin>) -> Self {
        Self { driver, pods: Mutex::default(), pod_cidr: tokio::sync::Mutex::default() }
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &dyn NetworkPlugin {
        &*self.driver
    }

    /// Sets the node's pod CIDR. If it has changed, the driver gets an event.
    pub async fn set_pod_cidr(&self, cidr: &str) {
        let mut current = self.pod_cidr.lock().await;
        if cidr.is_empty() || *current == cidr {
            return;
        }
        log::info!("Setting Pod CIDR: {current} -> {cidr}");
        cidr.clone_into(&mut current);
        let details = Map::from_iter([(EVENT_DETAIL_POD_CIDR.to_owned(), Value::from(cidr))]);
        self.driver.event(EVENT_POD_CIDR_CHANGE, &details).await;
    }

    /// Like [`NetworkPlugin::set_up_pod`].
    ///
    /// # Errors
    /// [`HookError`] with the driver's error.
    pub async fn set_up_pod(&self, pod: &Pod) -> Result<(), HookError> {
        let _held = self.lock(pod).await;
        let failed = |error| self.failed(format!("to set up pod {} network", name(pod)), error);
        self.driver.set_up_pod(pod).await.map_err(failed)
    }

    /// Like [`NetworkPlugin::tear_down_pod`].
    ///
    /// # Errors
    /// [`HookError`] with the driver's error.
    pub async fn tear_down_pod(&self, pod: &Pod) -> Result<(), HookError> {
        let _held = self.lock(pod).await;
        let failed = |error| self.failed(format!("to teardown pod {} network", name(pod)), error);
        self.driver.tear_down_pod(pod).await.map_err(failed)
    }

    /// Like [`NetworkPlugin::pod_network_status`].
    ///
    /// # Errors
    /// [`HookError`] with the driver's error.
    pub async fn pod_network_status(&self, pod: &Pod) -> Result<Option<PodNetworkStatus>, HookError> {
        let _held = self.lock(pod).await;
        let failed = |error| self.failed(format!("on the status hook for pod {}", name(pod)), error);
        self.driver.pod_network_status(pod).await.map_err(failed)
    }

    /// Like [`NetworkPlugin::status`].
    ///
    /// # Errors
    /// The reason why the driver cannot set up pods.
    pub async fn status(&self) -> Result<(), BoxError> {
        self.driver.status().await
    }

    fn failed(&self, action: String, error: BoxError) -> HookError {
        HookError { driver: self.driver.name().to_owned(), action, error }
    }

    async fn lock(&self, pod: &Pod) -> OwnedMutexGuard<()> {
        let mutex = {
            let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
            pods.retain(|_, mutex| mutex.strong_count() > 0);
            let entry = pods.entry(pod.full_name()).or_default();
            entry.upgrade().unwrap_or_else(|| {
                let mutex = Arc::default();
                *entry = Arc::downgrade(&mutex);
                mutex
            })
        };
        mutex.lock_owned().await
    }
}

fn name(pod: &Pod) -> String {
    text::quote(&pod.full_name())
}

#[cfg(test)]
mod tests {
    use super::super::tests::Recorder;
    use super::*;

    fn manager(driver: &Recorder) -> Manager {
        Manager::new(Box::new(driver.clone()))
    }

    fn calls(driver: &Recorder) -> Vec<String> {
        driver.calls.lock().unwrap().clone()
    }

    #[tokio::test]
    async fn the_driver_gets_an_event_only_when_the_pod_cidr_changes() {
        let driver = Recorder::new("cni");
        let manager = manager(&driver);
        for cidr in ["", "10.1.0.0/24", "10.1.0.0/24", "", "10.2.0.0/24"] {
            manager.set_pod_cidr(cidr).await;
        }
        assert_eq!(
            calls(&driver),
            [
                r#"pod-cidr-change {"pod-cidr":"10.1.0.0/24"}"#,
                r#"pod-cidr-change {"pod-cidr":"10.2.0.0/24"}"#
            ]
        );
    }

    #[tokio::test]
    async fn calls_for_one_pod_wait_for_each_other_and_pods_do_not() {
        let driver = Recorder::new("cni");
        let manager = manager(&driver);
        let (a, again, b) = (Pod::new("ns", "a", "1"), Pod::new("ns", "a", "2"), Pod::new("ns", "b", "3"));
        let (x, y, z) =
            tokio::join!(manager.set_up_pod(&a), manager.set_up_pod(&again), manager.set_up_pod(&b));
        x.and(y).and(z).unwrap();
        let calls = calls(&driver);
        assert_eq!(calls[..2], ["setup 1", "setup 3"]);
        let at = |call: &str| calls.iter().position(|one| one == call).unwrap();
        assert!(at("end 1") < at("setup 2"), "{calls:?}");
        // The locks of pods without a running call are dropped.
        manager.tear_down_pod(&b).await.unwrap();
        assert!(manager.pods.lock().unwrap().len() <= 1);
    }

    #[tokio::test]
    async fn errors_name_the_driver_the_hook_and_the_pod() {
        let driver = Recorder { failure: Some("no bridge"), ..Recorder::new("kubenet") };
        let (manager, pod) = (manager(&driver), Pod::new("shop", "web", "1"));
        assert_eq!(
            manager.set_up_pod(&pod).await.unwrap_err().to_string(),
            "networkPlugin kubenet failed to set up pod \"web_shop\" network: no bridge"
        );
        assert_eq!(
            manager.tear_down_pod(&pod).await.unwrap_err().to_string(),
            "networkPlugin kubenet failed to teardown pod \"web_shop\" network: no bridge"
        );
        assert_eq!(
            manager.pod_network_status(&pod).await.unwrap_err().to_string(),
            "networkPlugin kubenet failed on the status hook for pod \"web_shop\": no bridge"
        );
        assert_eq!(manager.status().await.unwrap_err().to_string(), "no bridge");
    }
}
