//! Both ends of the wire on raw sockets, so that a test sees the very bytes.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cdkd_wire::Wire;

/// Longer than anything takes, shorter than anyone waits.
pub const SOON: Duration = Duration::from_secs(20);
/// Long enough to see that nothing happens.
pub const A_WHILE: Duration = Duration::from_millis(150);

/// A request as the upstream got it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Request line and head fields, with their line ends.
    pub head: String,
    /// The body, still in its chunks if it is chunked.
    pub body: Vec<u8>,
    /// The number of the connection.
    pub connection: usize,
}

/// A small HTTP server that keeps what it sees.
pub struct Upstream {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    closed: Arc<AtomicUsize>,
}

impl Upstream {
    /// Answers every request with `ok`.
    pub fn start() -> Self {
        Self::answering(|_| b"HTTP/1.1 200 OK\r\nX-Answer: Yes\r\ncontent-length: 2\r\n\r\nok".to_vec())
    }

    /// Answers with raw bytes; closes the connection if they are empty or say so.
    pub fn answering(answer: impl Fn(&Seen) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let answer = Arc::new(answer);
        let log = Arc::clone(&seen);
        let closed = Arc::new(AtomicUsize::new(0));
        let closings = Arc::clone(&closed);
        thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                let closings = Arc::clone(&closings);
                thread::spawn(move || {
                    let mut stream = BufReader::new(stream.unwrap());
                    while let Some(seen) = read_request(&mut stream, connection) {
                        log.lock().unwrap().push(seen.clone());
                        let answer = answer(&seen);
                        let last =
                            answer.is_empty() || answer.windows(17).any(|it| it == b"connection: close");
                        if stream.get_mut().write_all(&answer).is_err() || last {
                            break;
                        }
                    }
                    drop(stream);
                    closings.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, seen, closed }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until that many connections have been closed from here.
    pub fn wait_for_closed(&self, count: usize) {
        for _ in 0..2000 {
            if self.closed.load(Ordering::SeqCst) >= count {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{} connections closed instead of {count}", self.closed.load(Ordering::SeqCst));
    }

    /// Waits until that many requests have been seen.
    pub fn wait_for(&self, count: usize) -> Vec<Seen> {
        for _ in 0..2000 {
            if self.seen().len() >= count {
                return self.seen();
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{} requests instead of {count}", self.seen().len());
    }
}

fn read_request(stream: &mut BufReader<TcpStream>, connection: usize) -> Option<Seen> {
    let head = read_head(stream)?;
    let lower = head.to_ascii_lowercase();
    if lower.contains("expect: 100-continue") {
        stream.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let body = read_body(stream, &lower, false)?;
    Some(Seen { head, body, connection })
}

fn read_head(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

fn read_body(stream: &mut BufReader<TcpStream>, lower_head: &str, until_closed: bool) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    if lower_head.contains("transfer-encoding: chunked") {
        while !body.ends_with(b"0\r\n\r\n") {
            if stream.read_until(b'\n', &mut body).ok()? == 0 {
                return None;
            }
        }
    } else if let Some((_, rest)) = lower_head.split_once("content-length: ") {
        body.resize(rest.split("\r\n").next()?.parse().ok()?, 0);
        stream.read_exact(&mut body).ok()?;
    } else if until_closed {
        stream.read_to_end(&mut body).ok()?;
    }
    Some(body)
}

/// An answer as the client got it.
#[derive(Clone, Debug)]
pub struct Got {
    pub head: String,
    pub body: Vec<u8>,
}

impl Got {
    pub fn status(&self) -> u16 {
        self.head[9..12].parse().unwrap()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A client's connection.
pub struct Client(BufReader<TcpStream>);

impl Client {
    pub fn connect(wire: &Wire) -> Self {
        Self::to(SocketAddr::from(([127, 0, 0, 1], wire.port())))
    }

    pub fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Self(BufReader::new(stream))
    }

    pub fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// Whether an answer begins within a while.
    pub fn hears_something(&mut self) -> bool {
        self.0.get_ref().set_read_timeout(Some(A_WHILE)).unwrap();
        let heard = self.0.fill_buf().is_ok();
        self.0.get_ref().set_read_timeout(Some(SOON)).unwrap();
        heard
    }

    /// Reads the answer to a GET, PUT or POST; nothing if the connection closes without one.
    pub fn read(&mut self) -> Option<Got> {
        let head = read_head(&mut self.0)?;
        let body = read_body(&mut self.0, &head.to_ascii_lowercase(), true)?;
        Some(Got { head, body })
    }

    /// Reads an answer that has no body whatever its head says.
    pub fn read_head(&mut self) -> Option<String> {
        read_head(&mut self.0)
    }

    pub fn ask(&mut self, request: impl AsRef<[u8]>) -> Option<Got> {
        self.write(request);
        self.read()
    }
}

/// Sends one request on a connection of its own.
pub fn ask(wire: &Wire, request: impl AsRef<[u8]>) -> Option<Got> {
    Client::connect(wire).ask(request)
}

/// The head field that says which service a request is signed for.
pub fn signed(service: &str) -> String {
    format!(
        "Authorization: AWS4-HMAC-SHA256 Credential=AKID/20260101/us-east-1/{service}/aws4_request, \
         SignedHeaders=host, Signature=0\r\n"
    )
}

/// A request to S3.
pub fn s3(method: &str, target: &str, body: &str) -> String {
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    format!("{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:1\r\n{}{length}\r\n{body}", signed("s3"))
}

/// A request in a JSON protocol.
pub fn json(service: &str, target: &str, body: &str) -> String {
    format!(
        "POST / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Type: application/x-amz-json-1.0\r\n\
         X-Amz-Target: {target}\r\n{}Content-Length: {}\r\n\r\n{body}",
        signed(service),
        body.len()
    )
}
