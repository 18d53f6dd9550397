//! What runs of several stacks cost: execution time, requests of the reference protocol, events and payloads.

use std::time::{Duration, Instant};

use cdkd_test_support::{Archive, LocalAws, Options};
use serde_json::{Map, Value, json};

use super::Row;

/// Runs of each kind; the middle one of the sorted times counts.
const RUNS: usize = 3;
/// Execution time of a run over two unchanged stacks, seconds.
const UNCHANGED: f64 = 2.5;
/// Ten independent stacks against one.
const SIDE_BY_SIDE: f64 = 1.5;
/// How long a create of Cloud Control takes to show its end where that is to be as in an account, seconds.
const OPERATION: f64 = 5.0;
/// Rules F1 and F2: bytes of a payload, events of an execution.
const PAYLOAD: f64 = 200_000.0;
const EVENTS: f64 = 25_000.0;

/// Deploys generated applications on a local AWS of its own.
pub fn measure() -> Result<Vec<Row>, String> {
    let aws = LocalAws::start(&Options::default().wire())?;
    let mut rows = Vec::new();
    two_unchanged(&aws, &mut rows)?;
    side_by_side(&aws, &mut rows)?;
    references(&aws, &mut rows)?;
    a_hundred(&aws, &mut rows)?;
    Ok(rows)
}

fn two_unchanged(aws: &LocalAws, rows: &mut Vec<Row>) -> Result<(), String> {
    let app = App::default().stack("Source", &queues("Source", 3), &["bench-source"]).stack(
        "Reader",
        &imports(&["bench-source".to_owned()], ""),
        &[],
    );
    let app = app.upload(aws)?;
    deploy(aws, &app)?;
    let runs = (0..RUNS).map(|_| deploy(aws, &app)).collect::<Result<Vec<_>, _>>()?;
    let times = runs.iter().map(|run| run.seconds).collect();
    rows.push(Row::new("two stacks, unchanged: execution", super::median(times), "s").below(UNCHANGED));
    if let Some(run) = runs.last() {
        let s3 = run.count(|it| it.service == "s3");
        rows.push(Row::new("two stacks, unchanged: S3 requests", s3, ""));
        let calls = run.count(|it| it.service == "cloudcontrol");
        rows.push(Row::new("two stacks, unchanged: Cloud Control calls", calls, "").below(1.0));
        let conditional = run.count(|it| it.service == "s3" && it.status == Some(304));
        rows.push(Row::new("two stacks, unchanged: conditional GETs", conditional, "").below(1.0));
    }
    destroy(aws, &["Source", "Reader"])
}

/// Ten independent stacks against one, twice: with operations that are over at once, which measures this machine, since
/// the local AWS is one process and does the work of ten one after the other; and with operations that last.
fn side_by_side(aws: &LocalAws, rows: &mut Vec<Row>) -> Result<(), String> {
    let (mut one, mut ten) = (Vec::new(), Vec::new());
    for run in 0..RUNS {
        let (first, others) = one_and_ten(aws, &format!("Side{run}x"))?;
        one.push(first);
        ten.push(others);
    }
    let (one, ten) = (super::median(one), super::median(ten));
    rows.push(Row::new("one stack, new, instant operations: execution", one, "s"));
    rows.push(Row::new("ten independent stacks, the same: execution", ten, "s"));
    rows.push(Row::new("ten against one, instant operations", ten / one, "times"));

    set_delay(aws, OPERATION)?;
    let slow = one_and_ten(aws, "Slow");
    set_delay(aws, 0.1)?;
    let (one, ten) = slow?;
    rows.push(Row::new(format!("one stack, new, {OPERATION} s an operation: execution"), one, "s"));
    rows.push(Row::new("ten independent stacks, the same: execution", ten, "s"));
    let name = format!("ten against one, {OPERATION} s an operation");
    rows.push(Row::new(name, ten / one, "times").below(SIDE_BY_SIDE));
    Ok(())
}

/// Seconds that a deploy of one new stack takes, and one of ten; each has three queues and a parameter that names them.
fn one_and_ten(aws: &LocalAws, prefix: &str) -> Result<(f64, f64), String> {
    let name = |number: usize| format!("{prefix}{number}");
    let app = |numbers: std::ops::Range<usize>| {
        numbers.fold(App::default(), |app, number| {
            let mut resources = queues(&name(number), 3);
            let names: Vec<Value> = (0..3).map(|at| json!({"Ref": format!("Queue{at}")})).collect();
            let value = json!({"Fn::Join": ["|", names]});
            resources["Names"] =
                json!({"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": value}});
            app.stack(&name(number), &resources, &[])
        })
    };
    let one = deploy(aws, &app(0..1).upload(aws)?)?.seconds;
    let ten = deploy(aws, &app(1..11).upload(aws)?)?.seconds;
    set_delay(aws, 0.1)?;
    let names: Vec<String> = (0..11).map(name).collect();
    destroy(aws, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok((one, ten))
}

