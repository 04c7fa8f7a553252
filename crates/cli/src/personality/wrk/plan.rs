//! The plan of wrk's requests.

use std::time::Duration;

use lastdrop_model::request::RequestSpec;
use lastdrop_model::{Arrival, KeepAlive, Load, Plan, Url};

use super::flags::WrkOptions;

pub fn plan_of(o: &WrkOptions, url: &Url) -> Plan {
    let mut spec = RequestSpec::get(url.clone());
    spec.literal = true;
    spec.headers = o.headers.clone();
    // wrk sends only Host and the user's headers.
    for name in ["User-Agent", "Accept"] {
        if !o.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name)) {
            spec.headers.push((name.into(), String::new()));
        }
    }
    let mut plan = Plan::new(url.clone(), 1);
    plan.requests = vec![spec];
    plan.keepalive = KeepAlive::On;
    plan.threads = o.threads as u32;
    // wrk only counts a timeout and goes on waiting, so a hung request blocks its connection forever. We give it up.
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
