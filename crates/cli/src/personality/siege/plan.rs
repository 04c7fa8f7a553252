//! The plan of siege's requests.

use std::path::Path;
use std::time::Duration;

use lastdrop_load::{describe, files};
use lastdrop_model::bounds::{DURATION, REQUESTS};
use lastdrop_model::http_options::Version;
use lastdrop_model::plan::{GiveUpRule, Proxy};
use lastdrop_model::request::{Auth, Body, Page, Pick, RequestSpec, ThinkTime};
use lastdrop_model::{Failure, KeepAlive, Load, Plan, raw, url_file};

use super::counts::FAILURES;
use super::flags::usage;
use super::lines::readable;
use super::report::tagged;
use super::settings::{Repetitions, SiegeOptions};
use crate::personality::{Refusal, refuse, seed};
use crate::stdio::err;

/// Methods whose requests always have a body, even if it is empty.
pub const WITH_BODY: [&str; 5] = ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
/// Limit of consecutive redirects.
const REDIRECTS: u32 = 10;

/// The requests: the named URL, or those of the file.
fn requests(o: &SiegeOptions) -> Result<Vec<RequestSpec>, Refusal> {
    if let Some(url) = &o.url {
        let line = url_file::parse(&readable(url), Path::new("."), |_| None);
        return line.or_else(|e| refuse(1, format!("siege: {}", e.what)));
    }
    let Some(file) = &o.file else { return usage() };
    let text = match files::read(file) {
        Ok(bytes) => readable(&raw::text(&bytes)),
        Err(e) => {
            err(tagged("\x1b[1;32m", "alert", &format!("unable to open file: {}: {}\n", file.display(), describe(&e))));
            return usage();
        }
    };
    // siege resolves names of body files in its working directory.
    url_file::parse(&text, Path::new("."), |name| o.variables.get(name).cloned().or_else(|| std::env::var(name).ok()))
        .or_else(|e| refuse(1, format!("siege: {}: {e}", file.display())))
}

pub fn plan_of(o: &SiegeOptions, users: u64) -> Result<Plan, Refusal> {
    let mut specs = requests(o)?;
    let url = specs[0].url.clone();
    for spec in &mut specs {
        spec.literal = true;
        let mut headers: Vec<(String, String)> = vec![
            ("Host".into(), spec.url.authority()),
            ("Accept".into(), "*/*".into()),
            ("Accept-Encoding".into(), o.encoding.clone()),
            ("User-Agent".into(), o.agent.clone()),
        ];
        // The user's headers come after siege's own; a Host, and an Accept in the first place, replace siege's.
        let given = |name: &str| o.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        headers.retain(|(name, _)| name != "Host" || !given("Host"));
        let first = o.headers.first().is_some_and(|(n, _)| n.eq_ignore_ascii_case("accept"));
        headers.retain(|(name, _)| name != "Accept" || !first);
        headers.extend(o.headers.clone());
        headers.push(("Connection".into(), if o.keep_alive { "keep-alive" } else { "close" }.into()));
        if WITH_BODY.contains(&spec.method.as_str()) && spec.body == Body::None {
            // An empty body, with a Content-Length.
            spec.body = Body::Text(String::new());
        }
        if o.get && spec.method == "GET" && o.get_method.as_deref().is_some_and(|m| m.eq_ignore_ascii_case("HEAD")) {
            spec.method = "HEAD".into();
        }
        if let Body::File(path) = &spec.body {
            // siege trims white space around text; it sends a binary file unchanged.
            if let Ok(bytes) = files::read(path).map(|b| if b.contains(&0) { b } else { b.trim_ascii().to_vec() }) {
                spec.body = Body::Text(raw::text(&bytes));
            }
        }
        if spec.body != Body::None {
            let kind = o.content_type.as_deref().unwrap_or("application/x-www-form-urlencoded");
            headers.push(("Content-Type".into(), kind.into()));
        }
        spec.headers = headers;
        if let Some((user, rest)) = o.login.as_deref().and_then(|l| l.split_once(':')) {
            let password = rest.split(':').next().unwrap_or_default();
            spec.auth = Some(Auth::Basic { user: user.into(), password: password.into() });
        }
    }
    let hits = specs.len() as u64;
    let mut plan = Plan::new(url, seed());
    plan.requests = specs;
    plan.pick = if o.internet { Pick::Weighted } else { Pick::Order };
    if o.http10 || o.shows_one() {
        plan.http.version = Version::Http10;
    }
    plan.http.redirects = if o.follow { REDIRECTS } else { 0 };
    plan.http.cookies = o.cookies;
    plan.keepalive = if o.keep_alive { KeepAlive::On } else { KeepAlive::Off };
    plan.page = o.parser.then_some(Page { connections_per_host: 1, cache: o.cache });
    plan.timeout = Duration::from_secs(o.timeout_s);
    plan.drain = Duration::ZERO;
    plan.tls.insecure = true;
    plan.tls.certificate.clone_from(&o.certificate);
    plan.tls.key.clone_from(&o.key);
    if !o.benchmark && o.delay_s > 0.0 && !o.shows_one() {
        plan.think = Some(ThinkTime::Uniform(Duration::ZERO, Duration::from_secs_f64(o.delay_s)));
    }
    plan.network.proxy = o.proxy_host.clone().map(|host| Proxy {
        host,
        port: o.proxy_port,
        credentials: o.proxy_login.as_ref().map(|l| l.split(':').take(2).collect::<Vec<_>>().join(":")),
        tunnel: false,
    });
    plan.abandon.run = (o.failures > 0).then(|| GiveUpRule {
        after: o.failures,
        failures: vec![Failure::Connect, Failure::Reset, Failure::Closed, Failure::Protocol],
        timeouts: true,
        silence: false,
        statuses: FAILURES.to_vec(),
    });
    let phase = &mut plan.phases[0];
    phase.load = Load::closed(users as u32);
    // Without -t and -r, siege runs until Ctrl-C.
    phase.duration = o.time.or(o.reps.is_none().then(|| Duration::from_secs_f64(DURATION.most)));
    phase.requests = match (o.time, o.reps) {
        (Some(_), _) | (None, None) => None,
        (None, Some(Repetitions::Times(n))) => Some(n.saturating_mul(users)),
        (None, Some(Repetitions::Once)) => Some(hits.saturating_mul(users)),
    };
    if let Some(n) = phase.requests.filter(|n| !REQUESTS.holds(*n as f64)) {
        return refuse(2, format!("siege: -r times -c {users}: {}", REQUESTS.error(&n.to_string())));
    }
    Ok(plan)
}
