//! httperf 0.9.0.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::net::ToSocketAddrs;
use std::time::Duration;

use lastdrop_analyze::samples::Samples;
use lastdrop_model::request::{Body, Pick, RequestSpec, Think};
use lastdrop_model::{Arrival, Exchange, Failure, Fate, KeepAlive, Load, Micros, Phase, Plan, Url, Wish};

use super::getopt::{Opt, Style, Takes, opt, parse};
use super::{Carried, Manner, Refusal, carry_out, catch_signals, failed, refuse, remark, say};

const USAGE: &str = include_str!("usage/httperf.txt");
/// One sample of the reply rate covers so long.
const RATE_INTERVAL_US: Micros = 5_000_000;
/// Most connections at once, as select(2) has it in the original.
const MOST_CONNECTIONS: u32 = 1024 - 3;
/// Sessions that are written out beyond what a file of them names.
const MOST_STEPS: usize = 100_000;

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
enum Begin {
    /// One after the other.
    InTurn,
    /// So many a second, and how they are spread.
    Rate(f64, Arrival),
}

#[derive(Debug, Clone)]
enum Work {
    /// Connections of so many calls each.
    Plain,
    /// Sessions, calls in each, seconds of thinking between bursts.
    Sessions(u64, u64, f64),
    /// Sessions, seconds of thinking, file.
    SessionLog(u64, f64, String),
    /// Start again at the end of the file?
    Uris(bool, String),
    /// Files, rate of moving on.
    Set(u64, f64),
}

#[derive(Debug, Clone)]
struct Order {
    verbose: u32,
    hog: bool,
    headers: String,
    burst: u64,
    client: (u64, u64),
    http_version: Option<String>,
    method: Option<String>,
    no_host: bool,
    num_calls: u64,
    num_conns: u64,
    max_connections: Option<u32>,
    begin: Begin,
    rate: f64,
    period: Option<String>,
    port: Option<u16>,
    print_reply: Option<String>,
    print_request: Option<String>,
    receive_buffer: u32,
    send_buffer: u32,
    server: String,
    server_name: Option<String>,
    cookies: bool,
    ssl: bool,
    no_reuse: bool,
    think_timeout: f64,
    timeout: f64,
    uri: String,
    work: Work,
    failure_status: Option<u16>,
}

