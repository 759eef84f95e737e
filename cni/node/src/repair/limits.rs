// SPDX-License-Identifier: GPL-3.0-or-later

//! The rate limits of containers' links, as they were when they were last read: the kernel reports that a queue or a filter
//! has changed, but not what it was before.

use std::collections::BTreeMap;

use cni_dataplane::Owner;
use cni_kernel::route::{Link, RouteError, RouteSocket, TokenBucket, Verdict};

/// The limits by the index of the link.
#[derive(Debug, Default)]
pub(super) struct Limits(BTreeMap<u32, Limit>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Limit {
    queue: Option<TokenBucket>,
    /// The links that received packets are redirected to.
    redirections: Vec<u32>,
}

impl Limits {
    /// Reads the limits of all links.
    pub(super) fn read(socket: &RouteSocket, links: &[Link]) -> Result<Self, RouteError> {
        let mut all = Self::default();
        for link in links.iter().filter(|link| Owner::from_comment(&link.alias).is_some()) {
            all.has_lost(socket, link)?;
        }
        Ok(all)
    }

    /// True if the link has a limit, or had one when it was last read.
    pub(super) fn has(&self, link: u32) -> bool {
        self.0.get(&link).is_some_and(|limit| limit.queue.is_some() || !limit.redirections.is_empty())
    }

    /// Forgets the limits of a link that is gone. Returns the links that were redirected to it.
    pub(super) fn forget(&mut self, link: u32) -> Vec<u32> {
        self.0.remove(&link);
        let redirected = self.0.iter().filter(|(_, limit)| limit.redirections.contains(&link));
        redirected.map(|(index, _)| *index).collect()
    }

    /// Reads the limits of a link again. True if a limit is gone or has changed, or if a filter takes packets before
    /// the limit. An additional limit is that of an ADD.
    pub(super) fn has_lost(&mut self, socket: &RouteSocket, link: &Link) -> Result<bool, RouteError> {
        let queue = socket.token_bucket(link)?;
        let redirections = socket.redirections(link)?;
        let mut is_lost = false;
        for to in &redirections {
            let before = socket.before_redirection(link, *to)?.unwrap_or_default();
            is_lost |= before.iter().any(|filter| filter.verdict == Verdict::Final);
        }
        let now = Limit { queue, redirections };
        let earlier = self.0.insert(link.index, now.clone());
        Ok(is_lost || earlier.is_some_and(|earlier| earlier.is_more_than(&now)))
    }
}

impl Limit {
    fn is_more_than(&self, now: &Self) -> bool {
        self.queue.is_some() && self.queue != now.queue
            || self.redirections.iter().any(|link| !now.redirections.contains(link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_add_makes_is_no_loss() {
        let queue = |rate| Some(TokenBucket::new(rate, 10_000, 25_000));
        let limit = |queue, redirections: &[u32]| Limit { queue, redirections: redirections.to_vec() };
        for (earlier, now, is_lost) in [
            (limit(None, &[]), limit(queue(1000), &[7]), false),
            (limit(queue(1000), &[7]), limit(queue(1000), &[7]), false),
            (limit(queue(1000), &[7]), limit(queue(1001), &[7]), true),
            (limit(queue(1000), &[]), limit(None, &[]), true),
            (limit(None, &[7]), limit(None, &[0]), true),
        ] {
            assert_eq!(earlier.is_more_than(&now), is_lost, "{earlier:?} {now:?}");
        }
    }

    #[test]
    fn links_whose_target_is_gone_are_known() {
        let limit = |to: u32| Limit { queue: None, redirections: vec![to] };
        let none = Limit { queue: None, redirections: Vec::new() };
        let mut limits = Limits([(3, limit(7)), (4, limit(8)), (5, none), (7, limit(9))].into());
        assert_eq!([3, 5, 6].map(|link| limits.has(link)), [true, false, false]);
        assert_eq!((limits.forget(7), limits.forget(7), limits.forget(9)), (vec![3], vec![3], vec![]));
    }
}
