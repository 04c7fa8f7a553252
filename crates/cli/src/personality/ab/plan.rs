//! The plan of ab's requests.

use std::net::ToSocketAddrs;
use std::time::Duration;

use lastdrop_model::bounds::TIMEOUT;
use lastdrop_model::http_options::Version;
use lastdrop_model::plan::{GiveUpRule, Proxy};
use lastdrop_model::request::{Body, RequestSpec};
use lastdrop_model::{Failure, KeepAlive, Load, Plan, Url};

use super::flags::AbOptions;
use super::report::unresolved;
use crate::personality::{Refusal, refuse};

/// The plan, with header lines in the order in which ab writes them.
pub fn plan_of(o: &AbOptions, url: &Url) -> Result<Plan, Refusal> {
    let mut spec = RequestSpec::get(url.clone());
    spec.literal = true;
    spec.method = o.method.clone().unwrap_or_else(|| "GET".into());
    let mut lines = String::new();
    let mut add = |line: &str| {
        lines.push_str(line);
        lines.push_str("\r\n");
    };
    if o.keep_alive {
        add("Connection: Keep-Alive");
    }
    if let Some(cookie) = &o.cookie {
        add(&format!("Cookie: {cookie}"));
    }
    o.logins.iter().for_each(|line| add(line));
    if let Some((file, length)) = &o.body {
        add(&format!("Content-length: {length}"));
        add(&format!("Content-type: {}", o.content_type.as_deref().unwrap_or("text/plain")));
        spec.body = Body::File(file.clone());
    }
    // The user's headers, unchanged; one with the name of a default header replaces it.
    o.headers.iter().for_each(|line| add(line));
    let given =
        |name: &str| o.headers.iter().any(|l| l.get(..name.len()).is_some_and(|l| l.eq_ignore_ascii_case(name)));
    for (name, value) in
        [("Host:", url.authority()), ("User-Agent:", "ApacheBench/2.3".into()), ("Accept:", "*/*".into())]
    {
        if !given(name) {
            add(&format!("{name} {value}"));
        }
    }
    spec.lines = Some(lines);
    let mut plan = Plan::new(url.clone(), 1);
    plan.requests = vec![spec];
    plan.http.version = Version::Http10;
    plan.keepalive = if o.keep_alive { KeepAlive::On } else { KeepAlive::Off };
    // poll(2) waits forever with a negative timeout.
    let timeout_s = if o.timeout_s < 0 { TIMEOUT.most } else { o.timeout_s.max(1) as f64 };
    plan.timeout = Duration::from_secs_f64(timeout_s);
    plan.abandon.run = Some(GiveUpRule {
        after: 1,
        failures: if o.go_on { Vec::new() } else { vec![Failure::Connect, Failure::Reset] },
        silence: true,
        ..GiveUpRule::default()
    });
    // ab abandons requests that are in flight at the end.
    plan.drain = Duration::ZERO;
    let phase = &mut plan.phases[0];
    phase.load = Load::closed(o.concurrency.max(1) as u32);
    phase.requests = Some(o.requests as u64);
    phase.duration = (o.limit_s > 0).then(|| Duration::from_secs(o.limit_s as u64));
    plan.network.receive_buffer_bytes = o.window;
    plan.network.send_buffer_bytes = o.window;
    if let Some(address) = &o.bind {
        let found = (address.as_str(), 0).to_socket_addrs().ok().and_then(|mut all| all.next());
        let Some(found) = found else { return unresolved(o, &url.host, address) };
        plan.network.sources = vec![found.ip()];
    }
    plan.network.proxy = o.proxy.clone().map(|(host, port)| Proxy { host, port, credentials: None, tunnel: false });
    plan.tls.insecure = true;
    plan.tls.resumption = false;
    plan.tls.no_sni = o.no_sni;
    plan.tls.version = match o.protocol.as_deref() {
        Some("TLS1.2") => Some("1.2".into()),
        Some("TLS1.3") => Some("1.3".into()),
        Some(old @ ("SSL2" | "SSL3" | "TLS1" | "TLS1.1")) => {
            return refuse(1, format!("ab: -f {old}: protocols below TLS 1.2 are not spoken here; use -f TLS1.2"));
        }
        _ => None,
    };
    plan.tls.certificate.clone_from(&o.certificate);
    plan.tls.key.clone_from(&o.certificate);
    Ok(plan)
}
