//! The flags of httperf, and what a command line of them asks for.

use lastdrop_model::Arrival;
use lastdrop_model::bounds::{BUFFER, Bound, CONNECTIONS, PAUSE, RATE, REQUESTS};

use super::parameters::Parameters;
use crate::personality::getopt::{Opt, Style, Takes, opt, parse};
use crate::personality::number::g;
use crate::personality::{Refusal, beyond, refuse};
use crate::stdio::out;

const USAGE: &str = include_str!("usage.txt");

const TABLE: &[Opt] = &[
    opt('h', "help", Takes::Nothing),
    opt('V', "version", Takes::Nothing),
    opt('v', "verbose", Takes::Nothing),
    opt('d', "debug", Takes::Value),
    opt('\0', "add-header", Takes::Value),
    opt('\0', "burst-length", Takes::Value),
    opt('\0', "client", Takes::Value),
    opt('\0', "close-with-reset", Takes::Nothing),
    opt('\0', "failure-status", Takes::Value),
    opt('\0', "hog", Takes::Nothing),
    opt('\0', "http-version", Takes::Value),
    opt('\0', "max-connections", Takes::Value),
    opt('\0', "max-piped-calls", Takes::Value),
    opt('\0', "method", Takes::Value),
    opt('\0', "no-host-hdr", Takes::Nothing),
    opt('\0', "num-calls", Takes::Value),
    opt('\0', "num-conns", Takes::Value),
    opt('\0', "period", Takes::Value),
    opt('\0', "port", Takes::Value),
    opt('\0', "print-reply", Takes::Perhaps),
    opt('\0', "print-request", Takes::Perhaps),
    opt('\0', "rate", Takes::Value),
    opt('\0', "recv-buffer", Takes::Value),
    opt('\0', "retry-on-failure", Takes::Nothing),
    opt('\0', "send-buffer", Takes::Value),
    opt('\0', "server", Takes::Value),
    opt('\0', "server-name", Takes::Value),
    opt('\0', "session-cookies", Takes::Nothing),
    opt('\0', "ssl", Takes::Nothing),
    opt('\0', "ssl-ciphers", Takes::Value),
    opt('\0', "ssl-no-reuse", Takes::Nothing),
    opt('\0', "think-timeout", Takes::Value),
    opt('\0', "timeout", Takes::Value),
    opt('\0', "uri", Takes::Value),
    opt('\0', "wlog", Takes::Value),
    opt('\0', "wsess", Takes::Value),
    opt('\0', "wsesslog", Takes::Value),
    opt('\0', "wset", Takes::Value),
];

/// When connections begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Begin {
    /// One after the other.
    InTurn,
    /// So many a second, and how they are spread.
    Rate(f64, Arrival),
}

#[derive(Debug, Clone)]
pub enum Work {
    /// Connections of so many calls each.
    Plain,
    /// Sessions, calls in each, seconds of thinking between bursts.
    Sessions(u64, u64, f64),
    /// Sessions, seconds of thinking, file.
    SessionLog(u64, f64, String),
}

/// Where the paths of calls come from, but for --wsesslog.
#[derive(Debug, Clone)]
pub enum Uris {
    /// Start again at the end of the file?
    List(bool, String),
    /// Files, rate of moving on.
    Set(u64, f64),
}

#[derive(Debug, Clone)]
pub struct Order {
    pub verbose: u32,
    pub hog: bool,
    pub headers: String,
    pub burst: u64,
    pub client: (u64, u64),
    /// Major and minor.
    pub http_version: (u32, u32),
    pub method: Option<String>,
    pub no_host: bool,
    pub num_calls: u64,
    pub num_conns: u64,
    pub max_connections: Option<u32>,
    pub begin: Begin,
    pub rate: f64,
    /// A period that is no fixed one, as it is shown.
    pub period: Option<String>,
    pub port: Option<u16>,
    pub print_reply: Option<String>,
    pub print_request: Option<String>,
    pub receive_buffer: u32,
    pub send_buffer: u32,
    pub server: String,
    pub server_name: Option<String>,
    pub cookies: bool,
    pub ssl: bool,
    pub no_reuse: bool,
    pub think_timeout: f64,
    pub timeout: f64,
    pub uri: String,
    pub work: Work,
    pub uris: Option<Uris>,
    /// What --wset said, which is shown even where another flag goes before it.
    pub set: Option<(u64, f64)>,
    pub failure_status: Option<u64>,
}

