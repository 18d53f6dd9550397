//! The write-ahead journal and fence of a stack (DESIGN 8).
//!
//! Objects `cdkd-journal/{prefix}/{stack}/{region}/{seq}`, dense from 0, each created with `If-None-Match: *`: two
//! writers cannot both go on, and the one that loses stops before its next call. An object holds a batch of
//! [`Entry`]s. No call leaves before its [`Entry::Intent`] is stored; the request token follows at once, the outcome
//! last. A commit, and an abort with nothing open, remove the journal.

use serde_json::{Map, Value, json};

use crate::error::{Code, Error, Result};
use crate::state::{PendingDelete, Record, Row};

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Operation::Create => "create",
            Operation::Update => "update",
            Operation::Delete => "delete",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [Operation::Create, Operation::Update, Operation::Delete].into_iter().find(|op| op.name() == name)
    }
}

/// A call that is about to leave.
#[derive(Clone, Debug, PartialEq)]
pub struct Intent {
    /// Unique within the journal.
    pub id: String,
    pub logical_id: String,
    pub operation: Operation,
    /// The type as Cloud Control is asked for it; for a part of an expanded type, the part's.
    pub type_name: String,
    /// Which part of the row it is about; empty for a type that is not expanded.
    pub part: String,
    /// Of an update or delete; of a create where the desired state determines it.
    pub identifier: Option<String>,
    /// Of a create: the desired state; of an update: the patch. Document form of a Node: secrets are tokens.
    pub body: Value,
    /// What changes on record once it is done: see [`completed`].
    pub then: Vec<Change>,
    /// The idempotency token of the call.
    pub client_token: String,
    /// Milliseconds since 1970. A create is repeated under its token only within 36 hours.
    pub at: i64,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It took place; the identifier it has now.
    Done { identifier: String },
    /// It did not, or its effect is gone again.
    Failed { code: String, message: String },
}

/// How a record changes once something is done; replayed in order, it brings any older record to the same state.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The row is this now.
    Put { logical_id: String, row: Row },
    /// The row is gone.
    Remove { logical_id: String },
    /// A physical resource waits for its delete.
    Later(PendingDelete),
    /// A pending delete is done, or the thing is in use again.
    Forget(PendingDelete),
}

/// A line of the journal.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// An invocation works on the stack until `deadline` at the latest, or until its `End`.
    Fence {
        invocation: String,
        execution: String,
        deadline: i64,
        stack_id: String,
    },
    End {
        invocation: String,
    },
    /// The record in S3 holds every change before this: what came before need not be read again.
    Checkpoint(Checkpoint),
    Intent(Intent),
    /// Cloud Control took the call; `identifier` as soon as it is known.
    Accepted {
        id: String,
        request_token: String,
        identifier: Option<String>,
    },
    Outcome {
        id: String,
        outcome: Outcome,
    },
    Change(Change),
    /// The run failed with this cause and is being undone.
    Undo {
        execution: String,
        cause: Value,
    },
}

/// What of a journal still counts once its changes are on record.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    pub open: Vec<Open>,
    pub stack_id: Option<String>,
    pub undo: Option<(String, Value)>,
    pub intents: u64,
}

/// What a journal says, read in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Journal {
    /// The number of the next object.
    pub next: u64,
    /// Calls without an outcome, in order.
    pub open: Vec<Open>,
    /// Changes to be replayed onto the record, in order.
    pub changes: Vec<Change>,
    /// Fences without an end, as (invocation, deadline).
    pub fences: Vec<(String, i64)>,
    /// The stack id that the first fence carries: a record may not have it yet.
    pub stack_id: Option<String>,
    /// The execution that is being undone, with its cause.
    pub undo: Option<(String, Value)>,
    /// How many calls were intended so far: the attempt number of the next client token.
    pub intents: u64,
}

/// A call that was intended and has no outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    pub intent: Intent,
    pub request_token: Option<String>,
    pub identifier: Option<String>,
}

