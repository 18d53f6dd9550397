//! `lock.json`: who works on a stack, in the form of the cdkd command line tool plus `execution` and `nonce`.
//!
//! What a `begin` does about a lock is decided by [`decide`]; the edge carries it out with conditional requests by
//! ETag, never by delete-then-create (rule L3).

use serde_json::{Map, Value, json};

use crate::error::{Code, Error, Result};
use crate::name::RecordKey;

/// How long a lock holds without renewal, milliseconds. The command line tool's value.
pub const HOLDS_FOR: i64 = 30 * 60 * 1000;

/// Added to a foreign lock's expiry before it counts as passed: clocks differ (rule L9), milliseconds.
pub const SKEW: i64 = 60 * 1000;

/// A lock as read. Unknown fields survive a renewal.
#[derive(Clone, Debug, PartialEq)]
pub struct Lock {
    document: Map<String, Value>,
}

/// Who asks for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// ARN of the execution.
    pub execution: String,
    /// `deploy` or `destroy`.
    pub operation: String,
    /// Fresh for each lock that is made.
    pub nonce: String,
}

/// What a `begin` does about the lock it found.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// There is none: create it with `If-None-Match: *`.
    Create,
    /// It is this run's own: an earlier answer was lost. Go on under its nonce.
    Ours {
        nonce: String,
    },
    /// The holder is an execution that may have ended: ask Step Functions, then decide again.
    Ask {
        execution: String,
    },
    /// The holder is gone: replace it by `If-Match`.
    TakeOver,
    Refuse(Error),
}

impl Lock {
    /// A lock for `holder` from `now` on.
    pub fn new(holder: &Holder, now: i64) -> Self {
        let name = holder.execution.rsplit(':').next().unwrap_or_default();
        let document = json!({
            "owner": format!("cdkd@{name}"),
            "timestamp": now,
            "expiresAt": now + HOLDS_FOR,
            "operation": holder.operation,
            "execution": holder.execution,
            "nonce": holder.nonce,
        });
        let Value::Object(document) = document else { return Self { document: Map::new() } };
        Self { document }
    }

    /// Reads a lock.
    ///
    /// # Errors
    /// `InvalidState`: a lock that cannot be read is held by someone.
    pub fn parse(body: &[u8], key: &RecordKey) -> Result<Self> {
        let invalid = || {
            Error::new(Code::InvalidState, format!("the lock of {key} does not have the documented form"))
                .hint("look at `lock.json` beside the record; `save-state` with `{\"action\": \"unlock\"}` removes it")
        };
        let document: Value = serde_json::from_slice(body).map_err(|_| invalid())?;
        let Value::Object(document) = document else { return Err(invalid()) };
        if document.get("expiresAt").and_then(Value::as_i64).is_none() {
            return Err(invalid());
        }
        Ok(Self { document })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(&self.document).unwrap_or_default()
    }

    pub fn owner(&self) -> &str {
        self.text("owner").unwrap_or("someone")
    }

    pub fn operation(&self) -> Option<&str> {
        self.text("operation")
    }

    pub fn execution(&self) -> Option<&str> {
        self.text("execution")
    }

    pub fn nonce(&self) -> Option<&str> {
        self.text("nonce")
    }

    /// Milliseconds since 1970.
    pub fn expires_at(&self) -> i64 {
        self.document.get("expiresAt").and_then(Value::as_i64).unwrap_or(i64::MAX)
    }

    /// Whether a third of its life has passed: the next step renews it (DESIGN 5).
    pub fn wants_renewal(&self, now: i64) -> bool {
        self.expires_at() - now < HOLDS_FOR * 2 / 3
    }

    /// The same lock, held from now on.
    #[must_use]
    pub fn renewed(&self, now: i64) -> Self {
        let mut lock = self.clone();
        lock.document.insert("expiresAt".into(), json!(now + HOLDS_FOR));
        lock
    }

    /// Whether it is held by this run under this nonce.
    pub fn is_of(&self, execution: &str, nonce: &str) -> bool {
        self.execution() == Some(execution) && self.nonce() == Some(nonce)
    }

    fn text(&self, field: &str) -> Option<&str> {
        self.document.get(field).and_then(Value::as_str)
    }

    /// The refusal that tells who holds the lock, what for, since when, until when, and how to free it (rule L6).
    pub fn refusal(&self, key: &RecordKey) -> Error {
        let since = self.document.get("timestamp").and_then(Value::as_i64).unwrap_or(0);
        let holder = self.execution().unwrap_or_else(|| self.owner());
        let hint = if self.execution().is_some() {
            "wait for that execution or stop it; the lock of an execution that has ended is free at once"
        } else {
            "wait for that tool. If it is surely dead, invoke `cdkd-save-state` with `{\"action\": \"unlock\", \"stack\": …, \"region\": …}`"
        };
        Error::new(
            Code::StackLocked,
            format!(
                "{key} is locked by `{holder}` ({}) since {} until {}",
                self.operation().unwrap_or("no operation named"),
                instant(since),
                instant(self.expires_at()),
            ),
        )
        .hint(hint)
        .detail("stack", key.stack.as_str())
        .detail("region", key.region.as_str())
        .detail("holder", holder)
        .detail("operation", self.operation().unwrap_or_default())
        .detail("since", since)
        .detail("until", self.expires_at())
    }
}

