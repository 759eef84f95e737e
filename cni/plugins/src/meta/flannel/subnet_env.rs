// SPDX-License-Identifier: GPL-2.0-or-later

//! The file in which flanneld writes this node's subnets.

use std::path::Path;

use cni_spec::text::parse_net;
use ipnet::IpNet;

/// The file's content, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SubnetEnv {
    /// The networks of the cluster, IPv4 first: `FLANNEL_NETWORK`, `FLANNEL_IPV6_NETWORK`.
    pub(super) networks: Vec<IpNet>,
    /// This node's subnets, IPv4 first: `FLANNEL_SUBNET`, `FLANNEL_IPV6_SUBNET`.
    pub(super) subnets: Vec<IpNet>,
    /// `FLANNEL_MTU`, in bytes.
    pub(super) mtu: u32,
    /// `FLANNEL_IPMASQ`: flanneld masquerades, so that the delegate must not.
    pub(super) masquerades: bool,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum EnvError {
    #[error("open {path}: {error}")]
    Read { path: String, error: std::io::Error },
    #[error("{key}: {message}: {value}")]
    Value { key: String, message: &'static str, value: String },
    #[error("{path} is missing {keys}")]
    Missing { path: String, keys: String },
}

impl SubnetEnv {
    pub(super) fn read(path: &Path) -> Result<Self, EnvError> {
        let shown = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|error| EnvError::Read { path: shown.clone(), error })?;
        Self::parse(&shown, &text)
    }

    fn parse(path: &str, text: &str) -> Result<Self, EnvError> {
        let mut found = Found::default();
        for line in text.lines() {
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            found.take(key, value)?;
        }
        found.finish(path)
    }
}

#[derive(Default)]
struct Found {
    networks: [Vec<IpNet>; 2],
    subnets: [Option<IpNet>; 2],
    mtu: Option<u32>,
    masquerades: Option<bool>,
}

impl Found {
    fn take(&mut self, key: &str, value: &str) -> Result<(), EnvError> {
        match key {
            "FLANNEL_NETWORK" => self.networks[0] = nets(key, value)?,
            "FLANNEL_IPV6_NETWORK" => self.networks[1] = nets(key, value)?,
            "FLANNEL_SUBNET" => self.subnets[0] = Some(net(key, value)?),
            "FLANNEL_IPV6_SUBNET" => self.subnets[1] = Some(net(key, value)?),
            "FLANNEL_MTU" => {
                let mtu = value.parse().map_err(|_| wrong(key, "invalid number", value))?;
                self.mtu = Some(mtu);
            }
            "FLANNEL_IPMASQ" => self.masquerades = Some(value == "true"),
            _ => {}
        }
        Ok(())
    }

    fn finish(self, path: &str) -> Result<SubnetEnv, EnvError> {
        let mut missing = Vec::new();
        if self.networks.iter().all(Vec::is_empty) {
            missing.extend(["FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"]);
        }
        if self.subnets.iter().all(Option::is_none) {
            missing.extend(["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"]);
        }
        missing.extend(self.mtu.is_none().then_some("FLANNEL_MTU"));
        missing.extend(self.masquerades.is_none().then_some("FLANNEL_IPMASQ"));
        match (self.mtu, self.masquerades) {
            (Some(mtu), Some(masquerades)) if missing.is_empty() => Ok(SubnetEnv {
                networks: self.networks.concat(),
                subnets: self.subnets.into_iter().flatten().collect(),
                mtu,
                masquerades,
            }),
            _ => Err(EnvError::Missing { path: path.to_owned(), keys: missing.join(", ") }),
        }
    }
}

/// The network of an address with a prefix length. flanneld writes the node's address, not the network's.
fn net(key: &str, value: &str) -> Result<IpNet, EnvError> {
    let net = parse_net(value.trim()).ok_or_else(|| wrong(key, "invalid CIDR address", value))?;
    Ok(net.trunc())
}

/// Networks separated by commas, each once.
fn nets(key: &str, value: &str) -> Result<Vec<IpNet>, EnvError> {
    let mut all = Vec::new();
    for text in value.split(',') {
        let one = net(key, text)?;
        if !all.contains(&one) {
            all.push(one);
        }
    }
    Ok(all)
}

fn wrong(key: &str, message: &'static str, value: &str) -> EnvError {
    EnvError::Value { key: key.to_owned(), message, value: value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<SubnetEnv, String> {
        SubnetEnv::parse("/f", text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_file_of_flanneld_is_parsed() {
        let env = parse(
            "FLANNEL_NETWORK=10.244.0.0/16,10.245.0.0/16,10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
             FLANNEL_IPV6_NETWORK=fd00:244::/56\nFLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\n\
             FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\nOTHER=1\n\n",
        )
        .unwrap();
        let shown = |nets: &[IpNet]| nets.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown(&env.networks), ["10.244.0.0/16", "10.245.0.0/16", "fd00:244::/56"]);
        assert_eq!(shown(&env.subnets), ["10.244.1.0/24", "fd00:244:0:1::/64"]);
        assert_eq!((env.mtu, env.masquerades), (1450, true));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        assert_eq!(
            parse("").unwrap_err(),
            "/f is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ"
        );
        let rest = "FLANNEL_NETWORK=10.0.0.0/8\nFLANNEL_SUBNET=10.1.0.1/24\n";
        assert_eq!(parse(rest).unwrap_err(), "/f is missing FLANNEL_MTU, FLANNEL_IPMASQ");
        assert_eq!(parse("FLANNEL_SUBNET=x").unwrap_err(), "FLANNEL_SUBNET: invalid CIDR address: x");
        assert_eq!(parse("FLANNEL_MTU").unwrap_err(), "FLANNEL_MTU: invalid number: ");
        assert_eq!(parse("FLANNEL_MTU=-1").unwrap_err(), "FLANNEL_MTU: invalid number: -1");
    }
}
