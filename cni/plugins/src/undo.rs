// SPDX-License-Identifier: GPL-2.0-or-later

//! Undo of the steps of an ADD that fails.

use std::fmt::Display;

/// Undo steps, which run last to first when the value is dropped, unless [`Undo::keep`] was called. A step
/// that fails is logged and the others still run: the runtime's DEL removes the rest.
#[derive(Default)]
pub struct Undo<'a> {
    steps: Vec<Step<'a>>,
}

struct Step<'a> {
    what: String,
    run: Box<dyn FnOnce() -> Result<(), String> + 'a>,
}

impl<'a> Undo<'a> {
    /// Starts without steps.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers an undo step. `what` names it in the log.
    pub(crate) fn on_failure<E: Display>(
        &mut self,
        what: impl Into<String>,
        run: impl FnOnce() -> Result<(), E> + 'a,
    ) {
        let what = what.into();
        log::trace!("undo registered: {what}");
        let run = Box::new(move || run().map_err(|error| error.to_string()));
        self.steps.push(Step { what, run });
    }

    /// Drops all steps, after the ADD has succeeded.
    pub fn keep(mut self) {
        self.steps.clear();
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        while let Some(step) = self.steps.pop() {
            match (step.run)() {
                Ok(()) => log::debug!("undo: {}: done", step.what),
                Err(error) => log::warn!("undo: {}: {error}", step.what),
            }
        }
    }
}

impl std::fmt::Debug for Undo<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.steps.iter().map(|step| &step.what)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn run(keep: bool) -> Vec<&'static str> {
        let log = RefCell::new(Vec::new());
        let mut undo = Undo::new();
        for what in ["first", "second", "third"] {
            let log = &log;
            undo.on_failure(what, move || {
                log.borrow_mut().push(what);
                if what == "second" { Err("cannot") } else { Ok(()) }
            });
        }
        assert_eq!(format!("{undo:?}"), r#"["first", "second", "third"]"#);
        if keep {
            undo.keep();
        } else {
            drop(undo);
        }
        log.into_inner()
    }

    #[test]
    fn steps_run_last_to_first_also_after_a_failure() {
        assert_eq!(run(false), ["third", "second", "first"]);
    }

    #[test]
    fn nothing_runs_after_success() {
        assert!(run(true).is_empty());
    }
}
