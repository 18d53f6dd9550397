//! Looking things up in the section `Mappings`.

use serde_json::Value;

use super::Template;
use super::path::Path;
use crate::error::{Code, Error, Result, nearest};

/// The value at `map`, `top`, `second`.
///
/// # Errors
/// [`Code::UnresolvedReference`] naming the first of them that is missing, and the nearest there is.
pub(super) fn find<'t>(
    template: &'t Template,
    map: &str,
    top: &str,
    second: &str,
    at: &Path<'_>,
) -> Result<&'t Value> {
    fn missing<'k>(
        message: String,
        key: &str,
        known: impl Iterator<Item = &'k String>,
        at: &Path<'_>,
    ) -> Error {
        let error = Error::new(Code::UnresolvedReference, message).place(&at.place());
        match nearest(key, known.map(String::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    }
    let mapping = template.mappings.get(map).ok_or_else(|| {
        missing(format!("`{map}` is no mapping of the template"), map, template.mappings.keys(), at)
    })?;
    let row = mapping
        .get(top)
        .ok_or_else(|| missing(format!("mapping `{map}` has no key `{top}`"), top, mapping.keys(), at))?;
    row.get(second).ok_or_else(|| {
        missing(format!("mapping `{map}` has no key `{second}` under `{top}`"), second, row.keys(), at)
    })
}
