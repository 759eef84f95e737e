// SPDX-License-Identifier: GPL-2.0-or-later

//! The selection of what containers have, by network and container.

use cni_dataplane::Owner;

/// The owners that are wanted.
#[derive(Debug, Default, PartialEq, Eq, clap::Args)]
pub(super) struct Filter {
    /// Only those of this network
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// Only those of this container: its ID or a prefix of it
    #[arg(long, value_name = "ID")]
    container: Option<String>,
}

impl Filter {
    /// True if this owner's objects are wanted.
    pub(super) fn includes(&self, owner: Option<&Owner>) -> bool {
        let network = |wanted: &String| owner.is_some_and(|owner| matches(&owner.network, wanted));
        let container = |wanted: &String| {
            owner.is_some_and(|o| {
                o.container_id.starts_with(wanted.as_str()) || matches(&o.container_id, wanted)
            })
        };
        self.network.as_ref().is_none_or(network) && self.container.as_ref().is_none_or(container)
    }
}

/// True if a name from an element's comment can be the wanted one. In comments, long names are cut and end in `~`.
fn matches(stored: &str, wanted: &str) -> bool {
    match stored.strip_suffix('~') {
        Some(begin) => wanted.starts_with(begin),
        None => stored == wanted,
    }
}

#[cfg(test)]
mod tests {
    use cni_spec::Attachment;

    use super::*;

    #[test]
    fn cut_names_match() {
        let owner = Owner::of(&Attachment::new("k8s-pod-network", "0123456789", "eth0").unwrap());
        let filter = Filter { network: Some("k8s-pod-network".to_owned()), ..Filter::default() };
        assert!(filter.includes(Some(&owner)) && !filter.includes(None));
        let by_id = Filter { container: Some("0123".to_owned()), ..Filter::default() };
        assert!(by_id.includes(Some(&owner)));
        assert!(matches("abc~", "abcdef") && !matches("abc~", "abX"));
    }
}
