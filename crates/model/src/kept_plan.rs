//! The form of a plan for the store, documents and reports. A plan can reach them only in this form.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::plan::Plan;
use crate::request::{Auth, Body, PartContent, RequestSpec};
use crate::secrets::{self, MARK};

/// A plan whose secrets are replaced by marks, unless it says to keep them. It dereferences to the plan; to be run
/// again it needs its secrets.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptPlan(Plan);

impl From<Plan> for KeptPlan {
    fn from(mut plan: Plan) -> KeptPlan {
        if let Some(replay) = &mut plan.replay {
            replay.tape = None;
        }
        if !plan.keep_secrets {
            hide(&mut plan);
        }
        KeptPlan(plan)
    }
}

impl From<&Plan> for KeptPlan {
    fn from(plan: &Plan) -> KeptPlan {
        plan.clone().into()
    }
}

impl KeptPlan {
    /// Returns the plan without its requests, which may be very many.
    #[must_use]
    pub fn without_requests(&self) -> KeptPlan {
        KeptPlan(self.0.without_requests())
    }

    /// Sets the requests and hides their secrets.
    pub fn put_requests(&mut self, requests: Vec<RequestSpec>) {
        self.0.requests = requests;
        if !self.0.keep_secrets {
            self.0.requests.iter_mut().for_each(hide_in_request);
        }
    }
}

impl Deref for KeptPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.0
    }
}

impl Serialize for KeptPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Plan::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for KeptPlan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KeptPlan, D::Error> {
        // A plan that an older version stored still has its secrets; `from` hides them.
        Plan::deserialize(deserializer).map(KeptPlan::from)
    }
}

fn hide(plan: &mut Plan) {
    plan.url.path = secrets::url(&plan.url.path).into_owned();
    if let Some(login) = plan.network.proxy.as_mut().and_then(|p| p.credentials.as_mut()) {
        *login = secrets::login(login);
    }
    plan.requests.iter_mut().for_each(hide_in_request);
}

fn hide_in_request(request: &mut RequestSpec) {
    request.url.path = secrets::url(&request.url.path).into_owned();
    for (name, value) in &mut request.headers {
        let shown = secrets::header(name, value);
        if shown != value {
            *value = shown.to_string();
        }
    }
    if let Some(lines) = &mut request.lines {
        // Any of the lines may be a secret.
        *lines = MARK.into();
    }
    match &mut request.auth {
        Some(Auth::Basic { password, .. } | Auth::Digest { password, .. }) => *password = MARK.into(),
        Some(Auth::Bearer(token)) => *token = MARK.into(),
        None => {}
    }
    match &mut request.body {
        // Any part of a text may be a secret.
        Body::Text(text) => *text = MARK.into(),
        Body::Form(fields) => fields.iter_mut().for_each(|(_, value)| *value = secrets::field(value).to_string()),
        Body::Multipart(parts) => {
            for part in parts {
                if let PartContent::Text(text) = &mut part.content {
                    *text = secrets::field(text).to_string();
                }
            }
        }
        Body::None | Body::File(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::FormPart;

    /// Returns a plan with a secret in every place that can have one; each secret contains `hidden`.
    fn full_of_secrets() -> Plan {
        let url: crate::Url = "http://h/a?token=hidden1&b=seen1".parse().expect("valid");
        let mut plan = Plan::new(url.clone(), 1);
        plan.network.proxy = Some("http://seen2:hidden2@h:3128".parse().expect("valid"));
        let header = |name: &str, value: &str| (name.to_string(), value.to_string());
        let with = |auth: Option<Auth>, body: Body| RequestSpec {
            auth,
            body,
            headers: vec![
                header("Authorization", "Basic hidden3"),
                header("Cookie", "a=hidden4"),
                header("X-Api-Key", "hidden5"),
                header("Accept", "seen3"),
            ],
            ..RequestSpec::get(url.clone())
        };
        let (user, password) = (String::from("seen4"), String::from("hidden6"));
        let part = |name: &str, content| FormPart::new(name, content);
        plan.requests = vec![
            with(Some(Auth::Basic { user: user.clone(), password: password.clone() }), Body::Text("hidden7".into())),
            with(
                Some(Auth::Digest { user, password }),
                Body::Form(vec![header("seen5", "hidden8"), header("p", "{{seen6}}")]),
            ),
            with(
                Some(Auth::Bearer("hidden9".into())),
                Body::Multipart(vec![
                    part("seen7", PartContent::Text("hidden10".into())),
                    part("f", PartContent::File("seen8".into())),
                ]),
            ),
            with(None, Body::File("seen9".into())),
        ];
        plan
    }

    #[test]
    fn a_kept_plan_has_marks_in_place_of_its_secrets_and_all_else() {
        let kept = KeptPlan::from(full_of_secrets());
        for text in [serde_json::to_string(&kept).expect("JSON"), format!("{kept:?}"), kept.url.in_full()] {
            assert!(!text.contains("hidden"), "{text}");
        }
        let text = serde_json::to_string(&kept).expect("JSON");
        for n in 1..=9 {
            assert!(text.contains(&format!("seen{n}")), "seen{n}: {text}");
        }
        assert_eq!(crate::read_json::<KeptPlan>(&text).expect("reads what it wrote"), kept);
    }

    #[test]
    fn secrets_are_kept_only_where_the_plan_says_so_and_then_they_stay() {
        let plan = Plan { keep_secrets: true, ..full_of_secrets() };
        let text = serde_json::to_string(&KeptPlan::from(&plan)).expect("JSON");
        for n in 1..=10 {
            assert!(text.contains(&format!("hidden{n}")), "hidden{n}: {text}");
        }
        assert_eq!(*crate::read_json::<KeptPlan>(&text).expect("valid"), plan);
    }

    #[test]
    fn what_an_older_version_wrote_down_is_shown_without_its_secrets() {
        let text = serde_json::to_string(&KeptPlan::from(Plan { keep_secrets: true, ..full_of_secrets() }));
        let old = text.expect("JSON").replace(",\"keep_secrets\":true", "");
        let read: KeptPlan = crate::read_json(&old).expect("valid");
        assert_eq!(read, KeptPlan::from(full_of_secrets()));
    }
}
