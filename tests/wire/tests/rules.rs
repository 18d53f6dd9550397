//! What each rule does, seen from both ends.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops here")]

mod common;

use std::time::{Duration, Instant};

use cdkd_wire::{Outcome, Rule, When, Wire};
use common::{Client, SOON, Upstream, ask, json, s3, signed};

fn start() -> (Upstream, Wire) {
    let upstream = Upstream::start();
    let wire = Wire::start(0, upstream.address, None).unwrap();
    (upstream, wire)
}

fn outcomes(wire: &Wire) -> Vec<Outcome> {
    wire.log(0).into_iter().map(|entry| entry.outcome).collect()
}

#[test]
fn delays() {
    let (upstream, wire) = start();
    let delay = Duration::from_millis(200);
    let before = wire.rule(Rule::on("s3", "PutObject").delay_before(delay));
    let mut client = Client::connect(&wire);
    let started = Instant::now();
    client.write(s3("PUT", "/b/k", "x"));
    assert!(!client.hears_something());
    assert_eq!(upstream.seen().len(), 0);
    assert_eq!(client.read().unwrap().text(), "ok");
    assert!(started.elapsed() >= delay);

    wire.remove_rule(before);
    wire.rule(Rule::on("s3", "PutObject").delay_after(delay));
    let started = Instant::now();
    client.write(s3("PUT", "/b/k", "x"));
    assert!(!client.hears_something());
    assert_eq!(upstream.seen().len(), 2);
    assert_eq!(client.read().unwrap().text(), "ok");
    assert!(started.elapsed() >= delay);
}

#[test]
fn hold_before() {
    let (upstream, wire) = start();
    let hold = wire.hold(Rule::on("s3", "PutObject").resource("state.json"), When::Before);
    let mut client = Client::connect(&wire);
    client.write(s3("PUT", "/b/a/state.json", "x"));
    let waiting = hold.wait_until_held(SOON).unwrap();
    assert_eq!((waiting.seq, waiting.when), (1, When::Before));
    assert_eq!(wire.held(), [waiting]);
    assert!(!client.hears_something());
    assert_eq!(upstream.seen().len(), 0);
    // Others pass meanwhile.
    assert_eq!(ask(&wire, s3("PUT", "/b/a/lock.json", "x")).unwrap().text(), "ok");

    hold.release();
    assert_eq!(client.read().unwrap().text(), "ok");
    assert_eq!(upstream.seen().len(), 2);
    assert_eq!(wire.held(), []);
    // The gate stays open.
    assert_eq!(client.ask(s3("PUT", "/b/a/state.json", "x")).unwrap().text(), "ok");
}

