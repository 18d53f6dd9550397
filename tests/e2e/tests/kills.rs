//! Promise 3: a run can die anywhere, and the next one picks up.
//!
//! An undisturbed deploy, change and destroy are watched first. Then the process that makes the nth of their requests
//! is killed, before or after the request took effect, for n spread over the whole length; half of the times the
//! execution is stopped at once, so that another has to take over. At the end all is as in the undisturbed run, none
//! of it twice, and neither lock nor journal is left.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops here")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the table of deaths is there to be read")]

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cdkd_test_support::{Api, Archive, Json, LocalAws, Options, Query, workspace};
use cdkd_wire::{Entry, Rule, RuleId, When};
use serde_json::{Value, json};

/// Seconds that a function may take: what a take-over waits for at most.
const TIME_LIMIT: u32 = 8;
/// Stacks at work at a time: most of the time they wait.
const SIDE_BY_SIDE: usize = 12;
/// Longer than any run takes here.
const PATIENCE: Duration = Duration::from_secs(100);
/// Points of a deploy, of a change, of a destroy.
const POINTS: (usize, usize, usize) = (20, 10, 10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Deploy,
    Change,
    Destroy,
}

/// One request of an undisturbed run, as a rule finds it in another run.
#[derive(Clone, Debug)]
enum Place {
    /// The nth whose resource names the stack: S3, Step Functions.
    Named(u64),
    /// The nth whose body names the stack: calls of Cloud Control, batches of deletes.
    Told(u64),
    /// A question for the progress of a request, which names nothing but that; after the nth object of the journal.
    Progress(u64),
}

/// A death.
#[derive(Clone, Debug)]
struct Kill {
    /// Number of the request, and of how many.
    point: (usize, usize),
    place: Place,
    when: When,
    /// Whether the execution is stopped at once.
    stop: bool,
}

/// The requests of an undisturbed run: how many, and those that a rule finds, with their numbers.
struct Length {
    requests: usize,
    places: Vec<(usize, Place)>,
}

/// What one stack goes through.
struct Story {
    stack: String,
    chapters: Vec<(Work, Kill)>,
}

/// A line of the table.
struct Row {
    work: Work,
    stack: String,
    kill: Kill,
    killed: Option<Entry>,
    happened: String,
    seconds: f64,
}

/// What is left of a stack after each kind of work.
type Expected = BTreeMap<Work, Value>;

struct Scene {
    aws: LocalAws,
    port: u16,
    rows: Mutex<Vec<Row>>,
    faults: Mutex<Vec<String>>,
}

#[test]
fn a_run_can_die_anywhere() {
    let options = Options::default().wire().time_limit(TIME_LIMIT);
    let aws = LocalAws::start(&options).unwrap();
    let port = aws.api().endpoint().rsplit(':').next().unwrap().parse().unwrap();
    let scene = Scene { aws, port, rows: Mutex::default(), faults: Mutex::default() };

    let mut lengths = BTreeMap::new();
    let mut expected = Expected::new();
    for work in [Work::Deploy, Work::Change, Work::Destroy] {
        let places = scene.watch("calm00", work);
        expected.insert(work, scene.left("calm00"));
        lengths.insert(work, places);
    }
    let stories = stories(&lengths);
    let queue = Mutex::new(stories);
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                let api = Api::new(scene.port).unwrap();
                loop {
                    let Some(story) = queue.lock().unwrap().pop_front() else { break };
                    scene.tell(&api, &story, &expected);
                }
            });
        }
    });

    let rows = scene.rows.lock().unwrap();
    let missed = rows.iter().filter(|row| row.killed.is_none()).count();
    println!("{}", table(&rows));
    let faults = scene.faults.lock().unwrap();
    assert!(faults.is_empty(), "{} faults\n\n{}", faults.len(), faults.join("\n\n"));
    assert!(missed * 10 <= rows.len(), "{missed} of {} kills did not happen", rows.len());
}

