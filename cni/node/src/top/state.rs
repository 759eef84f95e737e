// SPDX-License-Identifier: GPL-3.0-or-later

//! The state of the screen, and the keys that change it.

use super::model::Model;
use super::table::{Direction, Sort, View, rows};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Tab,
    /// Shift and Tab.
    BackTab,
    Enter,
    Escape,
    Backspace,
    /// A row up.
    Up,
    /// A row down.
    Down,
    /// A screen up.
    PageUp,
    /// A screen down.
    PageDown,
    /// The first row.
    Home,
    /// The last row.
    End,
    /// Control and C.
    Interrupt,
    /// Control and Z.
    Suspend,
    /// Control and L.
    Redraw,
}

/// The consequence of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Draw the screen.
    Draw,
    /// Draw each character of the screen again.
    Redraw,
    /// Take a sample now.
    Sample,
    /// Suspend the process.
    Suspend,
    /// End.
    Quit,
}

/// What the keys currently do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each key is a command.
    Commands,
    /// Keys are written into the filter.
    Filter,
    /// The list of keys is shown; any key leaves it.
    Help,
}

/// The state of the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub view: View,
    /// The order of each view.
    sorts: [Sort; View::ALL.len()],
    /// The text that rows contain.
    pub filter: String,
    /// The use of the keys.
    pub mode: Mode,
    /// True if no sample is taken.
    pub is_paused: bool,
    /// The first row on the screen.
    pub first: usize,
    /// Number of rows on the screen, when it was drawn last.
    pub page: usize,
}

/// The longest filter, in characters.
const LONGEST: usize = 64;

impl Default for State {
    fn default() -> Self {
        Self {
            view: View::Ports,
            sorts: View::ALL.map(View::usual),
            filter: String::new(),
            mode: Mode::Commands,
            is_paused: false,
            first: 0,
            page: 1,
        }
    }
}

impl State {
    /// The order of the rows.
    #[must_use]
    pub fn sort(&self) -> Sort {
        self.sorts.get(self.view as usize).copied().unwrap_or_else(|| self.view.usual())
    }

    /// The rows that are shown, in their order.
    #[must_use]
    pub fn rows(&self, model: &Model) -> Vec<usize> {
        rows(model, self.view, &self.filter, self.sort())
    }

    /// Takes over a key.
    pub fn press(&mut self, key: Key) -> Action {
        match (self.mode, key) {
            (_, Key::Interrupt) => Action::Quit,
            (_, Key::Suspend) => Action::Suspend,
            (_, Key::Redraw) => Action::Redraw,
            (Mode::Help, Key::Char('q')) => Action::Quit,
            (Mode::Help, _) => self.set(Mode::Commands),
            (Mode::Filter, key) => self.edit(key),
            (Mode::Commands, key) => self.command(key),
        }
    }

    fn set(&mut self, mode: Mode) -> Action {
        self.mode = mode;
        Action::Draw
    }

    fn edit(&mut self, key: Key) -> Action {
        match key {
            Key::Char(character) if self.filter.chars().count() < LONGEST => self.filter.push(character),
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.mode = Mode::Commands,
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Commands;
            }
            _ => {}
        }
        self.first = 0;
        Action::Draw
    }

    fn command(&mut self, key: Key) -> Action {
        match key {
            Key::Char('q') => return Action::Quit,
            Key::Char('?' | 'h') => self.mode = Mode::Help,
            Key::Char('/' | 'f') => self.mode = Mode::Filter,
            Key::Char('p') => {
                self.is_paused = !self.is_paused;
                if !self.is_paused {
                    return Action::Sample;
                }
            }
            Key::Char('u') => return Action::Sample,
            Key::Char('s' | '>') => self.sort_by(1),
            Key::Char('S' | '<') => self.sort_by(self.view.columns().len() - 1),
            Key::Char('r') => self.reverse(),
            Key::Char(digit @ '1'..='5') => self.show(digit as usize - '1' as usize),
            Key::Tab => self.show(self.view as usize + 1),
            Key::BackTab => self.show(self.view as usize + View::ALL.len() - 1),
            Key::Escape => self.filter.clear(),
            Key::Up | Key::Char('k') => self.first = self.first.saturating_sub(1),
            Key::Down | Key::Char('j') => self.first = self.first.saturating_add(1),
            Key::PageUp => self.first = self.first.saturating_sub(self.page),
            Key::PageDown => self.first = self.first.saturating_add(self.page),
            Key::Home | Key::Char('g') => self.first = 0,
            // The screen that is drawn next knows the last one.
            Key::End | Key::Char('G') => self.first = usize::MAX,
            Key::Char(_) | Key::Enter | Key::Backspace | Key::Interrupt | Key::Suspend | Key::Redraw => {}
        }
        Action::Draw
    }

    /// Shows a view, by its place; beyond the last one it begins again.
    fn show(&mut self, place: usize) {
        let view = View::ALL.get(place % View::ALL.len()).copied();
        self.view = view.unwrap_or(View::Ports);
        self.first = 0;
    }

    fn sort_by(&mut self, further: usize) {
        let columns = self.view.columns().len();
        if let Some(sort) = self.sorts.get_mut(self.view as usize) {
            sort.column = (sort.column + further) % columns;
        }
        self.first = 0;
    }

    fn reverse(&mut self) {
        if let Some(sort) = self.sorts.get_mut(self.view as usize) {
            sort.direction = match sort.direction {
                Direction::Ascending => Direction::Descending,
                Direction::Descending => Direction::Ascending,
            };
        }
    }
}
