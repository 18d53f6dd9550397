//! Whether a name in a text is the storage's, and whether what it refers to is an asset of the assembly.
//!
//! A match is decided by its neighbours in the text as it will be: a bucket called `….backup` or `my-…` is another one, and
//! a neighbour that is not known yet counts as a part of the name (rules A2, A4).
//!
//! Source: DESIGN 9, narrower than `seeds/asset-storage.txt`, section 7, step 2.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use super::table::{Kind, Redirection};

/// What stands on one side of a text.
#[derive(Clone, Debug)]
pub(super) struct Edge<'e> {
    /// As far as it is known.
    pub text: Cow<'e, str>,
    /// Whether something that is not known follows it, away from the text.
    pub open: bool,
}

impl Edge<'_> {
    /// Nothing: the text ends there.
    pub const END: Edge<'static> = Edge { text: Cow::Borrowed(""), open: false };
    /// Something that is not known.
    pub const OPEN: Edge<'static> = Edge { text: Cow::Borrowed(""), open: true };

    pub fn is_end(&self) -> bool {
        self.text.is_empty() && !self.open
    }
}

/// What is known while matches are decided.
#[derive(Clone, Copy)]
pub(super) struct Sight<'s> {
    /// `None`: every key may be an asset's.
    pub keys: Option<&'s BTreeSet<String>>,
    pub left: &'s BTreeSet<String>,
}

/// What is done about a name in a text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision<'t> {
    /// It is a part of another name.
    Other,
    Redirect(&'t Redirection),
    /// It refers to what is no asset of the assembly: name and key.
    Leave(String),
}

/// Decides about `known` where it stands in a text between two edges.
pub(super) fn decide<'t>(
    sight: &Sight<'_>,
    known: &'t Redirection,
    (before, text, after): (&Edge<'_>, &str, &Edge<'_>),
    at: Range<usize>,
) -> Decision<'t> {
    let (Some(left), Some(right)) = (text.get(..at.start), text.get(at.end..)) else {
        return Decision::Other;
    };
    // Nearly always the text ends itself.
    let left: Cow<'_, str> =
        if before.text.is_empty() { left.into() } else { format!("{}{left}", before.text).into() };
    let right: Cow<'_, str> =
        if after.text.is_empty() { right.into() } else { format!("{right}{}", after.text).into() };
    if !begins(&left, before.open) || !ends(&right, after.open) {
        return Decision::Other;
    }
    match reference(known.kind, &right, after.open) {
        Some(key) if is_left(sight, known, key) => Decision::Leave(format!("{}/{key}", known.from)),
        _ => Decision::Redirect(known),
    }
}

/// Whether a reference with this key is to stay as it is.
fn is_left(sight: &Sight<'_>, known: &Redirection, key: &str) -> bool {
    match sight.keys {
        Some(keys) => {
            let is_folder = key.ends_with('/') && keys.iter().any(|it| it.starts_with(key));
            !keys.contains(key) && !is_folder
        }
        None => sight.left.contains(&format!("{}/{key}", known.from)),
    }
}

fn is_name(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'-' || c == b'_'
}

/// Whether a name may begin behind this text.
fn begins(left: &str, open: bool) -> bool {
    let bytes = left.as_bytes();
    match bytes.last() {
        None => !open,
        Some(&last) if is_name(last) || last == b'.' => {
            // `%2F` ends a word, though its last character could be one of a name.
            matches!(bytes, [.., b'%', a, b] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit())
        }
        Some(_) => true,
    }
}

/// Whether a name may end before this text.
fn ends(right: &str, open: bool) -> bool {
    let Some(rest) = right.strip_prefix('.') else {
        return match right.bytes().next() {
            None => !open,
            Some(first) => !is_name(first),
        };
    };
    match rest.chars().next() {
        None => !open,
        Some(next) => {
            next.is_whitespace()
                || matches!(next, '"' | '\'' | '`')
                || ["s3.", "s3-", "dkr."].iter().any(|host| rest.starts_with(host))
        }
    }
}

/// The key of an object, or the tag of an image, that stands behind a name and is known whole; `None` for a name alone, for
/// a pattern, and for what is not known yet.
fn reference(kind: Kind, right: &str, open: bool) -> Option<&str> {
    let (key, behind) = match kind {
        Kind::Bucket => {
            // Virtual-hosted style: the key stands behind the host.
            let path = if right.starts_with('.') {
                let host = right.bytes().position(|c| !(is_name(c) || c == b'.'))?;
                right.get(host..)?
            } else {
                right
            };
            let key = path.strip_prefix('/')?;
            let end = key.find(|c: char| c.is_whitespace() || "\"'`\\,;()<>[]{}$*?#&|=".contains(c));
            split(key, end)
        }
        Kind::Repository => {
            let tag = right.strip_prefix(':').or_else(|| right.strip_prefix('@'))?;
            let end = tag.find(|c: char| !(c.is_ascii_alphanumeric() || "_.-:".contains(c)));
            split(tag, end)
        }
    };
    // A full stop ends a sentence.
    let key = key.trim_end_matches('.');
    let unknown = match behind.chars().next() {
        None => open,
        // Wildcards, and variables of shells and templates.
        Some(next) => "*?${<".contains(next) && !(next == '?' && is_query(behind)),
    };
    (!key.is_empty() && !unknown).then_some(key)
}

fn split(text: &str, at: Option<usize>) -> (&str, &str) {
    text.split_at(at.unwrap_or(text.len()))
}

/// `?name=value`, as behind the key in a URL; a `?` else stands for any character.
fn is_query(text: &str) -> bool {
    let name = text.get(1..).unwrap_or_default();
    let end = name.bytes().position(|c| !is_name(c)).unwrap_or(name.len());
    end > 0 && name.as_bytes().get(end) == Some(&b'=')
}
