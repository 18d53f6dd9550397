//! Where evaluation is, without building the place until an error needs it.

use crate::error::Place;

/// A chain of segments on the stack; evaluation visits thousands of places and reports few.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    Root(&'a Place),
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub fn key(&'a self, key: &'a str) -> Path<'a> {
        Path::Key(self, key)
    }

    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }

    /// The place as errors carry it.
    pub fn place(&self) -> Place {
        match self {
            Path::Root(place) => (*place).clone(),
            Path::Key(parent, key) => {
                let mut place = parent.place();
                place.path.push((*key).to_owned());
                place
            }
            Path::Index(parent, index) => {
                let mut place = parent.place();
                place.path.push(index.to_string());
                place
            }
        }
    }
}
