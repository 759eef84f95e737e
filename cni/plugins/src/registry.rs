// SPDX-License-Identifier: GPL-2.0-or-later

//! The plugins of this binary. One table drives dispatch, VERSION, help, installation and the test
//! that every plugin has its page and its suite.

use std::io::Write;
use std::sync::LazyLock;

use crate::interface::bridge::Bridge;
use crate::interface::dummy::Dummy;
use crate::interface::host_device::HostDevice;
use crate::interface::ipvlan::Ipvlan;
use crate::interface::loopback::Loopback;
use crate::interface::macvlan::Macvlan;
use crate::interface::ptp::Ptp;
use crate::interface::tap::Tap;
use crate::interface::vlan::Vlan;
use crate::ipam::dhcp::Dhcp;
use crate::ipam::host_local::HostLocal;
use crate::ipam::r#static::Static;
use crate::meta::bandwidth::Bandwidth;
use crate::meta::firewall::Firewall;
use crate::meta::flannel::Flannel;
use crate::meta::noop::{Noop, Script};
use crate::meta::portmap::Portmap;
use crate::meta::sbr::Sbr;
use crate::meta::tuning::Tuning;
use crate::meta::vrf::Vrf;
use crate::plugin::{Delegates, Plugin, Plugins};
use crate::skel::{self, Callee};

/// All plugins, by name.
pub static PLUGINS: Plugins = &[
    &Bandwidth,
    &Bridge,
    &Dhcp,
    &Dummy,
    &Firewall,
    &Flannel,
    &HostDevice,
    &HostLocal,
    &Ipvlan,
    &Loopback,
    &Macvlan,
    &Noop,
    &Portmap,
    &Ptp,
    &Sbr,
    &Static,
    &Tap,
    &Tuning,
    &Vlan,
    &Vrf,
];

/// The plugins that a delegation calls in process: all except `noop`, whose script answers for a whole process.
static IN_PROCESS: LazyLock<Vec<&'static dyn Plugin>> =
    LazyLock::new(|| PLUGINS.iter().copied().filter(|plugin| plugin.name() != Noop.name()).collect());

/// Answers as `plugin` to the environment and standard input of this process.
pub fn serve(plugin: &dyn Plugin, stdout: &mut dyn Write, stderr: &mut dyn Write) -> u8 {
    let script: Option<&dyn skel::Script> = if plugin.name() == Noop.name() { Some(&Script) } else { None };
    let callee = Callee { plugin, script, plugins: &IN_PROCESS, delegates: Delegates::Files };
    skel::serve(&callee, stdout, stderr)
}

/// The plugin of that `type`, which finds all others in this binary, for a caller without a plugin directory.
#[must_use]
pub fn in_process(name: &str) -> Option<Callee<'static>> {
    let plugin = IN_PROCESS.iter().copied().find(|plugin| plugin.name() == name)?;
    Some(Callee { plugin, script: None, plugins: &IN_PROCESS, delegates: Delegates::InProcess })
}

/// The plugin of that `type`.
#[must_use]
pub fn find(name: &str) -> Option<&'static dyn Plugin> {
    PLUGINS.iter().copied().find(|plugin| plugin.name() == name)
}

/// The names of all plugins, in the registry's order.
#[must_use]
pub fn names() -> Vec<&'static str> {
    PLUGINS.iter().map(|plugin| plugin.name()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_plugin_has_its_page_and_its_suite() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let missing: Vec<String> = names().into_iter().flat_map(|name| companions(&top, name)).collect();
        assert_eq!(missing, Vec::<String>::new());
    }

    /// The missing files.
    fn companions(top: &Path, name: &str) -> Vec<String> {
        let (page, suite) =
            (format!("docs/plugins/{name}.md"), format!("tests/tests/{}", name.replace('-', "_")));
        let mut missing = Vec::new();
        if !top.join(&page).is_file() {
            missing.push(page);
        }
        if !top.join(&suite).join("main.rs").is_file() && !top.join(&suite).with_extension("rs").is_file() {
            missing.push(format!("{suite}.rs"));
        }
        missing
    }

    #[test]
    fn a_missing_page_is_noticed() {
        let nowhere = Path::new("/nonexistent");
        let missing = companions(nowhere, "host-local");
        assert_eq!(missing, ["docs/plugins/host-local.md", "tests/tests/host_local.rs"]);
    }

    /// The key `ipam.type` accepts no other plugin of this set, because a plugin that delegates would call itself
    /// endlessly.
    #[test]
    fn these_plugins_are_ipam() {
        let ipam: Vec<&str> = PLUGINS.iter().filter(|one| one.is_ipam()).map(|one| one.name()).collect();
        assert_eq!(ipam, ["dhcp", "host-local", "noop", "static"]);
    }

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(names().is_sorted_by(|a, b| a < b), "{:?}", names());
        assert!(find("slipway").is_none(), "the binary's own name is no plugin");
        for plugin in PLUGINS {
            assert!(!plugin.summary().is_empty() && !plugin.summary().contains('\n'), "{}", plugin.name());
            assert!(plugin.versions().is_sorted(), "{}", plugin.name());
        }
    }
}
