//! ApacheBench 2.3, as of Apache 2.4.

use std::fmt::Write as _;
use std::fs;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::time::Duration;

use lastdrop_analyze::samples::Samples;
use lastdrop_load::{TlsFacts, describe};
use lastdrop_model::plan::Proxy;
use lastdrop_model::request::{Body, RequestSpec};
use lastdrop_model::{Exchange, Failure, Fate, KeepAlive, Load, Micros, Plan, Url, Wish};

use super::getopt::{Opt, Style, Takes, atoi, opt, parse};
use super::{
    Carried, Manner, Refusal, base64, c_time, carry_out, catch_signals, errno_of, failed, first_error, first_wire,
    refuse, remark, say,
};

const USAGE: &str = include_str!("usage/ab.txt");
const BANNER: &str = "This is ApacheBench, Version 2.3 <$Revision$>\n\
    Copyright 1996 Adam Twiss, Zeus Technology Ltd, http://www.zeustech.net/\n\
    Licensed to The Apache Software Foundation, http://www.apache.org/\n\n";
const HTML_BANNER: &str = "<p>\n This is ApacheBench, Version 2.3 <i>&lt;$Revision$&gt;</i><br>\n \
    Copyright 1996 Adam Twiss, Zeus Technology Ltd, http://www.zeustech.net/<br>\n \
    Licensed to The Apache Software Foundation, http://www.apache.org/<br>\n</p>\n<p>\n";
/// What -t means for -n.
const REQUESTS_OF_A_TIME: i64 = 50_000;
const MAX_CONCURRENCY: i64 = 200_000;
const PERCENTILES: [u64; 9] = [50, 66, 75, 80, 90, 95, 98, 99, 100];

const TABLE: &[Opt] = &[
    value('n'),
    value('c'),
    value('t'),
    value('s'),
    value('b'),
    value('T'),
    value('p'),
    value('u'),
    value('v'),
    flag('l'),
    flag('r'),
    flag('k'),
    flag('V'),
    flag('h'),
    flag('w'),
    flag('i'),
    flag('I'),
    value('x'),
    value('y'),
    value('z'),
    value('C'),
    value('H'),
    value('P'),
    value('A'),
    value('g'),
    value('X'),
    flag('d'),
    value('e'),
    flag('S'),
    flag('q'),
    value('B'),
    value('m'),
    value('Z'),
    value('f'),
    value('E'),
];

const fn value(short: char) -> Opt {
    opt(short, "", Takes::Value)
}

const fn flag(short: char) -> Opt {
    opt(short, "", Takes::Nothing)
}

#[derive(Debug, Default)]
struct Order {
    requests: i64,
    concurrency: i64,
    limit_s: i64,
    timeout_s: i64,
    window: Option<u32>,
    method: Option<String>,
    body: Option<(PathBuf, u64)>,
    content_type: Option<String>,
    verbosity: i64,
    any_length: bool,
    go_on: bool,
    keep_alive: bool,
    html: bool,
    attributes: [String; 3],
    cookies: Vec<String>,
    headers: Vec<String>,
    auth: Option<String>,
    proxy_auth: Option<String>,
    proxy: Option<(String, u16)>,
    no_percentiles: bool,
    no_confidence: bool,
    quiet: bool,
    gnuplot: Option<String>,
    csv: Option<String>,
    bind: Option<String>,
    no_sni: bool,
    protocol: Option<String>,
    certificate: Option<PathBuf>,
    url: String,
}

fn usage<T>(why: &str) -> Result<T, Refusal> {
    let why = if why.is_empty() { String::new() } else { format!("ab: {why}\n") };
    refuse(22, format!("{why}{}", USAGE.trim_end()))
}

