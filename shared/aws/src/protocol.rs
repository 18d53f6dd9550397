//! Carries out what the machines of [`cdkd_core::protocol`] ask for.

use std::future::Future;
use std::time::Duration;

use cdkd_core::name::RecordKey;
use cdkd_core::protocol::journal;
use cdkd_core::protocol::step::{Effect, Event, FoundLock, Machine, Next};
use cdkd_core::state::lock::Lock;
use cdkd_core::{Code, Error, Result};
use futures::StreamExt as _;

use crate::edge::Invocation;
use crate::executions::Life;
use crate::settings;
use crate::stack::read_journal;
use crate::store::{Condition, Written};

/// Effects carried out at once.
const AT_ONCE: usize = 16;

/// Whoever carries effects out. What it does not know is an `InternalError`: see [`unknown`].
pub trait World {
    fn carry_out(&self, effect: Effect) -> impl Future<Output = Result<Event>>;
}

/// Runs a machine to its end.
///
/// # Errors
/// What it fails with.
pub async fn drive<M: Machine>(world: &impl World, machine: M) -> Result<M::Output> {
    let mut next = machine.step(settings::now(), Vec::new());
    loop {
        match next {
            Next::Go(machine, effects) => {
                let all = effects
                    .into_iter()
                    .map(|effect| async move { world.carry_out(effect).await.unwrap_or_else(Event::Failed) });
                let events = futures::stream::iter(all).buffered(AT_ONCE).collect().await;
                next = machine.step(settings::now(), events);
            }
            Next::End(output) => return output,
        }
    }
}

/// The fault of a machine that is driven in a world that lacks what it asks for.
pub fn unknown(effect: &Effect) -> Error {
    Error::new(
        Code::InternalError,
        format!("a step of the protocol asked for what is not done here: {}", name(effect)),
    )
}

/// The name alone: what an effect holds may be a property's value.
fn name(effect: &Effect) -> String {
    let text = format!("{effect:?}");
    text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// Lock and journal of one stack.
#[derive(Clone, Copy)]
pub struct LockAndJournal<'a> {
    pub invocation: &'a Invocation,
    pub key: &'a RecordKey,
}

impl World for LockAndJournal<'_> {
    async fn carry_out(&self, effect: Effect) -> Result<Event> {
        let Self { invocation, key } = *self;
        let store = &invocation.aws.store;
        let settings = &invocation.settings;
        let bucket = &settings.state_bucket;
        let lock = |key: &RecordKey| key.lock(&settings.prefix);
        let journal = key.journal(&settings.prefix);
        Ok(match effect {
            Effect::ReadLock(of) => Event::Lock(
                store
                    .get(bucket, &lock(&of))
                    .await?
                    .map(|object| FoundLock { lock: Lock::parse(&object.body, &of), etag: object.etag }),
            ),
            Effect::CreateLock(new) => {
                written(store.put(bucket, &lock(key), new.to_bytes(), Condition::Absent).await?)
            }
            Effect::ReplaceLock { lock: new, etag } => {
                written(store.put(bucket, &lock(key), new.to_bytes(), Condition::Matches(&etag)).await?)
            }
            Effect::DeleteLock { etag } => {
                let deleted = store.delete_matching(bucket, &lock(key), &etag).await?;
                Event::Written(deleted.then(String::new))
            }
            Effect::ForgetLocks => {
                store.purge(bucket, &lock(key), true).await?;
                Event::Done
            }
            Effect::AskExecution(execution) => {
                Event::Ended(invocation.aws.executions.life(&execution).await? == Life::Ended)
            }
            Effect::ReadJournal => Event::Journal(read_journal(invocation, key).await?),
            Effect::ListJournal => {
                let listed = store.list(bucket, &journal).await?;
                Event::Last(listed.iter().filter_map(|object| journal::number(&journal, &object.key)).max())
            }
            Effect::WriteJournal { number, entries } => {
                let place = journal::key(&journal, number);
                written(store.put(bucket, &place, journal::to_bytes(&entries), Condition::Absent).await?)
            }
            Effect::RemoveEntry { number } => {
                store.purge(bucket, &journal::key(&journal, number), false).await?;
                Event::Done
            }
            Effect::RemoveJournal => {
                store.purge(bucket, &journal, false).await?;
                Event::Done
            }
            Effect::Wait { until } => {
                let wait = u64::try_from(until - settings::now()).unwrap_or(0);
                tokio::time::sleep(Duration::from_millis(wait)).await;
                Event::Done
            }
            other => return Err(unknown(&other)),
        })
    }
}

fn written(written: Written) -> Event {
    Event::Written(match written {
        Written::Yes(etag) => Some(etag),
        Written::Lost | Written::Gone => None,
    })
}
