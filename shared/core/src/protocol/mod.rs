//! What runs agree on: the journal with its fences, how a dead run's requests are settled, how a run of steps is undone,
//! and how a run ends. Pure functions over documents; the functions carry the effects out.

pub mod ending;
pub mod journal;
pub mod rollback;