fn read(args: &[String]) -> Result<Order, Refusal> {
    let parsed = parse("ab", Style::Apr, TABLE, args);
    let mut o = Order { requests: 1, concurrency: 1, timeout_s: 30, ..Order::default() };
    let wrong = |text: &str| refuse(1, format!("{text}\n"));
    for (at, value) in parsed.options {
        let value = value.unwrap_or_default();
        match TABLE[at].short {
            'n' => {
                o.requests = atoi(&value);
                if o.requests <= 0 {
                    return wrong("Invalid number of requests");
                }
            }
            'c' => o.concurrency = atoi(&value),
            't' => {
                o.limit_s = atoi(&value);
                // So that -n after it counts, and before it does not.
                o.requests = REQUESTS_OF_A_TIME;
            }
            's' => o.timeout_s = atoi(&value),
            'b' => o.window = u32::try_from(atoi(&value)).ok().filter(|n| *n > 0),
            'T' => o.content_type = Some(value),
            letter @ ('p' | 'u') => {
                let method = if letter == 'p' { "POST" } else { "PUT" };
                if o.method.is_some() {
                    return wrong(&format!("Cannot mix {method} with other methods"));
                }
                let data = fs::metadata(&value).and_then(|m| fs::File::open(&value).map(|_| m.len()));
                match data {
                    Ok(length) => o.body = Some((PathBuf::from(&value), length)),
                    Err(e) => {
                        return refuse(1, format!("ab: Could not open POST data file ({value}): {}", describe(&e)));
                    }
                }
                o.method = Some(method.into());
            }
            'i' => {
                if o.method.is_some() {
                    return wrong("Cannot mix HEAD with other methods");
                }
                o.method = Some("HEAD".into());
            }
            'm' => o.method = Some(value),
            'v' => o.verbosity = atoi(&value),
            'l' => o.any_length = true,
            'r' => o.go_on = true,
            'k' => o.keep_alive = true,
            'w' => o.html = true,
            letter @ ('x' | 'y' | 'z') => {
                o.html = true;
                o.attributes[letter as usize - 'x' as usize] = value;
            }
            'C' => o.cookies.push(value),
            'H' => o.headers.push(value),
            'A' => o.auth = Some(value.trim_start().to_string()),
            'P' => o.proxy_auth = Some(value.trim_start().to_string()),
            'X' => {
                let (host, port) = value.split_once(':').unwrap_or((&value, "80"));
                o.proxy = Some((host.to_string(), atoi(port) as u16));
            }
            'd' => o.no_percentiles = true,
            'S' => o.no_confidence = true,
            'q' => o.quiet = true,
            'g' => o.gnuplot = Some(value),
            'e' => o.csv = Some(value),
            'B' => o.bind = Some(value),
            'I' => o.no_sni = true,
            'f' => o.protocol = Some(value.to_ascii_uppercase()),
            'E' => {
                if let Err(e) = fs::File::open(&value) {
                    return refuse(1, format!("unable to get certificate from '{value}': {}", describe(&e)));
                }
                o.certificate = Some(PathBuf::from(value));
            }
            'Z' => {
                return refuse(
                    1,
                    "ab: -Z: cipher suites cannot be chosen here; leave it away, or choose a protocol with -f",
                );
            }
            'h' => return usage(""),
            'V' => {
                say(BANNER);
                return refuse(0, "");
            }
            _ => {}
        }
    }
    // An unknown option is told, and the words after it are taken for what they are.
    for e in &parsed.errors {
        eprintln!("{e}");
    }
    let [url] = parsed.words.as_slice() else { return usage("wrong number of arguments") };
    o.url.clone_from(url);
    if o.concurrency < 0 || o.concurrency > MAX_CONCURRENCY {
        return usage(&format!("Invalid Concurrency [Range 0..{MAX_CONCURRENCY}]"));
    }
    if o.concurrency > o.requests {
        return usage("Cannot use concurrency level greater than total number of requests");
    }
    Ok(o)
}

/// Host, port and path as ab reads them: a path is wanted.
fn read_url(text: &str) -> Option<Url> {
    let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (_, rest) => (false, rest.unwrap_or(text)),
    };
    rest.find('/')?;
    // ab resolves whatever stands before the first colon or slash.
    format!("{}://{rest}", if tls { "https" } else { "http" }).parse().ok()
}

