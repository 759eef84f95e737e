// SPDX-License-Identifier: MIT OR Apache-2.0

//! The file with the node's subnets in flanneld's format (`WriteSubnetFile` in its `pkg/subnet/subnet.go`), which the
//! plugin flannel reads. host-local reads the format in [`crate::subnet_file`].

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use cni_kernel::AddressFamily;
use cni_kernel::bounded;
use cni_kernel::dir::DirError;
use cni_spec::text::parse_net;
use ipnet::IpNet;

use crate::subnet_file;

/// The default path of the file.
pub const PATH: &str = "/run/flannel/subnet.env";

/// The maximum size of a file that is read, in bytes.
const LIMIT: u64 = 16 << 10;

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// The cluster's networks, IPv4 first, from `FLANNEL_NETWORK` and `FLANNEL_IPV6_NETWORK`.
    pub networks: Vec<IpNet>,
    /// This node's subnets, at most one per family and IPv4 first, from `FLANNEL_SUBNET` and `FLANNEL_IPV6_SUBNET`.
    pub subnets: Vec<IpNet>,
    /// The MTU in bytes, from `FLANNEL_MTU`.
    pub mtu: u32,
    /// True if the writer of the file masquerades, so that flannel's delegate must not (`FLANNEL_IPMASQ`).
    pub masquerades: bool,
}

/// Why the file cannot be used or written.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// The file cannot be read, or is too large.
    #[error("open {path}: {error}")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        error: io::Error,
    },
    /// A value cannot be parsed.
    #[error("{key}: {message}: {value}")]
    Value {
        key: String,
        /// Why the value cannot be parsed.
        message: &'static str,
        /// The text of the value.
        value: String,
    },
    /// Keys are missing from the file, or would be missing from a written one.
    #[error("{path} is missing {keys}")]
    Missing {
        /// The file.
        path: String,
        keys: String,
    },
    /// The format allows only one subnet per family, so nothing was written.
    #[error("write {path}: {subnets} subnets of {family}, the file can have one")]
    Several {
        /// The file.
        path: String,
        family: AddressFamily,
        /// The number of subnets of this family.
        subnets: usize,
    },
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] DirError),
}

impl SubnetEnv {
    /// Reads the file. Symbolic links are followed, as the reference plugin does.
    ///
    /// # Errors
    /// [`EnvError::Read`] if the file is missing, unreadable or larger than 16 KiB; [`EnvError::Value`] and
    /// [`EnvError::Missing`] for the content.
    pub fn read(path: &Path) -> Result<Self, EnvError> {
        let shown = path.display().to_string();
        let text = text(path).map_err(|error| EnvError::Read { path: shown.clone(), error })?;
        Self::parse(&shown, &text)
    }

    /// Writes the file with mode 0644, and creates missing directories with mode 0755. Readers see either the old
    /// content or the new one, and so does the disk after a crash.
    ///
    /// # Errors
    /// [`EnvError::Several`] for two subnets of a family, [`EnvError::Missing`] without networks or subnets,
    /// [`EnvError::Write`] if the system refuses. The old content stays.
    pub fn write(&self, path: &Path) -> Result<(), EnvError> {
        let shown = path.display().to_string();
        let text = self.text(&shown)?;
        // Parsing the text as a reader does finds missing keys.
        let _read = Self::parse(&shown, &text)?;
        Ok(subnet_file::replace(path, text.as_bytes())?)
    }

    pub(crate) fn text(&self, path: &str) -> Result<String, EnvError> {
        let mut text = String::new();
        for (family, prefix) in [(AddressFamily::V4, "FLANNEL_"), (AddressFamily::V6, "FLANNEL_IPV6_")] {
            let of = |nets: &[IpNet]| -> Vec<IpNet> {
                nets.iter().copied().filter(|net| AddressFamily::of(net.addr()) == family).collect()
            };
            let networks: Vec<String> = of(&self.networks).iter().map(ToString::to_string).collect();
            if !networks.is_empty() {
                let _written = writeln!(text, "{prefix}NETWORK={}", networks.join(","));
            }
            match of(&self.subnets)[..] {
                [] => {}
                [subnet] => {
                    let _written = writeln!(text, "{prefix}SUBNET={}", first_host(subnet));
                }
                ref several => {
                    let subnets = several.len();
                    return Err(EnvError::Several { path: path.to_owned(), family, subnets });
                }
            }
        }
        let _written = writeln!(text, "FLANNEL_MTU={}\nFLANNEL_IPMASQ={}", self.mtu, self.masquerades);
        Ok(text)
    }

    pub(crate) fn parse(path: &str, text: &str) -> Result<Self, EnvError> {
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
                networks: distinct(self.networks.concat()),
                subnets: self.subnets.into_iter().flatten().collect(),
                mtu,
                masquerades,
            }),
            _ => Err(EnvError::Missing { path: path.to_owned(), keys: missing.join(", ") }),
        }
    }
}

fn text(path: &Path) -> io::Result<String> {
    String::from_utf8(bounded::read(path, LIMIT)?).map_err(io::Error::other)
}

