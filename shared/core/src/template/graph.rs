//! Which resources have to be there before which.

use std::collections::HashMap;

use indexmap::IndexMap;

use super::path::Path;
use super::survey::{Site, Survey};
use super::{Resource, Template, holds};
use crate::error::{Code, Error, Place, Result};

/// The dependencies of each resource that exists in this deploy, all in template order: what its properties refer to
/// through taken branches, and its `DependsOn`, of which a target whose condition is false is dropped (rules T2, T13).
///
/// # Errors
/// [`Code::CircularDependency`] naming the circle. Names that the template lacks are skipped: `check` refuses them.
pub fn dependencies(
    template: &Template,
    conditions: &IndexMap<String, bool>,
) -> Result<IndexMap<String, Vec<String>>> {
    let mut graph = Graph::default();
    for (logical_id, resource) in template.active(conditions) {
        let place = template.properties_place(logical_id);
        let mut survey = Survey::new(template, conditions, Site::Value);
        survey_properties(&mut survey, resource, &Path::Root(&place));
        graph.add(template, conditions, logical_id, &survey.references);
    }
    if let Some(error) = graph.circle(template) {
        return Err(error);
    }
    let name = |position: usize| template.resources.get_index(position).map(|(name, _)| name.clone());
    Ok(graph
        .edges
        .into_iter()
        .map(|(logical_id, positions)| {
            (logical_id.to_owned(), positions.into_iter().filter_map(name).collect())
        })
        .collect())
}

/// The resources that exist, each with the positions in the template of what it depends on.
#[derive(Default)]
pub(super) struct Graph<'t> {
    edges: IndexMap<&'t str, Vec<usize>>,
}

impl<'t> Graph<'t> {
    /// Adds a resource with what its properties refer to; its `DependsOn` is added to that.
    pub fn add(
        &mut self,
        template: &Template,
        conditions: &IndexMap<String, bool>,
        logical_id: &'t str,
        references: &[&str],
    ) {
        let explicit = template.resources.get(logical_id).map(|resource| resource.depends_on.iter());
        let explicit = explicit
            .into_iter()
            .flatten()
            .map(String::as_str)
            .filter(|target| exists(template, conditions, target));
        let mut positions: Vec<usize> = references
            .iter()
            .copied()
            .chain(explicit)
            .filter_map(|target| template.resources.get_index_of(target))
            .collect();
        positions.sort_unstable();
        positions.dedup();
        self.edges.insert(logical_id, positions);
    }

    /// The error that names a circle, if there is one.
    pub fn circle(&self, template: &'t Template) -> Option<Error> {
        let circle = circle(template, &self.edges)?;
        let place = Place::stack(template.stack.as_str());
        let place = circle.first().map_or(place.clone(), |first| place.at(*first));
        let message = format!("resources depend on each other in a circle: {}", circle.join(" → "));
        Some(Error::new(Code::CircularDependency, message).detail("circle", circle).place(&place))
    }
}

/// Walks all properties of a resource; at their root a sole key `Ref` is the name of a property.
pub(super) fn survey_properties<'t>(survey: &mut Survey<'t>, resource: &'t Resource, at: &Path<'_>) {
    match resource.properties.as_object() {
        Some(map) => survey.map(map, at),
        None => survey.value(&resource.properties, at),
    }
}

fn exists(template: &Template, conditions: &IndexMap<String, bool>, logical_id: &str) -> bool {
    template
        .resources
        .get(logical_id)
        .is_some_and(|resource| holds(resource.condition.as_deref(), conditions))
}

