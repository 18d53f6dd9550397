//! What can go wrong between a test and the local AWS.

use std::fmt;
use std::io;
use std::path::Path;

/// A refused call, or anything else.
#[derive(Debug)]
pub enum Error {
    /// AWS answered with an error.
    Service { operation: String, status: u16, code: String, message: String },
    /// A Lambda function failed: its error's type and message.
    Function { name: String, kind: String, message: String },
    /// Something else: a process, a file, an answer that does not parse.
    Other(String),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The code of a refused call or the type of a function's error.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Service { code, .. } | Self::Function { kind: code, .. } => Some(code),
            Self::Other(_) => None,
        }
    }

    pub(crate) fn other(message: impl Into<String>) -> Self {
        Self::Other(message.into())
    }

    /// An error of the file system, with the path it is about.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Other(format!("{}: {error}", path.display()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service { operation, status, code, message } => {
                write!(f, "{operation}: {code} ({status}): {message}")
            }
            Self::Function { name, kind, message } => write!(f, "function {name}: {kind}: {message}"),
            Self::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for String {
    fn from(error: Error) -> Self {
        error.to_string()
    }
}

/// Turns "there is no such thing" into `None`.
pub(crate) fn optional<T>(result: Result<T>, absent: &[&str]) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.code().is_some_and(|code| absent.contains(&code)) => Ok(None),
        Err(error) => Err(error),
    }
}
