//! The classes of a plan's requests, each as a plan that sends requests of this class only.

use std::time::Duration;

use lastdrop_model::class::Classes;
use lastdrop_model::request::{Pick, RequestSpec};
use lastdrop_model::{Load, Phase, Plan};

use crate::lab::LabError;

/// More classes would take minutes, and each would have too few requests.
const MOST_CLASSES: usize = 20;
/// Time for the last answers of a block.
const DRAIN: Duration = Duration::from_secs(30);

/// A class and how to send its requests.
#[derive(Debug, Clone)]
pub struct ClassPlan {
    pub name: String,
    pub plan: Plan,
    /// Requests of one session; 1 where requests are sent one by one.
    pub steps: u64,
}

impl ClassPlan {
    /// Returns the plan of about this many requests, at most for some time.
    pub fn load(&self, users: u32, requests: u64, limit: Duration) -> Plan {
        let mut plan = self.plan.clone();
        // A number of requests is one of sessions where a plan has several.
        let requests = if plan.pick == Pick::Sessions { requests.div_ceil(self.steps) } else { requests };
        plan.phases = vec![Phase {
            name: "main".into(),
            measured: true,
            load: Load::closed(users),
            requests: Some(requests.max(1)),
            duration: Some(limit),
        }];
        plan
    }
}

/// Returns the classes of a plan. The steps of a session are classes of their own if each can be sent without the
/// others.
///
/// # Errors
/// If there are none, or too many.
pub fn classes_of(plan: &Plan) -> Result<Vec<ClassPlan>, LabError> {
    let mut plan = plan.clone();
    plan.think = None;
    plan.requests.iter_mut().for_each(|request| request.think = None);
    plan.page = None;
    plan.objectives.clear();
    plan.drain = DRAIN;
    let classes = match plan.pick {
        Pick::Sessions => sessions(&plan),
        Pick::Session if plan.requests.iter().any(depends) => {
            let name = format!("session of {} requests", plan.requests.len());
            let steps = plan.requests.len() as u64;
            vec![ClassPlan { name, plan, steps }]
        }
        _ => by_name(&plan),
    };
    match classes.len() {
        0 => Err(LabError::Other("the plan has no request class: no request has a weight".into())),
        n if n > MOST_CLASSES => Err(LabError::Other(format!(
            "the plan has {n} request classes, and --memory measures at most {MOST_CLASSES}; give requests of one kind the same name (name = …), or split the plan"
        ))),
        _ => Ok(classes),
    }
}

/// Whether a step of a session needs other steps, or others need it.
fn depends(step: &RequestSpec) -> bool {
    !step.extract.is_empty() || step.once || !matches!(step.method.as_str(), "GET" | "HEAD")
}

fn by_name(plan: &Plan) -> Vec<ClassPlan> {
    let classes = Classes::of(plan);
    let is_sent = |request: &RequestSpec| plan.pick != Pick::Weighted || request.weight > 0.0;
    let class = |name: &String| {
        let requests: Vec<RequestSpec> =
            classes.requests(name).filter_map(|at| plan.requests.get(at)).filter(|r| is_sent(r)).cloned().collect();
        let pick = if plan.pick == Pick::Weighted { Pick::Weighted } else { Pick::Order };
        let url = requests.first()?.url.clone();
        Some(ClassPlan { name: name.clone(), plan: Plan { requests, pick, url, ..plan.clone() }, steps: 1 })
    };
    classes.names.iter().filter_map(class).collect()
}

fn sessions(plan: &Plan) -> Vec<ClassPlan> {
    let names = Classes::of(plan);
    let mut all = Vec::new();
    let mut from = 0;
    for (at, request) in plan.requests.iter().enumerate() {
        if !request.last {
            continue;
        }
        let requests = plan.requests[from..=at].to_vec();
        let first = names.of_request.get(from).and_then(|class| names.names.get(usize::from(*class)));
        let name = format!("session {} ({} …)", all.len() + 1, first.map_or("", String::as_str));
        let (url, steps) = (requests[0].url.clone(), requests.len() as u64);
        all.push(ClassPlan { name, plan: Plan { requests, url, ..plan.clone() }, steps });
        from = at + 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(pick: Pick, paths: &[&str]) -> Plan {
        let url = |path: &&str| format!("http://127.0.0.1{path}").parse().expect("a URL");
        let requests: Vec<RequestSpec> = paths.iter().map(|path| RequestSpec::get(url(path))).collect();
        Plan { requests, pick, ..Plan::new(url(&"/"), 1) }
    }

    fn names(plan: &Plan) -> Vec<String> {
        classes_of(plan).expect("classes").into_iter().map(|class| class.name).collect()
    }

    #[test]
    fn requests_of_one_pattern_are_one_class() {
        let plan = plan(Pick::Weighted, &["/item/1", "/report", "/item/2"]);
        assert_eq!(names(&plan), ["GET /item/{n}", "GET /report"]);
        let items = &classes_of(&plan).expect("classes")[0];
        assert_eq!(items.plan.requests.len(), 2);
        assert_eq!(items.load(3, 50, DRAIN).phases[0].requests, Some(50));
    }

    #[test]
    fn steps_are_classes_unless_they_depend_on_each_other() {
        let mut plan = plan(Pick::Session, &["/a", "/b"]);
        assert_eq!(names(&plan), ["GET /a", "GET /b"]);
        plan.requests[0].once = true;
        assert_eq!(names(&plan), ["session of 2 requests"]);
    }

    #[test]
    fn each_of_several_sessions_is_a_class() {
        let mut plan = plan(Pick::Sessions, &["/a", "/b", "/c"]);
        plan.requests[1].last = true;
        plan.requests[2].last = true;
        assert_eq!(names(&plan), ["session 1 (GET /a …)", "session 2 (GET /c …)"]);
        assert_eq!(classes_of(&plan).expect("classes")[0].load(2, 100, DRAIN).phases[0].requests, Some(50));
    }

    #[test]
    fn too_many_classes_and_none_are_refused() {
        let paths: Vec<String> = (b'a'..=b'z').map(|c| format!("/{}", char::from(c))).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let many = plan(Pick::Weighted, &paths);
        assert!(classes_of(&many).expect_err("too many").to_string().contains("26 request classes"));
        let mut none = plan(Pick::Weighted, &["/a"]);
        none.requests[0].weight = 0.0;
        assert!(classes_of(&none).expect_err("none").to_string().contains("no request class"));
    }
}
