// SPDX-License-Identifier: MIT OR Apache-2.0

//! Loops in a graph of imports.

use std::collections::{BTreeMap, BTreeSet};

/// For each node, the nodes that it imports.
pub type Graph<T> = BTreeMap<T, BTreeSet<T>>;

/// The groups of nodes that reach each other. A single node is not a group, even if it imports itself.
#[must_use]
pub fn circles<T: Ord + Clone>(graph: &Graph<T>) -> Vec<BTreeSet<T>> {
    let reached: Graph<T> = graph.keys().map(|from| (from.clone(), reachable(graph, from))).collect();
    let meets = |from: &T, to: &T| reached.get(from).is_some_and(|all| all.contains(to));
    let mut found: Vec<BTreeSet<T>> = Vec::new();
    for (from, all) in &reached {
        let circle: BTreeSet<T> =
            all.iter().filter(|to| *to == from || meets(to, from)).chain([from]).cloned().collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

fn reachable<T: Ord + Clone>(graph: &Graph<T>, from: &T) -> BTreeSet<T> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(node) = next.pop() {
        for to in graph.get(node).into_iter().flatten() {
            if reached.insert(to.clone()) {
                next.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(arrows: &[(&'static str, &'static str)]) -> Graph<&'static str> {
        let mut graph = Graph::new();
        for (from, to) in arrows {
            graph.entry(*from).or_insert_with(BTreeSet::new).insert(*to);
        }
        graph
    }

    #[test]
    fn a_chain_and_a_diamond_have_no_circle() {
        assert!(circles(&graph(&[("a", "b"), ("b", "c"), ("a", "c"), ("a", "d"), ("d", "c")])).is_empty());
    }

    #[test]
    fn a_circle_is_found_without_what_only_leads_to_it() {
        let found = circles(&graph(&[("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")]));
        assert_eq!(found, [BTreeSet::from(["b", "c"])]);
    }

    #[test]
    fn two_circles_are_two_groups() {
        let found = circles(&graph(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c")]));
        assert_eq!(found, [BTreeSet::from(["a", "b"]), BTreeSet::from(["c", "d"])]);
    }
}