/// Every point of a deploy once killed, every second one also killed and stopped; then changes and destroys of those
/// stacks.
fn stories(lengths: &BTreeMap<Work, Length>) -> VecDeque<Story> {
    let kills = |work: Work, points: usize| -> Vec<Kill> {
        let Length { requests, places } = &lengths[&work];
        let kill = |number: usize| {
            let wanted = 1 + number * (requests - 1) / (points - 1);
            let (at, place) = places.iter().min_by_key(|(at, _)| at.abs_diff(wanted)).unwrap().clone();
            let when = if number.is_multiple_of(2) { When::Before } else { When::After };
            Kill { point: (at, *requests), place, when, stop: false }
        };
        (0..points).map(kill).collect()
    };
    let (deploys, changes, destroys) = POINTS;
    let mut stories = VecDeque::new();
    for (number, kill) in kills(Work::Deploy, deploys).into_iter().enumerate() {
        let mut one = |stop: bool| {
            let stack = format!("kill{:02}", stories.len() + 1);
            stories.push_back(Story { stack, chapters: vec![(Work::Deploy, Kill { stop, ..kill.clone() })] });
        };
        one(false);
        // Of each pair of neighbours one, so that both sides of the forwarding come up.
        if number % 4 == 1 || number % 4 == 2 {
            one(true);
        }
    }
    // Stops fall on both sides of the forwarding here too: 0, 1, 4, 5, 8, 9.
    let stopped = |kills: Vec<Kill>| {
        kills
            .into_iter()
            .enumerate()
            .map(|(number, kill)| Kill { stop: number % 4 < 2, ..kill })
            .collect::<Vec<_>>()
    };
    let mut free = stories.iter_mut();
    for kill in stopped(kills(Work::Change, changes)) {
        free.next().unwrap().chapters.push((Work::Change, kill));
    }
    for kill in stopped(kills(Work::Destroy, destroys)) {
        free.next().unwrap().chapters.push((Work::Destroy, kill));
    }
    stories
}

impl Scene {
    /// Lets an undisturbed run pass and returns its requests in order.
    fn watch(&self, stack: &str, work: Work) -> Length {
        let wire = self.aws.wire();
        let named = wire.rule(Rule::on_any().resource(stack).delay_before(Duration::ZERO));
        let told = wire.rule(Rule::on_any().body(stack).delay_before(Duration::ZERO));
        let since = wire.log(0).last().map_or(0, |entry| entry.seq);
        let began = Instant::now();
        let execution = self.start(self.aws.api(), stack, work, 0);
        let outcome = self.aws.api().wait(&execution).unwrap();
        assert!(outcome.succeeded(), "{outcome}");
        let seconds = began.elapsed().as_secs_f64();
        let log = wire.log(since);
        wire.remove_rule(named);
        wire.remove_rule(told);
        let (mut number, mut by_name, mut by_body, mut journal) = (0, 0, 0, 0);
        let mut places = Vec::new();
        for entry in &log {
            by_name += u64::from(entry.rules.contains(&named));
            by_body += u64::from(entry.rules.contains(&told));
            journal += u64::from(is_journal_write(entry));
            number += 1;
            let place = if entry.rules.contains(&named) {
                Place::Named(by_name)
            } else if entry.rules.contains(&told) {
                Place::Told(by_body)
            } else if entry.operation == "GetResourceRequestStatus" {
                Place::Progress(journal)
            } else {
                // About all stacks: the index, a listing of all records. No rule tells whose it is.
                continue;
            };
            places.push((number, place));
        }
        println!("{work:?}: {number} requests, {seconds:.1} s");
        Length { requests: number, places }
    }

