// SPDX-License-Identifier: GPL-3.0-or-later

//! The network configuration that the container runtime reads. The runtime is ready for pods as soon as the file
//! exists, so the file is written last.

use std::path::{Path, PathBuf};

use cni_kernel::AddressFamily;
use cni_kernel::dir::{DirError, DurableDir};
use ipnet::IpNet;
use serde_json::{Value, json};

/// The largest file that is compared, in bytes.
const LIMIT: usize = 64 << 10;

/// The version that every runtime knows: containerd from 1.6 on, and CRI-O.
const VERSION: &str = "1.0.0";
/// The versions of which a runtime takes the newest that it knows (specification 1.1.0, "Version negotiation"). With 1.1.0
/// containerd from 2.0.1 on calls STATUS, and CRI-O from 1.31 on STATUS and GC. An older runtime ignores this list.
const VERSIONS: [&str; 2] = [VERSION, "1.1.0"];

/// The values in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// The network's name.
    pub name: String,
    /// The bridge of the pods, which the agent keeps.
    pub bridge: String,
    /// Largest packet of a pod in bytes.
    pub mtu: u32,
    /// The file with the node's subnets, the source of host-local's ranges.
    pub subnet_file: PathBuf,
    /// The families of the node's subnets.
    pub families: Vec<AddressFamily>,
    /// Destinations to which pods keep their addresses.
    pub without_masquerade: Vec<IpNet>,
}

/// Why the configuration could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ConflistError {
    /// The file's path has no name.
    #[error("{0:?} is not the path of a file")]
    Path(PathBuf),
    /// The file or its directory cannot be read or written.
    #[error(transparent)]
    File(#[from] DirError),
    /// Another program wrote the file.
    #[error("{0:?} is another program's: delete it, or choose another path with --conflist")]
    Foreign(PathBuf),
}

impl Network {
    /// The configuration. The bridge plugin leaves the bridge's addresses alone: after a change of the node's subnets,
    /// running pods need the earlier ones.
    fn json(&self) -> Value {
        let routes: Vec<Value> = self
            .families
            .iter()
            .map(|family| match family {
                AddressFamily::V4 => json!({ "dst": "0.0.0.0/0" }),
                AddressFamily::V6 => json!({ "dst": "::/0" }),
            })
            .collect();
        json!({
            "cniVersion": VERSION,
            "cniVersions": VERSIONS,
            "name": self.name,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": self.bridge,
                    "mtu": self.mtu,
                    "hairpinMode": true,
                    "ipMasq": true,
                    "nonMasqueradeCIDRs": self.without_masquerade,
                    "ipam": { "type": "host-local", "subnetFile": self.subnet_file, "routes": routes },
                },
                { "type": "portmap", "capabilities": { "portMappings": true } },
                { "type": "bandwidth", "capabilities": { "bandwidth": true } },
            ],
        })
    }

    /// Writes the configuration unless the file has it. True if it was written. A file that no runtime can read is
    /// replaced.
    ///
    /// The temporary file is in the same directory: containerd 1.6 misses a rename from elsewhere.
    ///
    /// # Errors
    /// [`ConflistError`] with the path.
    pub fn write(&self, path: &Path) -> Result<bool, ConflistError> {
        let (dir, name) = split(path)?;
        let dir = DurableDir::create(dir, 0o755)?;
        let text = format!("{:#}\n", self.json());
        match dir.read(name, LIMIT)? {
            Some(present) if present == text.as_bytes() => return Ok(false),
            Some(present) if is_foreign(&present) => return Err(ConflistError::Foreign(path.to_owned())),
            _ => {}
        }
        dir.replace(name, text.as_bytes(), 0o644)?;
        Ok(true)
    }
}

/// True if another program wrote this configuration. A configuration by slipwayd always has the key `subnetFile`, which
/// only Slipway's host-local knows.
fn is_foreign(text: &[u8]) -> bool {
    serde_json::from_slice::<Value>(text).is_ok_and(|list| {
        let first = &list["plugins"][0];
        first["type"] != "bridge" || !first["ipam"]["subnetFile"].is_string()
    })
}

/// Removes the file. True if it was there, and not another program's.
///
/// # Errors
/// [`ConflistError`] with the path.
pub fn remove(path: &Path) -> Result<bool, ConflistError> {
    let (dir, name) = split(path)?;
    match DurableDir::open(dir) {
        Ok(dir) if dir.read(name, LIMIT)?.is_some_and(|present| is_foreign(&present)) => Ok(false),
        Ok(dir) => Ok(dir.remove(name)?),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn split(path: &Path) -> Result<(&Path, &std::ffi::OsStr), ConflistError> {
    match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) => Ok((dir, name)),
        _ => Err(ConflistError::Path(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn network() -> Network {
        Network {
            name: "pods".to_owned(),
            bridge: "slipway0".to_owned(),
            mtu: 1450,
            subnet_file: "/run/slipway/subnet.json".into(),
            families: AddressFamily::BOTH.into(),
            without_masquerade: vec!["10.244.0.0/16".parse().unwrap()],
        }
    }

    #[test]
    fn the_configuration_is_written_when_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net.d/10-slipway.conflist");
        assert!(network().write(&path).unwrap());
        assert!(!network().write(&path).unwrap(), "a second time");
        let other = Network { mtu: 1500, ..network() };
        assert!(other.write(&path).unwrap());
        assert!(fs::read_to_string(&path).unwrap().contains("\"mtu\": 1500"));
        let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(names.len(), 1, "no temporary file");
        assert!(remove(&path).unwrap());
        assert!(!remove(&path).unwrap());
    }

    #[test]
    fn only_a_configuration_of_ours_is_replaced_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-slipway.conflist");
        let (text, other) = (format!("{:#}", network().json()), Network { mtu: 1500, ..network() });
        for ours in ["", "{", &text, &text.replace("pods", "elsewhere").replace("/run/slipway/", "/run/a/")] {
            fs::write(&path, ours).unwrap();
            assert!(other.write(&path).unwrap(), "{ours}");
            fs::write(&path, ours).unwrap();
            assert!(remove(&path).unwrap(), "{ours}");
        }
        let bridge = text.replace("subnetFile", "subnet");
        for foreign in ["{}", "[]", r#"{"plugins": [{"type": "calico"}]}"#, &bridge] {
            fs::write(&path, foreign).unwrap();
            assert!(matches!(other.write(&path), Err(ConflistError::Foreign(_))), "{foreign}");
            assert!(!remove(&path).unwrap(), "{foreign}");
            assert_eq!(fs::read_to_string(&path).unwrap(), foreign);
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(matches!(other.write(&path), Err(ConflistError::File(_))));
    }

    /// Our own library takes the newest version; one that does not know `cniVersions` takes 1.0.0.
    #[test]
    fn each_runtime_takes_the_newest_version_that_it_knows() {
        let list = network().json();
        let read = cni_spec::NetConfList::parse(list.to_string().as_bytes()).unwrap();
        assert_eq!((read.version.to_string(), &list["cniVersion"]), ("1.1.0".to_owned(), &json!("1.0.0")));
    }

    #[test]
    fn a_path_without_a_name_is_refused() {
        assert!(matches!(network().write(Path::new("/")), Err(ConflistError::Path(_))));
    }
}
