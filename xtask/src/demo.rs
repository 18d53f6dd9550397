//! `cargo xtask demo`: the life of a CDK app on a local AWS of its own, from first deploy to destroy; then two stacks, one
//! of which imports from the other; then an app with code, which runs from cdkd's own asset storage.
//!
//! It does what a user does (upload, start an execution, read the answer), shows what a run leaves to be seen while
//! it goes on (the states of the execution, the journal of the stack), and believes neither: after each part it asks
//! the services themselves what is there.

mod code;
mod thing;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::io::IsTerminal as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cdkd_test_support::{Api, LocalAws, Options, Outcome, Package, workspace};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use thing::Thing;

/// The stack of the sample application that the demo deploys.
const STACK: &str = "WebApp";
/// Where that application was synthesized to, as it is and one commit later.
const APP: &str = "tests/apps/webapp/cdk.out";
const CHANGED_APP: &str = "tests/apps/webapp/cdk.out.changed";
/// A stage of two stacks: `Beta-Service` imports from `Beta-Data`, and no longer does one commit later.
const STAGE: &str = "tests/apps/stages/cdk.out";
const CHANGED_STAGE: &str = "tests/apps/stages/cdk.out.changed";
const STACKS: [&str; 2] = ["Beta-Data", "Beta-Service"];
/// Between two looks at a run.
const LOOK: Duration = Duration::from_millis(60);

type Result<T> = std::result::Result<T, String>;

/// Plays it. An error if an execution or a check fails; the local AWS is gone afterwards in any case.
pub fn run() -> Result<()> {
    println!("cdkd demo: a CDK app's life on a local AWS, with cdkd installed in it\n");
    let mut clock = Clock::start();
    println!("1. Build and prepare (in a fresh clone: some minutes)");
    clock.time("build", build)?;
    println!("   built in {}", clock.last());

    // From here on there is something to put away, so that a signal ends the demo instead of this process.
    let interrupted = watch_signals()?;
    println!("\n2. Start a local AWS, install cdkd in it as in an account");
    let aws = clock.time("local AWS up, cdkd installed", || Ok(LocalAws::start(&Options::default())?))?;
    println!(
        "   up in {}: account {}, {}, {}",
        clock.last(),
        aws.account(),
        aws.region(),
        aws.api().endpoint()
    );
    let mut demo =
        Demo { aws, clock, interrupted, screen: Screen::new(), seen: Vec::new(), checks: Checks::default() };
    let played = demo.play();
    demo.screen.close();

    let Demo { aws, mut clock, checks, .. } = demo;
    clock.time("local AWS down", || {
        drop(aws);
        Ok(())
    })?;
    played?;
    println!("\n{clock}\n{checks}");
    checks.verdict()
}

/// Builds what is going to be installed; cargo shows on a terminal how far it is.
fn build() -> Result<()> {
    workspace::python()?;
    if std::io::stderr().is_terminal() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        // As `Package::local` does, which finds it built then.
        command.args(["build", "--workspace", "--bin", "cdkd-local"]).current_dir(workspace::root());
        workspace::run(&mut command)?;
    }
    Package::local()?;
    Ok(())
}

/// Becomes true when this process is asked to end.
fn watch_signals() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(|error| format!("no signal handlers: {error}"))?;
    let flag = Arc::clone(&interrupted);
    thread::spawn(move || {
        for _ in &mut signals {
            flag.store(true, Ordering::Relaxed);
            eprintln!("\nstopping, the local AWS goes first");
        }
    });
    Ok(interrupted)
}

struct Demo {
    aws: LocalAws,
    clock: Clock,
    interrupted: Arc<AtomicBool>,
    screen: Screen,
    /// Whatever was on record after any part.
    seen: Vec<Thing>,
    checks: Checks,
}

