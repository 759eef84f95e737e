// SPDX-License-Identifier: GPL-2.0-or-later

//! A picture of a terminal: what tmux has captured, as SVG.

use std::fmt::Write as _;

/// The variable with the path to which the picture is written. From the repository's root:
/// `SLIPWAY_PICTURE=$PWD/docs/images/top.svg cargo xtask test --suite top --no-vm`
pub(crate) const PATH: &str = "SLIPWAY_PICTURE";

/// The width and height of a character.
const CELL: (f64, f64) = (8.4, 18.0);

/// The attributes of a character.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Style {
    is_bold: bool,
    is_reversed: bool,
    is_underlined: bool,
    colour: Option<&'static str>,
}

impl Style {
    /// Applies the parameters of SGR (ECMA-48, 8.3.117).
    fn set(&mut self, parameters: &str) {
        for parameter in parameters.split(';') {
            match parameter {
                "" | "0" => *self = Self::default(),
                "1" => self.is_bold = true,
                "4" => self.is_underlined = true,
                "7" => self.is_reversed = true,
                "22" => self.is_bold = false,
                "24" => self.is_underlined = false,
                "27" => self.is_reversed = false,
                "31" => self.colour = Some("#f14c4c"),
                "33" => self.colour = Some("#e5c07b"),
                "39" => self.colour = None,
                _ => {}
            }
        }
    }
}

/// The runs of characters that have the same style, with their columns.
fn runs(line: &str, style: &mut Style) -> Vec<(usize, String, Style)> {
    let mut found: Vec<(usize, String, Style)> = Vec::new();
    let (mut rest, mut column) = (line, 0);
    while let Some(character) = rest.chars().next() {
        if let Some((parameters, behind)) = rest.strip_prefix("\u{1b}[").and_then(|rest| rest.split_once('m'))
        {
            style.set(parameters);
            rest = behind;
            continue;
        }
        match found.last_mut() {
            Some((_, text, last)) if last == style => text.push(character),
            _ => found.push((column, character.to_string(), *style)),
        }
        column += 1;
        rest = &rest[character.len_utf8()..];
    }
    found
}

/// The picture of a captured pane with this number of columns.
pub(crate) fn svg(captured: &str, columns: usize) -> String {
    let lines: Vec<&str> = captured.lines().collect();
    let (width, height) = (columns as f64 * CELL.0 + 16.0, lines.len() as f64 * CELL.1 + 16.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"monospace\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#1e1e1e\"/>\n"
    );
    let mut style = Style::default();
    for (row, line) in lines.iter().enumerate() {
        for (column, text, style) in runs(line, &mut style) {
            let (x, y) = (8.0 + column as f64 * CELL.0, 8.0 + row as f64 * CELL.1);
            let length = text.chars().count() as f64 * CELL.0;
            let plain = style.colour.unwrap_or("#d4d4d4");
            let colour = if style.is_reversed { "#1e1e1e" } else { plain };
            // Writing to a String cannot fail.
            if style.is_reversed {
                let _written = writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{:.1}\" fill=\"{plain}\"/>",
                    CELL.1
                );
            }
            if text.trim().is_empty() {
                continue;
            }
            let bold = if style.is_bold { " font-weight=\"bold\"" } else { "" };
            let line = if style.is_underlined { " text-decoration=\"underline\"" } else { "" };
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let _written = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.1}\" textLength=\"{length:.1}\" fill=\"{colour}\"{bold}{line} \
                 xml:space=\"preserve\">{text}</text>",
                y + 13.5
            );
        }
    }
    svg + "</svg>\n"
}

#[test]
fn a_picture_has_texts_and_styles() {
    let drawn = svg("\u{1b}[7mtop <a>\u{1b}[0m x\n\u{1b}[31;1mbad\u{1b}[39m\n", 20);
    for part in [
        "fill=\"#1e1e1e\" xml",
        "top &lt;a&gt;</text>",
        "fill=\"#f14c4c\" font-weight=\"bold\"",
        ">bad</text>",
    ] {
        assert!(drawn.contains(part), "{part}: {drawn}");
    }
}
