// SPDX-License-Identifier: GPL-2.0-or-later

//! The configured device: by name, by MAC address, by its path below `/sys/devices`, by its address on the
//! PCI bus or its name on the auxiliary bus.

use std::fs;
use std::path::{Component, Path, PathBuf};

use cni_kernel::dir::DurableDir;
use cni_kernel::mac::Mac;
use cni_kernel::route::{Link, RouteSocket};
use cni_spec::{CniError, NetConf, check_link_name};
use serde::Deserialize;

use crate::interface::shared::failed;

const PCI: &str = "/sys/bus/pci/devices";
const AUXILIARY: &str = "/sys/bus/auxiliary/devices";
const DEVICES: &str = "/sys/devices/";

/// Drivers that pass a device to a program in user space. The kernel has no link for such a device.
const PROGRAM_DRIVERS: &[&str] = &["vfio-pci", "uio_pci_generic", "igb_uio"];

/// The device that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Device {
    /// A link of this name, which may be an alternative one.
    Name(String),
    /// The link with this address.
    Mac(Mac),
    /// The link of the device at this path.
    Path(PathBuf),
    /// The link of the device with this address on the PCI bus.
    Pci(String),
    /// The link of the device of this name on the auxiliary bus.
    Auxiliary(String),
}

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    device: String,
    hwaddr: String,
    kernelpath: String,
    #[serde(rename = "pciBusID")]
    pci_bus_id: String,
}

impl Device {
    /// Reads the keys. The first of these counts: `device`, `hwaddr`, `kernelpath`, `runtimeConfig.deviceID`,
    /// `pciBusID`.
    ///
    /// # Errors
    /// Code 7 if there is none, or its value cannot be used.
    pub(super) fn of(config: &NetConf) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        let by_bus = match config.runtime_config()?.device_id {
            id if !id.is_empty() => Some(Self::by_id(&id)?),
            _ if !keys.pci_bus_id.is_empty() => Some(Self::Pci(keys.pci_bus_id)),
            _ => None,
        };
        if !keys.device.is_empty() {
            check_link_name(&keys.device)
                .map_err(|error| CniError::config(format!("key \"device\": {error}")))?;
            return Ok(Self::Name(keys.device));
        }
        if !keys.hwaddr.is_empty() {
            let refused = |error| {
                format!("failed to find host device: failed to parse MAC address {:?}: {error}", keys.hwaddr)
            };
            return keys.hwaddr.parse().map(Self::Mac).map_err(|error| CniError::config(refused(error)));
        }
        if !keys.kernelpath.is_empty() {
            return kernel_path(&keys.kernelpath).map(Self::Path);
        }
        let none = "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"";
        let device = by_bus.ok_or_else(|| CniError::config(none))?;
        match &device {
            Self::Pci(id) if !is_one_name(id) => {
                Err(CniError::config(format!("key \"pciBusID\": {id:?} is not an address on the PCI bus")))
            }
            _ => Ok(device),
        }
    }

    fn by_id(id: &str) -> Result<Self, CniError> {
        let is_on = |bus: &str| is_one_name(id) && fs::symlink_metadata(Path::new(bus).join(id)).is_ok();
        if is_on(PCI) {
            return Ok(Self::Pci(id.to_owned()));
        }
        if is_on(AUXILIARY) {
            return Ok(Self::Auxiliary(id.to_owned()));
        }
        Err(CniError::config(format!("runtime config DeviceID {id} not found or unsupported")))
    }

    /// True for a PCI device that a program in user space drives, such as one of DPDK.
    pub(super) fn is_in_user_space(&self) -> Result<bool, CniError> {
        let Self::Pci(id) = self else { return Ok(false) };
        let device = Path::new(PCI).join(id);
        fs::symlink_metadata(&device).map_err(|error| {
            CniError::internal(format!("error with host device: lstat {}: {error}", device.display()))
        })?;
        match fs::read_link(device.join("driver")) {
            Ok(driver) => {
                Ok(driver.file_name().is_some_and(|name| PROGRAM_DRIVERS.iter().any(|one| name == *one)))
            }
            // No driver.
            Err(_) => Ok(false),
        }
    }

    /// True if the device exists, so that its link can appear on the node again.
    pub(super) fn may_return(&self) -> bool {
        let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
        match self {
            Self::Name(_) | Self::Mac(_) => true,
            Self::Path(path) => is_there(path),
            Self::Pci(id) => is_there(&Path::new(PCI).join(id)),
            Self::Auxiliary(id) => is_there(&Path::new(AUXILIARY).join(id)),
        }
    }

    /// Finds its link on the node.
    pub(super) fn find(&self, route: &RouteSocket) -> Result<Link, CniError> {
        let why = match self {
            Self::Name(_) => "Link not found".to_owned(),
            Self::Mac(_) => "failed to find physical interface".to_owned(),
            Self::Path(path) => format!("failed to find network device in path {}", path.display()),
            Self::Pci(id) => format!("no net directory under pci device {id}"),
            Self::Auxiliary(id) => format!("no net directory under auxiliary device {id}"),
        };
        let missing = || CniError::internal(format!("failed to find host device: {why}"));
        self.find_if_there(route)?.ok_or_else(missing)
    }

    /// Finds its link; none if the node has no such link.
    pub(super) fn find_if_there(&self, route: &RouteSocket) -> Result<Option<Link>, CniError> {
        let first_of = |folder: PathBuf| -> Result<Option<Link>, CniError> {
            for name in names_in(&folder)? {
                if let Some(link) = route.find_link(&name).map_err(failed)? {
                    return Ok(Some(link));
                }
            }
            Ok(None)
        };
        match self {
            Self::Name(name) => route.find_link(name).map_err(failed),
            Self::Mac(mac) => {
                let mut links = route.links().map_err(failed)?.into_iter();
                Ok(links.find(|link| link.mac == Some(*mac)))
            }
            Self::Path(path) => first_of(path.join("net")),
            Self::Pci(id) => {
                let device = Path::new(PCI).join(id);
                if let Some(link) = first_of(device.join("net"))? {
                    return Ok(Some(link));
                }
                // A virtio device has its link below a child device.
                for name in names_in(&device)?.into_iter().filter(|name| name.starts_with("virtio")) {
                    if let Some(link) = first_of(device.join(name).join("net"))? {
                        return Ok(Some(link));
                    }
                }
                Ok(None)
            }
            Self::Auxiliary(id) => first_of(Path::new(AUXILIARY).join(id).join("net")),
        }
    }
}