fn usage<T>(why: &str) -> Result<T, Refusal> {
    refuse(1, format!("httperf: {why}"))
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, Refusal> {
    text.trim().parse().or_else(|_| usage(&format!("illegal {what} {text}")))
}

/// `d1`, `e0.5`, `u1,2`, or a number: seconds between connections.
fn period(text: &str) -> Result<Begin, Refusal> {
    let (kind, rest) = match text.chars().next() {
        Some(c) if c.is_ascii_alphabetic() => (c, &text[1..]),
        _ => ('d', text),
    };
    match kind {
        'd' | 'e' => {
            let seconds: f64 = number(rest, "mean interarrival time")?;
            let arrival = if kind == 'd' { Arrival::Uniform } else { Arrival::Poisson };
            Ok(if seconds > 0.0 { Begin::Rate(1.0 / seconds, arrival) } else { Begin::InTurn })
        }
        'u' => {
            let (low, high) = rest.split_once(',').unwrap_or((rest, rest));
            let (low, high): (f64, f64) =
                (number(low, "mean interarrival time")?, number(high, "mean interarrival time")?);
            let mean = f64::midpoint(low, high);
            let spread = (high - low).abs() / 2.0 / mean.max(f64::MIN_POSITIVE);
            Ok(if mean > 0.0 {
                Begin::Rate(1.0 / mean, Arrival::Jitter((spread * 1000.0).round() as u16))
            } else {
                Begin::InTurn
            })
        }
        other => usage(&format!("illegal interarrival distribution '{other}' in {text}")),
    }
}

fn parts<const N: usize>(text: &str, what: &str) -> Result<[String; N], Refusal> {
    let all: Vec<String> = text.splitn(N, ',').map(str::to_string).collect();
    all.try_into().or_else(|_| usage(&format!("illegal {what} parameter ({text})")))
}

fn read(args: &[String]) -> Result<Order, Refusal> {
    let parsed = parse("httperf", Style::LongOnly, TABLE, args);
    if let Some(e) = parsed.errors.first() {
        return refuse(1, e.clone());
    }
    let mut o = Order {
        verbose: 0,
        hog: false,
        headers: String::new(),
        burst: 1,
        client: (0, 1),
        http_version: None,
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
        failure_status: None,
    };
    let not_here = |name: &str, why: &str| -> Result<(), Refusal> { usage(&format!("--{name}: {why}")) };
    for (at, value) in parsed.options {
        let given = value.is_some();
        let value = value.unwrap_or_default();
        match TABLE[at].long {
            "help" => {
                say(USAGE);
                return refuse(0, "");
            }
            "version" => say("httperf: httperf-0.9.0 compiled without DEBUG without TIME_SYSCALLS.\n"),
            "verbose" => o.verbose += 1,
            "add-header" => o.headers.push_str(&value),
            "burst-length" => o.burst = number(&value, "burst-length")?,
            "client" => {
                let (id, of) = value.split_once('/').unwrap_or((&value, "1"));
                o.client = (number(id, "client id")?, number(of, "number of clients")?);
            }
            "failure-status" => o.failure_status = Some(number(&value, "failure status")?),
            "hog" => o.hog = true,
            "http-version" => o.http_version = Some(value),
            "max-connections" => o.max_connections = Some(number(&value, "number of connections")?),
            "method" => o.method = Some(value),
            "no-host-hdr" => o.no_host = true,
            "num-calls" => o.num_calls = number(&value, "number of calls")?,
            "num-conns" => o.num_conns = number(&value, "number of connections")?,
            "period" => {
                o.begin = period(&value)?;
                o.period = Some(value);
            }
            "port" => o.port = Some(number(&value, "port number")?),
            "print-reply" => o.print_reply = Some(if given { value } else { "all".into() }),
            "print-request" => o.print_request = Some(if given { value } else { "all".into() }),
            "rate" => {
                o.rate = number(&value, "request rate")?;
                if o.rate > 0.0 {
                    o.begin = Begin::Rate(o.rate, Arrival::Uniform);
                }
            }
            "recv-buffer" => o.receive_buffer = number(&value, "receive buffer size")?,
            "send-buffer" => o.send_buffer = number(&value, "send buffer size")?,
            "server" => o.server = value,
            "server-name" => o.server_name = Some(value),
            "session-cookies" => o.cookies = true,
            "ssl" => o.ssl = true,
            "ssl-no-reuse" => o.no_reuse = true,
            "think-timeout" => o.think_timeout = number(&value, "timeout value")?,
            "timeout" => o.timeout = number(&value, "connection timeout")?,
            "uri" => o.uri = value,
            "wlog" => {
                let [wrap, file] = parts::<2>(&value, "wlog")?;
                o.work = Work::Uris(wrap.eq_ignore_ascii_case("y"), file);
            }
            "wsess" => {
                if value.matches(',').count() < 2 {
                    return usage("bad user think time (3rd param) in --wsess arg (rest: `')");
                }
                let [sessions, calls, think] = parts::<3>(&value, "wsess")?;
                o.work = Work::Sessions(
                    number(&sessions, "number of sessions")?,
                    number(&calls, "number of calls")?,
                    number(&think, "think time")?,
                );
            }
            "wsesslog" => {
                let [sessions, think, file] = parts::<3>(&value, "wsesslog")?;
                o.work =
                    Work::SessionLog(number(&sessions, "number of sessions")?, number(&think, "think time")?, file);
            }
            "wset" => {
                let [files, rate] = parts::<2>(&value, "wset")?;
                o.work = Work::Set(number(&files, "number of files")?, number(&rate, "target miss rate")?);
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
    Ok(o)
}

/// The line of effective options that the report begins with.
fn echo(o: &Order) -> String {
    let mut out = String::from("httperf");
    let mut add = |text: String| {
        out.push(' ');
        out.push_str(&text);
    };
    if o.verbose > 0 {
        add("--verbose".into());
    }
    let printed = |name: &str, what: &Option<String>| {
        what.as_ref().map(|w| if w == "all" { format!("--{name}") } else { format!("--{name}={w}") })
    };
    if o.hog {
        add("--hog".into());
    }
    for text in
        [printed("print-reply", &o.print_reply), printed("print-request", &o.print_request)].into_iter().flatten()
    {
        add(text);
    }
    if o.think_timeout > 0.0 {
        add(format!("--think-timeout={}", o.think_timeout));
    }
    if o.timeout > 0.0 {
        add(format!("--timeout={}", o.timeout));
    }
    add(format!("--client={}/{}", o.client.0, o.client.1));
    add(format!("--server={}", o.server));
    if let Some(name) = &o.server_name {
        add(format!("--server_name={name}"));
    }
    add(format!("--port={}", port(o)));
    add(format!("--uri={}", o.uri));
    if let Some(status) = o.failure_status {
        add(format!("--failure-status={status}"));
    }
    if let Some(period) = &o.period {
        add(format!("--period={period}"));
    } else if o.rate > 0.0 {
        add(format!("--rate={}", o.rate));
    }
    if let Some(version) = &o.http_version {
        add(format!("--http-version={version}"));
    }
    add(format!("--send-buffer={}", o.send_buffer));
    if let Some(n) = o.max_connections {
        add(format!("--max-connections={n}"));
    }
    add(format!("--recv-buffer={}", o.receive_buffer));
    if o.cookies {
        add("--session-cookies".into());
    }
    if o.ssl {
        add("--ssl".into());
    }
    if o.no_reuse {
        add("--ssl-no-reuse".into());
    }
    if !o.headers.is_empty() {
        add(format!("--add-header='{}'", o.headers));
    }
    if let Some(method) = &o.method {
        add(format!("--method={method}"));
    }
    match &o.work {
        Work::Sessions(n, calls, think) => add(format!("--wsess={n},{calls},{think:.3}")),
        Work::SessionLog(n, think, file) => add(format!("--wsesslog={n},{think:.3},{file}")),
        work => {
            add(format!("--num-conns={}", o.num_conns));
            add(format!("--num-calls={}", o.num_calls));
            if let Work::Set(files, rate) = work {
                add(format!("--wset={files},{rate:.3}"));
            }
        }
    }
    if o.burst > 1 {
        add(format!("--burst-length={}", o.burst));
    }
    out.push('\n');
    out
}

fn port(o: &Order) -> u16 {
    o.port.unwrap_or(if o.ssl { 443 } else { 80 })
}

/// Escapes of --add-header: `\n`, `\r`, `\a`, `\\`, and three octal digits.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('a') => out.push('\x07'),
            Some(d @ '0'..='7') => {
                let mut n = d as u32 - '0' as u32;
                while let Some(d) = rest.peek().and_then(|c| c.to_digit(8)).filter(|_| n < 64) {
                    n = n * 8 + d;
                    rest.next();
                }
                out.extend(char::from_u32(n));
            }
            Some(other) => out.push(other),
            None => out.push('\\'),
        }
    }
    out
}

/// A request as httperf sends it.
fn spec(o: &Order, url: &Url, path: &str, method: Option<&str>, body: Option<&str>) -> Result<RequestSpec, Refusal> {
    let mut spec = RequestSpec::get(url.with_path(path));
    spec.method = method.or(o.method.as_deref()).unwrap_or("GET").to_string();
    let mut headers: Vec<(String, String)> = vec![("User-Agent".into(), "httperf/0.9.0".into())];
    headers.push(("Accept".into(), String::new()));
    // The original leaves the port away.
    let host = o.server_name.clone().unwrap_or_else(|| o.server.clone());
    headers.push(("Host".into(), if o.no_host { String::new() } else { host }));
    let http10 = o.http_version.as_deref() == Some("1.0");
    headers.push(("Connection".into(), if http10 { "keep-alive".into() } else { String::new() }));
    for line in unescape(&o.headers).lines().map(|l| l.trim_end_matches('\r')).filter(|l| !l.is_empty()) {
        match line.split_once(':') {
            Some((name, value)) => headers.push((name.trim().to_string(), value.trim().to_string())),
            None => return usage(&format!("--add-header: '{line}' is not a header; write 'Name: value\\n'")),
        }
    }
    if let Some(body) = body {
        spec.body = Body::Text(body.replace("{{", "{ {"));
    }
    spec.headers = headers;
    Ok(spec)
}

/// Sessions out of a --wsesslog file: each a list of bursts, each a list of requests and the pause after it.
fn session_log(o: &Order, url: &Url, think_s: f64, file: &str) -> Result<Vec<Vec<RequestSpec>>, Refusal> {
    let text = fs::read_to_string(file).or_else(|_| usage(&format!("can't open {file}")))?;
    let mut sessions: Vec<Vec<RequestSpec>> = vec![Vec::new()];
    for (index, line) in text.lines().enumerate() {
        let line_of = |what: &str| usage(&format!("{file}: line {}: {what}", index + 1));
        let bare = line.split('#').next().unwrap_or_default();
        if bare.trim().is_empty() {
            if line.trim().is_empty() && sessions.last().is_some_and(|s| !s.is_empty()) {
                sessions.push(Vec::new());
            }
            continue;
        }
        let mut words = split_quoted(bare);
        let path = words.remove(0);
        let (mut method, mut contents, mut think) = (None, None, None);
        for word in words {
            match word.split_once('=') {
                Some(("method", m)) => method = Some(m.to_string()),
                Some(("contents", c)) => contents = Some(c.to_string()),
                Some(("think", t)) => think = Some(number::<f64>(t, "think time")?),
                _ => return line_of(&format!("'{word}' is not understood")),
            }
        }
        let mut request = spec(o, url, &path, method.as_deref(), contents.as_deref())?;
        let indented = line.starts_with([' ', '\t']);
        let session = sessions.last_mut().map_or(&mut [][..], |s| s.as_mut_slice());
        if let Some(before) = session.last_mut().filter(|_| !indented) {
            // A new burst: the pause comes before it.
            if before.think.is_none() {
                before.think = Some(Think::Fixed(Duration::from_secs_f64(think_s.max(0.0))));
            }
        }
        if let Some(t) = think {
            request.think = Some(Think::Fixed(Duration::from_secs_f64(t.max(0.0))));
        } else if indented && let Some(before) = session.last_mut() {
            // Inside of a burst nobody thinks; what its first line says comes after its last.
            request.think = before.think.take();
        }
        if let Some(s) = sessions.last_mut() {
            s.push(request);
        }
    }
    sessions.retain(|s| !s.is_empty());
    if sessions.is_empty() { usage(&format!("no sessions in {file}")) } else { Ok(sessions) }
}

/// Words; quotes of either kind keep blanks together.
fn split_quoted(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in line.trim().chars() {
        match quote {
            Some(q) if c == q => quote = None,
            Some(_) => words.last_mut().into_iter().for_each(|w| w.push(c)),
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c.is_whitespace() => {
                if words.last().is_some_and(|w| !w.is_empty()) {
                    words.push(String::new());
                }
            }
            None => words.last_mut().into_iter().for_each(|w| w.push(c)),
        }
    }
    words
}

/// Sessions as lists of requests, and how many are begun.
fn sessions(o: &Order, url: &Url) -> Result<(Vec<Vec<RequestSpec>>, u64), Refusal> {
    let calls = o.num_calls.clamp(1, MOST_STEPS as u64) as usize;
    let one = |path: &str| spec(o, url, path, None, None);
    // Each session takes the next of the list.
    let in_turn = |paths: &[String], calls: usize| -> Result<Vec<Vec<RequestSpec>>, Refusal> {
        // Once around, every path has been at every place.
        (0..paths.len().min(MOST_STEPS / calls.max(1) + 1))
            .map(|s| (0..calls).map(|c| one(&paths[(s * calls + c) % paths.len()])).collect())
            .collect()
    };
    match &o.work {
        Work::Plain => Ok((vec![(0..calls).map(|_| one(&o.uri)).collect::<Result<_, _>>()?], o.num_conns)),
        Work::Sessions(n, calls, think) => {
            let mut steps = Vec::new();
            for call in 0..(*calls).clamp(1, MOST_STEPS as u64) {
                let mut s = one(&o.uri)?;
                // Thinking comes after each burst.
                s.think =
                    ((call + 1) % o.burst.max(1) == 0).then(|| Think::Fixed(Duration::from_secs_f64(think.max(0.0))));
                steps.push(s);
            }
            Ok((vec![steps], *n))
        }
        Work::SessionLog(n, think, file) => Ok((session_log(o, url, *think, file)?, *n)),
        Work::Uris(wrap, file) => {
            let bytes = fs::read(file).or_else(|_| usage(&format!("can't open {file}")))?;
            let paths: Vec<String> = bytes
                .split(|b| *b == 0)
                .map(|p| String::from_utf8_lossy(p).trim().to_string())
                .filter(|p| !p.is_empty())
                .collect();
            if paths.is_empty() {
                return usage(&format!("no URIs in {file}"));
            }
            let limit = if *wrap { o.num_conns } else { o.num_conns.min((paths.len() / calls) as u64) };
            Ok((in_turn(&paths, calls)?, limit))
        }
        Work::Set(files, miss) => {
            // A file's digits are its folders; a call moves on to the next with the given probability.
            let prefix = if o.uri == "/" { "" } else { o.uri.as_str() };
            let name = |i: u64| {
                let digits = i.to_string();
                let mut path = prefix.to_string();
                for d in digits.chars() {
                    path.push('/');
                    path.push(d);
                }
                format!("{path}.html")
            };
            let (mut file, mut owed) = (0, 0.0);
            let many = (o.num_conns as usize * calls).min(MOST_STEPS);
            let mut paths = Vec::with_capacity(many);
            for _ in 0..many {
                paths.push(name(file));
                owed += miss;
                if owed >= 1.0 {
                    owed -= 1.0;
                    file = (file + 1) % (*files).max(1);
                }
            }
            Ok((in_turn(&paths, calls)?, o.num_conns))
        }
    }
}

fn plan_of(o: &Order, url: &Url) -> Result<Plan, Refusal> {
    let calls = if let Work::Sessions(_, calls, _) = o.work { calls } else { o.num_calls };
    if calls > MOST_STEPS as u64 {
        return usage(&format!("{calls} calls on a connection are more than the {MOST_STEPS} that can be sent here"));
    }
    let (sessions, count) = sessions(o, url)?;
    let mut plan = Plan::new(url.clone(), super::seed());
    plan.requests.clear();
    for session in sessions {
        plan.requests.extend(session);
        if let Some(last) = plan.requests.last_mut() {
            last.last = true;
        }
    }
    plan.pick = Pick::Sessions;
    plan.keepalive = KeepAlive::On;
    plan.http.http10 = o.http_version.as_deref() == Some("1.0");
    plan.http.cookies = o.cookies;
    // Without a timeout httperf waits for good; nobody does.
    let patience = if o.timeout > 0.0 { o.timeout + o.think_timeout } else { 600.0 };
    plan.timeout = Duration::from_secs_f64(patience.min(86_400.0));
    plan.drain = plan.timeout;
    plan.network.receive_buffer_bytes = Some(o.receive_buffer);
    plan.network.send_buffer_bytes = Some(o.send_buffer);
    plan.tls.insecure = true;
    plan.tls.resumption = !o.no_reuse;
    let most = o.max_connections.unwrap_or(MOST_CONNECTIONS).max(1);
    plan.phases = vec![Phase {
        name: "main".into(),
        measured: true,
        load: match o.begin {
            Begin::InTurn => Load::closed(1),
            Begin::Rate(rate, arrivals) => Load::open(rate, arrivals, most),
        },
        requests: Some(count),
        duration: None,
    }];
    Ok(plan)
}

/// A connection while it lasts.
#[derive(Debug, Default)]
struct Life {
    start: Micros,
    end: Micros,
    replies: u64,
}

#[derive(Debug, Default)]
struct Tally {
    start: Option<Micros>,
    end: Micros,
    connections: u64,
    connected: Samples,
    lives: HashMap<u64, Life>,
    /// Of those that are over and had replies.
    lifetime: Samples,
    replies_of_lives: u64,
    lives_counted: u64,
    requests: u64,
    request_bytes: u64,
    replies: u64,
    response: Samples,
    transfer: Samples,
    header_bytes: u64,
    content_bytes: u64,
    status: [u64; 5],
    client_timeouts: u64,
    resets: u64,
    bad_status: u64,
    /// Replies in each interval of the rate.
    samples: BTreeMap<u64, u64>,
    printed: u64,
    sessions: HashMap<u64, Session>,
}

/// One session.
#[derive(Debug, Default)]
struct Session {
    start: Micros,
    end: Micros,
    replies: u64,
    /// Its last call was answered.
    complete: bool,
}

impl Tally {
    fn take(&mut self, e: &Exchange, o: &Order, plan: &Plan) {
        let Some(sent) = e.sent else { return };
        let start = *self.start.get_or_insert(sent);
        self.start = Some(start.min(sent));
        let done = e.done.unwrap_or(sent);
        self.end = self.end.max(done);
        if e.first {
            self.connections += 1;
            if let Some(connected) = e.ready.or(e.connected) {
                self.connected.record(connected.saturating_sub(sent));
            }
            self.lives.insert(e.connection, Life { start: sent, end: done, replies: 0 });
        }
        if e.written.is_some() {
            self.requests += 1;
            self.request_bytes += e.bytes_sent;
        }
        match e.fate {
            Fate::Answered => {
                self.replies += 1;
                self.status[usize::from(e.status / 100).clamp(1, 5) - 1] += 1;
                self.bad_status += u64::from(o.failure_status == Some(e.status));
                let first = e.first_byte.unwrap_or(done);
                let from = e.ready.filter(|_| e.first).unwrap_or(sent);
                self.response.record(first.saturating_sub(from));
                self.transfer.record(done.saturating_sub(first));
                self.content_bytes += e.body_bytes;
                self.header_bytes += e.bytes_received.saturating_sub(e.body_bytes);
                let interval = done.saturating_sub(start) / RATE_INTERVAL_US;
                *self.samples.entry(interval).or_default() += 1;
                while o.verbose > 0 && self.printed < interval {
                    let n = self.samples.get(&self.printed).copied().unwrap_or(0);
                    say(&format!("reply-rate = {:<8.1}\n", n as f64 / 5.0));
                    self.printed += 1;
                }
            }
            Fate::TimedOut => self.client_timeouts += 1,
            Fate::Failed(Failure::Reset | Failure::Closed) => {
                self.resets += u64::from(e.fate == Fate::Failed(Failure::Reset))
            }
            _ => {}
        }
        if matches!(o.work, Work::Sessions(..) | Work::SessionLog(..)) {
            let session = self.sessions.entry(e.unit).or_insert_with(|| Session { start: sent, ..Session::default() });
            session.end = done;
            if e.fate == Fate::Answered {
                session.replies += 1;
                session.complete |= plan.requests[e.request as usize].last;
            }
        }
        if let Some(life) = self.lives.get_mut(&e.connection) {
            life.end = done;
            life.replies += u64::from(e.fate == Fate::Answered);
            if !e.kept
                && let Some(life) = self.lives.remove(&e.connection)
            {
                self.over(&life);
            }
        }
    }

    fn over(&mut self, life: &Life) {
        if life.replies > 0 {
            self.lifetime.record(life.end.saturating_sub(life.start));
            self.replies_of_lives += life.replies;
            self.lives_counted += 1;
        }
    }

    fn finish(&mut self) {
        let rest: Vec<Life> = std::mem::take(&mut self.lives).into_values().collect();
        rest.iter().for_each(|life| self.over(life));
    }
}

pub fn main(args: &[String], manner: Manner) -> Result<u8, Refusal> {
    let o = read(args)?;
    say(&echo(&o));
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    if limit.is_ok_and(|(soft, _)| soft > 1024) {
        eprintln!("httperf: warning: open file limit > FD_SETSIZE; limiting max. # of open files to FD_SETSIZE");
    }
    if o.verbose > 0 {
        say("httperf: maximum number of open descriptors = 1024\n");
    }
    if (o.server.as_str(), port(&o)).to_socket_addrs().is_err() {
        return refuse(1, format!("httperf.core_addr_intern: invalid server address {}", o.server));
    }
    let host = if o.server.contains(':') { format!("[{}]", o.server) } else { o.server.clone() };
    let text = format!("{}://{host}:{}{}", if o.ssl { "https" } else { "http" }, port(&o), o.uri);
    let url: Url = text.parse().map_err(|e| failed("httperf: --uri", e))?;
    let plan = plan_of(&o, &url)?;
    let stop = catch_signals()?;
    let mut tally = Tally::default();
    let mut serial = 0u64;
    let wires = if o.print_request.is_some() {
        lastdrop_load::preview(&plan).map(|p| p.requests).unwrap_or_default()
    } else {
        Vec::new()
    };
    let mut show = |some: &[Exchange]| {
        for e in some {
            if let Some(wire) = wires.get(e.request as usize) {
                say(&marked('S', serial, wire, o.print_request.as_deref()));
            }
            if let Some(raw) = &e.raw {
                say(&marked('R', serial, raw, o.print_reply.as_deref()));
            }
            serial += 1;
            tally.take(e, &o, &plan);
        }
    };
    let wish = if o.print_reply.is_some() { Wish::Answers } else { Wish::Exchanges };
    let carried = carry_out(&plan, wish, &stop, &mut show).map_err(|e| failed("httperf", e))?;
    tally.finish();
    let after_setup = usage_s();
    say(&report(&o, &tally, &carried, after_setup, manner));
    let bursts = if o.burst > 1 { "the calls of a burst follow each other here, they are not pipelined; " } else { "" };
    let what = match o.begin {
        Begin::InTurn => "one connection after the other: while the server stalls nobody else asks",
        Begin::Rate(..) => "httperf's response times count from when a request was sent, these from when it was due",
    };
    remark(manner, &carried.run, &format!("{bursts}{what}"));
    Ok(0)
}

/// CPU time of this process, user and system, seconds.
fn usage_s() -> (f64, f64) {
    use nix::sys::resource::{UsageWho, getrusage};
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_SELF).map_or((0.0, 0.0), |u| (seconds(u.user_time()), seconds(u.system_time())))
}

