//! One call to Cloud Control, from intent to outcome.
//!
//! No call leaves before its intent is stored; the request token is stored right after, the outcome with the changes
//! of the record last (DESIGN 8). A call that was not answered is repeated under its own token; a call that failed
//! is tried anew under another (rules P1, P3, P7).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use cdkd_aws::cloud_control::{CloudControl, Progress, Refused, Status};
use cdkd_aws::settings;
use cdkd_aws::stack::Session;
use cdkd_core::name::RecordKey;
use cdkd_core::protocol::journal::{
    Change, Entry, Intent, Open, Operation, Outcome, Settle, client_token, completed, remnant, settle,
};
use cdkd_core::schedule::{Limiter, backoff};
use cdkd_core::schema::{self, TypeSchema};
use cdkd_core::state::tree::{key_of, parts};
use cdkd_core::state::{PendingDelete, Record};
use cdkd_core::value::Node;
use cdkd_core::{Code, Error, Result};
use serde_json::{Map, Value, json};

/// A call to be made.
pub(crate) struct Call {
    pub logical_id: String,
    pub operation: Operation,
    pub type_name: String,
    pub part: String,
    pub identifier: Option<String>,
    /// The desired state, or the patch. `Value::Null` for a delete.
    pub body: Value,
    pub then: Vec<Change>,
}

/// How a call or step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    /// The slice is over before it; the next one goes on.
    Later,
}

/// Tries of a call that AWS throttles or that waits for permissions to spread.
const TRIES: u32 = 12;
/// How long a role or policy of this run may take to be visible everywhere, milliseconds (rule P9).
const PROPAGATION: i64 = 120_000;

/// What the steps of one invocation share.
pub(crate) struct Engine {
    pub session: Session,
    /// Of the stack's region.
    cloud: Rc<CloudControl>,
    pub record: RefCell<Record>,
    pub limiter: RefCell<Limiter>,
    /// Calls that an earlier slice or run left open, each until its step takes it up.
    pub open: RefCell<Vec<Open>>,
    /// Kept at the end of the invocation for saving, milliseconds.
    pub margin: Duration,
    intents: Cell<u64>,
}

impl Engine {
    pub fn new(session: Session, record: Record, margin: Duration) -> Self {
        Self {
            cloud: session.invocation.aws.cloud_control.of(&session.key.region),
            record: RefCell::new(record),
            limiter: RefCell::default(),
            open: RefCell::new(session.found.open.clone()),
            intents: Cell::new(session.found.intents),
            session,
            margin,
        }
    }

    /// Whether the slice comes to its end: nothing new starts, what runs is left to the next one.
    pub fn is_late(&self) -> bool {
        self.session.invocation.left(self.margin) == Duration::ZERO
    }

    /// Stores a change of the record that needs no call.
    pub async fn change(&self, changes: Vec<Change>) -> Result<()> {
        self.session.journal.append(changes.iter().cloned().map(Entry::Change).collect()).await?;
        self.apply(&changes);
        Ok(())
    }

    fn apply(&self, changes: &[Change]) {
        let mut record = self.record.borrow_mut();
        for change in changes {
            change.apply(&mut record);
        }
    }

    /// Settles the calls that an earlier slice or run left open for a logical id.
    pub async fn settle(&self, logical_id: &str) -> Result<End> {
        loop {
            let next = {
                let mut open = self.open.borrow_mut();
                let position = open.iter().position(|open| open.intent.logical_id == logical_id);
                position.map(|position| open.remove(position))
            };
            let Some(open) = next else { return Ok(End::Done) };
            let end = match settle(&open, settings::now()) {
                Settle::Poll { request_token } => {
                    // The outcome is what counts: a failed call of an earlier slice is tried anew by its step.
                    match self.follow(&open.intent, request_token, open.identifier.clone()).await {
                        Err(error) if error.code() == Code::ProvisioningFailed => Ok(End::Done),
                        other => other,
                    }
                }
                Settle::SendAgain => match self.send(&open.intent).await {
                    Err(error) if error.code() == Code::ProvisioningFailed => Ok(End::Done),
                    other => other,
                },
                Settle::LookFor => self.look_for(&open.intent).await,
                Settle::Unknown => Err(unknown(&open.intent)),
            }?;
            if end == End::Later {
                return Ok(End::Later);
            }
        }
    }

