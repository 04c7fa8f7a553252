//! wrk 4.1, and wrk2's constant rate.

use std::fmt::Write as _;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use lastdrop_analyze::samples::Samples;
use lastdrop_load::describe;
use lastdrop_model::request::{RequestSpec, header_line};
use lastdrop_model::{Arrival, Exchange, Failure, Fate, KeepAlive, Load, Micros, Plan, Url, Wish};

use super::getopt::{Opt, Style, Takes, opt, parse};
use super::{Manner, Refusal, carry_out, catch_signals, failed, refuse, remark, say};

const USAGE: &str = include_str!("usage/wrk.txt");
const VERSION: &str = "wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer\n";
/// Rates of a thread are those of so long.
const RATE_INTERVAL_US: Micros = 100_000;

const TABLE: &[Opt] = &[
    opt('c', "connections", Takes::Value),
    opt('d', "duration", Takes::Value),
    opt('t', "threads", Takes::Value),
    opt('s', "script", Takes::Value),
    opt('H', "header", Takes::Value),
    opt('L', "latency", Takes::Nothing),
    opt('T', "timeout", Takes::Value),
    opt('r', "help", Takes::Nothing),
    opt('v', "version", Takes::Nothing),
    opt('R', "rate", Takes::Value),
];

#[derive(Debug)]
struct Order {
    connections: u64,
    duration_s: u64,
    threads: u64,
    timeout_s: u64,
    headers: Vec<(String, String)>,
    latency: bool,
    rate: Option<u64>,
    url: String,
}

/// wrk writes its usage on stdout.
fn usage<T>(why: &str) -> Result<T, Refusal> {
    if !why.is_empty() {
        eprintln!("{why}");
    }
    say(USAGE);
    refuse(1, "")
}

/// A number with a unit: `1k`, `2m`.
fn with_unit(text: &str, units: &[(char, u64)]) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().ok()?;
    let scale = match &text[end..] {
        "" => 1,
        unit => {
            let mut letters = unit.chars();
            let letter = letters.next()?.to_ascii_lowercase();
            if letters.next().is_some() {
                return None;
            }
            units.iter().find(|(u, _)| *u == letter)?.1
        }
    };
    number.checked_mul(scale)
}

fn count(text: &str) -> Option<u64> {
    with_unit(text, &[('k', 1000), ('m', 1_000_000), ('g', 1_000_000_000)])
}

fn seconds(text: &str) -> Option<u64> {
    with_unit(text, &[('s', 1), ('m', 60), ('h', 3600)])
}

fn read(args: &[String]) -> Result<Order, Refusal> {
    let parsed = parse("wrk", Style::Long, TABLE, args);
    let mut o = Order {
        connections: 10,
        duration_s: 10,
        threads: 2,
        timeout_s: 2,
        headers: Vec::new(),
        latency: false,
        rate: None,
        url: String::new(),
    };
    let mut complaint = parsed.errors.first().cloned();
    for (at, value) in parsed.options {
        let value = value.unwrap_or_default();
        let number = |to: &mut u64, read: fn(&str) -> Option<u64>| match read(&value) {
            Some(n) => {
                *to = n;
                Ok(())
            }
            None => usage(""),
        };
        match TABLE[at].long {
            "connections" => number(&mut o.connections, count)?,
            "duration" => number(&mut o.duration_s, seconds)?,
            "threads" => number(&mut o.threads, count)?,
            "timeout" => number(&mut o.timeout_s, seconds)?,
            "rate" => {
                let mut rate = 0;
                number(&mut rate, count)?;
                o.rate = Some(rate);
            }
            "header" => match header_line(&value) {
                Ok(header) => o.headers.push(header),
                Err(e) => return refuse(1, format!("wrk: -H: {e}")),
            },
            "latency" => o.latency = true,
            "version" => say(VERSION),
            "script" => {
                return refuse(
                    1,
                    format!(
                        "wrk: -s {value}: Lua is not spoken here. A plan does what scripts are written for: several requests, \
                         bodies, headers, values out of answers; see 'Plan files' in the manual, then: lastdrop run plan.toml"
                    ),
                );
            }
            _ => {
                complaint.get_or_insert_default();
            }
        }
    }
    if let Some(why) = complaint {
        return usage(&why);
    }
    let Some(url) = parsed.words.first() else { return usage("") };
    o.url.clone_from(url);
    if o.threads == 0 || o.duration_s == 0 {
        return usage("");
    }
    if o.connections < o.threads {
        return usage("number of connections must be >= threads");
    }
    if o.rate == Some(0) {
        return usage("");
    }
    Ok(o)
}

