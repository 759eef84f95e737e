// SPDX-License-Identifier: GPL-3.0-or-later

//! kubelet's options for its network plugins, as `slipwayd pod` takes them.

use std::num::ParseIntError;
use std::path::PathBuf;
use std::sync::Arc;

use crate::kubenet::Kubenet;
use cni_runtime::kubelet::{
    CniDriver, DEFAULT_NON_MASQUERADE_CIDR, ExecDriver, HairpinMode, Host, InitSettings, Manager,
    NetworkPlugin, SelectErrors, UnknownHairpinMode, select,
};

/// The default directory of exec drivers.
const EXEC_DIRECTORY: &str = "/usr/libexec/kubernetes/kubelet-plugins/net/exec";

/// kubelet's options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletOptions {
    /// `--network-plugin`; empty: no network plugin is called.
    pub network_plugin: String,
    /// `--network-plugin-dir`; empty if it is not given.
    pub network_plugin_dir: PathBuf,
    /// `--network-plugin-mtu`; none for 0.
    pub network_plugin_mtu: Option<u32>,
    /// `--hairpin-mode`.
    pub hairpin_mode: HairpinMode,
    /// `--non-masquerade-cidr`.
    pub non_masquerade_cidr: String,
    /// `--pod-cidr`; empty if it is not given.
    pub pod_cidr: String,
}

/// The directories of CNI, from options that other commands have, too. Empty paths are options that are not given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CniDirectories {
    /// `--cni-bin-dir`, first the most important one.
    pub plugins: Vec<PathBuf>,
    /// `--cni-conf-dir`.
    pub configurations: PathBuf,
    /// The cache of attachments.
    pub cache: PathBuf,
}

/// An invalid value of an option.
#[derive(Debug, thiserror::Error)]
pub enum OptionError {
    /// `--hairpin-mode` has an unknown value.
    #[error(transparent)]
    HairpinMode(#[from] UnknownHairpinMode),
    /// `--network-plugin-mtu` is not a number.
    #[error(transparent)]
    Mtu(#[from] ParseIntError),
}

impl Default for KubeletOptions {
    fn default() -> Self {
        Self {
            network_plugin: String::new(),
            network_plugin_dir: PathBuf::new(),
            network_plugin_mtu: None,
            hairpin_mode: HairpinMode::PromiscuousBridge,
            non_masquerade_cidr: DEFAULT_NON_MASQUERADE_CIDR.to_owned(),
            pod_cidr: String::new(),
        }
    }
}

impl KubeletOptions {
    /// Sets an option, by its name without dashes. False if it is not kubelet's.
    ///
    /// # Errors
    /// [`OptionError`] if the value is invalid.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, OptionError> {
        match name {
            "network-plugin" => value.clone_into(&mut self.network_plugin),
            "network-plugin-dir" => self.network_plugin_dir = value.into(),
            "network-plugin-mtu" => {
                let mtu: u32 = value.parse()?;
                self.network_plugin_mtu = (mtu != 0).then_some(mtu);
            }
            "hairpin-mode" => self.hairpin_mode = value.parse()?,
            "non-masquerade-cidr" => value.clone_into(&mut self.non_masquerade_cidr),
            "pod-cidr" => value.clone_into(&mut self.pod_cidr),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The drivers that can be selected: exec, CNI, kubenet. As kubelet did, CNI takes the directory of
    /// `--network-plugin-dir` if no other is given for its configurations.
    fn drivers(&self, cni: &CniDirectories) -> Vec<Box<dyn NetworkPlugin>> {
        let given = &self.network_plugin_dir;
        let is_empty = given.as_os_str().is_empty();
        let exec_directory = if is_empty { PathBuf::from(EXEC_DIRECTORY) } else { given.clone() };
        let configurations =
            if cni.configurations.as_os_str().is_empty() { given } else { &cni.configurations };
        let plugins = cni.plugins.first().cloned().unwrap_or_default();
        let mut driver = CniDriver::probe(configurations, cni.plugins.iter().cloned());
        let mut kubenet = Kubenet::new(&plugins, given);
        if !cni.cache.as_os_str().is_empty() {
            driver = driver.cache(&cni.cache);
            kubenet = kubenet.cache(&cni.cache);
        }
        let mut all: Vec<Box<dyn NetworkPlugin>> = Vec::new();
        for exec in ExecDriver::probe(&exec_directory) {
            all.push(Box::new(exec));
        }
        all.push(Box::new(driver));
        all.push(Box::new(kubenet));
        all
    }

    /// Starts the driver of `--network-plugin`, and sets the pod CIDR.
    ///
    /// # Errors
    /// [`SelectErrors`] if there is no such driver, or it cannot be started.
    pub async fn start(&self, cni: &CniDirectories, host: Arc<dyn Host>) -> Result<Manager, SelectErrors> {
        let settings = InitSettings {
            host,
            hairpin_mode: self.hairpin_mode.effective(&self.network_plugin),
            non_masquerade_cidr: self.non_masquerade_cidr.clone(),
            mtu: self.network_plugin_mtu,
        };
        let manager = Manager::new(select(self.drivers(cni), &self.network_plugin, settings).await?);
        manager.set_pod_cidr(&self.pod_cidr).await;
        Ok(manager)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_kubelets() {
        let mut options = KubeletOptions::default();
        for (name, value) in [
            ("network-plugin", "kubenet"),
            ("network-plugin-dir", "/vendor"),
            ("network-plugin-mtu", "1400"),
            ("hairpin-mode", "none"),
            ("non-masquerade-cidr", "10.0.0.0/16"),
            ("pod-cidr", "10.1.0.0/24,fd00::/64"),
        ] {
            assert!(options.set(name, value).unwrap(), "{name}");
        }
        let expected = KubeletOptions {
            network_plugin: "kubenet".into(),
            network_plugin_dir: "/vendor".into(),
            network_plugin_mtu: Some(1400),
            hairpin_mode: HairpinMode::None,
            non_masquerade_cidr: "10.0.0.0/16".into(),
            pod_cidr: "10.1.0.0/24,fd00::/64".into(),
        };
        assert_eq!(options, expected);
        assert!(options.set("network-plugin-mtu", "0").unwrap());
        assert_eq!(options.network_plugin_mtu, None);
        assert_eq!(options.set("hairpin-mode", "veth").unwrap_err().to_string(), "unknown value: \"veth\"");
        assert!(options.set("network-plugin-mtu", "big").is_err());
        assert!(!options.set("other", "").unwrap());
    }

    #[test]
    fn every_kind_of_driver_is_probed() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("mycompany~sdn")).unwrap();
        let options = KubeletOptions { network_plugin_dir: directory.path().into(), ..Default::default() };
        let drivers = options.drivers(&CniDirectories::default());
        let names: Vec<&str> = drivers.iter().map(|driver| driver.name()).collect();
        assert_eq!(names, ["mycompany/sdn", "cni", "kubenet"]);
    }
}
