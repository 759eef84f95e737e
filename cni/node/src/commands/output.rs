// SPDX-License-Identifier: GPL-3.0-or-later

//! Tables and JSON on standard output.

use std::io;

use cni_state::documents::Form;
use serde::Serialize;
use slipway_cli::{Visible, columns};

pub(super) fn print(document: impl Serialize + Form) -> io::Result<()> {
    slipway_cli::json::print(document, &mut Visible::new(io::stdout().lock()))
}

/// Prints rows with a heading, and `-` for an empty cell.
pub(super) fn table<const N: usize>(
    heading: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> io::Result<()> {
    let shown = |cell: String| if cell.is_empty() { "-".to_owned() } else { cell };
    let rows: Vec<[String; N]> = rows.map(|row| row.map(shown)).collect();
    columns::print(heading, &rows, &mut Visible::new(io::stdout().lock()))
}