/// A request or an answer as --print-request and --print-reply show them.
fn marked(side: char, serial: u64, bytes: &[u8], what: Option<&str>) -> String {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut out = String::new();
    if what != Some("body") {
        for line in head.split("\r\n") {
            let _ = write!(out, "{side}H{serial}:{line}\r\n");
        }
        let _ = write!(out, "{side}H{serial}:\r\n");
    }
    if what != Some("header") && !body.is_empty() {
        for line in body.lines() {
            let _ = writeln!(out, "{side}B{serial}:{line}");
        }
    }
    let footer = if side == 'R' { " footer 0" } else { "" };
    let _ = writeln!(out, "{side}S{serial}: header {} content {}{footer}", head.len() + 4, body.len());
    out
}

fn report(o: &Order, t: &Tally, carried: &Carried, cpu: (f64, f64), manner: Manner) -> String {
    let ms = |us: f64| us / 1000.0;
    let span_s = t.start.map_or(0.0, |start| t.end.saturating_sub(start) as f64 / 1e6);
    let rate = |n: u64| if span_s > 0.0 { n as f64 / span_s } else { 0.0 };
    let each = |n: u64| if n > 0 { span_s * 1e3 / n as f64 } else { 0.0 };
    // httperf divides whole numbers of bytes and drops the rest.
    let mean = |sum: u64, n: u64| match n {
        0 => 0.0,
        n if manner.like_the_original => (sum / n) as f64,
        n => sum as f64 / n as f64,
    };
    let per_second: Vec<f64> = {
        // Whole intervals only.
        let whole = (span_s * 1e6) as u64 / RATE_INTERVAL_US;
        (0..whole).map(|i| t.samples.get(&i).copied().unwrap_or(0) as f64 / (RATE_INTERVAL_US as f64 / 1e6)).collect()
    };
    let burst = i64::from(t.connections > 1);
    // httperf bins connection times by the millisecond and takes the middle of a bin.
    let median = if manner.like_the_original && t.lives_counted > 0 {
        (t.lifetime.median() / 1000.0).floor() + 0.5
    } else {
        ms(t.lifetime.median())
    };
    let errors = &carried.run.generator.connect_errors;
    let of = |words: &str| errors.iter().filter(|(k, _)| k.contains(words)).map(|(_, n)| n).sum::<u64>();
    let (refused, kernel_timeouts) = (of("refused"), of("timed out"));
    let (no_files, no_ports, table_full) =
        (of("Too many open files"), of("Cannot assign"), of("Too many open files in system"));
    let known = refused + kernel_timeouts + no_files + no_ports;
    let other = errors.values().sum::<u64>().saturating_sub(known);
    let total = t.client_timeouts + kernel_timeouts + refused + t.resets + no_files + no_ports + other + t.bad_status;
    let (user, system) = cpu;
    let percent = |s: f64| if span_s > 0.0 { 100.0 * s / span_s } else { 0.0 };
    let bytes = t.request_bytes + t.header_bytes + t.content_bytes;
    let bytes_s = if span_s > 0.0 { bytes as f64 / span_s } else { 0.0 };
    let (least, middle, most, spread) = spread_of(&per_second);
    let lifetimes = if o.verbose > 1 { lifetime_histogram(&t.lifetime) } else { String::new() };
    let mut out = String::new();
    let _ = write!(
        out,
        "Maximum connect burst length: {burst}\n{lifetimes}\n\
         Total: connections {} requests {} replies {} test-duration {span_s:.3} s\n\n\
         Connection rate: {:.1} conn/s ({:.1} ms/conn, <={} concurrent connections)\n\
         Connection time [ms]: min {:.1} avg {:.1} max {:.1} median {median:.1} stddev {:.1}\n\
         Connection time [ms]: connect {:.1}\n\
         Connection length [replies/conn]: {:.3}\n\n\
         Request rate: {:.1} req/s ({:.1} ms/req)\nRequest size [B]: {:.1}\n\n\
         Reply rate [replies/s]: min {least:.1} avg {middle:.1} max {most:.1} stddev {spread:.1} ({} samples)\n\
         Reply time [ms]: response {:.1} transfer {:.1}\n\
         Reply size [B]: header {:.1} content {:.1} footer 0.0 (total {:.1})\n\
         Reply status: 1xx={} 2xx={} 3xx={} 4xx={} 5xx={}\n\n\
         CPU time [s]: user {user:.2} system {system:.2} (user {:.1}% system {:.1}% total {:.1}%)\n\
         Net I/O: {:.1} KB/s ({:.1}*10^6 bps)\n\n\
         Errors: total {total} client-timo {} socket-timo {kernel_timeouts} connrefused {refused} connreset {}\n\
         Errors: fd-unavail {} addrunavail {no_ports} ftab-full {table_full} other {}\n",
        t.connections,
        t.requests,
        t.replies,
        rate(t.connections),
        each(t.connections),
        carried.run.phases[0].connections.peak,
        ms(t.lifetime.min() as f64),
        ms(t.lifetime.mean()),
        ms(t.lifetime.max() as f64),
        ms(t.lifetime.deviation()),
        ms(t.connected.mean()),
        t.replies_of_lives as f64 / t.lives_counted.max(1) as f64,
        rate(t.requests),
        each(t.requests),
        mean(t.request_bytes, t.requests),
        per_second.len(),
        ms(t.response.mean()),
        ms(t.transfer.mean()),
        mean(t.header_bytes, t.replies),
        mean(t.content_bytes, t.replies),
        mean(t.header_bytes + t.content_bytes, t.replies),
        t.status[0],
        t.status[1],
        t.status[2],
        t.status[3],
        t.status[4],
        percent(user),
        percent(system),
        percent(user + system),
        bytes_s / 1024.0,
        bytes_s * 8.0 / 1e6,
        t.client_timeouts,
        t.resets,
        no_files.saturating_sub(table_full),
        other + t.bad_status,
    );
    if matches!(o.work, Work::Sessions(..) | Work::SessionLog(..)) {
        out.push_str(&session_block(t, span_s));
    }
    out
}

