//! lwp-bench, the Perl client that was called crashme. None of its flags survive: these are ours.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use lastdrop_analyze::samples::Samples;
use lastdrop_model::request::{Pick, RequestSpec};
use lastdrop_model::{Exchange, Fate, KeepAlive, Load, Plan, Url, Wish};

use super::getopt::{Opt, Style, Takes, atoi, opt, parse};
use super::{Manner, Refusal, carry_out, catch_signals, failed, refuse, remark, say};

const USAGE: &str = "Usage: lwp-bench [-n requests] [-c agents] [-t seconds] [-A agent] URL [URL ...]\n  \
    -n N        total requests [100]\n  -c N        parallel agents [10]\n  -t SECONDS  a request without an answer after this \
    long has failed [30]\n  -A AGENT    what the agents say they are";
/// A browser of its time.
const AGENT: &str = "Mozilla/4.0 (compatible; MSIE 5.0; Windows NT)";

const TABLE: &[Opt] = &[
    opt('n', "requests", Takes::Value),
    opt('c', "agents", Takes::Value),
    opt('t', "timeout", Takes::Value),
    opt('A', "agent", Takes::Value),
    opt('h', "help", Takes::Nothing),
];

#[derive(Debug)]
struct Order {
    requests: u64,
    agents: u64,
    timeout_s: u64,
    agent: String,
    urls: Vec<String>,
}

fn read(args: &[String]) -> Result<Order, Refusal> {
    let parsed = parse("lwp-bench", Style::Long, TABLE, args);
    if let Some(e) = parsed.errors.first() {
        return refuse(1, format!("{e}\n{USAGE}"));
    }
    let mut o = Order { requests: 100, agents: 10, timeout_s: 30, agent: AGENT.into(), urls: parsed.words };
    for (at, value) in parsed.options {
        let value = value.unwrap_or_default();
        let count = |what: &str| match atoi(&value) {
            n if n > 0 => Ok(n as u64),
            _ => refuse(1, format!("lwp-bench: {what} '{value}' is not a number above 0\n{USAGE}")),
        };
        match TABLE[at].short {
            'n' => o.requests = count("-n")?,
            'c' => o.agents = count("-c")?,
            't' => o.timeout_s = count("-t")?,
            'A' => o.agent = value,
            _ => {
                say(&format!("{USAGE}\n"));
                return refuse(0, "");
            }
        }
    }
    if o.urls.is_empty() { refuse(1, format!("lwp-bench: no URL\n{USAGE}")) } else { Ok(o) }
}

pub fn main(args: &[String], manner: Manner) -> Result<u8, Refusal> {
    let o = read(args)?;
    let mut specs = Vec::new();
    for url in &o.urls {
        let url: Url = url.parse().map_err(|e| failed("lwp-bench", e))?;
        let mut spec = RequestSpec::get(url);
        spec.headers = vec![("User-Agent".into(), o.agent.clone())];
        specs.push(spec);
    }
    let mut plan = Plan::new(specs[0].url.clone(), super::seed());
    plan.requests = specs;
    plan.pick = Pick::Order;
    plan.keepalive = KeepAlive::Off;
    plan.http.redirects = 7;
    plan.timeout = Duration::from_secs(o.timeout_s);
    plan.drain = plan.timeout;
    plan.tls.insecure = true;
    plan.phases[0].load = Load::closed(o.agents.min(o.requests).min(1_000_000) as u32);
    plan.phases[0].requests = Some(o.requests);
    plan.phases[0].duration = None;
    let stop = catch_signals()?;
    let mut tally = Tally::default();
    let mut show = |some: &[Exchange]| some.iter().for_each(|e| tally.take(e));
    let carried = carry_out(&plan, Wish::Exchanges, &stop, &mut show).map_err(|e| failed("lwp-bench", e))?;
    say(&report(&o, &tally, carried.run.phases[0].duration_s));
    remark(manner, &carried.run, "its latency is a mean: half of the requests may have been much slower");
    Ok(0)
}

#[derive(Debug, Default)]
struct Tally {
    good: u64,
    errors: BTreeMap<String, u64>,
    times: Samples,
}

impl Tally {
    fn take(&mut self, e: &Exchange) {
        if e.sent.is_none() || e.done.is_none() {
            return;
        }
        let error = match e.fate {
            // What a redirect leads to is the answer.
            Fate::Answered if (300..400).contains(&e.status) => return,
            Fate::Answered if e.status < 400 => {
                self.good += 1;
                None
            }
            Fate::Answered => Some(e.status.to_string()),
            Fate::TimedOut => Some("timeout".into()),
            fate => Some(fate.name().to_string()),
        };
        if let Some(error) = error {
            *self.errors.entry(error).or_default() += 1;
        }
        self.times.record(e.service_us());
    }
}

fn report(o: &Order, t: &Tally, seconds: f64) -> String {
    let done = t.good + t.errors.values().sum::<u64>();
    let errors: Vec<String> = t.errors.iter().map(|(what, n)| format!("{what}: {n}")).collect();
    let mut out = String::new();
    for (i, url) in o.urls.iter().enumerate() {
        let _ = writeln!(out, "{:<17}{url}", if i == 0 { "URL(s):" } else { "" });
    }
    let _ = write!(
        out,
        "{:<17}{}\n{:<17}{}\n{:<17}{} ({:.2}%)\n{:<17}{}\n\n{:<17}{seconds:.2} secs\n{:<17}{:.2} Requests/sec\n{:<17}{:.2} secs/Request\n",
        "Total Requests:",
        o.requests,
        "Parallel Agents:",
        o.agents,
        "Succeeded:",
        t.good,
        100.0 * t.good as f64 / o.requests.max(1) as f64,
        "Errors:",
        if errors.is_empty() { "NONE".into() } else { errors.join(", ") },
        "Total Time:",
        "Throughput:",
        done as f64 / seconds.max(1e-9),
        "Latency:",
        t.times.mean() / 1e6,
    );
    out
}