/// Checks `kernelpath`. Unlike the reference, refuses `..`, which could lead anywhere.
fn kernel_path(text: &str) -> Result<PathBuf, CniError> {
    let path = Path::new(text);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if text.starts_with(DEVICES) && plain && !text.contains('\0') {
        return Ok(path.to_owned());
    }
    Err(CniError::config(format!(
        "failed to find host device: kernel device path {text:?} must be absolute and begin with {DEVICES}"
    )))
}

/// True if a text can be the name of a file.
fn is_one_name(text: &str) -> bool {
    !matches!(text, "" | "." | "..") && !text.contains(['/', '\0'])
}

/// The names in a folder, sorted; none if it is missing or may not be read.
fn names_in(folder: &Path) -> Result<Vec<String>, CniError> {
    let listed = match DurableDir::open(folder).and_then(|dir| dir.list()) {
        Err(error) if error.is_transient() => return Err(failed(error)),
        listed => listed.unwrap_or_default(),
    };
    let mut names: Vec<String> = listed.into_iter().filter_map(|name| name.into_string().ok()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
pub(super) fn decodes() -> crate::keys::probe::Fields {
    crate::keys::probe::fields::<Keys>()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_configuration::configuration;

    fn device(keys: &Value) -> Result<Device, CniError> {
        Device::of(&configuration("host-device", keys))
    }

    #[test]
    fn the_first_key_counts() {
        let mut keys = json!({
            "device": "ens5", "hwaddr": "02:00:00:00:00:01", "kernelpath": "/sys/devices/a/b",
            "pciBusID": "0000:00:1f.6",
        });
        let expected = [
            ("device", Device::Name("ens5".to_owned())),
            ("hwaddr", Device::Mac("02:00:00:00:00:01".parse().unwrap())),
            ("kernelpath", Device::Path("/sys/devices/a/b".into())),
            ("pciBusID", Device::Pci("0000:00:1f.6".to_owned())),
        ];
        for (key, expected) in expected {
            assert_eq!(device(&keys).unwrap(), expected);
            keys.as_object_mut().unwrap().remove(key);
        }
        let error = device(&keys).unwrap_err();
        assert_eq!(error.msg, "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"");
        assert_eq!(error.code.number(), 7);
    }

    #[test]
    fn paths_elsewhere_are_refused() {
        for path in
            ["/etc", "/sys/devices", "/sys/devices/../../etc", "sys/devices/a", "/sys/devices/a/./../b"]
        {
            let error = device(&json!({"kernelpath": path})).unwrap_err();
            let text = "must be absolute and begin with /sys/devices/";
            assert!(error.msg.ends_with(text), "{error}");
        }
        for id in ["../x", "a/b", "..", "."] {
            assert!(device(&json!({"pciBusID": id})).is_err(), "{id}");
            let error = device(&json!({"runtimeConfig": {"deviceID": id}})).unwrap_err();
            assert_eq!(error.msg, format!("runtime config DeviceID {id} not found or unsupported"));
        }
    }

    #[test]
    fn a_device_without_a_folder_of_links_has_none() {
        let temp = tempfile::tempdir().unwrap();
        assert!(names_in(&temp.path().join("net")).unwrap().is_empty());
        for name in ["ens6", "ens5"] {
            fs::write(temp.path().join(name), "").unwrap();
        }
        assert_eq!(names_in(temp.path()).unwrap(), ["ens5", "ens6"]);
        assert!(names_in(&temp.path().join("ens5")).unwrap().is_empty(), "a file");
    }

    #[test]
    fn an_invalid_mac_address_is_named() {
        let error = device(&json!({"hwaddr": "zz"})).unwrap_err();
        assert_eq!(
            error.msg,
            "failed to find host device: failed to parse MAC address \"zz\": address zz: invalid MAC address"
        );
    }
}
