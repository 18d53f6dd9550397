//! Rules: which request, which of them in number, and what happens to it.
//!
//! The JSON form is the serde form of [`Rule`]:
//!
//! ```json
//! {"match": {"service": "s3", "operation": "PutObject", "resource": "*/state.json", "nth": 2},
//!  "when": "after", "action": {"answer": {"status": 500, "code": "InternalError"}}}
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::classify::{Call, canonical_service};

/// Which side of the forwarding an action takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// The emulator has not seen the request.
    #[default]
    Before,
    /// The emulator has carried the request out and answered; the caller does not know.
    After,
}

/// What happens to a request.
// Externally tagged: serde buffers the content of the other enum forms, and in this workspace numbers do
// not survive that (`arbitrary_precision`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Action {
    /// Waits, then goes on.
    Delay {
        /// For how long.
        ms: u64,
    },
    /// Waits until the gate of this name is opened.
    Hold {
        /// The gate's name; several rules may share a gate.
        id: String,
    },
    /// Closes the caller's connection without an answer.
    Drop,
    /// Answers with an error in the form that the request's protocol has for it.
    Answer(Answer),
    /// Sends SIGKILL to the calling process, then closes the connection.
    ///
    /// Only a descendant of the emulator is killed. For any other caller the connection is closed all the
    /// same and the log says `killRefused`.
    Kill,
}

/// An error answer, independent of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The error code, such as `SlowDown` or `ThrottlingException`.
    pub code: String,
    /// Text for people.
    #[serde(default)]
    pub message: String,
}

/// Which requests a rule is about. An empty field matches every request.
///
/// In `service`, `operation` and `function` the pattern stands for the whole text, in `resource` and `body`
/// for a part of it; where `resource` or one of the first three has a `*`, it is a glob over the whole text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// The service: signing name or SDK name, `stepfunctions`, `states` and `sfn` being the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The operation as the API reference spells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The resource as the log shows it, `bucket/key` for S3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Text in the first [`PEEK`](crate::PEEK) bytes of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Name of the Lambda function that calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The first match that the rule acts on, counting from 1 since the rule was set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nth: Option<u64>,
    /// On how many matches it acts, from there. Without it: once if `nth` is given, else always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
}

impl Match {
    /// Whether everything but function and body fits.
    pub(crate) fn fits_call(&self, call: &Call) -> bool {
        let service = self.service.as_deref().is_none_or(|want| glob(canonical_service(want), &call.service));
        let operation = self.operation.as_deref().is_none_or(|want| glob(want, &call.operation));
        let resource = self.resource.as_deref().is_none_or(|want| {
            if want.contains('*') { glob(want, &call.resource) } else { call.resource.contains(want) }
        });
        service && operation && resource
    }

    pub(crate) fn fits_body(&self, body: &[u8]) -> bool {
        self.body.as_deref().is_none_or(|want| {
            want.is_empty() || body.windows(want.len()).any(|window| window == want.as_bytes())
        })
    }

    pub(crate) fn fits_function(&self, function: Option<&str>) -> bool {
        self.function.as_deref().is_none_or(|want| function.is_some_and(|name| glob(want, name)))
    }

    /// Whether the rule acts on its match number `count` (1-based).
    pub(crate) fn acts_on(&self, count: u64) -> bool {
        let first = self.nth.unwrap_or(1);
        let times = self.times.unwrap_or(if self.nth.is_some() { 1 } else { u64::MAX });
        count >= first && count - first < times
    }
}

/// One rule. Built by [`Rule::on`] and the methods of [`RuleBuilder`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Which requests.
    #[serde(rename = "match", default)]
    pub matches: Match,
    /// On which side of the forwarding.
    #[serde(default)]
    pub when: When,
    /// What happens.
    pub action: Action,
}

impl Rule {
    /// Starts a rule about one operation of a service; `*` stands for any.
    ///
    /// ```
    /// use cdkd_wire::Rule;
    /// let rule = Rule::on("cloudcontrol", "CreateResource").nth(3).kill_before();
    /// ```
    pub fn on(service: &str, operation: &str) -> RuleBuilder {
        RuleBuilder(Match {
            service: Some(service.to_owned()),
            operation: Some(operation.to_owned()),
            ..Match::default()
        })
    }

    /// Starts a rule about every request that is counted.
    pub fn on_any() -> RuleBuilder {
        RuleBuilder(Match::default())
    }
}

/// A rule that lacks its action still, so that it cannot be set by mistake.
#[derive(Clone, Debug)]
#[must_use]
pub struct RuleBuilder(Match);

impl RuleBuilder {
    /// Narrows to resources with this text in them, or that fit this glob if it has a `*`.
    pub fn resource(mut self, pattern: &str) -> Self {
        self.0.resource = Some(pattern.to_owned());
        self
    }

    /// Narrows to requests with this text in the first [`PEEK`](crate::PEEK) bytes of the body.
    pub fn body(mut self, text: &str) -> Self {
        self.0.body = Some(text.to_owned());
        self
    }

    /// Narrows to calls of this Lambda function.
    pub fn function(mut self, name: &str) -> Self {
        self.0.function = Some(name.to_owned());
        self
    }