impl Open {
    fn from_value(value: &Value) -> Option<Self> {
        let Entry::Intent(intent) = Entry::from_value(&value["intent"])? else { return None };
        Some(Self {
            intent,
            request_token: value["requestToken"].as_str().map(str::to_owned),
            identifier: value["identifier"].as_str().map(str::to_owned),
        })
    }
}

/// Whether an object of the journal holds a checkpoint: nothing before it need be read.
pub fn has_checkpoint(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|document| {
        document["entries"].as_array().is_some_and(|all| all.iter().any(|e| e.get("checkpoint").is_some()))
    })
}

/// The key of an object of the journal below its folder.
pub fn key(folder: &str, number: u64) -> String {
    format!("{folder}{number:010}")
}

/// The number of an object of the journal, from its key.
pub fn number(folder: &str, key: &str) -> Option<u64> {
    key.strip_prefix(folder)?.parse().ok()
}

/// The document of one object.
pub fn to_bytes(entries: &[Entry]) -> Vec<u8> {
    serde_json::to_vec(&json!({ "entries": entries.iter().map(Entry::to_value).collect::<Vec<_>>() }))
        .unwrap_or_default()
}

/// Reads the objects of a journal, in the order of their numbers.
///
/// What comes before the first fence or checkpoint does not count: it is what a removal that died has left, or was still
/// on its way when the journal it belonged to was removed. Of either all is on record, or was never called.
///
/// # Errors
/// `InvalidState`: a journal that cannot be read is never passed over.
pub fn read(bodies: &[(u64, Vec<u8>)]) -> Result<Journal> {
    let mut journal = Journal::default();
    let mut begun = false;
    for (number, body) in bodies {
        let invalid = || {
            Error::new(
                Code::InvalidState,
                format!("object {number} of the stack's journal does not have the documented form"),
            )
            .hint("restore an earlier version of the object from the state bucket, which is versioned")
        };
        let document: Value = serde_json::from_slice(body).map_err(|_| invalid())?;
        let entries = document["entries"].as_array().ok_or_else(invalid)?;
        for entry in entries {
            let entry = Entry::from_value(entry).ok_or_else(invalid)?;
            begun |= matches!(entry, Entry::Fence { .. } | Entry::Checkpoint(_));
            if begun {
                journal.take(entry);
            }
        }
        journal.next = number + 1;
    }
    Ok(journal)
}

impl Journal {
    /// The entry that stands for all before it. Whoever writes it has saved the record, and has waited until no
    /// earlier invocation can be at work, so that neither changes nor fences before it count any more.
    pub fn checkpoint(&self) -> Entry {
        Entry::Checkpoint(Checkpoint {
            open: self.open.clone(),
            stack_id: self.stack_id.clone(),
            undo: self.undo.clone(),
            intents: self.intents,
        })
    }

    /// Reads one entry more.
    pub fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Fence { invocation, deadline, stack_id, .. } => {
                // An invocation that is no `begin` knows none and may be the first in a journal: after a commit that
                // died between the journal and the lock.
                if !stack_id.is_empty() {
                    self.stack_id.get_or_insert(stack_id);
                }
                self.fences.push((invocation, deadline));
            }
            Entry::End { invocation } => self.fences.retain(|(known, _)| *known != invocation),
            Entry::Checkpoint(checkpoint) => {
                *self = Self {
                    next: self.next,
                    open: checkpoint.open,
                    stack_id: checkpoint.stack_id,
                    undo: checkpoint.undo,
                    intents: checkpoint.intents,
                    ..Self::default()
                };
            }
            Entry::Intent(intent) => {
                self.intents += 1;
                self.open.push(Open { intent, request_token: None, identifier: None });
            }
            Entry::Accepted { id, request_token, identifier } => {
                if let Some(open) = self.open.iter_mut().find(|open| open.intent.id == id) {
                    open.request_token = Some(request_token);
                    open.identifier = identifier.or(open.identifier.take());
                }
            }
            Entry::Outcome { id, .. } => self.open.retain(|open| open.intent.id != id),
            Entry::Change(change) => self.changes.push(change),
            Entry::Undo { execution, cause } => self.undo = Some((execution, cause)),
        }
    }

    /// The latest deadline of invocations other than `own` that may still be at work.
    pub fn busy_until(&self, own: &str) -> Option<i64> {
        self.fences.iter().filter(|(invocation, _)| invocation != own).map(|(_, deadline)| *deadline).max()
    }
}