    /// A delete was intended, and nothing says whether it left: if Cloud Control took it, it is seen to its end.
    async fn look_for(&self, intent: &Intent) -> Result<End> {
        let cloud = &self.cloud;
        let identifier = intent.identifier.as_deref().unwrap_or_default();
        let mut tries = 0;
        let found = loop {
            // A minute is kept for clocks (rule L9).
            match cloud.delete_since(&intent.type_name, identifier, intent.at - 60_000).await {
                Ok(found) => break found,
                Err(refused) if (refused.throttled || refused.unknown) && tries < 5 && !self.is_late() => {
                    tries += 1;
                    self.pause(settings::jitter(Duration::from_millis(backoff(tries)))).await;
                }
                Err(refused) => return Err(refused.error),
            }
        };
        match found {
            Some(progress) if progress.status == Status::InProgress => {
                match self.accepted(intent, progress).await {
                    Err(error) if error.code() == Code::ProvisioningFailed => Ok(End::Done),
                    other => other,
                }
            }
            // One that has ended may have been of a namesake before this one: only the resource itself can tell.
            _ => match self.read(&intent.type_name, identifier).await {
                Ok(None) => self.done(intent, identifier, None).await,
                Err(error) if matches!(error.code(), Code::Throttled | Code::ServiceUnavailable) => {
                    Err(error)
                }
                Ok(Some(_)) | Err(_) => self.not_sent(intent).await,
            },
        }
    }

    async fn not_sent(&self, intent: &Intent) -> Result<End> {
        self.outcome(&intent.id, Outcome::Failed { code: "NotSent".into(), message: String::new() }).await?;
        Ok(End::Done)
    }

    /// Makes a call and sees it to its end.
    pub async fn call(&self, call: Call) -> Result<End> {
        let began = settings::now();
        let mut tries = 0;
        loop {
            if self.is_late() {
                return Ok(End::Later);
            }
            let attempt = self.intents.get() + 1;
            self.intents.set(attempt);
            let key = &self.session.key;
            let token = client_token(
                &self.session.nonce,
                key.stack.as_str(),
                &call.logical_id,
                call.operation,
                attempt,
            );
            let mut body = call.body.clone();
            let mut then = call.then.clone();
            if call.operation == Operation::Create
                && let Some(schema) = schema::lookup(&call.type_name)
            {
                let mark = token.get(..16).unwrap_or(&token);
                note_mark(&mut then, mark);
                body = cdkd_core::plan::mark(&schema, body, key.stack.as_str(), &call.logical_id, mark);
            }
            let intent = Intent {
                id: format!("{attempt}"),
                logical_id: call.logical_id.clone(),
                operation: call.operation,
                type_name: call.type_name.clone(),
                part: call.part.clone(),
                identifier: call.identifier.clone(),
                body: Node::literal(&body).to_document(),
                then,
                client_token: token,
                at: settings::now(),
            };
            self.session.journal.append(vec![Entry::Intent(intent.clone())]).await?;
            let error = match self.send(&intent).await {
                Ok(end) => {
                    if end == End::Done {
                        self.limiter.borrow_mut().succeeded();
                    }
                    return Ok(end);
                }
                Err(error) => error,
            };
            tries += 1;
            let code = error.details().get("awsCode").and_then(Value::as_str).unwrap_or_default().to_owned();
            let wait = match again(&code, error.message()) {
                Again::Throttled if tries < TRIES => {
                    self.limiter.borrow_mut().throttled();
                    backoff(tries)
                }
                Again::Busy if tries < TRIES => backoff(tries),
                Again::Propagating if settings::now() - began < PROPAGATION => 2000,
                _ => return Err(error),
            };
            self.pause(settings::jitter(Duration::from_millis(wait))).await;
        }
    }

    /// Sends a call whose intent is stored, again and again under the same token until it is answered.
    async fn send(&self, intent: &Intent) -> Result<End> {
        let cloud = &self.cloud;
        let live = live(intent)?;
        let identifier = intent.identifier.as_deref().unwrap_or_default();
        let mut tries = 0;
        loop {
            let answer = match intent.operation {
                Operation::Create => cloud.create(&intent.type_name, &live, &intent.client_token).await,
                Operation::Update => {
                    cloud.update(&intent.type_name, identifier, &live, &intent.client_token).await
                }
                Operation::Delete => cloud.delete(&intent.type_name, identifier, &intent.client_token).await,
            };
            let refused = match answer {
                Ok(progress) => return self.accepted(intent, progress).await,
                Err(refused) => refused,
            };
            if refused.unknown && !refused.throttled {
                tries += 1;
                if self.is_late() {
                    return Ok(End::Later);
                }
                if tries >= TRIES {
                    return Err(refused.error);
                }
                self.pause(settings::jitter(Duration::from_millis(backoff(tries)))).await;
                continue;
            }
            return self.refused(intent, &refused).await;
        }
    }

