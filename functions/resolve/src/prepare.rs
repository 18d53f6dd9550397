//! `prepare`: what consumers outside of the run forbid is refused before anything of it is touched.

use std::collections::BTreeMap;

use cdkd_aws::edge::Invocation;
use cdkd_aws::protocol::drive;
use cdkd_aws::references::View;
use cdkd_aws::run::RunDocument;
use cdkd_aws::stack::{Run, Session, StackRef};
use cdkd_core::name::RecordKey;
use cdkd_core::protocol::handshake::{Handshake, Looked, Part, Takes};
use cdkd_core::references::exports::Why;
use cdkd_core::references::forecast::Forecast;
use cdkd_core::references::handshake::GivenUp;
use cdkd_core::references::run::id;
use cdkd_core::references::scan::{self, Consumer, Intent as Scanned};
use cdkd_core::state::Record;
use cdkd_core::state::tree::key_of;
use cdkd_core::{Code, Error, Kind, Result};
use futures::StreamExt as _;
use serde_json::{Map, Value, json};

use crate::intent::{Hall, Side, is_inside};
use crate::stack::{Planned, Stack, on_record};

/// Stacks at work at once: each reads and writes a handful of documents.
const AT_ONCE: usize = 16;

/// What `prepare` found, for the steps of each stack.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Prepared {
    /// Exports that stacks of the run take away.
    pub given_up: GivenUp,
    pub stacks: BTreeMap<String, OfStack>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OfStack {
    /// Exports that stay until the clean-up, since other stacks of the run import them on record.
    pub held: Vec<String>,
    pub warnings: Vec<String>,
}

impl Prepared {
    pub async fn load(invocation: &Invocation, run: &Run) -> Result<Self> {
        let document = invocation.read_run(&run.document("prepared.json")).await?;
        if document["execution"] != run.execution.as_str() {
            return Err(Error::new(Code::InvalidState, "the run was not prepared"));
        }
        Ok(Self::from_document(&document))
    }

    async fn write(&self, invocation: &Invocation, run: &Run) -> Result<()> {
        let mut document = self.to_document();
        document["execution"] = json!(run.execution);
        invocation.write_run(&run.document("prepared.json"), &document).await
    }

    pub fn of(&self, key: &RecordKey) -> OfStack {
        self.stacks.get(&id(key)).cloned().unwrap_or_default()
    }

    fn to_document(&self) -> Value {
        let given_up: Vec<Value> = self
            .given_up
            .iter()
            .map(|(key, name)| {
                json!({ "stack": key.stack.as_str(), "region": key.region.as_str(), "export": name })
            })
            .collect();
        let stacks: Map<String, Value> = self
            .stacks
            .iter()
            .map(|(id, of)| (id.clone(), json!({ "held": of.held, "warnings": of.warnings })))
            .collect();
        json!({ "givenUp": given_up, "stacks": stacks })
    }

    fn from_document(document: &Value) -> Self {
        let strings = |list: &Value| -> Vec<String> {
            list.as_array().into_iter().flatten().filter_map(|it| it.as_str().map(str::to_owned)).collect()
        };
        let given_up = document["givenUp"].as_array().into_iter().flatten().filter_map(|entry| {
            let key = RecordKey::parse(entry["stack"].as_str()?, entry["region"].as_str()?).ok()?;
            Some((key, entry["export"].as_str()?.to_owned()))
        });
        let stacks = document["stacks"].as_object().into_iter().flatten().map(|(id, of)| {
            (id.clone(), OfStack { held: strings(&of["held"]), warnings: strings(&of["warnings"]) })
        });
        Self { given_up: given_up.collect(), stacks: stacks.collect() }
    }
}

/// The plans of a whole deploy, each as if those before it were carried out.
pub(crate) struct Outlook<'a> {
    pub stacks: Vec<(Stack, Planned)>,
    pub given_up: GivenUp,
    view: View<'a>,
    keys: Vec<RecordKey>,
}

impl<'a> Outlook<'a> {
    /// # Errors
    /// What is wrong with any of the stacks, all at once.
    pub async fn new(
        invocation: &'a Invocation,
        run: &Run,
        document: &RunDocument,
        keys: Vec<RecordKey>,
    ) -> Result<Self> {
        let view = View::new(invocation);
        let stacks = all(each(&keys, |key| Stack::load(invocation, run, key, document)).await)?;
        let mut forecast = Forecast::default();
        for stack in &stacks {
            for (key, before, names) in stack.names()? {
                forecast.add(&key, before.as_ref(), names.iter().map(String::as_str));
            }
        }
        forecast.check()?;
        let given_up = forecast.given_up();
        let mut planned = Vec::new();
        for stack in stacks {
            let plan = match view.import(&stack.key, &stack.reads, &forecast, &given_up).await {
                Ok(imported) => stack.plan(imported),
                Err(error) => Err(error),
            };
            match &plan {
                Ok(plan) => {
                    for (path, part) in &plan.parts {
                        forecast.plan(&key_of(&stack.key, path), &part.listing);
                    }
                }
                Err(_) => forecast.fail(&stack.key),
            }
            planned.push(plan.map(|plan| (stack, plan)));
        }
        Ok(Self { stacks: all(planned)?, given_up, view, keys })
    }