/// What is sent, in the order in which ab writes it.
fn plan_of(o: &Order, url: &Url) -> Result<Plan, Refusal> {
    let mut spec = RequestSpec::get(url.clone());
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

fn unresolved<T>(o: &Order, shown: &str, host: &str) -> Result<T, Refusal> {
    // APR's name for EAI_NONAME.
    say(&start_line(o, shown, None));
    refuse(50, format!("apr_sockaddr_info_get() for {host}: Name or service not known (670002)"))
}

/// Is there progress on stderr, and after how many requests each?
fn heartbeat(o: &Order) -> Option<u64> {
    (!o.quiet && o.requests > 150).then(|| (o.requests as u64 / 10).max(100))
}

fn start_line(o: &Order, host: &str, proxy: Option<&(String, u16)>) -> String {
    if o.html {
        return HTML_BANNER.into();
    }
    let through = proxy.map_or_else(String::new, |(host, port)| format!("[through {host}:{port}] "));
    let end = if heartbeat(o).is_some() { "\n" } else { "..." };
    format!("{BANNER}Benchmarking {host} {through}(be patient){end}")
}

/// One request as ab counts times, for -g.
#[derive(Debug, Clone, Copy)]
struct Sample {
    start: Micros,
    connect: Micros,
    total: Micros,
    wait: Micros,
}

/// What ab counts.
#[derive(Debug, Default)]
struct Tally {
    done: u64,
    failed_receive: u64,
    failed_length: u64,
    exceptions: u64,
    bad_status: u64,
    kept: u64,
    read: u64,
    body: u64,
    sent: u64,
    length: Option<u64>,
    connect: Samples,
    processing: Samples,
    waiting: Samples,
    total: Samples,
    samples: Vec<Sample>,
    announced: u64,
}

impl Tally {
    fn failed(&self) -> u64 {
        self.failed_receive + self.failed_length + self.exceptions
    }

    fn take(&mut self, e: &Exchange, o: &Order) {
        match e.fate {
            Fate::Censored | Fate::Unsent => return,
            // A server that closes without an answer has answered nothing: ab counts that as done, with no length.
            Fate::Answered | Fate::Failed(Failure::Closed) => {}
            Fate::Failed(Failure::Protocol) => self.exceptions += 1,
            Fate::Failed(Failure::Connect | Failure::Reset) | Fate::TimedOut => self.failed_receive += 1,
        }
        self.done += 1;
        self.read += e.bytes_received;
        self.body += e.body_bytes;
        self.sent += e.bytes_sent;
        if e.fate == Fate::Answered {
            self.bad_status += u64::from(!(200..300).contains(&e.status));
            self.kept += u64::from(o.keep_alive && e.kept);
        }
        let expected = *self.length.get_or_insert(e.body_bytes);
        if expected != e.body_bytes && !o.any_length && matches!(e.fate, Fate::Answered | Fate::Failed(Failure::Closed))
        {
            self.failed_length += 1;
        }
        let sent = e.sent.unwrap_or(e.due);
        let connect = if e.first { e.ready.map_or(0, |ready| ready.saturating_sub(sent)) } else { 0 };
        let total = e.service_us();
        let wait = e.first_byte.zip(e.written).map_or(0, |(first, written)| first.saturating_sub(written));
        self.connect.record(connect);
        self.processing.record(total.saturating_sub(connect));
        self.waiting.record(wait);
        self.total.record(total);
        if o.gnuplot.is_some() {
            self.samples.push(Sample { start: sent, connect, total, wait });
        }
        if let Some(each) = heartbeat(o)
            && self.done / each > self.announced
        {
            self.announced = self.done / each;
            eprintln!("Completed {} requests", self.announced * each);
        }
    }
}

pub fn main(args: &[String], manner: Manner) -> Result<u8, Refusal> {
    let o = read(args)?;
    let Some(url) = read_url(&o.url) else {
        // ab takes whatever stands before the path, or before a colon that it does not know, for a host.
        let rest = o.url.strip_prefix("http://").or_else(|| o.url.strip_prefix("https://"));
        let host = match (rest, o.url.split_once("://")) {
            (Some(rest), _) if rest.contains('@') => {
                rest.split('/').next().unwrap_or_default().rsplit_once(':').map(|h| h.0.to_string())
            }
            (None, Some((scheme, _))) => Some(format!("{scheme}:")),
            _ => None,
        };
        if let Some(host) = host {
            return unresolved(&o, &host, &host);
        }
        return usage("invalid URL");
    };
    let plan = plan_of(&o, &url)?;
    say(&start_line(&o, &url.host, o.proxy.as_ref()));
    let (host, port) = o.proxy.clone().unwrap_or_else(|| (url.host.clone(), url.port));
    if (host.as_str(), port).to_socket_addrs().is_err() {
        return refuse(50, format!("apr_sockaddr_info_get() for {host}: Name or service not known (670002)"));
    }
    if o.verbosity >= 2 {
        let wire = String::from_utf8_lossy(&first_wire(&plan)).into_owned();
        let head = wire.split("\r\n\r\n").next().unwrap_or_default().to_string();
        let method = &plan.requests[0].method;
        say(&format!("INFO: {method} header == \n---\n{head}\r\n\r\n\n---\n"));
    }
    let stop = catch_signals()?;
    let mut tally = Tally::default();
    let mut gave_up = None;
    let wish = if o.verbosity >= 2 { Wish::Answers } else { Wish::Exchanges };
    let mut show = |some: &[Exchange]| {
        for e in some {
            if gave_up.is_some() {
                return;
            }
            if let Some(raw) = e.raw.as_ref().filter(|_| o.verbosity >= 2) {
                say(&answer_log(raw, e.status, o.verbosity));
            }
            // ab ends at the first of these, without a report.
            if matches!(e.fate, Fate::Failed(Failure::Connect | Failure::Reset)) && !o.go_on {
                gave_up = Some(e.fate);
                stop.end();
                return;
            }
            tally.take(e, &o);
        }
    };
    let carried = carry_out(&plan, wish, &stop, &mut show).map_err(|e| failed("ab", e))?;
    if let Some(fate) = gave_up {
        let text = match fate {
            Fate::Failed(Failure::Reset) => "Connection reset by peer".to_string(),
            _ => first_error(&carried.run).unwrap_or_else(|| "Connection refused".into()),
        };
        let number = errno_of(&text);
        let done = if tally.done > 0 { format!("\nTotal of {} requests completed", tally.done) } else { String::new() };
        return refuse(number, format!("apr_socket_recv: {text} ({number}){done}"));
    }
    let counts = &carried.run.phases[0].requests;
    if counts.answered == 0 && counts.timed_out > 0 {
        // 70007 as an exit code.
        return refuse(119, "apr_pollset_poll: The timeout specified has expired (70007)");
    }
    if heartbeat(&o).is_some() {
        eprintln!("Finished {} requests", tally.done);
    } else if carried.signal.is_none() {
        say("..done\n");
    }
    let report = Report { o: &o, url: &url, tally: &tally, carried: &carried, manner };
    say(&if o.html { report.html() } else { report.text() });
    report.files()?;
    remark(
        manner,
        &carried.run,
        "a closed loop: while the server stalls nobody else asks, so these times leave out those who would have come",
    );
    Ok(u8::from(carried.signal.is_some()))
}

fn answer_log(raw: &[u8], status: u16, verbosity: i64) -> String {
    let mut text = format!("LOG: header received:\n{}\n", String::from_utf8_lossy(raw));
    if verbosity >= 4 {
        let _ = writeln!(text, "LOG: Response code = {status}");
    }
    if !(200..300).contains(&status) {
        let _ = writeln!(text, "WARNING: Response code not 2xx ({status})");
    }
    text
}

/// Milliseconds as ab rounds them.
fn ms(us: f64) -> i64 {
    ((us as i64) + 500) / 1000
}

/// A line of the report.
fn line(out: &mut String, label: &str, value: String) {
    let _ = writeln!(out, "{label:<24}{value}");
}

/// A row of the table of -w; `tr` and `td` are what the user wants in those elements.
fn row(out: &mut String, [tr, td]: &[&str; 2], label: &str, value: String) {
    let _ = writeln!(out, "<tr {tr}><th colspan=2 {td}>{label}</th><td colspan=2 {td}>{value}</td></tr>");
}

struct Report<'a> {
    o: &'a Order,
    url: &'a Url,
    tally: &'a Tally,
    carried: &'a Carried,
    manner: Manner,
}

