// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tables of packets.

use serde::Deserialize;

use super::{Data, Goal, digits, goals, grouped, head, row};
use xtask_base::error::{Error, Result};

/// The run of all contenders, by the number of published ports.
const TRAFFIC: &str = "traffic.json";
/// Connections to the only published port, with many rounds.
const ONE_PORT: &str = "traffic-one-port.json";
/// Other ways than to a published port.
const WAYS: &str = "traffic-ways.json";
/// Client and server on any processor.
const UNPINNED: &str = "traffic-unpinned.json";

/// The contenders of the README: their names in the files, and for readers.
const README: [(&str, &str); 4] = [
    ("nftables", "Slipway, nftables"),
    ("ebpf", "Slipway, eBPF"),
    ("reference-nftables", "reference 1.9.1, nftables"),
    ("reference-iptables", "reference 1.9.1, iptables"),
];

/// The ways: their names in the files, and for readers.
const NAMES_OF_WAYS: [(&str, &str); 4] = [
    ("port", "another host to a published port"),
    ("masquerade", "a pod to another host"),
    ("node", "the node to its published port"),
    ("node-direct", "the node to the pod's address"),
];

/// Packets, as `bench traffic` saves them.
#[derive(Debug, Deserialize)]
struct Traffic {
    rows: Vec<Row>,
    goals: Vec<Goal>,
}

#[derive(Debug, Deserialize)]
struct Row {
    contender: String,
    way: String,
    work: String,
    ports: u32,
    unit: String,
    machine: Spread,
    /// To `routed`.
    ratio: Spread,
    rounds: Vec<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Spread {
    median: f64,
}

impl Row {
    /// Time and ratio.
    fn cell(&self) -> String {
        let time = digits(self.machine.median);
        if self.contender == "routed" { time } else { format!("{time} ({:.2})", self.ratio.median) }
    }

    fn title(&self) -> String {
        format!("{} ({})", self.work, self.unit)
    }
}

impl Traffic {
    fn find(&self, contender: &str, way: &str, work: &str, ports: u32) -> Result<&Row> {
        let is_it =
            |row: &&Row| (&*row.contender, &*row.way, &*row.work, row.ports) == (contender, way, work, ports);
        let missing =
            || Error::Failed(format!("the figures lack {work} of {contender} with {ports} ports ({way})"));
        self.rows.iter().find(is_it).ok_or_else(missing)
    }

    /// The values of a column of the rows, each once, in the order of the rows.
    fn each<T: PartialEq>(&self, of: impl Fn(&Row) -> T) -> Vec<T> {
        let mut found = Vec::new();
        for value in self.rows.iter().map(of) {
            if !found.contains(&value) {
                found.push(value);
            }
        }
        found
    }

    fn contenders(&self) -> Vec<String> {
        self.each(|row| row.contender.clone())
    }

    fn ports(&self) -> Vec<u32> {
        let mut ports = self.each(|row| row.ports);
        ports.sort_unstable();
        ports
    }

    fn works(&self) -> Vec<(String, String)> {
        self.each(|row| (row.work.clone(), row.title()))
    }

    fn rounds(&self) -> usize {
        self.rows.iter().map(|row| row.rounds.len()).max().unwrap_or_default()
    }

    /// A table for each kind of traffic to a published port: contenders by numbers of ports.
    fn by_ports(&self) -> Result<String> {
        let mut text = String::new();
        let ports = self.ports();
        for (work, title) in self.works() {
            let columns: Vec<String> = ports.iter().map(|number| grouped(*number)).collect();
            text += &head(&title, &columns);
            for contender in self.contenders() {
                let cells =
                    ports.iter().map(|number| Ok(self.find(&contender, "port", &work, *number)?.cell()));
                text += &row(&contender, &cells.collect::<Result<Vec<_>>>()?);
            }
            text.push('\n');
        }
        Ok(text)
    }

    /// The share of the node in the time of an operation with the fewest ports, to that of a node that only routes: the
    /// time without what both ends cost by themselves.
    fn shares(&self) -> Result<String> {
        let works: Vec<String> =
            self.works().into_iter().map(|(work, _)| work).filter(|work| work != "STREAM").collect();
        let fewest = self.ports().first().copied().unwrap_or_default();
        let mut text = head("", &works);
        for contender in
            self.contenders().iter().filter(|name| !["direct", "routed"].contains(&name.as_str()))
        {
            let cells = works.iter().map(|work| {
                let time = |of: &str| Ok(self.find(of, "port", work, fewest)?.machine.median);
                let (direct, routed, own) = (time("direct")?, time("routed")?, time(contender)?);
                Ok(format!("{:.2}", (own - direct) / (routed - direct)))
            });
            text += &row(contender, &cells.collect::<Result<Vec<_>>>()?);
        }
        Ok(text)
    }

