// SPDX-License-Identifier: GPL-2.0-or-later

//! The report of `slipway migrate`.

use std::io::{self, Write};

use cni_dataplane::BackendName;
use cni_dataplane::migrate::{Row, State};
use cni_state::documents::{Migrate, MigrateItem};

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
pub(super) fn document(rows: &[Row], to: BackendName) -> Migrate {
    let ok = rows.iter().all(|row| row.state != State::Failed);
    Migrate { ok, items: rows.iter().map(|row| object(row, to)).collect() }
}

fn object(row: &Row, to: BackendName) -> MigrateItem {
    let owner = row.owner.as_ref();
    let moves = !matches!(row.state, State::ToRecord | State::Recorded);
    MigrateItem {
        network: owner.map(|owner| owner.network().to_owned()),
        container: owner.map(|owner| owner.container_id().to_owned()),
        interface: owner.map(|owner| owner.ifname().to_owned()),
        item: row.item.clone(),
        from: moves.then(|| row.from.as_str().to_owned()),
        to: moves.then(|| to.as_str().to_owned()),
        state: word(row.state).replace(' ', "_"),
        reason: row.reason.clone(),
    }
}

#[cfg(test)]
mod tests {
    use cni_dataplane::migrate::Place;
    use expect_test::expect;

    use cni_spec::Attachment;

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
        assert!(document.ok);
        let items = &document.items;
        assert_eq!(items[0].state, "moved");
        assert_eq!((&items[1].from, &items[1].to), (&None, &None));
    }
}