/// What to do about the lock that is there. `ended`: an execution that Step Functions was asked about, and whether it
/// has ended; it says nothing of another, which may have taken the lock over meanwhile.
pub fn decide(
    found: Option<&Lock>,
    holder: &Holder,
    key: &RecordKey,
    now: i64,
    ended: Option<(&str, bool)>,
) -> Decision {
    let Some(lock) = found else { return Decision::Create };
    if lock.execution() == Some(holder.execution.as_str()) {
        return match lock.nonce() {
            Some(nonce) => Decision::Ours { nonce: nonce.to_owned() },
            None => Decision::TakeOver,
        };
    }
    if now > lock.expires_at() + SKEW {
        return Decision::TakeOver;
    }
    match (lock.execution(), ended) {
        (Some(execution), Some((asked, true))) if execution == asked => Decision::TakeOver,
        (Some(execution), Some((asked, false))) if execution == asked => Decision::Refuse(lock.refusal(key)),
        (Some(execution), _) => Decision::Ask { execution: execution.to_owned() },
        (None, _) => Decision::Refuse(lock.refusal(key)),
    }
}

/// `2026-11-30 20:25:52 UTC`, for people.
pub fn instant(millis: i64) -> String {
    let seconds = millis.div_euclid(1000);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 1970 to a date of the proleptic Gregorian calendar, in years that begin in March.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", rest / 3600, rest % 3600 / 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_796_070_352_000;

    fn key() -> RecordKey {
        RecordKey::parse("Web", "us-east-1").unwrap()
    }

    fn holder(execution: &str, nonce: &str) -> Holder {
        Holder { execution: execution.into(), operation: "deploy".into(), nonce: nonce.into() }
    }

    #[test]
    fn l3_what_a_begin_does_about_a_lock() {
        let me = holder("arn:me", "n1");
        let mine = Lock::new(&holder("arn:me", "n0"), NOW);
        let other = Lock::new(&holder("arn:other", "x"), NOW);
        let tool = Lock::parse(
            format!(
                r#"{{"owner":"ann@host:12","timestamp":{NOW},"expiresAt":{},"operation":"destroy"}}"#,
                NOW + HOLDS_FOR
            )
            .as_bytes(),
            &key(),
        )
        .unwrap();
        let decide = |found, now, ended| super::decide(found, &me, &key(), now, ended);
        assert_eq!(decide(None, NOW, None), Decision::Create);
        assert_eq!(decide(Some(&mine), NOW, None), Decision::Ours { nonce: "n0".into() });
        assert_eq!(decide(Some(&other), NOW, None), Decision::Ask { execution: "arn:other".into() });
        assert_eq!(decide(Some(&other), NOW, Some(("arn:other", true))), Decision::TakeOver);
        assert!(matches!(decide(Some(&other), NOW, Some(("arn:other", false))), Decision::Refuse(_)));
        // The dead holder's lock went to a third run before we could take it: that one is asked about too.
        let ask = Decision::Ask { execution: "arn:other".into() };
        assert_eq!(decide(Some(&other), NOW, Some(("arn:dead", true))), ask);
        assert!(matches!(decide(Some(&tool), NOW, Some(("arn:dead", true))), Decision::Refuse(_)));
        assert!(matches!(decide(Some(&tool), NOW, None), Decision::Refuse(_)));
        assert!(matches!(decide(Some(&tool), NOW + HOLDS_FOR, None), Decision::Refuse(_)));
        assert_eq!(decide(Some(&tool), NOW + HOLDS_FOR + SKEW + 1, None), Decision::TakeOver);
    }

    fn the_tools(until: i64) -> Lock {
        let body = format!(r#"{{"owner":"ann@host:12","expiresAt":{until},"operation":"deploy"}}"#);
        Lock::parse(body.as_bytes(), &key()).unwrap()
    }

    #[test]
    fn l4_a_lock_that_is_renewed_in_time_never_runs_out_under_its_run() {
        let mut lock = Lock::new(&holder("arn:me", "n"), NOW);
        for minute in 0..180 {
            let now = NOW + minute * 60_000;
            let other = decide(Some(&lock), &holder("arn:other", "m"), &key(), now, Some(("arn:me", false)));
            assert!(matches!(other, Decision::Refuse(_)), "after {minute} minutes");
            if lock.wants_renewal(now) {
                lock = lock.renewed(now);
            }
            assert!(lock.is_of("arn:me", "n"));
        }
        assert!(!lock.wants_renewal(NOW + 180 * 60_000 - 60_000));
    }

    #[test]
    fn l5_the_lock_of_an_ended_execution_is_free_at_once() {
        let lock = Lock::new(&holder("arn:dead", "n"), NOW);
        for now in [NOW - HOLDS_FOR, NOW, NOW + 1, NOW + HOLDS_FOR] {
            let found = decide(Some(&lock), &holder("arn:me", "m"), &key(), now, Some(("arn:dead", true)));
            assert_eq!(found, Decision::TakeOver);
        }
    }

    #[test]
    fn l9_clocks_may_differ_by_a_minute_where_an_expiry_is_judged() {
        let lock = the_tools(NOW);
        let at = |now| decide(Some(&lock), &holder("arn:me", "m"), &key(), now, None);
        for behind_or_ahead in [-SKEW, -1, 0, 1, SKEW] {
            assert!(matches!(at(NOW + behind_or_ahead), Decision::Refuse(_)), "{behind_or_ahead}");
        }
        assert_eq!(at(NOW + SKEW + 1), Decision::TakeOver);
    }

    #[test]
    fn l12_an_execution_that_is_not_proved_dead_keeps_its_lock_until_it_runs_out() {
        let lock = Lock::new(&holder("arn:silent", "n"), NOW);
        let at = |now| decide(Some(&lock), &holder("arn:me", "m"), &key(), now, Some(("arn:silent", false)));
        assert!(matches!(at(NOW), Decision::Refuse(_)));
        assert!(matches!(at(NOW + HOLDS_FOR + SKEW), Decision::Refuse(_)));
        assert_eq!(at(NOW + HOLDS_FOR + SKEW + 1), Decision::TakeOver);
    }

    #[test]
    fn l14_a_lock_is_a_runs_own_only_under_its_execution_and_its_nonce() {
        let lock = Lock::new(&holder("arn:me", "n"), NOW);
        let table = [
            ("arn:me", "n", true),
            // Redriven after another run had the lock, or taken over.
            ("arn:me", "n0", false),
            ("arn:me", "", false),
            ("arn:other", "n", false),
        ];
        for (execution, nonce, own) in table {
            assert_eq!(lock.is_of(execution, nonce), own, "{execution} {nonce}");
        }
        // A lock without a nonce is nobody's of us.
        assert!(!the_tools(NOW).is_of("", ""));
    }

    #[test]
    fn l6_a_refusal_names_holder_operation_times_and_the_way_out() {
        let error = Lock::new(&holder("arn:aws:states:us-east-1:1:execution:cdkd-deploy:e1", "n"), NOW)
            .refusal(&key());
        assert_eq!(error.code(), Code::StackLocked);
        assert_eq!(
            error.message(),
            "Web (us-east-1) is locked by `arn:aws:states:us-east-1:1:execution:cdkd-deploy:e1` (deploy) since \
             2026-11-30 20:25:52 UTC until 2026-11-30 20:55:52 UTC"
        );
        assert!(error.hint_text().unwrap().contains("stop it"));
        let tool = Lock::parse(br#"{"owner":"ann@host:12","expiresAt":5}"#, &key()).unwrap().refusal(&key());
        assert!(tool.message().contains("ann@host:12"));
        assert!(tool.hint_text().unwrap().contains("unlock"));
    }

    #[test]
    fn a_lock_has_the_tools_form_and_ours() {
        let lock = Lock::new(&holder("arn:aws:states:us-east-1:1:execution:cdkd-deploy:e1", "n"), NOW);
        let text = String::from_utf8(lock.to_bytes()).unwrap();
        assert_eq!(
            text,
            "{\n  \"owner\": \"cdkd@e1\",\n  \"timestamp\": 1796070352000,\n  \"expiresAt\": 1796072152000,\n  \
             \"operation\": \"deploy\",\n  \"execution\": \"arn:aws:states:us-east-1:1:execution:cdkd-deploy:e1\",\n  \
             \"nonce\": \"n\"\n}"
        );
        assert!(lock.is_of("arn:aws:states:us-east-1:1:execution:cdkd-deploy:e1", "n"));
        assert!(!lock.is_of("arn:aws:states:us-east-1:1:execution:cdkd-deploy:e1", "m"));
        assert!(!lock.wants_renewal(NOW + HOLDS_FOR / 3));
        assert!(lock.wants_renewal(NOW + HOLDS_FOR / 3 + 1));
    }

    #[test]
    fn dates_for_people() {
        let table = [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400_000, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199_999, "2024-02-29 23:59:59 UTC"),
            (4_102_444_800_000, "2100-01-01 00:00:00 UTC"),
        ];
        for (millis, text) in table {
            assert_eq!(instant(millis), text);
        }
    }
}
