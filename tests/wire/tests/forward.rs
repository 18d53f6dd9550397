//! What goes through comes out the same.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops here")]

mod common;

use std::time::{Duration, Instant};

use cdkd_wire::{Outcome, Wire};
use common::{Client, Upstream, ask, s3, signed};

fn start(upstream: &Upstream) -> Wire {
    Wire::start(0, upstream.address, None).unwrap()
}

#[test]
fn heads_and_bodies_pass_unchanged() {
    let answer = "HTTP/1.1 299 Odd\r\nX-CamelCase: 1\r\nx-twice: a\r\nx-twice: b\r\nETag: \"e\"\r\ncontent-length: 3\r\n\r\nyes";
    let upstream = Upstream::answering(|_| answer.into());
    let wire = start(&upstream);
    let head = format!(
        "PUT /b/a%2Fb%20c+d/e%C3%A9//f?x-id=PutObject&q=%2B HTTP/1.1\r\nHost: elsewhere.example:99\r\n{}\
         X-Amz-Meta-Ünusual: no\r\nx-amz-meta-twice: 1\r\nX-AMZ-Content-SHA256: UNSIGNED-PAYLOAD\r\n\
         Content-Length: 4\r\n\r\n",
        signed("s3")
    )
    .replace('Ü', "U");
    let got = ask(&wire, head.clone() + "\0\r\n\u{7f}").unwrap();
    let seen = upstream.seen();
    assert_eq!(seen[0].head, head);
    assert_eq!(seen[0].body, b"\0\r\n\x7f");
    assert_eq!(got.head + std::str::from_utf8(&got.body).unwrap(), answer);
}

#[test]
fn chunked_stays_chunked() {
    let upstream = Upstream::answering(|_| {
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n".to_vec()
    });
    let wire = start(&upstream);
    let head = format!("PUT /b/k HTTP/1.1\r\nHost: h\r\n{}Transfer-Encoding: chunked\r\n\r\n", signed("s3"));
    let mut client = Client::connect(&wire);
    client.write(&head);
    client.write("4\r\nwxyz\r\n");
    assert!(!client.hears_something());
    client.write("1\r\n!\r\n0\r\n\r\n");
    let got = client.read().unwrap();
    assert_eq!(upstream.seen()[0].head, head);
    assert_eq!(unchunk(&upstream.seen()[0].body), "wxyz!");
    assert!(got.head.contains("transfer-encoding: chunked"));
    assert_eq!(unchunk(&got.body), "abcde");
}

fn unchunk(body: &[u8]) -> String {
    let lines: Vec<&str> = std::str::from_utf8(body).unwrap().split("\r\n").collect();
    lines.chunks(2).filter_map(|pair| pair.get(1).copied()).collect()
}

#[test]
fn head_answers_keep_their_length_and_have_no_body() {
    let upstream = Upstream::answering(|seen| match &seen.head[..4] {
        "HEAD" => b"HTTP/1.1 200 OK\r\ncontent-length: 1234567\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 304 Not Modified\r\nETag: \"e\"\r\n\r\n".to_vec(),
    });
    let wire = start(&upstream);
    let mut client = Client::connect(&wire);
    client.write(s3("HEAD", "/b/k", ""));
    assert!(client.read_head().unwrap().contains("content-length: 1234567\r\n"));
    client.write(s3("GET", "/b/k", ""));
    assert_eq!(client.read_head().unwrap(), "HTTP/1.1 304 Not Modified\r\nETag: \"e\"\r\n\r\n");
}

#[test]
fn one_connection_up_for_each_connection_down() {
    let upstream = Upstream::start();
    let wire = start(&upstream);
    let mut client = Client::connect(&wire);
    for _ in 0..3 {
        assert_eq!(client.ask(s3("GET", "/b/k", "")).unwrap().text(), "ok");
    }
    ask(&wire, s3("GET", "/b/k", "")).unwrap();
    let connections: Vec<usize> = upstream.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 0, 0, 1]);
}

#[test]
fn an_upstream_that_closes_its_idle_connection_is_reached_again() {
    let upstream = Upstream::answering(|_| {
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-note: connection: close\r\n\r\n".to_vec()
    });
    let wire = start(&upstream);
    let mut client = Client::connect(&wire);
    for count in 1..=3 {
        assert_eq!(client.ask(s3("PUT", "/b/k", "x")).unwrap().status(), 200);
        // A request that crosses the close is lost for every client; here the connection is idle when it comes.
        upstream.wait_for_closed(count);
    }
    assert_eq!(upstream.seen().len(), 3);
}

#[test]
fn expect_100_continue() {
    let upstream = Upstream::start();
    let wire = start(&upstream);
    let mut client = Client::connect(&wire);
    client.write(format!(
        "PUT /b/k HTTP/1.1\r\nHost: h\r\n{}Expect: 100-continue\r\nContent-Length: 4\r\n\r\n",
        signed("s3")
    ));
    assert_eq!(client.read_head().unwrap(), "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(client.ask("body").unwrap().text(), "ok");
    assert!(upstream.seen()[0].head.contains("Expect: 100-continue\r\n"));
    assert_eq!(upstream.seen()[0].body, b"body");
}

#[test]
fn large_bodies_stream_both_ways() {
    const SIZE: usize = 32 * 1024 * 1024;
    let upstream = Upstream::answering(|seen| {
        let mut answer =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", seen.body.len()).into_bytes();
        answer.extend(&seen.body);
        answer
    });
    let wire = start(&upstream);
    let mut client = Client::connect(&wire);
    let body: Vec<u8> = (0..=u8::MAX).cycle().take(SIZE).collect();
    let head = format!("PUT /b/k HTTP/1.1\r\nHost: h\r\n{}Content-Length: {SIZE}\r\n\r\n", signed("s3"));
    client.write(head);
    client.write(&body);
    assert!(client.read().unwrap().body == body, "the body changed");
    let entry = wire.log(0).remove(0);
    assert_eq!((entry.request_bytes, entry.response_bytes), (SIZE as u64, SIZE as u64));
}

#[test]
fn an_upstream_that_is_not_there_or_dies_is_a_closed_connection() {
    let upstream = Upstream::answering(|_| Vec::new());
    let wire = start(&upstream);
    assert!(ask(&wire, s3("GET", "/b/k", "")).is_none());
    wire.set_upstream(([127, 0, 0, 1], 1).into());
    assert!(ask(&wire, s3("GET", "/b/k", "")).is_none());
    let outcomes: Vec<_> =
        wire.log(0).into_iter().map(|entry| (entry.outcome, entry.note.is_some())).collect();
    assert_eq!(outcomes, [(Outcome::Failed, true), (Outcome::Failed, true)]);

    let alive = Upstream::start();
    wire.set_upstream(alive.address);
    assert_eq!(ask(&wire, s3("GET", "/b/k", "")).unwrap().text(), "ok");
}

#[test]
fn what_is_no_call_of_aws_passes_uncounted() {
    let upstream = Upstream::answering(|_| {
        std::thread::sleep(Duration::from_millis(300));
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_vec()
    });
    let wire = start(&upstream);
    wire.rule(cdkd_wire::Rule::on_any().drop_before());
    let started = Instant::now();
    for path in ["/2018-06-01/runtime/invocation/next", "/_ministack/health"] {
        let got = ask(&wire, format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).unwrap();
        assert_eq!(got.text(), "ok", "{path}");
    }
    assert!(started.elapsed() >= Duration::from_millis(600));
    assert_eq!(wire.counts().total, 0);
    assert_eq!(upstream.seen().len(), 2);
}
