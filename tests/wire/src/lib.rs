//! A proxy on loopback between the functions and the emulator of AWS.
//!
//! The emulator is started with `AWS_ENDPOINT_URL` set to the wire, hands that to the functions, and so every
//! call of a function passes here. The wire forwards it as it is and
//!
//! * counts it by service and operation ([`Wire::counts`]) and logs it ([`Wire::log`]);
//! * does to it what the rules say ([`Wire::rule`]): delay, hold, drop, answer with an error, kill the
//!   caller, each before the emulator sees the request or after it has carried it out.
//!
//! ```no_run
//! use cdkd_wire::{Rule, When, Wire};
//! use std::time::Duration;
//!
//! # fn main() -> std::io::Result<()> {
//! let wire = Wire::start(0, ([127, 0, 0, 1], 4566).into(), None)?;
//! // … start the emulator with AWS_ENDPOINT_URL = wire.url() …
//! wire.set_emulator_pid(4711);
//! wire.rule(Rule::on("cloudcontrol", "CreateResource").nth(3).kill_before());
//! let hold = wire.hold(Rule::on("s3", "PutObject").resource("state.json"), When::After);
//! // … start a deployment …
//! hold.wait_until_held(Duration::from_secs(10))?;
//! assert_eq!(wire.counts().get("s3", "PutObject"), 1);
//! hold.release();
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! * Bytes pass unchanged: head fields with their case, `Host` among them, chunked bodies as chunked.
//!   Signatures stay valid. There are no time limits.
//! * A request counts when it arrives, whatever then becomes of it.
//! * A request that was delayed or held arrives even if its caller has died meanwhile, as one would that was
//!   already on the network; of its body the first [`PEEK`] bytes, so that a longer one fails.
//! * Nothing is killed but descendants of the emulator, whose process id has to be set.
//!
//! [`Wire`] is used from ordinary threads; its methods do not belong in async code.
//!
//! # From the shell
//!
//! The binary `cdkd-wire --upstream 127.0.0.1:4566` prints its URL and is controlled on the same port:
//!
//! | request | does |
//! |---|---|
//! | `POST /_wire/rules` | sets a rule, the JSON form of [`Rule`]; answers `{"id": 1}` |
//! | `GET /_wire/rules` | the rules with what they have done, as [`RuleState`] |
//! | `DELETE /_wire/rules`, `DELETE /_wire/rules/1` | removes all or one, freeing what they hold |
//! | `GET /_wire/held` | the requests that wait, as [`Held`] |
//! | `POST /_wire/release/{id}` | opens the gate of a hold |
//! | `GET /_wire/counts` | [`Counts`] |
//! | `GET /_wire/log?since=0` | the log, as [`Entry`] |
//! | `POST /_wire/reset` | empties counts and log |
//! | `PUT /_wire/emulator` | `{"pid": 4711, "upstream": "127.0.0.1:4566"}`, either or both |
//! | `GET /_wire/health` | where it forwards to, and whose descendants it may kill |
//! | `POST /_wire/shutdown` | ends it |

mod answer;
mod caller;
mod classify;
mod control;
mod ledger;
mod proxy;
mod relay;
mod rule;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use ledger::{Counts, Entry, Held, LOG_LIMIT, Outcome, RuleId, RuleState};
pub use relay::PEEK;
pub use rule::{Action, Answer, Match, Rule, RuleBuilder, When};

use ledger::lock;
use proxy::Shared;

/// A running proxy. It stops when it is dropped.
#[derive(Debug)]
pub struct Wire {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Listens on a loopback port (0: any that is free) on a thread of its own.
    ///
    /// Nothing listens at `upstream` yet, perhaps; a request that comes too early is closed without an answer.
    pub fn start(port: u16, upstream: SocketAddr, emulator_pid: Option<u32>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(upstream, emulator_pid));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("wire".to_owned()).spawn(move || {
            runtime.block_on(proxy::serve(serving, listener));
            // Does not wait for a search through `/proc` that may be under way.
            runtime.shutdown_background();
        })?;
        Ok(Self { shared, address, thread: Some(thread) })
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// What `AWS_ENDPOINT_URL` has to be.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Forwards to another address from the next connection on.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        *lock(&self.shared.upstream) = upstream;
    }

    /// Allows descendants of this process to be killed, and no others.
    pub fn set_emulator_pid(&self, pid: u32) {
        *lock(&self.shared.emulator_pid) = Some(pid);
    }

    /// Sets a rule. Rules act in the order in which they were set; the first that ends a request is the last.
    pub fn rule(&self, rule: Rule) -> RuleId {
        self.shared.ledger.add_rule(rule)
    }

    /// Sets a rule that holds requests at a gate of its own.
    pub fn hold(&self, requests: RuleBuilder, when: When) -> Hold {
        let rule = self.rule(requests.act(when, Action::Hold { id: String::new() }));
        Hold { shared: Arc::clone(&self.shared), gate: ledger::gate_of(rule), rule }
    }

    /// Removes a rule; false if it is gone already. What only it held goes on.
    pub fn remove_rule(&self, id: RuleId) -> bool {
        self.shared.ledger.remove_rules(Some(id)) > 0
    }

    /// Removes all rules. What they held goes on.
    pub fn clear_rules(&self) {
        self.shared.ledger.remove_rules(None);
    }

    /// The rules in force and what they have done.
    pub fn rules(&self) -> Vec<RuleState> {
        self.shared.ledger.rules()
    }

    /// How often a rule has acted, so that a test can tell that its fault happened at all.
    pub fn fired(&self, id: RuleId) -> u64 {
        self.rules().iter().find(|state| state.id == id).map_or(0, |state| state.fired)
    }

    /// Opens a gate, for what waits there and what comes; returns how many requests waited.
    pub fn release(&self, gate: &str) -> usize {
        self.shared.ledger.release(gate).unwrap_or(0)
    }

    /// The requests that wait at gates now.
    pub fn held(&self) -> Vec<Held> {
        self.shared.ledger.held()
    }

    /// Requests by service and operation since the start or the last reset.
    pub fn counts(&self) -> Counts {
        self.shared.ledger.counts()
    }

    /// Sets the counts to zero and empties the log. Rules stay, with their own counts.
    pub fn reset(&self) {
        self.shared.ledger.reset();
    }

    /// The requests after number `since`, at most [`LOG_LIMIT`].
    pub fn log(&self, since: u64) -> Vec<Entry> {
        self.shared.ledger.log(since)
    }

    /// Blocks until an operation has been called that often since the last reset.
    pub fn wait_for(&self, service: &str, operation: &str, count: u64, timeout: Duration) -> io::Result<()> {
        self.shared.ledger.wait_for(service, operation, count, timeout)
    }

    /// Blocks until the wire is stopped through its control interface.
    pub fn join(mut self) {
        self.join_thread();
    }

    fn join_thread(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic of that thread was printed when it happened.
            let _panic = thread.join();
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.stop.notify_one();
        self.join_thread();
    }
}

/// A gate at which requests wait. It opens when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Hold {
    shared: Arc<Shared>,
    gate: String,
    rule: RuleId,
}

impl Hold {
    /// The rule that holds.
    pub fn rule(&self) -> RuleId {
        self.rule
    }

    /// Blocks until a request waits here.
    pub fn wait_until_held(&self, timeout: Duration) -> io::Result<Held> {
        self.shared.ledger.wait_until_held(&self.gate, timeout)
    }

    /// Lets the requests that wait go on, and those that come pass.
    pub fn release(&self) {
        self.shared.ledger.release(&self.gate);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}
