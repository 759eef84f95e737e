// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tables of figures: for pages, where a run's result is kept, and for the terminal, where it is printed.

use std::fmt;

/// A figure of a row: its name, with its unit where that is not the neighbour's, and its value.
pub(crate) struct Column<R> {
    pub(crate) name: &'static str,
    pub(crate) value: fn(&R) -> f64,
}

pub(crate) const fn column<R>(name: &'static str, value: fn(&R) -> f64) -> Column<R> {
    Column { name, value }
}

/// A table for the terminal.
pub(crate) struct Table<R: 'static> {
    columns: &'static [Column<R>],
    /// The headings, then the rows: first the names, then the figures.
    lines: Vec<Vec<String>>,
}

impl<R> Table<R> {
    /// With the headings of the names.
    pub(crate) fn new(names: &[&str], columns: &'static [Column<R>]) -> Self {
        let headings = names.iter().copied().chain(columns.iter().map(|column| column.name));
        Self { columns, lines: vec![headings.map(str::to_owned).collect()] }
    }

    pub(crate) fn add(&mut self, names: &[&dyn fmt::Display], row: &R) {
        let names = names.iter().map(ToString::to_string);
        let figure = |column: &Column<R>| format!("{:.2}", (column.value)(row)).replace("NaN", "-");
        self.lines.push(names.chain(self.columns.iter().map(figure)).collect());
    }
}

impl<R> fmt::Display for Table<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = |line: &Vec<String>, at: usize| line[at].chars().count();
        let width = |at| self.lines.iter().map(|line| length(line, at)).max().unwrap_or(0);
        let names = self.lines[0].len() - self.columns.len();
        for line in &self.lines {
            let cells = line.iter().enumerate().map(|(at, cell)| {
                let width = width(at);
                if at < names { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// The first two lines of a page's table, with columns of names and of figures.
pub(crate) fn heading<R>(names: &[&str], columns: &[Column<R>]) -> String {
    let cells = names.iter().copied().chain(columns.iter().map(|column| column.name));
    let cells = cells.map(|cell| if cell.is_empty() { " ".to_owned() } else { format!(" {cell} ") });
    let cells = cells.collect::<Vec<_>>().join("|");
    format!("|{cells}|\n{}{}|\n", "|---".repeat(names.len()), "|---:".repeat(columns.len()))
}

/// The figures of a row, for a page.
pub(crate) fn figures<R>(row: &R, columns: &[Column<R>]) -> Vec<String> {
    columns.iter().map(|column| digits((column.value)(row))).collect()
}

/// A figure with three digits at most, and one after the point at most.
pub(crate) fn digits(value: f64) -> String {
    if value < 99.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// A number with commas between thousands.
pub(crate) fn grouped(number: u32) -> String {
    if number < 1000 {
        return number.to_string();
    }
    format!("{},{:03}", grouped(number / 1000), number % 1000)
}

/// A row of a page's table.
pub(crate) fn row(name: &str, cells: &[String]) -> String {
    format!("| {name} | {} |\n", cells.join(" | "))
}

/// The first two lines of a page's table, with a column of names.
pub(crate) fn head(name: &str, columns: &[String]) -> String {
    row(name, columns) + &format!("|---{}|\n", "|---:".repeat(columns.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_at_most() {
        let shown: Vec<String> = [3.653, 19.732, 99.97, 444.46].into_iter().map(digits).collect();
        assert_eq!(shown, ["3.7", "19.7", "100", "444"]);
        assert_eq!([1, 1000, 60_000, 1_002_003].map(grouped), ["1", "1,000", "60,000", "1,002,003"]);
    }

    #[test]
    fn the_figures_of_the_terminal_are_aligned() {
        const COLUMNS: &[Column<f64>] = &[column("one (ms)", |x| *x), column("two", |x| *x * 2.0)];
        let mut table = Table::new(&["who", ""], COLUMNS);
        table.add(&[&"slipway", &1], &1.0);
        table.add(&[&"peer", &1000], &f64::NAN);
        assert_eq!(
            table.to_string(),
            "who            one (ms)   two\nslipway  1         1.00  2.00\npeer     1000         -     -\n"
        );
    }
}
