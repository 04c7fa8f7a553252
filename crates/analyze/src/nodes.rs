//! Finds nodes that differ from others of their kind: in settings, memory, request rate, errors.
//!
//! The usual value of a setting is the one that most nodes have; in a tie, that of the node named first. A
//! number is unusual if it differs from the median of the others by more than a quarter, and by more than the
//! others differ among themselves. A rate must also differ by more than chance. Of two nodes, the second is
//! compared with the first, because users usually name the reference node first.

use std::collections::{BTreeMap, BTreeSet};

use lastdrop_model::documents::{NodeDifference, NodeDifferenceKind};
use lastdrop_model::{Setting, Settings};
use serde_json::{Value, json};

use crate::series::median;

/// A number that differs from the others' median by this fraction is unusual.
const OFF: f64 = 0.25;
/// A difference of counts beyond this many standard deviations is not chance.
const BY_CHANCE: f64 = 3.0;

/// A node's observed state.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Node {
    /// Its name.
    pub server: String,
    /// Only nodes of the same kind are compared.
    pub kind: String,
    /// `None` if unknown.
    pub settings: Option<Settings>,
    /// Σ PSS of its processes.
    pub real_memory_bytes: Option<u64>,
    pub requests_rps: Option<f64>,
    /// The time over which the rate was measured.
    pub span_s: f64,
    /// Errors by name: refused connections, killed processes, log lines.
    pub errors: BTreeMap<String, u64>,
}

/// Returns all differences between nodes of the same kind, by node.
#[must_use]
pub fn differing(nodes: &[Node]) -> Vec<NodeDifference> {
    let kinds: BTreeSet<&str> = nodes.iter().map(|n| n.kind.as_str()).collect();
    let mut all = Vec::new();
    for kind in kinds {
        let alike: Vec<&Node> = nodes.iter().filter(|n| n.kind == kind).collect();
        if alike.len() > 1 {
            all.extend(by_settings(&alike));
            all.extend(by_numbers(&alike));
            all.extend(by_errors(&alike));
        }
    }
    let place = |d: &NodeDifference| nodes.iter().position(|n| n.server == d.server);
    all.sort_by_key(place);
    all
}

fn by_settings(nodes: &[&Node]) -> Vec<NodeDifference> {
    let known: Vec<(&Node, &Settings)> = nodes.iter().filter_map(|n| Some((*n, n.settings.as_ref()?))).collect();
    let names: BTreeSet<&String> = known.iter().flat_map(|(_, settings)| settings.keys()).collect();
    let mut all = Vec::new();
    for name in names {
        let values: Vec<Option<&Setting>> = known.iter().map(|(_, settings)| settings.get(name)).collect();
        let count = |value: &Option<&Setting>| values.iter().filter(|other| *other == value).count();
        let most = values.iter().map(count).max().unwrap_or(0);
        let Some(usual) = values.iter().find(|value| count(value) == most) else { continue };
        for ((node, _), value) in known.iter().zip(&values).filter(|(_, value)| *value != usual) {
            let (name, value, others) = (name.clone(), json!(value), json!(usual));
            all.push(NodeDifference {
                server: node.server.clone(),
                what: NodeDifferenceKind::Settings,
                name,
                value,
                others,
            });
        }
    }
    all
}

fn by_numbers(nodes: &[&Node]) -> Vec<NodeDifference> {
    let mut all = Vec::new();
    let memory: Vec<Option<f64>> = nodes.iter().map(|n| n.real_memory_bytes.map(|b| b as f64)).collect();
    for (i, others) in unusual(&memory) {
        let value = json!(nodes[i].real_memory_bytes);
        all.push(differs(
            nodes[i],
            NodeDifferenceKind::Memory,
            "real_memory_bytes",
            value,
            json!(others.round() as u64),
        ));
    }
    let rates: Vec<Option<f64>> = nodes.iter().map(|n| n.requests_rps).collect();
    for (i, others) in unusual(&rates) {
        let (node, rate) = (nodes[i], rates[i].unwrap_or(0.0));
        // Request counts scatter by their square root.
        let chance = BY_CHANCE * ((rate + others) * node.span_s).sqrt();
        if (rate - others).abs() * node.span_s > chance {
            all.push(differs(node, NodeDifferenceKind::Rate, "requests_rps", json!(rate), json!(others)));
        }
    }
    all
}

/// Returns the index of each unusual number, with the median of the others.
fn unusual(numbers: &[Option<f64>]) -> Vec<(usize, f64)> {
    let known: Vec<(usize, f64)> = numbers.iter().enumerate().filter_map(|(i, n)| Some((i, (*n)?))).collect();
    let first = known.first().map_or(0, |(i, _)| *i);
    let mut all = Vec::new();
    for (i, value) in &known {
        if known.len() == 2 && *i == first {
            continue;
        }
        let others: Vec<f64> = known.iter().filter(|(j, _)| j != i).map(|(_, n)| *n).collect();
        if others.is_empty() {
            continue;
        }
        let middle = median(&others);
        let (least, most) = others.iter().fold((f64::INFINITY, 0.0_f64), |(l, m), n| (l.min(*n), m.max(*n)));
        let off = (value - middle).abs();
        if off > OFF * middle && off > most - least {
            all.push((*i, middle));
        }
    }
    all
}

