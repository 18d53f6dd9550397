//! How a run ends: the outcomes of its stacks, that of the whole, and what its execution fails with.

use serde_json::{Map, Value, json};

use crate::error::{Code, Error};
use crate::name::RecordKey;

/// Characters of the cause of a failed execution (Step Functions, `Fail` state).
pub const CAUSE: usize = 32_768;

/// How a stack was left that did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// As it was before.
    RolledBack,
    /// Deployed, and what was to be deleted stays on record for the next run.
    DeletesPending,
    /// As far as it came.
    Failed,
}

impl Left {
    /// What an error says of the stack that it ended. Whoever lost the lock cannot tell.
    pub fn by(error: &Error) -> Self {
        let told = error.details().get("outcome").and_then(Value::as_str);
        match told {
            _ if error.code() == Code::LockLostError => Self::Failed,
            Some("rolledBack") => Self::RolledBack,
            Some("deletesPending") => Self::DeletesPending,
            _ => Self::Failed,
        }
    }

    /// The outcome of the stack's row.
    pub fn name(self) -> &'static str {
        match self {
            Self::RolledBack => "rolledBack",
            Self::DeletesPending => "deletesPending",
            Self::Failed => "failed",
        }
    }
}

/// A row without counts.
pub fn row(key: &RecordKey, outcome: &str) -> Value {
    json!({ "stack": key.stack.as_str(), "region": key.region.as_str(), "outcome": outcome })
}

/// What is known of a stack when its run is ended as a whole.
#[derive(Clone, Debug)]
pub struct Part {
    pub key: RecordKey,
    /// The row of a part that had come to its end.
    pub ended: Option<Value>,
    /// It was planned, so it may have been worked on.
    pub started: bool,
}

/// The rows of a run that an error ends as a whole: it fails the stack that it names, or the only one.
pub fn rows(parts: &[Part], error: &Error) -> Vec<Value> {
    // Not `details()`: a place counts too.
    let details = &error.cause()["details"];
    let named = |key: &RecordKey| {
        details["stack"] == key.stack.as_str()
            && (details["region"].is_null() || details["region"] == key.region.as_str())
    };
    let rows = parts.iter().map(|part| match &part.ended {
        Some(row) => row.clone(),
        None if named(&part.key) || parts.len() == 1 => row(&part.key, Left::by(error).name()),
        None if part.started => row(&part.key, Left::Failed.name()),
        None => row(&part.key, "notStarted"),
    });
    rows.collect()
}

/// The outcome of a run: of one that succeeded what it did, of one that failed the worst of its rows.
pub fn outcome(operation: &str, rows: &[Value], failed: bool) -> &'static str {
    let any = |outcome: &str| rows.iter().any(|row| row["outcome"] == outcome);
    if failed {
        let mut worst = [Left::Failed, Left::DeletesPending, Left::RolledBack].into_iter();
        return worst.find(|left| any(left.name())).unwrap_or(Left::Failed).name();
    }
    match operation {
        "destroy" => "destroyed",
        _ if any("deployed") || any(Left::DeletesPending.name()) => "deployed",
        _ => "unchanged",
    }
}

