// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures of rounds: medians, ratios to the routed way, goals, tables.

use serde::{Deserialize, Serialize};

use super::contender::{Count, Kind, Way};
use super::cost::Spent;
use super::load::Work;
use crate::goal::{self, Goal};
use crate::output;
use crate::statistics::median;
use crate::table::{Column, Table, column};

/// All rounds of one contender with one work and one number of ports.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) contender: Kind,
    pub(crate) way: Way,
    pub(crate) work: Work,
    pub(crate) ports: u32,
    pub(crate) rounds: Vec<Spent>,
}

/// The pods and rules behind a number of ports.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pods {
    pub(super) contender: Kind,
    /// The versions that the plugins print.
    pub(super) version: String,
    pub(super) ports: u32,
    #[serde(flatten)]
    pub(super) count: Count,
}

/// A figure over all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// A contender's figures of one work and one number of ports, per operation: a KiB of STREAM in nanoseconds,
/// a transaction of RR or CRR in microseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) contender: Kind,
    pub(crate) way: Way,
    pub(crate) work: Work,
    pub(crate) ports: u32,
    pub(crate) unit: String,
    /// Processor time of the whole machine.
    pub(crate) machine: Figure,
    /// Processor time of the process, which is both ends of the connection, and of the kernel on its behalf.
    own: Figure,
    /// Wall clock.
    wall: Figure,
    /// The machine's time to that of the routed way, round by round.
    pub(crate) ratio: Option<Figure>,
    /// The process's own time likewise.
    own_ratio: Option<Figure>,
    pub(crate) rounds: Vec<Spent>,
}

const COLUMNS: &[Column<Row>] = &[
    column("machine", |row| row.machine.median),
    column("least", |row| row.machine.least),
    column("most", |row| row.machine.most),
    column("process", |row| row.own.median),
    column("wall", |row| row.wall.median),
    column("ratio", |row| row.ratio.map_or(f64::NAN, |ratio| ratio.median)),
    column("least", |row| row.ratio.map_or(f64::NAN, |ratio| ratio.least)),
    column("most", |row| row.ratio.map_or(f64::NAN, |ratio| ratio.most)),
    column("process's", |row| row.own_ratio.map_or(f64::NAN, |ratio| ratio.median)),
];

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The machine and the conditions, one line each.
    conditions: Vec<String>,
    pods: Vec<Pods>,
    pub(crate) rows: Vec<Row>,
    pub(crate) goals: Vec<Goal>,
}

/// A line of a plot: its name, and for each number of ports the median and the largest figure.
pub(crate) type Line = (String, Vec<(u32, f64, f64)>);

impl Figure {
    fn of(values: &[f64]) -> Self {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { median: median(values.to_vec()), least, most }
    }
}

impl Work {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stream => "STREAM",
            Self::Requests => "RR",
            Self::Connections => "CRR",
            Self::Datagrams => "UDP64",
            Self::LargeDatagrams => "UDP1400",
            Self::DatagramsOfMany => "UDP64 many",
            Self::LargeDatagramsOfMany => "UDP1400 many",
        }
    }

    /// The unit of an operation's time, and how many of it make a second.
    fn unit(self) -> (&'static str, f64) {
        match self {
            Self::Stream => ("ns/KiB", 1e9),
            Self::Requests | Self::Connections => ("µs", 1e6),
            Self::Datagrams | Self::LargeDatagrams | Self::DatagramsOfMany | Self::LargeDatagramsOfMany => {
                ("ns", 1e9)
            }
        }
    }
}

impl Row {
    fn new(series: &Series, routed: Option<&Series>) -> Self {
        let (unit, scale) = series.work.unit();
        let per = |of: fn(&Spent) -> f64| {
            series.rounds.iter().map(|spent| of(spent) * scale / spent.operations).collect::<Vec<_>>()
        };
        let ratio = |of: fn(&Spent) -> f64| Some(Figure::of(&ratios(&series.rounds, &routed?.rounds, of)));
        Self {
            contender: series.contender,
            way: series.way,
            work: series.work,
            ports: series.ports,
            unit: unit.to_owned(),
            machine: Figure::of(&per(|spent| spent.busy)),
            own: Figure::of(&per(|spent| spent.own)),
            wall: Figure::of(&per(|spent| spent.wall)),
            ratio: ratio(|spent| spent.busy),
            own_ratio: ratio(|spent| spent.own),
            rounds: series.rounds.clone(),
        }
    }
}

