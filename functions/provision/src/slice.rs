//! One invocation's work on a schedule of steps.

use std::cell::RefCell;
use std::future::Future;

use cdkd_aws::settings;
use cdkd_core::schedule::Schedule;
use cdkd_core::{Error, Result};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};

use crate::engine::{End, Engine};

/// What a slice did, for `result.json`.
#[derive(Default)]
pub(crate) struct Slice {
    steps: RefCell<Vec<Value>>,
}

impl Slice {
    /// The steps that came to their end, those without any effect left out.
    pub fn steps(&self) -> Vec<Value> {
        self.steps.borrow().clone()
    }

    /// Starts each step the moment its needs are done, as many at a time as the limiter allows. After a failure or
    /// near the time limit nothing starts; what runs comes to its end. The first error is the one reported.
    pub async fn run<F, W>(
        &self,
        engine: &Engine,
        steps: impl IntoIterator<Item = (String, Vec<String>, u64)>,
        work: F,
    ) -> Result<End>
    where
        F: Fn(String) -> W,
        W: Future<Output = Result<(End, &'static str)>>,
    {
        let mut schedule = Schedule::new(steps);
        let mut running = FuturesUnordered::new();
        let mut first: Option<Error> = None;
        loop {
            if engine.is_late() {
                schedule.stop();
            }
            while running.len() < engine.limiter.borrow().limit() {
                let Some(id) = schedule.start() else { break };
                let began = settings::now();
                let step = work(id.clone());
                running.push(async move { (id, began, step.await) });
            }
            let Some((id, began, outcome)) = running.next().await else { break };
            let done = matches!(outcome, Ok((End::Done, _)));
            match outcome {
                Ok((End::Done, "same")) => {}
                Ok((End::Done, operation)) => {
                    let logical_id = id.split('#').next().unwrap_or(&id);
                    let row = engine.record.borrow().row(logical_id);
                    self.steps.borrow_mut().push(json!({
                        "logicalId": logical_id,
                        "operation": operation,
                        "type": row.as_ref().map(|row| row.resource_type().to_owned()),
                        "physicalId": row.as_ref().map(|row| row.physical_id().to_owned()),
                        "milliseconds": settings::now() - began,
                    }));
                }
                Ok((End::Later, _)) => schedule.stop(),
                Err(error) => {
                    schedule.stop();
                    first.get_or_insert(error);
                }
            }
            schedule.finish(&id, done);
        }
        match first {
            Some(error) => Err(error),
            None if schedule.is_done() => Ok(End::Done),
            None => Ok(End::Later),
        }
    }
}
