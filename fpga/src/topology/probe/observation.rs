//! One thing that was looked at.

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grade {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// May not work.
    Warning,
    /// Does not work.
    Failure,
}

/// What was looked at, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// What was looked at.
    pub what: String,
    /// How bad it is.
    pub grade: Grade,
    /// What was found.
    pub found: String,
    /// What to do, where something can be done.
    pub remedy: Option<String>,
}

impl Observation {
    pub(super) fn good(what: &str, found: impl Into<String>) -> Self {
        Self { what: what.into(), grade: Grade::Good, found: found.into(), remedy: None }
    }

    pub(super) fn note(what: &str, found: impl Into<String>) -> Self {
        Self { grade: Grade::Note, ..Self::good(what, found) }
    }

    pub(super) fn warning(what: &str, found: impl Into<String>) -> Self {
        Self { grade: Grade::Warning, ..Self::good(what, found) }
    }

    pub(super) fn failure(what: &str, found: impl Into<String>) -> Self {
        Self { grade: Grade::Failure, ..Self::good(what, found) }
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}
