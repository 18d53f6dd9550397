//! What the wire adds to a request: the same small requests, one after the other, with and without it.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use cdkd_wire::Wire;

const REQUESTS: usize = 5_000;
const REQUEST: &[u8] = b"PUT /bucket/key HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: AWS4-HMAC-SHA256 \
    Credential=AKID/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0\r\n\
    Content-Length: 5\r\n\r\nhello";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let upstream = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    });
    let wire = Wire::start(0, upstream, None)?;
    let mut out = io::stdout();
    for (name, address) in [("direct", upstream), ("wire", SocketAddr::from(([127, 0, 0, 1], wire.port())))] {
        let mut times = measure(address)?;
        times.sort_unstable();
        let (median, high) = (times[REQUESTS / 2], times[REQUESTS * 99 / 100]);
        writeln!(out, "{name:8} median {median:?}, 99 of 100 within {high:?}")?;
    }
    Ok(())
}

fn measure(address: SocketAddr) -> io::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut buffer = [0; 4096];
    let mut once = || {
        let started = Instant::now();
        stream.write_all(REQUEST)?;
        let mut length = 0;
        while !buffer[..length].ends_with(b"ok") {
            length += stream.read(&mut buffer[length..])?;
        }
        Ok(started.elapsed())
    };
    (0..REQUESTS).map(|_| once()).collect()
}

/// Answers whatever comes; each request is one small packet or two.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = [0; 4096];
    let mut length = 0;
    loop {
        match stream.read(&mut buffer[length..])? {
            0 => return Ok(()),
            read => length += read,
        }
        if buffer[..length].ends_with(b"hello") {
            length = 0;
            stream.write_all(ANSWER)?;
        }
    }
}