/// What a second -v adds: connections by the middle of their millisecond.
fn lifetime_histogram(lifetimes: &Samples) -> String {
    let mut out = String::from("\nConnection lifetime histogram (time in ms):\n");
    let mut next = 0;
    for (ms, n) in lifetimes.by_ms() {
        if ms > next {
            let _ = writeln!(out, "{:>14}", ':');
        }
        let _ = writeln!(out, "{:16.1} {n}", ms as f64 + 0.5);
        next = ms + 1;
    }
    out
}

/// What sessions add.
fn session_block(t: &Tally, span_s: f64) -> String {
    let good: Vec<&Session> = t.sessions.values().filter(|s| s.complete).collect();
    let bad: Vec<&Session> = t.sessions.values().filter(|s| !s.complete).collect();
    let mean_s = |all: &[&Session]| {
        let n = all.len().max(1) as f64;
        all.iter().map(|s| s.end.saturating_sub(s.start) as f64 / 1e6).sum::<f64>() / n
    };
    let whole = (span_s * 1e6) as u64 / RATE_INTERVAL_US;
    let start = t.start.unwrap_or(0);
    let rates: Vec<f64> = (0..whole)
        .map(|i| good.iter().filter(|s| s.end.saturating_sub(start) / RATE_INTERVAL_US == i).count() as f64 / 5.0)
        .collect();
    let (min, _, max, spread) = spread_of(&rates);
    let average = if span_s > 0.0 { good.len() as f64 / span_s } else { 0.0 };
    let longest = t.sessions.values().map(|s| s.replies).max().unwrap_or(0);
    let lengths: Vec<String> =
        (0..=longest).map(|n| t.sessions.values().filter(|s| s.replies == n).count().to_string()).collect();
    let all = t.sessions.len();
    format!(
        "\nSession rate [sess/s]: min {min:.2} avg {average:.2} max {max:.2} stddev {spread:.2} ({}/{all})\n\
         Session: avg {:.2} connections/session\nSession lifetime [s]: {:.1}\nSession failtime [s]: {:.1}\n\
         Session length histogram: {}\n",
        good.len(),
        t.connections as f64 / all.max(1) as f64,
        mean_s(&good),
        mean_s(&bad),
        lengths.join(" ")
    )
}

