//! Taking back what an ADD has done when a later step fails.

use std::fmt::Display;

/// Steps that take things back, run last to first when the value goes, unless [`Undo::keep`] was
/// called. A step that fails is logged, and the others run all the same: the runtime's DEL finds
/// whatever is left.
#[derive(Default)]
pub struct Undo<'a> {
    steps: Vec<Step<'a>>,
}

struct Step<'a> {
    what: String,
    run: Box<dyn FnOnce() -> Result<(), String> + 'a>,
}

impl<'a> Undo<'a> {
    /// Nothing to take back yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers how to take back what was just done. `what` names it for the log.
    pub fn on_failure<E: Display>(
        &mut self,
        what: impl Into<String>,
        run: impl FnOnce() -> Result<(), E> + 'a,
    ) {
        let what = what.into();
        log::trace!("undo registered: {what}");
        let run = Box::new(move || run().map_err(|error| error.to_string()));
        self.steps.push(Step { what, run });
    }

    /// All went well: nothing is taken back.
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
    fn steps_run_last_to_first_and_past_failures() {
        assert_eq!(run(false), ["third", "second", "first"]);
    }

    #[test]
    fn nothing_runs_after_success() {
        assert!(run(true).is_empty());
    }
}