impl Demo {
    fn play(&mut self) -> Result<()> {
        self.go_on()?;
        let app = self.aws.upload_assembly_zip(APP)?;
        let changed_app = self.aws.upload_assembly_zip(CHANGED_APP)?;
        let deploy = |assembly: &str| json!({"assembly": assembly, "stacks": [STACK]});

        self.heading("3. Deploy the stack WebApp: upload cdk.out, start `cdkd-deploy`");
        let result = self.execute("deploy", "cdkd-deploy", &deploy(&app))?;
        let first = self.things()?;
        let outputs = result["stacks"][0]["outputs"].as_object().into_iter().flatten();
        for (name, value) in outputs.filter(|(name, _)| !name.contains('-')) {
            self.say(&format!("   {name} = {}", value.as_str().unwrap_or_default()));
        }
        let there = self.count(&first)?;
        self.check(
            format!("{there} of {} resources are there, say their services", first.len()),
            there == first.len(),
        );
        self.check_at_rest()?;

        self.heading("4. Deploy it again");
        let result = self.execute("deploy again", "cdkd-deploy", &deploy(&app))?;
        self.check("the answer is `unchanged`", result["outcome"] == "unchanged");
        self.check_at_rest()?;

        self.heading("5. What would the changed app do? A dry run");
        let mut dry_run = deploy(&changed_app);
        dry_run["options"] = json!({"dryRun": true});
        let before = self.aws.record(STACK)?;
        let result = self.execute("dry run", "cdkd-deploy", &dry_run)?;
        self.show_plan(&result["plans"][0]);
        self.check("the record is as it was", self.aws.record(STACK)? == before);
        self.check_at_rest()?;

        self.heading("6. Deploy the changed app: an update, a replacement, a removal");
        self.execute("deploy the change", "cdkd-deploy", &deploy(&changed_app))?;
        let second = self.things()?;
        self.check_change(&first, &second)?;
        self.check_at_rest()?;

        self.heading("7. Destroy the stack: start `cdkd-destroy`");
        self.execute("destroy", "cdkd-destroy", &json!({"stacks": [STACK]}))?;
        let seen = std::mem::take(&mut self.seen);
        let left = self.count(&seen)?;
        self.check(format!("{left} of the {} resources ever made are left", seen.len()), left == 0);
        self.check("the record is gone", self.aws.record(STACK)?.is_none());
        let objects = self.aws.api().list_objects(self.aws.state_bucket(), "")?;
        let kept = objects.iter().filter(|key| key.contains(&format!("/{STACK}/"))).count();
        self.check(format!("{kept} objects of the stack are left in the state bucket"), kept == 0);
        self.check_at_rest()?;
        self.play_two_stacks()
    }

    fn play_two_stacks(&mut self) -> Result<()> {
        let app = self.aws.upload_assembly_zip(STAGE)?;
        let changed_app = self.aws.upload_assembly_zip(CHANGED_STAGE)?;
        let deploy = |assembly: &str| json!({"assembly": assembly, "stacks": ["Beta/*"]});

        self.heading("8. Deploy a stage in one run: the stack Beta-Service imports from Beta-Data");
        self.execute("deploy two stacks", "cdkd-deploy", &deploy(&app))?;
        let imports = self.aws.record(STACKS[1])?.unwrap_or_default()["imports"].clone();
        let export = imports[0]["exportName"].as_str().unwrap_or_default().to_owned();
        self.check(
            format!("the record of Beta-Service says that it imports `{export}` of Beta-Data"),
            imports[0]["sourceStack"] == STACKS[0],
        );
        self.check_at_rest()?;

        self.heading("9. Destroy Beta-Data, which is in use: refused");
        let before = self.aws.record(STACKS[0])?;
        let cause = self.refuse("refused destroy", "cdkd-destroy", &json!({"stacks": [STACKS[0]]}))?;
        self.check(
            "it is refused with `StackHasActiveImportsError`",
            cause["code"] == "StackHasActiveImportsError",
        );
        self.check("the record is as it was", self.aws.record(STACKS[0])? == before);
        self.check_at_rest()?;

        self.heading("10. Deploy the changed stage in one run: the import goes, and the export with it");
        self.execute("deploy both changes", "cdkd-deploy", &deploy(&changed_app))?;
        let record = self.aws.record(STACKS[1])?.unwrap_or_default();
        self.check("Beta-Service imports nothing any more", record["imports"].is_null());
        let record = self.aws.record(STACKS[0])?.unwrap_or_default();
        self.check("Beta-Data exports nothing any more", record["exportNames"].is_null());
        self.check_at_rest()?;

        self.heading(
            "11. Deploy the stage as it was again, then destroy both in one run: the consumer goes first",
        );
        self.execute("deploy the import again", "cdkd-deploy", &deploy(&app))?;
        self.execute("destroy two stacks", "cdkd-destroy", &json!({"stacks": STACKS}))?;
        let mut left = 0;
        for stack in STACKS {
            left += usize::from(self.aws.record(stack)?.is_some());
        }
        self.check(format!("{left} of {} records are left", STACKS.len()), left == 0);
        self.check_at_rest()?;
        self.play_code()
    }

