// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tables of packets.

use super::{Data, goals};
use crate::table::{digits, grouped, head, row};
use crate::traffic::contender::{Kind, Way};
use crate::traffic::figures::{Report, Row};
use crate::traffic::load::Work;
use xtask_base::error::{Error, Result};

/// The run of all contenders, by the number of published ports.
const TRAFFIC: &str = "traffic.json";
/// Connections to the only published port, with many rounds.
const ONE_PORT: &str = "traffic-one-port.json";
/// Other ways than to a published port.
const WAYS: &str = "traffic-ways.json";
/// Client and server on any processor.
const UNPINNED: &str = "traffic-unpinned.json";
const DATAGRAMS: &str = "traffic-datagrams.json";

/// The contenders of the README, and their names for readers.
const README: [(Kind, &str); 4] = [
    (Kind::Nftables, "Slipway, nftables"),
    (Kind::Ebpf, "Slipway, eBPF"),
    (Kind::ReferenceNftables, "reference 1.9.1, nftables"),
    (Kind::ReferenceIptables, "reference 1.9.1, iptables"),
];

/// A way for readers.
fn shown(way: Way) -> &'static str {
    match way {
        Way::Port => "another host to a published port",
        Way::Masquerade => "a pod to another host",
        Way::Node => "the node to its published port",
        Way::NodeDirect => "the node to the pod's address",
    }
}

impl Row {
    /// Time and ratio.
    fn cell(&self) -> String {
        let time = digits(self.machine.median);
        match self.ratio {
            Some(ratio) if self.contender != Kind::Routed => format!("{time} ({:.2})", ratio.median),
            _ => time,
        }
    }

    fn title(&self) -> String {
        format!("{} ({})", self.work.name(), self.unit)
    }
}

