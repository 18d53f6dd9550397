//! `finish`: the run is through, whether every stack is or not. Its result is written, and told.

use std::collections::BTreeSet;

use cdkd_aws::edge::Invocation;
use cdkd_aws::run::RunDocument;
use cdkd_aws::stack::{Run, StackRef};
use cdkd_core::Result;
use cdkd_core::name::RecordKey;
use cdkd_core::protocol::ending;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::abort::{Failure, explain};
use crate::commit::done;
use crate::each;

/// Items of a list that an answer tells; the result has all (rule F8).
const TOLD: usize = 20;

#[derive(Deserialize)]
pub(crate) struct Event {
    run: Run,
    /// One for each stack, in the order of the levels.
    rows: Vec<Value>,
    error: Option<Failure>,
}

pub(crate) async fn finish(event: Event, invocation: &Invocation) -> Result<Value> {
    let Event { run, rows, error } = event;
    let document = RunDocument::load(invocation, &run).await?;
    let ended = each(&rows, |row| part(invocation, &run, row)).await;
    let ended = ended.into_iter().collect::<Result<Vec<_>>>()?;
    let ending = Ending { run: &run, document: Some(&document), rows: &rows, ended: &ended };
    if let Some(error) = error.as_ref().map(explain) {
        ending.write(invocation, None, Some(&error.cause())).await?;
        let cause = ending::cause(&error, &rows, ending::CAUSE);
        return Ok(json!({ "error": error.code().name(), "cause": cause }));
    }
    let answer = ending.answer();
    ending.write(invocation, Some(&answer), None).await?;
    Ok(json!({ "answer": answer }))
}

/// How the run's part in the stack of a row ended; of one that could not be aborted, what was done there.
async fn part(invocation: &Invocation, run: &Run, row: &Value) -> Result<Option<Value>> {
    let key = RecordKey::parse(
        row["stack"].as_str().unwrap_or_default(),
        row["region"].as_str().unwrap_or_default(),
    )?;
    if let Some(ended) = ended(invocation, run, &key).await? {
        return Ok(Some(ended));
    }
    if row["outcome"] == "notStarted" {
        return Ok(None);
    }
    let stack = StackRef { stack: key.stack.to_string(), region: key.region.to_string(), nonce: None };
    Ok(Some(json!({ "steps": done(invocation, run, &stack).await? })))
}

/// `ended.json` of a stack, if this execution has written it.
pub(crate) async fn ended(invocation: &Invocation, run: &Run, key: &RecordKey) -> Result<Option<Value>> {
    own(invocation, run, &run.stack_document(key, "ended.json")).await
}

/// A document of this execution; one of the other state machine may have had the same name.
pub(crate) async fn own(invocation: &Invocation, run: &Run, key: &str) -> Result<Option<Value>> {
    let object = invocation.aws.store.get(&invocation.settings.runs_bucket, key).await?;
    let document: Option<Value> = object.and_then(|object| serde_json::from_slice(&object.body).ok());
    Ok(document.filter(|document| document["execution"] == run.execution.as_str()))
}

/// How a run ended: the row of each stack, and beside it what is known of its part.
pub(crate) struct Ending<'a> {
    pub run: &'a Run,
    pub document: Option<&'a RunDocument>,
    pub rows: &'a [Value],
    pub ended: &'a [Option<Value>],
}

