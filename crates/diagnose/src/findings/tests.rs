use lastdrop_model::examination::{GeneratorSeen, Step, StepKind};

use super::*;

#[test]
fn every_rule_is_explained_and_what_is_explained_has_a_rule() {
    let ruled: std::collections::BTreeSet<&str> =
        [LIMITS, WASTES, RISKS].iter().flat_map(|t| t.iter()).flat_map(|t| t.iter()).map(|r| r.id).collect();
    let told: std::collections::BTreeSet<&str> = all_about().iter().map(|a| a.id).collect();
    assert_eq!(ruled, told);
}

/// Two full processors, of which the server has a tenth: by whom they are filled is all the difference.
#[test]
fn what_other_machines_give_to_the_load_is_taken_from_none_of_the_servers() {
    let full = |generator: GeneratorSeen| {
        let seen = ServerSeen { server: "nginx".into(), cpu_cores: Some(0.2), ..ServerSeen::default() };
        let step = Step { cores: vec![1.0; 2], servers: vec![seen], generator, ..Step::default() };
        let all = Examination { steps: vec![Step { kind: StepKind::Main, ..step }], ..Examination::default() };
        Case::of(&all).is_some_and(|case| case.cpu_full())
    };
    let cores = 1.8;
    assert!(full(GeneratorSeen { cores, ..GeneratorSeen::default() }));
    assert!(full(GeneratorSeen { cores, cores_here: Some(1.8), ..GeneratorSeen::default() }));
    assert!(!full(GeneratorSeen { cores, cores_here: Some(0.0), ..GeneratorSeen::default() }));
}
