//! Promise 3 for runs of several stacks: `StopExecution` at any point, then the same execution again, ends as if
//! nothing had happened.
//!
//! An undisturbed deploy, change and destroy of a producer and its consumer are watched first. Then the nth of their
//! requests is held, for n spread over the whole length, the execution is stopped, and the same one is started again.
//! What was held goes on at once, or when another has taken over, or when all is over: a stopped execution's function
//! may still be at work. At the end the services have what they have after the undisturbed run, none of it twice, and
//! neither lock nor journal is left.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the table of stops is there to be read")]

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cdkd_e2e::{App, PARAMETER, QUEUE, Stack, World, imported, setting};
use cdkd_test_support::{Json, Options, Outcome, REGION};
use cdkd_wire::{Entry, Hold, Rule, RuleBuilder, When};
use serde_json::{Map, Value, json};

/// Seconds that a function may take: what a take-over waits for at most.
const TIME_LIMIT: u32 = 8;
/// Local AWSs side by side: each is one process of Python, and that bounds how fast this goes.
const WORLDS: usize = 2;
/// Pairs of stacks at work at a time in each: most of the time they wait.
const SIDE_BY_SIDE: usize = 6;
/// Longer than any run takes here, on a machine that has other work too.
const PATIENCE: Duration = Duration::from_secs(150);
/// How long what follows by events may take.
const AFTERMATH: Duration = Duration::from_mins(1);
/// Points of a deploy, of a change, of a destroy.
const POINTS: [(Work, usize); 3] = [(Work::Deploy, 21), (Work::Change, 10), (Work::Destroy, 21)];

type Told<T> = Result<T, Box<dyn Error>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Deploy,
    Change,
    Destroy,
}

/// One request of an undisturbed run, as a rule finds it in another run.
///
/// Questions for the progress of a request name nothing but that one: the write of the journal before them stands for
/// them, since a stop leaves the function at work.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// The nth whose resource names the pair: S3, Step Functions, changes of Cloud Control.
    Named(u64),
    /// The nth whose body names the pair: creates of Cloud Control, batches of deletes.
    Told(u64),
}

impl Place {
    fn requests(self, pair: &str) -> RuleBuilder {
        match self {
            Self::Named(nth) => Rule::on_any().resource(pair).nth(nth),
            Self::Told(nth) => Rule::on_any().body(pair).nth(nth),
        }
    }
}

/// When a request that was held goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    /// Before the next execution is started.
    AtOnce,
    /// When another has fenced it off.
    TakenOver,
    /// When the next execution has ended.
    Ended,
}

#[derive(Clone, Debug)]
struct Stop {
    work: Work,
    /// Number of the request, and of how many.
    point: (usize, usize),
    place: Place,
    when: When,
    release: Release,
}

/// What one pair of stacks goes through.
#[derive(Clone, Debug, Default)]
struct Story {
    pair: String,
    stops: Vec<Stop>,
}

/// A line of the table.
struct Row {
    stop: Stop,
    held: Option<Entry>,
    happened: String,
    seconds: f64,
}

struct Scene<'a> {
    world: World,
    rows: &'a Mutex<Vec<Row>>,
    faults: &'a Mutex<Vec<String>>,
}

#[test]
fn a_run_of_two_stacks_can_be_stopped_anywhere() {
    let (rows, faults) = (Mutex::default(), Mutex::default());
    let scene = || Scene {
        world: World::start(Options::default().time_limit(TIME_LIMIT)),
        rows: &rows,
        faults: &faults,
    };
    let scenes: Vec<Scene<'_>> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..WORLDS).map(|_| scope.spawn(scene)).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    let (mut stops, mut expected) = (Vec::new(), BTreeMap::new());
    for (work, points) in POINTS {
        stops.push(spread(work, points, &scenes[0].watch("Calm00", work)));
        expected.insert(work, scenes[0].look("Calm00").unwrap());
    }
    let stories = Mutex::new(stories(stops));
    std::thread::scope(|scope| {
        for scene in scenes.iter().cycle().take(WORLDS * SIDE_BY_SIDE) {
            scope.spawn(|| {
                loop {
                    let Some(story) = stories.lock().unwrap().pop_front() else { break };
                    scene.tell(&story, &expected);
                }
            });
        }
    });
    let rows = rows.lock().unwrap();
    println!("{}", table(&rows));
    let faults = faults.lock().unwrap();
    assert!(faults.is_empty(), "{} faults\n\n{}", faults.len(), faults.join("\n\n"));
    for (work, points) in POINTS {
        let stopped = rows.iter().filter(|row| row.stop.work == work && row.held.is_some()).count();
        // The last of them may not come: runs differ by a request or two.
        assert!(stopped + 1 >= points, "{work:?}: {stopped} of {points} stops happened");
    }
}