impl Ending<'_> {
    /// Writes `result.json`: the same whenever it is tried again.
    pub(crate) async fn write(
        &self,
        invocation: &Invocation,
        answer: Option<&Value>,
        error: Option<&Value>,
    ) -> Result<()> {
        let result = self.result(answer, error);
        invocation.write_run(&self.run.document("result.json"), &result).await
    }

    fn result(&self, answer: Option<&Value>, error: Option<&Value>) -> Value {
        let mut result = Map::new();
        result.insert("run".into(), json!(self.run));
        if let Some(answer) = answer {
            result.insert("answer".into(), answer.clone());
        }
        result.insert("outcome".into(), json!(self.outcome(error.is_some())));
        let stacks = self.rows.iter().zip(self.ended).map(|(row, ended)| whole(row, ended.as_ref()));
        result.insert("stacks".into(), stacks.collect());
        result.insert("notices".into(), json!(self.notices()));
        result.insert("warnings".into(), json!(self.warnings()));
        if let Some(error) = error {
            result.insert("error".into(), error.clone());
        }
        Value::Object(result)
    }

    /// The answer of an execution that succeeded.
    fn answer(&self) -> Value {
        let first = |list: Vec<String>| list.into_iter().take(TOLD).collect::<Vec<_>>();
        json!({
            "outcome": self.outcome(false),
            "stacks": self.rows,
            "notices": first(self.notices()),
            "warnings": first(self.warnings()),
            "result": self.run.document("result.json"),
        })
    }

    fn outcome(&self, failed: bool) -> &'static str {
        ending::outcome(&self.run.operation, self.rows, failed)
    }

    fn notices(&self) -> Vec<String> {
        self.document.map(RunDocument::notices).unwrap_or_default()
    }

    /// Those of the run and of every stack, each once.
    fn warnings(&self) -> Vec<String> {
        let of_run = self.document.map(RunDocument::warnings).unwrap_or_default();
        let of_stacks = self.ended.iter().flatten().filter_map(|ended| ended["warnings"].as_array());
        let of_stacks = of_stacks.flatten().filter_map(|warning| warning.as_str().map(str::to_owned));
        let mut seen = BTreeSet::new();
        of_run.into_iter().chain(of_stacks).filter(|warning| seen.insert(warning.clone())).collect()
    }
}

/// A row with what is too long for an answer.
fn whole(row: &Value, ended: Option<&Value>) -> Value {
    let mut whole = row.as_object().cloned().unwrap_or_default();
    for field in ["outputs", "steps", "error"] {
        if let Some(value) = ended.and_then(|ended| ended.get(field)) {
            whole.insert(field.to_owned(), value.clone());
        }
    }
    Value::Object(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f8_the_answer_has_the_rows_and_the_first_of_each_list_and_the_result_has_all() {
        let run =
            Run { execution: "arn:e".into(), name: "e".into(), operation: "deploy".into(), dry_run: false };
        let warnings: Vec<String> = (0..15).map(|at| format!("w{at}")).collect();
        let more: Vec<String> = (10..30).map(|at| format!("w{at}")).collect();
        let rows: Vec<Value> = (0..30)
            .map(|at| json!({"stack": format!("S{at}"), "region": "r", "outcome": "unchanged", "counts": {}}))
            .collect();
        let mut ended = vec![None; 30];
        ended[0] = Some(json!({"row": {}, "warnings": warnings, "outputs": {"O": "v"}, "steps": []}));
        ended[29] = Some(json!({"row": {}, "warnings": more, "steps": [1], "error": {"code": "X"}}));
        let ending = Ending { run: &run, document: None, rows: &rows, ended: &ended };
        let answer = ending.answer();
        assert_eq!(answer["outcome"], "unchanged");
        assert_eq!(answer["result"], "runs/e/result.json");
        assert_eq!(answer["stacks"], json!(rows));
        assert_eq!(answer["warnings"].as_array().unwrap().len(), 20);
        let result = ending.result(Some(&answer), None);
        assert_eq!(result["warnings"].as_array().unwrap().len(), 30, "each once");
        let mut first = rows[0].clone();
        first["outputs"] = json!({"O": "v"});
        first["steps"] = json!([]);
        assert_eq!(result["stacks"][0], first);
        assert_eq!(result["stacks"][1], rows[1]);
        assert_eq!(result["stacks"][29]["error"], json!({"code": "X"}));
        assert_eq!((&result["answer"], result.get("error")), (&answer, None));
        let failed = ending.result(None, Some(&json!({"code": "Y"})));
        assert_eq!(
            (&failed["outcome"], &failed["error"]["code"], failed.get("answer")),
            (&json!("failed"), &json!("Y"), None)
        );
    }
}
