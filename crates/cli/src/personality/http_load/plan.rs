//! The plan of http_load's requests.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use lastdrop_load::{describe, files};
use lastdrop_model::plan::Proxy;
use lastdrop_model::request::Pick;
use lastdrop_model::{Arrival, KeepAlive, Load, Plan, url_file};

use super::flags::HttpLoadOptions;
use crate::personality::{Refusal, refuse, seed};

const MOST_CONNECTIONS: u32 = 10_000;

fn no_file<T>(file: &str, e: &std::io::Error) -> Result<T, Refusal> {
    refuse(1, format!("{file}: {}", describe(e)))
}

pub fn plan_of(o: &HttpLoadOptions) -> Result<Plan, Refusal> {
    let text = files::read_text(Path::new(&o.file)).or_else(|e| no_file(&o.file, &e))?;
    let mut specs = url_file::parse(&text, Path::new("."), |_| None)
        .or_else(|e| refuse(1, format!("http_load: {}: {e}", o.file)))?;
    for spec in &mut specs {
        spec.literal = true;
        spec.headers = vec![
            ("Host".into(), spec.url.authority()),
            ("User-Agent".into(), "http_load 09Mar2016".into()),
            ("Accept".into(), "*/*".into()),
            ("Accept-Encoding".into(), "gzip".into()),
        ];
    }
    let mut plan = Plan::new(specs[0].url.clone(), seed());
    plan.requests = specs;
    plan.pick = Pick::Weighted;
    plan.keepalive = KeepAlive::Off;
    plan.timeout = Duration::from_secs(o.timeout_s);
    // http_load waits for requests in flight at the end; with -seconds it abandons them.
    plan.drain = if o.seconds.is_some() { Duration::ZERO } else { plan.timeout };
    plan.tls.insecure = true;
    plan.network.bandwidth_bytes = o.throttle;
    plan.network.proxy = o.proxy.clone().map(|(host, port)| Proxy { host, port, credentials: None, tunnel: false });
    if let Some(file) = &o.sources {
        let text = files::read_text(Path::new(file)).or_else(|e| no_file(file, &e))?;
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
            match line.parse::<IpAddr>() {
                Ok(address) => plan.network.sources.push(address),
                Err(_) => return refuse(1, format!("http_load: {file}: '{line}' is not an address")),
            }
        }
    }
    let phase = &mut plan.phases[0];
    phase.load = match (o.parallel, o.rate) {
        (Some(n), _) => Load::closed(n as u32),
        (None, rate) => {
            let arrival = if o.jitter { Arrival::Jitter(100) } else { Arrival::Uniform };
            Load::open(rate.unwrap_or(1) as f64, arrival, MOST_CONNECTIONS)
        }
    };
    phase.requests = o.fetches;
    phase.duration = o.seconds.map(Duration::from_secs);
    Ok(plan)
}