    /// Looks for what others forbid a stack to do, and for what has to wait for others of the run.
    ///
    /// # Errors
    /// Each of what refuses it, in the order of its weight.
    async fn look(&self, stack: &Stack, planned: &Planned) -> (OfStack, Vec<Error>) {
        let (key, difference) = (&stack.key, planned.difference());
        let (mut of, mut errors) = (OfStack::default(), Vec::new());
        for (path, part) in &planned.parts {
            let claims = &part.difference.claims;
            errors.extend(self.view.check_claims(&key_of(key, path), claims, &self.given_up).await.err());
        }
        let lost = difference.lost();
        if lost.is_empty() {
            return (of, errors);
        }
        let names: Vec<String> = lost.iter().map(|withdrawal| withdrawal.name.clone()).collect();
        match self.view.consumers(key, Some(&names)).await {
            Ok(found) => {
                let inside = |consumer: &Consumer| is_inside(&self.keys, consumer);
                let within = found.exports_within(inside);
                of.held.extend(
                    difference
                        .withdrawn
                        .iter()
                        .filter(|gone| gone.why == Why::NotExported && within.contains(&gone.name))
                        .map(|gone| gone.name.clone()),
                );
                errors.extend(scan::refuse(key, &found.without(inside), Scanned::Withdraw(&lost)).err());
            }
            Err(error) => errors.push(error),
        }
        (of, errors)
    }

    /// What a deploy would refuse becomes a warning: the dry run shows the plan all the same.
    pub async fn warn(&mut self) {
        let mut found = Vec::new();
        for (stack, planned) in &self.stacks {
            found.push(self.look(stack, planned).await);
        }
        for ((_, planned), (of, errors)) in self.stacks.iter_mut().zip(found) {
            planned.plan.held = of.held;
            let refused =
                errors.iter().map(|error| format!("a deploy would be refused: {}", error.message()));
            planned.plan.warnings.extend(refused);
        }
    }
}

/// Plans all stacks, and refuses what a deploy of any of them is not to do. It writes to the runs bucket alone.
pub(crate) async fn deploy(invocation: &Invocation, run: &Run, stacks: &[StackRef]) -> Result<()> {
    let mut prepared = Prepared::default();
    // One stack alone is refused by its own `resolve`, before anything is touched.
    if stacks.len() > 1 {
        let document = RunDocument::load(invocation, run).await?;
        let keys = stacks.iter().map(StackRef::key).collect::<Result<Vec<_>>>()?;
        let outlook = Outlook::new(invocation, run, &document, keys).await?;
        let mut refused = Vec::new();
        for (stack, planned) in &outlook.stacks {
            let (of, errors) = outlook.look(stack, planned).await;
            refused.extend(errors);
            if !of.held.is_empty() {
                prepared.stacks.insert(id(&stack.key), of);
            }
        }
        scan::together(refused)?;
        prepared.given_up = outlook.given_up;
    }
    prepared.write(invocation, run).await
}

/// Withdraws the exports of all stacks, then scans for consumers outside of the run: its later stacks are not to be
/// refused when the first are gone. A refusal leaves every record as it was found.
pub(crate) async fn destroy(invocation: &Invocation, run: &Run, stacks: &[StackRef]) -> Result<()> {
    let keys = stacks.iter().map(StackRef::key).collect::<Result<Vec<_>>>()?;
    let records = all(each(&keys, |key| on_record(invocation, run, key)).await)?;
    let protected =
        keys.iter().zip(&records).filter_map(|(key, record)| protection(key, record.root.as_ref()?));
    Error::all(protected.collect())?;

    let entered = each(stacks, |stack| Session::enter(invocation, run, stack)).await;
    let (mut sessions, mut errors) = (Vec::new(), Vec::new());
    for one in entered {
        match one {
            Ok(session) => sessions.push(session),
            Err(error) => errors.push(error),
        }
    }
    let outcome = match first(errors) {
        None => shake(invocation, run, &keys, &sessions).await,
        Some(error) => Err(error),
    };
    let left =
        each(&sessions, |session| async move { session.closing(session.leave(true).await).await }).await;
    let prepared = outcome?;
    if let Some(error) = first(left.into_iter().filter_map(Result::err).collect()) {
        return Err(error);
    }
    prepared.write(invocation, run).await
}