impl Change {
    /// Brings the record to the state after this change; again, it changes nothing.
    pub fn apply(&self, record: &mut Record) {
        match self {
            Change::Put { logical_id, row } => record.put_row(logical_id, row.clone()),
            Change::Remove { logical_id } => {
                record.remove_row(logical_id);
            }
            Change::Later(pending) => record.add_pending_delete(pending),
            Change::Forget(pending) => record.remove_pending_delete(pending),
        }
    }

    fn to_value(&self) -> Value {
        let pending = |p: &PendingDelete| json!({ "logicalId": p.logical_id, "row": p.row.to_value() });
        match self {
            Change::Put { logical_id, row } => json!({ "put": logical_id, "row": row.to_value() }),
            Change::Remove { logical_id } => json!({ "remove": logical_id }),
            Change::Later(later) => json!({ "later": pending(later) }),
            Change::Forget(done) => json!({ "forget": pending(done) }),
        }
    }

    fn from_value(value: &Value) -> Option<Self> {
        let pending = |value: &Value| {
            Some(PendingDelete {
                logical_id: value["logicalId"].as_str()?.to_owned(),
                row: Row::from_value(&value["row"])?,
            })
        };
        if let Some(logical_id) = value["put"].as_str() {
            return Some(Change::Put {
                logical_id: logical_id.to_owned(),
                row: Row::from_value(&value["row"])?,
            });
        }
        if let Some(logical_id) = value["remove"].as_str() {
            return Some(Change::Remove { logical_id: logical_id.to_owned() });
        }
        if value["later"].is_object() {
            return pending(&value["later"]).map(Change::Later);
        }
        pending(&value["forget"]).map(Change::Forget)
    }
}

impl Entry {
    fn to_value(&self) -> Value {
        match self {
            Entry::Fence { invocation, execution, deadline, stack_id } => json!({
                "fence": invocation, "execution": execution, "deadline": deadline, "stackId": stack_id,
            }),
            Entry::End { invocation } => json!({ "end": invocation }),
            Entry::Checkpoint(checkpoint) => json!({
                "checkpoint": checkpoint.intents,
                "stackId": checkpoint.stack_id,
                "undo": checkpoint.undo.as_ref().map(|(execution, cause)| json!({ "execution": execution, "cause": cause })),
                "open": checkpoint.open.iter().map(|open| json!({
                    "intent": Entry::Intent(open.intent.clone()).to_value(),
                    "requestToken": open.request_token,
                    "identifier": open.identifier,
                })).collect::<Vec<_>>(),
            }),
            Entry::Intent(intent) => json!({
                "intent": intent.id,
                "logicalId": intent.logical_id,
                "operation": intent.operation.name(),
                "type": intent.type_name,
                "part": intent.part,
                "identifier": intent.identifier,
                "body": intent.body,
                "then": intent.then.iter().map(Change::to_value).collect::<Vec<_>>(),
                "clientToken": intent.client_token,
                "at": intent.at,
            }),
            Entry::Accepted { id, request_token, identifier } => {
                json!({ "accepted": id, "requestToken": request_token, "identifier": identifier })
            }
            Entry::Outcome { id, outcome: Outcome::Done { identifier } } => {
                json!({ "outcome": id, "identifier": identifier })
            }
            Entry::Outcome { id, outcome: Outcome::Failed { code, message } } => {
                json!({ "outcome": id, "failed": { "code": code, "message": message } })
            }
            Entry::Change(change) => json!({ "change": change.to_value() }),
            Entry::Undo { execution, cause } => json!({ "undo": execution, "cause": cause }),
        }
    }

