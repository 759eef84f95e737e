// SPDX-License-Identifier: GPL-2.0-or-later

//! The text of a log line.

use std::time::{SystemTime, UNIX_EPOCH};

/// The longest line, in bytes.
pub(super) const LONGEST: usize = 8 << 10;

/// The call that a line is about.
#[derive(Debug, Clone, Default)]
pub(super) struct Context {
    pub(super) plugin: String,
    pub(super) command: String,
    pub(super) network: String,
    pub(super) container: String,
    pub(super) ifname: String,
}

impl Context {
    pub(super) const EMPTY: Self = Self {
        plugin: String::new(),
        command: String::new(),
        network: String::new(),
        container: String::new(),
        ifname: String::new(),
    };

    /// The parts that are known, by their names in a line.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let parts: [(_, &str); 5] = [
            ("plugin", &self.plugin),
            ("command", &self.command),
            ("network", &self.network),
            ("container", &self.container),
            ("interface", &self.ifname),
        ];
        parts.into_iter().filter(|(_, value)| !value.is_empty())
    }
}

/// Formats one line, with its line break.
pub(super) fn line(now: SystemTime, level: log::Level, context: &Context, message: &str) -> String {
    let mut line = format!("{} {level} pid={}", timestamp(now), std::process::id());
    for (name, value) in context.parts() {
        line.push_str(&format!(" {name}={}", escaped(value)));
    }
    line.push_str(": ");
    line.push_str(message);
    line.truncate(line.floor_char_boundary(LONGEST));
    line.push('\n');
    line
}

/// Escapes characters that end a line, move the cursor or change the direction of writing.
pub(super) fn escaped(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// Formats a time in UTC by RFC 3339, to the millisecond.
pub(super) fn timestamp(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years begin in March here, so that a leap day is the last day of a year; 146097 days are 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}
