// SPDX-License-Identifier: GPL-2.0-or-later

//! Rulesets without the record of UDP flows, which changes with the traffic.

/// Removes the set and the chains that record to which ports UDP flows began. They follow the traffic, and appear once
/// the node has flows, for instance multicast reports of the kernel.
pub fn without_seen_ports(ruleset: &str) -> String {
    let (mut kept, mut inside) = (Vec::new(), false);
    for line in ruleset.lines() {
        let begins = ["\tset udp-seen {", "\tchain udp-seen-"].iter().any(|start| line.starts_with(start));
        if begins {
            inside = true;
        }
        if !inside {
            // nft prints an empty line between objects, but not before the first or after the last.
            if line.is_empty() && kept.last().is_some_and(|last: &&str| last.ends_with('{')) {
                continue;
            }
            kept.pop_if(|last| last.is_empty() && (line.is_empty() || line == "}"));
            kept.push(line);
        } else if line == "\t}" {
            inside = false;
        }
    }
    kept.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_record_leaves_no_trace_in_a_listing() {
        let object = |name: &str| format!("\t{name} {{\n\t\tcontent\n\t}}\n");
        let table = |objects: &[&str]| {
            let objects: Vec<String> = objects.iter().map(|name| object(name)).collect();
            format!("table inet t {{\n{}}}\n", objects.join("\n"))
        };
        let both = table(&["map a", "chain b"]);
        for seen in [
            table(&["map a", "set udp-seen", "chain b", "chain udp-seen-in", "chain udp-seen-out"]),
            table(&["chain udp-seen-in", "map a", "chain udp-seen-out", "chain b"]),
            both.clone(),
        ] {
            assert_eq!(super::without_seen_ports(&seen), both, "{seen}");
        }
    }
}
