// SPDX-License-Identifier: MIT OR Apache-2.0

//! The names of a pod's interfaces.

use std::collections::BTreeSet;

use cni_spec::text;

/// How many names are tried: `eth0` to `eth9999`.
const CANDIDATES: u32 = 10_000;

/// A network of a pod, with the interface that the pod requests for it.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The network's name, for messages.
    pub network: &'a str,
    /// The interface's name, or none for the first free one.
    pub ifname: Option<&'a str>,
}

/// The interfaces of a pod cannot be named.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Two networks request the same interface.
    #[error(
        "network {} requested interface name {} already assigned",
        text::quote(network),
        text::quote(ifname)
    )]
    Assigned {
        /// The second network.
        network: String,
        /// The interface.
        ifname: String,
    },
    /// All names are taken.
    #[error("failed to find free interface name for network {}", text::quote(.0))]
    NoneFree(String),
}

/// The interface for each network: the requested name, or else the first of `eth0` to `eth9999` that no other network
/// of the pod has.
///
/// # Errors
/// [`NameError::Assigned`] if two networks request the same name; [`NameError::NoneFree`].
pub fn interface_names(networks: &[Wanted<'_>]) -> Result<Vec<String>, NameError> {
    let mut assigned: BTreeSet<String> = BTreeSet::new();
    for Wanted { network, ifname } in networks {
        if let Some(ifname) = ifname
            && !assigned.insert((*ifname).to_owned())
        {
            return Err(NameError::Assigned { network: (*network).to_owned(), ifname: (*ifname).to_owned() });
        }
    }
    let mut next = 0;
    let mut name = |wanted: &Wanted<'_>| {
        if let Some(ifname) = wanted.ifname {
            return Ok(ifname.to_owned());
        }
        while next < CANDIDATES {
            let candidate = format!("eth{next}");
            next += 1;
            if !assigned.contains(&candidate) {
                return Ok(candidate);
            }
        }
        Err(NameError::NoneFree(wanted.network.to_owned()))
    };
    networks.iter().map(&mut name).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(networks: &[(&'static str, Option<&'static str>)]) -> Result<Vec<String>, String> {
        let wanted: Vec<_> =
            networks.iter().map(|(network, ifname)| Wanted { network, ifname: *ifname }).collect();
        interface_names(&wanted).map_err(|e| e.to_string())
    }

    #[test]
    fn requested_names_are_kept_and_the_others_are_the_first_free_ones() {
        let all = names(&[("a", None), ("b", Some("eth0")), ("c", None), ("d", Some("net1"))]).unwrap();
        assert_eq!(all, ["eth1", "eth0", "eth2", "net1"]);
        assert_eq!(names(&[]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn messages_of_the_reference() {
        assert_eq!(
            names(&[("a", Some("eth0")), ("x", Some("eth0"))]).unwrap_err(),
            r#"network "x" requested interface name "eth0" already assigned"#
        );
        let mut all = vec![("a", None); 10_000];
        assert_eq!(names(&all).unwrap()[9_999], "eth9999");
        all.push(("x", None));
        assert_eq!(names(&all).unwrap_err(), r#"failed to find free interface name for network "x""#);
    }

    proptest! {
        #[test]
        fn names_are_unique_and_requests_are_respected(
            requested in prop::collection::vec(prop::option::of("eth[0-9]{1,2}|net[0-9]"), 0..40),
        ) {
            let wanted: Vec<_> =
                requested.iter().map(|ifname| Wanted { network: "n", ifname: ifname.as_deref() }).collect();
            let distinct = requested.iter().flatten().collect::<BTreeSet<_>>().len();
            let named = interface_names(&wanted);
            prop_assert_eq!(named.is_ok(), distinct == requested.iter().flatten().count());
            if let Ok(named) = named {
                prop_assert_eq!(named.iter().collect::<BTreeSet<_>>().len(), requested.len());
                for (name, request) in named.iter().zip(&requested) {
                    prop_assert!(request.as_ref().is_none_or(|request| request == name));
                }
            }
        }
    }
}