/// The first address after the network's, with the prefix length. flanneld writes this address for the node's bridge.
fn first_host(subnet: IpNet) -> IpNet {
    let next = match subnet.trunc() {
        IpNet::V4(net) => Ipv4Addr::from(u32::from(net.addr()).wrapping_add(1)).into(),
        IpNet::V6(net) => Ipv6Addr::from(u128::from(net.addr()).wrapping_add(1)).into(),
    };
    // A subnet with a single address has no next address.
    IpNet::new(next, subnet.prefix_len()).ok().filter(|host| host.trunc() == subnet.trunc()).unwrap_or(subnet)
}

/// The network of an address that is given with a prefix length.
fn net(key: &str, value: &str) -> Result<IpNet, EnvError> {
    let net = parse_net(value.trim()).ok_or_else(|| wrong(key, "invalid CIDR address", value))?;
    Ok(net.trunc())
}

/// Networks separated by commas.
fn nets(key: &str, value: &str) -> Result<Vec<IpNet>, EnvError> {
    value.split(',').map(|text| net(key, text)).collect()
}

/// Repeated networks count once, also if both keys have them. Those of IPv4 come first, as they are written.
fn distinct(networks: Vec<IpNet>) -> Vec<IpNet> {
    let mut all = Vec::new();
    for one in networks {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all.sort_by_key(|one| one.addr().is_ipv6());
    all
}

fn wrong(key: &str, message: &'static str, value: &str) -> EnvError {
    EnvError::Value { key: key.to_owned(), message, value: value.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn parse(text: &str) -> Result<SubnetEnv, String> {
        SubnetEnv::parse("/f", text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_file_of_flanneld_is_parsed() {
        let env = parse(
            "FLANNEL_NETWORK=10.244.0.0/16,10.245.0.0/16,10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
             FLANNEL_IPV6_NETWORK=fd00:244::/56,10.245.0.0/16\nFLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\n\
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

    fn env(networks: &[&str], subnets: &[&str]) -> SubnetEnv {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        SubnetEnv { networks: nets(networks), subnets: nets(subnets), mtu: 1450, masquerades: false }
    }

    #[test]
    fn a_file_as_flanneld_writes_it_is_written_and_read() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("flannel/subnet.env");
        let both = env(
            &["10.244.0.0/16", "10.245.0.0/16", "fd00:244::/56"],
            &["10.244.1.0/24", "fd00:244:0:1::/64"],
        );
        both.write(&path).unwrap();
        let expected = "FLANNEL_NETWORK=10.244.0.0/16,10.245.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
                        FLANNEL_IPV6_NETWORK=fd00:244::/56\nFLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\n\
                        FLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(SubnetEnv::read(&path).unwrap(), both);
        for (network, subnet) in [
            ("fd00:244::/56", "fd00:244:0:1::/64"),
            ("0.0.0.0/0", "255.255.255.255/32"),
            ("::/0", "::/0"),
            ("10.0.0.0/8", "10.1.2.4/31"),
        ] {
            let one = env(&[network], &[subnet]);
            one.write(&path).unwrap();
            assert_eq!(SubnetEnv::read(&path).unwrap(), one);
        }
    }

    #[test]
    fn what_a_reader_would_refuse_is_not_written() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("subnet.env");
        let whole = env(&["10.244.0.0/16"], &["10.244.1.0/24"]);
        whole.write(&path).unwrap();
        let error = |env: SubnetEnv| env.write(&path).unwrap_err().to_string();
        let two = env(&["10.244.0.0/16"], &["10.244.1.0/24", "10.244.2.0/24"]);
        assert_eq!(error(two), format!("write {}: 2 subnets of IPv4, the file can have one", path.display()));
        assert!(error(env(&[], &["10.244.1.0/24"])).contains("is missing FLANNEL_NETWORK"));
        assert!(error(env(&["10.244.0.0/16"], &[])).contains("is missing FLANNEL_SUBNET"));
        assert_eq!(SubnetEnv::read(&path).unwrap(), whole);
    }

    #[test]
    fn large_files_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("subnet.env");
        std::fs::write(&path, "A=\n".repeat(6000)).unwrap();
        assert!(SubnetEnv::read(&path).unwrap_err().to_string().ends_with("larger than 16384 bytes"));
        assert!(SubnetEnv::read(Path::new("/dev/zero")).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Changed text that is accepted must stay the same when it is written and read again.
        #[test]
        fn changed_files_never_panic(
            cuts in proptest::collection::vec((any::<Index>(), 0..12_usize, "[A-Z0-9_=,./:\\n -]{0,8}"), 1..6),
        ) {
            let whole = env(&["10.244.0.0/16", "fd00:244::/56"], &["10.244.1.0/24", "fd00:244:0:1::/64"]);
            let mut text = whole.text("f").unwrap();
            for (at, length, insert) in cuts {
                let at = at.index(text.len() + 1);
                let end = text.len().min(at + length);
                text.replace_range(at..end, &insert);
            }
            if let Ok(env) = SubnetEnv::parse("f", &text) {
                match env.text("f") {
                    Ok(written) => prop_assert_eq!(SubnetEnv::parse("f", &written).unwrap(), env),
                    // As in flannel, a reader does not compare the family of a value with its key.
                    Err(EnvError::Several { .. }) => {}
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                }
            }
        }
    }
}
