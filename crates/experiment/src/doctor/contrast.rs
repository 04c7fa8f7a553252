//! Experiments that differ from the load that the user asks about in one thing, each for a question that the others
//! leave open.

use lastdrop_model::examination::StepKind;
use lastdrop_model::plan::Plan;

/// Returns the plan of this kind of step. None if the plan has nothing that could differ.
pub fn plan(plan: &Plan, kind: StepKind) -> Option<Plan> {
    let other = match kind {
        StepKind::Uncompressed => uncompressed(plan),
        StepKind::OtherSessions => other_sessions(plan),
        _ => return None,
    };
    (other != *plan && plan.replay.is_none()).then_some(other)
}

/// Requests no compressed answers.
fn uncompressed(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    plan.http.compressed = false;
    for request in &mut plan.requests {
        request.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("accept-encoding"));
    }
    plan
}

/// Gives each user its own value of the cookies that all users share.
fn other_sessions(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for request in plan.requests.iter_mut().filter(|r| !r.literal && r.lines.is_none()) {
        for (_, value) in request.headers.iter_mut().filter(|(name, _)| name.eq_ignore_ascii_case("cookie")) {
            // With columns of a data file, or values from answers, users have their own cookies already.
            if !value.contains("{{") {
                *value =
                    value.split(';').map(|one| format!("{}{{{{user}}}}", one.trim())).collect::<Vec<_>>().join("; ");
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(headers: &[(&str, &str)]) -> Plan {
        let mut plan = Plan::new("http://127.0.0.1/".parse().expect("a URL"), 1);
        plan.requests[0].headers = headers.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        plan
    }

    #[test]
    fn a_plan_differs_in_what_is_asked_and_in_nothing_else() {
        let compressed = asked(&[("accept-encoding", "gzip"), ("X-A", "b")]);
        assert_eq!(plan(&compressed, StepKind::Uncompressed), Some(asked(&[("X-A", "b")])));
        assert_eq!(plan(&compressed, StepKind::OtherSessions), None);
        assert_eq!(plan(&asked(&[]), StepKind::Uncompressed), None);
    }

    #[test]
    fn each_user_gets_cookies_of_its_own_unless_it_has_them() {
        let shared = plan(&asked(&[("Cookie", "PHPSESSID=abc; lang=de")]), StepKind::OtherSessions);
        assert_eq!(shared, Some(asked(&[("Cookie", "PHPSESSID=abc{{user}}; lang=de{{user}}")])));
        assert_eq!(plan(&asked(&[("Cookie", "id={{session}}")]), StepKind::OtherSessions), None);
    }
}
