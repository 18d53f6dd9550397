//! The local AWS that the tests of one binary share, and what can be seen in it from outside.

use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Instant;

use cdkd_test_support::{Json, LocalAws, Options};
use cdkd_wire::{Entry, Rule, RuleId};
use serde_json::{Value, json};

use crate::app::App;
use crate::run::Run;

/// A local AWS behind the wire, with cdkd installed.
pub struct World {
    pub aws: LocalAws,
    turns: RwLock<()>,
}

/// The world of this test binary: started by the first test that asks, stopped with the last one that holds it.
pub fn world() -> Arc<World> {
    world_of(Options::default())
}

/// The same with other options; in one binary always the same ones.
pub fn world_of(options: Options) -> Arc<World> {
    static CURRENT: Mutex<Weak<World>> = Mutex::new(Weak::new());
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(world) = current.upgrade() {
        return world;
    }
    let world = Arc::new(World::start(options));
    *current = Arc::downgrade(&world);
    world
}

impl World {
    /// One of its own, for a test that needs more than one.
    pub fn start(options: Options) -> Self {
        let aws = LocalAws::start(&options.wire()).unwrap();
        Self { aws, turns: RwLock::new(()) }
    }

    /// Beside other tests; not while one is [`World::alone`].
    pub fn among_others(&self) -> RwLockReadGuard<'_, ()> {
        self.turns.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// With no other test at work, so that every request that the wire counts is this test's.
    pub fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.turns.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uploads an app and returns its address.
    pub fn upload(&self, app: &App) -> String {
        self.aws.upload_zip(&app.zip()).unwrap()
    }

    /// Deploys the stacks of an app, and expects it to succeed.
    #[track_caller]
    pub fn deploy(&self, app: impl Into<App>) -> Run {
        let run = self.try_deploy(app);
        assert_eq!(run.outcome.status, "SUCCEEDED", "{}", run.outcome);
        run
    }

    /// Deploys the stacks of an app.
    #[track_caller]
    pub fn try_deploy(&self, app: impl Into<App>) -> Run {
        self.run("cdkd-deploy", &json!({ "assembly": self.upload(&app.into()) }))
    }

    /// The same with more of the input: `stacks`, `parameters`, `options`.
    #[track_caller]
    pub fn deploy_with(&self, app: impl Into<App>, mut input: Value) -> Run {
        input["assembly"] = json!(self.upload(&app.into()));
        self.run("cdkd-deploy", &input)
    }

    /// Destroys a stack, and expects it to succeed.
    #[track_caller]
    pub fn destroy(&self, stack: &str) -> Run {
        let run = self.run("cdkd-destroy", &json!({ "stacks": [stack] }));
        assert_eq!(run.outcome.status, "SUCCEEDED", "{}", run.outcome);
        run
    }

    /// Runs a state machine to its end.
    #[track_caller]
    pub fn run(&self, machine: &str, input: &Value) -> Run {
        let api = self.aws.api();
        let began = Instant::now();
        let execution = api.start_execution(machine, input).unwrap();
        let outcome = api.wait(&execution).unwrap();
        let seconds = began.elapsed().as_secs_f64();
        let history = api.history(&execution).unwrap();
        let run = Run { execution, outcome, seconds, history };
        run.check_payloads();
        run
    }

    /// The record of a stack, which has to be there.
    #[track_caller]
    pub fn record(&self, stack: &str) -> Value {
        self.aws.record(stack).unwrap().unwrap_or_else(|| panic!("{stack} is not on record"))
    }

    /// The row of a resource on record.
    #[track_caller]
    pub fn row(&self, stack: &str, logical_id: &str) -> Value {
        let record = self.record(stack);
        let row = &record["resources"][logical_id];
        assert!(row.is_object(), "no `{logical_id}` on record: {record:#}");
        row.clone()
    }

    /// The physical id of a resource on record.
    #[track_caller]
    pub fn physical_id(&self, stack: &str, logical_id: &str) -> String {
        self.row(stack, logical_id)["physicalId"].as_str().unwrap().to_owned()
    }

    /// The `result.json` of a run.
    #[track_caller]
    pub fn result(&self, run: &Run) -> Value {
        let body =
            self.aws.api().get_object(self.aws.runs_bucket(), &format!("runs/{}/result.json", run.name()));
        serde_json::from_slice(&body.unwrap().unwrap()).unwrap()
    }

    /// No lock and no journal of a stack, nor any old version of them.
    #[track_caller]
    pub fn check_put_down(&self, stack: &str) {
        let (api, bucket) = (self.aws.api(), self.aws.state_bucket());
        for prefix in [format!("cdkd/{stack}/us-east-1/lock.json"), format!("cdkd-journal/cdkd/{stack}/")] {
            let left = api.list_versions(bucket, &prefix).unwrap();
            assert!(left.is_empty(), "left below {prefix}: {left:?}");
        }
    }