/// A circle, as the logical ids along it with the first repeated at the end.
fn circle<'t>(template: &'t Template, graph: &IndexMap<&'t str, Vec<usize>>) -> Option<Vec<&'t str>> {
    let name = |position: usize| template.resources.get_index(position).map(|(name, _)| name.as_str());
    // Absent: not visited; true: on the current way; false: done. Depth first with an own stack, since a template
    // may chain thousands of resources.
    let mut open: HashMap<&str, bool> = HashMap::new();
    for start in graph.keys() {
        if open.contains_key(start) {
            continue;
        }
        let mut way: Vec<(&str, std::slice::Iter<'_, usize>)> = Vec::new();
        let mut next = Some(*start);
        loop {
            if let Some(logical_id) = next.take() {
                open.insert(logical_id, true);
                way.push((
                    logical_id,
                    graph.get(logical_id).map(|targets| targets.iter()).unwrap_or_default(),
                ));
            }
            let Some((logical_id, targets)) = way.last_mut() else { break };
            let Some(target) = targets.next().copied().and_then(name) else {
                open.insert(logical_id, false);
                way.pop();
                continue;
            };
            match open.get(target) {
                Some(true) => {
                    let from = way.iter().skip_while(|(id, _)| *id != target).map(|(id, _)| *id);
                    return Some(from.chain([target]).collect());
                }
                Some(false) => {}
                None => next = Some(target),
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Stack, template};
    use super::*;
    use serde_json::{Value, json};

    /// The dependencies of `R`, beside resources `A`, `B`, `C`, a condition-false `Off` and a parameter `P`.
    fn of(resource: &Value) -> Vec<String> {
        let stack = Stack::new(json!({
            "Parameters": {"P": {"Type": "String", "Default": "x"}},
            "Mappings": {"B": {"x": {"A": "y"}}},
            "Conditions": {"Yes": {"Fn::Equals": ["a", "a"]}, "No": {"Fn::Equals": ["a", "b"]}},
            "Resources": {"R": resource, "A": {}, "B": {}, "C": {}, "Off": {"Condition": "No"}},
        }));
        dependencies(&stack.template, &stack.conditions).unwrap()["R"].clone()
    }

    #[test]
    fn t2_what_makes_a_dependency() {
        let table = [
            (json!({"Ref": "A"}), "A"),
            (json!({"Fn::GetAtt": ["A", "Arn"]}), "A"),
            (json!({"Fn::GetAtt": "A.Arn.Deep"}), "A"),
            (json!({"Fn::Sub": "${C} ${B.Arn} ${P} ${AWS::Region}"}), "B C"),
            (json!({"Fn::Sub": ["${A} ${X}", {"X": {"Ref": "B"}, "A": "no"}]}), "B"),
            (json!({"Fn::Join": ["", ["x", {"Ref": "A"}, {"Fn::Sub": "${B}"}]]}), "A B"),
            (json!({"Fn::Select": [0, {"Fn::Split": ["/", {"Fn::Sub": "${A}"}]}]}), "A"),
            (json!({"Fn::Base64": {"Fn::Join": ["", [{"Ref": "C"}, {"Ref": "A"}, {"Ref": "C"}]]}}), "A C"),
            (json!({"Fn::FindInMap": ["B", {"Ref": "P"}, "A"]}), ""),
            (json!({"Ref": "AWS::StackName"}), ""),
            (json!({"Fn::If": ["Yes", {"Ref": "A"}, {"Ref": "B"}]}), "A"),
            (json!({"Fn::If": ["No", {"Ref": "Off"}, {"Fn::If": ["Yes", {"Ref": "B"}, {"Ref": "C"}]}]}), "B"),
            (json!({"Condition": "A", "Ref": "B"}), ""),
        ];
        for (expression, expected) in table {
            let resource = json!({"Properties": {"List": [{"Deep": expression}]}});
            assert_eq!(of(&resource).join(" "), expected, "{expression}");
        }
    }

    #[test]
    fn t1_an_escaped_name_makes_no_dependency() {
        assert_eq!(of(&json!({"Properties": {"X": {"Fn::Sub": "${!A} ${B}"}}})), ["B"]);
    }

    #[test]
    fn t13_depends_on() {
        let table = [
            (json!({"DependsOn": "A"}), "A"),
            (json!({"DependsOn": ["C", "A"], "Properties": {"X": {"Ref": "B"}}}), "A B C"),
            (json!({"DependsOn": ["Off", "A"]}), "A"),
            (json!({"DependsOn": ["Nope"]}), ""),
        ];
        for (resource, expected) in table {
            assert_eq!(of(&resource).join(" "), expected, "{resource}");
        }
        let stack = Stack::new(json!({
            "Conditions": {"No": {"Fn::Equals": ["a", "b"]}},
            "Resources": {"Off": {"Condition": "No", "DependsOn": "A"}, "A": {}},
        }));
        assert_eq!(
            dependencies(&stack.template, &stack.conditions).unwrap().keys().collect::<Vec<_>>(),
            ["A"]
        );
    }

    #[test]
    fn circles_are_named() {
        let table = [
            (json!({"A": {"Properties": {"X": {"Ref": "A"}}}}), "A → A"),
            (
                json!({
                    "A": {"DependsOn": "B"}, "B": {"Properties": {"X": {"Fn::GetAtt": "C.Arn"}}},
                    "C": {"Properties": {"X": {"Fn::Sub": "${B}"}}},
                }),
                "B → C → B",
            ),
        ];
        for (resources, expected) in table {
            let template = template(json!({ "Resources": resources }));
            let error = dependencies(&template, &IndexMap::new()).unwrap_err();
            assert_eq!(error.code(), Code::CircularDependency);
            assert_eq!(error.message(), format!("resources depend on each other in a circle: {expected}"));
        }
    }

    #[test]
    fn a_long_chain_is_no_circle() {
        let resources: serde_json::Map<String, Value> = (0..5000)
            .map(|i| (format!("R{i}"), json!({"Type": "T", "DependsOn": format!("R{}", i + 1)})))
            .chain([("R5000".to_owned(), json!({"Type": "T"}))])
            .collect();
        let template = template(json!({ "Resources": resources }));
        assert_eq!(dependencies(&template, &IndexMap::new()).unwrap().len(), 5001);
    }
}
