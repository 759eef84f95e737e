// SPDX-License-Identifier: MIT OR Apache-2.0

//! The file with the node's subnets. The node's agent writes it, and host-local takes its ranges from it (key
//! `subnetFile`), so the same list of plugins can serve every node.
//!
//! ```json
//! {
//!   "schema": 1,
//!   "subnets": ["10.244.1.0/24", "fd00:244:0:1::/64"],
//!   "clusterCIDRs": ["10.244.0.0/16", "fd00:244::/56"],
//!   "mtu": 1450
//! }
//! ```
//!
//! Unknown keys are ignored, and `clusterCIDRs` may be missing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use cni_kernel::AddressFamily;
use cni_kernel::dir::{DirError, DurableDir};
use cni_spec::address::{UNUSABLE_NETWORKS, overlap};
use cni_spec::text::parse_net;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The default path of the file.
pub const PATH: &str = "/run/slipway/subnet.json";

/// The version of the format.
const SCHEMA: u64 = 1;
/// The maximum size of a file that is read, in bytes.
const LIMIT: usize = 16 << 10;
/// The minimum MTU of IPv4 (RFC 791), in bytes.
const SMALLEST_MTU: u32 = 68;
/// The minimum MTU of IPv6 (RFC 8200, section 5).
const SMALLEST_MTU_V6: u32 = 1280;
/// The maximum MTU of the kernel's virtual links (`ETH_MAX_MTU`).
const LARGEST_MTU: u32 = 65535;

/// The node's subnets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubnetFile {
    /// The subnets for this node's containers: at least one, without overlaps, each with at least four addresses. A
    /// container gets an address of each family, in the order in which the families first appear.
    pub subnets: Vec<IpNet>,
    /// The networks of the cluster's containers, empty if they are unknown.
    pub cluster_cidrs: Vec<IpNet>,
    /// The MTU for containers' links, in bytes.
    pub mtu: u32,
}

