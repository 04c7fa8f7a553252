//! Decides which exchanges are steps: not page resources, not requests to other hosts, not the targets of redirects.

use std::collections::HashMap;

use lastdrop_model::Url;
use lastdrop_model::request::check_header;

use super::{PlanOptions, RecordedAnswer, RecordedExchange, RequestBody, find};

/// A step of the plan. Its texts are templates, with names in place of values.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub exchange: RecordedExchange,
    /// Path and query of the URL as a template.
    pub path: String,
    /// The headers that the plan sends.
    pub headers: Vec<(String, String)>,
    pub body: RequestBody,
    pub extract: Vec<(String, ExtractRule)>,
    pub expect: Vec<String>,
    /// µs between its answer and the next step.
    pub think_us: i64,
    /// Page resources fetched after it.
    pub parts: usize,
    pub redirects: u32,
    /// The URL where the redirects ended.
    pub landed: Option<Url>,
}

/// Where a value is taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExtractRule {
    Header(String),
    Regex(String),
    Json(String),
    /// A regex over the target of a redirect.
    Url(String),
}

/// Shorter pauses are the browser's own.
const LEAST_THINK_US: i64 = 100_000;
/// Longest think time in a plan.
const MOST_THINK_US: i64 = 300_000_000;

/// Headers with a meaning for the application, besides those that begin with `X-`.
const KEPT: [&str; 7] =
    ["authorization", "content-type", "origin", "referer", "soapaction", "api-key", "idempotency-key"];

pub(crate) fn steps(exchanges: Vec<RecordedExchange>, options: &PlanOptions, notes: &mut Vec<String>) -> Vec<Step> {
    let first = main_host(&exchanges);
    let is_ours = |host: &str| match options.hosts.as_slice() {
        [] if options.independent => true,
        [] => first.as_deref() == Some(host),
        hosts => hosts.iter().any(|h| h.eq_ignore_ascii_case(host)),
    };
    // Commands have no answers that could set a cookie: their own cookies are the only ones.
    let has_answers = exchanges.iter().any(|e| e.answer.is_some());
    let mut elsewhere: Vec<(String, usize)> = Vec::new();
    let mut elsewhere_at: HashMap<String, usize> = HashMap::new();
    let mut steps: Vec<Step> = Vec::new();
    // When the last exchange ended that the user waited for.
    let mut busy_us = i64::MIN;
    for exchange in exchanges {
        if !is_ours(&exchange.url.host) {
            if !exchange.is_part {
                let at = *elsewhere_at.entry(exchange.url.host.clone()).or_insert(elsewhere.len());
                if at == elsewhere.len() {
                    elsewhere.push((exchange.url.host.clone(), 0));
                }
                elsewhere[at].1 += 1;
            }
            continue;
        }
        if exchange.is_part {
            busy_us = busy_us.max(exchange.end_us);
            steps.last_mut().into_iter().for_each(|s| s.parts += 1);
            continue;
        }
        if let Some(last) = steps.last_mut()
            && redirects_to(last, &exchange)
        {
            last.redirects += 1;
            last.landed = Some(exchange.url.clone());
            last.exchange.answer = exchange.answer;
            busy_us = busy_us.max(exchange.end_us);
            continue;
        }
        if let Some(last) = steps.last_mut() {
            let pause = exchange.begin_us.saturating_sub(busy_us);
            last.think_us = if pause < LEAST_THINK_US { 0 } else { pause.min(MOST_THINK_US) };
        }
        busy_us = exchange.end_us;
        steps.push(step(exchange, !has_answers, &is_ours));
    }
    let names = left_out_headers(&steps);
    if !names.is_empty() {
        notes.push(format!("headers of the browser's own are left out: {}", names.join(", ")));
    }
    if let Some(cookies) = steps.first().and_then(|s| s.exchange.header("cookie")).filter(|_| has_answers) {
        let names: Vec<&str> = cookies.split(';').filter_map(|c| Some(c.split_once('=')?.0.trim())).collect();
        notes.push(format!(
            "the recorded user had cookies before ({}), the plan's users begin without; what needs them is recorded in a private window, from \
             the login on",
            names.join(", ")
        ));
    }
    for (host, n) in elsewhere {
        notes.push(format!("{n} requests to {host} are left out; --host {host} takes them in"));
    }
    steps
}

/// The host that a recording is about: where redirects took its first request (from `http://example.com` to
/// `https://www.example.com`).
fn main_host(exchanges: &[RecordedExchange]) -> Option<String> {
    let mut steps = exchanges.iter().filter(|e| !e.is_part);
    let mut here = steps.next()?;
    for next in steps {
        if leads_to(&here.url, here.answer.as_ref(), next) {
            here = next;
        }
    }
    Some(here.url.host.clone())
}

