//! Validity and objectives of a stored run are judged again without a server.

use lastdrop_analyze::objective;
use lastdrop_diagnose::{RunEvidence, judge};
use lastdrop_model::Run;

#[test]
fn validity_and_objectives() {
    let run: Run = serde_json::from_str(include_str!("../../analyze/tests/stored/run.json")).expect("an exported run");
    assert_eq!(judge(&RunEvidence::of(&run)), run.validity);
    let judged = objective::judge(&run.plan.objectives, &run.plan, &run.phases, run.server.as_ref());
    assert_eq!(judged, run.objectives);
    assert_eq!(judged.iter().map(|j| j.met).collect::<Vec<_>>(), [true, true, false]);
}