pub fn usage<T>(why: &str) -> Result<T, Refusal> {
    refuse(1, format!("httperf: {why}"))
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, Refusal> {
    text.trim().parse().or_else(|_| usage(&format!("illegal {what} {text}")))
}

/// The same, unless it is beyond what a run can do.
fn bounded<T: std::str::FromStr>(flag: &str, text: &str, what: &str, bound: &'static Bound) -> Result<T, Refusal> {
    beyond("httperf", flag, text, bound)?;
    number(text, what)
}

/// Seconds; none where it is less than 0, as the original has it.
pub fn seconds(flag: &str, text: &str, what: &str) -> Result<f64, Refusal> {
    bounded::<f64>(flag, text, what, PAUSE).map(|s| s.max(0.0))
}

/// A rate; of a mean time of 0 there is none.
fn begin(text: &str, rate: f64, arrival: Arrival) -> Result<Begin, Refusal> {
    match RATE.check(rate) {
        Ok(()) => Ok(Begin::Rate(rate, arrival)),
        Err(e) => refuse(2, format!("httperf: {text}: {e}")),
    }
}

fn not_below_0(seconds: f64, text: &str, what: &str) -> Result<f64, Refusal> {
    if seconds < 0.0 { usage(&format!("illegal {what} {text}")) } else { Ok(seconds) }
}

/// A version as sscanf(3) reads `%u.%u`.
fn version(text: &str) -> Result<(u32, u32), Refusal> {
    let leading = |text: &str| text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())].parse().ok();
    let parts =
        text.trim_start().split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, leading(minor)?)));
    parts.map_or_else(|| usage(&format!("illegal version number {text}")), Ok)
}

/// Which of how many clients.
fn client(text: &str) -> Result<(u64, u64), Refusal> {
    let end = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (id, rest) = text.split_at(end(text));
    let Ok(id) = id.parse() else { return usage(&format!("bad client id (rest: `{text}')")) };
    let Some(of) = rest.strip_prefix('/') else {
        return usage(&format!("client id not followed by `/' (rest: `{rest}')"));
    };
    match of[..end(of)].parse() {
        Ok(all) if id < all => Ok((id, all)),
        _ => usage(&format!("bad number of clients (rest: `{of}')")),
    }
}

/// A number that may not be 0.
fn above_0(n: u64, text: &str, what: &str) -> Result<u64, Refusal> {
    if n == 0 { usage(&format!("illegal {what} {text}")) } else { Ok(n) }
}

