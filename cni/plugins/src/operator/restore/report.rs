//! What `slipway restore` says.

use std::io::{self, Write};

use cni_spec::Attachment;
use serde_json::{Value, json};

/// What became of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It is there.
    Present,
    /// It is missing, and a dry run leaves it so.
    Missing,
    /// It was missing and is there now.
    Restored,
    /// Nothing was to be done about it.
    LeftOut,
    /// It could not be put back, or not even looked at.
    Failed,
}

impl State {
    const ALL: [Self; 5] = [Self::Restored, Self::Missing, Self::Present, Self::LeftOut, Self::Failed];

    fn word(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Missing => "missing",
            Self::Restored => "restored",
            Self::LeftOut => "left out",
            Self::Failed => "failed",
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// Whose it is; none for what all have in common.
    pub(super) owner: Option<Attachment>,
    /// What it is.
    pub(super) what: String,
    /// What became of it.
    pub(super) state: State,
    /// Why.
    pub(super) why: String,
}

/// How it is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Output {
    #[default]
    Text,
    Json,
}

/// Prints all rows and their number.
pub(super) fn print(rows: &[Row], output: Output, out: &mut dyn Write) -> io::Result<()> {
    match output {
        Output::Text => text(rows, out),
        Output::Json => {
            let all: Vec<Value> = rows.iter().map(object).collect();
            serde_json::to_writer_pretty(&mut *out, &json!({ "ok": is_ok(rows), "things": all }))?;
            writeln!(out)
        }
    }
}

/// Whether nothing failed.
pub(super) fn is_ok(rows: &[Row]) -> bool {
    rows.iter().all(|row| row.state != State::Failed)
}

fn text(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    for row in rows {
        let owner = row.owner.as_ref();
        let owner = owner.map(|o| format!("{} {} {}: ", o.network(), o.container_id(), o.ifname()));
        writeln!(out, "{:8}  {}{}", row.state.word(), owner.unwrap_or_default(), row.what)?;
        if !row.why.is_empty() {
            writeln!(out, "{:8}    {}", "", row.why)?;
        }
    }
    let count = |state: &State| rows.iter().filter(|row| row.state == *state).count();
    let counts: Vec<String> =
        State::ALL.iter().map(|state| format!("{} {}", count(state), state.word())).collect();
    writeln!(out, "{}", counts.join(", "))
}

fn object(row: &Row) -> Value {
    let owner = row.owner.as_ref();
    json!({
        "network": owner.map(Attachment::network),
        "container": owner.map(Attachment::container_id),
        "interface": owner.map(Attachment::ifname),
        "what": row.what,
        "state": row.state.word(),
        "why": row.why,
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn rows_are_printed_with_their_reasons() {
        let owner = Attachment::new("pods", "web", "eth0").ok();
        let row = |owner: &Option<Attachment>, what: &str, state, why: &str| Row {
            owner: owner.clone(),
            what: what.to_owned(),
            state,
            why: why.to_owned(),
        };
        let rows = [
            row(&None, "table inet slipway", State::Restored, "it was missing"),
            row(&owner, "masquerade of 10.0.0.2", State::Present, ""),
        ];
        let printed = |output| {
            let mut out = Vec::new();
            print(&rows, output, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        expect![[r#"
            restored  table inet slipway
                        it was missing
            present   pods web eth0: masquerade of 10.0.0.2
            1 restored, 0 missing, 1 present, 0 left out, 0 failed
        "#]]
        .assert_eq(&printed(Output::Text));
        let value: Value = serde_json::from_str(&printed(Output::Json)).unwrap();
        assert_eq!(value["ok"], true);
        assert_eq!(value["things"][1]["container"], "web");
        assert_eq!(value["things"][0]["network"], Value::Null);
    }
}
