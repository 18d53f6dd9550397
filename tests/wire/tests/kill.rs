//! Death of the caller, and who is spared.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops here")]

mod common;

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cdkd_wire::{Outcome, Rule, Wire};
use common::{SOON, Upstream, ask, s3};

/// Sends one PUT and prints what became of it; then a process that lives on has something to say.
const CALLER: &str = r"
import http.client, sys
connection = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]))
scope = 'AKID/20260101/us-east-1/s3/aws4_request'
try:
    connection.request('PUT', '/b/k', b'x', {'Authorization': 'AWS4-HMAC-SHA256 Credential=' + scope + ', Signature=0'})
    print(connection.getresponse().status)
except (OSError, http.client.HTTPException):
    print('closed')
";

/// A calling process, ended with the test.
struct Caller(Child);

impl Caller {
    fn start(wire: &Wire) -> Self {
        let mut command = Command::new("python3");
        command
            .args(["-c", CALLER, &wire.port().to_string()])
            .env("AWS_LAMBDA_FUNCTION_NAME", "cdkd-provision");
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// The signal that ended it, or what it printed.
    fn end(mut self) -> Result<String, i32> {
        let started = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < SOON, "the caller neither ends nor dies");
            thread::sleep(Duration::from_millis(5));
        }
        if let Some(signal) = self.0.wait().unwrap().signal() {
            return Err(signal);
        }
        let output = std::io::read_to_string(self.0.stdout.take().unwrap()).unwrap();
        Ok(output.trim().to_owned())
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[track_caller]
fn check(rule: Rule, arrives: usize) {
    let upstream = Upstream::start();
    let wire = Wire::start(0, upstream.address, Some(std::process::id())).unwrap();
    wire.rule(rule);
    let caller = Caller::start(&wire);
    let pid = caller.0.id();
    assert_eq!(caller.end(), Err(9));
    assert_eq!(upstream.seen().len(), arrives);
    let entry = wire.log(0).remove(0);
    assert_eq!((entry.outcome, entry.status), (Outcome::Killed, (arrives == 1).then_some(200)));
    assert_eq!(entry.pid, Some(pid));
}

#[test]
fn kill_before() {
    check(Rule::on("s3", "PutObject").kill_before(), 0);
}

#[test]
fn kill_after() {
    check(Rule::on("s3", "PutObject").kill_after(), 1);
}

#[test]
fn kills_by_function_the_nth_time() {
    let upstream = Upstream::start();
    let wire = Wire::start(0, upstream.address, None).unwrap();
    wire.set_emulator_pid(std::process::id());
    wire.rule(Rule::on("s3", "PutObject").function("cdkd-resolve").kill_before());
    wire.rule(Rule::on("s3", "PutObject").function("cdkd-provision").nth(2).kill_before());
    assert_eq!(Caller::start(&wire).end(), Ok("200".to_owned()));
    assert_eq!(Caller::start(&wire).end(), Err(9));
    assert_eq!(Caller::start(&wire).end(), Ok("200".to_owned()));
    let functions: Vec<_> = wire.log(0).into_iter().map(|entry| entry.function).collect();
    assert_eq!(functions, vec![Some("cdkd-provision".to_owned()); 3]);
}

/// A process that has no children.
fn stranger() -> Child {
    Command::new("sleep").arg("60").spawn().unwrap()
}

#[test]
fn spares_what_does_not_descend_from_the_emulator() {
    let upstream = Upstream::start();
    let mut emulator = stranger();
    let wire = Wire::start(0, upstream.address, None).unwrap();
    wire.rule(Rule::on("s3", "PutObject").kill_before());
    // Without an emulator nobody is killed, and with one only its descendants.
    assert_eq!(Caller::start(&wire).end(), Ok("closed".to_owned()));
    wire.set_emulator_pid(emulator.id());
    assert_eq!(Caller::start(&wire).end(), Ok("closed".to_owned()));
    for entry in wire.log(0) {
        assert_eq!(entry.outcome, Outcome::KillRefused);
        assert!(entry.note.unwrap().contains("emulator"));
    }
    assert_eq!(upstream.seen().len(), 0);
    emulator.kill().unwrap();
    emulator.wait().unwrap();
}

#[test]
fn spares_the_emulator_itself() {
    let upstream = Upstream::start();
    let wire = Wire::start(0, upstream.address, Some(std::process::id())).unwrap();
    wire.rule(Rule::on("s3", "PutObject").kill_before());
    assert!(ask(&wire, s3("PUT", "/b/k", "x")).is_none());
    assert_eq!(wire.log(0)[0].outcome, Outcome::KillRefused);
}
