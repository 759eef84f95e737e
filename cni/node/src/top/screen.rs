// SPDX-License-Identifier: GPL-3.0-or-later

//! Draws the screen.

use std::time::Duration;

use cni_state::documents::Conntrack;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::model::Model;
use super::sample::Sample;
use super::state::{Mode, State};
use super::table::{Cell, View, cells, cut, fit};

/// Whether the screen uses colours. No information depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Palette {
    /// The colours of the terminal.
    Colours,
    /// None: the variable `NO_COLOR` asks for that.
    Plain,
}

impl Palette {
    fn of(self, colour: Color) -> Style {
        match self {
            Self::Colours => Style::new().fg(colour),
            Self::Plain => Style::new().add_modifier(Modifier::BOLD),
        }
    }
}

/// The keys, with their meaning.
pub const KEYS: [(&str, &str); 9] = [
    ("1 to 5, Tab", "ports, flows, drops, pools, events"),
    ("s, S", "sort by the next column, by the one before"),
    ("r", "reverse the order"),
    ("/", "show rows with a text; Enter keeps it, Escape removes it"),
    ("p", "pause, and continue"),
    ("u", "take a sample now"),
    ("arrows, PgUp, PgDn, g, G", "scroll"),
    ("Ctrl-L, Ctrl-Z", "draw again, suspend"),
    ("q, Ctrl-C", "quit"),
];

const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);
const HEADER: Style = Style::new().add_modifier(Modifier::BOLD.union(Modifier::UNDERLINED));

/// The lowest screen that shows the lines above the rows.
const WITH_SUMMARY: u16 = 9;

/// A line from the top, with its style.
type Line = (String, Style);

/// Draws a screen of any size. Limits the state's first row to those that there are.
pub fn draw(frame: &mut Frame<'_>, model: &Model, state: &mut State, interval: Duration, palette: Palette) {
    let area = frame.area();
    if area.is_empty() {
        return;
    }
    let width = usize::from(area.width);
    let mut lines = vec![(headline(&model.sample, state, interval), REVERSED)];
    if area.height >= WITH_SUMMARY {
        lines.extend(summary(model, palette));
    }
    lines.push((tabs(state.view), Style::new()));
    // Below: the header of the rows, and the last line.
    let room = usize::from(area.height).saturating_sub(lines.len() + 2);
    lines.extend(body(model, state, (width, room), palette));
    lines.truncate(usize::from(area.height - 1).max(1));
    for (y, (text, style)) in (area.y..area.bottom()).zip(&lines) {
        put(frame, Rect { y, height: 1, ..area }, text, *style);
    }
    if area.height > 1 {
        let last = Rect { y: area.bottom() - 1, height: 1, ..area };
        put(frame, last, &footer(state, width), REVERSED);
    }
}

fn put(frame: &mut Frame<'_>, area: Rect, text: &str, style: Style) {
    let width = usize::from(area.width);
    let padded = format!("{:width$}", cut(text, width));
    frame.buffer_mut().set_stringn(area.x, area.y, padded, width, style);
}

fn headline(sample: &Sample, state: &State, interval: Duration) -> String {
    let node = sample.agent.as_ref().map(|agent| agent.node.clone()).unwrap_or_default();
    let (time, seconds) = (sample.time.strftime("%H:%M:%S UTC"), interval.as_secs());
    let paused = if state.is_paused { "PAUSED".to_owned() } else { String::new() };
    let parts = ["slipwayd top".to_owned(), node, time.to_string(), format!("every {seconds} s"), paused];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
}