    /// Starts the work on a stack; the execution's name begins with the stack's.
    fn start(&self, api: &Api, stack: &str, work: Work, attempt: usize) -> String {
        let name = format!("{stack}-{work:?}-{attempt}");
        if work == Work::Destroy {
            return api.start_named_execution("cdkd-destroy", &name, &json!({ "stacks": [stack] })).unwrap();
        }
        let folder = if work == Work::Deploy { "cdk.out" } else { "cdk.out.changed" };
        let key = format!("uploads/{stack}-{folder}.zip");
        if attempt == 0 {
            api.put_object(self.aws.runs_bucket(), &key, &assembly(folder, stack)).unwrap();
        }
        let input = json!({ "assembly": format!("s3://{}/{key}", self.aws.runs_bucket()) });
        api.start_named_execution("cdkd-deploy", &name, &input).unwrap()
    }

    fn tell(&self, api: &Api, story: &Story, expected: &Expected) {
        for (work, kill) in &story.chapters {
            if let Err(fault) = self.chapter(api, &story.stack, *work, kill, &expected[work]) {
                let fault = format!("{} {work:?} {kill:?}: {fault}", story.stack);
                eprintln!("{fault}");
                self.faults.lock().unwrap().push(fault);
                return;
            }
        }
    }

    fn chapter(
        &self,
        api: &Api,
        stack: &str,
        work: Work,
        kill: &Kill,
        expected: &Value,
    ) -> Result<(), String> {
        let began = Instant::now();
        let trap = Trap::set(self, api, stack, kill);
        let mark = trap.mark;
        let execution = self.start(api, stack, work, 0);
        let rule = trap.wait(|| Ok(api.describe_execution(&execution)?.status != "RUNNING"))?;
        let mut happened = String::from("same execution");
        let mut outcome;
        if kill.stop && rule.is_some_and(|rule| self.aws.wire().fired(rule) > 0) {
            api.stop_execution(&execution)?;
            outcome = api.wait_at_most(&execution, PATIENCE)?;
            "stopped".clone_into(&mut happened);
        } else {
            outcome = api.wait_at_most(&execution, PATIENCE)?;
        }
        let mut sweep = None;
        if !outcome.succeeded() {
            if !kill.stop {
                happened = format!("failed ({})", outcome.error.clone().unwrap_or_default());
            }
            let next = self.start(api, stack, work, 1);
            outcome = api.wait_at_most(&next, PATIENCE)?;
            happened.push_str(", next execution");
            if work == Work::Destroy && outcome.error.as_deref() == Some("StackNotFound") {
                // Died when all was gone: what EventBridge tells then is told here.
                happened.push_str(": nothing left");
                sweep = Some(execution.clone());
                "SUCCEEDED".clone_into(&mut outcome.status);
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let killed = rule.and_then(|rule| self.killed(mark, rule));
        let row = Row { work, stack: stack.to_owned(), kill: kill.clone(), killed, happened, seconds };
        self.rows.lock().unwrap().push(row);
        if let Some(rule) = rule {
            self.aws.wire().remove_rule(rule);
        }
        if !outcome.succeeded() {
            return Err(format!("{outcome}"));
        }
        if let Some(execution) = sweep {
            api.invoke(
                "cdkd-save-state",
                &json!({"action": "sweep", "execution": execution, "status": "ABORTED"}),
            )?;
        }
        self.check(api, stack, expected)
    }

    /// The number of the last request so far.
    fn mark(&self) -> u64 {
        self.aws.wire().counts().total
    }

    /// The request that a rule killed.
    fn killed(&self, mark: u64, rule: RuleId) -> Option<Entry> {
        self.aws.wire().log(mark).into_iter().find(|entry| entry.rules.contains(&rule))
    }

    fn check(&self, api: &Api, stack: &str, expected: &Value) -> Result<(), String> {
        let bucket = self.aws.state_bucket();
        for prefix in [format!("cdkd/{stack}/us-east-1/lock.json"), format!("cdkd-journal/cdkd/{stack}/")] {
            let left = api.list_versions(bucket, &prefix)?;
            if !left.is_empty() {
                return Err(format!("left below {prefix}: {left:?}"));
            }
        }
        let mut left = self.left_of(api, stack);
        // Lists are read page by page, and what others delete meanwhile shifts the pages.
        for _ in 0..2 {
            if left == *expected {
                return Ok(());
            }
            left = self.left_of(api, stack);
        }
        Err(differences(expected, &left))
    }

    fn left(&self, stack: &str) -> Value {
        self.left_of(self.aws.api(), stack)
    }

    /// The record and what the services themselves have of the stack, without what differs from stack to stack.
    fn left_of(&self, api: &Api, stack: &str) -> Value {
        let record = self.aws_record(api, stack);
        let names = Names::of(stack, record.as_ref());
        let mut things: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (kind, thing) in found(api, stack) {
            things.entry(kind.to_owned()).or_default().push(names.cover(&thing));
        }
        for list in things.values_mut() {
            list.sort_by_key(Value::to_string);
        }
        let record = record.map(|mut record| {
            record["lastModified"] = Value::Null;
            let id = record["deploy"]["stackId"].take();
            record["deploy"]["stackId"] =
                json!(id.as_str().is_some_and(|id| id.starts_with("arn:aws:cloudformation:")));
            names.cover(&record)
        });
        json!({ "record": record, "things": things })
    }

    fn aws_record(&self, api: &Api, stack: &str) -> Option<Value> {
        let key = format!("cdkd/{stack}/us-east-1/state.json");
        let body = api.get_object(self.aws.state_bucket(), &key).unwrap()?;
        Some(serde_json::from_slice(&body).unwrap())
    }
}

fn is_journal_write(entry: &Entry) -> bool {
    entry.operation == "PutObject" && entry.resource.contains("/cdkd-journal/")
}

/// The rule that kills, set or yet to be set.
struct Trap<'a> {
    scene: &'a Scene,
    api: &'a Api,
    stack: &'a str,
    kill: &'a Kill,
    rule: Option<RuleId>,
    /// The number of the last request before.
    mark: u64,
}

impl<'a> Trap<'a> {
    fn set(scene: &'a Scene, api: &'a Api, stack: &'a str, kill: &'a Kill) -> Self {
        let mark = scene.mark();
        let requests = match kill.place {
            Place::Named(nth) => Some(Rule::on_any().resource(stack).nth(nth)),
            Place::Told(nth) => Some(Rule::on_any().body(stack).nth(nth)),
            Place::Progress(_) => None,
        };
        let rule = requests.map(|requests| scene.aws.wire().rule(act(requests, kill.when)));
        Self { scene, api, stack, kill, rule, mark }
    }

