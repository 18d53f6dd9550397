//! Answers in XML, as a tree of names and texts.

use crate::error::{Error, Result};

/// An element: its name without namespace, its text, its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xml {
    pub name: String,
    pub text: String,
    pub children: Vec<Xml>,
}

impl Xml {
    /// Parses a document.
    pub fn parse(text: &str) -> Result<Self> {
        let document = roxmltree::Document::parse(text)
            .map_err(|error| Error::other(format!("an answer is not XML ({error}): {text}")))?;
        Ok(Self::of(document.root_element()))
    }

    fn of(node: roxmltree::Node<'_, '_>) -> Self {
        Self {
            name: node.tag_name().name().to_owned(),
            text: node.children().filter_map(|child| child.text().filter(|_| child.is_text())).collect(),
            children: node.children().filter(roxmltree::Node::is_element).map(Self::of).collect(),
        }
    }

    /// All elements at a path below this one: `Stacks/member`.
    pub fn all<'a>(&'a self, path: &str) -> Vec<&'a Xml> {
        path.split('/').fold(vec![self], |found, name| {
            found.into_iter().flat_map(|it| &it.children).filter(|child| child.name == name).collect()
        })
    }

    /// The text of the first element at a path below this one.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.all(path).first().map(|element| element.text.as_str())
    }

    /// A list of keys and values, as `member`s or `entry`s with `key` and `value` in any spelling of case.
    pub fn pairs(&self, path: &str) -> std::collections::BTreeMap<String, String> {
        let child = |element: &Xml, name: &str| {
            element.children.iter().find(|it| it.name.eq_ignore_ascii_case(name)).map(|it| it.text.clone())
        };
        self.all(path).into_iter().filter_map(|it| Some((child(it, "key")?, child(it, "value")?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_find_elements_whatever_their_namespace() {
        let text = r#"<R xmlns="urn:x"><L><member><Key>a</Key><Value>1</Value></member>
            <member><Key>b</Key><Value>2</Value></member></L></R>"#;
        let xml = Xml::parse(text).unwrap();
        assert_eq!(xml.all("L/member").len(), 2);
        assert_eq!(xml.get("L/member/Value"), Some("1"));
        assert_eq!(xml.get("L/nothing"), None);
        assert_eq!(xml.pairs("L/member")["b"], "2");
    }
}