/// Whether the exchange follows from the step's redirect.
fn redirects_to(step: &Step, next: &RecordedExchange) -> bool {
    leads_to(&step.exchange.url, step.exchange.answer.as_ref(), next)
}

fn leads_to(here: &Url, answer: Option<&RecordedAnswer>, next: &RecordedExchange) -> bool {
    let Some(answer) = answer else { return false };
    let to = find(&answer.headers, "location").and_then(|l| here.join(l).ok());
    matches!(answer.status, 301 | 302 | 303 | 307 | 308)
        && to.is_some_and(|to| to == without_fragment(&next.url))
        && (next.method == "GET" || matches!(answer.status, 307 | 308))
}

fn without_fragment(url: &Url) -> Url {
    url.with_path(url.path.split('#').next().unwrap_or_default())
}

fn step(exchange: RecordedExchange, keeps_cookies: bool, is_ours: &dyn Fn(&str) -> bool) -> Step {
    let is_form = matches!(exchange.body, RequestBody::Form(_) | RequestBody::Multipart(_));
    let authority = exchange.url.authority();
    let keeps = |name: &str, value: &str| {
        let name = name.to_ascii_lowercase();
        // A Host header other than the URL's is intended.
        if name == "host" {
            return !value.eq_ignore_ascii_case(&authority) && check_header(&name, value).is_ok();
        }
        // The type of a form is written with it, unless it states more; the boundary of parts is a new one.
        if exchange.is_exact {
            let follows = name == "content-length"
                || (name == "content-type" && matches!(exchange.body, RequestBody::Multipart(_)))
                || (name == "content-type"
                    && is_form
                    && value.eq_ignore_ascii_case("application/x-www-form-urlencoded"));
            return !follows && check_header(&name, value).is_ok();
        }
        let said = name.starts_with("x-") && name != "x-forwarded-for" && name != "x-client-data";
        let accepts = name == "accept" && value.starts_with("application/");
        // The type of a known body is written with it; nothing reads the origin of a GET.
        let follows = (name == "content-type" && is_form) || (name == "origin" && exchange.method == "GET");
        let cookie = keeps_cookies && name == "cookie";
        // The user's page on another site is private.
        let foreign = name == "referer" && !value.parse::<Url>().is_ok_and(|page| is_ours(&page.host));
        (said || accepts || cookie || KEPT.contains(&name.as_str()))
            && !follows
            && !foreign
            && check_header(&name, value).is_ok()
    };
    // A plan has each name once. Repeated headers mean the same as their values in one line (RFC 9110, section 5.3; RFC
    // 6265).
    let mut headers: Vec<(String, String)> = Vec::new();
    let mut headers_at: HashMap<String, usize> = HashMap::new();
    for (name, value) in exchange.headers.iter().filter(|(n, v)| keeps(n, v)) {
        let at = *headers_at.entry(name.to_ascii_lowercase()).or_insert(headers.len());
        match headers.get_mut(at) {
            Some((_, all)) => {
                all.push_str(if name.eq_ignore_ascii_case("cookie") { "; " } else { ", " });
                all.push_str(&literal(value));
            }
            None => headers.push((name.clone(), literal(value))),
        }
    }
    let fields = |fields: &[(String, String)]| fields.iter().map(|(n, v)| (n.clone(), literal(v))).collect();
    let body = match &exchange.body {
        RequestBody::Nothing => RequestBody::Nothing,
        RequestBody::Text(text) => RequestBody::Text(literal(text)),
        RequestBody::Form(form) => RequestBody::Form(fields(form)),
        RequestBody::Multipart(parts) => RequestBody::Multipart(fields(parts)),
        RequestBody::File(path) => RequestBody::File(path.clone()),
        RequestBody::Lost => RequestBody::Lost,
    };
    let path = literal(&without_fragment(&exchange.url).path);
    let (extract, expect) = (Vec::new(), Vec::new());
    Step { path, headers, body, extract, expect, think_us: 0, parts: 0, redirects: 0, landed: None, exchange }
}

/// Names of recorded headers that the plan does not send, except those that follow from the request, and cookies.
fn left_out_headers(steps: &[Step]) -> Vec<String> {
    const FOLLOW: [&str; 7] =
        ["host", "content-length", "content-type", "connection", "accept-encoding", "cookie", "transfer-encoding"];
    let mut names: Vec<String> = Vec::new();
    for step in steps {
        for (name, _) in &step.exchange.headers {
            let name = name.to_ascii_lowercase();
            let is_kept = find(&step.headers, &name).is_some() || FOLLOW.contains(&name.as_str());
            if !is_kept && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names.sort();
    names
}

/// Escapes a text so that the template renders it literally.
pub(crate) fn literal(text: &str) -> String {
    text.replace("{{", "{{{{")
}
