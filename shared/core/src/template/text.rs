//! Putting text together, so that a token may span several parts of it.
//!
//! CDK writes a secret as `{"Fn::Join": ["", ["{{resolve:secretsmanager:", {"Ref": "Secret"}, ":SecretString:pw::}}"]]}`.
//! Such a token is live because its head and tail are the template's words; what comes from a resource or a parameter
//! may stand inside, but can neither open nor close one (rule S15).

use std::ops::Range;

use crate::secrets::token::{self, HEAD, TAIL};
use crate::value::{Piece, Text};

/// Collects pieces and remembers which plain text is the template's own.
#[derive(Default)]
pub(super) struct Writer {
    done: Text,
    /// Plain text since the last piece that is not plain.
    run: String,
    /// The parts of `run` that are the template's own words, in order.
    own: Vec<Range<usize>>,
}

impl Writer {
    /// Text as the template has it.
    pub fn template(&mut self, text: &str) {
        let start = self.run.len();
        self.run.push_str(text);
        match self.own.last_mut() {
            Some(last) if last.end == start => last.end = self.run.len(),
            _ => self.own.push(start..self.run.len()),
        }
    }

    /// Text from anywhere else: taken literally.
    pub fn value(&mut self, text: &Text) {
        for piece in text.pieces() {
            match piece {
                Piece::Plain(plain) => self.run.push_str(plain),
                other => {
                    self.flush();
                    self.done.push(other.clone());
                }
            }
        }
    }

    pub fn finish(mut self) -> Text {
        self.flush();
        self.done
    }

    fn flush(&mut self) {
        let run = std::mem::take(&mut self.run);
        let own = std::mem::take(&mut self.own);
        // Without a head there is no token, and the text need not be copied.
        if !run.as_bytes().contains(&b'{') || !run.contains(HEAD) {
            self.done.push(Piece::Plain(run));
            return;
        }
        let is_own =
            |part: Range<usize>| own.iter().any(|own| own.start <= part.start && part.end <= own.end);
        self.done.append(token::pieces_with(&run, |token| {
            let Range { start, end } = token.range;
            let live = is_own(start..start + HEAD.len()) && is_own(end - TAIL.len()..end);
            live.then(|| token.piece())
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(parts: &[(bool, &str)]) -> Text {
        let mut writer = Writer::default();
        for (own, text) in parts {
            if *own {
                writer.template(text);
            } else {
                writer.value(&Text::plain(*text));
            }
        }
        writer.finish()
    }

    #[test]
    fn s15_only_the_templates_own_words_make_a_token() {
        let (own, foreign) = (true, false);
        let table: &[(&[(bool, &str)], usize)] = &[
            (&[(own, "{{resolve:secretsmanager:a}}")], 1),
            (&[(own, "{{resolve:secretsmanager:"), (foreign, "arn"), (own, ":SecretString:pw}}")], 1),
            (&[(own, "{{resolve:"), (own, "secretsmanager:a"), (own, "}}")], 1),
            (&[(own, "{{resolve:"), (foreign, "secretsmanager"), (own, ":a}}")], 1),
            (&[(foreign, "{{resolve:secretsmanager:a}}")], 0),
            (&[(foreign, "{{resolve:secretsmanager:"), (own, "a}}")], 0),
            (&[(own, "{{resolve:secretsmanager:"), (foreign, "a}}")], 0),
            (&[(own, "{{resolve:secretsmanager:"), (foreign, "{{resolve:ssm-secure:b}}"), (own, "c}}")], 0),
        ];
        for (parts, secrets) in table {
            let text = written(parts);
            assert_eq!(text.secrets().count(), *secrets, "{parts:?}");
            let whole: String = parts.iter().map(|(_, text)| *text).collect();
            assert_eq!(text.stored().unwrap(), whole);
        }
    }
}
