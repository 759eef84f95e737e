// SPDX-License-Identifier: GPL-2.0-or-later

//! Packet counters of the kernel.

use crate::space::Space;

impl Space {
    /// The value of a counter of this network namespace, by its group and name in /proc/net/snmp, netstat or snmp6:
    /// `("Tcp", "RetransSegs")` or `("Udp6", "RcvbufErrors")`, for instance.
    pub fn counter(&self, group: &str, name: &str) -> u64 {
        let file = match group {
            _ if group.ends_with('6') => "snmp6",
            _ if group.ends_with("Ext") => "netstat",
            _ => "snmp",
        };
        // /proc/net shows the network namespace of the process's first thread, so this thread reads its own files.
        let text = self.run(|| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")));
        let text = text.unwrap_or_else(|error| panic!("read /proc/net/{file}: {error}"));
        find(&text, group, name).unwrap_or_else(|| panic!("no counter {group} {name}:\n{text}"))
    }
}

/// Finds a counter in a table (a line of names above a line of values) or in a list (a counter on each line).
fn find(text: &str, group: &str, name: &str) -> Option<u64> {
    let prefix = format!("{group}: ");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
    if let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let mut pairs = names.split_whitespace().zip(values.split_whitespace());
        return pairs.find(|(key, _)| *key == name)?.1.parse().ok();
    }
    let key = format!("{group}{name}");
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(&key))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The number of packets that processors dropped in all namespaces because their queues were full: the second column of
/// softnet_stat.
pub fn dropped_by_processors() -> u64 {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let columns = text.lines().filter_map(|line| line.split_whitespace().nth(1));
    columns.filter_map(|column| u64::from_str_radix(column, 16).ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn counters_are_found_in_both_forms() {
        let table = "Ip: Forwarding\nIp: 1\nTcp: RtoMin RetransSegs\nTcp: 200 7\n";
        assert_eq!(find(table, "Tcp", "RetransSegs"), Some(7));
        assert_eq!(find(table, "Tcp", "Forwarding"), None);
        let list = "Udp6InErrors   \t1\nUdp6RcvbufErrors   \t3\n";
        assert_eq!(find(list, "Udp6", "RcvbufErrors"), Some(3));
        assert_eq!(find(list, "Udp", "RcvbufErrors"), None);
    }
}
