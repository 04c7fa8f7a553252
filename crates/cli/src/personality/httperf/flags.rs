//! The flags of httperf.

use lastdrop_model::Arrival;
use lastdrop_model::bounds::{BUFFER, Bound, CONNECTIONS, PAUSE, RATE, REQUESTS};

use super::parameters::Parameters;
use crate::personality::getopt::{Argument, Opt, Style, opt, parse};
use crate::personality::number::g;
use crate::personality::{Refusal, beyond, refuse};
use crate::stdio::out;

const USAGE: &str = include_str!("usage.txt");

const TABLE: &[Opt] = &[
    opt('h', "help", Argument::None),
    opt('V', "version", Argument::None),
    opt('v', "verbose", Argument::None),
    opt('d', "debug", Argument::Required),
    opt('\0', "add-header", Argument::Required),
    opt('\0', "burst-length", Argument::Required),
    opt('\0', "client", Argument::Required),
    opt('\0', "close-with-reset", Argument::None),
    opt('\0', "failure-status", Argument::Required),
    opt('\0', "hog", Argument::None),
    opt('\0', "http-version", Argument::Required),
    opt('\0', "max-connections", Argument::Required),
    opt('\0', "max-piped-calls", Argument::Required),
    opt('\0', "method", Argument::Required),
    opt('\0', "no-host-hdr", Argument::None),
    opt('\0', "num-calls", Argument::Required),
    opt('\0', "num-conns", Argument::Required),
    opt('\0', "period", Argument::Required),
    opt('\0', "port", Argument::Required),
    opt('\0', "print-reply", Argument::Optional),
    opt('\0', "print-request", Argument::Optional),
    opt('\0', "rate", Argument::Required),
    opt('\0', "recv-buffer", Argument::Required),
    opt('\0', "retry-on-failure", Argument::None),
    opt('\0', "send-buffer", Argument::Required),
    opt('\0', "server", Argument::Required),
    opt('\0', "server-name", Argument::Required),
    opt('\0', "session-cookies", Argument::None),
    opt('\0', "ssl", Argument::None),
    opt('\0', "ssl-ciphers", Argument::Required),
    opt('\0', "ssl-no-reuse", Argument::None),
    opt('\0', "think-timeout", Argument::Required),
    opt('\0', "timeout", Argument::Required),
    opt('\0', "uri", Argument::Required),
    opt('\0', "wlog", Argument::Required),
    opt('\0', "wsess", Argument::Required),
    opt('\0', "wsesslog", Argument::Required),
    opt('\0', "wset", Argument::Required),
];

/// When connections begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ConnectionSchedule {
    /// One after the other.
    InTurn,
    /// Connections per second, and their distribution.
    Rate(f64, Arrival),
}

#[derive(Debug, Clone)]
pub enum Workload {
    /// Connections with --num-calls calls each.
    Plain,
    /// Sessions, calls in each, seconds of thinking between bursts.
    Sessions(u64, u64, f64),
    /// Sessions, seconds of thinking, file.
    SessionLog(u64, f64, String),
}

/// Source of the calls' paths, except with --wsesslog.
#[derive(Debug, Clone)]
pub enum UriSource {
    /// Whether to start again at the end of the file, and the file.
    List(bool, String),
    /// Number of files, and the miss rate.
    Set(u64, f64),
}

#[derive(Debug, Clone)]
pub struct HttperfOptions {
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
    pub begin: ConnectionSchedule,
    pub rate: f64,
    /// A random period, as it is shown.
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
    pub work: Workload,
    pub uris: Option<UriSource>,
    /// The value of --wset, which is shown even if another flag overrides it.
    pub set: Option<(u64, f64)>,
    pub failure_status: Option<u64>,
}

pub fn usage<T>(why: &str) -> Result<T, Refusal> {
    refuse(1, format!("httperf: {why}"))
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, Refusal> {
    text.trim().parse().or_else(|_| usage(&format!("illegal {what} {text}")))
}

/// Like [`number`], but refuses a number above the bound.
fn bounded<T: std::str::FromStr>(flag: &str, text: &str, what: &str, bound: &'static Bound) -> Result<T, Refusal> {
    beyond("httperf", flag, text, bound)?;
    number(text, what)
}

/// Seconds; 0 for a negative number, as in the original.
pub fn seconds(flag: &str, text: &str, what: &str) -> Result<f64, Refusal> {
    bounded::<f64>(flag, text, what, PAUSE).map(|s| s.max(0.0))
}

/// A schedule with a valid rate.
fn begin(text: &str, rate: f64, arrival: Arrival) -> Result<ConnectionSchedule, Refusal> {
    match RATE.check(rate) {
        Ok(()) => Ok(ConnectionSchedule::Rate(rate, arrival)),
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

/// The id of a client, and the number of clients: `ID/N`.
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
fn period(text: &str) -> Result<(ConnectionSchedule, f64, Option<String>), Refusal> {
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
                false => Ok((ConnectionSchedule::InTurn, 0.0, None)),
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
                Ok((ConnectionSchedule::InTurn, 0.0, None))
            }
        }
        other => usage(&format!("illegal interarrival distribution '{other}' in {text}")),
    }
}