    /// Contenders by way and kind of traffic, with one number of ports.
    fn by_ways(&self) -> Result<String> {
        let ports = self.ports().first().copied().unwrap_or_default();
        let contenders = self.contenders();
        let mut text = head("", &contenders);
        for way in self.each(|row| row.way.clone()) {
            let name = NAMES_OF_WAYS.iter().find(|(one, _)| *one == way).map_or(&*way, |(_, name)| name);
            for (work, title) in self.works() {
                let cells = contenders.iter().map(|of| Ok(self.find(of, &way, &work, ports)?.cell()));
                text += &row(&format!("{name}: {title}"), &cells.collect::<Result<Vec<_>>>()?);
            }
        }
        Ok(text)
    }
}

/// The README's table of connections.
pub(super) fn readme(data: &Data<'_>) -> Result<String> {
    Ok(format!("{}\n{}", readme_table(&data.read(TRAFFIC)?)?, data.source(TRAFFIC)?))
}

fn readme_table(run: &Traffic) -> Result<String> {
    let names = README.map(|(_, shown)| shown.to_owned());
    let mut text = format!(
        "A connection to a published port with one byte each way, by the number of published ports: processor \
         time of the\nwhole machine in µs, in parentheses its ratio to a node that only routes.\n\n{}",
        head("", &names)
    );
    for ports in run.ports() {
        let cells = README.iter().map(|(name, _)| Ok(run.find(name, "port", "CRR", ports)?.cell()));
        text += &row(&grouped(ports), &cells.collect::<Result<Vec<_>>>()?);
    }
    Ok(text)
}

/// Packets to a published port by the number of ports, the share of the node, and the goals.
pub(super) fn packets(data: &Data<'_>) -> Result<String> {
    let run: Traffic = data.read(TRAFFIC)?;
    Ok(format!(
        "Processor time of the whole machine, in parentheses the median of its ratios to `routed`; both ends on one \
         processor,\n{} rounds:\n\n{}The share of the node, (contender - direct) / (routed - direct), with the fewest \
         ports:\n\n{}\n{}\n{}",
        run.rounds(),
        run.by_ports()?,
        run.shares()?,
        goals(&run.goals),
        data.source(TRAFFIC)?
    ))
}

/// One port with many rounds, other ways, and both ends on any processor.
pub(super) fn others(data: &Data<'_>) -> Result<String> {
    let (one, ways, unpinned): (Traffic, Traffic, Traffic) =
        (data.read(ONE_PORT)?, data.read(WAYS)?, data.read(UNPINNED)?);
    Ok(format!(
        "Connections to the only published port, {} rounds:\n\n{}{}\n\
         Other ways, with {} published ports. For the node's own connections, `routed` is a node without rules that connects \
         to the\npod's address; {} rounds:\n\n{}\n{}\n\
         Both ends on any processor, where the wake-up is most of an RR; {} rounds:\n\n{}{}",
        one.rounds(),
        one.by_ports()?,
        data.source(ONE_PORT)?,
        grouped(ways.ports().first().copied().unwrap_or_default()),
        ways.rounds(),
        ways.by_ways()?,
        data.source(WAYS)?,
        unpinned.rounds(),
        unpinned.by_ports()?,
        data.source(UNPINNED)?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(contenders: &[&str], ways: &[&str]) -> Traffic {
        let mut rows = Vec::new();
        for (way, work) in ways.iter().flat_map(|way| [(way, "RR"), (way, "CRR")]) {
            for (at, contender) in contenders.iter().enumerate() {
                for ports in [1, 60_000] {
                    let time = 100.0 + 50.0 * at as f64;
                    rows.push(serde_json::json!({
                        "contender": contender, "way": way, "work": work, "ports": ports, "unit": "µs",
                        "machine": {"median": time}, "ratio": {"median": time / 150.0}, "rounds": [{}, {}],
                    }));
                }
            }
        }
        let goals = [serde_json::json!({"what": "port CRR", "value": 1.166, "goal": 1.1, "met": false})];
        serde_json::from_value(serde_json::json!({ "rows": rows, "goals": goals })).unwrap()
    }

    #[test]
    fn contenders_are_rows_and_ports_columns() {
        let run = run(&["direct", "routed", "nftables"], &["port"]);
        let table = "| CRR (µs) | 1 | 60,000 |\n|---|---:|---:|\n| direct | 100 (0.67) | 100 (0.67) |\n\
                     | routed | 150 | 150 |\n| nftables | 200 (1.33) | 200 (1.33) |\n\n";
        let text = run.by_ports().unwrap();
        assert!(text.ends_with(table), "{text}");
        assert_eq!(text, table.replace("CRR", "RR") + table);
        let shares = "|  | RR | CRR |\n|---|---:|---:|\n| nftables | 2.00 | 2.00 |\n";
        assert_eq!(run.shares().unwrap(), shares);
        assert_eq!(run.rounds(), 2);
        let error = readme_table(&run).unwrap_err().to_string();
        assert_eq!(error, "the figures lack CRR of ebpf with 1 ports (port)");
    }

    #[test]
    fn each_way_has_a_row_for_each_kind_of_traffic() {
        let text = run(&["routed", "nftables"], &["masquerade", "node"]).by_ways().unwrap();
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(text.contains("| a pod to another host: RR (µs) | 100 | 150 (1.00) |\n"), "{text}");
    }
}