    fn from_value(value: &Value) -> Option<Self> {
        let map: &Map<String, Value> = value.as_object()?;
        let text = |field: &str| map.get(field).and_then(Value::as_str).map(str::to_owned);
        Some(match map.keys().next()?.as_str() {
            "fence" => Entry::Fence {
                invocation: text("fence")?,
                execution: text("execution")?,
                deadline: map.get("deadline")?.as_i64()?,
                stack_id: text("stackId")?,
            },
            "end" => Entry::End { invocation: text("end")? },
            "checkpoint" => Entry::Checkpoint(Checkpoint {
                intents: map.get("checkpoint")?.as_u64()?,
                stack_id: text("stackId"),
                undo: match map.get("undo")? {
                    Value::Null => None,
                    undo => Some((undo["execution"].as_str()?.to_owned(), undo["cause"].clone())),
                },
                open: map.get("open")?.as_array()?.iter().map(Open::from_value).collect::<Option<_>>()?,
            }),
            "intent" => Entry::Intent(Intent {
                id: text("intent")?,
                logical_id: text("logicalId")?,
                operation: Operation::parse(&text("operation")?)?,
                type_name: text("type")?,
                part: text("part")?,
                identifier: text("identifier"),
                body: map.get("body")?.clone(),
                then: map.get("then")?.as_array()?.iter().map(Change::from_value).collect::<Option<_>>()?,
                client_token: text("clientToken")?,
                at: map.get("at")?.as_i64()?,
            }),
            "accepted" => Entry::Accepted {
                id: text("accepted")?,
                request_token: text("requestToken")?,
                identifier: text("identifier"),
            },
            "outcome" => {
                let outcome = match map.get("failed") {
                    Some(failed) => Outcome::Failed {
                        code: failed["code"].as_str()?.to_owned(),
                        message: failed["message"].as_str()?.to_owned(),
                    },
                    None => Outcome::Done { identifier: text("identifier")? },
                };
                Entry::Outcome { id: text("outcome")?, outcome }
            }
            "change" => Entry::Change(Change::from_value(map.get("change")?)?),
            "undo" => Entry::Undo { execution: text("undo")?, cause: map.get("cause")?.clone() },
            _ => return None,
        })
    }
}

/// The changes of a call that is done, with what only AWS knew: the identifier goes into the row (or its part), the
/// attributes too. A replacement that got the same physical id back leaves nothing to delete (rule P8).
pub fn completed(intent: &Intent, identifier: &str, attributes: Option<&Map<String, Value>>) -> Vec<Change> {
    let mut changes = intent.then.clone();
    let mut now = None;
    for change in &mut changes {
        let Change::Put { row, .. } = change else { continue };
        if intent.part.is_empty() {
            if intent.operation == Operation::Create {
                row.set_physical_id(identifier);
            }
            if let Some(attributes) = attributes {
                row.set_attributes(attributes.clone());
            }
        } else if intent.operation == Operation::Create {
            row.set_part(&intent.part, &intent.type_name, identifier);
        }
        now = Some(row.clone());
    }
    changes.retain(|change| match (change, &now) {
        (Change::Later(pending), Some(now)) => !pending.row.is_same_thing(now),
        _ => true,
    });
    changes
}

/// What a create that failed may have left: it waits for its delete from the moment the failure is stored, so that a
/// run that dies in between leaves nothing unknown. Nothing is left of a create that found something there, which
/// may be someone else's (rule P2).
pub fn remnant(intent: &Intent, identifier: &str, code: &str) -> Option<PendingDelete> {
    if intent.operation != Operation::Create
        || identifier.is_empty()
        || code == "AlreadyExists"
        || code == "ResourceConflict"
    {
        return None;
    }
    let row = intent.then.iter().find_map(|change| match change {
        Change::Put { row, .. } if intent.part.is_empty() => Some(row.clone()),
        _ => None,
    });
    let mut row = row.unwrap_or_else(|| Row::new(&intent.type_name, ""));
    row.set_physical_id(identifier);
    Some(PendingDelete { logical_id: intent.logical_id.clone(), row })
}

/// The life of a client token, milliseconds: Cloud Control forgets it after 36 hours; an hour is kept for clocks.
pub const TOKEN_LIFE: i64 = 35 * 60 * 60 * 1000;

