// SPDX-License-Identifier: MIT OR Apache-2.0

//! Selects a driver by its name, and contains the driver that does nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use cni_spec::text;

use super::{
    BoxError, HookFuture, InitSettings, NetworkPlugin, Pod, PodNetworkStatus, Purpose, check_qualified_name,
    join_errors,
};

/// The settings that make bridged packets pass iptables.
const CALL_IPTABLES: [&str; 2] =
    ["net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"];

/// Why no driver was selected.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// The name of a driver is not a qualified name.
    #[error("network plugin has invalid name: {}: {}", text::quote(name), faults.join(";"))]
    InvalidName {
        /// The name.
        name: String,
        /// What is wrong with the name.
        faults: Vec<String>,
    },
    /// Two drivers have the same name.
    #[error("network plugin {} was registered more than once", text::quote(.0))]
    Duplicate(String),
    /// The driver failed to start.
    #[error("Network plugin {} failed init: {error}", text::quote(name))]
    Init {
        /// The driver's name.
        name: String,
        /// The driver's error.
        error: BoxError,
    },
    /// No driver has the name.
    #[error("Network plugin {} not found.", text::quote(.0))]
    NotFound(String),
}

/// All reasons why no driver was selected. An invalid or duplicate driver is an error even if another driver was
/// asked for.
#[derive(Debug)]
pub struct SelectErrors(pub Vec<SelectError>);

impl fmt::Display for SelectErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&join_errors(&self.0))
    }
}

impl std::error::Error for SelectErrors {}

/// Starts the driver with this name, or [`NoOp`] if there is no name.
///
/// # Errors
/// [`SelectErrors`], with everything that is wrong with the drivers and the name.
pub async fn select(
    drivers: Vec<Box<dyn NetworkPlugin>>,
    name: &str,
    settings: InitSettings,
) -> Result<Box<dyn NetworkPlugin>, SelectErrors> {
    let failed = |error| SelectError::Init { name: name.to_owned(), error };
    if name.is_empty() {
        let mut driver = NoOp;
        driver.init(settings).await.map_err(|error| SelectErrors(vec![failed(error)]))?;
        return Ok(Box::new(driver));
    }
    let mut errors = Vec::new();
    let mut known: BTreeMap<String, Box<dyn NetworkPlugin>> = BTreeMap::new();
    for driver in drivers {
        let name = driver.name().to_owned();
        let faults = check_qualified_name(&name);
        if !faults.is_empty() {
            errors.push(SelectError::InvalidName { name, faults });
            continue;
        }
        match known.entry(name) {
            Entry::Occupied(other) => errors.push(SelectError::Duplicate(other.key().clone())),
            Entry::Vacant(free) => drop(free.insert(driver)),
        }
    }
    let Some(mut chosen) = known.remove(name) else {
        errors.push(SelectError::NotFound(name.to_owned()));
        return Err(SelectErrors(errors));
    };
    if let Err(error) = chosen.init(settings).await {
        errors.push(failed(error));
    }
    if errors.is_empty() {
        log::info!("Loaded network plugin {}", text::quote(name));
        return Ok(chosen);
    }
    Err(SelectErrors(errors))
}

/// The driver that connects nothing, because another program sets up the pods' network.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoOp;

impl NetworkPlugin for NoOp {
    fn init(&mut self, settings: InitSettings) -> HookFuture<'_, ()> {
        Box::pin(async move {
            if settings.purpose == Purpose::SetUp {
                bridge_netfilter().await;
            }
            Ok(())
        })
    }

    fn name(&self) -> &str {
        "kubernetes.io/no-op"
    }

    fn set_up_pod<'a>(&'a self, _pod: &'a Pod) -> HookFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn tear_down_pod<'a>(&'a self, _pod: &'a Pod) -> HookFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn pod_network_status<'a>(&'a self, _pod: &'a Pod) -> HookFuture<'a, Option<PodNetworkStatus>> {
        Box::pin(async { Ok(None) })
    }
}

/// The time limit of modprobe.
const MODPROBE: std::time::Duration = std::time::Duration::from_secs(10);

/// Loads br_netfilter, and makes bridged packets pass iptables, because the iptables mode of kube-proxy needs that. A
/// failure is logged as a warning.
pub async fn bridge_netfilter() {
    if cni_kernel::sysctl::get(CALL_IPTABLES[0]).is_err() {
        // If br_netfilter is built into the kernel, there is no such module, so only the sysctl decides.
        let mut modprobe = tokio::process::Command::new("modprobe");
        modprobe.arg("br-netfilter").stdin(std::process::Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(MODPROBE, modprobe.output()).await;
        log::debug!("modprobe br-netfilter: {output:?}");
    }
    let set = super::blocking(|| {
        for name in CALL_IPTABLES {
            cni_kernel::sysctl::ensure(name, "1")
                .map_err(|error| format!("can't set sysctl {name}: {error}"))?;
        }
        Ok(())
    });
    if let Err(error) = set.await {
        log::warn!("{error}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Recorder, settings};
    use super::*;

    async fn chosen(drivers: &[Recorder], name: &str) -> Result<String, String> {
        let drivers =
            drivers.iter().map(|driver| Box::new(driver.clone()) as Box<dyn NetworkPlugin>).collect();
        match select(drivers, name, settings()).await {
            Ok(driver) => Ok(driver.name().to_owned()),
            Err(errors) => Err(errors.to_string()),
        }
    }

    #[tokio::test]
    async fn the_driver_of_the_name_is_started() {
        let drivers = [Recorder::new("cni"), Recorder::new("mycompany/mysdn")];
        assert_eq!(chosen(&drivers, "mycompany/mysdn").await.unwrap(), "mycompany/mysdn");
        assert!(drivers[0].calls.lock().unwrap().is_empty());
        assert_eq!(*drivers[1].calls.lock().unwrap(), ["init none"]);
    }

    #[tokio::test]
    async fn all_errors_are_collected() {
        let cni = Recorder::new("cni");
        assert_eq!(
            chosen(std::slice::from_ref(&cni), "x").await.unwrap_err(),
            "Network plugin \"x\" not found."
        );
        assert_eq!(
            chosen(&[cni.clone(), cni.clone()], "cni").await.unwrap_err(),
            "network plugin \"cni\" was registered more than once"
        );
        let broken = Recorder { failure: Some("no bridge"), ..Recorder::new("kubenet") };
        assert_eq!(
            chosen(&[broken], "kubenet").await.unwrap_err(),
            "Network plugin \"kubenet\" failed init: no bridge"
        );
        let errors = chosen(&[Recorder::new("/"), cni.clone(), cni], "x").await.unwrap_err();
        assert!(
            errors.starts_with("[network plugin has invalid name: \"/\": prefix part must be"),
            "{errors}"
        );
        assert!(
            errors.ends_with(
                ", network plugin \"cni\" was registered more than once, Network plugin \"x\" not found.]"
            ),
            "{errors}"
        );
    }
}
