//! What wrk sends, as a plan.

use std::time::Duration;

use lastdrop_model::request::RequestSpec;
use lastdrop_model::{Arrival, KeepAlive, Load, Plan, Url};

use super::flags::Order;

pub fn plan_of(o: &Order, url: &Url) -> Plan {
    let mut spec = RequestSpec::get(url.clone());
    spec.literal = true;
    spec.headers = o.headers.clone();
    // wrk sends a Host and what it is told to.
    for name in ["User-Agent", "Accept"] {
        if !o.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name)) {
            spec.headers.push((name.into(), String::new()));
        }
    }
    let mut plan = Plan::new(url.clone(), 1);
    plan.requests = vec![spec];
    plan.keepalive = KeepAlive::On;
    plan.threads = o.threads as u32;
    // wrk waits on beyond its timeout and only counts; a request that never ends would hold its connection for good.
    plan.timeout = Duration::from_secs(o.timeout_s.max(1));
    plan.drain = Duration::ZERO;
    plan.tls.insecure = true;
    let phase = &mut plan.phases[0];
    phase.duration = Some(Duration::from_secs(o.duration_s));
    phase.load = match o.rate {
        None => Load::closed(o.connections as u32),
        Some(rate) => Load::open(rate as f64, Arrival::Uniform, o.connections as u32),
    };
    plan
}