/// What to do about a call without an outcome.
#[derive(Clone, Debug, PartialEq)]
pub enum Settle {
    /// Cloud Control took it: ask how far it is.
    Poll { request_token: String },
    /// It may or may not have been taken: the same body under the same token does nothing twice.
    SendAgain,
    /// A delete that may not have been taken: never replayed, since the next plan may want to keep the resource. But
    /// if it was taken, its outcome has to be known: it is looked for among the requests of Cloud Control.
    LookFor,
    /// Too old to repeat: nobody can tell.
    Unknown,
}

/// Decides about an open call (P1, P10).
pub fn settle(open: &Open, now: i64) -> Settle {
    match &open.request_token {
        Some(request_token) => Settle::Poll { request_token: request_token.clone() },
        None if open.intent.operation == Operation::Delete => Settle::LookFor,
        None if now - open.intent.at < TOKEN_LIFE => Settle::SendAgain,
        None => Settle::Unknown,
    }
}

/// A client token: 64 characters of `[0-9a-f]` from the run's random id, the stack, the logical id, the operation and
/// the attempt. Another run never makes the same one; another attempt, or another body, is another token (P3).
pub fn client_token(
    nonce: &str,
    stack: &str,
    logical_id: &str,
    operation: Operation,
    attempt: u64,
) -> String {
    use sha2::{Digest as _, Sha256};
    use std::fmt::Write as _;
    let mut hash = Sha256::new();
    for part in [nonce, stack, logical_id, operation.name(), &attempt.to_string()] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let mut token = String::with_capacity(64);
    for byte in hash.finalize() {
        let _ = write!(token, "{byte:02x}");
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::RecordKey;

    fn intent(id: &str, operation: Operation) -> Intent {
        Intent {
            id: id.into(),
            logical_id: "Queue".into(),
            operation,
            type_name: "AWS::SQS::Queue".into(),
            part: String::new(),
            identifier: None,
            body: json!({"QueueName": {"$text": ["a", {"secret": "{{resolve:ssm-secure:x}}"}]}}),
            then: vec![Change::Put { logical_id: "Queue".into(), row: row("") }],
            client_token: "t".into(),
            at: 1000,
        }
    }

    fn row(physical_id: &str) -> Row {
        Row::new("AWS::SQS::Queue", physical_id)
    }

    fn entries() -> Vec<Entry> {
        let pending = PendingDelete { logical_id: "Queue".into(), row: row("old") };
        vec![
            Entry::Fence {
                invocation: "i1".into(),
                execution: "e".into(),
                deadline: 9,
                stack_id: "s".into(),
            },
            Entry::Intent(intent("1", Operation::Create)),
            Entry::Accepted { id: "1".into(), request_token: "r".into(), identifier: Some("q".into()) },
            Entry::Outcome { id: "1".into(), outcome: Outcome::Done { identifier: "q".into() } },
            Entry::Change(Change::Put { logical_id: "Queue".into(), row: row("q") }),
            Entry::Change(Change::Later(pending.clone())),
            Entry::Change(Change::Forget(pending)),
            Entry::Change(Change::Remove { logical_id: "Queue".into() }),
            Entry::Intent(intent("2", Operation::Update)),
            Entry::Outcome {
                id: "2".into(),
                outcome: Outcome::Failed { code: "Throttling".into(), message: "slow".into() },
            },
            Entry::Undo { execution: "e".into(), cause: json!({"code": "X"}) },
            Entry::End { invocation: "i1".into() },
        ]
    }

    #[test]
    fn every_entry_survives_the_journal() {
        for entry in entries() {
            assert_eq!(Entry::from_value(&entry.to_value()), Some(entry));
        }
    }

    #[test]
    fn a_journal_read_in_order_knows_what_is_open() {
        let all = entries();
        let mut bodies = Vec::new();
        for (number, batch) in all.chunks(5).enumerate() {
            bodies.push((u64::try_from(number).unwrap(), to_bytes(batch)));
        }
        let journal = read(&bodies).unwrap();
        assert_eq!((journal.next, journal.intents, journal.open.len()), (3, 2, 0));
        assert_eq!(journal.fences, []);
        assert_eq!(journal.stack_id.as_deref(), Some("s"));
        assert_eq!(journal.changes.len(), 4);

        let cut = read(&[(0, to_bytes(&all[..3]))]).unwrap();
        assert_eq!(cut.busy_until("i1"), None);
        assert_eq!(cut.busy_until("i2"), Some(9));
        assert_eq!(cut.open[0].request_token.as_deref(), Some("r"));
        assert_eq!(cut.open[0].identifier.as_deref(), Some("q"));
    }

    #[test]
    fn a_checkpoint_stands_for_all_before_it() {
        let mut journal = Journal::default();
        for entry in &entries()[..9] {
            journal.take(entry.clone());
        }
        journal.take(Entry::Undo { execution: "e".into(), cause: json!({"code": "X"}) });
        assert_eq!((journal.open.len(), journal.changes.len(), journal.fences.len()), (1, 4, 1));
        let checkpoint = journal.checkpoint();
        assert_eq!(Entry::from_value(&checkpoint.to_value()), Some(checkpoint.clone()));
        let body = to_bytes(&[Entry::End { invocation: "i1".into() }, checkpoint]);
        assert!(has_checkpoint(&body) && !has_checkpoint(&to_bytes(&entries())) && !has_checkpoint(b"no"));
        let short = read(&[(7, body)]).unwrap();
        assert_eq!((short.next, short.intents, &short.changes, &short.fences), (8, 2, &vec![], &vec![]));
        assert_eq!(
            (&short.open, &short.undo, &short.stack_id),
            (&journal.open, &journal.undo, &journal.stack_id)
        );
    }

    #[test]
    fn the_stacks_id_is_that_of_the_first_fence_that_knows_it() {
        let fence = |invocation: &str, stack_id: &str| Entry::Fence {
            invocation: invocation.into(),
            execution: "e".into(),
            deadline: 9,
            stack_id: stack_id.into(),
        };
        let mut journal = Journal::default();
        let table = [(fence("1", ""), None), (fence("2", "a"), Some("a")), (fence("3", "b"), Some("a"))];
        for (entry, known) in table {
            journal.take(entry);
            assert_eq!(journal.stack_id.as_deref(), known);
        }
        let checkpoint = journal.checkpoint();
        let mut later = Journal::default();
        later.take(checkpoint);
        later.take(fence("4", ""));
        assert_eq!(later.stack_id.as_deref(), Some("a"));
    }

    #[test]
    fn p2_what_a_failed_create_left_waits_for_its_delete() {
        let create = intent("1", Operation::Create);
        let part = Intent { part: "0".into(), type_name: "AWS::IAM::RolePolicy".into(), ..create.clone() };
        let left = |intent: &Intent, identifier: &str, code: &str| {
            remnant(intent, identifier, code)
                .map(|left| (left.row.resource_type().to_owned(), left.row.physical_id().to_owned()))
        };
        let some = |type_name: &str, id: &str| Some((type_name.to_owned(), id.to_owned()));
        assert_eq!(left(&create, "q", "NotStabilized"), some("AWS::SQS::Queue", "q"));
        assert_eq!(left(&part, "p|r", "NotStabilized"), some("AWS::IAM::RolePolicy", "p|r"));
        assert_eq!(left(&create, "", "NotStabilized"), None);
        assert_eq!(left(&create, "q", "AlreadyExists"), None);
        assert_eq!(left(&create, "q", "ResourceConflict"), None);
        assert_eq!(left(&intent("1", Operation::Update), "q", "NotStabilized"), None);
        assert_eq!(left(&intent("1", Operation::Delete), "q", "NotStabilized"), None);
    }

    #[test]
    fn a_journal_that_cannot_be_read_is_refused() {
        for body in ["", "{}", r#"{"entries":[{"other":1}]}"#, r#"{"entries":[{}]}"#, r#"{"entries":[5]}"#] {
            let error = read(&[(7, body.as_bytes().to_vec())]).unwrap_err();
            assert_eq!(error.code(), Code::InvalidState, "{body}");
            assert!(error.message().contains("object 7"));
        }
    }

    #[test]
    fn l11_what_no_fence_is_before_was_late_and_does_not_count() {
        let fence = Entry::Fence {
            invocation: "i".into(),
            execution: "e".into(),
            deadline: 9,
            stack_id: "id".into(),
        };
        let change = |id: &str| Entry::Change(Change::Remove { logical_id: id.into() });
        let late = to_bytes(&[Entry::Intent(intent("late", Operation::Update)), change("Late")]);
        let read = |bodies: &[(u64, Vec<u8>)]| read(bodies).unwrap();
        let alone = read(&[(7, late.clone())]);
        assert_eq!(alone, Journal { next: 8, ..Journal::default() });
        let ours = vec![(8, to_bytes(&[fence])), (9, to_bytes(&[change("Ours")]))];
        let both = read(&[vec![(7, late.clone())], ours.clone()].concat());
        assert_eq!(both, read(&ours));
        assert_eq!(both.changes, [Change::Remove { logical_id: "Ours".into() }]);
        // A checkpoint stands for the fences before it, which need not be read.
        let checkpoint = to_bytes(&[Journal::default().checkpoint()]);
        assert_eq!(read(&[(6, checkpoint), (7, late)]).open.len(), 1);
    }

    #[test]
    fn p1_p10_open_calls_are_polled_or_sent_again_and_deletes_planned_anew() {
        let open = |operation, request_token: Option<&str>| Open {
            intent: intent("1", operation),
            request_token: request_token.map(str::to_owned),
            identifier: None,
        };
        let poll = Settle::Poll { request_token: "r".into() };
        assert_eq!(settle(&open(Operation::Create, Some("r")), i64::MAX), poll);
        assert_eq!(settle(&open(Operation::Delete, Some("r")), 2000), poll);
        assert_eq!(settle(&open(Operation::Create, None), 2000), Settle::SendAgain);
        assert_eq!(settle(&open(Operation::Update, None), 2000), Settle::SendAgain);
        assert_eq!(settle(&open(Operation::Delete, None), 2000), Settle::LookFor);
        assert_eq!(settle(&open(Operation::Create, None), 1000 + TOKEN_LIFE), Settle::Unknown);
    }

    #[test]
    fn p8_the_same_physical_id_back_leaves_nothing_to_delete() {
        let later = |id: &str| Change::Later(PendingDelete { logical_id: "Queue".into(), row: row(id) });
        let mut intent = intent("1", Operation::Create);
        intent.then.push(later("old"));
        let Value::Object(attributes) = json!({"Arn": "a"}) else { return };
        let changes = completed(&intent, "new", Some(&attributes));
        assert_eq!(changes[1], later("old"));
        let Change::Put { row: put, .. } = &changes[0] else { panic!("{changes:?}") };
        assert_eq!((put.physical_id(), &put.attributes()["Arn"]), ("new", &json!("a")));
        assert_eq!(completed(&intent, "old", None).len(), 1);
    }

    #[test]
    fn p3_another_attempt_or_body_is_another_token() {
        let token = |nonce, attempt| client_token(nonce, "Web", "Queue", Operation::Create, attempt);
        assert_eq!(token("n", 1), token("n", 1));
        assert_ne!(token("n", 1), token("n", 2));
        assert_ne!(token("n", 1), token("m", 1));
        assert_eq!(token("n", 1).len(), 64);
    }

    #[test]
    fn changes_replayed_twice_are_the_same() {
        let key = RecordKey::parse("Web", "us-east-1").unwrap();
        let pending = PendingDelete { logical_id: "Queue".into(), row: row("old") };
        let changes = [
            Change::Put { logical_id: "Queue".into(), row: row("old") },
            Change::Put { logical_id: "Queue".into(), row: row("new") },
            Change::Later(pending),
        ];
        let mut once = Record::new(&key);
        for change in &changes {
            change.apply(&mut once);
        }
        let mut twice = once.clone();
        for change in &changes {
            change.apply(&mut twice);
        }
        assert_eq!(once, twice);
        assert_eq!(once.row("Queue").unwrap().physical_id(), "new");
    }
}