/// The four rows of the table of times.
const ROWS: [(&str, &str); 4] = [
    ("Connect:    ", "the initial connection time"),
    ("Processing: ", "the processing time"),
    ("Waiting:    ", "the waiting time"),
    ("Total:      ", "the total time"),
];

impl Report<'_> {
    fn seconds(&self) -> f64 {
        self.carried.run.phases[0].duration_s
    }

    fn software(&self) -> String {
        let first = self.carried.first_answer.as_ref();
        let server = first.and_then(|f| f.server.clone()).unwrap_or_default();
        // ab takes the field up to the first control character or blank line.
        server.split(|c: char| (c as u32) < 32).next().unwrap_or_default().to_string()
    }

    fn tls(&self) -> Option<&TlsFacts> {
        self.carried.first_answer.as_ref()?.tls.as_ref()
    }

    fn length(&self) -> String {
        if self.o.any_length { "Variable".into() } else { format!("{} bytes", self.tally.length.unwrap_or(0)) }
    }

    /// Rates: requests a second, and kilobytes received, sent, and both.
    fn rates(&self) -> (f64, [f64; 3]) {
        let (t, s) = (self.tally, self.seconds().max(1e-9));
        (t.done as f64 / s, [t.read, t.sent, t.read + t.sent].map(|b| b as f64 / 1024.0 / s))
    }

    fn text(&self) -> String {
        let (o, t, s) = (self.o, self.tally, self.seconds());
        let mut out = String::from("\n\n");
        line(&mut out, "Server Software:", self.software());
        line(&mut out, "Server Hostname:", self.url.host.clone());
        line(&mut out, "Server Port:", self.url.port.to_string());
        if let Some(tls) = self.tls() {
            line(&mut out, "SSL/TLS Protocol:", protocol(tls));
            if let Some(key) = temp_key(&tls.group) {
                line(&mut out, "Server Temp Key:", key);
            }
            if !o.no_sni && self.url.host.parse::<std::net::IpAddr>().is_err() {
                line(&mut out, "TLS Server Name:", self.url.host.clone());
            }
        }
        out.push('\n');
        line(&mut out, "Document Path:", self.url.path.clone());
        line(&mut out, "Document Length:", self.length());
        out.push('\n');
        line(&mut out, "Concurrency Level:", o.concurrency.to_string());
        line(&mut out, "Time taken for tests:", format!("{s:.3} seconds"));
        line(&mut out, "Complete requests:", t.done.to_string());
        line(&mut out, "Failed requests:", t.failed().to_string());
        if t.failed() > 0 {
            let _ = writeln!(
                out,
                "   (Connect: 0, Receive: {}, Length: {}, Exceptions: {})",
                t.failed_receive, t.failed_length, t.exceptions
            );
        }
        if t.bad_status > 0 {
            line(&mut out, "Non-2xx responses:", t.bad_status.to_string());
        }
        if o.keep_alive {
            line(&mut out, "Keep-Alive requests:", t.kept.to_string());
        }
        line(&mut out, "Total transferred:", format!("{} bytes", t.read));
        if o.body.is_some() {
            line(&mut out, "Total body sent:", t.sent.to_string());
        }
        line(&mut out, "HTML transferred:", format!("{} bytes", t.body));
        if s > 0.0 && t.done > 0 {
            let (rate, kb) = self.rates();
            line(&mut out, "Requests per second:", format!("{rate:.2} [#/sec] (mean)"));
            let each = s * 1000.0 / t.done as f64;
            line(&mut out, "Time per request:", format!("{:.3} [ms] (mean)", each * o.concurrency as f64));
            line(&mut out, "Time per request:", format!("{each:.3} [ms] (mean, across all concurrent requests)"));
            line(&mut out, "Transfer rate:", format!("{:.2} [Kbytes/sec] received", kb[0]));
            if o.body.is_some() {
                line(&mut out, "", format!("{:.2} kb/s sent", kb[1]));
                line(&mut out, "", format!("{:.2} kb/s total", kb[2]));
            }
            out.push_str(&self.times());
        }
        out
    }

    fn kinds(&self) -> [&Samples; 4] {
        let t = self.tally;
        [&t.connect, &t.processing, &t.waiting, &t.total]
    }

    /// ab's median is half a rank too high where the number of requests is odd, and the upper of two where it is even.
    fn median(&self, s: &Samples) -> f64 {
        let n = s.count();
        match self.manner.like_the_original {
            false => s.median(),
            true if n > 1 && n % 2 == 1 => ((s.at_rank(n / 2) + s.at_rank(n / 2 + 1)) / 2) as f64,
            true => s.at_rank(n / 2) as f64,
        }
    }

    fn times(&self) -> String {
        let mut out = String::from("\nConnection Times (ms)\n");
        if self.o.no_confidence {
            out.push_str("              min   avg   max\n");
            for ((label, _), s) in ROWS.iter().zip(self.kinds()) {
                let _ = writeln!(out, "{label}{:5} {:5}{:5}", ms(s.min() as f64), ms(s.mean()), ms(s.max() as f64));
            }
        } else {
            out.push_str("              min  mean[+/-sd] median   max\n");
            for ((label, _), s) in ROWS.iter().zip(self.kinds()) {
                let _ = writeln!(
                    out,
                    "{label}{:5} {:4} {:5.1} {:6} {:7}",
                    ms(s.min() as f64),
                    ms(s.mean()),
                    s.deviation() / 1000.0,
                    ms(self.median(s)),
                    ms(s.max() as f64)
                );
            }
            for ((_, what), s) in ROWS.iter().zip(self.kinds()) {
                // ab compares what it has rounded to whole milliseconds.
                let apart = if self.manner.like_the_original {
                    (ms(s.mean()) - ms(self.median(s))).abs() as f64 * 1000.0
                } else {
                    (s.mean() - self.median(s)).abs()
                };
                if apart > 2.0 * s.deviation() {
                    let _ = writeln!(
                        out,
                        "ERROR: The median and mean for {what} are more than twice the standard\n       deviation apart. \
                         These results are NOT reliable."
                    );
                } else if apart > s.deviation() {
                    let _ = writeln!(
                        out,
                        "WARNING: The median and mean for {what} are not within a normal deviation\n        These results \
                         are probably not that reliable."
                    );
                }
            }
        }
        let n = self.tally.done;
        if !self.o.no_percentiles && n > 1 {
            out.push_str("\nPercentage of the requests served within a certain time (ms)\n");
            for p in PERCENTILES {
                let total = &self.tally.total;
                let _ = match p {
                    100 => writeln!(out, " 100%  {:5} (longest request)", ms(total.max() as f64)),
                    _ => writeln!(out, "  {p}%  {:5}", ms(total.at_rank(n * p / 100) as f64)),
                };
            }
        }
        out
    }

    fn html(&self) -> String {
        let (o, t, s) = (self.o, self.tally, self.seconds());
        let [table, tr, td] = &o.attributes;
        let td = if td.is_empty() { "bgcolor=white" } else { td };
        let mut out = format!("\n\n<table {table}>\n");
        let cells = [tr.as_str(), td];
        row(&mut out, &cells, "Server Software:", self.software());
        row(&mut out, &cells, "Server Hostname:", self.url.host.clone());
        row(&mut out, &cells, "Server Port:", self.url.port.to_string());
        row(&mut out, &cells, "Document Path:", self.url.path.clone());
        row(&mut out, &cells, "Document Length:", self.length());
        row(&mut out, &cells, "Concurrency Level:", o.concurrency.to_string());
        row(&mut out, &cells, "Time taken for tests:", format!("{s:.3} seconds"));
        row(&mut out, &cells, "Complete requests:", t.done.to_string());
        row(&mut out, &cells, "Failed requests:", t.failed().to_string());
        if t.failed() > 0 {
            let _ = writeln!(
                out,
                "<tr {tr}><td colspan=4 {td} >   (Connect: 0, Length: {}, Exceptions: {})</td></tr>",
                t.failed_length, t.exceptions
            );
        }
        if t.bad_status > 0 {
            row(&mut out, &cells, "Non-2xx responses:", t.bad_status.to_string());
        }
        if o.keep_alive {
            row(&mut out, &cells, "Keep-Alive requests:", t.kept.to_string());
        }
        row(&mut out, &cells, "Total transferred:", format!("{} bytes", t.read));
        if o.body.is_some() {
            row(&mut out, &cells, "Total body sent:", t.sent.to_string());
        }
        row(&mut out, &cells, "HTML transferred:", format!("{} bytes", t.body));
        if s > 0.0 && t.done > 0 {
            let (rate, kb) = self.rates();
            row(&mut out, &cells, "Requests per second:", format!("{rate:.2}"));
            row(&mut out, &cells, "Transfer rate:", format!("{:.2} kb/s received", kb[0]));
            if o.body.is_some() {
                for (kb, what) in [(kb[1], "sent"), (kb[2], "total")] {
                    let _ = writeln!(
                        out,
                        "<tr {tr}><td colspan=2 {td}>&nbsp;</td><td colspan=2 {td}>{kb:.2} kb/s {what}</td></tr>"
                    );
                }
            }
            let _ = writeln!(out, "<tr {tr}><th {td} colspan=4>Connection Times (ms)</th></tr>");
            let _ = writeln!(
                out,
                "<tr {tr}><th {td}>&nbsp;</th> <th {td}>min</th>   <th {td}>avg</th>   <th {td}>max</th></tr>"
            );
            for (label, s) in [("Connect:", &t.connect), ("Processing:", &t.processing), ("Total:", &t.total)] {
                let _ = writeln!(
                    out,
                    "<tr {tr}><th {td}>{label}</th><td {td}>{:5}</td><td {td}>{:5}</td><td {td}>{:5}</td></tr>",
                    ms(s.min() as f64),
                    ms(s.mean()),
                    ms(s.max() as f64)
                );
            }
            out.push_str("</table>\n");
        }
        out
    }

    /// -g and -e.
    fn files(&self) -> Result<(), Refusal> {
        let t = self.tally;
        let write = |file: &str, what: &str, text: String| {
            fs::write(file, text).or_else(|e| refuse(1, format!("Cannot open {what} output file: {}", describe(&e))))
        };
        if t.done == 0 {
            return Ok(());
        }
        if let Some(file) = &self.o.csv {
            let mut text = String::from("Percentage served,Time in ms\n");
            for i in 0..=100u64 {
                let rank = ((t.done * i) as f64 / 100.0 + 0.5) as u64;
                let us = match i {
                    0 => t.total.min(),
                    100 => t.total.max(),
                    _ => t.total.at_rank(rank),
                };
                let _ = writeln!(text, "{i},{:.3}", us as f64 / 1000.0);
            }
            write(file, "CSV", text)?;
        }
        if let Some(file) = &self.o.gnuplot {
            let mut samples = t.samples.clone();
            samples.sort_by_key(|s| s.total);
            let mut text = String::from("starttime\tseconds\tctime\tdtime\tttime\twait\n");
            for s in samples {
                let seconds = s.start / 1_000_000;
                let of = |us: Micros| ms(us as f64);
                let _ = writeln!(
                    text,
                    "{}\t{seconds}\t{}\t{}\t{}\t{}",
                    c_time(seconds),
                    of(s.connect),
                    of(s.total - s.connect.min(s.total)),
                    of(s.total),
                    of(s.wait)
                );
            }
            write(file, "gnuplot", text)?;
        }
        Ok(())
    }
}

