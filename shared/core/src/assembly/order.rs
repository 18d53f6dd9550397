//! The order in which stacks are deployed.

use std::collections::{BTreeMap, BTreeSet};

/// What each node needs, by node. What is needed and is no key counts like a key that needs nothing.
pub(super) type Needs = BTreeMap<usize, BTreeSet<usize>>;

/// Nodes in levels, each one level above the highest of those it needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    /// Ascending within a level, so that the same assembly always gives the same order.
    pub levels: Vec<Vec<usize>>,
    /// Without what follows through others: the least needs that give this order.
    pub needs: Needs,
}

/// Arranges the nodes `kept`. What needs a node that is not kept needs what that needs.
///
/// `Err`: nodes that depend on each other in a circle, in order, the first one again at the end.
pub(super) fn arrange(needs: &Needs, kept: &BTreeSet<usize>) -> Result<Order, Vec<usize>> {
    let needs = bridged(needs, kept);
    let sorted = producers_first(&needs)?;
    let mut depths: BTreeMap<usize, usize> = BTreeMap::new();
    let mut levels: Vec<Vec<usize>> = Vec::new();
    for &node in &sorted {
        let below = needs.get(&node).into_iter().flatten();
        let depth = below.filter_map(|need| depths.get(need)).max().map_or(0, |depth| depth + 1);
        depths.insert(node, depth);
        match levels.get_mut(depth) {
            Some(level) => level.push(node),
            None => levels.push(vec![node]),
        }
    }
    for level in &mut levels {
        level.sort_unstable();
    }
    Ok(Order { levels, needs: reduced(&needs, &sorted) })
}

/// The needs of `kept` among themselves; a way through others is one step.
fn bridged(needs: &Needs, kept: &BTreeSet<usize>) -> Needs {
    let of = |node: &usize| needs.get(node).into_iter().flatten().copied();
    let from = |&node: &usize| {
        let (mut found, mut open): (BTreeSet<usize>, BTreeSet<usize>) =
            of(&node).partition(|need| kept.contains(need));
        let mut passed = open.clone();
        while let Some(between) = open.pop_first() {
            for need in of(&between) {
                if !kept.contains(&need) {
                    if passed.insert(need) {
                        open.insert(need);
                    }
                } else if need != node {
                    found.insert(need);
                }
            }
        }
        (node, found)
    };
    kept.iter().map(from).collect()
}

/// Sorts nodes so that each comes after those it needs.
fn producers_first(needs: &Needs) -> Result<Vec<usize>, Vec<usize>> {
    let mut waits = needs.clone();
    let mut consumers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (&node, needs) in needs {
        for &need in needs {
            consumers.entry(need).or_default().push(node);
        }
    }
    let mut ready: BTreeSet<usize> =
        waits.iter().filter(|(_, needs)| needs.is_empty()).map(|(node, _)| *node).collect();
    let mut order = Vec::with_capacity(needs.len());
    while let Some(node) = ready.pop_first() {
        waits.remove(&node);
        order.push(node);
        for consumer in consumers.remove(&node).unwrap_or_default() {
            if let Some(needs) = waits.get_mut(&consumer) {
                needs.remove(&node);
                if needs.is_empty() {
                    ready.insert(consumer);
                }
            }
        }
    }
    if waits.is_empty() { Ok(order) } else { Err(circle(&waits)) }
}

/// Each node that still waits, waits for another: following them ends in a circle.
fn circle(waits: &Needs) -> Vec<usize> {
    let mut path: Vec<usize> = waits.keys().next().copied().into_iter().collect();
    let mut places: BTreeMap<usize, usize> = BTreeMap::new();
    while let Some(&last) = path.last() {
        if let Some(&start) = places.get(&last) {
            return path.split_off(start);
        }
        places.insert(last, path.len() - 1);
        let Some(&next) = waits.get(&last).and_then(BTreeSet::first) else { break };
        path.push(next);
    }
    path
}

