//! What `Ref` and `Fn::GetAtt` return, from the rows of a record.

use serde_json::Value;

use crate::error::{Code, Error, Result, nearest};
use crate::schema;
use crate::state::{Record, Row};
use crate::template::Resources;
use crate::value::{Node, Reason};

/// The resources of a record; what is not on it is not there yet.
pub struct Recorded<'r>(pub &'r Record);

impl Resources for Recorded<'_> {
    fn reference(&self, logical_id: &str) -> Node {
        match self.0.row(logical_id) {
            Some(row) => reference(&row),
            None => pending(logical_id, None),
        }
    }

    fn attribute(&self, logical_id: &str, name: &str) -> Result<Node> {
        match self.0.row(logical_id) {
            Some(row) => attribute(logical_id, &row, name),
            None => Ok(pending(logical_id, Some(name))),
        }
    }
}

pub(super) fn pending(logical_id: &str, attribute: Option<&str>) -> Node {
    Node::Unknown(Reason::Pending {
        logical_id: logical_id.to_owned(),
        attribute: attribute.map(str::to_owned),
    })
}

/// What `Ref` returns. A row that another tool's own code made has CloudFormation's physical id already.
pub(super) fn reference(row: &Row) -> Node {
    if row.text("provisionedBy") == Some("sdk") || schema::is_expanded(row.resource_type()) {
        return Node::text(row.physical_id());
    }
    Node::text(schema::reference(row.resource_type(), row.physical_id(), &row.model()))
}

/// What `Fn::GetAtt` returns. The values come from AWS, so text in them is literal (rule S15).
pub(super) fn attribute(logical_id: &str, row: &Row, name: &str) -> Result<Node> {
    let model = row.model();
    if let Some(value) = schema::attribute(row.resource_type(), &model, name) {
        return Ok(Node::literal(value));
    }
    let known: Vec<&str> =
        model.as_object().into_iter().flat_map(|map| map.keys()).map(String::as_str).collect();
    let mut error = Error::new(
        Code::UnresolvedReference,
        format!("{} `{logical_id}` has no attribute `{name}`", row.resource_type()),
    )
    .detail("logicalId", logical_id);
    if let Some(near) = nearest(name, known) {
        error = error.hint(format!("did you mean `{near}`?"));
    }
    Err(error)
}

impl Row {
    /// Properties and attributes as one model, attributes above.
    pub fn model(&self) -> Value {
        let mut model = self.properties();
        if let Some(map) = model.as_object_mut() {
            map.extend(self.attributes());
        }
        model
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_and_attributes_of_rows() {
        let mut row = Row::new("AWS::ApiGateway::Resource", "api|res");
        row.set_properties(json!({"PathPart": "items"}));
        let Value::Object(attributes) = json!({"ResourceId": "res"}) else { return };
        row.set_attributes(attributes);
        assert_eq!(reference(&row), Node::text("res"));
        assert_eq!(attribute("R", &row, "PathPart").unwrap(), Node::text("items"));
        let error = attribute("R", &row, "PathPrt").unwrap_err();
        assert_eq!(error.hint_text(), Some("did you mean `PathPart`?"));
    }

    #[test]
    fn a_row_of_the_command_line_tool_has_its_reference_as_physical_id() {
        let row = Row::from_value(&json!({
            "physicalId": "res", "resourceType": "AWS::ApiGateway::Resource", "provisionedBy": "sdk", "properties": {},
        }))
        .unwrap();
        assert_eq!(reference(&row), Node::text("res"));
    }
}