    /// An error once the process was asked to end.
    fn go_on(&self) -> Result<()> {
        if self.interrupted.load(Ordering::Relaxed) { Err("interrupted".to_owned()) } else { Ok(()) }
    }

    /// Runs a state machine to its end, showing each state and each call, and returns the run's `result.json`.
    fn execute(&mut self, part: &'static str, machine: &str, input: &Value) -> Result<Value> {
        let (outcome, mut watch) = self.watch(machine, input)?;
        let took = self.clock.add(part, watch.start.elapsed());
        let Some(answer) = outcome.output.as_ref().filter(|_| outcome.succeeded()) else {
            let cause = outcome.cause_json();
            let text = |field: &str| cause[field].as_str().unwrap_or_default().to_owned();
            let code = outcome.error.as_deref().unwrap_or(&outcome.status);
            return Err(format!("{machine}: {code}: {}\nhint: {}", text("message"), text("hint")));
        };
        let result = self.aws.result(answer)?.unwrap_or_default();
        let rows = |document: &Value| document["stacks"].as_array().cloned().unwrap_or_default();
        for row in rows(&result) {
            watch.show_missed(&row, &self.screen);
        }
        self.say(&format!("   {} in {}", answer["outcome"].as_str().unwrap_or_default(), seconds(took)));
        for row in rows(answer) {
            let counts = row["counts"].as_object().into_iter().flatten();
            let counts: Vec<String> = counts
                .filter(|(_, count)| **count != 0)
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            let text = |field: &str| row[field].as_str().unwrap_or_default();
            let line = format!("   {:14}{:12}{}", text("stack"), text("outcome"), counts.join(", "));
            self.say(line.trim_end());
        }
        Ok(result)
    }

    /// The same of an execution that is to fail; shows and returns its cause.
    fn refuse(&mut self, part: &'static str, machine: &str, input: &Value) -> Result<Value> {
        let (outcome, watch) = self.watch(machine, input)?;
        self.clock.add(part, watch.start.elapsed());
        if outcome.succeeded() {
            return Err(format!("{machine} succeeded, which was to be refused"));
        }
        let cause = outcome.cause_json();
        self.say(&format!("   {} {}", outcome.status, outcome.error.as_deref().unwrap_or_default()));
        for field in ["message", "hint"] {
            for line in cause[field].as_str().unwrap_or_default().lines() {
                self.say(&format!("   | {line}"));
            }
        }
        Ok(cause)
    }

    /// Runs a state machine to its end, showing what happens.
    fn watch(&self, machine: &str, input: &Value) -> Result<(Outcome, Watch)> {
        let api = self.aws.api();
        let mut watch = Watch::new(self.aws.state_bucket().to_owned());
        let execution = api.start_execution(machine, input)?;
        loop {
            self.go_on()?;
            // Asked first: what it did until its end is there to be seen then.
            let outcome = api.describe_execution(&execution)?;
            watch.look(api, &execution, &self.screen)?;
            if outcome.status != "RUNNING" {
                return Ok((outcome, watch));
            }
            thread::sleep(LOOK);
        }
    }

