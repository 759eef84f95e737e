//! What `slipway migrate` says.

use std::io::{self, Write};

use cni_dataplane::BackendName;
use cni_dataplane::migrate::{Row, State};
use cni_spec::Attachment;
use serde_json::{Value, json};

/// How it is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Output {
    #[default]
    Text,
    Json,
}

const STATES: [State; 5] = [State::Moved, State::Planned, State::Removed, State::LeftAlone, State::Failed];

fn word(state: State) -> &'static str {
    match state {
        State::Planned => "to move",
        State::Moved => "moved",
        State::LeftAlone => "left alone",
        State::Failed => "failed",
        State::Removed => "removed",
        State::ToRecord => "to record",
        State::Recorded => "recorded",
    }
}

/// Prints all rows and their number.
pub(super) fn print(
    rows: &[Row],
    (to, output): (BackendName, Output),
    out: &mut dyn Write,
) -> io::Result<()> {
    match output {
        Output::Text => text(rows, to, out),
        Output::Json => {
            let all: Vec<Value> = rows.iter().map(|row| object(row, to)).collect();
            let failed = rows.iter().any(|row| row.state == State::Failed);
            serde_json::to_writer_pretty(&mut *out, &json!({ "ok": !failed, "things": all }))?;
            writeln!(out)
        }
    }
}

fn text(rows: &[Row], to: BackendName, out: &mut dyn Write) -> io::Result<()> {
    for row in rows {
        let owner = row.owner.as_ref();
        let owner = owner.map(|o| format!("{} {} {}: ", o.network(), o.container_id(), o.ifname()));
        let way = match row.state {
            State::ToRecord | State::Recorded => String::new(),
            State::Moved | State::Planned => format!(" ({} -> {})", row.from.as_str(), to.as_str()),
            _ => format!(" ({})", row.from.as_str()),
        };
        writeln!(out, "{:10}  {}{}{way}", word(row.state), owner.unwrap_or_default(), row.what)?;
        if !row.why.is_empty() {
            writeln!(out, "{:10}    {}", "", row.why)?;
        }
    }
    let count = |state: &State| rows.iter().filter(|row| row.state == *state).count();
    let recorded = [State::ToRecord, State::Recorded].into_iter().filter(|state| count(state) > 0);
    let counts: Vec<String> = STATES
        .into_iter()
        .chain(recorded)
        .map(|state| format!("{} {}", count(&state), word(state)))
        .collect();
    writeln!(out, "{}", counts.join(", "))
}

fn object(row: &Row, to: BackendName) -> Value {
    let owner = row.owner.as_ref();
    let moves = !matches!(row.state, State::ToRecord | State::Recorded);
    json!({
        "network": owner.map(Attachment::network),
        "container": owner.map(Attachment::container_id),
        "interface": owner.map(Attachment::ifname),
        "what": row.what,
        "from": moves.then(|| row.from.as_str()),
        "to": moves.then(|| to.as_str()),
        "state": word(row.state),
        "why": row.why,
    })
}

#[cfg(test)]
mod tests {
    use cni_dataplane::migrate::Place;
    use expect_test::expect;

    use super::*;

    #[test]
    fn rows_are_printed_with_their_reasons() {
        let row = |what: &str, state, why: &str| Row {
            owner: Attachment::new("pods", "web", "eth0").ok(),
            what: what.to_owned(),
            from: Place::Iptables,
            state,
            why: why.to_owned(),
            ports: None,
        };
        let rows = [
            row("masquerade of 10.0.0.2", State::Moved, ""),
            row("firewall rules of 10.0.0.2", State::Recorded, ""),
            row("published ports tcp/0.0.0.0:80 -> 10.0.0.2:80", State::LeftAlone, "because"),
        ];
        let printed = |output| {
            let mut out = Vec::new();
            print(&rows, (BackendName::Nftables, output), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        expect![[r#"
            moved       pods web eth0: masquerade of 10.0.0.2 (iptables -> nftables)
            recorded    pods web eth0: firewall rules of 10.0.0.2
            left alone  pods web eth0: published ports tcp/0.0.0.0:80 -> 10.0.0.2:80 (iptables)
                          because
            1 moved, 0 to move, 0 removed, 1 left alone, 0 failed, 1 recorded
        "#]]
        .assert_eq(&printed(Output::Text));
        let value: Value = serde_json::from_str(&printed(Output::Json)).unwrap();
        assert_eq!(value["ok"], true);
        assert_eq!(value["things"][0]["state"], "moved");
        assert_eq!((&value["things"][1]["from"], &value["things"][1]["to"]), (&Value::Null, &Value::Null));
    }
}