/// `d1`, `e0.5`, `u1,2`, or a number: seconds between connections.
fn period(text: &str) -> Result<(Begin, f64, Option<String>), Refusal> {
    let (kind, rest) = match text.chars().next() {
        Some(c) if c.is_ascii_alphabetic() => (c, &text[1..]),
        _ => ('d', text),
    };
    match kind {
        'd' | 'e' => {
            let what = "mean interarrival time";
            let seconds = bounded::<f64>("--period", rest, what, PAUSE).and_then(|s| not_below_0(s, rest, what))?;
            let arrival = if kind == 'd' { Arrival::Uniform } else { Arrival::Poisson };
            let shown = (kind == 'e').then(|| format!("e{}", g(seconds)));
            match seconds > 0.0 {
                true => Ok((begin(&format!("--period {text}"), 1.0 / seconds, arrival)?, 1.0 / seconds, shown)),
                false => Ok((Begin::InTurn, 0.0, None)),
            }
        }
        'u' => {
            let (low, high) = match rest.split_once(',') {
                Some((low, high)) => (low, Some(high)),
                None => (rest, None),
            };
            let read = |text, what, shown| {
                bounded::<f64>("--period", text, what, PAUSE)
                    .and_then(|s| not_below_0(s, text, what))
                    .or_else(|e| if e.code == 1 { usage(&format!("illegal {what} {shown}")) } else { Err(e) })
            };
            let low = read(low, "minimum interarrival time", rest)?;
            let Some(high) = high else {
                return usage("minimum interarrival time not followed by `,MAX_IAT' (rest: `')");
            };
            let high = read(high, "request period", high)?;
            let mean = f64::midpoint(low, high);
            let spread = (high - low).abs() / 2.0 / mean.max(f64::MIN_POSITIVE);
            if mean > 0.0 {
                let jitter = Arrival::Jitter((spread * 1000.0).round() as u16);
                let shown = format!("u{},{}", g(low), g(high));
                Ok((begin(&format!("--period {text}"), 1.0 / mean, jitter)?, 1.0 / mean, Some(shown)))
            } else {
                Ok((Begin::InTurn, 0.0, None))
            }
        }
        other => usage(&format!("illegal interarrival distribution '{other}' in {text}")),
    }
}

