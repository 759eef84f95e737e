// SPDX-License-Identifier: GPL-3.0-or-later

//! kubelet's options for its network plugins, as `slipwayd pod` takes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use cni_runtime::kubelet::{
    CniDriver, DEFAULT_NON_MASQUERADE_CIDR, ExecDriver, HairpinMode, Host, InitSettings, Manager,
    NetworkPlugin, Purpose, SelectErrors, select,
};

use slipway_cli::number;

use crate::kubenet::{Kubenet, NETWORK};

/// The largest MTU of the kernel's virtual links (`ETH_MAX_MTU`).
const LARGEST_MTU: u32 = 65535;
/// The default directory of exec drivers.
const EXEC_DIRECTORY: &str = "/usr/libexec/kubernetes/kubelet-plugins/net/exec";

/// kubelet's options, which mean something with `--network-plugin` only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct KubeletOptions {
    /// Call this network plugin of kubelet instead: cni, kubenet, or the name of a program
    // Options of `slipwayd pod` that a network plugin of kubelet does not get.
    #[arg(long, value_name = "NETWORK-PLUGIN", conflicts_with_all = ["uid", "network", "default_network"])]
    pub network_plugin: Option<String>,
    /// The programs of network plugins, and cni's configurations unless --cni-conf-dir is given [default:
    /// /usr/libexec/kubernetes/kubelet-plugins/net/exec]
    #[arg(long, value_name = "DIRECTORY", requires = "network_plugin", value_hint = ValueHint::DirPath)]
    pub network_plugin_dir: Option<PathBuf>,
    /// The MTU of kubenet's pods; 0: the least of the node's links [default: 0]
    #[arg(long, value_name = "BYTES", requires = "network_plugin", value_parser = number(0..=LARGEST_MTU))]
    pub network_plugin_mtu: Option<u32>,
    /// How kubenet's pods reach themselves by their Service [default: promiscuous-bridge]
    #[arg(long, value_name = "MODE", requires = "network_plugin", value_parser = hairpin_modes())]
    pub hairpin_mode: Option<HairpinMode>,
    /// Destinations to which kubenet's pods keep their addresses [default: 10.0.0.0/8]
    #[arg(long, value_name = "CIDR[,CIDR]", requires = "network_plugin")]
    pub non_masquerade_cidr: Option<String>,
    /// The addresses of the node's pods, for kubenet and for networks with ipRanges
    #[arg(long, value_name = "CIDR[,CIDR]", requires = "network_plugin")]
    pub pod_cidr: Option<String>,
}

/// The modes by their names.
fn hairpin_modes() -> impl TypedValueParser<Value = HairpinMode> {
    PossibleValuesParser::new(["promiscuous-bridge", "hairpin-veth", "none"]).try_map(|name| name.parse())
}

/// The directories of CNI, from options that other commands have, too. An empty path is an option that is not given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CniDirectories {
    /// `--cni-bin-dir`, first the most important one.
    pub plugins: Vec<PathBuf>,
    /// `--cni-conf-dir`.
    pub configurations: PathBuf,
    /// The cache of attachments.
    pub cache: PathBuf,
}

impl KubeletOptions {
    /// The drivers that can be selected: exec, CNI, kubenet. As kubelet did, CNI takes the directory of
    /// `--network-plugin-dir` if no other is given for its configurations.
    fn drivers(&self, cni: &CniDirectories) -> Vec<Box<dyn NetworkPlugin>> {
        let given = self.network_plugin_dir.as_deref();
        let exec_directory = given.unwrap_or(Path::new(EXEC_DIRECTORY));
        let given = given.unwrap_or(Path::new(""));
        let configurations =
            if cni.configurations.as_os_str().is_empty() { given } else { &cni.configurations };
        let mut driver = CniDriver::probe(configurations, cni.plugins.iter().cloned());
        let mut kubenet = Kubenet::new(cni.plugins.iter().cloned(), given);
        if !cni.cache.as_os_str().is_empty() {
            driver = driver.cache(&cni.cache);
            kubenet = kubenet.cache(&cni.cache);
        }
        let mut all: Vec<Box<dyn NetworkPlugin>> = Vec::new();
        for exec in ExecDriver::probe(exec_directory) {
            all.push(Box::new(exec));
        }
        all.push(Box::new(driver));
        all.push(Box::new(kubenet));
        all
    }

    /// The options that were given and that a driver of this name does not use.
    fn unused(&self, name: &str) -> Vec<&'static str> {
        let options = [
            ("--network-plugin-mtu", self.network_plugin_mtu.is_some()),
            ("--hairpin-mode", self.hairpin_mode.is_some()),
            ("--non-masquerade-cidr", self.non_masquerade_cidr.is_some()),
        ];
        let given = options.into_iter().filter(|(_, is_given)| *is_given && name != NETWORK);
        given.map(|(option, _)| option).collect()
    }

    /// Starts the driver of `--network-plugin`, and sets the pod CIDR. Options that the driver does not use are logged.
    ///
    /// # Errors
    /// [`SelectErrors`] if there is no such driver, or it cannot be started.
    pub async fn start(
        &self,
        cni: &CniDirectories,
        host: Arc<dyn Host>,
        purpose: Purpose,
    ) -> Result<Manager, SelectErrors> {
        let name = self.network_plugin.as_deref().unwrap_or_default();
        for option in self.unused(name) {
            log::warn!("{option} has no effect with --network-plugin {name}: kubenet alone uses it");
        }
        let non_masquerade_cidr = self.non_masquerade_cidr.as_deref().unwrap_or(DEFAULT_NON_MASQUERADE_CIDR);
        let settings = InitSettings {
            host,
            hairpin_mode: self.hairpin_mode.unwrap_or(HairpinMode::PromiscuousBridge).effective(name),
            non_masquerade_cidr: non_masquerade_cidr.to_owned(),
            mtu: self.network_plugin_mtu.filter(|mtu| *mtu != 0),
            purpose,
        };
        let manager = Manager::new(select(self.drivers(cni), name, settings).await?);
        manager.set_pod_cidr(self.pod_cidr.as_deref().unwrap_or_default()).await;
        Ok(manager)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_kubenet_are_unused_by_other_drivers() {
        let options = KubeletOptions {
            network_plugin_mtu: Some(1400),
            hairpin_mode: Some(HairpinMode::HairpinVeth),
            ..KubeletOptions::default()
        };
        assert_eq!(options.unused("kubenet"), Vec::<&str>::new());
        assert_eq!(options.unused("cni"), ["--network-plugin-mtu", "--hairpin-mode"]);
        // Nobody has asked for the default values.
        assert_eq!(KubeletOptions::default().unused("cni"), Vec::<&str>::new());
    }

    #[test]
    fn every_kind_of_driver_is_probed() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("mycompany~sdn")).unwrap();
        let options =
            KubeletOptions { network_plugin_dir: Some(directory.path().into()), ..Default::default() };
        let drivers = options.drivers(&CniDirectories::default());
        let names: Vec<&str> = drivers.iter().map(|driver| driver.name()).collect();
        assert_eq!(names, ["mycompany/sdn", "cni", "kubenet"]);
    }
}
