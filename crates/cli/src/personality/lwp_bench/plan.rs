//! The plan of lwp-bench's requests.

use std::time::Duration;

use lastdrop_model::request::{Pick, RequestSpec};
use lastdrop_model::{KeepAlive, Load, Plan, Url};

use super::flags::LwpBenchOptions;
use crate::personality::{Refusal, failed, seed};

pub fn plan_of(o: &LwpBenchOptions) -> Result<Plan, Refusal> {
    let mut specs = Vec::new();
    for url in &o.urls {
        let url: Url = url.parse().map_err(|e| failed("lwp-bench", e))?;
        let mut spec = RequestSpec::get(url);
        spec.literal = true;
        spec.headers = vec![("User-Agent".into(), o.agent.clone())];
        specs.push(spec);
    }
    let mut plan = Plan::new(specs[0].url.clone(), seed());
    plan.requests = specs;
    plan.pick = Pick::Order;
    plan.keepalive = KeepAlive::Off;
    plan.http.redirects = 7;
    plan.timeout = Duration::from_secs(o.timeout_s);
    plan.drain = plan.timeout;
    plan.tls.insecure = true;
    plan.phases[0].load = Load::closed(o.agents.min(o.requests) as u32);
    plan.phases[0].requests = Some(o.requests);
    plan.phases[0].duration = None;
    Ok(plan)
}
