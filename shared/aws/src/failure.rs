//! From the SDK's errors to the domain's, in one place.

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use cdkd_core::{Code, Error};

/// What AWS said, before anyone judges it.
#[derive(Debug)]
pub struct Failure {
    /// The HTTP status; `None` when no answer came.
    pub status: Option<u16>,
    /// The error code of the service, such as `NoSuchKey`.
    pub code: String,
    pub message: String,
}

impl Failure {
    /// Takes apart what a client returned.
    pub fn of<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> Self {
        match error {
            SdkError::ServiceError(context) => Self {
                status: Some(context.raw().status().as_u16()),
                code: context.err().code().unwrap_or_default().to_owned(),
                message: context.err().message().unwrap_or_default().to_owned(),
            },
            SdkError::ResponseError(context) => Self {
                status: Some(context.raw().status().as_u16()),
                code: String::new(),
                message: "the answer does not have the documented form".to_owned(),
            },
            SdkError::TimeoutError(_) => {
                Self { status: None, code: "Timeout".into(), message: "no answer in time".into() }
            }
            SdkError::DispatchFailure(failure) => {
                let message = failure.as_connector_error().map_or_else(
                    || "the request could not be sent".to_owned(),
                    |error| format!("the connection failed: {}", chain(error)),
                );
                Self { status: None, code: "Connection".into(), message }
            }
            other => Self {
                status: None,
                code: String::new(),
                message: format!("the request was not sent: {other}"),
            },
        }
    }

    /// Whether AWS asks for fewer calls.
    pub fn throttled(&self) -> bool {
        self.status == Some(429)
            || self.status == Some(503) && self.code == "SlowDown"
            || ["Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded"]
                .contains(&self.code.as_str())
    }

    /// Whether it is unknown if the call took effect: no answer, or an answer of a service in trouble.
    pub fn unknown(&self) -> bool {
        self.status.is_none_or(|status| status >= 500)
    }

    /// The domain's error for a failure that nothing more special explains. `doing`: "read `key` of bucket `b`".
    pub fn into_error(self, doing: &str) -> Error {
        let said = match (self.code.is_empty(), self.message.is_empty()) {
            (false, false) => format!("{}: {}", self.code, self.message),
            (false, true) => self.code.clone(),
            _ => self.message.clone(),
        };
        let what = format!("could not {doing}: {said}");
        if self.throttled() {
            Error::new(Code::Throttled, what)
        } else if self.unknown() {
            Error::new(Code::ServiceUnavailable, what)
        } else if matches!(self.status, Some(401 | 403)) {
            Error::new(Code::AccessDenied, what).hint(
                "grant the permission to the role of the function that `details.function` or the log names",
            )
        } else {
            Error::new(Code::ProvisioningFailed, what)
        }
        .detail("awsCode", self.code)
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