/// Points over the whole length of a run, on either side of the forwarding, with each kind of release.
fn spread(work: Work, points: usize, length: &[Option<Place>]) -> Vec<Stop> {
    let places: Vec<(usize, Place)> =
        length.iter().enumerate().filter_map(|(at, place)| Some((at + 1, (*place)?))).collect();
    let stop = |number: usize| {
        let wanted = 1 + number * (length.len() - 1) / (points - 1);
        let (at, place) = *places.iter().min_by_key(|(at, _)| at.abs_diff(wanted)).unwrap();
        let when = if number.is_multiple_of(2) { When::Before } else { When::After };
        let release = [Release::AtOnce, Release::TakenOver, Release::Ended][number % 3];
        Stop { work, point: (at, length.len()), place, when, release }
    };
    (0..points).map(stop).collect()
}

/// Each pair is deployed, some are changed, all are destroyed; each of it is stopped once.
fn stories(stops: Vec<Vec<Stop>>) -> VecDeque<Story> {
    let mut stories = VecDeque::new();
    for of_work in stops {
        for (number, stop) in of_work.into_iter().enumerate() {
            if number == stories.len() {
                stories.push_back(Story { pair: format!("Stop{:02}", number + 1), stops: Vec::new() });
            }
            stories[number].stops.push(stop);
        }
    }
    stories
}

/// A producer `…P` of two exports and a consumer `…C` of both. In the change one export takes the place of the other,
/// which goes when the consumer has left it.
fn app(pair: &str, changed: bool) -> App {
    let (second, seconds) = if changed { ("New", 60) } else { ("Old", 30) };
    let export = |logical_id: &str| format!("{pair}-{logical_id}");
    let mut resources = Map::new();
    let mut outputs = Map::new();
    for (logical_id, seconds) in [("Stays", seconds), (second, 45)] {
        let properties = json!({ "VisibilityTimeout": seconds });
        resources.insert(logical_id.to_owned(), json!({ "Type": QUEUE, "Properties": properties }));
        let value = json!({ "Fn::GetAtt": [logical_id, "Arn"] });
        outputs.insert(
            format!("{logical_id}Arn"),
            json!({ "Value": value, "Export": { "Name": export(logical_id) } }),
        );
    }
    let producer = json!({ "Resources": resources, "Outputs": outputs });
    let reads = setting(&imported(&[&export("Stays"), &export(second)]));
    let consumer = json!({ "Reads": reads, second: { "Type": QUEUE, "Properties": {} } });
    // The order of names is the wrong one.
    App::from([Stack::with(&consumer_of(pair), &consumer), Stack::new(&producer_of(pair), &producer)])
}

fn producer_of(pair: &str) -> String {
    format!("{pair}P")
}

fn consumer_of(pair: &str) -> String {
    format!("{pair}C")
}

