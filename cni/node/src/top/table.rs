// SPDX-License-Identifier: GPL-3.0-or-later

//! Rows of a sample: sorted, filtered, and fitted into a width.

use std::cmp::Ordering;
use std::net::SocketAddr;

use cni_dataplane::{Listed, Protocol};
use cni_spec::ErrorCode;
use cni_state::documents::{Call, RepairRecord};
use k8s_openapi::jiff::Timestamp;

use super::model::{Model, Rates};

/// A list of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Published ports.
    Ports,
    /// Flows to published ports.
    Flows,
    /// Dropped packets by reason.
    Drops,
    /// Addresses by network.
    Pools,
    /// ADD, DEL and repairs.
    Events,
}

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub title: &'static str,
    /// Where not all columns fit, those of the lowest ranks are kept; rank 0 is always shown.
    rank: u8,
}

const fn column(title: &'static str, rank: u8) -> Column {
    Column { title, rank }
}

const PORTS: &[Column] = &[
    column("PROTO", 2),
    column("HOST", 0),
    column("TARGET", 3),
    column("NETWORK", 6),
    column("CONTAINER", 4),
    column("BACKEND", 7),
    column("CONNS", 1),
    column("NEW/S", 4),
    column("PKT/S", 2),
    column("BYTE/S", 1),
    column("PACKETS", 8),
    column("BYTES", 5),
];
const FLOWS: &[Column] = &[
    column("PROTO", 3),
    column("CLIENT", 0),
    column("HOST", 1),
    column("TARGET", 5),
    column("CONTAINER", 6),
    column("BY", 4),
    column("PKT/S", 3),
    column("BYTE/S", 1),
    column("PACKETS", 7),
    column("BYTES", 2),
];
const DROPS: &[Column] =
    &[column("BY", 2), column("REASON", 0), column("PACKETS", 0), column("PKT/S", 1), column("MEANING", 3)];
const POOLS: &[Column] =
    &[column("NETWORK", 0), column("RANGE", 1), column("USED", 0), column("FREE", 0), column("USED%", 2)];
const EVENTS: &[Column] = &[
    column("TIME", 2),
    column("EVENT", 0),
    column("PLUGIN", 1),
    column("NETWORK", 1),
    column("MS", 3),
    column("RESULT", 0),
];

impl View {
    /// All, in the order of their keys.
    pub const ALL: [Self; 5] = [Self::Ports, Self::Flows, Self::Drops, Self::Pools, Self::Events];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ports => "Ports",
            Self::Flows => "Flows",
            Self::Drops => "Drops",
            Self::Pools => "Pools",
            Self::Events => "Events",
        }
    }

    #[must_use]
    pub const fn columns(self) -> &'static [Column] {
        match self {
            Self::Ports => PORTS,
            Self::Flows => FLOWS,
            Self::Drops => DROPS,
            Self::Pools => POOLS,
            Self::Events => EVENTS,
        }
    }

    /// The order at the start.
    #[must_use]
    pub const fn usual(self) -> Sort {
        match self {
            Self::Ports => Sort { column: 9, direction: Direction::Descending },
            Self::Flows => Sort { column: 7, direction: Direction::Descending },
            Self::Drops => Sort { column: 2, direction: Direction::Descending },
            Self::Pools => Sort { column: 0, direction: Direction::Ascending },
            Self::Events => Sort { column: 0, direction: Direction::Descending },
        }
    }
}

/// A direction of sorting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The least first.
    Ascending,
    /// The greatest first.
    Descending,
}

/// An order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sort {
    /// Index of the column.
    pub column: usize,
    pub direction: Direction,
}

/// A value in a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// The value is not known.
    Unknown,
    /// A text.
    Text(String),
    /// An address with its port or ports.
    At(SocketAddr, String),
    /// A number.
    Count(u64),
    /// A number per second.
    Rate(f64),
    /// A part of a whole, in percent.
    Percent(f64),
    /// A time of the day, by UTC.
    Time(Timestamp),
    /// A time that something took, in microseconds.
    Took(u64),
}