/// The cause that an execution fails with, at most `limit` characters: `{code, message, hint, details}` with the rows of
/// its stacks in `details.stacks`, unless there are none.
///
/// What is too long is cut: the message, then the details, then the rows, first to their names and outcomes and then to
/// as many as fit; `details.stackCount` tells how many there are. `result.json` has all of it.
pub fn cause(error: &Error, rows: &[Value], limit: usize) -> String {
    let whole = error.cause();
    let told = |message: &str, hint: &Value, details: &Map<String, Value>, rows: &[Value], cut: bool| {
        let mut details = details.clone();
        if !rows.is_empty() {
            details.insert("stacks".into(), json!(rows));
        }
        if cut {
            details.insert("stackCount".into(), json!(rows.len()));
        }
        json!({ "code": whole["code"], "message": message, "hint": hint, "details": details })
    };
    let fits = |cause: &Value| length(&cause.to_string()) <= limit;
    let message = whole["message"].as_str().unwrap_or_default();
    let all = whole["details"].as_object().cloned().unwrap_or_default();
    let none = Map::new();
    let short: Vec<Value> = rows.iter().map(named).collect();
    let hint = json!(whole["hint"].as_str().map(|hint| cut(hint, limit / 8)));
    let tries = [
        told(message, &whole["hint"], &all, rows, false),
        told(&cut(message, limit / 2), &whole["hint"], &all, rows, false),
        told(&cut(message, limit / 4), &hint, &none, rows, false),
        told(&cut(message, limit / 4), &hint, &none, &short, false),
    ];
    if let Some(cause) = tries.into_iter().find(fits) {
        return cause.to_string();
    }
    // What is quoted grows: where that is most of the text, less of it is kept.
    let mut room = limit / 4;
    loop {
        let (message, hint) = (cut(message, room), json!(hint.as_str().map(|hint| cut(hint, room / 2))));
        let with = |count: usize| {
            let mut cause = told(&message, &hint, &none, short.get(..count).unwrap_or(&short), true);
            cause["details"]["stackCount"] = json!(rows.len());
            cause
        };
        if fits(&with(0)) || room == 0 {
            let (mut least, mut most) = (0, short.len());
            while least < most {
                let middle = (least + most).div_ceil(2);
                if fits(&with(middle)) {
                    least = middle;
                } else {
                    most = middle - 1;
                }
            }
            return with(least).to_string();
        }
        room /= 2;
    }
}

/// Name and outcome of a row.
fn named(row: &Value) -> Value {
    json!({ "stack": row["stack"], "region": row["region"], "outcome": row["outcome"] })
}

/// Characters as the service counts them: UTF-16.
fn length(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}

