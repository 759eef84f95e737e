// SPDX-License-Identifier: GPL-2.0-or-later

//! Tells the programs, for slipwayd, which rules decide about single packets, and what is attached to the containers'
//! links.

use super::rules::{self, Extent};
use super::{containers, setup, store};
use crate::Error;

/// Keeps the programs informed about rules and containers' links for slipwayd, as long as [`Self::look`] is called.
#[derive(Debug, Default)]
pub struct Follower {
    legacy: Vec<u8>,
    has_read: bool,
}

impl Follower {
    /// Checks the containers' links, and reads the rules if `are_other` is true or the legacy tables have changed.
    /// Does nothing on a node without the programs. Call this once a second.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel refuses a request. The next call tries again.
    pub fn look(&mut self, are_other: bool) -> Result<(), Error> {
        // Rules that changed during a call that failed are read by a later call.
        self.has_read &= !are_other;
        let Some(store) = setup::find()? else {
            self.has_read = false;
            return Ok(());
        };
        if !store.is_set_up()? {
            return Ok(());
        }
        let legacy = rules::legacy_sign();
        if !self.has_read || legacy != self.legacy {
            rules::follow(&store, Extent::Whole)?;
            (self.legacy, self.has_read) = (legacy, true);
        }
        store.write_followed()?;
        if containers::look(&store)? { store::next_epoch() } else { Ok(()) }
    }
}
