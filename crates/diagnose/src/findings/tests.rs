use super::*;

#[test]
fn every_rule_is_explained_and_what_is_explained_has_a_rule() {
    let ruled: std::collections::BTreeSet<&str> =
        [LIMITS, WASTES, RISKS].iter().flat_map(|t| t.iter()).flat_map(|t| t.iter()).map(|r| r.id).collect();
    let told: std::collections::BTreeSet<&str> = all_about().iter().map(|a| a.id).collect();
    assert_eq!(ruled, told);
}
