//! An execution that has ended.

use cdkd_test_support::Outcome;
use serde_json::Value;

/// What a state's input or output may have (rule F1).
const LIMIT: usize = 200 * 1024;

/// An execution and how it ended.
#[derive(Debug)]
pub struct Run {
    pub execution: String,
    pub outcome: Outcome,
    pub seconds: f64,
    pub history: Vec<Value>,
}

impl Run {
    /// Its name, under which its documents lie.
    pub fn name(&self) -> &str {
        self.execution.rsplit(':').next().unwrap_or_default()
    }

    /// The answer of an execution that succeeded.
    #[track_caller]
    pub fn answer(&self) -> Value {
        self.outcome.output.clone().unwrap_or_else(|| panic!("no answer: {}", self.outcome))
    }

    /// `deployed`, `unchanged`, …
    #[track_caller]
    pub fn word(&self) -> String {
        self.answer()["outcome"].as_str().unwrap_or_default().to_owned()
    }

    /// `stack outcome` of each, in the order of the run.
    #[track_caller]
    pub fn outcomes(&self) -> Vec<String> {
        let rows = match &self.outcome.output {
            Some(answer) => answer["stacks"].clone(),
            None => self.outcome.cause_json()["details"]["stacks"].clone(),
        };
        let rows = rows.as_array().cloned().unwrap_or_else(|| panic!("no rows: {}", self.outcome));
        let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
        rows.iter().map(|row| format!("{} {}", text(row, "stack"), text(row, "outcome"))).collect()
    }

    /// Expects a failure of this code, and returns the cause.
    #[track_caller]
    pub fn refused(&self, code: &str) -> Value {
        assert_eq!(self.outcome.status, "FAILED", "{}", self.outcome);
        assert_eq!(self.outcome.error.as_deref(), Some(code), "{}", self.outcome);
        let cause = self.outcome.cause_json();
        assert_eq!(cause["code"], code, "{}", self.outcome);
        assert!(cause["message"].as_str().is_some_and(|text| !text.is_empty()), "{cause}");
        assert!(cause["details"].is_object(), "{cause}");
        cause
    }

    /// The most bytes that an event of the history carries.
    pub fn largest_payload(&self) -> usize {
        let mut most = 0;
        for event in &self.history {
            texts(event, &mut |text| most = most.max(text.len()));
        }
        most
    }

    /// F1: no state's input or output over 200 KB.
    #[track_caller]
    pub(crate) fn check_payloads(&self) {
        assert!(self.largest_payload() <= LIMIT, "an event carries {} bytes", self.largest_payload());
    }

    /// Whether a text stands anywhere in input, output, cause or history.
    pub fn says(&self, text: &str) -> bool {
        let mut said = false;
        for event in &self.history {
            texts(event, &mut |it| said |= it.contains(text));
        }
        let outcome = format!("{:?} {:?}", self.outcome.output, self.outcome.cause);
        said || outcome.contains(text)
    }
}

fn texts(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(items) => items.iter().for_each(|item| texts(item, see)),
        Value::Object(fields) => fields.values().for_each(|field| texts(field, see)),
        _ => {}
    }
}