fn rate(text: &str) -> Result<(ConnectionSchedule, f64, Option<String>), Refusal> {
    let rate: f64 = number(text, "request rate")?;
    let is_begun = rate > 0.0 || rate.is_nan();
    let begin =
        if is_begun { begin(&format!("--rate {text}"), rate, Arrival::Uniform)? } else { ConnectionSchedule::InTurn };
    Ok((begin, rate, None))
}

/// Options of the original that do not exist here, and why.
const NOT_HERE: &[(&str, &str)] = &[
    ("debug", "there is no output of the original's own insides here; -v tells reply rates"),
    ("close-with-reset", "connections are closed in order here"),
    ("retry-on-failure", "a failure is counted and not tried again here"),
    ("max-piped-calls", "the calls of a burst follow each other here"),
    ("ssl-ciphers", "cipher suites cannot be chosen here"),
];

fn defaults() -> HttperfOptions {
    HttperfOptions {
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
        begin: ConnectionSchedule::InTurn,
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
        work: Workload::Plain,
        uris: None,
        set: None,
        failure_status: None,
    }
}

pub fn read(args: &[String]) -> Result<HttperfOptions, Refusal> {
    let parsed = parse("httperf", Style::LongOnly, TABLE, args);
    // httperf stops at the first mistake of either kind.
    let mistake = parsed.errors.into_iter().zip(parsed.errors_at).next();
    let mut o = defaults();
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
            "rate" => (o.begin, o.rate, o.period) = rate(&value)?,
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
                // The original skips the first two characters.
                let file = value.char_indices().nth(2).map_or("", |(at, _)| &value[at..]);
                o.uris = Some(UriSource::List(value.starts_with(['y', 'Y']), file.to_string()));
            }
            "wsess" => {
                let mut p = Parameters::new("--wsess", &value);
                let sessions = p.whole("number of sessions (1st param)", REQUESTS)?;
                p.comma("number of calls per session (2nd param)")?;
                let calls = p.whole("number of calls per session (2nd param)", REQUESTS)?;
                p.comma("user think time (3rd param)")?;
                let think = p.real("user think time (3rd param)", PAUSE, None)?;
                p.end()?;
                o.work = Workload::Sessions(sessions, calls, think);
            }
            "wsesslog" => {
                let mut p = Parameters::new("--wsesslog", &value);
                let sessions = p.whole("number of sessions (1st param)", REQUESTS)?;
                p.comma("user think time (2nd param)")?;
                let think = p.real("user think time (2nd param)", PAUSE, None)?;
                p.comma("session filename (3rd param)")?;
                o.work = Workload::SessionLog(sessions, think, p.word());
                p.end()?;
            }
            "wset" => {
                let mut p = Parameters::new("--wset", &value);
                let files = p.whole("working set size (1st parameter)", REQUESTS)?;
                p.comma("target miss rate (2nd parameter)")?;
                let miss = p.real("target miss rate (2nd parameter)", REQUESTS, Some(1.0))?;
                p.end()?;
                o.uris = Some(UriSource::Set(files, miss));
                o.set = Some((files, miss));
            }
            other => {
                let why =
                    NOT_HERE.iter().find(|(name, _)| *name == other).map_or("it is not known here", |(_, why)| why);
                return usage(&format!("--{other}: {why}"));
            }
        }
    }
    if let Some((e, _)) = mistake {
        return refuse(1, e);
    }
    Ok(o)
}

/// The part of a request or a response to print.
fn printed(what: &str) -> String {
    match what.chars().next().map(|c| c.to_ascii_lowercase()) {
        Some('h') => "header",
        Some('b') => "body",
        _ => "all",
    }
    .into()
}

pub fn port(o: &HttperfOptions) -> u16 {
    o.port.unwrap_or(if o.ssl { 443 } else { 80 })
}
