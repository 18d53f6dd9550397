//! The proxy itself: one connection to the emulator for each that a caller opens.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::header::{CONTENT_TYPE, EXPECT, HeaderValue};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::answer;
use crate::caller::{self, Caller, Socket};
use crate::classify::{Call, Protocol};
use crate::control;
use crate::ledger::{CallerCell, Direction, Effect, Held, Ledger, Outcome, Record, lock};
use crate::relay::{PEEK, Relay};
use crate::rule::{Action, When};

/// How many process ids are remembered as likely callers.
const LIKELY_CALLERS: usize = 64;

/// What all connections share with the [`Wire`](crate::Wire).
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) ledger: Ledger,
    pub(crate) upstream: Mutex<SocketAddr>,
    pub(crate) emulator_pid: Mutex<Option<u32>>,
    pub(crate) stop: Notify,
    likely_callers: Mutex<Vec<u32>>,
}

impl Shared {
    pub(crate) fn new(upstream: SocketAddr, emulator_pid: Option<u32>) -> Self {
        Self {
            ledger: Ledger::new(),
            upstream: Mutex::new(upstream),
            emulator_pid: Mutex::new(emulator_pid),
            stop: Notify::new(),
            likely_callers: Mutex::default(),
        }
    }

    fn find_caller(&self, socket: Socket) -> Option<Caller> {
        let likely = lock(&self.likely_callers).clone();
        let caller = caller::find(socket, &likely)?;
        let mut likely = lock(&self.likely_callers);
        likely.retain(|pid| *pid != caller.pid);
        likely.insert(0, caller.pid);
        likely.truncate(LIKELY_CALLERS);
        Some(caller)
    }
}

/// Serves until [`Shared::stop`] is notified.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        tokio::select! {
            () = shared.stop.notified() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => { tokio::spawn(connection(Arc::clone(&shared), stream, peer)); }
                // Out of file descriptors: others have to close first.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
        }
    }
}

async fn connection(shared: Arc<Shared>, stream: TcpStream, peer: SocketAddr) {
    let Ok(local) = stream.local_addr() else { return };
    // Without this small answers wait for the peer's delayed acknowledgement.
    let _best_effort = stream.set_nodelay(true);
    let connection = Arc::new(Connection {
        shared: Arc::clone(&shared),
        socket: Socket { peer, local },
        caller: CallerCell::default(),
        upstream: Mutex::default(),
        stops: AtomicBool::new(false),
    });
    let service = service_fn(|request| Arc::clone(&connection).handle(request));
    // An error is a caller that went away, or a rule that closed the connection.
    let _closed = server::Builder::new()
        .preserve_header_case(true)
        .auto_date_header(false)
        .header_read_timeout(None)
        .max_buf_size(PEEK)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if connection.stops.load(Ordering::Relaxed) {
        shared.stop.notify_one();
    }
}

/// The connection to the caller closes without an answer.
#[derive(Debug)]
struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("closed without an answer")
    }
}

impl std::error::Error for Closed {}

/// One caller's connection.
struct Connection {
    shared: Arc<Shared>,
    socket: Socket,
    caller: CallerCell,
    /// Between two requests. One at a time is enough: HTTP/1.1 answers in order.
    upstream: Mutex<Option<client::SendRequest<Relay>>>,
    /// Whether the wire stops once this connection is served.
    stops: AtomicBool,
}

impl Connection {
    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Relay>, Closed> {
        let path = request.uri().path();
        if path.starts_with(control::PREFIX) {
            let (response, stops) = control::handle(&self.shared, request).await;
            self.stops.fetch_or(stops, Ordering::Relaxed);
            return Ok(response);
        }
        if is_uncounted(path) {
            let sent = self.forward(request.map(Relay::new)).await;
            return sent.map(|response| response.map(Relay::new)).map_err(|_| Closed);
        }
        // In a task of its own: a request that is on its way arrives even if its caller dies meanwhile.
        tokio::spawn(self.exchange(request)).await.unwrap_or(Err(Closed))
    }