impl Report {
    fn row(&self, contender: Kind, way: Way, work: Work, ports: u32) -> Result<&Row> {
        self.find(way, work, contender, ports).ok_or_else(|| {
            let (contender, way, work) = (contender.name(), way.name(), work.name());
            Error::Failed(format!("the figures lack {work} of {contender} with {ports} ports ({way})"))
        })
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

    fn works(&self) -> Vec<(Work, String)> {
        self.each(|row| (row.work, row.title()))
    }

    fn rounds(&self) -> usize {
        self.rows.iter().map(|row| row.rounds.len()).max().unwrap_or_default()
    }

    /// A table for each kind of traffic to a published port: contenders by numbers of ports. Only connections depend on
    /// the number, so the other tables have the least and the largest.
    fn by_ports(&self) -> Result<String> {
        let mut text = String::new();
        let numbers = self.numbers();
        for (work, title) in self.works() {
            let ends = [numbers.first(), numbers.last()];
            let is_shown = |one: &&u32| work == Work::Connections || ends.contains(&Some(*one));
            let ports: Vec<u32> = numbers.iter().filter(is_shown).copied().collect();
            let columns: Vec<String> = ports.iter().map(|number| grouped(*number)).collect();
            text += &head(&title, &columns);
            for contender in self.kinds() {
                let cells =
                    ports.iter().map(|number| Ok(self.row(contender, Way::Port, work, *number)?.cell()));
                text += &row(contender.name(), &cells.collect::<Result<Vec<_>>>()?);
            }
            text.push('\n');
        }
        Ok(text)
    }

    /// The share of the node in the time of an operation with the fewest ports, to that of a node that only routes: the
    /// time without what both ends cost by themselves.
    fn shares(&self) -> Result<String> {
        let works: Vec<Work> =
            self.works().into_iter().map(|(work, _)| work).filter(|work| *work != Work::Stream).collect();
        let fewest = self.numbers().first().copied().unwrap_or_default();
        let mut text = head("", &works.iter().map(|work| work.name().to_owned()).collect::<Vec<_>>());
        let measured = |kind: &Kind| ![Kind::Direct, Kind::Routed].contains(kind);
        for contender in self.kinds().into_iter().filter(measured) {
            let cells = works.iter().map(|work| {
                let time = |of| Ok(self.row(of, Way::Port, *work, fewest)?.machine.median);
                let (direct, routed, own) = (time(Kind::Direct)?, time(Kind::Routed)?, time(contender)?);
                Ok(format!("{:.2}", (own - direct) / (routed - direct)))
            });
            text += &row(contender.name(), &cells.collect::<Result<Vec<_>>>()?);
        }
        Ok(text)
    }

    /// Contenders by way and kind of traffic, with one number of ports.
    fn by_ways(&self) -> Result<String> {
        let ports = self.numbers().first().copied().unwrap_or_default();
        let contenders = self.kinds();
        let mut text = head("", &contenders.iter().map(|kind| kind.name().to_owned()).collect::<Vec<_>>());
        for way in self.each(|row| row.way) {
            for (work, title) in self.works() {
                let cells = contenders.iter().map(|of| Ok(self.row(*of, way, work, ports)?.cell()));
                text += &row(&format!("{}: {title}", shown(way)), &cells.collect::<Result<Vec<_>>>()?);
            }
        }
        Ok(text)
    }
}

/// The README's table of connections.
pub(super) fn readme(data: &Data<'_>) -> Result<String> {
    Ok(format!("{}\n{}", readme_table(&data.read(TRAFFIC)?)?, data.source(TRAFFIC)?))
}

fn readme_table(run: &Report) -> Result<String> {
    let names = README.map(|(_, shown)| shown.to_owned());
    let mut text = format!(
        "A connection to a published port with one byte each way, by the number of published ports: processor \
         time of the\nwhole machine in µs, in parentheses its ratio to a node that only routes.\n\n{}",
        head("", &names)
    );
    for ports in run.numbers() {
        let cells =
            README.iter().map(|(kind, _)| Ok(run.row(*kind, Way::Port, Work::Connections, ports)?.cell()));
        text += &row(&grouped(ports), &cells.collect::<Result<Vec<_>>>()?);
    }
    Ok(text)
}

/// Packets to a published port by the number of ports, the share of the node, and the goals.
pub(super) fn packets(data: &Data<'_>) -> Result<String> {
    let run: Report = data.read(TRAFFIC)?;
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

/// Datagrams, of one flow and of many.
pub(super) fn datagrams(data: &Data<'_>) -> Result<String> {
    let run: Report = data.read(DATAGRAMS)?;
    Ok(format!(
        "Processor time of the whole machine per UDP datagram to a published port, in parentheses the median of its ratios to \
         `routed`;\nof 64 and 1,400 bytes, in one flow and in 1,000 that take turns; both ends on one processor, {} rounds:\n\n{}{}\n{}",
        run.rounds(),
        run.by_ports()?,
        goals(&run.goals),
        data.source(DATAGRAMS)?
    ))
}

/// One port with many rounds, other ways, and both ends on any processor.
pub(super) fn others(data: &Data<'_>) -> Result<String> {
    let (one, ways, unpinned): (Report, Report, Report) =
        (data.read(ONE_PORT)?, data.read(WAYS)?, data.read(UNPINNED)?);
    Ok(format!(
        "Connections to the only published port, {} rounds:\n\n{}{}\n\
         Other paths, with {} published ports. For the node's own connections, `routed` is a node without rules that connects \
         to the\npod's address; {} rounds:\n\n{}\n{}\n\
         Both ends on any processor, where the wake-up is most of an RR; {} rounds:\n\n{}{}",
        one.rounds(),
        one.by_ports()?,
        data.source(ONE_PORT)?,
        grouped(ways.numbers().first().copied().unwrap_or_default()),
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
    use crate::traffic::cost::Spent;
    use crate::traffic::figures::Series;

    fn run(contenders: &[Kind], ways: &[Way]) -> Report {
        let mut series = Vec::new();
        for (way, work) in ways.iter().flat_map(|way| [(way, Work::Requests), (way, Work::Connections)]) {
            for (at, contender) in contenders.iter().enumerate() {
                for ports in [1, 60_000] {
                    let busy = 100.0 + 50.0 * at as f64;
                    let spent = Spent { operations: 1e6, busy, ..Spent::default() };
                    let (contender, way) = (*contender, *way);
                    series.push(Series { contender, way, work, ports, rounds: vec![spent; 2] });
                }
            }
        }
        Report::new(Vec::new(), &series, Vec::new())
    }

    #[test]
    fn contenders_are_rows_and_ports_columns() {
        let run = run(&[Kind::Direct, Kind::Routed, Kind::Nftables], &[Way::Port]);
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
        let text = run(&[Kind::Routed, Kind::Nftables], &[Way::Masquerade, Way::Node]).by_ways().unwrap();
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(text.contains("| a pod to another host: RR (µs) | 100 | 150 (1.50) |\n"), "{text}");
    }
}