impl Cell {
    /// The text.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Unknown => "-".to_owned(),
            Self::Text(text) | Self::At(_, text) => text.clone(),
            Self::Count(count) => scaled(*count as f64, *count < 10_000),
            Self::Rate(rate) => scaled(*rate, *rate < 0.05),
            Self::Percent(part) => format!("{part:.0}"),
            Self::Time(time) => time.strftime("%H:%M:%S").to_string(),
            Self::Took(microseconds) => format!("{:.1}", *microseconds as f64 / 1e3),
        }
    }

    /// True if it is a number.
    #[must_use]
    pub const fn is_number(&self) -> bool {
        matches!(self, Self::Count(_) | Self::Rate(_) | Self::Percent(_) | Self::Took(_))
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::At(a, _), Self::At(b, _)) => a.cmp(b),
            (Self::Count(a), Self::Count(b)) | (Self::Took(a), Self::Took(b)) => a.cmp(b),
            (Self::Rate(a), Self::Rate(b)) | (Self::Percent(a), Self::Percent(b)) => a.total_cmp(b),
            (Self::Time(a), Self::Time(b)) => a.cmp(b),
            (Self::Unknown, Self::Unknown) => Ordering::Equal,
            (Self::Unknown, _) => Ordering::Less,
            (_, Self::Unknown) => Ordering::Greater,
            // A column has one kind of values.
            (a, b) => a.text().cmp(&b.text()),
        }
    }
}

/// A number in four or five characters: as it is, or with a unit of thousands.
fn scaled(number: f64, is_whole: bool) -> String {
    if is_whole {
        return format!("{number:.0}");
    }
    let (mut number, mut unit) = (number, "");
    for next in ["k", "M", "G", "T", "P", "E"] {
        if number < 999.5 {
            break;
        }
        (number, unit) = (number / 1000.0, next);
    }
    if number < 99.95 { format!("{number:.1}{unit}") } else { format!("{number:.0}{unit}") }
}

/// The number of rows of a view, unfiltered.
fn len(model: &Model, view: View) -> usize {
    let sample = &model.sample;
    match view {
        View::Ports => sample.ports.len(),
        View::Flows => sample.flows.len(),
        View::Drops => sample.drops.len(),
        View::Pools => sample.pools.len(),
        View::Events => sample.agent.as_ref().map_or(0, |agent| agent.calls.len() + agent.repairs.len()),
    }
}

/// The values of a row, in the order of the view's columns; none if there is no such row.
#[must_use]
pub fn cells(model: &Model, view: View, row: usize) -> Vec<Cell> {
    match view {
        View::Ports => port(model, row),
        View::Flows => flow(model, row),
        View::Drops => drops(model, row),
        View::Pools => pool(model, row),
        View::Events => event(model, row),
    }
    .unwrap_or_default()
}

/// Host ports, target and container of a published port.
fn ends(listed: &Listed) -> (Cell, Cell, Cell) {
    let port = &listed.port;
    let run =
        |first: u16, last: u16| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let host = format!("{}:{}", port.host.address, run(port.host.first, port.host.last));
    let target = SocketAddr::new(port.container, port.container_port);
    let mut shown = target.to_string();
    if port.host.first != port.host.last {
        shown = format!("{shown}-{}", port.last_container_port());
    }
    let container = listed
        .owner
        .as_ref()
        .map_or(Cell::Unknown, |owner| Cell::Text(owner.container_id.chars().take(12).collect()));
    let at = SocketAddr::new(port.host.address.ip(), port.host.first);
    (Cell::At(at, host), Cell::At(target, shown), container)
}

fn counted(rates: Option<Rates>) -> [Cell; 2] {
    match rates.and_then(|rates| rates.counted) {
        Some((packets, bytes)) => [Cell::Rate(packets), Cell::Rate(bytes)],
        None => [Cell::Unknown, Cell::Unknown],
    }
}

fn totals(counted: Option<(u64, u64)>) -> [Cell; 2] {
    counted
        .map_or([Cell::Unknown, Cell::Unknown], |(packets, bytes)| [Cell::Count(packets), Cell::Count(bytes)])
}

