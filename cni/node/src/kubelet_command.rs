// SPDX-License-Identifier: GPL-2.0-or-later

//! kubelet's options for its network plugins, as `slipwayd pod` takes them.

use std::path::PathBuf;
use std::sync::Arc;

use cni_runtime::kubelet::{
    CniDriver, DEFAULT_NON_MASQUERADE_CIDR, ExecDriver, HairpinMode, Host, InitSettings, Manager,
    NetworkPlugin, SelectErrors, UnknownHairpinMode, select,
};
use lexopt::ValueExt as _;

use crate::kubenet::Kubenet;

/// The default directory of exec drivers.
const EXEC_DIRECTORY: &str = "/usr/libexec/kubernetes/kubelet-plugins/net/exec";

/// The options in `--help`.
pub const HELP: &str = "\
    --network-plugin NAME         call this network plugin of kubelet: cni, kubenet, or an exec plugin
    --network-plugin-dir DIR      directory of exec plugins; also kubenet's directory of a vendor's plugins, and
                                  where cni searches without --cni-conf-dir [default: /usr/libexec/kubernetes/\
kubelet-plugins/net/exec]
    --network-plugin-mtu BYTES    MTU of the pods' network; 0: that of the node's links [default: 0]
    --hairpin-mode MODE           promiscuous-bridge, hairpin-veth or none [default: promiscuous-bridge]
    --non-masquerade-cidr CIDR    destinations to which pods keep their addresses [default: 10.0.0.0/8]
    --pod-cidr CIDR[,CIDR]        the pods' addresses, for kubenet and for networks with ipRanges
";

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
    pub hairpin_mode: String,
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

/// The driver could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// `--hairpin-mode` has an unknown value.
    #[error("--hairpin-mode: {0}")]
    HairpinMode(#[from] UnknownHairpinMode),
    /// No driver was selected.
    #[error(transparent)]
    Select(#[from] SelectErrors),
}

impl Default for KubeletOptions {
    fn default() -> Self {
        Self {
            network_plugin: String::new(),
            network_plugin_dir: PathBuf::new(),
            network_plugin_mtu: None,
            hairpin_mode: HairpinMode::PromiscuousBridge.to_string(),
            non_masquerade_cidr: DEFAULT_NON_MASQUERADE_CIDR.to_owned(),
            pod_cidr: String::new(),
        }
    }
}

impl KubeletOptions {
    /// Takes the value of an option, by its name without dashes. False for an option that is not kubelet's.
    ///
    /// # Errors
    /// [`lexopt::Error`] if the value is missing or invalid.
    pub fn take(&mut self, option: &str, parser: &mut lexopt::Parser) -> Result<bool, lexopt::Error> {
        match option {
            "network-plugin" => self.network_plugin = parser.value()?.string()?,
            "network-plugin-dir" => self.network_plugin_dir = parser.value()?.into(),
            "network-plugin-mtu" => {
                let mtu: u32 = parser.value()?.parse()?;
                self.network_plugin_mtu = (mtu != 0).then_some(mtu);
            }
            "hairpin-mode" => self.hairpin_mode = parser.value()?.string()?,
            "non-masquerade-cidr" => self.non_masquerade_cidr = parser.value()?.string()?,
            "pod-cidr" => self.pod_cidr = parser.value()?.string()?,
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
    /// [`StartError`] if there is no such driver, or it cannot be started.
    pub async fn start(&self, cni: &CniDirectories, host: Arc<dyn Host>) -> Result<Manager, StartError> {
        let hairpin_mode: HairpinMode = self.hairpin_mode.parse()?;
        let settings = InitSettings {
            host,
            hairpin_mode: hairpin_mode.effective(&self.network_plugin),
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

    fn parse(words: &[&str]) -> Result<KubeletOptions, String> {
        let mut options = KubeletOptions::default();
        let mut parser = lexopt::Parser::from_args(words);
        while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
            let lexopt::Arg::Long(name) = argument else { return Err(format!("{argument:?}")) };
            let name = name.to_owned();
            match options.take(&name, &mut parser) {
                Ok(true) => {}
                Ok(false) => return Err(format!("unknown option {name}")),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(options)
    }

    #[test]
    fn the_options_are_kubelets() {
        let options = parse(&[
            "--network-plugin=kubenet",
            "--network-plugin-dir",
            "/vendor",
            "--network-plugin-mtu=1400",
            "--hairpin-mode=none",
            "--non-masquerade-cidr=10.0.0.0/16",
            "--pod-cidr=10.1.0.0/24,fd00::/64",
        ]);
        let expected = KubeletOptions {
            network_plugin: "kubenet".into(),
            network_plugin_dir: "/vendor".into(),
            network_plugin_mtu: Some(1400),
            hairpin_mode: "none".into(),
            non_masquerade_cidr: "10.0.0.0/16".into(),
            pod_cidr: "10.1.0.0/24,fd00::/64".into(),
        };
        assert_eq!(options.unwrap(), expected);
        assert_eq!(parse(&["--network-plugin-mtu=0"]).unwrap(), KubeletOptions::default());
        assert!(parse(&["--network-plugin-mtu=big"]).is_err());
        assert_eq!(parse(&["--other"]).unwrap_err(), "unknown option other");
        // Each option is in the help.
        assert_eq!(HELP.lines().filter(|line| line.trim_start().starts_with("--")).count(), 6);
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
