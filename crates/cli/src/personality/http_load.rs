//! http_load, 09 March 2016.

use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use lastdrop_analyze::samples::Samples;
use lastdrop_load::describe;
use lastdrop_model::plan::Proxy;
use lastdrop_model::request::{Expectation, Pick};
use lastdrop_model::{Arrival, Exchange, Fate, KeepAlive, Load, Micros, Plan, Wish, url_file};

use super::getopt::atoi;
use super::{Manner, Refusal, carry_out, catch_signals, failed, refuse, remark, say};

const USAGE: &str = "usage:  http_load [-checksum] [-throttle] [-proxy host:port] [-verbose] [-timeout secs] [-sip sip_file] \
    [-cipher str]\n            ( -parallel N | -rate N [-jitter] )\n            ( -fetches N | -seconds N )\n            \
    url_file\nOne start specifier, either -parallel or -rate, is required.\n\
    One end specifier, either -fetches or -seconds, is required.";
/// Bytes a second of a modem of 33.6 kbit/s.
const MODEM: u64 = 3360;
/// Progress is told so often.
const PROGRESS_US: Micros = 60_000_000;
const MOST_CONNECTIONS: u32 = 10_000;

/// Options in the order in which a beginning of them is recognised: `-p` is -parallel, `-s` -seconds, `-t` -throttle.
const OPTIONS: &[(&str, bool)] = &[
    ("-checksum", false),
    ("-throttle", false),
    ("-Throttle", true),
    ("-verbose", false),
    ("-timeout", true),
    ("-jitter", false),
    ("-parallel", true),
    ("-rate", true),
    ("-fetches", true),
    ("-seconds", true),
    ("-sip", true),
    ("-cipher", true),
    ("-proxy", true),
];

#[derive(Debug, Default)]
struct Order {
    checksum: bool,
    throttle: Option<u64>,
    verbose: bool,
    timeout_s: u64,
    jitter: bool,
    parallel: Option<u64>,
    rate: Option<u64>,
    fetches: Option<u64>,
    seconds: Option<u64>,
    sources: Option<String>,
    proxy: Option<(String, u16)>,
    file: String,
}

fn usage<T>() -> Result<T, Refusal> {
    refuse(1, USAGE)
}

fn read(args: &[String]) -> Result<Order, Refusal> {
    let mut o = Order { timeout_s: 60, ..Order::default() };
    let mut rest = args.iter().peekable();
    while let Some(word) = rest.next_if(|w| w.starts_with('-') && w.len() > 1) {
        let Some((name, takes)) = OPTIONS.iter().find(|(name, _)| name.starts_with(word.as_str())) else {
            return usage();
        };
        let value = if *takes {
            match rest.next() {
                Some(value) => value.clone(),
                None => return usage(),
            }
        } else {
            String::new()
        };
        let count = |what: &str| -> Result<Option<u64>, Refusal> {
            match atoi(&value) {
                n if n >= 1 => Ok(Some(n as u64)),
                _ => refuse(1, format!("http_load: {what} must be at least 1")),
            }
        };
        match *name {
            "-checksum" => o.checksum = true,
            "-throttle" => o.throttle = Some(MODEM),
            "-Throttle" => o.throttle = count("throttle")?.map(|bits| (bits / 10).max(1)),
            "-verbose" => o.verbose = true,
            "-timeout" => o.timeout_s = count("timeout")?.unwrap_or(60),
            "-jitter" => o.jitter = true,
            "-parallel" => o.parallel = count("parallel")?,
            "-rate" => {
                o.rate = count("rate")?;
                if o.rate.is_some_and(|r| r > 1000) {
                    return refuse(1, "http_load: rate must be at most 1000");
                }
            }
            "-fetches" => o.fetches = count("fetches")?,
            "-seconds" => o.seconds = count("seconds")?,
            "-sip" => o.sources = Some(value),
            "-proxy" => {
                let (host, port) = value.split_once(':').unwrap_or((&value, "80"));
                o.proxy = Some((host.to_string(), atoi(port) as u16));
            }
            _ => return refuse(1, "http_load: -cipher: cipher suites cannot be chosen here; leave it away"),
        }
    }
    let (Some(file), None) = (rest.next(), rest.next()) else { return usage() };
    o.file.clone_from(file);
    let one = |a: Option<u64>, b: Option<u64>| a.is_some() != b.is_some();
    if !one(o.parallel, o.rate) || !one(o.fetches, o.seconds) || (o.jitter && o.rate.is_none()) {
        return usage();
    }
    Ok(o)
}