fn port(model: &Model, row: usize) -> Option<Vec<Cell>> {
    let (listed, traffic) = model.sample.ports.get(row)?;
    let rates = model.ports.get(row).copied().flatten();
    let (host, target, container) = ends(listed);
    let network = listed.owner.as_ref().map_or(Cell::Unknown, |owner| Cell::Text(owner.network.clone()));
    let mut cells = vec![
        Cell::Text(listed.port.host.protocol.to_string()),
        host,
        target,
        network,
        container,
        Cell::Text(listed.backend.as_str().to_owned()),
        traffic.map_or(Cell::Unknown, |traffic| Cell::Count(traffic.connections as u64)),
        rates.map_or(Cell::Unknown, |rates| Cell::Rate(rates.flows)),
    ];
    cells.extend(counted(rates));
    cells.extend(totals(traffic.and_then(|traffic| traffic.counted)));
    Some(cells)
}

fn flow(model: &Model, row: usize) -> Option<Vec<Cell>> {
    let flow = model.sample.flows.get(row)?;
    let rates = model.flows.get(row).copied().flatten();
    let listed = model.sample.ports.get(flow.port).map(|(listed, _)| listed);
    let (_, target, container) = listed.map_or((Cell::Unknown, Cell::Unknown, Cell::Unknown), ends);
    let end = |end: SocketAddr| Cell::At(end, end.to_string());
    let by = if flow.is_carried { "bpf" } else { "kernel" };
    let protocol =
        Protocol::from_number(flow.protocol).map_or_else(|| flow.protocol.to_string(), |p| p.to_string());
    let mut cells = vec![
        Cell::Text(protocol),
        end(flow.client),
        end(flow.host),
        target,
        container,
        Cell::Text(by.to_owned()),
    ];
    cells.extend(counted(rates));
    cells.extend(totals(flow.counted));
    Some(cells)
}

fn drops(model: &Model, row: usize) -> Option<Vec<Cell>> {
    let drops = model.sample.drops.get(row)?;
    let rate = model.drops.get(row).copied().flatten();
    let text = |text: &str| Cell::Text(text.to_owned());
    let rate = rate.map_or(Cell::Unknown, Cell::Rate);
    Some(vec![text(drops.by), text(drops.reason), Cell::Count(drops.packets), rate, text(drops.about)])
}

fn pool(model: &Model, row: usize) -> Option<Vec<Cell>> {
    let pool = model.sample.pools.get(row)?;
    let part =
        |free: u64| Cell::Percent(pool.used as f64 * 100.0 / (pool.used as f64 + free as f64).max(1.0));
    Some(vec![
        Cell::Text(pool.network.clone()),
        Cell::Text(pool.range.clone().unwrap_or_else(|| "(not configured)".to_owned())),
        Cell::Count(pool.used),
        pool.free.map_or(Cell::Unknown, Cell::Count),
        pool.free.map_or(Cell::Unknown, part),
    ])
}

fn event(model: &Model, row: usize) -> Option<Vec<Cell>> {
    let agent = model.sample.agent.as_ref().ok()?;
    let text = |text: &str| if text.is_empty() { Cell::Unknown } else { Cell::Text(text.to_owned()) };
    let at = |time: &str| time.parse().map_or(Cell::Unknown, Cell::Time);
    Some(match agent.calls.get(row) {
        Some(Call { time, verb, plugin, network, microseconds, code }) => vec![
            at(time),
            text(verb),
            text(plugin),
            text(network),
            Cell::Took(*microseconds),
            Cell::Text(code.map_or_else(|| "ok".to_owned(), |code| format!("error {code}{}", meaning(code)))),
        ],
        None => {
            let RepairRecord { time, damages, restored, failed, microseconds } =
                agent.repairs.get(row.checked_sub(agent.calls.len())?)?;
            let mut result = format!("{restored} restored");
            if !failed.is_empty() {
                result = format!("{result}, {} failed: {}", failed.len(), failed.join("; "));
            }
            if !damages.is_empty() {
                result = format!("{result}; {}", damages.join("; "));
            }
            let took = Cell::Took(*microseconds);
            vec![at(time), text("repair"), Cell::Unknown, Cell::Unknown, took, Cell::Text(result)]
        }
    })
}