async fn shake(
    invocation: &Invocation,
    run: &Run,
    keys: &[RecordKey],
    sessions: &[Session],
) -> Result<Prepared> {
    let sides = all(each(sessions, |session| Side::open(session, None)).await)?;
    let parts = keys.iter().map(|key| Part {
        key: key.clone(),
        sources: Vec::new(),
        claims: Vec::new(),
        takes: Takes::All,
    });
    let handshake = Handshake::new(parts.collect(), keys.iter().cloned(), GivenUp::new());
    let looked = drive(&Hall::new(invocation, run, sides), handshake).await?;
    let of = |Looked { warnings, .. }| OfStack { warnings, ..OfStack::default() };
    let stacks = keys.iter().map(id).zip(looked.into_iter().map(of)).collect();
    Ok(Prepared { stacks, ..Prepared::default() })
}

fn protection(key: &RecordKey, record: &Record) -> Option<Error> {
    record.deploy().is_some_and(|deploy| deploy.termination_protection).then(|| {
        Error::new(Code::TerminationProtected, format!("{key} is protected against termination"))
            .hint("deploy it with `terminationProtection: false`, then destroy it")
            .detail("stack", key.stack.as_str())
    })
}

/// Does the same with each, several at a time, and answers in their order.
async fn each<'i, T, F: Future>(items: &'i [T], work: impl FnMut(&'i T) -> F) -> Vec<F::Output> {
    futures::stream::iter(items.iter().map(work)).buffered(AT_ONCE).collect().await
}

/// All of them, or what is wrong with any: what may pass by itself first, since then the whole is tried again.
fn all<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let (mut values, mut errors) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(error) => errors.push(error),
        }
    }
    if let Some(error) = errors.iter().find(|error| error.kind() == Kind::Retryable) {
        return Err(error.clone());
    }
    Error::all(errors)?;
    Ok(values)
}

fn first(mut errors: Vec<Error>) -> Option<Error> {
    errors.sort_by_key(|error| error.kind() != Kind::Retryable);
    errors.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_prepared_is_read_back() {
        let key = RecordKey::parse("P", "us-east-1").unwrap();
        let held = OfStack { held: vec!["X".into()], warnings: vec!["w".into()] };
        let prepared = Prepared {
            given_up: [(key.clone(), "X".to_owned())].into(),
            stacks: [(id(&key), held.clone())].into(),
        };
        let document = prepared.to_document();
        assert_eq!(document["givenUp"], json!([{"stack": "P", "region": "us-east-1", "export": "X"}]));
        assert_eq!(document["stacks"]["P/us-east-1"]["held"], json!(["X"]));
        assert_eq!(Prepared::from_document(&document), prepared);
        assert_eq!(prepared.of(&key), held);
        let far = RecordKey::parse("P", "eu-west-1").unwrap();
        assert_eq!(prepared.of(&far), OfStack::default());
    }

    #[test]
    fn what_may_pass_by_itself_comes_first() {
        let error = |code: Code| Error::new(code, code.name());
        let errors = vec![error(Code::InvalidTemplate), error(Code::Throttled)];
        assert_eq!(first(errors.clone()).unwrap().code(), Code::Throttled);
        let results: Vec<Result<()>> = errors.into_iter().map(Err).collect();
        assert_eq!(all(results).unwrap_err().code(), Code::Throttled);
        let two: Vec<Result<()>> = vec![Err(error(Code::InvalidTemplate)), Err(error(Code::ExportNotFound))];
        assert_eq!(all(two).unwrap_err().details()["errors"][1]["code"], "ExportNotFound");
        assert_eq!(all(vec![Ok(1), Ok(2)]), Ok(vec![1, 2]));
    }

    #[test]
    fn p13_a_protected_stack_is_not_destroyed() {
        let key = RecordKey::parse("P", "us-east-1").unwrap();
        let record = |protected: bool| {
            let body = json!({
                "version": 9, "stackName": "P", "region": "us-east-1",
                "deploy": {"stackId": "id", "terminationProtection": protected},
            });
            Record::parse(body.to_string().as_bytes(), &key).unwrap()
        };
        assert_eq!(protection(&key, &record(false)), None);
        assert_eq!(protection(&key, &record(true)).unwrap().code(), Code::TerminationProtected);
    }
}