    /// Nothing at all of a stack in the state bucket but what versioning keeps of its record.
    #[track_caller]
    pub fn check_not_on_record(&self, stack: &str) {
        self.check_put_down(stack);
        assert_eq!(self.aws.record(stack).unwrap(), None);
        let (api, bucket) = (self.aws.api(), self.aws.state_bucket());
        for prefix in [format!("cdkd/{stack}/"), format!("cdkd-templates/cdkd/{stack}/")] {
            assert_eq!(api.list_objects(bucket, &prefix).unwrap(), [""; 0], "{stack}");
        }
    }

    /// Keeps what follows by events from happening, for a test that is [`World::alone`].
    pub fn quiet(&self) -> Quiet<'_> {
        Quiet::new(self)
    }

    /// Sets a rule of the wire for as long as the answer lives.
    pub fn rule(&self, rule: Rule) -> Ruled<'_> {
        Ruled { world: self, id: self.aws.wire().rule(rule) }
    }

    /// Sets a fault of the emulator; its `match` should name the stack.
    pub fn fault(&self, fault: &Value) {
        let answer =
            self.aws.api().plain(http::Method::POST, "/_local/faults", fault.to_string().as_bytes()).unwrap();
        assert!(answer.status.is_success(), "{}", answer.text());
    }

    /// How often the faults with this `match` have hit.
    pub fn hits(&self, matching: &str) -> u64 {
        let answer = self.aws.api().plain(http::Method::GET, "/_local/faults", &[]).unwrap();
        let faults: Value = serde_json::from_slice(&answer.body).unwrap();
        let list = faults.as_array().or_else(|| faults["faults"].as_array()).unwrap();
        list.iter()
            .filter(|fault| fault["match"] == matching)
            .map(|fault| fault["hits"].as_u64().unwrap())
            .sum()
    }

    /// The number of the last request that the wire has seen.
    pub fn mark(&self) -> u64 {
        self.aws.wire().log(0).last().map_or(0, |entry| entry.seq)
    }

    /// The requests since a mark.
    pub fn since(&self, mark: u64) -> Vec<Entry> {
        self.aws.wire().log(mark)
    }

    /// What was written since a mark below keys with this text, as `PutObject bucket/key`.
    pub fn writes(&self, mark: u64, text: &str) -> Vec<String> {
        self.since(mark)
            .into_iter()
            .filter(|it| {
                it.service == "s3"
                    && ["Put", "Delete", "Copy"].iter().any(|verb| it.operation.starts_with(verb))
            })
            .filter(|it| it.resource.contains(text))
            .map(|it| format!("{} {}", it.operation, it.resource))
            .collect()
    }

    /// The calls of Cloud Control since a mark that change something, as `CreateResource AWS::SQS::Queue`.
    pub fn mutations(&self, mark: u64) -> Vec<String> {
        self.since(mark)
            .into_iter()
            .filter(|it| {
                ["CreateResource", "UpdateResource", "DeleteResource"].contains(&it.operation.as_str())
            })
            .map(|it| format!("{} {}", it.operation, it.resource))
            .collect()
    }

    /// All calls of Cloud Control since a mark.
    pub fn cloud_control(&self, mark: u64) -> usize {
        self.since(mark).iter().filter(|it| it.service == "cloudcontrol").count()
    }

    /// Where a text stands in the buckets of cdkd, old versions included; the keys.
    pub fn find(&self, text: &str) -> Vec<String> {
        let api = self.aws.api();
        let mut found = Vec::new();
        for bucket in [self.aws.state_bucket(), self.aws.runs_bucket()] {
            for version in api.list_versions(bucket, "").unwrap() {
                // What the user uploaded is the user's.
                if version.deleted || version.key.starts_with("uploads/") {
                    continue;
                }
                let body = api
                    .get_object_version(bucket, &version.key, &version.version)
                    .unwrap()
                    .unwrap_or_default();
                if body.windows(text.len()).any(|window| window == text.as_bytes()) {
                    found.push(format!("{bucket}/{}", version.key));
                }
            }
        }
        found
    }
}

/// As long as it lives, nothing follows by events: no sweep after an execution that ended badly, no rebuild of the index.
pub struct Quiet<'a>(&'a World);

impl<'a> Quiet<'a> {
    fn new(world: &'a World) -> Self {
        Self::tell(world, "DisableRule");
        Self(world)
    }

    fn tell(world: &World, operation: &str) {
        for rule in ["cdkd-sweep", "cdkd-index"] {
            world.aws.api().json(Json::Events, operation, &json!({ "Name": rule })).unwrap();
        }
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        Self::tell(self.0, "EnableRule");
    }
}

/// A rule of the wire that is in force.
pub struct Ruled<'a> {
    world: &'a World,
    id: RuleId,
}

impl Ruled<'_> {
    /// How often it acted.
    pub fn fired(&self) -> u64 {
        self.world.aws.wire().fired(self.id)
    }
}

impl Drop for Ruled<'_> {
    fn drop(&mut self) {
        self.world.aws.wire().remove_rule(self.id);
    }
}