fn no_file<T>(file: &str, e: &std::io::Error) -> Result<T, Refusal> {
    refuse(1, format!("{file}: {}", describe(e)))
}

fn plan_of(o: &Order) -> Result<Plan, Refusal> {
    let text = fs::read_to_string(&o.file).or_else(|e| no_file(&o.file, &e))?;
    let mut specs = url_file::parse(&text, Path::new("."), |_| None)
        .or_else(|e| refuse(1, format!("http_load: {}: {e}", o.file)))?;
    for spec in &mut specs {
        spec.headers = vec![
            ("Host".into(), spec.url.authority()),
            ("User-Agent".into(), "http_load 09Mar2016".into()),
            ("Accept".into(), "*/*".into()),
            ("Accept-Encoding".into(), "gzip".into()),
        ];
        if o.checksum {
            spec.expect = vec![Expectation::Same];
        }
    }
    let mut plan = Plan::new(specs[0].url.clone(), super::seed());
    plan.requests = specs;
    plan.pick = Pick::Weighted;
    plan.keepalive = KeepAlive::Off;
    plan.timeout = Duration::from_secs(o.timeout_s);
    // What is in flight at the end is waited for; with -seconds it is let go of.
    plan.drain = if o.seconds.is_some() { Duration::ZERO } else { plan.timeout };
    plan.tls.insecure = true;
    plan.network.bandwidth_bytes = o.throttle;
    plan.network.proxy = o.proxy.clone().map(|(host, port)| Proxy { host, port, credentials: None, tunnel: false });
    if let Some(file) = &o.sources {
        let text = fs::read_to_string(file).or_else(|e| no_file(file, &e))?;
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
            match line.parse::<IpAddr>() {
                Ok(address) => plan.network.sources.push(address),
                Err(_) => return refuse(1, format!("http_load: {file}: '{line}' is not an address")),
            }
        }
    }
    let phase = &mut plan.phases[0];
    phase.load = match (o.parallel, o.rate) {
        (Some(n), _) => Load::closed(n.min(1_000_000) as u32),
        (None, rate) => {
            let arrival = if o.jitter { Arrival::Jitter(100) } else { Arrival::Uniform };
            Load::open(rate.unwrap_or(1) as f64, arrival, MOST_CONNECTIONS)
        }
    };
    phase.requests = o.fetches;
    phase.duration = o.seconds.map(Duration::from_secs);
    Ok(plan)
}

#[derive(Debug, Default)]
struct Tally {
    fetches: u64,
    bytes: u64,
    connect: Samples,
    first: Samples,
    timeouts: u64,
    bad_lengths: u64,
    lengths: std::collections::HashMap<u32, u64>,
    status: std::collections::BTreeMap<u16, u64>,
    told: Micros,
    start: Option<Micros>,
}

impl Tally {
    fn take(&mut self, e: &Exchange, o: &Order, plan: &Plan) {
        let (Some(sent), Some(done)) = (e.sent, e.done) else { return };
        let start = *self.start.get_or_insert(sent);
        let url = || &plan.requests[e.request as usize].url;
        self.fetches += 1;
        self.bytes += e.body_bytes;
        if let Some(connected) = e.connected {
            self.connect.record(connected.saturating_sub(sent));
            if let Some(first) = e.first_byte {
                self.first.record(first.saturating_sub(connected));
            }
        }
        match e.fate {
            Fate::TimedOut => {
                self.timeouts += 1;
                eprintln!("{}: timed out", url());
            }
            Fate::Answered => {
                *self.status.entry(e.status).or_default() += 1;
                let expected = *self.lengths.entry(e.request).or_insert(e.body_bytes);
                if !o.checksum && expected != e.body_bytes {
                    self.bad_lengths += 1;
                    eprintln!("{}: byte count wrong", url());
                }
            }
            _ => {}
        }
        if o.verbose && done.saturating_sub(start) / PROGRESS_US > self.told {
            self.told += 1;
            let now = done.saturating_sub(start) as f64 / 1e6;
            eprintln!("--- {} secs, {} fetches started, {} completed, 0 current", g(now), self.fetches, self.fetches);
        }
    }
}

