//! Which exchanges are steps: not what pages embed, not what other hosts were asked, not the end of a redirect.

use std::collections::HashMap;

use lastdrop_model::Url;
use lastdrop_model::request::check_header;

use super::{Answer, Exchange, PlanOptions, Sent, find};

/// What becomes of a step's text: where a name is instead of a value, it is a template.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub exchange: Exchange,
    /// Path and query of the URL as a template.
    pub path: String,
    /// Those that the plan sends.
    pub headers: Vec<(String, String)>,
    pub body: Sent,
    pub extract: Vec<(String, Rule)>,
    pub expect: Vec<String>,
    /// µs between its answer and the next step.
    pub think_us: i64,
    /// Parts of pages that came after it.
    pub parts: usize,
    pub redirects: u32,
    /// Where they led to.
    pub landed: Option<Url>,
}

/// Where a value is taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rule {
    Header(String),
    Regex(String),
    Json(String),
    /// A regex over where a redirect led to.
    Url(String),
}

/// Shorter pauses are the browser's own.
const LEAST_THINK_US: i64 = 100_000;
/// Nobody waits longer for a load test.
const MOST_THINK_US: i64 = 300_000_000;

/// Headers that say something to the application, beside those that begin with `X-`.
const KEPT: [&str; 7] =
    ["authorization", "content-type", "origin", "referer", "soapaction", "api-key", "idempotency-key"];

pub(crate) fn steps(exchanges: Vec<Exchange>, options: &PlanOptions, notes: &mut Vec<String>) -> Vec<Step> {
    let first = main_host(&exchanges);
    let is_ours = |host: &str| match options.hosts.as_slice() {
        [] if options.independent => true,
        [] => first.as_deref() == Some(host),
        hosts => hosts.iter().any(|h| h.eq_ignore_ascii_case(host)),
    };
    // Of commands there is no answer that would give a cookie: those that they have are all there are.
    let has_answers = exchanges.iter().any(|e| e.answer.is_some());
    let mut elsewhere: Vec<(String, usize)> = Vec::new();
    let mut elsewhere_at: HashMap<String, usize> = HashMap::new();
    let mut steps: Vec<Step> = Vec::new();
    // When the last thing ended that the user waited for.
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

/// The host that a recording is about: whither its first request was sent on (from `http://example.com` to `https://www.example.com`).
fn main_host(exchanges: &[Exchange]) -> Option<String> {
    let mut steps = exchanges.iter().filter(|e| !e.is_part);
    let mut here = steps.next()?;
    for next in steps {
        if leads_to(&here.url, here.answer.as_ref(), next) {
            here = next;
        }
    }
    Some(here.url.host.clone())
}

/// Is the exchange what the step's answer led to?
fn redirects_to(step: &Step, next: &Exchange) -> bool {
    leads_to(&step.exchange.url, step.exchange.answer.as_ref(), next)
}

fn leads_to(here: &Url, answer: Option<&Answer>, next: &Exchange) -> bool {
    let Some(answer) = answer else { return false };
    let to = find(&answer.headers, "location").and_then(|l| here.join(l).ok());
    matches!(answer.status, 301 | 302 | 303 | 307 | 308)
        && to.is_some_and(|to| to == without_fragment(&next.url))
        && (next.method == "GET" || matches!(answer.status, 307 | 308))
}

fn without_fragment(url: &Url) -> Url {
    url.with_path(url.path.split('#').next().unwrap_or_default())
}

fn step(exchange: Exchange, keeps_cookies: bool, is_ours: &dyn Fn(&str) -> bool) -> Step {
    let is_form = matches!(exchange.body, Sent::Form(_) | Sent::Multipart(_));
    let authority = exchange.url.authority();
    let keeps = |name: &str, value: &str| {
        let name = name.to_ascii_lowercase();
        // A host other than the URL's is what was meant.
        if name == "host" {
            return !value.eq_ignore_ascii_case(&authority) && check_header(&name, value).is_ok();
        }
        // The type of a form is written with it, but for what else it says; the boundary of parts is a new one.
        if exchange.is_exact {
            let follows = name == "content-length"
                || (name == "content-type" && matches!(exchange.body, Sent::Multipart(_)))
                || (name == "content-type"
                    && is_form
                    && value.eq_ignore_ascii_case("application/x-www-form-urlencoded"));
            return !follows && check_header(&name, value).is_ok();
        }
        let said = name.starts_with("x-") && name != "x-forwarded-for" && name != "x-client-data";
        let accepts = name == "accept" && value.starts_with("application/");
        // Where it is known what is sent, its type follows; a GET has no origin that anybody looks at.
        let follows = (name == "content-type" && is_form) || (name == "origin" && exchange.method == "GET");
        let cookie = keeps_cookies && name == "cookie";
        // Which page of another site the user came from is nobody's business.
        let foreign = name == "referer" && !value.parse::<Url>().is_ok_and(|page| is_ours(&page.host));
        (said || accepts || cookie || KEPT.contains(&name.as_str()))
            && !follows
            && !foreign
            && check_header(&name, value).is_ok()
    };
    // A plan has a name once. What comes several times means the same as its values in one line (RFC 9110, section 5.3; RFC 6265).
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
        Sent::Nothing => Sent::Nothing,
        Sent::Text(text) => Sent::Text(literal(text)),
        Sent::Form(form) => Sent::Form(fields(form)),
        Sent::Multipart(parts) => Sent::Multipart(fields(parts)),
        Sent::File(path) => Sent::File(path.clone()),
        Sent::Lost => Sent::Lost,
    };
    let path = literal(&without_fragment(&exchange.url).path);
    let (extract, expect) = (Vec::new(), Vec::new());
    Step { path, headers, body, extract, expect, think_us: 0, parts: 0, redirects: 0, landed: None, exchange }
}

/// Names of headers that were sent and that the plan does not send. Those that follow from the request, and cookies, are not among them.
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

/// A text as a template that gives it.
pub(crate) fn literal(text: &str) -> String {
    text.replace("{{", "{{{{")
}