    fn show_plan(&self, plan: &Value) {
        let steps =
            ["applies", "deletes"].into_iter().flat_map(|list| plan[list].as_array().into_iter().flatten());
        for step in steps.filter(|step| step["operation"] != "check") {
            let text = |field: &str| step[field].as_str().unwrap_or_default();
            let why: Vec<&str> =
                step["why"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let line = format!("   {:9}{:32} {}", text("operation"), text("logicalId"), why.join(", "));
            self.say(line.trim_end());
        }
        self.say("   (check: refers to what changes; seen then whether it changes too)");
    }

    /// The change did what the template says, by the services' own word.
    fn check_change(&mut self, first: &[Thing], second: &[Thing]) -> Result<()> {
        let api = self.aws.api().clone();
        let find = |things: &[Thing], prefix: &str| {
            things
                .iter()
                .find(|thing| {
                    thing.logical_id.starts_with(prefix) && thing.type_name != "AWS::SQS::QueuePolicy"
                })
                .cloned()
        };
        let jobs = find(second, "Jobs").ok_or("`Jobs` is not on record")?;
        let timeout = api.queue(&jobs.physical_id)?.and_then(|queue| queue.get("VisibilityTimeout").cloned());
        self.check("`Jobs` has the new visibility timeout", timeout == Some("120".into()));
        let audit = find(second, "Audit").ok_or("`Audit` is not on record")?;
        let fifo = api.queue(&audit.physical_id)?.and_then(|queue| queue.get("FifoQueue").cloned());
        self.check("`Audit` is a FIFO queue now", fifo == Some("true".into()));
        let gone: Vec<Thing> =
            ["Audit", "Greeting"].into_iter().filter_map(|name| find(first, name)).collect();
        self.check("the old `Audit` and `Greeting` are gone", gone.len() == 2 && self.count(&gone)? == 0);
        let there = self.count(second)?;
        self.check(format!("{there} of {} resources are there", second.len()), there == second.len());
        Ok(())
    }

    /// No run, no lock, no journal.
    fn check_at_rest(&mut self) -> Result<()> {
        let objects = self.aws.api().list_objects(self.aws.state_bucket(), "")?;
        let left = |key: &String| key.starts_with("cdkd-journal/") || key.ends_with("/lock.json");
        self.check("locks and journals are gone", !objects.iter().any(left));
        Ok(())
    }

    /// What is on record now; remembered until the end.
    fn things(&mut self) -> Result<Vec<Thing>> {
        let record = self.aws.record(STACK)?.unwrap_or_default();
        let things: Vec<Thing> = record["resources"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(id, row)| Thing::of(id, row))
            .collect();
        for thing in &things {
            if !self.seen.iter().any(|seen| seen.is(thing)) {
                self.seen.push(thing.clone());
            }
        }
        Ok(things)
    }

    /// How many of them exist.
    fn count(&self, things: &[Thing]) -> Result<usize> {
        let mut count = 0;
        for thing in things {
            count += usize::from(thing.exists(self.aws.api())?);
        }
        Ok(count)
    }

    fn heading(&self, text: &str) {
        self.say(&format!("\n{text}"));
    }

    fn say(&self, text: &str) {
        self.screen.line(text);
    }

    fn check(&mut self, what: impl Display, holds: bool) {
        let word = if holds { "ok" } else { "FAILED" };
        self.screen.line(&format!("   {word:6} {what}"));
        self.checks.made += 1;
        self.checks.failed += usize::from(!holds);
    }
}

/// A run as it can be seen from outside.
struct Watch {
    start: Instant,
    state_bucket: String,
    /// How many states were shown.
    states: usize,
    /// Journal objects that were read.
    read: BTreeSet<String>,
    /// Calls that are under way: logical id, operation, type by the stack and the intent's id.
    open: BTreeMap<(String, String), (String, String, String)>,
    /// Calls that were shown, as (stack, logical id, operation).
    shown: BTreeSet<(String, String, String)>,
    state: String,
}

impl Watch {
    fn new(state_bucket: String) -> Self {
        Self {
            start: Instant::now(),
            state_bucket,
            states: 0,
            read: BTreeSet::new(),
            open: BTreeMap::new(),
            shown: BTreeSet::new(),
            state: String::new(),
        }
    }

    /// Shows what is new.
    fn look(&mut self, api: &Api, execution: &str, screen: &Screen) -> Result<()> {
        // The journal first: what a state did comes before the next state.
        self.look_at_journal(api, screen)?;
        let states = api.states_entered(execution)?;
        for state in states.iter().skip(self.states) {
            // Choices take no time and say nothing by themselves.
            if !state.ends_with('?') {
                self.line(screen, state);
                self.state.clone_from(state);
            }
        }
        self.states = states.len();
        let under_way: Vec<&str> = self.open.values().map(|(id, ..)| id.as_str()).collect();
        screen.status(&format!("{} {}", self.state, under_way.join(", ")));
        Ok(())
    }

