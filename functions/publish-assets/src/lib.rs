//! `cdkd-publish-assets`: files and folders of the assembly become objects, before the resources that refer to them are
//! touched.
//!
//! What is to be published lies in the run's `assets.json`. What is there already is left alone as far as that is safe
//! ([`cdkd_core::assets::skip`]); the rest is copied, or packed as it is written. Memory is bounded whatever the sizes,
//! and so is time: near the limit nothing new begins, and the next invocation goes on, since what this one published is
//! there then.

mod plan;
mod probe;
mod sink;
mod source;
mod work;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use cdkd_aws::edge::Invocation;
use cdkd_aws::stack::{Run, StackRef};
use cdkd_aws::store::objects::Refusal;
use cdkd_core::assembly::input::Location;
use cdkd_core::assets::collect::{File, Files, denied, merge};
use cdkd_core::{Code, Error, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use plan::Job;
use source::Source;

#[derive(Deserialize)]
struct Event {
    run: Run,
    /// One stack, or
    stack: Option<StackRef>,
    /// all of a run that does nothing else.
    #[serde(default)]
    stacks: Vec<StackRef>,
}

/// `{run, stack}` or `{run, stacks}` → `{done, published, skipped, left}`; unless `done`, to be invoked again.
pub async fn handle(event: Value, invocation: Invocation) -> Result<Value> {
    let event: Event = serde_json::from_value(event)
        .map_err(|error| Error::new(Code::InvalidInput, format!("the payload of publish-assets: {error}")))?;
    if event.run.dry_run {
        return Err(Error::new(Code::InvalidInput, "a dry run publishes nothing"));
    }
    let stacks: Vec<StackRef> = event.stack.into_iter().chain(event.stacks).collect();
    let Files { assembly, files } = lists(&invocation, &event.run, &stacks).await?;
    if files.is_empty() {
        return Ok(json!({ "done": true, "published": 0, "skipped": 0, "left": 0 }));
    }
    let location = Location::parse(&assembly).ok_or_else(|| {
        Error::new(Code::InvalidState, "`assets.json` of the run names no assembly")
            .detail("assembly", assembly.as_str())
    })?;
    let source = Source::open(&invocation, &location).await?;
    let jobs = plan::plan(&source, &files, &event.run.execution)?;
    let publishing = Publishing::new(&invocation, &source);
    let total = jobs.len();
    let missing = publishing.missing(jobs).await?;
    let skipped = total - missing.len();
    let wanted = missing.len();
    publishing.publish(missing).await;
    let published = publishing.published.get();
    Error::all(publishing.errors.take())?;
    let left = wanted - published;
    if left > 0 && published == 0 {
        return Err(publishing.too_slow());
    }
    Ok(json!({ "done": left == 0, "published": published, "skipped": skipped, "left": left }))
}

/// The lists of the stacks as one, each object once.
async fn lists(invocation: &Invocation, run: &Run, stacks: &[StackRef]) -> Result<Files> {
    let mut all = Files::default();
    for stack in stacks {
        let key = run.stack_document(&stack.key()?, "assets.json");
        let list: Files = serde_json::from_value(invocation.read_run(&key).await?).map_err(|error| {
            Error::new(Code::InvalidState, format!("the document `{key}` has another form: {error}"))
        })?;
        all.assembly = list.assembly;
        all.files.extend(list.files);
    }
    all.files = merge(all.files)?;
    Ok(all)
}

/// One invocation's work.
pub(crate) struct Publishing<'a> {
    invocation: &'a Invocation,
    source: &'a Source,
    /// What is kept of the time limit for the way out: a fifth, at most 15 s.
    margin: Duration,
    published: Cell<usize>,
    /// After the first, nothing new begins.
    errors: RefCell<Vec<Error>>,
    /// The asset that time ran out on.
    slow: RefCell<Option<String>>,
}

impl<'a> Publishing<'a> {
    fn new(invocation: &'a Invocation, source: &'a Source) -> Self {
        let limit = invocation.left(Duration::ZERO);
        Self {
            invocation,
            source,
            margin: (limit / 5).min(Duration::from_secs(15)),
            published: Cell::new(0),
            errors: RefCell::default(),
            slow: RefCell::default(),
        }
    }

    /// Whether this one may not begin: time is short, or something failed.
    fn is_over(&self, job: &Job<'_>) -> bool {
        if self.is_late() {
            self.ran_out_on(job);
        }
        self.is_late() || !self.errors.borrow().is_empty()
    }

    fn ran_out_on(&self, job: &Job<'_>) {
        self.slow.borrow_mut().get_or_insert_with(|| job.file.name.clone());
    }

    fn is_late(&self) -> bool {
        self.invocation.left(self.margin).is_zero()
    }

    fn failed(&self, error: Error) {
        self.errors.borrow_mut().push(error);
    }

    /// What a refused call on a destination means.
    fn explain(&self, file: &File, refusal: Refusal) -> Error {
        let account = self.invocation.settings.account.as_str();
        match refusal {
            Refusal::Denied { permission, said } => denied(file, permission, &said, account),
            Refusal::NoBucket => Error::new(
                Code::BucketUnavailable,
                format!("asset `{}` could not be published: bucket `{}` does not exist", file.name, file.bucket),
            )
            .hint(
                "make the asset storage of that region with `cdkd-bootstrap`, or with `cdk bootstrap` where the app \
                 is to use that of CDK",
            )
            .detail("bucket", file.bucket.as_str()),
            Refusal::Other(error) => error.detail("asset", file.name.as_str()),
        }
    }

    /// Nothing got through in a whole invocation, nor would it in the next.
    fn too_slow(&self) -> Error {
        let name = self.slow.borrow().clone().unwrap_or_default();
        Error::new(
            Code::AssetTooLarge,
            format!("asset `{name}` could not be published within the time limit of `cdkd-publish-assets`"),
        )
        .hint("raise the template's parameters `FunctionTimeLimit` and `MemorySize` (CPU comes with memory), or make the asset smaller")
        .detail("asset", name)
    }
}
