//! Calls, played through from intent to outcome.

use serde_json::{Value, json};

use super::*;
use crate::error::{Code, Result};
use crate::protocol::journal::Outcome;
use crate::protocol::step::{Answer, Progress, Refused, Status};
use crate::state::Row;

const NOW: i64 = 1_796_070_352_000;

fn slice() -> Slice {
    let key = RecordKey::parse("Web", "us-east-1").unwrap();
    Slice { key, nonce: "n".into(), ends: NOW + 60_000 }
}

fn request(operation: Operation) -> Request {
    let row = Row::new("AWS::SQS::Queue", "");
    let (body, then) = match operation {
        Operation::Create => (json!({}), vec![Change::Put { logical_id: "Queue".into(), row }]),
        Operation::Update => (json!([]), vec![Change::Put { logical_id: "Queue".into(), row }]),
        Operation::Delete => (Value::Null, vec![Change::Remove { logical_id: "Queue".into() }]),
    };
    Request {
        logical_id: "Queue".into(),
        operation,
        type_name: "AWS::SQS::Queue".into(),
        part: String::new(),
        identifier: (operation != Operation::Create).then(|| "url".to_owned()),
        body,
        then,
    }
}

fn progress(status: Status, identifier: Option<&str>) -> Event {
    Event::Answer(Ok(Progress {
        request_token: "token".into(),
        status,
        identifier: identifier.map(str::to_owned),
        model: None,
        retry_after: None,
    }))
}

fn event_failed(code: &str) -> Status {
    Status::Failed { code: code.into(), message: "no".into() }
}

fn refused<T>(code: &str, unknown: bool) -> Answer<T> {
    let throttled = code == "Throttling";
    let error = Error::new(Code::ServiceUnavailable, code);
    Err(Box::new(Refused { code: code.into(), message: "no".into(), throttled, unknown, error }))
}

/// Runs a machine; what it sends and asks is answered from the script, everything else as it should be. Answers the
/// names of its effects with what tells them apart.
fn play<M: Machine>(machine: M, script: Vec<Event>) -> (Vec<String>, Result<M::Output>) {
    let mut script = script.into_iter();
    let (mut said, mut numbers) = (Vec::new(), 0);
    let mut now = NOW;
    let mut next = machine.step(now, Vec::new());
    loop {
        let (machine, effects) = match next {
            Next::Go(machine, effects) => (machine, effects),
            Next::End(end) => {
                assert_eq!(script.next(), None, "all of the script is played");
                return (said, end);
            }
        };
        let mut events = Vec::new();
        for effect in effects {
            let (name, event) = match effect {
                Effect::Number => {
                    numbers += 1;
                    (String::new(), Event::Number(numbers))
                }
                Effect::Append(entries) => {
                    let name = entries.iter().map(entry).collect::<Vec<_>>().join("+");
                    (name, Event::Done)
                }
                Effect::Pace { throttled } => {
                    ((if throttled { "slower" } else { "" }).to_owned(), Event::Done)
                }
                Effect::Pause { millis, .. } => {
                    now += i64::try_from(millis).unwrap();
                    (String::new(), Event::Done)
                }
                Effect::Send(intent) => {
                    let token = &intent.client_token[..4];
                    (format!("send {} {token}", intent.operation.name()), script.next().unwrap())
                }
                Effect::Poll { request_token } => (format!("poll {request_token}"), script.next().unwrap()),
                Effect::ReadModel { identifier, .. } => {
                    (format!("read {identifier}"), script.next().unwrap())
                }
                Effect::FindDelete { identifier, .. } => {
                    (format!("find {identifier}"), script.next().unwrap())
                }
                Effect::IsHeld(_) => ("held?".to_owned(), script.next().unwrap()),
                Effect::Warn { identifier, .. } => (format!("warn {identifier}"), Event::Done),
                other => panic!("no effect of a call: {other:?}"),
            };
            if !name.is_empty() {
                said.push(name);
            }
            events.push(event);
        }
        next = machine.step(now, events);
    }
}

fn entry(entry: &Entry) -> String {
    match entry {
        Entry::Intent(intent) => format!("intent {}", intent.id),
        Entry::Accepted { .. } => "accepted".into(),
        Entry::Outcome { outcome: Outcome::Done { identifier }, .. } => format!("done {identifier}"),
        Entry::Outcome { outcome: Outcome::Failed { code, .. }, .. } => format!("failed {code}"),
        Entry::Change(Change::Put { row, .. }) => format!("put {}", row.physical_id()),
        Entry::Change(Change::Remove { .. }) => "remove".into(),
        Entry::Change(Change::Later(_)) => "later".into(),
        Entry::Change(Change::Forget(_)) => "forget".into(),
        other => format!("{other:?}"),
    }
}