/// How long the local AWS lets an operation of Cloud Control take, seconds.
fn set_delay(aws: &LocalAws, seconds: f64) -> Result<(), String> {
    let settings = json!({"cloud_control_delay": seconds}).to_string();
    let answer = aws.api().plain(http::Method::POST, "/_local/settings", settings.as_bytes())?;
    if answer.status.is_success() { Ok(()) } else { Err(answer.text()) }
}

/// Twelve imports from three producers, with ten further records around them.
fn references(aws: &LocalAws, rows: &mut Vec<Row>) -> Result<(), String> {
    let names = |producer: usize| -> Vec<String> {
        (0..4).map(|number| format!("bench-{producer}-{number}")).collect()
    };
    let mut app = App::default();
    for producer in 0..3 {
        let name = format!("Producer{producer}");
        let exports = names(producer);
        app = app.stack(&name, &queues(&name, 1), &exports.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for number in 0..10 {
        let name = format!("Around{number}");
        app = app.stack(&name, &queues(&name, 1), &[]);
    }
    deploy(aws, &app.upload(aws)?)?;
    let all: Vec<String> = (0..3).flat_map(names).collect();
    let reader = |suffix: &str| App::default().stack("Reader", &imports(&all, suffix), &[]).upload(aws);
    let first = reader("")?;
    let run = deploy(aws, &first)?;
    let of_producers =
        |it: &Request| it.resource.contains("/Producer") && it.resource.ends_with("/state.json");
    let asked = run.count(|it| it.operation == "GetObject" && it.resource.ends_with("/exports.json"));
    rows.push(Row::new("12 imports of 3 producers: GETs of the index", asked, "").below(2.0));
    let looks = run.count(|it| it.operation == "GetObject" && of_producers(it) && it.status == Some(304));
    rows.push(Row::new("12 imports of 3 producers: conditional GETs", looks, "").below(4.0));
    let reads = run.count(|it| it.operation == "GetObject" && of_producers(it) && it.status == Some(200));
    rows.push(Row::new("12 imports of 3 producers: GETs of records", reads, "").below(4.0));
    let lists = run.count(|it| it.operation == "ListObjectsV2" && it.resource.ends_with("/cdkd/"));
    rows.push(Row::new("12 imports of 3 producers: lists of records", lists, "").below(1.0));
    let run = deploy(aws, &first)?;
    let looks = run.count(|it| it.status == Some(304));
    rows.push(Row::new("the same, unchanged: conditional GETs", looks, "").below(1.0));
    let mut stacks: Vec<String> = (0..3).map(|number| format!("Producer{number}")).collect();
    stacks.extend((0..10).map(|number| format!("Around{number}")));
    stacks.push("Reader".to_owned());
    destroy(aws, &stacks.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A hundred stacks in ten levels, each but the first ten importing from one of the level before.
fn a_hundred(aws: &LocalAws, rows: &mut Vec<Row>) -> Result<(), String> {
    let name = |level: usize, number: usize| format!("Level{level}Stack{number}");
    let mut app = App::default();
    let mut all = Vec::new();
    for level in 0..10 {
        for number in 0..10 {
            let stack = name(level, number);
            let resources = match level.checked_sub(1) {
                Some(before) => imports(&[format!("export-of-{}", name(before, number))], ""),
                None => imports(&[], "first"),
            };
            app = app.stack(&stack, &resources, &[&format!("export-of-{stack}")]);
            all.push(stack);
        }
    }
    let app = app.upload(aws)?;
    for what in ["new", "unchanged"] {
        let run = deploy(aws, &app)?;
        rows.push(Row::new(format!("100 stacks, {what}: execution"), run.seconds, "s"));
        rows.push(Row::new(format!("100 stacks, {what}: events"), run.events, "").below(EVENTS));
        rows.push(
            Row::new(format!("100 stacks, {what}: largest payload"), run.largest, "bytes").below(PAYLOAD),
        );
    }
    let began = Instant::now();
    destroy(aws, &all.iter().map(String::as_str).collect::<Vec<_>>())?;
    rows.push(Row::new("100 stacks, destroyed: execution", began.elapsed().as_secs_f64(), "s"));
    Ok(())
}

/// An application; every export has the value of the stack's first resource.
#[derive(Default)]
struct App {
    artifacts: Map<String, Value>,
    archive: Archive,
}

impl App {
    fn stack(mut self, name: &str, resources: &Value, exports: &[&str]) -> Self {
        let first = resources.as_object().and_then(|all| all.keys().next()).cloned().unwrap_or_default();
        let outputs: Map<String, Value> = exports
            .iter()
            .enumerate()
            .map(|(number, export)| {
                let output = json!({"Value": {"Ref": first}, "Export": {"Name": export}});
                (format!("Out{number}"), output)
            })
            .collect();
        let template = json!({"Resources": resources, "Outputs": outputs});
        let file = format!("{name}.template.json");
        self.artifacts.insert(
            name.to_owned(),
            json!({
                "type": "aws:cloudformation:stack",
                "environment": "aws://unknown-account/unknown-region",
                "properties": {"templateFile": file},
            }),
        );
        self.archive = self.archive.file(&file, template.to_string().into_bytes());
        self
    }

    fn upload(self, aws: &LocalAws) -> Result<String, String> {
        let manifest = json!({"version": "36.0.0", "artifacts": self.artifacts});
        let archive = self.archive.file("manifest.json", manifest.to_string().into_bytes());
        Ok(aws.upload_zip(&archive.zip(6)?)?)
    }
}

fn queues(stack: &str, count: usize) -> Value {
    let queue =
        |number| json!({"Type": "AWS::SQS::Queue", "Properties": {"QueueName": format!("{stack}-{number}")}});
    (0..count).map(|number| (format!("Queue{number}"), queue(number))).collect::<Map<_, _>>().into()
}

/// A parameter that holds these exports.
fn imports(names: &[String], suffix: &str) -> Value {
    let mut parts: Vec<Value> = names.iter().map(|name| json!({"Fn::ImportValue": name})).collect();
    parts.push(json!(format!("end{suffix}")));
    let value = json!({"Fn::Join": ["|", parts]});
    json!({"Held": {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": value}}})
}

/// What the wire saw of a run.
struct Request {
    service: String,
    operation: String,
    resource: String,
    status: Option<u16>,
}

/// An execution that succeeded.
struct Run {
    seconds: f64,
    events: f64,
    /// Bytes of the longest input, output or payload of its history.
    largest: f64,
    requests: Vec<Request>,
}

impl Run {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn count(&self, of: impl Fn(&Request) -> bool) -> f64 {
        self.requests.iter().filter(|it| of(it)).count() as f64
    }
}

fn deploy(aws: &LocalAws, assembly: &str) -> Result<Run, String> {
    execute(aws, "cdkd-deploy", &json!({"assembly": assembly}))
}

fn destroy(aws: &LocalAws, stacks: &[&str]) -> Result<(), String> {
    execute(aws, "cdkd-destroy", &json!({"stacks": stacks})).map(drop)
}

#[expect(clippy::cast_precision_loss, reason = "counts and sizes are far below 2^52")]
fn execute(aws: &LocalAws, machine: &str, input: &Value) -> Result<Run, String> {
    let (api, wire) = (aws.api(), aws.wire());
    let mark = wire.log(0).last().map_or(0, |entry| entry.seq);
    let began = Instant::now();
    let execution = api.start_execution(machine, input)?;
    let outcome = api.wait_at_most(&execution, Duration::from_mins(10))?;
    let seconds = began.elapsed().as_secs_f64();
    if !outcome.succeeded() {
        return Err(format!("{machine}: {outcome}"));
    }
    let history = api.history(&execution)?;
    let texts = history.iter().flat_map(|event| event.as_object().into_iter().flat_map(Map::values));
    let texts = texts.filter_map(Value::as_object).flat_map(Map::values).filter_map(Value::as_str);
    let largest = texts.map(str::len).max().unwrap_or_default() as f64;
    let requests = wire
        .log(mark)
        .into_iter()
        // What keeps up the index by events comes when it comes, and is no part of a run.
        .filter(|it| it.function.as_deref().is_some_and(|function| function != "cdkd-rebuild-index"))
        .map(|it| Request {
            service: it.service,
            operation: it.operation,
            resource: it.resource,
            status: it.status,
        })
        .collect();
    Ok(Run { seconds, events: history.len() as f64, largest, requests })
}
