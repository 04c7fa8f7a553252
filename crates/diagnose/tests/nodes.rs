//! The same servers on several machines, diagnosed together.

use std::fs;
use std::path::Path;

use lastdrop_diagnose::findings::{diagnose, diagnose_without};
use lastdrop_model::documents::Severity;
use lastdrop_model::examination::Examination;
use serde_json::json;

/// Loads a stored examination as that of an agent's machine.
fn node(case: &str, agent: &str) -> Examination {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(case);
    let stored: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).expect("readable")).expect("JSON");
    let mut all: Examination = serde_json::from_value(stored["examination"].clone()).expect("an examination");
    let name = |server: &mut String| *server = format!("{agent}/{server}");
    all.servers.iter_mut().for_each(|s| name(&mut s.server));
    all.steps.iter_mut().flat_map(|s| &mut s.servers).for_each(|s| name(&mut s.server));
    all.inside.iter_mut().for_each(|i| name(&mut i.server));
    all.growth.iter_mut().for_each(|g| name(&mut g.server));
    Examination { machine: agent.into(), ..all }
}

/// A site of these machines: the servers of all together, and each machine by itself.
fn site(nodes: Vec<Examination>) -> Examination {
    let servers = nodes.iter().flat_map(|n| n.servers.clone()).collect();
    Examination { servers, nodes, ..Examination::default() }
}

#[test]
fn what_all_nodes_have_is_told_once_with_their_names_and_the_changes_of_each() {
    let pair = |case: &str| site(vec![node(case, "a"), node(case, "b")]);
    let alone = diagnose(&node("workers-exhausted.json", "a"));
    let said = diagnose(&pair("workers-exhausted.json"));
    assert_eq!(said.limit.as_deref(), Some("workers-exhausted"));
    assert_eq!(said.findings.len(), alone.findings.len(), "{:#?}", said.findings);
    let limit = &said.findings[0];
    assert!(limit.severity == Severity::Limit && limit.title.ends_with("(a/apache, b/apache)"), "{}", limit.title);
    let of: Vec<&str> = limit.fix.iter().map(|f| f.server.as_str()).collect();
    assert_eq!((of.len(), of.contains(&"b/apache")), (2 * alone.findings[0].fix.len(), true), "{of:?}");
    assert!(limit.evidence.iter().any(|e| e.name.starts_with("b/apache: ")), "{:?}", limit.evidence);
    assert_eq!(limit.expect, alone.findings[0].expect);
    assert!(said.differs.is_empty(), "{:?}", said.differs);
    // A refuted limit is refuted for each machine.
    let again = diagnose_without(&pair("workers-exhausted.json"), &["workers-exhausted"]);
    assert_ne!(again.limit.as_deref(), Some("workers-exhausted"));
}

#[test]
fn one_node_that_holds_the_site_back_is_named_and_what_differs_is_told() {
    let with_pool = |case: &str, agent: &str, workers: u64| {
        let mut node = node(case, agent);
        node.servers[0].settings = [("MaxRequestWorkers".to_string(), workers.into())].into();
        node
    };
    let (large, small) = (with_pool("healthy.busy.json", "b", 400), with_pool("workers-exhausted.json", "a", 8));
    let said = diagnose(&site(vec![large, small]));
    assert_eq!(said.limit.as_deref(), Some("workers-exhausted"));
    let limit = &said.findings[0];
    assert!(limit.title.ends_with("(a/apache)") && limit.server == "a/apache", "{}", limit.title);
    // The gain for the whole site is unknown if only one of two machines has the finding.
    assert_eq!(limit.expect, None);
    let pool = said.differs.iter().find(|d| d.name == "MaxRequestWorkers").expect("it differs");
    assert_eq!((pool.server.as_str(), &pool.value, &pool.others), ("a/apache", &json!(8), &json!(400)));
    // Empty examinations have no findings.
    let none = diagnose(&site(vec![Examination::default(), Examination::default()]));
    assert!(none.limit.is_none() && none.findings.is_empty(), "{none:?}");
}
