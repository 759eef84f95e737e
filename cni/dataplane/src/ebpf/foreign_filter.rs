// SPDX-License-Identifier: GPL-2.0-or-later

//! Filters of other programs that come before ours. A final verdict of such a filter ends the list, so our programs do
//! not see the packet, and netfilter handles it.

use std::fmt;

use aya::programs::{SchedClassifier, TcAttachType};
use cni_kernel::route::{Hook, Link, RouteSocket};

use super::links::PREFERENCE;
use crate::Error;

/// A filter of another program that comes before ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignFilter {
    pub link: String,
    /// The hook of tc(8): `ingress` or `egress`.
    pub hook: &'static str,
    /// The filter's kind, as tc(8) prints it; `tcx` for a BPF program that comes before all filters.
    pub kind: String,
    /// The filter's preference. None with `tcx`.
    pub preference: Option<u16>,
}

impl ForeignFilter {
    /// True for a filter like the bandwidth plugin's, ours or the reference's, which redirects the packets that a
    /// container sends to the queue that limits their rate.
    #[must_use]
    pub fn is_rate_limit(&self) -> bool {
        // Earlier versions used the last preference, 0xc000.
        self.hook == "ingress" && self.kind == "u32" && matches!(self.preference, Some(1 | 0xc000))
    }
}

impl fmt::Display for ForeignFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { link, hook, kind, preference } = self;
        match preference {
            Some(preference) => write!(f, "{link} {hook}: {kind}, preference {preference}"),
            None => write!(f, "{link} {hook}: {kind}"),
        }
    }
}

/// The number of BPF programs that see the packets that a link receives before any filter does.
#[must_use]
pub fn programs_before_filters(link: &str) -> usize {
    // tcx exists since Linux 6.6.
    SchedClassifier::query_tcx(link, TcAttachType::Ingress).map_or(0, |(_, programs)| programs.len())
}

/// The filters and programs that come before ours at a link.
pub(super) fn at(socket: &RouteSocket, link: &Link) -> Result<Vec<ForeignFilter>, Error> {
    let mut found = Vec::new();
    for (hook, name, side) in
        [(Hook::Ingress, "ingress", TcAttachType::Ingress), (Hook::Egress, "egress", TcAttachType::Egress)]
    {
        let filter =
            |kind, preference| ForeignFilter { link: link.name.clone(), hook: name, kind, preference };
        // tcx exists since Linux 6.6.
        let (_, programs) = SchedClassifier::query_tcx(&link.name, side).unwrap_or_default();
        found.extend(programs.iter().map(|_| filter("tcx".to_owned(), None)));
        let filters = socket.filters(link.index, hook);
        let filters = filters.map_err(|e| Error::kernel(format!("list the filters of {}", link.name), e))?;
        let before = filters.into_iter().filter(|one| one.preference < PREFERENCE);
        found.extend(before.map(|one| filter(one.kind, Some(one.preference))));
    }
    Ok(found)
}
