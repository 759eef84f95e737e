//! The plugins of this binary. One table drives dispatch, VERSION, help, installation and the test
//! that every plugin has its page and its suite.

use crate::interface::bridge::Bridge;
use crate::interface::loopback::Loopback;
use crate::ipam::host_local::HostLocal;
use crate::meta::portmap::Portmap;
use crate::plugin::Plugin;

/// All plugins, by name.
pub static PLUGINS: &[&dyn Plugin] = &[&Bridge, &HostLocal, &Loopback, &Portmap];

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
    use super::*;

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
