// SPDX-License-Identifier: GPL-2.0-or-later

//! The report of `slipway restore`.

use std::io::{self, Write};

use cni_spec::Attachment;
use serde_json::{Value, json};

/// The state of an object at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It existed.
    Present,
    /// It is missing, and this is a dry run.
    Missing,
    /// It was missing and was restored.
    Restored,
    /// It was left alone, for the reason in the row.
    Skipped,
    /// It could not be checked or restored.
    Failed,
}

impl State {
    const ALL: [Self; 5] = [Self::Restored, Self::Missing, Self::Present, Self::Skipped, Self::Failed];

    const fn word(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Missing => "missing",
            Self::Restored => "restored",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// The owner; none if all containers share the object.
    pub(super) owner: Option<Attachment>,
    /// The object: "masquerade of 10.22.0.2".
    pub(super) item: String,
    pub(super) state: State,
    /// The reason for the state; may be empty.
    pub(super) reason: String,
}

impl Row {
    pub(super) fn new(
        owner: Option<Attachment>,
        item: impl Into<String>,
        state: State,
        reason: String,
    ) -> Self {
        Self { owner, item: item.into(), state, reason }
    }
}

/// True if nothing failed.
pub(super) fn is_ok(rows: &[Row]) -> bool {
    rows.iter().all(|row| row.state != State::Failed)
}

/// Prints all rows, and the number of rows in each state.
pub(super) fn print(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    for row in rows {
        let owner = row.owner.as_ref();
        let owner = owner.map(|o| format!("{} {} {}: ", o.network(), o.container_id(), o.ifname()));
        writeln!(out, "{:8}  {}{}", row.state.word(), owner.unwrap_or_default(), row.item)?;
        if !row.reason.is_empty() {
            writeln!(out, "{:8}    {}", "", row.reason)?;
        }
    }
    let count = |state: &State| rows.iter().filter(|row| row.state == *state).count();
    let counts: Vec<String> =
        State::ALL.iter().map(|state| format!("{} {}", count(state), state.word())).collect();
    writeln!(out, "{}", counts.join(", "))
}

/// The document of `slipway restore`.
pub(super) fn document(rows: &[Row]) -> Value {
    json!({ "ok": is_ok(rows), "items": rows.iter().map(object).collect::<Vec<_>>() })
}

fn object(row: &Row) -> Value {
    let owner = row.owner.as_ref();
    json!({
        "network": owner.map(Attachment::network),
        "container": owner.map(Attachment::container_id),
        "interface": owner.map(Attachment::ifname),
        "item": row.item,
        "state": row.state.word(),
        "reason": row.reason,
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use slipway_cli::checks;

    #[test]
    fn rows_are_printed_with_their_reasons() {
        let owner = Attachment::new("pods", "web", "eth0").ok();
        let rows = [
            Row::new(None, "table inet slipway", State::Restored, "it was missing".to_owned()),
            Row::new(owner, "masquerade of 10.0.0.2", State::Present, String::new()),
        ];
        let mut out = Vec::new();
        print(&rows, &mut out).unwrap();
        expect![[r#"
            restored  table inet slipway
                        it was missing
            present   pods web eth0: masquerade of 10.0.0.2
            1 restored, 0 missing, 1 present, 0 skipped, 0 failed
        "#]]
        .assert_eq(&String::from_utf8(out).unwrap());
        let document = document(&rows);
        checks::assert_documented("slipway restore", std::slice::from_ref(&document));
        assert_eq!(document["ok"], true);
        assert_eq!(document["items"][1]["container"], "web");
        assert_eq!(document["items"][0]["network"], Value::Null);
    }
}
