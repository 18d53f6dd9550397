//! What may start now: a step the moment its own needs are done, the critical path first, no waves (DESIGN 8); how
//! many at a time; and when a slice has to come to its end.

mod limiter;

pub use limiter::{Limiter, backoff};

use std::collections::HashSet;

/// Steps that wait for each other.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    steps: Vec<Waiting>,
    done: HashSet<String>,
    running: HashSet<String>,
    /// Nothing more starts.
    stopped: bool,
}

#[derive(Clone, Debug)]
struct Waiting {
    id: String,
    needs: Vec<String>,
    weight: u64,
}

impl Schedule {
    /// Needs that are no steps count as done.
    pub fn new(steps: impl IntoIterator<Item = (String, Vec<String>, u64)>) -> Self {
        let steps: Vec<Waiting> =
            steps.into_iter().map(|(id, needs, weight)| Waiting { id, needs, weight }).collect();
        let ids: HashSet<&str> = steps.iter().map(|step| step.id.as_str()).collect();
        let done = steps
            .iter()
            .flat_map(|step| &step.needs)
            .filter(|need| !ids.contains(need.as_str()))
            .cloned()
            .collect();
        Self { steps, done, ..Self::default() }
    }

    /// The step to start now: of those whose needs are done, the one that most waits for; ties in order. It counts
    /// as running until [`Schedule::finish`].
    pub fn start(&mut self) -> Option<String> {
        if self.stopped {
            return None;
        }
        let ready = self.steps.iter().enumerate().filter(|(_, step)| {
            !self.done.contains(&step.id)
                && !self.running.contains(&step.id)
                && step.needs.iter().all(|need| self.done.contains(need))
        });
        let (_, step) = ready.max_by_key(|(position, step)| (step.weight, std::cmp::Reverse(*position)))?;
        let id = step.id.clone();
        self.running.insert(id.clone());
        Some(id)
    }

    /// A step has come to its end; `done`: what needs it may start.
    pub fn finish(&mut self, id: &str, done: bool) {
        self.running.remove(id);
        if done {
            self.done.insert(id.to_owned());
        }
    }

    /// Nothing more starts; what runs comes to its end.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether every step is done.
    pub fn is_done(&self) -> bool {
        self.steps.iter().all(|step| self.done.contains(&step.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(table: &[(&str, &[&str], u64)]) -> Schedule {
        Schedule::new(table.iter().map(|(id, needs, weight)| {
            ((*id).to_owned(), needs.iter().map(|need| (*need).to_owned()).collect(), *weight)
        }))
    }

    #[test]
    fn a_step_starts_the_moment_its_needs_are_done() {
        let mut schedule =
            schedule(&[("a", &[], 2), ("b", &[], 3), ("c", &["a", "gone"], 1), ("d", &["b"], 2)]);
        assert_eq!(schedule.start().as_deref(), Some("b"));
        assert_eq!(schedule.start().as_deref(), Some("a"));
        assert_eq!(schedule.start(), None);
        schedule.finish("a", true);
        assert_eq!(schedule.start().as_deref(), Some("c"));
        schedule.finish("b", true);
        assert_eq!(schedule.start().as_deref(), Some("d"));
        schedule.finish("c", true);
        assert!(!schedule.is_done());
        schedule.finish("d", true);
        assert!(schedule.is_done());
    }

    #[test]
    fn after_a_failure_nothing_starts() {
        let mut schedule = schedule(&[("a", &[], 1), ("b", &["a"], 1), ("c", &[], 1)]);
        assert_eq!(schedule.start().as_deref(), Some("a"));
        schedule.finish("a", false);
        schedule.stop();
        assert_eq!(schedule.start(), None);
        assert_eq!(schedule.running(), 0);
        assert!(!schedule.is_done());
    }
}
