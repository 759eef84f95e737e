// SPDX-License-Identifier: GPL-2.0-or-later

//! Tables for people.

use std::io::{self, Write};

/// Prints a header and lines, in which each column is as wide as its widest cell.
///
/// # Errors
/// `out` cannot be written.
pub fn print<const N: usize>(
    header: [&str; N],
    lines: &[[String; N]],
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut widths = header.map(str::len);
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut put = |cells: [&str; N]| {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        writeln!(out, "{}", padded.join("  ").trim_end())
    };
    put(header)?;
    lines.iter().try_for_each(|line| put(line.each_ref().map(String::as_str)))
}
