//! The Lambda edge: one event in, one call, a result or a typed error out.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_smithy_types::retry::ReconnectMode;
use cdkd_core::{Code, Error, Result};
use futures::FutureExt as _;
use lambda_runtime::tracing::{self, Level};
use lambda_runtime::{Diagnostic, LambdaEvent, service_fn};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::settings::{self, Settings};
use crate::{Aws, cloud_control, executions, store};

/// What ends a process before it can take events.
pub type Fatal = Box<dyn std::error::Error + Send + Sync>;

/// What a handler knows beside its event.
#[derive(Clone)]
pub struct Invocation {
    pub aws: Rc<Aws>,
    pub settings: Rc<Settings>,
    /// When Lambda ends this invocation.
    pub deadline: i64,
    pub request_id: String,
}

impl Invocation {
    /// The time that is left, keeping `margin` for the way out.
    pub fn left(&self, margin: Duration) -> Duration {
        let left = self.deadline - settings::now() - i64::try_from(margin.as_millis()).unwrap_or(0);
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }
}

/// Serves a function until Lambda ends the process.
///
/// Errors cross as the code's name and the JSON cause; a panic is an `InternalError`.
pub fn run<H, F>(handler: H) -> Result<(), Fatal>
where
    H: Fn(Value, Invocation) -> F,
    F: Future<Output = Result<Value>>,
{
    start_logging();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let clients: OnceCell<(Rc<Aws>, Rc<Settings>)> = OnceCell::new();
        let clients = &clients;
        let handler = &handler;
        lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| async move {
            let context = event.context;
            let work = async {
                let (aws, settings) = clients.get_or_try_init(connect).await?;
                let invocation = Invocation {
                    aws: Rc::clone(aws),
                    settings: Rc::clone(settings),
                    deadline: i64::try_from(context.deadline).unwrap_or(i64::MAX),
                    request_id: context.request_id,
                };
                // Boxed: the handlers are deep state machines, whose layout in one piece is too much for the compiler.
                Box::pin(handler(event.payload, invocation)).await
            };
            let outcome =
                AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| Err(panicked(&*panic)));
            outcome.map_err(|error| {
                tracing::warn!(code = error.code().name(), message = error.message(), "failed");
                Failed(error)
            })
        }))
        .await
    })
}

#[derive(Debug)]
struct Failed(Error);

impl From<Failed> for Diagnostic {
    fn from(Failed(error): Failed) -> Self {
        Diagnostic { error_type: error.code().name().to_owned(), error_message: error.cause().to_string() }
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let what = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic".to_owned());
    Error::new(Code::InternalError, format!("cdkd stopped in the middle of its work: {what}"))
        .hint("start the execution again; what was done is on record. Please report this")
}

/// JSON lines to the function's log group. The SDK and HTTP are capped at warnings whatever the level asked for:
/// at `debug` they print bodies (promise 2).
fn start_logging() {
    use tracing::subscriber::filter::Targets;
    use tracing::subscriber::fmt;
    use tracing::subscriber::layer::SubscriberExt as _;
    use tracing::subscriber::util::SubscriberInitExt as _;

    let level = match settings::variable("AWS_LAMBDA_LOG_LEVEL").as_deref() {
        Some("TRACE" | "DEBUG") => Level::DEBUG,
        Some("WARN") => Level::WARN,
        Some("ERROR" | "FATAL") => Level::ERROR,
        _ => Level::INFO,
    };
    let mut targets = Targets::new().with_default(Level::WARN.min(level));
    for own in [
        "cdkd_aws",
        "cdkd_core",
        "bootstrap",
        "provision",
        "publish_assets",
        "read_assembly",
        "rebuild_index",
        "resolve",
        "save_state",
        "strong_ref_scan",
        "cdkd_local",
    ] {
        targets = targets.with_target(own, level);
    }
    let lines = fmt::layer().json().with_ansi(false).without_time().with_current_span(false);
    // A second call in one process is a test's; the first subscriber stays.
    let _ = tracing::subscriber::registry().with(targets).with(lines).try_init();
}

/// Settings and clients as the environment says.
pub async fn connect() -> Result<(Rc<Aws>, Rc<Settings>)> {
    let settings = Settings::load()?;
    let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let config = aws_config::defaults(BehaviorVersion::v2026_01_12())
        .http_client(http)
        .region(aws_config::Region::new(settings.region.to_string()))
        // A function that was frozen finds its connections dead: short connects, bounded attempts, several tries (F6).
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(Duration::from_secs(3))
                .read_timeout(Duration::from_secs(20))
                .operation_attempt_timeout(Duration::from_mins(1))
                .build(),
        )
        .retry_config(
            RetryConfig::standard()
                .with_max_attempts(4)
                .with_reconnect_mode(ReconnectMode::ReconnectOnTransientError),
        )
        .load()
        .await;
    let aws = Aws {
        store: store::Store::new(&config, &settings),
        cloud_control: Rc::new(cloud_control::CloudControl::new(&config, settings.exec_role.clone())),
        executions: executions::Executions::new(&config),
        config,
    };
    Ok((Rc::new(aws), Rc::new(settings)))
}