fn call(operation: Operation, script: Vec<Event>) -> (Vec<String>, Result<End>) {
    let (mut said, end) = play(Call::new(slice(), request(operation)), script);
    // Which token it is does not matter, but whether it is another one.
    let mut tokens: Vec<String> = Vec::new();
    for name in &mut said {
        if let Some((call, token)) = name.clone().strip_prefix("send ").and_then(|it| it.split_once(' ')) {
            let known = tokens.iter().position(|it| it == token);
            let at = known.unwrap_or_else(|| {
                tokens.push(token.to_owned());
                tokens.len() - 1
            });
            *name = format!("{call} under token {at}");
        }
    }
    (said, end)
}

#[test]
fn p1_no_call_leaves_before_its_intent_and_its_token_follows_at_once() {
    let model = json!({"Arn": "a", "QueueUrl": "url"});
    let script = vec![
        progress(Status::InProgress, None),
        progress(Status::InProgress, Some("url")),
        Event::Answer(refused("Throttling", false)),
        progress(Status::Success, None),
        Event::Model(refused("Throttling", false)),
        Event::Model(Ok(Some(model))),
    ];
    let (said, end) = call(Operation::Create, script);
    assert_eq!(end, Ok(End::Done));
    assert_eq!(
        said,
        [
            "intent 1",
            "create under token 0",
            "accepted",
            "poll token",
            "poll token",
            "slower",
            "poll token",
            "read url",
            "read url",
            "done url+put url",
        ]
    );
}

#[test]
fn p1_what_was_not_answered_is_sent_again_under_its_own_token() {
    let script = vec![
        Event::Answer(refused("", true)),
        Event::Answer(refused("", true)),
        progress(Status::Success, None),
    ];
    let (said, end) = call(Operation::Delete, script);
    assert_eq!(end, Ok(End::Done));
    assert_eq!(
        said,
        [
            "intent 1",
            "delete under token 0",
            "delete under token 0",
            "delete under token 0",
            "done url+remove"
        ]
    );
}

#[test]
fn p3_p7_what_failed_is_tried_anew_under_another_token() {
    let script = vec![
        progress(event_failed("Throttling"), None),
        Event::Answer(refused("ConcurrentOperationException", false)),
        progress(Status::Success, None),
    ];
    let (said, end) = call(Operation::Delete, script);
    assert_eq!(end, Ok(End::Done));
    assert_eq!(
        said,
        [
            "intent 1",
            "delete under token 0",
            "failed Throttling",
            "slower",
            "intent 2",
            "delete under token 1",
            "failed ConcurrentOperationException",
            "intent 3",
            "delete under token 2",
            "done url+remove"
        ]
    );
}

#[test]
fn p2_p11_what_a_failed_create_left_is_deleted_unless_a_row_holds_it() {
    let failing = |held: bool, script: Vec<Event>| {
        let mut all = vec![progress(event_failed("InternalFailure2"), Some("url")), Event::Is(held)];
        all.extend(script);
        let (said, end) = call(Operation::Create, all);
        let error = end.unwrap_err();
        assert_eq!(error.code(), Code::ProvisioningFailed);
        assert_eq!(error.details()["awsCode"], "InternalFailure2", "the first error");
        said.split_off_from("held?")
    };
    assert_eq!(failing(true, vec![]), ["held?", "failed InternalFailure2"]);
    assert_eq!(
        failing(false, vec![progress(Status::Success, None)]),
        ["held?", "failed InternalFailure2+later", "intent 2", "delete under token 1", "done url+forget"]
    );
    // What cannot be deleted now waits on record for the next run.
    assert_eq!(
        failing(false, vec![progress(event_failed("AccessDenied"), None)]),
        [
            "held?",
            "failed InternalFailure2+later",
            "intent 2",
            "delete under token 1",
            "failed AccessDenied",
            "warn url"
        ]
    );
}

trait SplitOffFrom {
    fn split_off_from(self, name: &str) -> Vec<String>;
}

