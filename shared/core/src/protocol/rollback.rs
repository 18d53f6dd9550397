//! Undoing a failed run: from the record as it is back to the rows as they were before.
//!
//! What was done is not remembered beside the record: the difference between the two says it, so a rollback that dies
//! half way is simply computed again. Rollback exists only before outputs are published (DESIGN 5), so nothing was
//! deleted yet and nothing has to be made again.

use crate::state::{PendingDelete, Record, Row};

/// One step back.
#[derive(Clone, Debug, PartialEq)]
pub enum Undo {
    /// The run created it: delete it, unless its policy keeps it.
    Delete { logical_id: String, row: Row },
    /// The run changed it in place: update it to what it was.
    Restore { logical_id: String, before: Row },
    /// The run replaced it: the old one takes its place on record, the new one is deleted.
    Return { logical_id: String, before: Row, replacement: Row },
    /// Only the record differs.
    Note { logical_id: String, before: Row },
}

impl Undo {
    pub fn logical_id(&self) -> &str {
        match self {
            Undo::Delete { logical_id, .. }
            | Undo::Restore { logical_id, .. }
            | Undo::Return { logical_id, .. }
            | Undo::Note { logical_id, .. } => logical_id,
        }
    }
}

/// The steps back, in the reverse of `order` (dependencies first, so dependents are undone first).
pub fn undo(before: &Record, now: &Record, order: &[String]) -> Vec<Undo> {
    let mut steps = Vec::new();
    for logical_id in order.iter().rev() {
        let step = match (before.row(logical_id), now.row(logical_id)) {
            (None, Some(row)) => Undo::Delete { logical_id: logical_id.clone(), row },
            (Some(before), Some(now)) if !before.is_same_thing(&now) => {
                Undo::Return { logical_id: logical_id.clone(), before, replacement: now }
            }
            (Some(before), Some(now)) if before.properties() != now.properties() => {
                Undo::Restore { logical_id: logical_id.clone(), before }
            }
            (Some(before), Some(now)) if before != now => {
                Undo::Note { logical_id: logical_id.clone(), before }
            }
            _ => continue,
        };
        steps.push(step);
    }
    steps
}

/// The entry by which a replaced row waits for its delete, and leaves the list when it returns.
pub fn pending(logical_id: &str, row: &Row) -> PendingDelete {
    PendingDelete { logical_id: logical_id.to_owned(), row: row.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::RecordKey;
    use serde_json::json;

    #[test]
    fn the_difference_says_what_to_undo_dependents_first() {
        let key = RecordKey::parse("Web", "us-east-1").unwrap();
        let row = |id: &str, n: i64| {
            let mut row = Row::new("AWS::SQS::Queue", id);
            row.set_properties(json!({ "N": n }));
            row
        };
        let mut before = Record::new(&key);
        for (logical_id, r) in [("Same", row("s", 1)), ("Changed", row("c", 1)), ("Replaced", row("r1", 1))] {
            before.put_row(logical_id, r);
        }
        let mut noted = row("n", 1);
        before.put_row("Noted", noted.clone());
        noted.set_dependencies(&["Same".into()]);
        let mut now = before.clone();
        now.put_row("Changed", row("c", 2));
        now.put_row("Replaced", row("r2", 2));
        now.put_row("New", row("new", 1));
        now.put_row("Noted", noted);
        let order: Vec<String> =
            ["Same", "Changed", "Replaced", "New", "Noted"].iter().map(|id| (*id).to_owned()).collect();
        assert_eq!(
            undo(&before, &now, &order),
            [
                Undo::Note { logical_id: "Noted".into(), before: row("n", 1) },
                Undo::Delete { logical_id: "New".into(), row: row("new", 1) },
                Undo::Return {
                    logical_id: "Replaced".into(),
                    before: row("r1", 1),
                    replacement: row("r2", 2)
                },
                Undo::Restore { logical_id: "Changed".into(), before: row("c", 1) },
            ]
        );
        assert_eq!(undo(&before, &before, &order), []);
    }
}
