// SPDX-License-Identifier: GPL-2.0-or-later

//! Owners whose container is gone and that no DEL has removed.

use std::fmt::Display;

use cni_dataplane::Owner;
use cni_dataplane::owner_search::{self, GoneOwners};

use super::{Finding, State};

/// The subject of the findings.
const WHAT: &str = "owners";
/// The number of owners that the finding names.
const NAMED: usize = 3;

/// The owners whose namespace is gone; none if there are none.
pub(super) fn gone() -> Vec<Finding> {
    let unread = |error: &dyn Display| {
        Finding::unread(WHAT, &error)
            .reason("it is unknown whether containers that are gone have left something")
            .fix("see the error")
    };
    match owner_search::gone() {
        Ok(GoneOwners { owners, unknown }) => {
            finding(&owners).into_iter().chain(unknown.first().map(|error| unread(error))).collect()
        }
        Err(error) => vec![unread(&error)],
    }
}

fn finding(owners: &[Owner]) -> Option<Finding> {
    let (first, others) = (owners.get(..NAMED.min(owners.len()))?, owners.len().saturating_sub(NAMED));
    if first.is_empty() {
        return None;
    }
    let noun = if owners.len() == 1 { "owner" } else { "owners" };
    let found = format!("{} {noun} whose namespace is gone", owners.len());
    let commands: Vec<String> = first.iter().map(|owner| format!("`{}`", owner.detach_command())).collect();
    let mut fix = commands.join(", ");
    if others > 0 {
        fix.push_str(&format!(", and the same for {others} more; or a GC by the runtime"));
    }
    Some(
        Finding::new(WHAT, State::Warning, found)
            .reason("no DEL came for them: their ports and addresses stay reserved until another container asks for them")
            .fix(fix),
    )
}

#[cfg(test)]
mod tests {
    use cni_spec::Attachment;

    use super::*;

    #[test]
    fn the_first_owners_are_named_and_the_others_counted() {
        let owner = |id: &str| Owner::of(&Attachment::new("pods", id, "eth0").unwrap());
        assert_eq!(finding(&[]), None);
        let one = finding(&[owner("a")]).unwrap();
        assert_eq!(
            (one.found.as_str(), one.fix.as_str()),
            ("1 owner whose namespace is gone", "`slipway detach pods a eth0`")
        );
        let four = finding(&["a", "b", "c", "d"].map(owner)).unwrap();
        assert_eq!(four.found, "4 owners whose namespace is gone");
        assert!(
            four.fix
                .ends_with("`slipway detach pods c eth0`, and the same for 1 more; or a GC by the runtime")
        );
    }
}
