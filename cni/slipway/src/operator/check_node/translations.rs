// SPDX-License-Identifier: GPL-2.0-or-later

//! Rules of other programs that translate packets to published ports first.

use cni_dataplane::foreign_nat::{Engine, ForeignNat, Hook, Translation};
use cni_dataplane::whereabouts::Whereabouts;
use cni_dataplane::{Backend, Dataplane, Error, Listed};

use super::{Finding, State, judged};

/// The number of rules that are named.
const NAMED: usize = 20;

/// All findings about these rules.
pub(super) fn findings() -> Vec<Finding> {
    judged("translations of other programs", translated(), |found| {
        found.iter().map(|(listed, first)| finding(listed, first)).collect::<Vec<_>>()
    })
}

/// The published ports whose packets another program may translate first.
fn translated() -> Result<Vec<(Listed, Translation)>, Error> {
    let Some(foreign) = ForeignNat::open(Hook::Prerouting)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for listed in Dataplane::default().list()? {
        let host = listed.port.host;
        if let Some(first) = foreign.first(&ForeignNat::probe(&host, host.first))? {
            all.push((listed, first));
            if all.len() == NAMED {
                break;
            }
        }
    }
    Ok(all)
}

fn finding(listed: &Listed, first: &Translation) -> Finding {
    let found = if first.is_certain {
        format!("{first}")
    } else {
        format!("{first} if its conditions hold, which depend on the packet")
    };
    let (reason, fix) = advice(first);
    let owner = listed.owner.as_ref().map(|owner| format!(" of {owner}")).unwrap_or_default();
    let what = format!("host port {}{owner}", listed.port.host);
    let state = if first.is_certain { State::Warning } else { State::Note };
    Finding::new(what, state, found).reason(reason).fix(fix)
}

/// Why a rule is there, and what to do about it. Only what was left behind is to be deleted.
pub(in crate::operator) fn advice(first: &Translation) -> (String, String) {
    let before = format!("{} comes first (priority {})", first.base_chain(), first.priority);
    let by = first.engine.name().map(|name| format!(", {name}'s")).unwrap_or_default();
    if first.engine == Engine::KubeProxy {
        let fix = "publish another port, or change the Service; kube-proxy would write a deleted rule again";
        return (format!("{before}{by}: a Service has the port"), fix.to_owned());
    }
    let place = first.to.map_or(Whereabouts::Elsewhere, Whereabouts::of);
    match place {
        Whereabouts::Here(place) => (
            format!("{before}{by}; {} is alive: {place}", first.target()),
            "publish another port, or stop what has this one; the rule is in use".to_owned(),
        ),
        Whereabouts::Nowhere(why) => {
            (format!("{before}{by}; the rule was left behind: {why}"), format!("`{}`", first.deletion()))
        }
        Whereabouts::Elsewhere => (
            format!("{before}{by}; {} may be on another host", first.target()),
            format!("if nothing needs the rule any more: `{}`; else publish another port", first.deletion()),
        ),
    }
}