    fn look_at_journal(&mut self, api: &Api, screen: &Screen) -> Result<()> {
        for key in api.list_objects(&self.state_bucket, "cdkd-journal/")? {
            if self.read.contains(&key) {
                continue;
            }
            // Removed meanwhile: the run has come to its end, and its result says what it did.
            let Some(body) = api.get_object(&self.state_bucket, &key)? else { continue };
            // cdkd-journal/{prefix}/{stack}/{region}/{number}
            let stack = key.split('/').nth(2).unwrap_or_default().to_owned();
            self.read.insert(key);
            let document: Value =
                serde_json::from_slice(&body).map_err(|error| format!("the journal: {error}"))?;
            for entry in document["entries"].as_array().into_iter().flatten() {
                self.take(&stack, entry, screen);
            }
        }
        Ok(())
    }

    fn take(&mut self, stack: &str, entry: &Value, screen: &Screen) {
        let text = |field: &str| entry[field].as_str().map(str::to_owned);
        if let Some(id) = text("intent") {
            let call = (text("logicalId"), text("operation"), text("type"));
            if let (Some(logical_id), Some(operation), Some(type_name)) = call {
                self.open.insert((stack.to_owned(), id), (logical_id, operation, type_name));
            }
        }
        if let Some((logical_id, operation, type_name)) =
            text("outcome").and_then(|id| self.open.remove(&(stack.to_owned(), id)))
        {
            // A call that failed is tried anew, or fails the run.
            if entry["failed"].is_null() {
                self.show_call(stack, &logical_id, &operation, &type_name, screen);
            }
        }
    }

    /// Shows what happened between the last look and the end.
    fn show_missed(&mut self, row: &Value, screen: &Screen) {
        let stack = row["stack"].as_str().unwrap_or_default();
        for step in row["steps"].as_array().into_iter().flatten() {
            let text = |field: &str| step[field].as_str().unwrap_or_default();
            let operation = match text("operation") {
                "replace" => "create",
                other => other,
            };
            if ["create", "update", "delete"].contains(&operation) {
                self.show_call(stack, text("logicalId"), operation, text("type"), screen);
            }
        }
    }

    fn show_call(
        &mut self,
        stack: &str,
        logical_id: &str,
        operation: &str,
        type_name: &str,
        screen: &Screen,
    ) {
        if self.shown.insert((stack.to_owned(), logical_id.to_owned(), operation.to_owned())) {
            self.line(screen, &format!("   {operation} {logical_id:32} {type_name}"));
        }
    }

    fn line(&self, screen: &Screen, text: &str) {
        screen.line(&format!("   {:>6}  {}", seconds(self.start.elapsed()), text.trim_end()));
    }
}

/// Lines, and on a terminal a line of status below them.
struct Screen(ProgressBar);

impl Screen {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("   {spinner} {wide_msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    fn line(&self, text: &str) {
        self.0.suspend(|| println!("{text}"));
    }

    fn status(&self, text: &str) {
        self.0.set_message(text.to_owned());
    }

    fn close(&self) {
        self.0.finish_and_clear();
    }
}

/// How long each part took, and all of it.
struct Clock {
    start: Instant,
    parts: Vec<(&'static str, Duration)>,
}

impl Clock {
    fn start() -> Self {
        Self { start: Instant::now(), parts: Vec::new() }
    }

    fn time<T>(&mut self, part: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let done = work();
        self.add(part, start.elapsed());
        done
    }

    fn add(&mut self, part: &'static str, took: Duration) -> Duration {
        self.parts.push((part, took));
        took
    }

    fn last(&self) -> String {
        seconds(self.parts.last().map_or(Duration::ZERO, |(_, took)| *took))
    }
}

impl Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (part, took) in &self.parts {
            writeln!(f, "{part:32}{:>8}", seconds(*took))?;
        }
        write!(f, "{:32}{:>8}", "all, checks included", seconds(self.start.elapsed()))
    }
}

#[derive(Default)]
struct Checks {
    made: usize,
    failed: usize,
}

impl Checks {
    fn verdict(&self) -> Result<()> {
        if self.failed == 0 { Ok(()) } else { Err(format!("{} of {} checks failed", self.failed, self.made)) }
    }
}

impl Display for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} checks hold", self.made - self.failed, self.made)
    }
}

fn seconds(span: Duration) -> String {
    format!("{:.1} s", span.as_secs_f32())
}