fn by_errors(nodes: &[&Node]) -> Vec<NodeDifference> {
    let names: BTreeSet<&String> = nodes.iter().flat_map(|n| n.errors.keys()).collect();
    let mut all = Vec::new();
    for name in names {
        let counts: Vec<u64> = nodes.iter().map(|n| n.errors.get(name).copied().unwrap_or(0)).collect();
        for (i, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let others: Vec<f64> = counts.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, n)| *n as f64).collect();
            let middle = median(&others);
            // A node with as many errors as the others is not unusual.
            if *count as f64 > middle {
                all.push(differs(nodes[i], NodeDifferenceKind::Errors, name, json!(count), json!(middle)));
            }
        }
    }
    all
}

fn differs(node: &Node, what: NodeDifferenceKind, name: &str, value: Value, others: Value) -> NodeDifference {
    NodeDifference { server: node.server.clone(), what, name: name.into(), value, others }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(server: &str, workers: i64) -> Node {
        let settings = Settings::from([("MaxRequestWorkers".to_string(), Setting::Count(workers))]);
        Node {
            server: server.into(),
            kind: "apache".into(),
            settings: Some(settings),
            real_memory_bytes: Some(100 << 20),
            requests_rps: Some(200.0),
            span_s: 2.0,
            errors: BTreeMap::new(),
        }
    }

    fn told(nodes: &[Node]) -> Vec<String> {
        differing(nodes)
            .iter()
            .map(|d| format!("{} {:?} {} {} {}", d.server, d.what, d.name, d.value, d.others))
            .collect()
    }

    #[test]
    fn the_setting_that_most_have_is_the_usual_one_and_of_two_that_of_the_first() {
        assert_eq!(told(&[node("a", 10), node("b", 10), node("c", 10)]), [""; 0]);
        assert_eq!(told(&[node("a", 20), node("b", 10), node("c", 10)]), ["a Settings MaxRequestWorkers 20 10"]);
        assert_eq!(told(&[node("a", 20), node("b", 10)]), ["b Settings MaxRequestWorkers 10 20"]);
        let lacks = Node { settings: Some(Settings::new()), ..node("b", 10) };
        assert_eq!(told(&[node("a", 20), lacks]), ["b Settings MaxRequestWorkers null 20"]);
        let unknown = Node { settings: None, ..node("b", 10) };
        assert_eq!(told(&[node("a", 20), unknown]), [""; 0]);
        // Nodes of another kind are not compared.
        let other = Node { kind: "nginx".into(), ..node("b", 10) };
        assert_eq!(told(&[node("a", 20), other]), [""; 0]);
    }

    #[test]
    fn a_number_is_unusual_a_quarter_off_the_others_and_beyond_what_these_are_apart() {
        let with = |server: &str, mb: u64| Node { real_memory_bytes: Some(mb << 20), ..node(server, 10) };
        let mb = |n: u64| (n << 20).to_string();
        let line =
            |server: &str, is: u64, others: u64| format!("{server} Memory real_memory_bytes {} {}", mb(is), mb(others));
        assert_eq!(told(&[with("a", 100), with("b", 100), with("c", 124)]), [""; 0]);
        assert_eq!(told(&[with("a", 100), with("b", 100), with("c", 130)]), [line("c", 130, 100)]);
        // The others of c differ as much among themselves; those of a do not.
        assert_eq!(told(&[with("a", 60), with("b", 140), with("c", 130)]), [line("a", 60, 135)]);
        assert_eq!(told(&[with("a", 100), with("b", 200)]), [line("b", 200, 100)]);
        let unread = Node { real_memory_bytes: None, ..node("b", 10) };
        assert_eq!(told(&[with("a", 100), unread]), [""; 0]);
    }

    #[test]
    fn a_rate_differs_by_more_than_chance() {
        let with = |server: &str, rps: f64| Node { requests_rps: Some(rps), ..node(server, 10) };
        assert_eq!(told(&[with("a", 200.0), with("b", 100.0)]), ["b Rate requests_rps 100.0 200.0"]);
        // Two requests against four.
        assert_eq!(told(&[with("a", 1.0), with("b", 2.0)]), [""; 0]);
        assert_eq!(told(&[with("a", 0.0), with("b", 0.0)]), [""; 0]);
    }

    #[test]
    fn any_error_that_the_others_do_not_have_is_told() {
        let with = |server: &str, n: u64| Node {
            errors: BTreeMap::from([("ListenOverflows".to_string(), n)]),
            ..node(server, 10)
        };
        assert_eq!(told(&[node("a", 10), with("b", 3)]), ["b Errors ListenOverflows 3 0.0"]);
        assert_eq!(told(&[with("a", 0), with("b", 0)]), [""; 0]);
        assert_eq!(told(&[with("a", 3), with("b", 3)]), [""; 0]);
    }
}
