// SPDX-License-Identifier: GPL-2.0-or-later

//! Owners whose container is gone and that no DEL has removed.

use cni_dataplane::Owner;
use cni_dataplane::owner_search;

use super::{Finding, State};

/// The number of owners that the finding names.
const NAMED: usize = 3;

/// The owners whose namespace is gone; none if there are none.
pub(super) fn gone() -> Option<Finding> {
    match owner_search::gone() {
        Ok(owners) => finding(&owners),
        Err(error) => Some(
            Finding::new("owners", State::Warning, error.to_string())
                .reason("it is unknown whether containers that are gone have left something")
                .fix("see the error"),
        ),
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
        Finding::new("owners", State::Warning, found)
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
