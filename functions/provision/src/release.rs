//! Taking away, in the clean-up, what was held for other stacks of the run.

use cdkd_aws::protocol::{World, drive};
use cdkd_aws::references::Lookout;
use cdkd_aws::stack::{Desk, Run};
use cdkd_core::Result;
use cdkd_core::protocol::handshake::{Handshake, Part, Takes};
use cdkd_core::protocol::step::{Draft, Effect, Event};
use cdkd_core::references::exports::{Why, Withdrawal};
use cdkd_core::references::handshake::{self, GivenUp};
use cdkd_core::state::Record;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::engine::Engine;

/// Takes away the exports that were held for stacks of the run. They are deployed by now; a consumer that is found has
/// come meanwhile, or still holds what it imported before: then the exports stay.
pub(crate) async fn release(engine: &Engine, run: &Run, held: &[String], desk: &mut Desk) -> Result<()> {
    let (invocation, key) = (&engine.session.invocation, &engine.session.key);
    let place = run.stack_document(key, "released.json");
    let released = invocation.aws.store.get(&invocation.settings.runs_bucket, &place).await?;
    let released: Option<Value> = released.and_then(|object| serde_json::from_slice(&object.body).ok());
    if released.is_some_and(|document| document["execution"] == run.execution.as_str()) {
        // An earlier slice did. What is exported is not put back once deletes may have begun.
        return Ok(());
    }
    let gone = held.iter().map(|name| Withdrawal { name: name.clone(), why: Why::NotExported });
    let part = Part {
        key: key.clone(),
        sources: Vec::new(),
        claims: Vec::new(),
        takes: Takes::Some { lost: gone.collect(), changed: Vec::new() },
    };
    let giving = Giving { engine, held, desk: Mutex::new(desk), others: Lookout::new(invocation) };
    // The stacks of the run count as all others do: they have what they are to have by now.
    drive(&giving, Handshake::new(vec![part], [], GivenUp::new())).await?;
    invocation.write_run(&place, &json!({ "execution": run.execution })).await
}

/// The world in which what was held is taken away: the records under work, and all others.
struct Giving<'a> {
    engine: &'a Engine,
    held: &'a [String],
    desk: Mutex<&'a mut Desk>,
    others: Lookout<'a>,
}

impl World for Giving<'_> {
    async fn carry_out(&self, effect: Effect) -> Result<Event> {
        let Effect::Save { draft, .. } = effect else {
            let Effect::Index(_) = effect else { return self.others.carry_out(effect).await };
            self.desk.lock().await.index().await;
            return Ok(Event::Done);
        };
        let change = |record: &mut Record| match draft {
            Draft::Intent => handshake::withdraw(record, self.held.iter().map(String::as_str)),
            Draft::Found => handshake::take_back(record),
        };
        let mut desk = self.desk.lock().await;
        for (_, record) in desk.own_mut().filter(|(path, _)| !path.is_empty()) {
            change(record);
        }
        change(&mut self.engine.record.borrow_mut());
        desk.record = self.engine.record.borrow().clone();
        let changed = desk.save().await?;
        Ok(Event::Saved { changed, withdrawing: draft == Draft::Intent })
    }
}