    async fn exchange(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Relay>, Closed> {
        let (head, body) = request.into_parts();
        let mut body = Relay::new(body);
        let mut call = Call::from_head(&head);
        let mut peeked = call.wants_body();
        if peeked {
            body.peek().await.map_err(|_| Closed)?;
            call.read_body(&body.peeked());
        }
        let ledger = &self.shared.ledger;
        let (needs_body, needs_function) = ledger.rules_need(&call);
        if needs_body && !peeked {
            peeked = true;
            body.peek().await.map_err(|_| Closed)?;
        }
        self.clone().look_for_caller();
        let function = if needs_function { self.find_caller().await.function } else { None };
        let (record, effects) =
            ledger.admit(&call, &body.peeked(), function.as_deref(), Arc::clone(&self.caller));

        let waits = |effect: &Effect| {
            effect.when == When::Before && matches!(effect.action, Action::Delay { .. } | Action::Hold { .. })
        };
        if !peeked && effects.iter().any(waits) {
            // What is read now arrives later even without its caller.
            if let Err(error) = body.peek().await {
                record.finish(Outcome::Failed, Some(error.to_string()));
                return Err(Closed);
            }
        }
        let mut body = Some(body.metered(&record, Direction::Request));
        let exchange = Exchange {
            connection: &self,
            record: &record,
            protocol: call.protocol,
            content_type: head.headers.get(CONTENT_TYPE).cloned(),
            expects: head.headers.contains_key(EXPECT),
        };
        if let Some(end) = exchange.act(&effects, When::Before, &mut body).await {
            return end;
        }

        let sent = self.forward(Request::from_parts(head, body.unwrap_or_default())).await;
        let response = match sent {
            Ok(response) => response,
            Err(error) => {
                record.finish(Outcome::Failed, Some(error));
                return Err(Closed);
            }
        };
        record.set_status(response.status().as_u16());
        if let Some(end) = exchange.act(&effects, When::After, &mut None).await {
            return end;
        }
        record.finish(Outcome::Forwarded, None);
        Ok(response.map(|body| Relay::new(body).metered(&record, Direction::Response)))
    }

    /// Sends a request to the emulator, as it is.
    async fn forward(&self, mut request: Request<Relay>) -> Result<Response<Incoming>, String> {
        let idle = lock(&self.upstream).take();
        if let Some(mut sender) = idle
            && sender.ready().await.is_ok()
        {
            match sender.try_send_request(request).await {
                Ok(response) => {
                    *lock(&self.upstream) = Some(sender);
                    return Ok(response);
                }
                // The emulator closed the idle connection before any of the request was written.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().to_string()),
                },
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        *lock(&self.upstream) = Some(sender);
        Ok(response)
    }

    async fn connect(&self) -> Result<client::SendRequest<Relay>, String> {
        let upstream = *lock(&self.shared.upstream);
        let stream = TcpStream::connect(upstream).await.map_err(|error| format!("{upstream}: {error}"))?;
        let _best_effort = stream.set_nodelay(true);
        let (sender, driver) = client::Builder::new()
            .preserve_header_case(true)
            .max_buf_size(PEEK)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        // Ends with the sender; its errors reach the request under way.
        tokio::spawn(driver);
        Ok(sender)
    }

    /// Looks for the caller beside the request, once for a connection.
    fn look_for_caller(self: Arc<Self>) {
        if !self.caller.initialized() {
            tokio::spawn(async move {
                self.find_caller().await;
            });
        }
    }

    async fn find_caller(&self) -> Caller {
        let find = || async {
            let (shared, socket) = (Arc::clone(&self.shared), self.socket);
            tokio::task::spawn_blocking(move || shared.find_caller(socket)).await.unwrap_or(None)
        };
        self.caller.get_or_init(find).await.clone().unwrap_or(Caller { pid: 0, function: None })
    }

    async fn kill_caller(&self) -> std::io::Result<u32> {
        // For the log, which could not find it later.
        self.find_caller().await;
        let (socket, root) = (self.socket, *lock(&self.shared.emulator_pid));
        tokio::task::spawn_blocking(move || caller::kill(socket, root)).await?
    }
}

/// A request with what is done to it.
struct Exchange<'a> {
    connection: &'a Connection,
    record: &'a Arc<Record>,
    protocol: Protocol,
    content_type: Option<HeaderValue>,
    /// Whether the caller waits to be told before it writes its body.
    expects: bool,
}

impl Exchange<'_> {
    /// Carries out the effects of one side, in order. The first that ends the exchange is the last.
    async fn act(
        &self,
        effects: &[Effect],
        when: When,
        body: &mut Option<Relay>,
    ) -> Option<Result<Response<Relay>, Closed>> {
        for effect in effects.iter().filter(|effect| effect.when == when) {
            match &effect.action {
                Action::Delay { ms } => tokio::time::sleep(Duration::from_millis(*ms)).await,
                Action::Hold { id } => {
                    if let Some(gate) = &effect.gate {
                        let held = Held { id: id.clone(), seq: self.record.seq, when };
                        self.connection.shared.ledger.hold(held, gate.clone()).await;
                    }
                }
                Action::Drop => {
                    self.record.finish(Outcome::Dropped, None);
                    return Some(Err(Closed));
                }
                Action::Kill => {
                    match self.connection.kill_caller().await {
                        Ok(_) => self.record.finish(Outcome::Killed, None),
                        Err(error) => self.record.finish(Outcome::KillRefused, Some(error.to_string())),
                    }
                    return Some(Err(Closed));
                }
                Action::Answer(answer) => {
                    // A caller that still writes would not read the answer. One that waits to be told need
                    // not write at all.
                    if let Some(body) = body.take()
                        && !self.expects
                        && body.discard().await.is_err()
                    {
                        self.record.finish(Outcome::Answered, None);
                        return Some(Err(Closed));
                    }
                    let request_id = format!("wire-{}", self.record.seq);
                    let response =
                        answer::write(answer, self.protocol, self.content_type.as_ref(), &request_id);
                    self.record.set_status(response.status().as_u16());
                    self.record.finish(Outcome::Answered, None);
                    return Some(Ok(response.map(|body| body.metered(self.record, Direction::Response))));
                }
            }
        }
        None
    }
}

/// What is no call of AWS: the Lambda runtime, extension and telemetry interfaces, which poll for ever, and
/// the emulator's own paths (no bucket name begins with an underscore).
fn is_uncounted(path: &str) -> bool {
    path.starts_with("/_")
        || path.starts_with("/2018-06-01/runtime/")
        || path.starts_with("/2020-01-01/extension/")
}
