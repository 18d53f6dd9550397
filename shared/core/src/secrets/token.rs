//! Dynamic references: the one grammar of `{{resolve:service:reference}}` (rule S5).
//!
//! Source: AWS CloudFormation User Guide, "Get values stored in other services using dynamic references". Only text
//! that a template or a run's author wrote is read with it; attributes and imported values stay literal (rule S15).

use std::fmt;
use std::ops::Range;

use crate::value::{Piece, Reason, Secret, Text};

/// What every token begins with.
pub const HEAD: &str = "{{resolve:";

/// What every token ends with.
pub const TAIL: &str = "}}";

/// The service that a token is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// `secretsmanager`: always a secret.
    SecretsManager,
    /// `ssm`: a secret if the parameter's type is `SecureString`, an ordinary value otherwise (rule S3).
    Ssm,
    /// `ssm-secure`: always a secret.
    SsmSecure,
}

impl Service {
    const ALL: [Service; 3] = [Service::SecretsManager, Service::Ssm, Service::SsmSecure];

    /// As a token spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Service::SecretsManager => "secretsmanager",
            Service::Ssm => "ssm",
            Service::SsmSecure => "ssm-secure",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|service| service.name() == name)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A token found in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// Where it stands, in bytes.
    pub range: Range<usize>,
    /// All of it, from `{{` to `}}`.
    pub text: &'a str,
    pub service: Service,
    /// What follows the service: `secret-id:SecretString:json-key:version-stage:version-id`, or `name:version`.
    pub reference: &'a str,
}

impl Token<'_> {
    /// The token as a secret of the stack's own account and region (an ARN in it says otherwise by itself).
    pub fn secret(&self) -> Secret {
        Secret { token: self.text.to_owned(), account: None, region: None }
    }

    /// The piece it is in a template's string. For `ssm` only the parameter's type tells, which no pure function
    /// knows: until that is looked up it is unknown, so that the token itself is never sent as a value.
    pub fn piece(&self) -> Piece {
        match self.service {
            Service::SecretsManager | Service::SsmSecure => Piece::Secret(self.secret()),
            Service::Ssm => Piece::Unknown(Reason::Other(format!("known after `{}` is read", self.text))),
        }
    }
}

/// All tokens of a text, from left to right. A reference is not empty and holds no brace; what merely resembles a
/// token is text.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    if has_none(text) {
        return Vec::new();
    }
    text.match_indices(HEAD).filter_map(|(start, _)| token_at(text, start)).collect()
}

/// Most strings of a template have no brace, and one look at their bytes tells.
fn has_none(text: &str) -> bool {
    text.len() < HEAD.len() || !text.as_bytes().contains(&b'{')
}

fn token_at(text: &str, start: usize) -> Option<Token<'_>> {
    let rest = text.get(start + HEAD.len()..)?;
    let (body, _) = rest.split_at(rest.find(['{', '}'])?);
    let end = start + HEAD.len() + body.len() + TAIL.len();
    let whole = text.get(start..end).filter(|whole| whole.ends_with(TAIL))?;
    let (service, reference) = body.split_once(':')?;
    let service = Service::parse(service)?;
    (!reference.is_empty()).then_some(Token { range: start..end, text: whole, service, reference })
}

/// A string of a template as pieces.
pub fn pieces(text: &str) -> Text {
    pieces_with(text, |token| Some(token.piece()))
}

/// The same with another idea of what a token is; where `piece` gives none it stays text.
pub fn pieces_with(text: &str, piece: impl Fn(&Token<'_>) -> Option<Piece>) -> Text {
    let tokens = tokens(text);
    if tokens.is_empty() {
        return Text::plain(text);
    }
    let mut out = Text::default();
    let mut from = 0;
    for token in tokens {
        if let Some(piece) = piece(&token) {
            out.push(Piece::Plain(text.get(from..token.range.start).unwrap_or_default().to_owned()));
            out.push(piece);
            from = token.range.end;
        }
    }
    out.push(Piece::Plain(text.get(from..).unwrap_or_default().to_owned()));
    out
}

/// The service of the first token that begins in a text, whether or not it ends there: CDK writes tokens as an
/// `Fn::Join` whose first element is `{{resolve:secretsmanager:`.
pub fn begins(text: &str) -> Option<Service> {
    if has_none(text) {
        return None;
    }
    text.match_indices(HEAD).find_map(|(start, _)| {
        let rest = text.get(start + HEAD.len()..)?;
        Service::ALL
            .into_iter()
            .find(|service| rest.strip_prefix(service.name()).is_some_and(|rest| rest.starts_with(':')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn s5_one_grammar_for_a_token() {
        let arn = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbCdEf";
        let table: Vec<(String, Vec<(Service, String)>)> = vec![
            ("{{resolve:ssm:/a/b:3}}".into(), vec![(Service::Ssm, "/a/b:3".into())]),
            ("{{resolve:ssm-secure:p}}".into(), vec![(Service::SsmSecure, "p".into())]),
            (
                format!("x{{{{resolve:secretsmanager:{arn}:SecretString:pw::}}}}y"),
                vec![(Service::SecretsManager, format!("{arn}:SecretString:pw::"))],
            ),
            (
                "{{resolve:ssm:a}}{{resolve:ssm:b}}".into(),
                vec![(Service::Ssm, "a".into()), (Service::Ssm, "b".into())],
            ),
            ("{{resolve:ssm:{{resolve:ssm:b}}".into(), vec![(Service::Ssm, "b".into())]),
            ("{{resolve:ssm:b}}}".into(), vec![(Service::Ssm, "b".into())]),
            ("{{resolve:ssm}}".into(), vec![]),
            ("{{resolve:ssm:}}".into(), vec![]),
            ("{{resolve:vault:x}}".into(), vec![]),
            ("{{resolve:ssm:x}".into(), vec![]),
            ("{{resolve:ssm:x".into(), vec![]),
            ("{{RESOLVE:ssm:x}}".into(), vec![]),
            (String::new(), vec![]),
        ];
        for (text, expected) in table {
            let found: Vec<_> = tokens(&text).iter().map(|t| (t.service, t.reference.to_owned())).collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn a_template_string_becomes_pieces() {
        let text = pieces("a{{resolve:secretsmanager:s}}b");
        assert_eq!(text.pieces().len(), 3);
        assert_eq!(text.secrets().next().unwrap().token, "{{resolve:secretsmanager:s}}");
        assert_eq!(text.stored().unwrap(), "a{{resolve:secretsmanager:s}}b");
        assert!(pieces("{{resolve:ssm:p}}").unknown().is_some(), "its type is not known here");
        assert_eq!(pieces("{{resolve:x}}").as_plain(), Some("{{resolve:x}}"));
    }

    #[test]
    fn a_token_that_only_begins() {
        assert_eq!(begins("{{resolve:secretsmanager:"), Some(Service::SecretsManager));
        assert_eq!(begins("a {{resolve:ssm-secure:x}}"), Some(Service::SsmSecure));
        assert_eq!(begins("{{resolve:ssm}} {{resolve:ssm:p"), Some(Service::Ssm));
        assert_eq!(begins("{{resolve:ssm}}"), None);
    }

    proptest! {
        /// Taking a text apart loses nothing.
        #[test]
        fn any_text_is_the_sum_of_its_pieces(text in "(\\{\\{resolve:|ssm-secure|secretsmanager|:|\\}\\}|\\{|[a-zä]){0,12}") {
            prop_assert_eq!(pieces(&text).stored().unwrap(), text);
        }
    }
}
