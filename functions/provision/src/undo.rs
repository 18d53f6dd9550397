//! Undoing a failed apply, and deleting.

use cdkd_core::plan::{Operation, Plan, Step, undone_before};
use cdkd_core::protocol::journal::Change;
use cdkd_core::protocol::rollback::{Undo, pending, undo as steps_back};
use cdkd_core::state::tree::{NESTED, is_inside};
use cdkd_core::state::{PendingDelete, Record, Row};
use cdkd_core::{Code, Result, schema};

use crate::apply::{delete_things, restore};
use crate::engine::{End, Engine};
use crate::slice::Slice;

/// Brings the stack back to the rows before this run, dependents first.
pub(crate) async fn undo(engine: &Engine, slice: &Slice, plan: &Plan) -> Result<End> {
    let order: Vec<String> = plan.applies.iter().map(|step| step.logical_id.clone()).collect();
    // Requests still under way decide what there is to undo.
    let settle = order.iter().map(|id| (id.clone(), Vec::new(), 1)).collect::<Vec<_>>();
    let end = slice.run(engine, settle, |id| async move { Ok((engine.settle(&id).await?, "same")) }).await?;
    if end == End::Later {
        return Ok(End::Later);
    }
    let mut before = Record::new(&plan.key);
    for step in &plan.applies {
        if let Some(row) = &step.before {
            before.put_row(&step.logical_id, row.clone());
        }
    }
    let back = steps_back(&before, &engine.record.borrow(), &order);
    let steps = back.iter().enumerate().map(|(position, step)| {
        // Whatever is built on it is undone before it.
        let needs = undone_before(&plan.applies, step.logical_id());
        let needs =
            needs.into_iter().filter(|need| back.iter().any(|step| step.logical_id() == need)).collect();
        (step.logical_id().to_owned(), needs, (back.len() - position) as u64)
    });
    let back = &back;
    slice
        .run(engine, steps.collect::<Vec<_>>(), |id| async move {
            match back.iter().find(|step| step.logical_id() == id) {
                Some(step) => one_back(engine, step).await,
                None => Ok((End::Done, "same")),
            }
        })
        .await
}

async fn one_back(engine: &Engine, step: &Undo) -> Result<(End, &'static str)> {
    match step {
        Undo::Delete { logical_id, row } => {
            if row.policy("deletionPolicy") == Some("Retain") {
                // It stays, and on record, so that the next deploy goes on with it (rule P12).
                return Ok((End::Done, "same"));
            }
            if is_filled(engine, logical_id) {
                // Something in the nested stack stays: it is found through this row.
                return Ok((End::Done, "same"));
            }
            let remove = vec![Change::Remove { logical_id: logical_id.clone() }];
            Ok((delete_things(engine, logical_id, row, remove).await?, "delete"))
        }
        Undo::Restore { logical_id, before } => Ok((restore(engine, logical_id, before).await?, "restore")),
        Undo::Return { logical_id, before, replacement } => {
            let waits =
                engine.record.borrow().pending_deletes().iter().any(|known| known.row.is_same_thing(before));
            if !waits && deletes_first(before) {
                // The old one was deleted to make room: it cannot come back by itself.
                return Err(cdkd_core::Error::new(
                    Code::ProvisioningFailed,
                    format!("`{logical_id}` was replaced by deleting it first; the new one stays"),
                )
                .hint("deploy the template that you want"));
            }
            let changes = vec![
                Change::Put { logical_id: logical_id.clone(), row: before.clone() },
                Change::Forget(pending(logical_id, before)),
                Change::Later(pending(logical_id, replacement)),
            ];
            engine.change(changes).await?;
            let forget = vec![Change::Forget(pending(logical_id, replacement))];
            Ok((delete_things(engine, logical_id, replacement, forget).await?, "delete"))
        }
        Undo::Note { logical_id, before } => {
            engine.change(vec![Change::Put { logical_id: logical_id.clone(), row: before.clone() }]).await?;
            Ok((End::Done, "same"))
        }
    }
}

/// Whether anything of a nested stack is on record.
fn is_filled(engine: &Engine, path: &str) -> bool {
    let record = engine.record.borrow();
    record.rows().any(|(id, _)| is_inside(id, path))
        || record.pending_deletes().iter().any(|pending| is_inside(&pending.logical_id, path))
}

fn deletes_first(row: &Row) -> bool {
    schema::lookup(row.resource_type()).is_some_and(|schema| schema.delete_then_create)
}

/// A step of the clean-up.
pub(crate) async fn delete(engine: &Engine, step: &Step) -> Result<(End, &'static str)> {
    let Some(waiting) = step.pending() else { return Ok((End::Done, "same")) };
    if engine.settle(&step.logical_id).await? == End::Later {
        return Ok((End::Later, "wait"));
    }
    let Some(then) = leaves(engine, &waiting) else { return Ok((End::Done, "same")) };
    if step.operation == Operation::Retain {
        engine.change(then).await?;
        return Ok((End::Done, "retain"));
    }
    if waiting.row.resource_type() == NESTED && is_filled(engine, &waiting.logical_id) {
        // Its row is how what is in it is found (rule E8).
        return Ok((End::Done, "same"));
    }
    if held_elsewhere(engine, &waiting) {
        // Another row holds that physical resource: it only leaves this list (rule P11).
        engine.change(then).await?;
        return Ok((End::Done, "same"));
    }
    Ok((delete_things(engine, &step.logical_id, &waiting.row, then).await?, "delete"))
}

/// How it leaves the record: as a row, or as a pending delete; `None` if it has left already.
fn leaves(engine: &Engine, waiting: &PendingDelete) -> Option<Vec<Change>> {
    let record = engine.record.borrow();
    if record.pending_deletes().iter().any(|known| known.is_same_thing(waiting)) {
        return Some(vec![Change::Forget(waiting.clone())]);
    }
    let row = record.row(&waiting.logical_id)?;
    row.is_same_thing(&waiting.row).then(|| vec![Change::Remove { logical_id: waiting.logical_id.clone() }])
}

fn held_elsewhere(engine: &Engine, waiting: &PendingDelete) -> bool {
    let record = engine.record.borrow();
    let is_pending = record.pending_deletes().iter().any(|known| known.is_same_thing(waiting));
    record.rows().any(|(id, row)| row.is_same_thing(&waiting.row) && (is_pending || id != waiting.logical_id))
}