fn summary(model: &Model, palette: Palette) -> [Line; 2] {
    let sample = &model.sample;
    let conntrack = sample.conntrack.map_or_else(
        || "conntrack -".to_owned(),
        |Conntrack { count, max }| format!("conntrack {count} of {max} ({}%)", percent(count, max)),
    );
    let is_full = sample.conntrack.is_some_and(|table| percent(table.count, table.max) >= 90);
    let drops: u64 = sample.drops.iter().map(|drops| drops.packets).fold(0, u64::saturating_add);
    let rate = model.drop_rate().map_or_else(String::new, |rate| format!(", {} /s", Cell::Rate(rate).text()));
    let flows = sample.flows.len().saturating_add(sample.more_flows);
    let ports = sample.ports.len();
    let first = format!("{conntrack}  ports {ports}  flows {flows}  drops {drops}{rate}");
    let plain = Style::new();
    let second = match (&sample.agent, sample.troubles.first()) {
        (_, Some(trouble)) => (trouble.clone(), palette.of(Color::Yellow)),
        (Err(reason), None) => (format!("no events: {reason}"), palette.of(Color::Yellow)),
        (Ok(agent), None) => {
            let failed = agent.calls.iter().filter(|call| call.code.is_some()).count();
            let (calls, repairs) = (agent.calls.len(), agent.repairs.len());
            let text = format!("last calls {calls}, failed {failed}  last repairs {repairs}");
            (text, if failed > 0 { palette.of(Color::Red) } else { plain })
        }
    };
    [(first, if is_full { palette.of(Color::Red) } else { plain }), second]
}

fn percent(count: u64, most: u64) -> u64 {
    count.saturating_mul(100).checked_div(most).unwrap_or_default()
}

fn tabs(shown: View) -> String {
    let tab = |(place, view): (usize, View)| {
        let name = format!("{} {}", place + 1, view.name());
        if view == shown { format!("[{name}]") } else { format!(" {name} ") }
    };
    View::ALL.into_iter().enumerate().map(tab).collect::<Vec<_>>().join(" ")
}

/// The header and the rows that fit, or the list of keys.
fn body(model: &Model, state: &mut State, (width, room): (usize, usize), palette: Palette) -> Vec<Line> {
    if state.mode == Mode::Help {
        return KEYS.iter().map(|(keys, meaning)| (format!("{keys:<26}{meaning}"), Style::new())).collect();
    }
    let rows = state.rows(model);
    state.page = room.max(1);
    state.first = state.first.min(rows.len().saturating_sub(state.page));
    let shown: Vec<Vec<Cell>> =
        rows.iter().skip(state.first).take(room).map(|row| cells(model, state.view, *row)).collect();
    let mut fitted = fit(state.view.columns(), Some(state.sort()), &shown, width).into_iter();
    let mut lines: Vec<Line> = fitted.next().into_iter().map(|line| (line, HEADER)).collect();
    let styles = shown.iter().map(|cells| style(state.view, cells, palette));
    lines.extend(fitted.zip(styles));
    if rows.is_empty() {
        lines.push((nothing(model, state), Style::new()));
    }
    lines
}

/// The reason why there are no rows.
fn nothing(model: &Model, state: &State) -> String {
    match (&model.sample.agent, state.view) {
        _ if !state.filter.is_empty() => format!("no row contains {:?}", state.filter),
        (Err(reason), View::Events) => reason.to_string(),
        (_, View::Ports) => "no published ports".to_owned(),
        (_, View::Flows) => "no flows to published ports".to_owned(),
        (_, View::Drops) => "nothing counts drops: no conntrack and no BPF programs".to_owned(),
        (_, View::Pools) => "no network with host-local".to_owned(),
        (_, View::Events) => "no ADD, DEL or repair since the agent's start".to_owned(),
    }
}

/// The style of a row: an error, drops that continue, an exhausted range.
fn style(view: View, cells: &[Cell], palette: Palette) -> Style {
    let is_bad = match view {
        View::Ports | View::Flows => false,
        View::Drops => matches!(cells.get(3), Some(Cell::Rate(rate)) if *rate > 0.0),
        View::Pools => matches!(cells.get(3), Some(Cell::Count(0))),
        View::Events => {
            matches!(cells.last(), Some(Cell::Text(text)) if text.starts_with("error") || text.contains(" failed: "))
        }
    };
    if is_bad { palette.of(Color::Red) } else { Style::new() }
}

fn footer(state: &State, width: usize) -> String {
    let filter = &state.filter;
    match state.mode {
        Mode::Filter => format!("filter: {filter}_  (Enter keeps it, Escape removes it)"),
        Mode::Help => "any key leaves the help".to_owned(),
        Mode::Commands if !filter.is_empty() => {
            format!("filter: {filter}  (/ changes it, Escape removes it)")
        }
        Mode::Commands if width >= 72 => {
            "1-5 view  s sort  r reverse  / filter  p pause  h help  q quit".to_owned()
        }
        Mode::Commands => "h help  q quit".to_owned(),
    }
}
