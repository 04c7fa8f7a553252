//! Repeats every evaluation from stored documents, without a server. The documents under `stored/` were
//! written by runs against test targets.

use lastdrop_analyze::compare::{LiveComparison, assumed_floor, stored};
use lastdrop_analyze::usl;
use lastdrop_model::Run;
use lastdrop_model::documents::{CapacityDocument, CompareDocument, CompareVerdict};

fn run(text: &str) -> Run {
    serde_json::from_str(text).expect("an exported run")
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-9)
}

#[test]
fn a_comparison_of_two_runs() {
    let (a, b) = (run(include_str!("stored/run.json")), run(include_str!("stored/slower.json")));
    let c = stored(&a, &b, &assumed_floor());
    assert_eq!(c.verdict, CompareVerdict::Worse, "{c:?}");
    assert_eq!(stored(&b, &a, &assumed_floor()).verdict, CompareVerdict::Better);
    assert_eq!(stored(&a, &a, &assumed_floor()).verdict, CompareVerdict::NoDifference);
}

#[test]
fn a_live_comparison() {
    let kept: CompareDocument = serde_json::from_str(include_str!("stored/compare.json")).expect("a comparison");
    let mut live = LiveComparison::new(15, false, true, 1);
    for block in kept.blocks.iter().filter(|b| b.spoiled.is_empty()) {
        live.add(block.a.clone(), block.b.clone());
    }
    let again = live.conclude();
    assert_eq!((again.verdict, &again.reason), (kept.verdict, &kept.reason));
    for (name, m) in &kept.metrics {
        assert!(same(again.metrics[name].ratio, m.ratio) && same(again.metrics[name].interval[0], m.interval[0]));
        assert_eq!(again.metrics[name].verdict, m.verdict);
    }
}

#[test]
fn the_knee_and_the_scalability_law() {
    let kept: CapacityDocument = serde_json::from_str(include_str!("stored/capacity.json")).expect("a capacity");
    let (law, was) = (usl::fit(&kept.stairs).expect("enough steps"), kept.usl.expect("was fitted"));
    assert!(same(law.lambda, was.lambda) && same(law.kappa, was.kappa) && law.fits == was.fits);
    let (knee, was) = (usl::knee(&kept.stairs, Some(&law)).expect("a knee"), kept.knee.expect("was found"));
    assert!(same(knee.users, was.users) && knee.interval == was.interval);
}
