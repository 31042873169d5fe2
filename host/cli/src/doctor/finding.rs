//! What was looked at, and what to do about it.

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// Works, but slower or less safely than it could.
    Warning,
    /// Does not work.
    Failure,
}

impl Status {
    /// A sign for tables.
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Note => "note",
            Self::Warning => "warn",
            Self::Failure => "FAIL",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    pub what: String,
    pub status: Status,
    pub found: String,
    /// What to do, where something can be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    pub fn good(what: &str, found: impl Into<String>) -> Self {
        Self { what: what.to_owned(), status: Status::Good, found: found.into(), remedy: None }
    }

    pub fn note(what: &str, found: impl Into<String>, remedy: &str) -> Self {
        Self::with(Status::Note, what, found, remedy)
    }

    pub fn warning(what: &str, found: impl Into<String>, remedy: &str) -> Self {
        Self::with(Status::Warning, what, found, remedy)
    }

    pub fn failure(what: &str, found: impl Into<String>, remedy: &str) -> Self {
        Self::with(Status::Failure, what, found, remedy)
    }

    fn with(status: Status, what: &str, found: impl Into<String>, remedy: &str) -> Self {
        let remedy = (!remedy.is_empty()).then(|| remedy.to_owned());
        Self { what: what.to_owned(), status, found: found.into(), remedy }
    }
}