    /// Waits until the rule has acted or the execution has ended.
    fn wait(mut self, ended: impl Fn() -> cdkd_test_support::Result<bool>) -> Result<Option<RuleId>, String> {
        if self.rule.is_none() {
            self.rule = self.follow(&ended)?;
        }
        let Some(rule) = self.rule else { return Ok(None) };
        let wire = self.scene.aws.wire();
        let deadline = Instant::now() + PATIENCE;
        while wire.fired(rule) == 0 {
            if ended()? {
                return Ok(Some(rule));
            }
            if Instant::now() > deadline {
                return Err("neither killed nor ended".to_owned());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        // Not only begun: the caller is dead.
        while self.scene.killed(self.mark, rule).is_some_and(|entry| entry.took_us.is_none()) {
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Some(rule))
    }

    /// Learns the token of a request from the journal, which is held up meanwhile, and sets the rule for it.
    fn follow(&self, ended: &impl Fn() -> cdkd_test_support::Result<bool>) -> Result<Option<RuleId>, String> {
        let Place::Progress(nth) = self.kill.place else { return Ok(None) };
        let wire = self.scene.aws.wire();
        let folder = format!("/cdkd-journal/cdkd/{}/", self.stack);
        let mut nth = nth.max(1);
        loop {
            let requests = Rule::on("s3", "PutObject").resource(&folder).nth(nth);
            let gate = wire.hold(requests, When::After);
            let held = loop {
                match gate.wait_until_held(Duration::from_millis(200)) {
                    Ok(held) => break Some(held),
                    Err(_) if ended()? => break None,
                    Err(_) => {}
                }
            };
            let rule = match held {
                Some(_) => self.open_request()?.map(|token| {
                    wire.rule(act(
                        Rule::on("cloudcontrol", "GetResourceRequestStatus").resource(&token).nth(1),
                        self.kill.when,
                    ))
                }),
                None => None,
            };
            let over = held.is_none();
            let id = gate.rule();
            drop(gate);
            wire.remove_rule(id);
            if rule.is_some() || over {
                return Ok(rule);
            }
            nth = 1;
        }
    }

    /// The token of a request whose acceptance is in the journal's last object: that one is held, so nobody has asked
    /// for the request yet.
    fn open_request(&self) -> Result<Option<String>, String> {
        let bucket = self.scene.aws.state_bucket();
        let objects = self.api.list_objects(bucket, &format!("cdkd-journal/cdkd/{}/", self.stack))?;
        let Some(last) = objects.last() else { return Ok(None) };
        let body = self.api.get_object(bucket, last)?.unwrap_or_default();
        let document: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        let entries = document["entries"].as_array().cloned().unwrap_or_default();
        let token = |entry: &Value| {
            entry["accepted"].is_string().then(|| entry["requestToken"].as_str().map(str::to_owned))
        };
        Ok(entries.iter().find_map(token).flatten())
    }
}

fn act(requests: cdkd_wire::RuleBuilder, when: When) -> Rule {
    if when == When::Before { requests.kill_before() } else { requests.kill_after() }
}

/// The sample application under another name.
fn assembly(folder: &str, stack: &str) -> Vec<u8> {
    let root = workspace::root().join("tests/apps/webapp").join(folder);
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let mut manifest: Value = serde_json::from_str(&read("manifest.json")).unwrap();
    manifest["artifacts"]
        .as_object_mut()
        .unwrap()
        .retain(|name, _| name == "WebApp" || name == "WebApp.assets");
    let mut archive =
        Archive::default().file("manifest.json", manifest.to_string().replace("WebApp", stack).into_bytes());
    for file in ["WebApp.template.json", "WebApp.assets.json", "WebApp.metadata.json", "cdk.out"] {
        archive =
            archive.file(&file.replace("WebApp", stack), read(file).replace("WebApp", stack).into_bytes());
    }
    archive.zip(1).unwrap()
}

/// What takes the place of names that differ from stack to stack.
struct Names(Vec<(String, String)>);

impl Names {
    fn of(stack: &str, record: Option<&Value>) -> Self {
        let mut names = Vec::new();
        for (logical_id, row) in
            record.and_then(|record| record["resources"].as_object()).into_iter().flatten()
        {
            let id = row["physicalId"].as_str().unwrap_or_default();
            let last = id.rsplit(['/', ':']).next().unwrap_or_default();
            if last.len() > 8 {
                names.push((last.to_owned(), format!("<{}>", logical_id.replace(stack, "WebApp"))));
            }
            if let Some(token) = row["cdkd"]["token"].as_str() {
                names.push((token.to_owned(), "<token>".to_owned()));
            }
        }
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        names.push((stack.to_owned(), "WebApp".to_owned()));
        Self(names)
    }

    fn cover(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => {
                // What `Fn::Base64` made names things too.
                let text = decoded(text).unwrap_or_else(|| text.clone());
                let text = self.0.iter().fold(text, |text, (name, cover)| text.replace(name, cover));
                Value::String(text)
            }
            Value::Array(items) => Value::Array(items.iter().map(|item| self.cover(item)).collect()),
            Value::Object(fields) => {
                let cover = |(name, value): (&String, &Value)| {
                    let covered =
                        if VARYING.contains(&name.as_str()) { Value::Null } else { self.cover(value) };
                    (self.cover(&json!(name)).as_str().unwrap_or_default().to_owned(), covered)
                };
                Value::Object(fields.iter().map(cover).collect())
            }
            other => other.clone(),
        }
    }
}

/// The text in Base64 of one line or more of text.
fn decoded(text: &str) -> Option<String> {
    let digits: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let body = text.trim_end_matches('=');
    if text.len() < 40 || !text.len().is_multiple_of(4) {
        return None;
    }
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for byte in body.bytes() {
        bits = (bits << 6) | u32::try_from(digits.iter().position(|digit| *digit == byte)?).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).ok()?);
        }
    }
    String::from_utf8(bytes).ok().filter(|text| text.contains('\n'))
}

