//! Counts, log and the control interface.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops here")]

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use cdkd_wire::{LOG_LIMIT, Outcome, Rule, Wire};
use common::{Client, SOON, Upstream, ask, json, s3};
use serde_json::{Value, json};

#[test]
fn counts_and_log() {
    let upstream = Upstream::start();
    let wire = Wire::start(0, upstream.address, None).unwrap();
    let mut client = Client::connect(&wire);
    client.ask(s3("PUT", "/b/a%20b", "12345")).unwrap();
    client.ask(s3("GET", "/b/k?versionId=1", "")).unwrap();
    client.ask(s3("GET", "/b/k", "")).unwrap();
    let body = r#"{"TypeName": "AWS::SQS::Queue", "Identifier": "q"}"#;
    client.ask(json("cloudcontrolapi", "CloudApiService.GetResource", body)).unwrap();
    client.ask(json("states", "AWSStepFunctions.StartExecution", r#"{"stateMachineArn": "arn:m"}"#)).unwrap();

    let counts = wire.counts();
    assert_eq!((counts.total, counts.service("s3"), counts.get("s3", "GetObject")), (5, 3, 2));
    assert_eq!((counts.get("s3", "HeadObject"), counts.service("lambda")), (0, 0));
    for name in ["stepfunctions", "states", "sfn"] {
        assert_eq!(counts.get(name, "StartExecution"), 1, "{name}");
    }
    assert_eq!(counts.service("cloudcontrol"), 1);
    wire.wait_for("s3", "GetObject", 2, SOON).unwrap();
    assert!(wire.wait_for("s3", "GetObject", 3, common::A_WHILE).is_err());

    let log = wire.log(0);
    let resources: Vec<&str> = log.iter().map(|entry| entry.resource.as_str()).collect();
    assert_eq!(resources, ["b/a b", "b/k", "b/k", "AWS::SQS::Queue q", "arn:m"]);
    let put = &log[0];
    assert_eq!((put.seq, put.status, put.outcome), (1, Some(200), Outcome::Forwarded));
    assert_eq!((put.request_bytes, put.response_bytes), (5, 2));
    // The caller is looked for beside the request.
    while wire.log(0)[0].pid.is_none() {
        std::thread::yield_now();
    }
    assert_eq!(wire.log(0)[0].pid, Some(std::process::id()));
    assert_eq!(wire.log(3).len(), 2);

    wire.reset();
    assert_eq!((wire.counts().total, wire.log(0).len()), (0, 0));
    client.ask(s3("GET", "/b/k", "")).unwrap();
    assert_eq!(wire.log(0)[0].seq, 6);
}

#[test]
fn the_log_is_bounded() {
    let upstream = Upstream::start();
    let wire = Wire::start(0, upstream.address, None).unwrap();
    // Not forwarded, so that it takes less time.
    wire.rule(Rule::on_any().answer(400, "No", ""));
    let mut client = Client::connect(&wire);
    for _ in 0..LOG_LIMIT + 5 {
        client.ask(s3("GET", "/b/k", "")).unwrap();
    }
    let log = wire.log(0);
    assert_eq!((log.len(), log[0].seq), (LOG_LIMIT, 6));
    assert_eq!(wire.counts().total, LOG_LIMIT as u64 + 5);
}

#[test]
fn the_binary_and_its_control_interface() {
    let upstream = Upstream::start();
    let mut wire = Command::new(env!("CARGO_BIN_EXE_cdkd-wire"))
        .args(["--upstream", "127.0.0.1:1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(wire.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://").unwrap().parse().unwrap();
    let mut client = Client::to(address);
    let control = |method: &str, path: &str, body: &str| {
        let mut client = Client::to(address);
        let length = body.len();
        client.write(format!(
            "{method} /_wire/{path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        let got = client.read().unwrap();
        (got.status(), got.json())
    };
    let ok = |value: Value| (200, value);

    let upstream_address = upstream.address.to_string();
    let emulator = json!({"upstream": upstream_address, "pid": 4711}).to_string();
    assert_eq!(control("PUT", "emulator", &emulator), ok(json!({})));
    assert_eq!(control("GET", "health", ""), ok(json!({"upstream": upstream_address, "pid": 4711})));

    let hold = r#"{"match": {"service": "s3", "operation": "PutObject"}, "action": {"hold": {"id": "a b"}}}"#;
    assert_eq!(control("POST", "rules", hold), ok(json!({"id": 1})));
    client.write(s3("PUT", "/b/k", "x"));
    let mut waiting = json!([]);
    while waiting == json!([]) {
        waiting = control("GET", "held", "").1;
    }
    assert_eq!(waiting, json!([{"id": "a b", "seq": 1, "when": "before"}]));
    assert_eq!(control("POST", "release/a%20b", ""), ok(json!({"released": 1})));
    assert_eq!(client.read().unwrap().text(), "ok");
    assert_eq!(control("POST", "release/other", "").0, 404);

    let answer =
        r#"{"match": {"nth": 1}, "when": "after", "action": {"answer": {"status": 500, "code": "E"}}}"#;
    assert_eq!(control("POST", "rules", answer), ok(json!({"id": 2})));
    assert_eq!(client.ask(s3("GET", "/b/k", "")).unwrap().status(), 500);
    let rules = control("GET", "rules", "").1;
    assert_eq!((&rules[1]["fired"], &rules[1]["rule"]["match"]["nth"]), (&json!(1), &json!(1)));
    assert_eq!(control("DELETE", "rules/1", ""), ok(json!({"removed": 1})));
    assert_eq!(control("DELETE", "rules/1", "").0, 404);
    assert_eq!(control("DELETE", "rules", ""), ok(json!({"removed": 1})));
    let (status, error) = control("POST", "rules", r#"{"action": "dorp"}"#);
    assert!(status == 400 && error["error"].as_str().unwrap().contains("dorp"), "{error}");

    let counts = json!({"total": 2, "services": {"s3": {"GetObject": 1, "PutObject": 1}}});
    assert_eq!(control("GET", "counts", ""), ok(counts));
    let log = control("GET", "log?since=1", "").1;
    assert_eq!((&log[0]["seq"], &log[0]["outcome"], &log[1]), (&json!(2), &json!("answered"), &Value::Null));
    assert_eq!(control("POST", "reset", ""), ok(json!({})));
    assert_eq!(control("GET", "counts", ""), ok(json!({"total": 0, "services": {}})));
    assert_eq!(control("GET", "nothing", "").0, 404);
    assert_eq!(control("POST", "shutdown", ""), ok(json!({})));
    assert!(wire.wait().unwrap().success());
}

#[test]
fn a_wire_that_is_dropped_frees_its_port() {
    let upstream = Upstream::start();
    let wire = Wire::start(0, upstream.address, None).unwrap();
    let port = wire.port();
    ask(&wire, s3("GET", "/b/k", "")).unwrap();
    drop(wire);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
}