pub fn read(args: &[String]) -> Result<Order, Refusal> {
    let parsed = parse("httperf", Style::LongOnly, TABLE, args);
    // It stops at the first mistake, of whichever kind.
    let mistake = parsed.errors.into_iter().zip(parsed.errors_at).next();
    let mut o = Order {
        verbose: 0,
        hog: false,
        headers: String::new(),
        burst: 1,
        client: (0, 1),
        http_version: (1, 1),
        method: None,
        no_host: false,
        num_calls: 1,
        num_conns: 1,
        max_connections: None,
        begin: Begin::InTurn,
        rate: 0.0,
        period: None,
        port: None,
        print_reply: None,
        print_request: None,
        receive_buffer: 16384,
        send_buffer: 4096,
        server: "localhost".into(),
        server_name: None,
        cookies: false,
        ssl: false,
        no_reuse: false,
        think_timeout: 0.0,
        timeout: 0.0,
        uri: "/".into(),
        work: Work::Plain,
        uris: None,
        set: None,
        failure_status: None,
    };
    let not_here = |name: &str, why: &str| -> Result<(), Refusal> { usage(&format!("--{name}: {why}")) };
    for (index, (at, value)) in parsed.options.into_iter().enumerate() {
        if let Some((e, _)) = mistake.as_ref().filter(|(_, before)| *before <= index) {
            return refuse(1, e.clone());
        }
        let value = value.unwrap_or_default();
        match TABLE[at].long {
            "help" => {
                out(USAGE);
                return refuse(0, "");
            }
            "version" => out("httperf: httperf-0.9.0 compiled without DEBUG without TIME_SYSCALLS.\n"),
            "verbose" => o.verbose += 1,
            "add-header" => o.headers = value,
            "burst-length" => {
                let what = "burst-length";
                o.burst = above_0(bounded("--burst-length", &value, what, REQUESTS)?, &value, what)?;
            }
            "client" => o.client = client(&value)?,
            "failure-status" => {
                let what = "failure status";
                o.failure_status = Some(above_0(number(&value, what)?, &value, what)?);
            }
            "hog" => o.hog = true,
            "http-version" => o.http_version = version(&value)?,
            "max-connections" => {
                o.max_connections = Some(bounded("--max-connections", &value, "max. # of connection", CONNECTIONS)?);
            }
            "method" => o.method = Some(value),
            "no-host-hdr" => o.no_host = true,
            "num-calls" => o.num_calls = bounded("--num-calls", &value, "number of calls", REQUESTS)?,
            "num-conns" => o.num_conns = bounded("--num-conns", &value, "number of connections", REQUESTS)?,
            "period" => (o.begin, o.rate, o.period) = period(&value)?,
            "port" => o.port = Some(number(&value, "port number")?),
            "print-reply" => o.print_reply = Some(printed(&value)),
            "print-request" => o.print_request = Some(printed(&value)),
            "rate" => {
                o.rate = number(&value, "request rate")?;
                (o.begin, o.period) = (Begin::InTurn, None);
                if o.rate > 0.0 || o.rate.is_nan() {
                    o.begin = begin(&format!("--rate {value}"), o.rate, Arrival::Uniform)?;
                }
            }
            "recv-buffer" => o.receive_buffer = bounded("--recv-buffer", &value, "receive buffer size", BUFFER)?,
            "send-buffer" => o.send_buffer = bounded("--send-buffer", &value, "send buffer size", BUFFER)?,
            "server" => o.server = value,
            "server-name" => o.server_name = Some(value),
            "session-cookies" => o.cookies = true,
            "ssl" => o.ssl = true,
            "ssl-no-reuse" => o.no_reuse = true,
            "think-timeout" => o.think_timeout = seconds("--think-timeout", &value, "think timeout value")?,
            "timeout" => o.timeout = seconds("--timeout", &value, "connect timeout")?,
            "uri" => o.uri = value,
            "wlog" => {
                // The original takes what is behind the second character.
                let file = value.char_indices().nth(2).map_or("", |(at, _)| &value[at..]);
                o.uris = Some(Uris::List(value.starts_with(['y', 'Y']), file.to_string()));
            }
            "wsess" => {
                let mut p = Parameters::new("--wsess", &value);
                let sessions = p.whole("number of sessions (1st param)", REQUESTS)?;
                p.comma("number of calls per session (2nd param)")?;
                let calls = p.whole("number of calls per session (2nd param)", REQUESTS)?;
                p.comma("user think time (3rd param)")?;
                let think = p.real("user think time (3rd param)", PAUSE, None)?;
                p.end()?;
                o.work = Work::Sessions(sessions, calls, think);
            }
            "wsesslog" => {
                let mut p = Parameters::new("--wsesslog", &value);
                let sessions = p.whole("number of sessions (1st param)", REQUESTS)?;
                p.comma("user think time (2nd param)")?;
                let think = p.real("user think time (2nd param)", PAUSE, None)?;
                p.comma("session filename (3rd param)")?;
                o.work = Work::SessionLog(sessions, think, p.word());
                p.end()?;
            }
            "wset" => {
                let mut p = Parameters::new("--wset", &value);
                let files = p.whole("working set size (1st parameter)", REQUESTS)?;
                p.comma("target miss rate (2nd parameter)")?;
                let miss = p.real("target miss rate (2nd parameter)", REQUESTS, Some(1.0))?;
                p.end()?;
                o.uris = Some(Uris::Set(files, miss));
                o.set = Some((files, miss));
            }
            "debug" => {
                not_here("debug", "there is no output of the original's own insides here; -v tells reply rates")?
            }
            "close-with-reset" => not_here("close-with-reset", "connections are closed in order here")?,
            "retry-on-failure" => not_here("retry-on-failure", "a failure is counted and not tried again here")?,
            "max-piped-calls" => not_here("max-piped-calls", "the calls of a burst follow each other here")?,
            "ssl-ciphers" => not_here("ssl-ciphers", "cipher suites cannot be chosen here")?,
            other => not_here(other, "it is not known here")?,
        }
    }
    if let Some((e, _)) = mistake {
        return refuse(1, e);
    }
    Ok(o)
}

/// What of a request or an answer is printed.
fn printed(what: &str) -> String {
    match what.chars().next().map(|c| c.to_ascii_lowercase()) {
        Some('h') => "header",
        Some('b') => "body",
        _ => "all",
    }
    .into()
}

pub fn port(o: &Order) -> u16 {
    o.port.unwrap_or(if o.ssl { 443 } else { 80 })
}