/// Why the file cannot be used or written.
#[derive(Debug, thiserror::Error)]
pub enum SubnetFileError {
    #[error("open {0:?}: no such file")]
    Missing(PathBuf),
    /// The content cannot be used, because the file is torn or another program wrote it.
    #[error("read {path:?}: {error}")]
    Content {
        path: PathBuf,
        /// Why the content cannot be used.
        error: InvalidSubnets,
    },
    /// The subnets cannot be used, and have not been written.
    #[error("write {path:?}: {error}")]
    Refused {
        path: PathBuf,
        /// Why the subnets cannot be used.
        error: InvalidSubnets,
    },
    /// The system refused the operation, the file is too large, or it is not a regular file.
    #[error(transparent)]
    File(#[from] DirError),
}

/// Why subnets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSubnets {
    /// The file has no bytes other than white space.
    #[error("the file is empty")]
    Empty,
    /// The file is not a JSON object, or a key is missing or has a value of another type.
    #[error("not a file of subnets: {0}")]
    Form(#[from] serde_json::Error),
    /// The file is from a later version.
    #[error("unknown schema {0}, this version reads {SCHEMA}")]
    Schema(u64),
    /// The text is not an address with a prefix length.
    #[error("{key}: invalid CIDR address: {value}")]
    Cidr {
        /// The key, with the index in the list.
        key: String,
        /// The text.
        value: String,
    },
    #[error("subnets: empty")]
    NoSubnets,
    /// The address of a network has host bits set.
    #[error("{key}: {net} has host bits set, the network is {}", net.trunc())]
    HostBits {
        /// The key, with the index in the list.
        key: String,
        /// The network.
        net: IpNet,
    },
    /// The subnet has no address for a container besides the network, gateway and broadcast addresses.
    #[error("{key}: {net} is too small for containers, /{} is the smallest", net.max_prefix_len() - 2)]
    TooSmall {
        /// The key, with the index in the list.
        key: String,
        net: IpNet,
    },
    /// No container can have some of the addresses.
    #[error("{key}: {net} has {kind} addresses")]
    Unusable {
        /// The key, with the index in the list.
        key: String,
        /// The network.
        net: IpNet,
        /// The kind of these addresses.
        kind: &'static str,
    },
    /// Two subnets overlap.
    #[error("subnets: {0} and {1} overlap")]
    Overlap(IpNet, IpNet),
    /// No link can have this MTU.
    #[error("mtu: {mtu} is not between {smallest} and {LARGEST_MTU}")]
    Mtu {
        /// The value, in bytes.
        mtu: u32,
        /// The minimum MTU for the families of the subnets, in bytes.
        smallest: u32,
    },
}

/// The keys of the file.
#[derive(Serialize, Deserialize)]
struct Document {
    schema: u64,
    subnets: Vec<String>,
    #[serde(rename = "clusterCIDRs", default)]
    cluster_cidrs: Vec<String>,
    mtu: u32,
}

impl SubnetFile {
    /// Reads the file. If the last component of the path is a symbolic link, it is not followed.
    ///
    /// # Errors
    /// [`SubnetFileError::Missing`] if there is no file; [`SubnetFileError::Content`] if it is torn or otherwise
    /// invalid; [`SubnetFileError::File`] if it cannot be read, is larger than 16 KiB, or is not a regular file.
    pub fn read(path: &Path) -> Result<Self, SubnetFileError> {
        let (folder, name) = split(path);
        let content = match DurableDir::open(folder) {
            Ok(folder) => folder.read(name, LIMIT)?,
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        let content = content.ok_or_else(|| SubnetFileError::Missing(path.to_owned()))?;
        Self::parse(&content).map_err(|error| SubnetFileError::Content { path: path.to_owned(), error })
    }

    /// Writes the file with mode 0644, and creates missing directories with mode 0755. Readers see either the old
    /// content or the new one, and so does the disk after a crash.
    pub fn write(&self, path: &Path) -> Result<(), SubnetFileError> {
        self.check().map_err(|error| SubnetFileError::Refused { path: path.to_owned(), error })?;
        Ok(replace(path, &self.to_json())?)
    }

    /// Parses a file's content, and checks it.
    pub fn parse(content: &[u8]) -> Result<Self, InvalidSubnets> {
        if content.trim_ascii().is_empty() {
            return Err(InvalidSubnets::Empty);
        }
        // serde would also accept a list in place of the struct.
        let object: Map<String, Value> = serde_json::from_slice(content)?;
        // Another schema may have different keys.
        if let Some(schema) = object.get("schema").and_then(Value::as_u64).filter(|schema| *schema != SCHEMA)
        {
            return Err(InvalidSubnets::Schema(schema));
        }
        let document: Document = serde_json::from_value(object.into())?;
        let file = Self {
            subnets: nets("subnets", &document.subnets)?,
            cluster_cidrs: nets("clusterCIDRs", &document.cluster_cidrs)?,
            mtu: document.mtu,
        };
        file.check()?;
        Ok(file)
    }

    /// Checks that containers can get addresses from the subnets.
    ///
    /// # Errors
    /// [`InvalidSubnets`] if there are no subnets; if a subnet is too small, has host bits, overlaps another one, or
    /// has loopback, multicast or other unusable addresses; if a network of the cluster has such addresses or host
    /// bits; or if no link can have the MTU.
    pub fn check(&self) -> Result<(), InvalidSubnets> {
        if self.subnets.is_empty() {
            return Err(InvalidSubnets::NoSubnets);
        }
        check_all("subnets", &self.subnets)?;
        check_all("clusterCIDRs", &self.cluster_cidrs)?;
        for (at, net) in self.subnets.iter().enumerate() {
            if net.prefix_len() > net.max_prefix_len() - 2 {
                return Err(InvalidSubnets::TooSmall { key: format!("subnets[{at}]"), net: *net });
            }
        }
        self.check_overlap()?;
        let is_v6 = self.subnets.iter().any(|net| matches!(net, IpNet::V6(_)));
        let smallest = if is_v6 { SMALLEST_MTU_V6 } else { SMALLEST_MTU };
        match self.mtu {
            mtu if !(smallest..=LARGEST_MTU).contains(&mtu) => Err(InvalidSubnets::Mtu { mtu, smallest }),
            _ => Ok(()),
        }
    }

    /// The families of the subnets in the order of the file, each with its subnets.
    #[must_use]
    pub fn families(&self) -> Vec<(AddressFamily, Vec<IpNet>)> {
        let mut families: Vec<(AddressFamily, Vec<IpNet>)> = Vec::new();
        for net in &self.subnets {
            let family = AddressFamily::of(net.addr());
            match families.iter_mut().find(|(known, _)| *known == family) {
                Some((_, nets)) => nets.push(*net),
                None => families.push((family, vec![*net])),
            }
        }
        families
    }

    fn check_overlap(&self) -> Result<(), InvalidSubnets> {
        let mut sorted = self.subnets.clone();
        // The subnets are sorted by network, so that all subnets within another one directly follow it.
        sorted.sort_unstable();
        for (one, next) in sorted.iter().zip(sorted.iter().skip(1)) {
            if overlap(one, next) {
                return Err(InvalidSubnets::Overlap(*one, *next));
            }
        }
        Ok(())
    }

    fn to_json(&self) -> Vec<u8> {
        let texts = |nets: &[IpNet]| nets.iter().map(ToString::to_string).collect();
        let document = Document {
            schema: SCHEMA,
            subnets: texts(&self.subnets),
            cluster_cidrs: texts(&self.cluster_cidrs),
            mtu: self.mtu,
        };
        cni_spec::text::pretty(&document).into_bytes()
    }
}

fn nets(key: &str, texts: &[String]) -> Result<Vec<IpNet>, InvalidSubnets> {
    let net = |(at, text): (usize, &String)| {
        parse_net(text)
            .ok_or_else(|| InvalidSubnets::Cidr { key: format!("{key}[{at}]"), value: text.clone() })
    };
    texts.iter().enumerate().map(net).collect()
}

fn check_all(key: &str, nets: &[IpNet]) -> Result<(), InvalidSubnets> {
    for (at, net) in nets.iter().enumerate() {
        let key = || format!("{key}[{at}]");
        if *net != net.trunc() {
            return Err(InvalidSubnets::HostBits { key: key(), net: *net });
        }
        if let Some((_, kind)) = UNUSABLE_NETWORKS.iter().find(|(unusable, _)| overlap(unusable, net)) {
            return Err(InvalidSubnets::Unusable { key: key(), net: *net, kind });
        }
    }
    Ok(())
}

/// Replaces or creates a file that every process may read, and creates its directory.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), DirError> {
    let (folder, name) = split(path);
    let folder = DurableDir::create(folder, 0o755)?;
    folder.remove_stale_temporaries()?;
    folder.replace(name, content, 0o644)
}

/// The directory and the name of a file.
fn split(path: &Path) -> (&Path, &OsStr) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    (folder.unwrap_or(Path::new(".")), path.file_name().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use proptest::prelude::*;
    use proptest::sample::Index;
    use serde_json::json;

    use super::*;
    use crate::damaged::damaged;

    fn file(subnets: &[&str], cluster: &[&str], mtu: u32) -> SubnetFile {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        SubnetFile { subnets: nets(subnets), cluster_cidrs: nets(cluster), mtu }
    }

    fn dual() -> SubnetFile {
        file(&["10.244.1.0/24", "fd00:244:0:1::/64"], &["10.244.0.0/16", "fd00:244::/56"], 1450)
    }

    fn parse(document: &Value) -> Result<SubnetFile, String> {
        SubnetFile::parse(document.to_string().as_bytes()).map_err(|error| error.to_string())
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn what_is_written_is_read() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("run/slipway/subnet.json");
        assert!(matches!(SubnetFile::read(&path), Err(SubnetFileError::Missing(missing)) if missing == path));
        dual().write(&path).unwrap();
        assert_eq!(SubnetFile::read(&path).unwrap(), dual());
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o644, 0o755));
        let other = file(&["10.9.0.0/30"], &[], 68);
        other.write(&path).unwrap();
        assert_eq!(SubnetFile::read(&path).unwrap(), other);
        let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }

    #[test]
    fn the_format_is_this() {
        let document: Value = serde_json::from_slice(&dual().to_json()).unwrap();
        let expected = json!({
            "schema": 1, "subnets": ["10.244.1.0/24", "fd00:244:0:1::/64"],
            "clusterCIDRs": ["10.244.0.0/16", "fd00:244::/56"], "mtu": 1450,
        });
        assert_eq!(document, expected);
        let least = json!({"schema": 1, "subnets": ["10.1.0.0/24"], "mtu": 1500, "later": {"key": [1]}});
        assert_eq!(parse(&least).unwrap(), file(&["10.1.0.0/24"], &[], 1500));
    }

    #[test]
    fn invalid_contents_are_refused_by_name() {
        let with = |key: &str, value: Value| {
            let mut document =
                json!({"schema": 1, "subnets": ["10.1.0.0/24"], "clusterCIDRs": [], "mtu": 1500});
            document[key] = value;
            document
        };
        let cases = [
            (with("schema", json!(2)), "unknown schema 2, this version reads 1"),
            (with("subnets", json!([])), "subnets: empty"),
            (with("subnets", json!(["10.1.0.0"])), "subnets[0]: invalid CIDR address: 10.1.0.0"),
            (with("subnets", json!(["10.1.0.0/24", ""])), "subnets[1]: invalid CIDR address: "),
            (with("subnets", json!(["010.1.0.0/24"])), "subnets[0]: invalid CIDR address: 010.1.0.0/24"),
            (
                with("subnets", json!(["10.1.0.5/24"])),
                "subnets[0]: 10.1.0.5/24 has host bits set, the network is 10.1.0.0/24",
            ),
            (
                with("subnets", json!(["10.1.0.0/31"])),
                "subnets[0]: 10.1.0.0/31 is too small for containers, /30 is the smallest",
            ),
            (
                with("subnets", json!(["fd00::/127"])),
                "subnets[0]: fd00::/127 is too small for containers, /126 is the smallest",
            ),
            (with("subnets", json!(["127.1.0.0/24"])), "subnets[0]: 127.1.0.0/24 has loopback addresses"),
            (with("subnets", json!(["0.0.0.0/0"])), "subnets[0]: 0.0.0.0/0 has unspecified addresses"),
            (with("subnets", json!(["128.0.0.0/1"])), "subnets[0]: 128.0.0.0/1 has multicast addresses"),
            (with("subnets", json!(["ff05::/64"])), "subnets[0]: ff05::/64 has multicast addresses"),
            (with("subnets", json!(["fe80::/64"])), "subnets[0]: fe80::/64 has link-local addresses"),
            (
                with("subnets", json!(["::ffff:10.1.0.0/120"])),
                "subnets[0]: ::ffff:10.1.0.0/120 has IPv4-mapped addresses",
            ),
            (
                with("subnets", json!(["10.1.0.0/24", "10.2.0.0/24", "10.1.0.0/24"])),
                "subnets: 10.1.0.0/24 and 10.1.0.0/24 overlap",
            ),
            (
                with("subnets", json!(["10.1.4.0/24", "fd00::/64", "10.1.0.0/16"])),
                "subnets: 10.1.0.0/16 and 10.1.4.0/24 overlap",
            ),
            (
                with("clusterCIDRs", json!(["10.0.0.0/8", "10.1.0.1/8"])),
                "clusterCIDRs[1]: 10.1.0.1/8 has host bits set, the network is 10.0.0.0/8",
            ),
            (with("clusterCIDRs", json!(["x"])), "clusterCIDRs[0]: invalid CIDR address: x"),
            (with("mtu", json!(67)), "mtu: 67 is not between 68 and 65535"),
            (with("mtu", json!(65536)), "mtu: 65536 is not between 68 and 65535"),
            (
                json!({"schema": 1, "subnets": ["fd00::/64"], "mtu": 1279}),
                "mtu: 1279 is not between 1280 and 65535",
            ),
            (json!({"schema": 1, "mtu": 1500}), "not a file of subnets: missing field `subnets`"),
            (
                json!({"subnets": ["10.1.0.0/24"], "mtu": 1500}),
                "not a file of subnets: missing field `schema`",
            ),
            (
                json!([1, ["10.1.0.0/24"], [], 1500]),
                "not a file of subnets: invalid type: sequence, expected a map at line 1 column 0",
            ),
        ];
        for (document, expected) in cases {
            assert_eq!(parse(&document).unwrap_err(), expected, "{document}");
        }
    }

    #[test]
    fn the_beginning_of_a_file_is_refused() {
        let whole = dual().to_json();
        for end in 0..whole.len() {
            SubnetFile::parse(&whole[..end]).unwrap_err();
            let mut zeros = whole[..end].to_vec();
            zeros.resize(whole.len(), 0);
            SubnetFile::parse(&zeros).unwrap_err();
        }
        assert!(matches!(SubnetFile::parse(b" \n"), Err(InvalidSubnets::Empty)));
    }

    #[test]
    fn errors_name_the_file() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("subnet.json");
        let error = || SubnetFile::read(&path).unwrap_err().to_string();
        assert_eq!(error(), format!("open {path:?}: no such file"));
        fs::write(&path, "").unwrap();
        assert_eq!(error(), format!("read {path:?}: the file is empty"));
        fs::write(&path, "{}").unwrap();
        assert_eq!(error(), format!("read {path:?}: not a file of subnets: missing field `schema`"));
        fs::write(&path, [b' '; LIMIT + 1]).unwrap();
        assert_eq!(error(), format!("read {path:?}: larger than {LIMIT} bytes"));
        let invalid = file(&[], &[], 1500);
        assert_eq!(invalid.write(&path).unwrap_err().to_string(), format!("write {path:?}: subnets: empty"));
        assert_eq!(fs::metadata(&path).unwrap().len(), LIMIT as u64 + 1, "the old content stays");
    }

    #[test]
    fn a_symbolic_link_is_not_followed_and_a_write_replaces_it() {
        let temp = tempfile::tempdir().unwrap();
        let (path, target) = (temp.path().join("subnet.json"), temp.path().join("target"));
        dual().write(&target).unwrap();
        symlink(&target, &path).unwrap();
        let error = SubnetFile::read(&path).unwrap_err();
        assert!(matches!(error, SubnetFileError::File(_)), "{error}");
        assert!(error.to_string().contains("ELOOP") && error.to_string().contains("subnet.json"), "{error}");
        let other = file(&["10.9.0.0/24"], &[], 1500);
        other.write(&path).unwrap();
        assert_eq!(SubnetFile::read(&path).unwrap(), other);
        assert_eq!(SubnetFile::read(&target).unwrap(), dual());
    }

    #[test]
    fn odd_paths_are_errors() {
        for path in ["", "/", "..", "/run/..", "/dev", "/dev/null", "/dev/null/x", "a\0b"] {
            SubnetFile::read(Path::new(path)).unwrap_err();
        }
        assert!(dual().write(Path::new("/dev/null/x/subnet.json")).is_err());
    }

    #[test]
    fn families_keep_the_order_of_the_file() {
        let file = file(&["fd00::/64", "10.1.0.0/24", "fd01::/64"], &[], 1500);
        let families = file.families();
        let shown: Vec<String> = families.iter().map(|(family, nets)| format!("{family} {nets:?}")).collect();
        assert_eq!(shown, ["IPv6 [fd00::/64, fd01::/64]", "IPv4 [10.1.0.0/24]"]);
    }

    fn net() -> impl Strategy<Value = IpNet> {
        let v4 = (any::<u32>(), 0..=32_u8)
            .prop_map(|(bits, length)| IpNet::new(Ipv4Addr::from(bits).into(), length).unwrap());
        let v6 = (any::<u128>(), 0..=128_u8)
            .prop_map(|(bits, length)| IpNet::new(Ipv6Addr::from(bits).into(), length).unwrap());
        prop_oneof![v4, v6].prop_flat_map(|net| prop_oneof![3 => Just(net.trunc()), 1 => Just(net)])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30_000))]

        /// Changed content that is accepted must be valid, and must stay the same when it is written and read again.
        #[test]
        fn changed_files_never_panic(
            bytes in damaged(dual().to_json(), &["/", "::/0", "0.0.0.0/0", "ff00::/8", "4294967296"]),
        ) {
            if let Ok(file) = SubnetFile::parse(&bytes) {
                file.check().unwrap();
                prop_assert_eq!(SubnetFile::parse(&file.to_json()).unwrap(), file);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// The check for overlaps must find the same as a comparison of all pairs.
        #[test]
        fn overlapping_subnets_are_found(nets in proptest::collection::vec(net(), 1..8), near in any::<Index>()) {
            let mut subnets = nets;
            let near = *near.get(&subnets);
            subnets.extend(near.supernet());
            subnets.iter_mut().for_each(|net| *net = net.trunc());
            let pairs = (1..subnets.len()).any(|at| subnets[..at].iter().any(|one| overlap(one, &subnets[at])));
            let file = SubnetFile { subnets, cluster_cidrs: vec![], mtu: 1500 };
            prop_assert_eq!(file.check_overlap().is_err(), pairs);
        }

        #[test]
        fn valid_files_are_read_as_written(
            subnets in proptest::collection::vec(net(), 0..4), cluster in proptest::collection::vec(net(), 0..3),
            mtu in prop_oneof![0..2000_u32, any::<u32>()],
        ) {
            let file = SubnetFile { subnets, cluster_cidrs: cluster, mtu };
            let read = SubnetFile::parse(&file.to_json());
            match file.check() {
                Ok(()) => prop_assert_eq!(read.unwrap(), file),
                Err(error) => prop_assert_eq!(read.unwrap_err().to_string(), error.to_string()),
            }
        }
    }
}