impl Scene<'_> {
    /// Lets an undisturbed run pass; its requests in order, each as a rule finds it if one can.
    fn watch(&self, pair: &str, work: Work) -> Vec<Option<Place>> {
        let (world, wire) = (&self.world, self.world.aws.wire());
        let named = wire.rule(Rule::on_any().resource(pair).delay_before(Duration::ZERO));
        let told = wire.rule(Rule::on_any().body(pair).delay_before(Duration::ZERO));
        let mark = world.mark();
        let began = Instant::now();
        let execution = self.start(pair, work, 0).unwrap();
        let outcome = world.aws.api().wait_at_most(&execution, PATIENCE).unwrap();
        assert!(outcome.succeeded(), "{outcome}");
        let seconds = began.elapsed().as_secs_f64();
        let log = world.since(mark);
        wire.remove_rule(named);
        wire.remove_rule(told);
        let (mut by_name, mut by_body) = (0, 0);
        let mut places = Vec::new();
        for entry in log {
            by_name += u64::from(entry.rules.contains(&named));
            by_body += u64::from(entry.rules.contains(&told));
            places.push(if entry.rules.contains(&named) {
                Some(Place::Named(by_name))
            } else {
                entry.rules.contains(&told).then_some(Place::Told(by_body))
            });
        }
        println!("{work:?}: {} requests, {seconds:.1} s", places.len());
        places
    }

    /// Starts the work on a pair; the execution's name begins with the pair's.
    fn start(&self, pair: &str, work: Work, attempt: usize) -> Told<String> {
        let aws = &self.world.aws;
        let name = format!("{pair}-{work:?}-{attempt}");
        if work == Work::Destroy {
            let input = json!({ "stacks": [producer_of(pair), consumer_of(pair)] });
            return Ok(aws.api().start_named_execution("cdkd-destroy", &name, &input)?);
        }
        let key = format!("uploads/{pair}-{work:?}.zip");
        if attempt == 0 {
            aws.api().put_object(aws.runs_bucket(), &key, &app(pair, work == Work::Change).zip())?;
        }
        let input = json!({ "assembly": format!("s3://{}/{key}", aws.runs_bucket()) });
        Ok(aws.api().start_named_execution("cdkd-deploy", &name, &input)?)
    }

    fn tell(&self, story: &Story, expected: &BTreeMap<Work, Value>) {
        for stop in &story.stops {
            if let Err(fault) = self.stop(&story.pair, stop, &expected[&stop.work]) {
                let fault = format!("{} {stop:?}: {fault}", story.pair);
                eprintln!("{fault}");
                self.faults.lock().unwrap().push(fault);
                return;
            }
        }
    }

    /// Stops a run at its point, starts it again, and looks at what is there then.
    fn stop(&self, pair: &str, stop: &Stop, expected: &Value) -> Told<()> {
        let (world, wire) = (&self.world, self.world.aws.wire());
        let began = Instant::now();
        let mark = wire.counts().total;
        let gate = wire.hold(stop.place.requests(pair), stop.when);
        let first = self.start(pair, stop.work, 0)?;
        let held = self.wait_until_held(&gate, &first)?;
        let mut happened = String::from("not reached");
        if let Some(seq) = held {
            world.aws.api().stop_execution(&first)?;
            let outcome = self.wait(&first)?;
            if outcome.status != "ABORTED" {
                return Err(format!("not stopped: {outcome}").into());
            }
            happened = self.again(pair, stop, &gate, seq)?;
        }
        wire.remove_rule(gate.rule());
        let held = held.and_then(|seq| world.since(seq - 1).into_iter().next());
        let seconds = began.elapsed().as_secs_f64();
        self.rows.lock().unwrap().push(Row { stop: stop.clone(), held, happened, seconds });
        self.check(pair, expected).map_err(|fault| {
            let requests: Vec<String> =
                world.since(mark).iter().filter(|it| it.resource.contains(pair)).map(line).collect();
            format!("{fault}\n{}", requests.join("\n")).into()
        })
    }

    /// The same execution once more; what was held is released when the stop says so.
    fn again(&self, pair: &str, stop: &Stop, gate: &Hold, held: u64) -> Told<String> {
        if stop.release == Release::AtOnce {
            gate.release();
        }
        // Set before, so that it sees all of them.
        let fences = Rule::on("s3", "PutObject").resource(&format!("/cdkd-journal/cdkd/{pair}"));
        let fences = self.world.rule(fences.function("cdkd-save-state").delay_before(Duration::ZERO));
        let second = self.start(pair, stop.work, 1)?;
        if stop.release == Release::TakenOver {
            // Where the first one had no lock yet, there is nothing to take over, and nothing that it may still do.
            until(|| Ok(fences.fired() > 0 || self.has_ended(&second)?))?;
            gate.release();
        }
        let mut outcome = self.wait(&second)?;
        gate.release();
        drop(fences);
        until(|| Ok(self.world.since(held - 1).first().is_none_or(|it| it.took_us.is_some())))?;
        let mut happened = told(&outcome);
        if stop.release == Release::Ended {
            // A lock or an object of the journal that arrives when all is over is nobody's: the next run of the stack
            // finds that its execution has ended.
            let left = self.left(pair)?;
            if !left.is_empty() && is_lost(&self.world.since(held - 1)[0]) {
                self.clean(pair, stop.work, &left)?;
                happened.push_str(", late write");
            }
        }
        if stop.work == Work::Destroy && outcome.error.as_deref() == Some("StackNotFound") {
            // All was gone when it was stopped.
            "SUCCEEDED".clone_into(&mut outcome.status);
        }
        if !outcome.succeeded() {
            return Err(format!("{outcome}").into());
        }
        Ok(happened)
    }

    /// What a late write has left goes with the next run, or the next sweep.
    fn clean(&self, pair: &str, work: Work, left: &[String]) -> Told<()> {
        let api = self.world.aws.api();
        if work == Work::Destroy {
            for stack in [consumer_of(pair), producer_of(pair)] {
                if left.iter().any(|key| key.contains(&format!("/{stack}/"))) {
                    let input = json!({ "stacks": [stack] });
                    let outcome = self.wait(&api.start_execution("cdkd-destroy", &input)?)?;
                    if !outcome.succeeded() && outcome.error.as_deref() != Some("StackNotFound") {
                        return Err(format!("{outcome}").into());
                    }
                }
            }
            api.invoke("cdkd-save-state", &json!({ "action": "sweep" }))?;
            return Ok(());
        }
        let outcome = self.wait(&self.start(pair, work, 2)?)?;
        if told(&outcome) != "unchanged" {
            return Err(format!("once more: {outcome}").into());
        }
        Ok(())
    }

    /// Waits until a request is held, whose number it answers, or the execution has ended.
    fn wait_until_held(&self, gate: &Hold, execution: &str) -> Told<Option<u64>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(held) = gate.wait_until_held(Duration::from_millis(200)) {
                return Ok(Some(held.seq));
            }
            if self.has_ended(execution)? {
                return Ok(None);
            }
            if Instant::now() > deadline {
                return Err("neither held nor ended".into());
            }
        }
    }

    fn has_ended(&self, execution: &str) -> Told<bool> {
        Ok(self.world.aws.api().describe_execution(execution)?.status != "RUNNING")
    }

    fn wait(&self, execution: &str) -> Told<Outcome> {
        Ok(self.world.aws.api().wait_at_most(execution, PATIENCE)?)
    }

    /// Waits for the index and the sweep after the stop, which follow by events, and compares.
    fn check(&self, pair: &str, expected: &Value) -> Told<()> {
        let deadline = Instant::now() + AFTERMATH;
        loop {
            let (left, found) = (self.left(pair)?, self.look(pair)?);
            if left.is_empty() && found == *expected {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("left: {left:?}\nexpected {expected:#}\nfound {found:#}").into());
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// Locks and journals of the pair, old versions of them included.
    fn left(&self, pair: &str) -> Told<Vec<String>> {
        let (api, bucket) = (self.world.aws.api(), self.world.aws.state_bucket());
        let mut left = Vec::new();
        for stack in [producer_of(pair), consumer_of(pair)] {
            for prefix in [format!("cdkd/{stack}/{REGION}/lock.json"), format!("cdkd-journal/cdkd/{stack}/")]
            {
                left.extend(api.list_versions(bucket, &prefix)?.into_iter().map(|version| version.key));
            }
        }
        Ok(left)
    }

    /// What there is of a pair: asked of the services, and what is on record of it and in the index.
    fn look(&self, pair: &str) -> Told<Value> {
        let (api, bucket) = (self.world.aws.api(), self.world.aws.state_bucket());
        let mut things = Vec::new();
        let mut covers = Vec::new();
        let queues = api.json(Json::Sqs, "ListQueues", &json!({ "QueueNamePrefix": pair }))?;
        for url in queues["QueueUrls"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let name = url.rsplit('/').next().unwrap_or_default();
            let tags = api.json(Json::Sqs, "ListQueueTags", &json!({ "QueueUrl": url }))?;
            let tag = |tag: &str| tags["Tags"][tag].as_str().unwrap_or_default().to_owned();
            let seconds = api.queue(url)?.map(|it| it["VisibilityTimeout"].clone());
            covers.push((name.to_owned(), format!("<{}.{}>", tag("cdkd:stack"), tag("cdkd:logical-id"))));
            things.push(format!("{QUEUE} {name} {seconds:?}"));
        }
        for name in self.world.parameters(pair) {
            let value = api.parameter(&name)?.map(|it| it["Value"].clone());
            // Account, region and stack are the same: of the name only its end differs.
            let (start, _) = name.rsplit_once('-').unwrap_or((&name, ""));
            things.push(format!("{PARAMETER} {start} {value:?}"));
        }
        covers.push((pair.to_owned(), "Pair".to_owned()));
        let cover = |text: String| covers.iter().fold(text, |text, (name, cover)| text.replace(name, cover));
        let mut things: Vec<String> = things.into_iter().map(&cover).collect();
        things.sort();

        let mut records = Map::new();
        for stack in [producer_of(pair), consumer_of(pair)] {
            let folder = format!("cdkd/{stack}/");
            let mut kept = api.list_objects(bucket, &folder)?;
            kept.extend(api.list_objects(bucket, &format!("cdkd-templates/{folder}"))?);
            let record = self.world.aws.record(&stack)?.map(|record| {
                let (fields, rows) = (names(&record), names(&record["resources"]));
                json!({ "fields": fields, "resources": rows, "outputs": record["outputs"],
                    "exports": record["exportNames"], "imports": record["imports"] })
            });
            if record.is_some() {
                // The template of a deploy that was stopped stays until the stack is destroyed.
                kept.retain(|key| !key.ends_with("/attempted.json"));
            }
            records.insert(stack, json!({ "objects": kept, "record": record }));
        }
        let index = api.get_object(bucket, &format!("cdkd/_index/{REGION}/exports.json"))?;
        let index: Value = index.map_or(Ok(Value::Null), |body| serde_json::from_slice(&body))?;
        let exports: Map<String, Value> = index["exports"]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| name.starts_with(pair))
            .map(|(name, entry)| (name.clone(), json!([entry["producerStack"], entry["value"]])))
            .collect();
        let documents = json!({ "records": records, "index": exports }).to_string();
        let mut found: Value = serde_json::from_str(&cover(documents))?;
        found["things"] = json!(things);
        Ok(found)
    }
}

