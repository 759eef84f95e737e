// SPDX-License-Identifier: GPL-2.0-or-later

//! The state that a node has because of its pods, all of which must disappear with them.

use std::collections::BTreeSet;

use super::{Network, Worker};
use crate::snapshot::Snapshot;

/// The minimum length of a word of hexadecimal digits that counts as (the beginning of) a container ID or an owner's
/// hash.
const ID: usize = 24;

/// The runtime's own files, and host-local's index, which is derived from the reservations.
const LEFT_OUT: [&str; 4] = ["/run/containerd", "/run/runc", "networks/.slipway/", "last_reserved_ip"];

impl Worker {
    /// The addresses that are reserved for pods.
    pub fn reservations(&self) -> Vec<String> {
        self.node.reserved(self.network().name())
    }

    /// Everything that names a container: links, reservations, records of attachments, rules and map elements,
    /// namespaces and published ports.
    pub fn attachments(&self) -> BTreeSet<String> {
        let all = Snapshot::take(&self.node, &[]).without(&LEFT_OUT);
        let of_pods =
            |line: &&str| has_id(line) || line.contains("/run/netns/cni-") || line.contains(" veth");
        let mut found: BTreeSet<String> =
            all.matching("").into_iter().filter(of_pods).map(str::to_owned).collect();
        if let Network::Slipway(..) = self.network() {
            let ports = self.run(&["/opt/cni/bin/slipway", "ports", "--output", "json"]);
            let ports: serde_json::Value = serde_json::from_str(&ports).expect("slipway prints JSON");
            let rows = ports["ports"].as_array().into_iter().flatten();
            found.extend(rows.map(|row| {
                let owner = row["attachment"].as_u64().and_then(|place| usize::try_from(place).ok());
                let owner = owner.map_or(&serde_json::Value::Null, |place| &ports["attachments"][place]);
                format!("port {} {} of {}", row["protocol"], row["host_port"], owner["container"])
            }));
        }
        found
    }
}

/// True if the line contains a word of hexadecimal digits that is as long as an ID.
fn has_id(line: &str) -> bool {
    line.split(|c: char| !c.is_ascii_hexdigit()).any(|word| word.len() >= ID)
}

#[cfg(test)]
mod tests {
    use super::has_id;

    #[test]
    fn lines_of_containers_have_an_id() {
        assert!(has_id(
            "file /var/lib/cni/networks/slipway/10.244.0.2 \"0123456789abcdef0123456789abcdef\\neth0\""
        ));
        assert!(!has_id("link slipway0 bridge mac 0a:58:0a:f4:00:01 alias made by slipway"));
    }
}