impl Report {
    pub(crate) fn new(conditions: Vec<String>, series: &[Series], pods: Vec<Pods>) -> Self {
        let routed = |one: &Series| {
            series.iter().find(|base| {
                base.contender == Kind::Routed
                    && (base.way, base.work, base.ports) == (one.way, one.work, one.ports)
            })
        };
        let rows: Vec<Row> = series.iter().map(|one| Row::new(one, routed(one))).collect();
        let goals = goals(&rows);
        Self { conditions, pods, rows, goals }
    }

    /// The lines of a plot of one work of the published ports, with its title.
    pub(crate) fn plots(&self) -> Vec<(String, Vec<Line>)> {
        let blocks = self.blocks().into_iter().filter(|(way, _)| *way == Way::Port);
        blocks
            .map(|(way, work)| {
                let line = |kind: Kind| {
                    let rows = self.numbers().into_iter().filter_map(|n| self.find(way, work, kind, n));
                    (
                        kind.name().to_owned(),
                        rows.map(|r| (r.ports, r.machine.median, r.machine.most)).collect(),
                    )
                };
                let lines = self.kinds().into_iter().map(line).collect();
                (format!("{}, {} of processor time", work.name(), work.unit().0), lines)
            })
            .collect()
    }

    pub(crate) fn find(&self, way: Way, work: Work, kind: Kind, ports: u32) -> Option<&Row> {
        find(&self.rows, way, work, kind, ports)
    }

    pub(crate) fn numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.rows.iter().map(|row| row.ports).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = self.rows.iter().map(|row| row.contender).collect();
        kinds.sort();
        kinds.dedup();
        kinds
    }

    fn blocks(&self) -> Vec<(Way, Work)> {
        let mut blocks = Vec::new();
        for row in &self.rows {
            if !blocks.contains(&(row.way, row.work)) {
                blocks.push((row.way, row.work));
            }
        }
        blocks
    }
}

impl output::Report for Report {
    const NAME: &str = "traffic";

    fn text(&self) -> String {
        let mut text = self.conditions.join("\n") + "\n\n";
        for Pods { contender, ports, count, .. } in &self.pods {
            let Count { live_pods, live_ports, bulk_pods, bulk_ports } = count;
            text += &format!(
                "{:<18} {ports:>6} ports: {live_ports} of {live_pods} live pods, {bulk_ports} of {bulk_pods} pods as rules\n",
                contender.name()
            );
        }
        let mut table = Table::new(&["way", "", "", "ports", ""], COLUMNS);
        for row in &self.rows {
            table
                .add(&[&row.way.name(), &row.work.name(), &row.contender.name(), &row.ports, &row.unit], row);
        }
        text + &format!("\n{table}\n") + &goal::text(&self.goals)
    }
}

fn find(rows: &[Row], way: Way, work: Work, kind: Kind, ports: u32) -> Option<&Row> {
    rows.iter().find(|row| (row.way, row.work, row.contender, row.ports) == (way, work, kind, ports))
}

fn ratios(rounds: &[Spent], base: &[Spent], of: fn(&Spent) -> f64) -> Vec<f64> {
    let pairs = rounds.iter().zip(base);
    pairs.map(|(one, base)| (of(one) / one.operations) / (of(base) / base.operations)).collect()
}