fn plan_of(o: &Order, url: &Url) -> Plan {
    let mut spec = RequestSpec::get(url.clone());
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

#[derive(Debug, Default)]
struct Tally {
    complete: u64,
    bytes: u64,
    connect: u64,
    read: u64,
    timeout: u64,
    status: u64,
    latency: Samples,
    /// Answers of each thread in each interval.
    rates: std::collections::BTreeMap<(u64, u64), u64>,
}

impl Tally {
    fn take(&mut self, e: &Exchange, open: bool) {
        self.bytes += e.bytes_received;
        match e.fate {
            Fate::Answered => {
                self.complete += 1;
                self.status += u64::from(e.status > 399);
                let done = e.done.unwrap_or(e.due);
                // In an open loop what a person waits: from the time at which the request was to be sent.
                let from = if open { e.due } else { e.ready.filter(|_| e.first).or(e.sent).unwrap_or(e.due) };
                self.latency.record(done.saturating_sub(from));
                *self.rates.entry((e.connection >> 56, done / RATE_INTERVAL_US)).or_default() += 1;
            }
            Fate::Failed(Failure::Connect) => self.connect += 1,
            Fate::Failed(_) => self.read += 1,
            Fate::TimedOut => self.timeout += 1,
            Fate::Censored | Fate::Unsent => {}
        }
    }

    /// Requests a second of each thread in each whole interval.
    fn rates(&self) -> Samples {
        let mut samples = Samples::default();
        let last = self.rates.keys().map(|(_, at)| *at).max().unwrap_or(0);
        for ((_, at), n) in &self.rates {
            if *at < last {
                samples.record(n * 1_000_000 / RATE_INTERVAL_US);
            }
        }
        samples
    }
}

pub fn main(args: &[String], manner: Manner) -> Result<u8, Refusal> {
    let o = read(args)?;
    if !o.url.contains("://") || o.url.ends_with("://") {
        return usage(&format!("invalid URL: {}", o.url));
    }
    let Ok(url) = o.url.parse::<Url>() else {
        let (scheme, rest) = o.url.split_once("://").unwrap_or(("http", &o.url));
        let host = rest.split(['/', ':']).next().unwrap_or_default();
        return refuse(1, format!("unable to resolve {host}:{scheme} Name or service not known"));
    };
    let service = match (url.port, url.tls) {
        (80, false) => "http".into(),
        (443, true) => "https".into(),
        (port, _) => port.to_string(),
    };
    let addresses: Vec<_> = (url.host.as_str(), url.port).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    if addresses.is_empty() {
        return refuse(1, format!("unable to resolve {}:{service} Name or service not known", url.host));
    }
    // wrk tries one connection before it starts; so do we, and say what it says.
    let tried: Vec<_> = addresses.iter().map(|a| TcpStream::connect_timeout(a, Duration::from_secs(10))).collect();
    if let (true, Some(Err(e))) = (tried.iter().all(Result::is_err), tried.last()) {
        return refuse(1, format!("unable to connect to {}:{service} {}", url.host, describe(e)));
    }
    drop(tried);
    let plan = plan_of(&o, &url);
    say(&format!(
        "Running {} test @ {}\n  {} threads and {} connections\n",
        scaled(o.duration_s as f64, 60.0, &["s", "m"], 0),
        o.url,
        o.threads,
        o.connections
    ));
    let stop = catch_signals()?;
    let mut tally = Tally::default();
    let open = o.rate.is_some();
    let mut show = |some: &[Exchange]| some.iter().for_each(|e| tally.take(e, open));
    let carried = carry_out(&plan, Wish::Exchanges, &stop, &mut show).map_err(|e| failed("wrk", e))?;
    let run_s = carried.run.phases[0].duration_s.max(1e-6);
    say(&report(&o, &tally, run_s, manner));
    let what = if open {
        "an open loop: times count from when a request was due"
    } else {
        "a closed loop: while the server stalls nobody else asks, so these times leave out those who would have come; -R RATE shows them"
    };
    remark(manner, &carried.run, what);
    Ok(0)
}

fn report(o: &Order, t: &Tally, run_s: f64, manner: Manner) -> String {
    let mut out = format!("  Thread Stats{:>6}{:>11}{:>8}{:>12}\n", "Avg", "Stdev", "Max", "+/- Stdev");
    let rates = t.rates();
    for (name, samples, format) in
        [("Latency", &t.latency, time_us as fn(f64) -> String), ("Req/Sec", &rates, metric as fn(f64) -> String)]
    {
        let within = match samples.share_within(1.0) {
            Some(share) => format!("{:8.2}%", share * 100.0),
            // 0 divided by 0, as C prints it.
            None if manner.like_the_original => "    -nan%".into(),
            None => format!("{:8.2}%", 0.0),
        };
        let _ = writeln!(
            out,
            "    {name:<10}{}{}{}{within}",
            padded(&format(samples.mean()), 8),
            padded(&format(samples.deviation()), 10),
            padded(&format(samples.max() as f64), 9)
        );
    }
    let n = t.latency.count();
    let at = |share: f64| padded(&time_us(t.latency.at_rank((share * n as f64) as u64) as f64), 10);
    match (o.latency, o.rate) {
        (true, None) => {
            out.push_str("  Latency Distribution\n");
            for p in [50.0, 75.0, 90.0, 99.0] {
                let _ = writeln!(out, "{p:7.0}%{}", at(p / 100.0));
            }
        }
        (true, Some(_)) => {
            out.push_str("  Latency Distribution (HdrHistogram - Recorded Latency)\n");
            for p in [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0] {
                let _ = writeln!(out, "{p:7.3}%{}", at(p / 100.0));
            }
        }
        _ => {}
    }
    let _ = writeln!(out, "  {} requests in {}, {}B read", t.complete, time_us(run_s * 1e6), binary(t.bytes as f64));
    if t.connect + t.read + t.timeout > 0 {
        let _ =
            writeln!(out, "  Socket errors: connect {}, read {}, write 0, timeout {}", t.connect, t.read, t.timeout);
    }
    if t.status > 0 {
        let _ = writeln!(out, "  Non-2xx or 3xx responses: {}", t.status);
    }
    let _ = writeln!(out, "Requests/sec: {:9.2}", t.complete as f64 / run_s);
    let _ = writeln!(out, "Transfer/sec: {:>10}B", binary(t.bytes as f64 / run_s));
    out
}

/// A number with the unit that wrk chooses: the next one from 85 % of it on.
fn scaled(mut n: f64, scale: f64, units: &[&str], digits: usize) -> String {
    let mut unit = units[0];
    for next in &units[1..] {
        if n < scale * 0.85 {
            break;
        }
        n /= scale;
        unit = next;
    }
    format!("{n:.digits$}{unit}")
}

fn time_us(us: f64) -> String {
    if us >= 1_000_000.0 { scaled(us / 1e6, 60.0, &["s", "m"], 2) } else { scaled(us, 1000.0, &["us", "ms"], 2) }
}

fn metric(n: f64) -> String {
    scaled(n, 1000.0, &["", "k", "M", "G", "T"], 2)
}

fn binary(n: f64) -> String {
    scaled(n, 1024.0, &["", "K", "M", "G", "T"], 2)
}

/// Right-aligned so that the digits of different units stand below each other.
fn padded(text: &str, width: usize) -> String {
    let letters = text.chars().rev().take(2).filter(char::is_ascii_alphabetic).count();
    let pad = 2 - letters;
    format!("{text:>w$}{:pad$}", "", w = width - pad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_units_and_the_places_of_wrk() {
        assert_eq!((metric(8991.0), metric(990.0), metric(5.0)), ("8.99k".into(), "0.99k".into(), "5.00".into()));
        assert_eq!(
            (time_us(647.57), time_us(3550.0), time_us(1.1e6)),
            ("647.57us".into(), "3.55ms".into(), "1.10s".into())
        );
        assert_eq!(binary(0.0), "0.00");
        assert_eq!(padded("3.30k", 8), "  3.30k ");
        assert_eq!(padded("647.57us", 8), "647.57us");
        assert_eq!((seconds("2m"), count("1k"), count("x"), seconds("1x")), (Some(120), Some(1000), None, None));
    }
}
