// SPDX-License-Identifier: GPL-2.0-or-later

//! The errors of a DEL or a GC, which continue after an error.

use cni_spec::CniError;

/// The errors of independent steps. The first one determines the code.
#[derive(Default)]
pub(crate) struct Failures(Vec<CniError>);

impl Failures {
    /// Adds the error, if it is one.
    pub(crate) fn collect(&mut self, result: Result<(), CniError>) {
        self.0.extend(result.err());
    }

    pub(super) fn keep<T>(&mut self, result: Result<T, CniError>) -> Option<T> {
        result.map_err(|error| self.0.push(error)).ok()
    }

    /// Adds the dataplane's error if the configuration asks for the feature, otherwise logs it.
    pub(super) fn collect_if(&mut self, wanted: bool, result: Result<(), cni_dataplane::Error>) {
        match result.map_err(CniError::from) {
            Err(error) if !wanted => {
                log::warn!("remove entries of a feature that is not configured: {error}");
            }
            other => self.collect(other),
        }
    }

    /// Adds the errors of other steps.
    pub(super) fn append(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }

    /// Joins all errors: the first one, with the others in its details.
    pub(crate) fn into_result(self) -> Result<(), CniError> {
        let mut errors = self.0.into_iter();
        let Some(first) = errors.next() else { return Ok(()) };
        Err(errors.fold(first, |all, next| {
            let details = if all.details.is_empty() { String::new() } else { format!("{}; ", all.details) };
            CniError { details: format!("{details}also: {next}"), ..all }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_joined() {
        let mut failures = Failures::default();
        failures.collect(Ok(()));
        assert_eq!(std::mem::take(&mut failures.0), []);
        failures.collect(Err(CniError::config("first")));
        failures.collect(Err(CniError::internal("second")));
        failures.collect(Err(CniError::internal("third").with_details("why")));
        let error = failures.into_result().unwrap_err();
        assert_eq!((error.msg.as_str(), error.code.number()), ("first", 7));
        assert_eq!(error.details, "also: second; also: third; why");
    }
}
