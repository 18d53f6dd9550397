//! Order by dependencies, and the critical path.

use std::collections::HashMap;

use indexmap::IndexMap;

use crate::error::{Code, Error, Result};

/// The ids with those they need before them; ties keep their order. Needs that are not ids are passed over.
///
/// # Errors
/// `CircularDependency`, naming the circle.
pub fn dependencies_first(needs: &IndexMap<String, Vec<String>>) -> Result<Vec<String>> {
    let mut waiting: HashMap<&str, usize> = HashMap::new();
    let mut dependents: HashMap<&str, Vec<&str>> = HashMap::new();
    for (id, list) in needs {
        let mut count = 0;
        for need in list.iter().filter(|need| needs.contains_key(*need)) {
            dependents.entry(need).or_default().push(id);
            count += 1;
        }
        waiting.insert(id, count);
    }
    // Repeated passes would be quadratic; a queue by position keeps ties in order and is linear but for the heap.
    let position: HashMap<&str, usize> = needs.keys().enumerate().map(|(n, id)| (id.as_str(), n)).collect();
    let mut ready: std::collections::BTreeSet<(usize, &str)> = needs
        .keys()
        .filter(|id| waiting.get(id.as_str()) == Some(&0))
        .map(|id| (position.get(id.as_str()).copied().unwrap_or(0), id.as_str()))
        .collect();
    let mut order = Vec::with_capacity(needs.len());
    while let Some((_, id)) = ready.pop_first() {
        order.push(id.to_owned());
        for dependent in dependents.get(id).into_iter().flatten() {
            if let Some(count) = waiting.get_mut(dependent) {
                *count -= 1;
                if *count == 0 {
                    ready.insert((position.get(dependent).copied().unwrap_or(0), dependent));
                }
            }
        }
    }
    if order.len() == needs.len() {
        return Ok(order);
    }
    let circle = circle(needs, &order);
    Err(Error::new(
        Code::CircularDependency,
        format!("these depend on each other in a circle: {}", circle.join(" → ")),
    )
    .hint("take one of the references out of the circle"))
}

/// A circle among the ids that could not be ordered; the first id again at its end.
fn circle(needs: &IndexMap<String, Vec<String>>, ordered: &[String]) -> Vec<String> {
    let stuck = |id: &String| needs.contains_key(id) && !ordered.contains(id);
    let mut path: Vec<String> = Vec::new();
    let mut at = needs.keys().find(|id| stuck(id)).cloned();
    while let Some(id) = at {
        if let Some(start) = path.iter().position(|seen| *seen == id) {
            let mut circle = path.split_off(start);
            circle.push(id);
            return circle;
        }
        at = needs.get(&id).and_then(|list| list.iter().find(|need| stuck(need))).cloned();
        path.push(id);
    }
    path
}

/// For each id the length of the longest chain that waits for it, itself included. `order`: dependencies first.
pub fn weights(needs: &IndexMap<String, Vec<String>>, order: &[String]) -> HashMap<String, u64> {
    let mut weights: HashMap<String, u64> = order.iter().map(|id| (id.clone(), 1)).collect();
    for id in order.iter().rev() {
        let own = weights.get(id).copied().unwrap_or(1);
        for need in needs.get(id).into_iter().flatten() {
            if let Some(weight) = weights.get_mut(need) {
                *weight = (*weight).max(own + 1);
            }
        }
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(table: &[(&str, &[&str])]) -> IndexMap<String, Vec<String>> {
        table
            .iter()
            .map(|(id, list)| ((*id).to_owned(), list.iter().map(|need| (*need).to_owned()).collect()))
            .collect()
    }

    #[test]
    fn dependencies_come_first_and_ties_keep_their_order() {
        let needs =
            needs(&[("D", &["B", "C"]), ("C", &["A"]), ("B", &["A", "Gone"]), ("A", &[]), ("E", &[])]);
        let order = dependencies_first(&needs).unwrap();
        assert_eq!(order, ["A", "C", "B", "D", "E"]);
        let weights = weights(&needs, &order);
        assert_eq!(order.iter().map(|id| weights[id]).collect::<Vec<_>>(), [3, 2, 2, 1, 1]);
    }

    #[test]
    fn a_circle_is_named() {
        let error = dependencies_first(&needs(&[("X", &["A"]), ("A", &["B"]), ("B", &["A"])])).unwrap_err();
        assert_eq!(error.code(), Code::CircularDependency);
        assert!(error.message().ends_with("A → B → A"), "{error}");
    }
}