/// `TLSv1.3,TLS_AES_256_GCM_SHA384,2048,256`: version, suite, bits of the server's key and of the cipher.
fn protocol(tls: &TlsFacts) -> String {
    let bits = if tls.cipher.contains("AES_128") { 128 } else { 256 };
    let suite = match tls.cipher.strip_prefix("TLS13_") {
        Some(rest) => format!("TLS_{rest}"),
        None => tls.cipher.trim_start_matches("TLS_").replace("_WITH_", "_").replace("AES_", "AES").replace('_', "-"),
    };
    // OpenSSL leaves the hash of this one away.
    let suite =
        if suite.starts_with("ECDHE") { suite.replace("CHACHA20-POLY1305-SHA256", "CHACHA20-POLY1305") } else { suite };
    format!("{},{suite},{},{bits}", tls.version.replace('_', "."), key_bits(&tls.certificate))
}

/// Bits of the public key of a certificate: an RSA modulus or the field of a curve.
fn key_bits(der: &[u8]) -> usize {
    let find = |oid: &[u8]| der.windows(oid.len()).position(|w| w == oid).map(|at| at + oid.len());
    if let Some(at) = find(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01]) {
        // NULL, BIT STRING, SEQUENCE, then the modulus: INTEGER and its length.
        let rest = der.get(at..).unwrap_or_default();
        let modulus = rest.windows(4).position(|w| w[0] == 0x02 && w[1] == 0x82 && w[2] < 0x10);
        return modulus.map_or(0, |at| {
            let length = usize::from(rest[at + 2]) << 8 | usize::from(rest[at + 3]);
            // A leading zero keeps it positive.
            length.saturating_sub(usize::from(rest.get(at + 4) == Some(&0))) * 8
        });
    }
    if find(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07]).is_some() {
        return 256;
    }
    if find(&[0x2b, 0x81, 0x04, 0x00, 0x22]).is_some() { 384 } else { 0 }
}

