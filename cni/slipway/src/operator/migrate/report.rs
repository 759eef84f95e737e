// SPDX-License-Identifier: GPL-2.0-or-later

//! The report of `slipway migrate`.

use std::io::{self, Write};

use cni_dataplane::BackendName;
use cni_dataplane::migrate::{Row, State};
use cni_spec::Attachment;
use serde_json::{Value, json};

const STATES: [State; 5] = [State::Moved, State::Planned, State::Removed, State::LeftAlone, State::Failed];

const fn word(state: State) -> &'static str {
    match state {
        State::Planned => "to move",
        State::Moved => "moved",
        State::LeftAlone => "skipped",
        State::Failed => "failed",
        State::Removed => "removed",
        State::ToRecord => "to record",
        State::Recorded => "recorded",
    }
}

/// Prints all rows, and the number of rows in each state.
pub(super) fn print(rows: &[Row], to: BackendName, out: &mut dyn Write) -> io::Result<()> {
    for row in rows {
        let owner = row.owner.as_ref();
        let owner = owner.map(|o| format!("{} {} {}: ", o.network(), o.container_id(), o.ifname()));
        let way = match row.state {
            State::ToRecord | State::Recorded => String::new(),
            State::Moved | State::Planned => format!(" ({} -> {})", row.from.as_str(), to.as_str()),
            _ => format!(" ({})", row.from.as_str()),
        };
        writeln!(out, "{:9}  {}{}{way}", word(row.state), owner.unwrap_or_default(), row.item)?;
        if !row.reason.is_empty() {
            writeln!(out, "{:9}    {}", "", row.reason)?;
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

/// The document of `slipway migrate`.
pub(super) fn document(rows: &[Row], to: BackendName) -> Value {
    let is_ok = rows.iter().all(|row| row.state != State::Failed);
    json!({ "ok": is_ok, "items": rows.iter().map(|row| object(row, to)).collect::<Vec<_>>() })
}

fn object(row: &Row, to: BackendName) -> Value {
    let owner = row.owner.as_ref();
    let moves = !matches!(row.state, State::ToRecord | State::Recorded);
    json!({
        "network": owner.map(Attachment::network),
        "container": owner.map(Attachment::container_id),
        "interface": owner.map(Attachment::ifname),
        "item": row.item,
        "from": moves.then(|| row.from.as_str()),
        "to": moves.then(|| to.as_str()),
        "state": word(row.state).replace(' ', "_"),
        "reason": row.reason,
    })
}

#[cfg(test)]
mod tests {
    use cni_dataplane::migrate::Place;
    use expect_test::expect;

    use super::*;
    use slipway_cli::checks;

    #[test]
    fn rows_are_printed_with_their_reasons() {
        let row = |item: &str, state, reason: &str| Row {
            owner: Attachment::new("pods", "web", "eth0").ok(),
            item: item.to_owned(),
            from: Place::Iptables,
            state,
            reason: reason.to_owned(),
            ports: None,
        };
        let rows = [
            row("masquerade of 10.0.0.2", State::Moved, ""),
            row("firewall rules of 10.0.0.2", State::Recorded, ""),
            row("published ports tcp/0.0.0.0:80 -> 10.0.0.2:80", State::LeftAlone, "because"),
        ];
        let mut out = Vec::new();
        print(&rows, BackendName::Nftables, &mut out).unwrap();
        expect![[r#"
            moved      pods web eth0: masquerade of 10.0.0.2 (iptables -> nftables)
            recorded   pods web eth0: firewall rules of 10.0.0.2
            skipped    pods web eth0: published ports tcp/0.0.0.0:80 -> 10.0.0.2:80 (iptables)
                         because
            1 moved, 0 to move, 0 removed, 1 skipped, 0 failed, 1 recorded
        "#]]
        .assert_eq(&String::from_utf8(out).unwrap());
        let without_owner = Row { owner: None, ..row("table ip cni_hostport", State::Removed, "") };
        let document = document(&[rows.as_slice(), &[without_owner]].concat(), BackendName::Nftables);
        checks::assert_documented("slipway migrate", std::slice::from_ref(&document));
        assert_eq!(document["ok"], true);
        let items = &document["items"];
        assert_eq!(items[0]["state"], "moved");
        assert_eq!((&items[1]["from"], &items[1]["to"]), (&Value::Null, &Value::Null));
    }
}
