//! What runs agree on, as machines that decide step by step and are carried out elsewhere ([`step`]): the [`lock`], an
//! invocation's way in and out with fence and journal ([`fence`]), the [`handshake`] with other stacks, and each [`call`]
//! from intent to outcome. Beside them the documents and rules they are made of: the [`journal`], how a run of steps is
//! undone ([`rollback`]), and how a run ends ([`ending`]).

pub mod call;
pub mod ending;
pub mod fence;
pub mod handshake;
pub mod journal;
pub mod lock;
pub mod rollback;
pub mod step;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