/// The goals that this run has figures for.
fn goals(rows: &[Row]) -> Vec<Goal> {
    use Work::{Connections, Requests, Stream};
    let mut goals = Vec::new();
    let mut add = |what: String, value: f64, goal: f64| goals.push(Goal::at_most(what, value, goal));
    let to_routed = [
        (Way::Port, Kind::Nftables, Connections, 1.10),
        (Way::Port, Kind::Ebpf, Stream, 0.95),
        (Way::Port, Kind::Ebpf, Requests, 0.90),
        (Way::Port, Kind::Ebpf, Connections, 1.05),
    ];
    for (way, kind, work, goal) in to_routed {
        for row in rows.iter().filter(|row| (row.way, row.contender, row.work) == (way, kind, work)) {
            if let Some(ratio) = row.ratio {
                add(format!("{} with {} ports, to routed", row.what(), row.ports), ratio.median, goal);
            }
        }
    }
    for (kind, work) in [
        (Kind::Nftables, Connections),
        (Kind::Ebpf, Stream),
        (Kind::Ebpf, Requests),
        (Kind::Ebpf, Connections),
    ] {
        let ours = |row: &&Row| (row.way, row.contender, row.work) == (Way::Port, kind, work);
        let ratios: Vec<(u32, f64)> =
            rows.iter().filter(ours).filter_map(|row| Some((row.ports, row.ratio?.median))).collect();
        if let Some(((fewest, first), rest)) = ratios.split_first() {
            for (ports, ratio) in rest {
                let what = format!("port {} {}, {ports} ports to {fewest}", work.name(), kind.name());
                add(what, ratio / first, 1.05);
            }
        }
    }
    let of_datagrams =
        |row: &&Row| row.work.protocol() == "udp" && row.way == Way::Port && row.contender == Kind::Ebpf;
    for row in rows.iter().filter(of_datagrams) {
        if let Some(base) = find(rows, Way::Port, row.work, Kind::Nftables, row.ports) {
            let what = format!("{} with {} ports, to nftables", row.what(), row.ports);
            add(what, median(row.to(base, |spent| spent.busy)), 0.8);
        }
    }
    for row in rows.iter().filter(|row| (row.way, row.contender) == (Way::Masquerade, Kind::Ebpf)) {
        if let Some(base) = find(rows, Way::Masquerade, row.work, Kind::Nftables, row.ports) {
            let what = format!("{} with {} ports, to nftables", row.what(), row.ports);
            add(what, median(row.to(base, |spent| spent.busy)), 0.9);
        }
    }
    goals
}

impl Row {
    /// The time per operation to another row's, round by round.
    fn to(&self, base: &Self, of: fn(&Spent) -> f64) -> Vec<f64> {
        ratios(&self.rounds, &base.rounds, of)
    }

    fn what(&self) -> String {
        format!("{} {} {}", self.way.name(), self.work.name(), self.contender.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(contender: Kind, ports: u32, busy: [f64; 3]) -> Series {
        let spent = |busy| Spent { operations: 10_000.0, wall: 1.0, busy, own: busy / 2.0 };
        let (way, work) = (Way::Port, Work::Connections);
        Series { contender, way, work, ports, rounds: busy.map(spent).to_vec() }
    }

    #[test]
    fn figures_are_per_operation_and_ratios_by_round() {
        let all = vec![
            series(Kind::Routed, 1, [1.0, 2.0, 4.0]),
            series(Kind::Nftables, 1, [1.1, 2.0, 4.8]),
            series(Kind::Nftables, 60_000, [1.0, 1.0, 1.0]),
        ];
        let report = Report::new(vec!["a machine".to_owned()], &all, Vec::new());
        let row = &report.rows[1];
        assert_eq!(row.machine, Figure { median: 200.0, least: 110.0, most: 480.0 });
        assert_eq!(row.own.median, 100.0);
        let ratio = row.ratio.unwrap();
        assert!((ratio.median - 1.1).abs() < 1e-9 && (ratio.most - 1.2).abs() < 1e-9, "{ratio:?}");
        assert!(report.rows[2].ratio.is_none(), "nothing to compare with");
        let goals: Vec<(String, bool)> = report.goals.iter().map(|goal| (goal.limit(), goal.met)).collect();
        assert_eq!(goals, [("≤ 1.1".to_owned(), true)]);
        let text = output::Report::text(&report);
        assert!(
            text.contains("met       1.100  goal ≤ 1.1   port CRR nftables with 1 ports, to routed"),
            "{text}"
        );
    }

    #[test]
    fn flat_is_the_same_ratio_with_any_number() {
        let all = vec![
            series(Kind::Routed, 1, [1.0; 3]),
            series(Kind::Ebpf, 1, [0.8; 3]),
            series(Kind::Routed, 1_000, [2.0; 3]),
            series(Kind::Ebpf, 1_000, [1.6; 3]),
        ];
        let report = Report::new(Vec::new(), &all, Vec::new());
        let flat = report.goals.iter().find(|goal| goal.what == "port CRR ebpf, 1000 ports to 1").unwrap();
        assert!((flat.value - 1.0).abs() < 1e-9);
        let plots = report.plots();
        assert_eq!(plots.len(), 1);
        assert_eq!(plots[0].1.iter().map(|(_, points)| points.len()).collect::<Vec<_>>(), [2, 2]);
    }
}