/// The meaning of an error's code in the specification, behind the code.
fn meaning(code: u32) -> &'static str {
    match ErrorCode::from(code) {
        ErrorCode::IncompatibleVersion => ": unknown version",
        ErrorCode::InvalidEnvironment => ": invalid environment",
        ErrorCode::Io => ": input or output",
        ErrorCode::Decode => ": not JSON",
        ErrorCode::InvalidConfig => ": invalid configuration",
        ErrorCode::TryAgainLater => ": try again",
        _ => "",
    }
}

/// The rows that contain a text, in an order.
#[must_use]
pub fn rows(model: &Model, view: View, filter: &str, sort: Sort) -> Vec<usize> {
    let wanted = filter.to_lowercase();
    let matches = |cells: &[Cell]| {
        wanted.is_empty() || cells.iter().any(|cell| cell.text().to_lowercase().contains(&wanted))
    };
    let mut found: Vec<(usize, Cell)> = (0..len(model, view))
        .filter_map(|row| {
            let mut cells = cells(model, view, row);
            let is_in = sort.column < cells.len() && matches(&cells);
            is_in.then(|| (row, cells.swap_remove(sort.column)))
        })
        .collect();
    // Rows with the same value keep the order of the sample, so that they do not jump.
    found.sort_by(|(_, a), (_, b)| match sort.direction {
        Direction::Ascending => a.compare(b),
        Direction::Descending => b.compare(a),
    });
    found.into_iter().map(|(row, _)| row).collect()
}

/// The widest that a column becomes, but for the last one.
const WIDEST: usize = 43;
/// The narrowest that a text at the end becomes.
const LEAST: usize = 12;
const GAP: usize = 2;

/// Fits a header and rows into a width: a line each. Columns of a high rank are left out first. A long value ends with `~`.
#[must_use]
pub fn fit(columns: &[Column], sort: Option<Sort>, rows: &[Vec<Cell>], width: usize) -> Vec<String> {
    let titles: Vec<String> =
        columns.iter().enumerate().map(|(index, column)| title(column, index, sort)).collect();
    let texts: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
    let longest = |index: usize| {
        let cells = texts.iter().filter_map(|row| row.get(index)).map(|text| text.chars().count());
        cells
            .chain(titles.get(index).map(|title| title.chars().count()))
            .max()
            .unwrap_or_default()
            .min(WIDEST)
    };
    let mut shown: Vec<(usize, usize)> = (0..columns.len()).map(|index| (index, longest(index))).collect();
    let is_right = |index: usize| rows.iter().filter_map(|row| row.get(index)).any(Cell::is_number);
    // A text at the end of a line may be cut.
    let needed = |shown: &[(usize, usize)]| {
        let Some(((last, wide), before)) = shown.split_last() else { return 0 };
        let least = if is_right(*last) { *wide } else { (*wide).min(LEAST) };
        before.iter().map(|(_, width)| width + GAP).sum::<usize>() + least
    };
    let rank = |index: usize| columns.get(index).map_or(0, |column| column.rank);
    while needed(&shown) > width
        && let Some((index, _)) = shown.iter().copied().max_by_key(|(index, _)| rank(*index))
        && rank(index) > 0
    {
        shown.retain(|(other, _)| *other != index);
    }
    let line = |cells: &[String]| {
        let padded = shown.iter().enumerate().map(|(place, (index, wide))| {
            let is_last = place + 1 == shown.len();
            let cell = cells.get(*index).map_or("", String::as_str);
            match () {
                () if is_right(*index) => format!("{:>wide$}", cut(cell, *wide)),
                // The terminal cuts the last column off.
                () if is_last => cell.to_owned(),
                () => format!("{:wide$}", cut(cell, *wide)),
            }
        });
        let line = padded.collect::<Vec<_>>().join("  ");
        cut(line.trim_end(), width)
    };
    std::iter::once(line(&titles)).chain(texts.iter().map(|row| line(row))).collect()
}

fn title(column: &Column, index: usize, sort: Option<Sort>) -> String {
    let mark = match sort {
        Some(Sort { column, direction: Direction::Ascending }) if column == index => "^",
        Some(Sort { column, direction: Direction::Descending }) if column == index => "v",
        _ => "",
    };
    format!("{}{mark}", column.title)
}

/// The text, cut to a number of characters.
#[must_use]
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { kept } else { kept + "~" }
}