#[test]
fn hold_after() {
    let (upstream, wire) = start();
    let hold = wire.hold(Rule::on("s3", "PutObject"), When::After);
    let mut client = Client::connect(&wire);
    client.write(s3("PUT", "/b/k", "x"));
    hold.wait_until_held(SOON).unwrap();
    assert_eq!(upstream.seen().len(), 1);
    assert!(!client.hears_something());
    drop(hold);
    assert_eq!(client.read().unwrap().text(), "ok");
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn a_hold_whose_time_runs_out_says_so() {
    let (_upstream, wire) = start();
    let hold = wire.hold(Rule::on("s3", "*"), When::Before);
    let error = hold.wait_until_held(Duration::from_millis(10)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn a_held_request_arrives_without_its_caller() {
    let (upstream, wire) = start();
    let hold = wire.hold(Rule::on("s3", "PutObject"), When::Before);
    let mut client = Client::connect(&wire);
    client.write(s3("PUT", "/b/k", "late"));
    hold.wait_until_held(SOON).unwrap();
    drop(client);
    std::thread::sleep(common::A_WHILE);
    assert_eq!(upstream.seen().len(), 0);
    hold.release();
    assert_eq!(upstream.wait_for(1)[0].body, b"late");
}

#[test]
fn removing_a_rule_frees_what_it_holds() {
    let (_upstream, wire) = start();
    let hold = wire.hold(Rule::on("s3", "*"), When::Before);
    let mut client = Client::connect(&wire);
    client.write(s3("GET", "/b/k", ""));
    hold.wait_until_held(SOON).unwrap();
    assert!(wire.remove_rule(hold.rule()));
    assert!(!wire.remove_rule(hold.rule()));
    assert_eq!(client.read().unwrap().text(), "ok");
}

#[test]
fn drop_before_and_after() {
    let (upstream, wire) = start();
    let before = wire.rule(Rule::on("s3", "PutObject").drop_before());
    assert!(ask(&wire, s3("PUT", "/b/k", "x")).is_none());
    assert_eq!(upstream.seen().len(), 0);
    wire.remove_rule(before);

    wire.rule(Rule::on("s3", "PutObject").drop_after());
    assert!(ask(&wire, s3("PUT", "/b/k", "x")).is_none());
    assert_eq!(upstream.seen().len(), 1);

    assert_eq!(outcomes(&wire), [Outcome::Dropped, Outcome::Dropped]);
    let statuses: Vec<_> = wire.log(0).into_iter().map(|entry| entry.status).collect();
    assert_eq!(statuses, [None, Some(200)]);
}

#[test]
fn answers_in_the_form_of_the_protocol() {
    let (upstream, wire) = start();
    wire.rule(Rule::on("s3", "PutObject").conditional_conflict());
    wire.rule(Rule::on("s3", "HeadObject").answer(404, "NotFound", ""));
    wire.rule(Rule::on("s3", "GetObject").answer(400, "X", "<&>"));
    wire.rule(Rule::on("cloudcontrol", "*").throttle());
    wire.rule(Rule::on("sqs", "*").answer(400, "AWS.SimpleQueueService.NonExistentQueue", "none"));
    wire.rule(Rule::on("sts", "*").answer(503, "ServiceUnavailable", "a < b"));
    wire.rule(Rule::on("ec2", "*").answer(503, "RequestLimitExceeded", "wait"));
    wire.rule(Rule::on("lambda", "*").answer(429, "TooManyRequestsException", "Rate Exceeded."));
    wire.rule(Rule::on("cloudwatch", "*").answer(500, "InternalServiceFault", "no"));
    wire.rule(Rule::on("registry", "*").answer(404, "MANIFEST_UNKNOWN", "no"));
    let mut client = Client::connect(&wire);

    let got = client.ask(s3("PUT", "/b/k", "x")).unwrap();
    assert_eq!(got.status(), 409);
    assert_eq!(
        got.text(),
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>ConditionalRequestConflict</Code>\
         <Message>A conflicting operation occurred, retry the request.</Message>\
         <RequestId>wire-1</RequestId></Error>"
    );
    assert_eq!(got.header("content-type"), Some("application/xml"));

    client.write(s3("HEAD", "/b/k", ""));
    assert!(client.read_head().unwrap().starts_with("HTTP/1.1 404 "));
    assert!(client.ask(s3("GET", "/b/k", "")).unwrap().text().contains("<Message>&lt;&amp;&gt;</Message>"));

    let got = client.ask(json("cloudcontrolapi", "CloudApiService.GetResource", "{}")).unwrap();
    assert_eq!(got.status(), 400);
    assert_eq!(got.text(), r#"{"__type":"ThrottlingException","message":"Rate exceeded"}"#);
    assert_eq!(got.header("content-type"), Some("application/x-amz-json-1.0"));

    let request = json("sqs", "AmazonSQS.GetQueueUrl", "{}");
    let request = request.replace("X-Amz-Target", "x-amzn-query-mode: true\r\nX-Amz-Target");
    let got = client.ask(request).unwrap();
    assert_eq!(got.header("x-amzn-query-error"), Some("AWS.SimpleQueueService.NonExistentQueue;Sender"));

    let form = |service: &str, form: &str| {
        format!(
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-www-form-urlencoded\r\n{}\
             Content-Length: {}\r\n\r\n{form}",
            signed(service),
            form.len()
        )
    };
    let got = client.ask(form("sts", "Action=AssumeRole")).unwrap();
    assert_eq!(got.status(), 503);
    assert_eq!(
        got.text(),
        "<ErrorResponse><Error><Type>Receiver</Type><Code>ServiceUnavailable</Code>\
         <Message>a &lt; b</Message></Error><RequestId>wire-6</RequestId></ErrorResponse>"
    );
    let got = client.ask(form("ec2", "Action=DescribeVpcs")).unwrap();
    assert!(got.text().starts_with("<Response><Errors><Error><Code>RequestLimitExceeded</Code>"));

    let invoke = "POST /2015-03-31/functions/f/invocations HTTP/1.1\r\nHost: h\r\n";
    let got = client.ask(format!("{invoke}{}\r\n", signed("lambda"))).unwrap();
    assert_eq!((got.status(), got.header("x-amzn-errortype")), (429, Some("TooManyRequestsException")));
    assert_eq!(got.text(), r#"{"Type":"User","message":"Rate Exceeded."}"#);

    let rpc =
        "POST /service/S/operation/PutMetricData HTTP/1.1\r\nHost: h\r\nsmithy-protocol: rpc-v2-cbor\r\n";
    let got = client.ask(format!("{rpc}{}Content-Length: 0\r\n\r\n", signed("monitoring"))).unwrap();
    assert_eq!((got.status(), got.header("smithy-protocol")), (500, Some("rpc-v2-cbor")));
    assert_eq!(got.body, b"\xa2\x66__type\x74InternalServiceFault\x67message\x62no");

    let got = client.ask("GET /v2/r/manifests/latest HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert_eq!(got.text(), r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no"}]}"#);

    assert_eq!(upstream.seen().len(), 0);
    assert!(outcomes(&wire).iter().all(|outcome| *outcome == Outcome::Answered));
}

#[test]
fn an_answer_reaches_a_caller_that_still_writes() {
    let (upstream, wire) = start();
    wire.rule(Rule::on("s3", "PutObject").slow_down());
    let body = "x".repeat(8 * 1024 * 1024);
    let mut client = Client::connect(&wire);
    assert_eq!(client.ask(s3("PUT", "/b/k", &body)).unwrap().status(), 503);
    assert_eq!(client.ask(s3("PUT", "/b/k", "x")).unwrap().status(), 503);

    // One that waits for leave to write gets the answer at once.
    client.write(format!(
        "PUT /b/k HTTP/1.1\r\nHost: h\r\n{}Expect: 100-continue\r\nContent-Length: 4\r\n\r\n",
        signed("s3")
    ));
    assert!(client.read_head().unwrap().starts_with("HTTP/1.1 503 "));
    assert_eq!(upstream.seen().len(), 0);
}

#[test]
fn an_error_although_it_took_effect() {
    let (upstream, wire) = start();
    wire.rule(Rule::on("s3", "PutObject").answer_after(500, "InternalError", "?"));
    assert_eq!(ask(&wire, s3("PUT", "/b/k", "x")).unwrap().status(), 500);
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn nth_and_times() {
    let (_upstream, wire) = start();
    let statuses = |wire: &Wire, count: usize| {
        let mut client = Client::connect(wire);
        let mut status = || client.ask(s3("PUT", "/b/k", "x")).unwrap().status();
        (0..count).map(|_| status()).collect::<Vec<_>>()
    };
    let rule = wire.rule(Rule::on("s3", "PutObject").nth(3).slow_down());
    assert_eq!(statuses(&wire, 4), [200, 200, 503, 200]);
    assert_eq!(wire.fired(rule), 1);
    assert_eq!(wire.rules()[0].matched, 4);
    wire.clear_rules();
    // Counting begins when the rule is set.
    wire.rule(Rule::on("s3", "PutObject").nth(2).times(2).slow_down());
    assert_eq!(statuses(&wire, 4), [200, 503, 503, 200]);
    wire.clear_rules();
    wire.rule(Rule::on("s3", "PutObject").times(1).slow_down());
    assert_eq!(statuses(&wire, 2), [503, 200]);
    // What does not match does not count.
    wire.clear_rules();
    wire.rule(Rule::on("s3", "PutObject").resource("*/k").nth(2).slow_down());
    ask(&wire, s3("PUT", "/b/kk", "x")).unwrap();
    ask(&wire, s3("GET", "/b/k", "")).unwrap();
    assert_eq!(statuses(&wire, 2), [200, 503]);
}

#[test]
fn matches_by_body() {
    let (upstream, wire) = start();
    wire.rule(Rule::on("s3", "PutObject").body("needle").slow_down());
    wire.rule(Rule::on("cloudcontrol", "CreateResource").body("MyQueue").slow_down());
    assert_eq!(ask(&wire, s3("PUT", "/b/k", "hay needle hay")).unwrap().status(), 503);
    assert_eq!(ask(&wire, s3("PUT", "/b/k", "hay")).unwrap().status(), 200);
    let create = |name: &str| {
        let body =
            format!(r#"{{"TypeName": "AWS::SQS::Queue", "DesiredState": "{{\"QueueName\": \"{name}\"}}"}}"#);
        ask(&wire, json("cloudcontrolapi", "CloudApiService.CreateResource", &body)).unwrap().status()
    };
    assert_eq!(create("MyQueue"), 503);
    assert_eq!(create("Other"), 200);
    assert_eq!(upstream.seen()[0].body, b"hay");

    // Only the first bytes are looked at; all of them pass.
    let long = "x".repeat(cdkd_wire::PEEK * 3) + "needle";
    assert_eq!(ask(&wire, s3("PUT", "/b/k", &long)).unwrap().status(), 200);
    assert!(upstream.seen()[2].body == long.as_bytes(), "the body changed");
}

#[test]
fn rules_act_in_order_and_together() {
    let (upstream, wire) = start();
    let delay = Duration::from_millis(100);
    let rules = [
        wire.rule(Rule::on("s3", "*").delay_before(delay)),
        wire.rule(Rule::on("s3", "*").delay_after(delay)),
        wire.rule(Rule::on("s3", "*").drop_after()),
    ];
    let started = Instant::now();
    assert!(ask(&wire, s3("PUT", "/b/k", "x")).is_none());
    assert!(started.elapsed() >= 2 * delay);
    assert_eq!(upstream.seen().len(), 1);
    assert_eq!(wire.log(0)[0].rules, rules);
}