    /// Acts on the nth match (1-based) only, or from there with [`times`](Self::times).
    pub fn nth(mut self, nth: u64) -> Self {
        self.0.nth = Some(nth);
        self
    }

    /// Acts this many times.
    pub fn times(mut self, times: u64) -> Self {
        self.0.times = Some(times);
        self
    }

    /// The request reaches the emulator later.
    pub fn delay_before(self, delay: Duration) -> Rule {
        self.act(When::Before, Action::Delay { ms: millis(delay) })
    }

    /// The answer reaches the caller later.
    pub fn delay_after(self, delay: Duration) -> Rule {
        self.act(When::After, Action::Delay { ms: millis(delay) })
    }

    /// The request is lost: the connection closes and the emulator never sees it.
    pub fn drop_before(self) -> Rule {
        self.act(When::Before, Action::Drop)
    }

    /// The answer is lost: the emulator has done it and the connection closes.
    pub fn drop_after(self) -> Rule {
        self.act(When::After, Action::Drop)
    }

    /// The caller dies before its request is sent.
    pub fn kill_before(self) -> Rule {
        self.act(When::Before, Action::Kill)
    }

    /// The caller dies after its request took effect and before it reads the answer.
    pub fn kill_after(self) -> Rule {
        self.act(When::After, Action::Kill)
    }

    /// An error instead of the call.
    pub fn answer(self, status: u16, code: &str, message: &str) -> Rule {
        self.answer_when(When::Before, status, code, message)
    }

    /// An error although the call took effect.
    pub fn answer_after(self, status: u16, code: &str, message: &str) -> Rule {
        self.answer_when(When::After, status, code, message)
    }

    /// 409: another conditional write was in flight; retry.
    pub fn conditional_conflict(self) -> Rule {
        self.answer(409, "ConditionalRequestConflict", "A conflicting operation occurred, retry the request.")
    }

    /// 412: the condition does not hold.
    pub fn precondition_failed(self) -> Rule {
        let message = "At least one of the pre-conditions you specified did not hold";
        self.answer(412, "PreconditionFailed", message)
    }

    /// 500 `InternalError`, the call not made.
    pub fn internal_error(self) -> Rule {
        self.answer(500, "InternalError", "We encountered an internal error. Please try again.")
    }

    /// 503 `SlowDown`, the way S3 throttles.
    pub fn slow_down(self) -> Rule {
        self.answer(503, "SlowDown", "Please reduce your request rate.")
    }

    /// 400 `ThrottlingException`, the way the JSON protocols throttle.
    pub fn throttle(self) -> Rule {
        self.answer(400, "ThrottlingException", "Rate exceeded")
    }

    /// Finishes the rule with an action given as a value.
    pub fn act(self, when: When, action: Action) -> Rule {
        Rule { matches: self.0, when, action }
    }

    fn answer_when(self, when: When, status: u16, code: &str, message: &str) -> Rule {
        let answer = Answer { status, code: code.to_owned(), message: message.to_owned() };
        self.act(when, Action::Answer(answer))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Matches `text` as a whole against `pattern`, in which `*` stands for any run of characters.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, text, fits) in [
            ("PutObject", "PutObject", true),
            ("PutObject", "PutObjectAcl", false),
            ("*", "", true),
            ("*", "anything", true),
            ("Put*", "PutObject", true),
            ("*Object", "PutObject", true),
            ("*/state.json", "bucket/a/b/state.json", true),
            ("*/state.json", "bucket/a/b/state.json.bak", false),
            ("b*/a/*.json", "bucket/a/x.json", true),
            ("b*/a/*.json", "bucket/c/x.json", false),
            ("a*a", "a", false),
            ("a**a", "aa", true),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn numbers() {
        let acts = |nth, times| {
            let matches = Match { nth, times, ..Match::default() };
            (1..=6).filter(|&count| matches.acts_on(count)).collect::<Vec<_>>()
        };
        assert_eq!(acts(None, None), [1, 2, 3, 4, 5, 6]);
        assert_eq!(acts(Some(3), None), [3]);
        assert_eq!(acts(Some(3), Some(2)), [3, 4]);
        assert_eq!(acts(None, Some(2)), [1, 2]);
        assert_eq!(acts(Some(5), Some(u64::MAX)), [5, 6]);
    }

    #[test]
    fn json() -> Result<(), serde_json::Error> {
        let text =
            r#"{"match": {"service": "s3", "nth": 2}, "when": "after", "action": {"delay": {"ms": 5}}}"#;
        let rule: Rule = serde_json::from_str(text)?;
        let mut built = RuleBuilder(Match { service: Some("s3".to_owned()), ..Match::default() });
        built = built.nth(2);
        assert_eq!(rule, built.delay_after(Duration::from_millis(5)));
        let rule: Rule = serde_json::from_str(r#"{"action": "drop"}"#)?;
        assert_eq!(rule, Rule::on_any().drop_before());
        for typo in [r#"{"action": "dorp"}"#, r#"{"match": {"servcie": "s3"}, "action": "drop"}"#] {
            assert!(serde_json::from_str::<Rule>(typo).is_err(), "{typo}");
        }
        Ok(())
    }
}