impl SplitOffFrom for Vec<String> {
    fn split_off_from(mut self, name: &str) -> Vec<String> {
        let at = self.iter().position(|it| it == name).unwrap();
        self.split_off(at)
    }
}

#[test]
fn p4_what_is_not_there_is_deleted() {
    for script in [
        vec![progress(event_failed("NotFound"), None)],
        vec![Event::Answer(refused("ResourceNotFoundException", false))],
    ] {
        let (said, end) = call(Operation::Delete, script);
        assert_eq!((said.last().unwrap().as_str(), end), ("done url+remove", Ok(End::Done)));
    }
}

#[test]
fn nothing_starts_when_the_slice_is_over_and_what_runs_is_left() {
    let over = Slice { ends: NOW, ..slice() };
    let (said, end) = play(Call::new(over, request(Operation::Delete)), vec![]);
    assert_eq!((said.len(), end), (0, Ok(End::Later)));
    let soon = Slice { ends: NOW + 50, ..slice() };
    let script = vec![progress(Status::InProgress, None)];
    let (said, end) = play(Call::new(soon, request(Operation::Delete)), script);
    assert_eq!((said.last().unwrap().as_str(), end), ("accepted", Ok(End::Later)));
}

#[test]
fn l4_whoever_lost_the_journal_calls_no_more() {
    let lost = || Event::Failed(Error::new(Code::LockLostError, "lost"));
    let Next::Go(call, _) = Call::new(slice(), request(Operation::Delete)).step(NOW, vec![]) else {
        panic!("asks for a number")
    };
    let Next::Go(call, effects) = call.step(NOW, vec![Event::Number(1)]) else { panic!("stores") };
    assert!(matches!(effects.as_slice(), [Effect::Append(_)]));
    let Next::End(Err(error)) = call.step(NOW, vec![lost()]) else { panic!("ends") };
    assert_eq!(error.code(), Code::LockLostError);
}

#[test]
fn p1_p10_what_a_dead_invocation_left_is_settled() {
    let settled = |operation: Operation, token: Option<&str>, at: i64, script: Vec<Event>| {
        let Next::Go(call, _) = Call::new(slice(), request(operation)).step(NOW, vec![]) else {
            panic!("asks for a number")
        };
        let Next::Go(_, effects) = call.step(at, vec![Event::Number(7)]) else { panic!("stores") };
        let Some(Effect::Append(entries)) = effects.into_iter().next() else { panic!("stores") };
        let Some(Entry::Intent(intent)) = entries.into_iter().next() else { panic!("an intent") };
        let open = Open { intent, request_token: token.map(str::to_owned), identifier: None };
        play(Settle::new(slice(), open), script)
    };
    let gone = || Event::Answer(refused("RequestTokenNotFoundException", false));
    let running = || match progress(Status::InProgress, Some("url")) {
        Event::Answer(Ok(progress)) => Event::Found(Ok(Some(progress))),
        other => other,
    };
    let there = || Event::Model(Ok(Some(json!({}))));
    let done = || progress(Status::Success, None);
    let table = [
        ("polled", Operation::Delete, Some("t"), vec![done()], "done url+remove"),
        ("failed", Operation::Delete, Some("t"), vec![progress(event_failed("X"), None)], "failed X"),
        ("forgotten", Operation::Delete, Some("t"), vec![gone()], "failed NotSent"),
        ("sent again", Operation::Update, None, vec![Event::Answer(refused("X", false))], "failed X"),
        ("followed", Operation::Delete, None, vec![running(), done()], "done url+remove"),
        (
            "gone",
            Operation::Delete,
            None,
            vec![Event::Found(Ok(None)), Event::Model(Ok(None))],
            "done url+remove",
        ),
        ("there", Operation::Delete, None, vec![Event::Found(Ok(None)), there()], "failed NotSent"),
    ];
    for (name, operation, token, script, last) in table {
        let (said, end) = settled(operation, token, NOW, script);
        assert_eq!((said.last().map(String::as_str), end), (Some(last), Ok(End::Done)), "{name}");
    }
    let (said, end) = settled(Operation::Create, None, NOW - 36 * 60 * 60 * 1000, vec![]);
    assert_eq!((said.len(), end.unwrap_err().code()), (0, Code::UnknownOutcome));
    let (_, end) = settled(Operation::Update, Some("t"), NOW, vec![gone()]);
    assert_eq!(end.unwrap_err().code(), Code::UnknownOutcome);
}
