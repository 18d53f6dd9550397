//! The text of a `Fn::Sub`, taken apart.
//!
//! Source: AWS CloudFormation User Guide, "`Fn::Sub`" (rule T1).

/// A part of the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    Text(&'a str),
    /// What stands behind the `!`.
    Escaped(&'a str),
    Variable(&'a str),
}

/// Takes the text apart; `${` without its `}` is text.
pub(crate) fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, (inside, after))) =
        opening(rest).and_then(|(before, tail)| Some((before, tail.split_once('}')?)))
    {
        if !before.is_empty() {
            parts.push(Part::Text(before));
        }
        parts.push(match inside.strip_prefix('!') {
            Some(name) => Part::Escaped(name),
            None => Part::Variable(inside),
        });
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
    }
    parts
}

/// What is before the next `${`, and behind it. Texts of megabytes hold few.
fn opening(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let at = memchr::memchr_iter(b'$', bytes).find(|at| bytes.get(at + 1) == Some(&b'{'))?;
    Some((text.get(..at)?, text.get(at + 2..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t1_a_text_is_taken_apart() {
        assert_eq!(
            parts("a${B}${!C}$${D"),
            [Part::Text("a"), Part::Variable("B"), Part::Escaped("C"), Part::Text("$${D")]
        );
        assert_eq!(parts(""), []);
        assert_eq!(parts("$ä${Ä}"), [Part::Text("$ä"), Part::Variable("Ä")]);
    }
}