/// A number as `%g` prints it: six significant digits, no zeros at the end.
fn g(x: f64) -> String {
    if x == 0.0 {
        return "0".into();
    }
    let exponent = format!("{x:.5e}").rsplit('e').next().and_then(|e| e.parse::<i32>().ok()).unwrap_or(0);
    let trimmed = |text: String| {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
    };
    if (-4..6).contains(&exponent) {
        trimmed(format!("{x:.*}", (5 - exponent).max(0) as usize))
    } else {
        let text = format!("{x:.5e}");
        let (mantissa, _) = text.split_once('e').unwrap_or((&text, ""));
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trimmed(mantissa.to_string()), exponent.abs())
    }
}

pub fn main(args: &[String], manner: Manner) -> Result<u8, Refusal> {
    let o = read(args)?;
    let plan = plan_of(&o)?;
    let stop = catch_signals()?;
    let mut tally = Tally::default();
    let mut show = |some: &[Exchange]| some.iter().for_each(|e| tally.take(e, &o, &plan));
    let carried = carry_out(&plan, Wish::Exchanges, &stop, &mut show).map_err(|e| failed("http_load", e))?;
    let phase = &carried.run.phases[0];
    let wrong = if o.checksum { phase.expectations.missed } else { tally.bad_lengths };
    say(&report(&o, &tally, phase.duration_s, phase.connections.peak, wrong));
    remark(
        manner,
        &carried.run,
        "http_load has no percentiles and no time from the beginning to the end of a fetch; its fetches include those that failed",
    );
    Ok(0)
}

fn report(o: &Order, t: &Tally, seconds: f64, peak: u64, wrong: u64) -> String {
    let mut out =
        format!("{} fetches, {peak} max parallel, {} bytes, in {} seconds\n", t.fetches, g(t.bytes as f64), g(seconds));
    if t.fetches > 0 {
        let _ = writeln!(out, "{} mean bytes/connection", g(t.bytes as f64 / t.fetches as f64));
    }
    if seconds > 0.01 {
        let _ =
            writeln!(out, "{} fetches/sec, {} bytes/sec", g(t.fetches as f64 / seconds), g(t.bytes as f64 / seconds));
    }
    for (name, s) in [("connect", &t.connect), ("first-response", &t.first)] {
        if s.count() > 0 {
            let ms = |us: f64| g(us / 1000.0);
            let _ = writeln!(
                out,
                "msecs/{name}: {} mean, {} max, {} min",
                ms(s.mean()),
                ms(s.max() as f64),
                ms(s.min() as f64)
            );
        }
    }
    if t.timeouts > 0 {
        let _ = writeln!(out, "{} timeouts", t.timeouts);
    }
    if wrong > 0 {
        let _ = writeln!(out, "{wrong} bad {}", if o.checksum { "checksums" } else { "byte counts" });
    }
    out.push_str("HTTP response codes:\n");
    for (status, n) in &t.status {
        let _ = writeln!(out, "  code {status:03} -- {n}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_g() {
        for (x, text) in [
            (0.0, "0"),
            (100.0, "100"),
            (0.5, "0.5"),
            (1_234_567.0, "1.23457e+06"),
            (0.000_012_3, "1.23e-05"),
            (2.345_678_9, "2.34568"),
        ] {
            assert_eq!(g(x), text);
        }
    }

    #[test]
    fn options_may_be_short_and_the_first_of_the_list_wins() {
        let order = |text: &str| read(&text.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        let o = order("-p 5 -s 10 -t file").expect("valid");
        assert_eq!((o.parallel, o.seconds, o.throttle), (Some(5), Some(10), Some(3360)));
        assert!(order("-p 5 -r 3 -f 1 file").is_err() && order("-r 5 file").is_err() && order("-p 5 -f 1").is_err());
        assert!(order("-p 5 -j -f 1 file").is_err(), "jitter is for rates");
    }
}