/// Takes out the needs that follow through others. `sorted`: the nodes, producers first.
fn reduced(needs: &Needs, sorted: &[usize]) -> Needs {
    // A bit for each place in `sorted`: what a node needs, directly or not.
    let places: BTreeMap<usize, usize> =
        sorted.iter().enumerate().map(|(place, node)| (*node, place)).collect();
    let mut below: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    let mut least = Needs::new();
    for &node in sorted {
        let direct = needs.get(&node).cloned().unwrap_or_default();
        let mut all = vec![0; sorted.len().div_ceil(64)];
        for bits in direct.iter().filter_map(|need| below.get(need)) {
            for (word, bits) in all.iter_mut().zip(bits) {
                *word |= bits;
            }
        }
        let bit = |need: &usize| places.get(need).map(|place| (place / 64, 1_u64 << (place % 64)));
        let follows = |all: &[u64], need: &usize| {
            bit(need).is_some_and(|(word, bit)| all.get(word).is_some_and(|bits| bits & bit != 0))
        };
        least.insert(node, direct.iter().filter(|need| !follows(&all, need)).copied().collect());
        for (word, bit) in direct.iter().filter_map(bit) {
            if let Some(bits) = all.get_mut(word) {
                *bits |= bit;
            }
        }
        below.insert(node, all);
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who needs whom.
    type Edges = [(usize, usize)];

    fn needs(edges: &Edges, count: usize) -> Needs {
        let mut needs: Needs = (0..count).map(|node| (node, BTreeSet::new())).collect();
        for &(node, need) in edges {
            needs.entry(node).or_default().insert(need);
        }
        needs
    }

    /// `0|1<0` is two levels, in which 1 needs 0.
    fn shown(order: &Order) -> String {
        let node = |node: &usize| {
            let needs: Vec<String> = order.needs[node].iter().map(ToString::to_string).collect();
            if needs.is_empty() { node.to_string() } else { format!("{node}<{}", needs.join(",")) }
        };
        let level = |level: &Vec<usize>| level.iter().map(node).collect::<Vec<_>>().join(" ");
        order.levels.iter().map(level).collect::<Vec<_>>().join("|")
    }

    fn all(edges: &Edges, count: usize) -> Result<String, Vec<usize>> {
        arrange(&needs(edges, count), &(0..count).collect()).map(|order| shown(&order))
    }

    #[test]
    fn producers_come_first_and_ties_keep_their_order() {
        let table: &[(&Edges, usize, &str)] = &[
            (&[], 0, ""),
            (&[], 3, "0 1 2"),
            (&[(0, 2)], 3, "1 2|0<2"),
            (&[(1, 0), (2, 1)], 3, "0|1<0|2<1"),
            // A diamond, and beside it a node that waits for one of its sides only.
            (&[(1, 0), (2, 0), (3, 1), (3, 2), (4, 2)], 5, "0|1<0 2<0|3<1,2 4<2"),
            // A need of a lower level stays if it does not follow.
            (&[(1, 0), (2, 1), (2, 3)], 4, "0 3|1<0|2<1,3"),
        ];
        for (edges, count, expected) in table {
            assert_eq!(all(edges, *count).unwrap(), *expected, "{edges:?}");
        }
    }

    #[test]
    fn what_follows_through_others_is_left_out() {
        let table: &[(&Edges, usize, &str)] = &[
            (&[(1, 0), (2, 1), (2, 0)], 3, "0|1<0|2<1"),
            (&[(1, 0), (2, 1), (3, 2), (3, 1), (3, 0), (2, 0)], 4, "0|1<0|2<1|3<2"),
            (&[(1, 0), (2, 0), (3, 0), (3, 1), (3, 2)], 4, "0|1<0 2<0|3<1,2"),
            // What is no node counts for nothing.
            (&[(0, 2), (2, 1), (0, 1), (0, 9)], 3, "1|2<1|0<2"),
        ];
        for (edges, count, expected) in table {
            assert_eq!(all(edges, *count).unwrap(), *expected, "{edges:?}");
        }
    }

    #[test]
    fn a_way_through_what_is_left_out_stays() {
        let table: &[(&Edges, &[usize], &str)] = &[
            (&[(0, 1), (1, 2)], &[0, 2], "2|0<2"),
            (&[(0, 1), (1, 2), (2, 3)], &[0, 3], "3|0<3"),
            (&[(0, 1), (1, 2), (0, 3), (3, 2)], &[0, 2, 3], "2|3<2|0<3"),
            (&[(0, 1), (2, 1)], &[0, 2], "0 2"),
            // A circle of what is left out, or through it to the node itself, is nobody's order.
            (&[(0, 1), (1, 2), (2, 1), (2, 3), (1, 0)], &[0, 3], "3|0<3"),
        ];
        for (edges, kept, expected) in table {
            let order = arrange(&needs(edges, 4), &kept.iter().copied().collect()).unwrap();
            assert_eq!(shown(&order), *expected, "{edges:?}");
        }
    }

    #[test]
    fn a_circle_is_named() {
        assert_eq!(all(&[(0, 1), (1, 2), (2, 1), (3, 0)], 4), Err(vec![1, 2, 1]));
        assert_eq!(all(&[(0, 0)], 1), Err(vec![0, 0]));
        let through = arrange(&needs(&[(0, 1), (1, 2), (2, 0)], 3), &[0, 2].into());
        assert_eq!(through, Err(vec![0, 2, 0]));
    }

    #[test]
    fn a_long_chain_is_no_deep_recursion() {
        let edges: Vec<_> = (0..2_000).map(|n| (n, n + 1)).collect();
        let order = arrange(&needs(&edges, 2_001), &(0..2_001).collect()).unwrap();
        assert_eq!((order.levels.len(), &order.levels[0]), (2_001, &vec![2_000]));
    }

    #[test]
    fn a_hundred_nodes_need_no_more_than_they_must() {
        // Each needs all before it: what is left is a chain.
        let dense: Vec<_> = (0..100).flat_map(|n| (0..n).map(move |need| (n, need))).collect();
        let order = arrange(&needs(&dense, 100), &(0..100).collect()).unwrap();
        assert!(order.needs.values().all(|needs| needs.len() <= 1));
        // Ten levels of ten, each needing the ten below and what is further down.
        let layers: Vec<_> = (0..100).flat_map(|n| (0..n / 10 * 10).map(move |need| (n, need))).collect();
        let order = arrange(&needs(&layers, 100), &(0..100).collect()).unwrap();
        assert_eq!(order.levels.len(), 10);
        assert!(order.needs.values().all(|needs| needs.len() <= 10));
    }
}
