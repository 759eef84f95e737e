// SPDX-License-Identifier: GPL-2.0-or-later

//! The report of `slipway restore`.

use std::io::{self, Write};

use cni_spec::Attachment;
use cni_state::documents::{Restore, RestoreItem};

pub(super) use cni_state::documents::RestoreState as State;

/// The states as they are counted below the rows.
const STATES: [State; 5] = [State::Restored, State::Missing, State::Present, State::Skipped, State::Failed];

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

/// Prints the rows of what is or was not as it should be, and the number of rows in each state.
pub(super) fn print(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    for row in rows.iter().filter(|row| row.state != State::Present) {
        let owner = row.owner.as_ref();
        let owner = owner.map(|o| format!("{} {} {}: ", o.network(), o.container_id(), o.ifname()));
        writeln!(out, "{:8}  {}{}", row.state.as_str(), owner.unwrap_or_default(), row.item)?;
        if !row.reason.is_empty() {
            writeln!(out, "{:8}    {}", "", row.reason)?;
        }
    }
    let count = |state: &State| rows.iter().filter(|row| row.state == *state).count();
    let counts: Vec<String> =
        STATES.iter().map(|state| format!("{} {}", count(state), state.as_str())).collect();
    writeln!(out, "{}", counts.join(", "))
}

/// The document of `slipway restore`.
pub(super) fn document(rows: &[Row]) -> Restore {
    Restore { ok: is_ok(rows), items: rows.iter().map(object).collect() }
}

fn object(row: &Row) -> RestoreItem {
    let owner = row.owner.as_ref();
    RestoreItem {
        network: owner.map(|owner| owner.network().to_owned()),
        container: owner.map(|owner| owner.container_id().to_owned()),
        interface: owner.map(|owner| owner.ifname().to_owned()),
        item: row.item.clone(),
        state: row.state,
        reason: row.reason.clone(),
    }
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
            1 restored, 0 missing, 1 present, 0 skipped, 0 failed
        "#]]
        .assert_eq(&String::from_utf8(out).unwrap());
        let document = document(&rows);
        checks::assert_documented("slipway restore", std::slice::from_ref(&document));
        assert!(document.ok);
        assert_eq!(document.items[1].container.as_deref(), Some("web"));
        assert_eq!(document.items[0].network, None);
    }
}