/// Times, random ids and marks that no two runs share.
const VARYING: &[&str] = &[
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "LastModifiedDate",
    "CreationDateTime",
    "creationTime",
    "TableId",
    "StreamArn",
    "LatestStreamArn",
    "LatestStreamLabel",
    "cdkd:token",
    "RoleId",
    "Version",
    "token",
    "SubscriptionArn",
    "arn",
    "logGroupArn",
];

/// All that the services have under the name of a stack or with its tag.
fn found(api: &Api, stack: &str) -> Vec<(&'static str, Value)> {
    let mut found = Vec::new();
    let queues = api.json(Json::Sqs, "ListQueues", &json!({ "QueueNamePrefix": stack })).unwrap();
    for url in texts(&queues["QueueUrls"]) {
        let attributes = api.queue(&url).unwrap().map(Value::Object);
        let tags = api.json(Json::Sqs, "ListQueueTags", &json!({ "QueueUrl": url })).unwrap();
        found.push((
            "queue",
            json!({ "name": url.rsplit('/').next(), "is": attributes, "tags": tags["Tags"] }),
        ));
    }
    let mut request = json!({});
    loop {
        let tables = api.json(Json::DynamoDb, "ListTables", &request).unwrap();
        for name in texts(&tables["TableNames"]).into_iter().filter(|name| name.contains(stack)) {
            found.push(("table", json!({ "name": name, "is": api.table(&name).unwrap() })));
        }
        let Some(last) = tables["LastEvaluatedTableName"].as_str() else { break };
        request = json!({ "ExclusiveStartTableName": last });
    }
    for topic in members(api, Query::Sns, "ListTopics", "Topics/member", "TopicArn") {
        if topic.contains(stack) {
            let subscriptions: Vec<Value> = api
                .subscriptions(&topic)
                .unwrap()
                .into_iter()
                .map(|it| json!({ "protocol": it.protocol, "endpoint": it.endpoint, "attributes": it.attributes }))
                .collect();
            let name = topic.rsplit(':').next().unwrap_or_default().to_owned();
            found.push((
                "topic",
                json!({ "name": name, "is": api.topic(&topic).unwrap(), "subscriptions": subscriptions }),
            ));
        }
    }
    for endpoint in members(api, Query::Sns, "ListSubscriptions", "Subscriptions/member", "Endpoint") {
        if endpoint.contains(stack) {
            found.push(("subscription", json!(endpoint)));
        }
    }
    for bucket in buckets(api) {
        if bucket.starts_with(stack) {
            let versioned = api.bucket_is_versioned(&bucket).unwrap();
            let settings =
                ["cors", "encryption", "policy"].map(|it| api.bucket_setting(&bucket, it).unwrap());
            let tags = api.bucket_tags(&bucket).unwrap();
            found.push((
                "bucket",
                json!({ "name": bucket, "versioned": versioned, "settings": settings, "tags": tags }),
            ));
        }
    }
    for name in members(api, Query::Iam, "ListRoles", "Roles/member", "RoleName") {
        if name.contains(stack) {
            let role = api.role(&name).unwrap().unwrap();
            let is = json!({ "trust": role.trust, "inline": role.inline, "attached": role.attached,
                "description": role.description, "tags": role.tags });
            found.push(("role", json!({ "name": name, "is": is })));
        }
    }
    let mut request = json!({ "MaxResults": 50 });
    loop {
        let page = api.json(Json::Ssm, "DescribeParameters", &request).unwrap();
        for parameter in page["Parameters"].as_array().into_iter().flatten() {
            let name = parameter["Name"].as_str().unwrap_or_default();
            if name.contains(stack) {
                let value = api.parameter(name).unwrap().map(|it| it["Value"].clone());
                found.push(("parameter", json!({ "name": name, "type": parameter["Type"], "value": value })));
            }
        }
        let Some(next) = page["NextToken"].as_str().filter(|it| !it.is_empty()) else { break };
        request["NextToken"] = json!(next);
    }
    let groups = api.json(Json::Logs, "DescribeLogGroups", &json!({ "logGroupNamePrefix": stack })).unwrap();
    for group in groups["logGroups"].as_array().into_iter().flatten() {
        found.push(("logGroup", json!({ "name": group["logGroupName"], "days": group["retentionInDays"] })));
    }
    found
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

/// A text of every member of a list, page by page.
fn members(api: &Api, service: Query, operation: &str, path: &str, name: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut next: Option<(&str, String)> = None;
    loop {
        let request: Vec<(&str, &str)> = next.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let page = api.query(service, operation, &request).unwrap();
        all.extend(page.all(path).into_iter().filter_map(|it| it.get(name).map(str::to_owned)));
        let marker = |element: &str| page.get(element).filter(|it| !it.is_empty()).map(str::to_owned);
        next = match (marker("NextToken"), marker("Marker")) {
            (Some(token), _) => Some(("NextToken", token)),
            (None, Some(marker)) => Some(("Marker", marker)),
            (None, None) => return all,
        };
    }
}

fn buckets(api: &Api) -> Vec<String> {
    let answer = api.rest("s3", http::Method::GET, "/", &[], &[]).unwrap();
    let document = cdkd_test_support::Xml::parse(&answer.text()).unwrap();
    document.all("Buckets/Bucket/Name").into_iter().map(|name| name.text.clone()).collect()
}

/// Where two documents differ.
fn differences(expected: &Value, found: &Value) -> String {
    let mut text = String::new();
    compare("", expected, found, &mut text);
    text
}

fn compare(path: &str, expected: &Value, found: &Value, text: &mut String) {
    match (expected, found) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let (one, other) = (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                compare(&format!("{path}/{key}"), one, other, text);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (number, (one, other)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}/{number}"), one, other, text);
            }
        }
        _ if expected == found => {}
        _ => {
            let _ = writeln!(text, "{path}:\n  expected {expected}\n  found    {found}");
        }
    }
}

fn table(rows: &[Row]) -> String {
    let mut sorted: Vec<&Row> = rows.iter().collect();
    sorted.sort_by_key(|row| (row.work, row.kill.point.0, row.kill.stop, row.stack.clone()));
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<8} {:>7} {:<6} {:<84} {:<46} {:>5}",
        "work", "point", "killed", "request", "what happened", "s"
    );
    for row in sorted {
        let request = row.killed.as_ref().map_or_else(
            || "(not reached)".to_owned(),
            |entry| {
                let resource = entry
                    .resource
                    .replace("cdkd-state-123456789012/", "")
                    .replace("cdkd-runs-123456789012-us-east-1/", "");
                format!("{} {} {resource}", entry.service, entry.operation).chars().take(84).collect()
            },
        );
        let when = if row.kill.when == When::Before { "before" } else { "after" };
        let point = format!("{}/{}", row.kill.point.0, row.kill.point.1);
        let _ = writeln!(
            text,
            "{:<8} {point:>7} {when:<6} {request:<84} {:<46} {:>5.1}",
            format!("{:?}", row.work),
            row.happened,
            row.seconds
        );
    }
    text
}