/// The key of the exchange as OpenSSL names it.
fn temp_key(group: &str) -> Option<String> {
    Some(match group {
        "X25519" | "X25519MLKEM768" => "X25519 253 bits".into(),
        "secp256r1" => "ECDH prime256v1 256 bits".into(),
        "secp384r1" => "ECDH secp384r1 384 bits".into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_string).collect()
    }

    #[test]
    fn the_place_of_t_on_the_line_matters() {
        assert_eq!(read(&words("-t 10 -n 1000000 http://h/")).expect("valid").requests, 1_000_000);
        assert_eq!(read(&words("-n 1000000 -t 10 http://h/")).expect("valid").requests, 50_000);
        assert_eq!(read(&words("-c 5 -n 2 http://h/")).expect_err("wrong").code, 22);
        assert_eq!(read(&words("-n x http://h/")).expect_err("wrong").code, 1);
    }

    #[test]
    fn a_path_is_wanted() {
        assert!(read_url("127.0.0.1:80").is_none() && read_url("127.0.0.1:80/").is_some());
        assert!(read_url("https://[::1]:443/x").is_some_and(|u| u.tls && u.host == "::1"));
    }

    #[test]
    fn suites_have_the_names_of_openssl() {
        let facts = |version: &str, cipher: &str| TlsFacts {
            version: version.into(),
            cipher: cipher.into(),
            ..TlsFacts::default()
        };
        assert_eq!(protocol(&facts("TLSv1_3", "TLS13_AES_256_GCM_SHA384")), "TLSv1.3,TLS_AES_256_GCM_SHA384,0,256");
        let old = facts("TLSv1_2", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256");
        assert_eq!(protocol(&old), "TLSv1.2,ECDHE-RSA-AES128-GCM-SHA256,0,128");
    }
}
