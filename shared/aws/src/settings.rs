//! The environment of a function: each variable is read here and nowhere else (`docs/contracts.md` lists them).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cdkd_core::name::{Account, Region};
use cdkd_core::{Code, Error, Result};

/// What the installation tells every function.
#[derive(Clone, Debug)]
pub struct Settings {
    pub account: Account,
    pub region: Region,
    pub state_bucket: String,
    pub prefix: String,
    pub runs_bucket: String,
    /// The role that Cloud Control acts through; only `provision` has it.
    pub exec_role: Option<String>,
}

/// A variable of the environment, if it is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Settings {
    /// Reads the environment; a missing or malformed variable is named.
    pub fn load() -> Result<Self> {
        let need = |name: &str| {
            variable(name).ok_or_else(|| {
                Error::new(Code::InternalError, format!("the environment variable `{name}` is not set"))
                    .hint("functions get it from `infra/template.yaml`; install the template that belongs to this code")
            })
        };
        let account: Account = need("CDKD_ACCOUNT")?.parse()?;
        let region: Region = need("AWS_REGION")?.parse()?;
        Ok(Self {
            state_bucket: variable("CDKD_STATE_BUCKET").unwrap_or_else(|| format!("cdkd-state-{account}")),
            prefix: variable("CDKD_STATE_PREFIX").unwrap_or_else(|| "cdkd".to_owned()),
            runs_bucket: variable("CDKD_RUNS_BUCKET")
                .unwrap_or_else(|| format!("cdkd-runs-{account}-{region}")),
            exec_role: variable("CDKD_EXEC_ROLE"),
            account,
            region,
        })
    }
}

/// Now, in milliseconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Now, in ISO 8601: `2026-12-01T12:00:00Z`.
pub fn timestamp() -> String {
    let now = aws_smithy_types::DateTime::from_secs(now() / 1000);
    now.fmt(aws_smithy_types::date_time::Format::DateTime).unwrap_or_default()
}

/// 16 random bytes: a nonce, or the body of a UUID.
pub fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(Code::InternalError, format!("the system gives no random bytes: {error}"))
    })?;
    Ok(bytes)
}

/// A random nonce, 32 hexadecimal digits.
pub fn nonce() -> Result<String> {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(32);
    for byte in random()? {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// A share of `span` between a half and all of it, for backing off with jitter.
pub fn jitter(span: Duration) -> Duration {
    let byte = random().map_or(255, |bytes| bytes[0]);
    span.mul_f64(0.5 + f64::from(byte) / 510.0)
}