    /// The call was answered with a refusal.
    async fn refused(&self, intent: &Intent, refused: &Refused) -> Result<End> {
        if intent.operation == Operation::Delete && refused.code == "ResourceNotFoundException" {
            return self.done(intent, intent.identifier.as_deref().unwrap_or_default(), None).await;
        }
        let failed = Outcome::Failed { code: refused.code.clone(), message: refused.message.clone() };
        self.outcome(&intent.id, failed).await?;
        Err(failure(&self.session.key, intent, &refused.code, &refused.message))
    }

    /// Cloud Control took the call.
    async fn accepted(&self, intent: &Intent, progress: Progress) -> Result<End> {
        if progress.status != Status::InProgress {
            return self.finished(intent, progress).await;
        }
        let accepted = Entry::Accepted {
            id: intent.id.clone(),
            request_token: progress.request_token.clone(),
            identifier: progress.identifier.clone(),
        };
        self.session.journal.append(vec![accepted]).await?;
        self.follow(intent, progress.request_token, progress.identifier).await
    }

    /// Asks until the request has come to its end. A failed question is asked again, nothing is sent again (P1).
    async fn follow(
        &self,
        intent: &Intent,
        request_token: String,
        mut identifier: Option<String>,
    ) -> Result<End> {
        let cloud = &self.cloud;
        let mut wait = 100;
        let mut silent = 0;
        loop {
            self.pause(Duration::from_millis(wait)).await;
            if self.is_late() {
                return Ok(End::Later);
            }
            match cloud.status(&request_token).await {
                Ok(mut progress) => {
                    silent = 0;
                    identifier = progress.identifier.take().or(identifier);
                    progress.identifier.clone_from(&identifier);
                    if progress.status != Status::InProgress {
                        return self.finished(intent, progress).await;
                    }
                    let hint = progress.retry_after.map_or(0, |at| at - settings::now());
                    wait = (wait * 3 / 2).min(5000).max(u64::try_from(hint.clamp(0, 30_000)).unwrap_or(0));
                }
                Err(refused) if refused.throttled || refused.unknown => {
                    silent += 1;
                    if refused.throttled {
                        self.limiter.borrow_mut().throttled();
                    }
                    wait =
                        u64::try_from(settings::jitter(Duration::from_millis(backoff(silent))).as_millis())
                            .unwrap_or(1000);
                }
                Err(refused) if refused.code == "RequestTokenNotFoundException" => {
                    // Forgotten after seven days. A delete is planned anew: what is gone then counts as deleted.
                    return match intent.operation {
                        Operation::Delete => self.not_sent(intent).await,
                        Operation::Create | Operation::Update => Err(unknown(intent)),
                    };
                }
                Err(refused) => return Err(refused.error),
            }
        }
    }

    /// The request has come to its end.
    async fn finished(&self, intent: &Intent, progress: Progress) -> Result<End> {
        let identifier =
            progress.identifier.clone().or_else(|| intent.identifier.clone()).unwrap_or_default();
        match progress.status {
            Status::Failed { code, .. } if intent.operation == Operation::Delete && code == "NotFound" => {
                // What is not there is deleted (rule P4).
                self.done(intent, &identifier, None).await
            }
            Status::Failed { code, message } => {
                // A thing that a row holds is no remnant (rule P11).
                let held = |left: &PendingDelete| {
                    self.record.borrow().rows().any(|(_, row)| row.is_same_thing(&left.row))
                };
                let left = remnant(intent, &identifier, &code).filter(|left| !held(left));
                let changes: Vec<Change> = left.iter().cloned().map(Change::Later).collect();
                let outcome = Outcome::Failed { code: code.clone(), message: message.clone() };
                let mut entries = vec![Entry::Outcome { id: intent.id.clone(), outcome }];
                entries.extend(changes.iter().cloned().map(Entry::Change));
                self.session.journal.append(entries).await?;
                self.apply(&changes);
                if let Some(left) = left {
                    self.clear_remnant(intent, &identifier, left).await?;
                }
                Err(failure(&self.session.key, intent, &code, &message))
            }
            _ if intent.operation == Operation::Delete => self.done(intent, &identifier, None).await,
            _ => {
                let attributes = if intent.part.is_empty() {
                    Some(self.attributes(intent, &identifier, progress.model).await?)
                } else {
                    None
                };
                self.done(intent, &identifier, attributes).await
            }
        }
    }