fn until(holds: impl Fn() -> Told<bool>) -> Told<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds()? {
        if Instant::now() > deadline {
            return Err("waited too long".into());
        }
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Whether it makes something that only the next run of the stack, or a sweep, removes.
fn is_lost(entry: &Entry) -> bool {
    entry.operation == "PutObject"
        && (entry.resource.contains("/cdkd-journal/") || entry.resource.ends_with("/lock.json"))
}

/// The names of the fields of an object, in their order.
fn names(object: &Value) -> Vec<&String> {
    let mut names: Vec<&String> = object.as_object().into_iter().flat_map(Map::keys).collect();
    names.sort();
    names
}

fn told(outcome: &Outcome) -> String {
    let word = outcome.output.as_ref().and_then(|output| output["outcome"].as_str());
    word.or(outcome.error.as_deref()).unwrap_or(&outcome.status).to_owned()
}

fn line(entry: &Entry) -> String {
    let function = entry.function.as_deref().unwrap_or_default();
    let status = entry.status.unwrap_or_default();
    format!("{:>9} {function} {} {} {status}", entry.at_us / 1000, entry.operation, entry.resource)
}

fn table(rows: &[Row]) -> String {
    let mut sorted: Vec<&Row> = rows.iter().collect();
    sorted.sort_by_key(|row| (row.stop.work, row.stop.point.0));
    let mut text = String::new();
    for row in sorted {
        let Stop { work, point, when, release, .. } = &row.stop;
        let request = row.held.as_ref().map_or_else(
            || "(not reached)".to_owned(),
            |it| format!("{} {}", it.operation, it.resource).chars().take(80).collect(),
        );
        let (work, when, release) = (format!("{work:?}"), format!("{when:?}"), format!("{release:?}"));
        let point = format!("{}/{}", point.0, point.1);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{work:<8} {point:>8} {when:<6} {release:<9} {request:<80} {:<24} {:>5.1} s",
            row.happened, row.seconds
        );
    }
    text
}