/// The beginning of a text; that something is missing is told by `…`.
fn cut(text: &str, most: usize) -> String {
    if length(text) <= most {
        return text.to_owned();
    }
    let mut left = most.saturating_sub(1);
    let mut kept: String = text
        .chars()
        .take_while(|c| {
            let fits = c.len_utf16() <= left;
            left = left.saturating_sub(c.len_utf16());
            fits
        })
        .collect();
    kept.push('…');
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(stack: &str) -> RecordKey {
        RecordKey::parse(stack, "us-east-1").unwrap()
    }

    fn failure(outcome: &str) -> Error {
        Error::new(Code::ProvisioningFailed, "m").detail("outcome", outcome)
    }

    fn told(rows: &[Value]) -> String {
        let rows = rows
            .iter()
            .map(|row| format!("{}:{}", row["stack"].as_str().unwrap(), row["outcome"].as_str().unwrap()));
        rows.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn how_an_error_leaves_its_stack() {
        let table = [
            (failure("rolledBack"), Left::RolledBack),
            (failure("deletesPending"), Left::DeletesPending),
            (failure("failed"), Left::Failed),
            (failure("deployed"), Left::Failed),
            (Error::new(Code::InternalError, "m"), Left::Failed),
            (Error::new(Code::LockLostError, "m").detail("outcome", "rolledBack"), Left::Failed),
        ];
        for (error, left) in table {
            assert_eq!(Left::by(&error), left, "{error}");
        }
    }

    #[test]
    fn which_stacks_an_error_of_the_whole_run_fails() {
        let part = |stack: &str, ended: Option<&str>, started: bool| Part {
            key: key(stack),
            ended: ended.map(|outcome| row(&key(stack), outcome)),
            started,
        };
        let one = [part("A", None, false)];
        let three = [part("A", None, false), part("B", None, false), part("C", None, false)];
        let midway = [part("A", Some("deployed"), true), part("B", None, true), part("C", None, false)];
        let plain = Error::new(Code::ServiceUnavailable, "m");
        let of = |stack: &str| Error::new(Code::StackLocked, "m").detail("stack", stack);
        let table = [
            (&one[..], plain.clone(), "A:failed"),
            (&one, failure("rolledBack"), "A:rolledBack"),
            (&three, plain.clone(), "A:notStarted B:notStarted C:notStarted"),
            (&three, of("B"), "A:notStarted B:failed C:notStarted"),
            (&three, of("B").detail("region", "us-east-1"), "A:notStarted B:failed C:notStarted"),
            (&three, of("B").detail("region", "eu-west-1"), "A:notStarted B:notStarted C:notStarted"),
            (&three, of("X"), "A:notStarted B:notStarted C:notStarted"),
            (&three, plain.clone().place(&crate::Place::stack("C")), "A:notStarted B:notStarted C:failed"),
            (&midway, plain, "A:deployed B:failed C:notStarted"),
            (&midway, of("A"), "A:deployed B:failed C:notStarted"),
            (&[], of("A"), ""),
        ];
        for (parts, error, expected) in table {
            assert_eq!(told(&rows(parts, &error)), expected, "{error}");
        }
    }

    #[test]
    fn the_outcome_of_a_run() {
        let table = [
            ("deploy", "unchanged deployed", false, "deployed"),
            ("deploy", "unchanged deletesPending", false, "deployed"),
            ("deploy", "unchanged unchanged", false, "unchanged"),
            ("destroy", "destroyed", false, "destroyed"),
            ("deploy", "deployed rolledBack notStarted", true, "rolledBack"),
            ("deploy", "rolledBack deletesPending", true, "deletesPending"),
            ("deploy", "rolledBack failed deletesPending", true, "failed"),
            ("destroy", "notStarted", true, "failed"),
            ("deploy", "", true, "failed"),
        ];
        for (operation, outcomes, failed, expected) in table {
            let rows: Vec<Value> =
                outcomes.split(' ').filter(|it| !it.is_empty()).map(|it| row(&key("A"), it)).collect();
            assert_eq!(outcome(operation, &rows, failed), expected, "{outcomes}");
        }
    }

    #[test]
    fn a_cause_fits_and_says_what_it_left_out() {
        let row = |counts: usize| json!({"stack": "A", "region": "r", "outcome": "failed", "counts": "c".repeat(counts)});
        let error = |message: &str, detail: usize| {
            let error = Error::new(Code::ProvisioningFailed, message).hint("h");
            if detail == 0 { error } else { error.detail("more", "d".repeat(detail)) }
        };
        let long = "m".repeat(3000);
        // Message, length of a detail, rows, and then: characters of the message, details, rows.
        let table = [
            ("m", 0, vec![], 1, "", 0),
            ("m", 10, vec![row(1)], 1, "more stacks", 1),
            // The message alone is enough.
            (&long, 10, vec![row(1)], 500, "more stacks", 1),
            // Then the details.
            (&long, 900, vec![row(1)], 250, "stacks", 1),
            ("m", 1100, vec![row(1)], 1, "stacks", 1),
            // Then what rows say more than who and how.
            ("m", 0, vec![row(500); 3], 1, "stacks", 3),
            // Then rows.
            ("m", 0, vec![row(500); 40], 1, "stacks stackCount", 19),
            (&long, 900, vec![row(500); 40], 250, "stacks stackCount", 14),
        ];
        for (message, detail, rows, characters, fields, kept) in table {
            let text = cause(&error(message, detail), &rows, 1000);
            assert!(length(&text) <= 1000, "{text}");
            let cause: Value = serde_json::from_str(&text).unwrap();
            let names: Vec<&str> = cause["details"].as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(names.join(" "), fields, "{text}");
            assert_eq!(length(cause["message"].as_str().unwrap()), characters, "{text}");
            assert_eq!(cause["details"]["stacks"].as_array().map_or(0, Vec::len), kept, "{text}");
            if fields.contains("stackCount") {
                assert_eq!(cause["details"]["stackCount"], rows.len());
            }
            assert_eq!((&cause["code"], &cause["hint"]), (&json!("ProvisioningFailed"), &json!("h")));
        }
    }

    #[test]
    fn a_cause_fits_whatever_it_is_made_of() {
        for sample in ["\u{1}", "\"", "ü", "😀", "\\"] {
            let text = sample.repeat(40_000);
            let error = Error::new(Code::InternalError, &text).hint(&text).detail("x", text.as_str());
            let rows = vec![json!({"stack": text, "region": text, "outcome": text}); 3];
            for rows in [&rows[..], &[]] {
                let told = cause(&error, rows, CAUSE);
                assert!(length(&told) <= CAUSE, "{sample}");
                assert_eq!(serde_json::from_str::<Value>(&told).unwrap()["code"], "InternalError");
            }
        }
    }
}
