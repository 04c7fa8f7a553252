//! What ab sends, as a plan.

use std::net::ToSocketAddrs;
use std::time::Duration;

use lastdrop_model::plan::Proxy;
use lastdrop_model::request::{Body, RequestSpec};
use lastdrop_model::{KeepAlive, Load, Plan, Url};

use super::flags::Order;
use super::report::unresolved;
use crate::personality::{Refusal, base64, refuse};

/// What is sent, in the order in which ab writes it.
pub fn plan_of(o: &Order, url: &Url) -> Result<Plan, Refusal> {
    let mut spec = RequestSpec::get(url.clone());
    spec.literal = true;
    spec.method = o.method.clone().unwrap_or_else(|| "GET".into());
    let mut headers: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, value: &str| headers.push((name.into(), value.into()));
    // With a proxy the fields of ab say nothing of it either.
    if o.keep_alive {
        add("Connection", "Keep-Alive");
    } else {
        add("Connection", "");
    }
    if let Some((file, length)) = &o.body {
        add("Content-length", &length.to_string());
        add("Content-type", o.content_type.as_deref().unwrap_or("text/plain"));
        spec.body = Body::File(file.clone());
    }
    if !o.cookies.is_empty() {
        add("Cookie", &o.cookies.join("; "));
    }
    if let Some(auth) = &o.auth {
        add("Authorization", &format!("Basic {}", base64(auth)));
    }
    let mut own = Vec::new();
    for line in &o.headers {
        let Some((name, value)) = line.split_once(':') else {
            return refuse(1, format!("ab: -H '{line}' is not a header; write 'Name: value'"));
        };
        own.push((name.trim().to_string(), value.trim().to_string()));
    }
    let given = |name: &str| own.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    for (name, value) in [("Host", url.authority()), ("User-Agent", "ApacheBench/2.3".into()), ("Accept", "*/*".into())]
    {
        if !given(name) {
            add(name, &value);
        }
    }
    headers.extend(own);
    spec.headers = headers;
    let mut plan = Plan::new(url.clone(), 1);
    plan.requests = vec![spec];
    plan.http.http10 = true;
    plan.keepalive = if o.keep_alive { KeepAlive::On } else { KeepAlive::Off };
    plan.timeout = Duration::from_secs(o.timeout_s.max(1) as u64);
    // What is in flight when the time is up is let go of, as ab does.
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
    plan.network.proxy =
        o.proxy.clone().map(|(host, port)| Proxy { host, port, credentials: o.proxy_auth.clone(), tunnel: false });
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