/// Least, mean, most and standard deviation.
fn spread_of(values: &[f64]) -> (f64, f64, f64, f64) {
    let n = values.len() as f64;
    let mean = if n > 0.0 { values.iter().sum::<f64>() / n } else { 0.0 };
    let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    let deviation = if n > 1.0 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
    let min = values.iter().copied().reduce(f64::min).unwrap_or(0.0);
    (min, mean, values.iter().copied().fold(0.0, f64::max), deviation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(text: &str) -> Result<Order, Refusal> {
        read(&text.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn options_may_be_short_for_what_they_begin() {
        let o = order("--rat 5 --num-conn 3 -v -v").expect("valid");
        assert_eq!((o.begin, o.num_conns, o.verbose), (Begin::Rate(5.0, Arrival::Uniform), 3, 2));
        assert_eq!(order("--num-conns x").expect_err("wrong").message, "httperf: illegal number of connections x");
        assert_eq!(order("--period e0.1").expect("valid").begin, Begin::Rate(10.0, Arrival::Poisson));
        let url: Url = "http://h/".parse().expect("valid");
        assert!(plan_of(&order("--num-calls 100001").expect("valid"), &url).is_err());
        assert!(order("--close-with-reset").expect_err("refused").message.contains("--close-with-reset"));
    }

    #[test]
    fn a_file_of_sessions_is_read_with_its_bursts_and_pauses() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = "# c\n/a think=0.2\n  /b\n/c\n\n/d method=POST contents='x y'\n";
        fs::write(file.path(), text).expect("written");
        let o = order("").expect("valid");
        let url: Url = "http://h/".parse().expect("valid");
        let sessions = session_log(&o, &url, 1.0, &file.path().to_string_lossy()).expect("valid");
        let paths = |s: &[RequestSpec]| s.iter().map(|r| r.url.path.clone()).collect::<Vec<_>>();
        assert_eq!(
            (paths(&sessions[0]), paths(&sessions[1])),
            (vec!["/a".into(), "/b".into(), "/c".into()], vec!["/d".into()])
        );
        let pause = |s: f64| Some(Think::Fixed(Duration::from_secs_f64(s)));
        assert_eq!((sessions[0][0].think, sessions[0][1].think), (None, pause(0.2)));
        assert_eq!((sessions[1][0].method.as_str(), &sessions[1][0].body), ("POST", &Body::Text("x y".into())));
        assert_eq!(unescape("a\\nb\\101"), "a\nbA");
    }
}