    async fn done(
        &self,
        intent: &Intent,
        identifier: &str,
        attributes: Option<Map<String, Value>>,
    ) -> Result<End> {
        let changes = completed(intent, identifier, attributes.as_ref());
        let mut entries = vec![Entry::Outcome {
            id: intent.id.clone(),
            outcome: Outcome::Done { identifier: identifier.to_owned() },
        }];
        entries.extend(changes.iter().cloned().map(Entry::Change));
        self.session.journal.append(entries).await?;
        self.apply(&changes);
        Ok(End::Done)
    }

    async fn outcome(&self, id: &str, outcome: Outcome) -> Result<()> {
        self.session.journal.append(vec![Entry::Outcome { id: id.to_owned(), outcome }]).await
    }

    /// A create failed after making the thing: it is deleted again (rule P2). The first error is the one reported; what
    /// cannot be deleted now is on record, for the next run to delete.
    async fn clear_remnant(&self, intent: &Intent, identifier: &str, left: PendingDelete) -> Result<()> {
        let call = Call {
            logical_id: intent.logical_id.clone(),
            operation: Operation::Delete,
            type_name: intent.type_name.clone(),
            part: intent.part.clone(),
            identifier: Some(identifier.to_owned()),
            body: Value::Null,
            then: vec![Change::Forget(left)],
        };
        match Box::pin(self.call(call)).await {
            Err(error) if matches!(error.code(), Code::LockLostError) => Err(error),
            Err(error) => {
                tracing::warn!(
                    logical_id = intent.logical_id,
                    identifier,
                    error = error.message(),
                    "what a failed create left could not be deleted"
                );
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// What `Fn::GetAtt` may ask for later: what AWS set, and what names the resource. Minted secrets are masked.
    async fn attributes(
        &self,
        intent: &Intent,
        identifier: &str,
        model: Option<Value>,
    ) -> Result<Map<String, Value>> {
        let Some(schema) = schema::lookup(&intent.type_name) else { return Ok(Map::new()) };
        let complete = |model: &Value| schema.read_only.iter().all(|path| model.get(path.top()).is_some());
        let model = match model {
            Some(model) if complete(&model) => model,
            _ => self.read(&intent.type_name, identifier).await?.unwrap_or_default(),
        };
        Ok(attributes(&schema, &model))
    }

    async fn read(&self, type_name: &str, identifier: &str) -> Result<Option<Value>> {
        let cloud = &self.cloud;
        let mut tries = 0;
        loop {
            match cloud.read(type_name, identifier).await {
                Ok(model) => return Ok(model),
                Err(refused) if (refused.throttled || refused.unknown) && tries < 5 && !self.is_late() => {
                    tries += 1;
                    self.pause(settings::jitter(Duration::from_millis(backoff(tries)))).await;
                }
                Err(refused) => return Err(refused.error),
            }
        }
    }

    /// Sleeps, but not past the end of the slice.
    async fn pause(&self, wait: Duration) {
        tokio::time::sleep(wait.min(self.session.invocation.left(self.margin))).await;
    }
}

/// The row remembers the mark of its create: an update of the tags sends it again.
fn note_mark(then: &mut [Change], mark: &str) {
    for change in then {
        if let Change::Put { row, .. } = change {
            row.set_own("token", json!(mark));
        }
    }
}

/// The attributes that are kept of a model.
fn attributes(schema: &TypeSchema, model: &Value) -> Map<String, Value> {
    let mut kept = Map::new();
    let names = schema
        .read_only
        .iter()
        .chain(&schema.primary_identifier)
        .chain(schema.additional_identifiers.iter().flatten())
        .map(schema::PropertyPath::top);
    let own = schema.name.iter().map(|rule| rule.property.as_str());
    for name in names.chain(own) {
        let hidden = schema.is_write_only(&schema::PropertyPath::new([name]));
        if let Some(value) = model.get(name).filter(|_| !hidden) {
            kept.entry(name.to_owned()).or_insert_with(|| value.clone());
        }
    }
    for name in schema::minted_secrets(&schema.type_name) {
        if let Some(value) = kept.get_mut(*name) {
            *value = json!("***");
        }
    }
    kept
}

/// The live form of a call's body: made here, in memory, for this call alone.
fn live(intent: &Intent) -> Result<String> {
    let node = Node::from_document(&intent.body)?;
    if let Some(secret) = node.secrets().first() {
        return Err(Error::new(
            Code::UnsupportedIntrinsic,
            format!("the dynamic reference `{}` cannot be resolved by this release", secret.token),
        ));
    }
    let value = node.stored().map_err(|reason| {
        Error::new(Code::InternalError, format!("a value of `{}` is not known: {reason}", intent.logical_id))
    })?;
    Ok(value.to_string())
}

enum Again {
    Throttled,
    /// Another operation on the resource is in progress.
    Busy,
    /// A role or policy of this run is not visible everywhere yet.
    Propagating,
    No,
}

/// Whether a call that failed is worth another, by the code of the call or of the event.
fn again(code: &str, message: &str) -> Again {
    match code {
        "Throttling" | "ThrottlingException" | "TooManyRequestsException" | "RequestLimitExceeded" => {
            Again::Throttled
        }
        "ConcurrentOperationException"
        | "ConcurrentModificationException"
        | "NetworkFailure"
        | "ServiceInternalError"
        | "InternalFailure"
        | "HandlerInternalFailureException" => Again::Busy,
        _ if [
            "cannot be assumed",
            "Invalid principal in policy",
            "is not authorized to perform: sts:AssumeRole",
        ]
        .iter()
        .any(|sign| message.contains(sign)) =>
        {
            Again::Propagating
        }
        _ => Again::No,
    }
}

fn failure(key: &RecordKey, intent: &Intent, code: &str, message: &str) -> Error {
    let hint = match code {
        "AlreadyExists" => "something of that name exists that this stack did not make: rename one of them",
        "AccessDenied" | "UnauthorizedTaggingOperation" | "AccessDeniedException" => {
            "give the role `cdkd-exec` the permission (parameter `ExecPolicies` of the installation)"
        }
        "InvalidRequest" | "ValidationException" => "correct the property that the message names",
        "ServiceLimitExceeded" => "raise the quota, or delete what is not needed",
        _ => "the message is of the service; correct the cause and start the execution again",
    };
    let (path, logical_id) = parts(&intent.logical_id);
    // A nested stack is named by its record (rule E8).
    let nested = (!path.is_empty()).then(|| key_of(key, path).stack);
    let of = nested.as_ref().map(|stack| format!(" of nested stack `{stack}`")).unwrap_or_default();
    let error = Error::new(
        Code::ProvisioningFailed,
        format!(
            "could not {} `{logical_id}`{of} ({}): {code}: {message}",
            intent.operation.name(),
            intent.type_name
        ),
    )
    .hint(hint)
    .detail("logicalId", logical_id)
    .detail("type", intent.type_name.as_str())
    .detail("operation", intent.operation.name())
    .detail("awsCode", code);
    match nested {
        Some(stack) => error.detail("nestedStack", stack.as_str()),
        None => error,
    }
}

fn unknown(intent: &Intent) -> Error {
    Error::new(
        Code::UnknownOutcome,
        format!(
            "an earlier run meant to {} `{}` ({}), and nothing tells any more whether that happened",
            intent.operation.name(),
            intent.logical_id,
            intent.type_name
        ),
    )
    .hint("look for the resource by its tag `cdkd:logical-id`; delete it or bring it under its name, then remove the journal of the stack")
    .detail("logicalId", intent.logical_id.as_str())
    .detail("type", intent.type_name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p7_throttling_inside_a_failed_event_is_throttling() {
        assert!(matches!(again("Throttling", "Rate exceeded"), Again::Throttled));
        assert!(matches!(again("ThrottlingException", ""), Again::Throttled));
        assert!(matches!(again("ConcurrentOperationException", ""), Again::Busy));
        assert!(matches!(again("InvalidRequest", "role cannot be assumed by Lambda"), Again::Propagating));
        assert!(matches!(again("InvalidRequest", "bad"), Again::No));
        assert!(matches!(again("AlreadyExists", ""), Again::No));
    }

    #[test]
    fn s16_attributes_are_what_aws_set_and_minted_secrets_are_masked() {
        let queue = schema::lookup("AWS::SQS::Queue").unwrap();
        let model = json!({"QueueUrl": "u", "Arn": "a", "QueueName": "n", "VisibilityTimeout": 30});
        let kept = attributes(&queue, &model);
        assert_eq!(Value::Object(kept), json!({"Arn": "a", "QueueUrl": "u", "QueueName": "n"}));
        let client = schema::lookup("AWS::Cognito::UserPoolClient").unwrap();
        let model = json!({"ClientId": "c", "ClientSecret": "s3cr3t", "UserPoolId": "p"});
        assert_eq!(attributes(&client, &model)["ClientSecret"], "***");
    }
}
