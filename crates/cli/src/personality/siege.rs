//! siege 4.0.7.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lastdrop_analyze::samples::Samples;
use lastdrop_experiment::LabError;
use lastdrop_load::{LoadError, describe};
use lastdrop_model::plan::Proxy;
use lastdrop_model::request::{Auth, Body, Page, Pick, RequestSpec, Think, header_line};
use lastdrop_model::{Exchange, Failure, Fate, KeepAlive, Load, Plan, Wish, url_file};

use super::getopt::{Opt, Style, Takes, atoi, opt, parse};
use super::{Manner, Refusal, carry_out, catch_signals, day, failed, first_wire, local_time, refuse, remark, say};

const USAGE: &str = include_str!("usage/siege.txt");
const AGENT: &str = "Mozilla/5.0 (pc-x86_64-linux-gnu) Siege/4.0.7";
const COPYRIGHT: &str = "Copyright (C) 2018 by Jeffrey Fulmer, et al.\n\
    This is free software; see the source for copying conditions.\n\
    There is NO warranty; not even for MERCHANTABILITY or FITNESS\nFOR A PARTICULAR PURPOSE.\n";
/// Redirects that siege follows, one after the other.
const REDIRECTS: u32 = 10;
/// siege's clock ticks so often.
const TICK_S: f64 = 0.01;

const TABLE: &[Opt] = &[
    opt('V', "version", Takes::Nothing),
    opt('h', "help", Takes::Nothing),
    opt('v', "verbose", Takes::Nothing),
    opt('q', "quiet", Takes::Nothing),
    opt('C', "config", Takes::Nothing),
    opt('D', "debug", Takes::Nothing),
    opt('N', "no-parser", Takes::Nothing),
    opt('F', "no-follow", Takes::Nothing),
    opt('p', "print", Takes::Nothing),
    opt('g', "get", Takes::Nothing),
    opt('l', "log", Takes::Perhaps),
    opt('i', "internet", Takes::Nothing),
    opt('b', "benchmark", Takes::Nothing),
    opt('r', "reps", Takes::Value),
    opt('t', "time", Takes::Value),
    opt('f', "file", Takes::Value),
    opt('d', "delay", Takes::Value),
    opt('c', "concurrent", Takes::Value),
    opt('m', "mark", Takes::Value),
    opt('H', "header", Takes::Value),
    opt('R', "rc", Takes::Value),
    opt('A', "user-agent", Takes::Value),
    opt('T', "content-type", Takes::Value),
    opt('j', "json-output", Takes::Nothing),
];

/// How often each user goes through.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reps {
    Times(u64),
    Once,
}

/// Settings: of the file, then of the command line.
#[derive(Debug, Clone)]
struct Order {
    rc: PathBuf,
    verbose: bool,
    quiet: bool,
    color: bool,
    json: bool,
    show_log: bool,
    logging: bool,
    log_file: PathBuf,
    get_method: String,
    parser: bool,
    follow: bool,
    csv: bool,
    stamp: bool,
    full_url: bool,
    limit: u64,
    http10: bool,
    cache: bool,
    keep_alive: bool,
    concurrent: u64,
    time: Option<Duration>,
    reps: Option<Reps>,
    file: Option<PathBuf>,
    url: Option<String>,
    delay_s: f64,
    timeout_s: u64,
    failures: u64,
    internet: bool,
    benchmark: bool,
    agent: String,
    encoding: String,
    login: Option<String>,
    content_type: Option<String>,
    headers: Vec<(String, String)>,
    proxy_host: Option<String>,
    proxy_port: u16,
    proxy_login: Option<String>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    cookies: bool,
    /// Hosts whose parts of pages are not fetched; others than those of the plan never are.
    no_follow: Vec<String>,
    mark: Option<String>,
    get: bool,
    print: bool,
    debug: bool,
    variables: HashMap<String, String>,
}

fn usage<T>() -> Result<T, Refusal> {
    say(USAGE);
    refuse(0, "SIEGE 4.0.7")
}

/// `yes`, `true`, `on`, `1` and nothing else.
fn truth(text: &str) -> bool {
    ["true", "yes", "on", "1"].contains(&text.to_ascii_lowercase().as_str())
}

/// `10S`, `5M`, `1H`; minutes without a letter.
fn time(text: &str) -> Option<Duration> {
    let number = atoi(text).max(0) as u64;
    let unit = match text.trim().chars().next_back().map(|c| c.to_ascii_uppercase()) {
        Some('S') => 1,
        Some('H') => 3600,
        _ => 60,
    };
    (number > 0).then(|| Duration::from_secs(number * unit))
}

impl Order {
    fn defaults(rc: PathBuf) -> Order {
        Order {
            rc,
            verbose: true,
            quiet: false,
            color: true,
            json: false,
            show_log: false,
            logging: false,
            log_file: PathBuf::from("/var/log/siege.log"),
            get_method: "HEAD".into(),
            parser: true,
            follow: true,
            csv: false,
            stamp: false,
            full_url: false,
            limit: 255,
            http10: false,
            cache: false,
            keep_alive: false,
            concurrent: 25,
            time: None,
            reps: None,
            file: None,
            url: None,
            delay_s: 0.0,
            timeout_s: 30,
            failures: 1024,
            internet: false,
            benchmark: false,
            agent: AGENT.into(),
            encoding: "*".into(),
            login: None,
            content_type: None,
            headers: Vec::new(),
            proxy_host: None,
            proxy_port: 3128,
            proxy_login: None,
            certificate: None,
            key: None,
            cookies: true,
            no_follow: Vec::new(),
            mark: None,
            get: false,
            print: false,
            debug: false,
            variables: HashMap::new(),
        }
    }

    /// One line of the settings file.
    fn set(&mut self, name: &str, value: &str) -> Result<(), Refusal> {
        let text = || value.to_string();
        match name {
            "verbose" => self.verbose = truth(value),
            "quiet" => self.quiet = truth(value),
            "color" => self.color = truth(value),
            "json_output" => self.json = truth(value),
            "show-logfile" => self.show_log = truth(value),
            "logging" => self.logging = truth(value),
            "logfile" => self.log_file = PathBuf::from(value),
            "gmethod" => self.get_method = text(),
            "parser" => self.parser = truth(value),
            "follow-location" => self.follow = truth(value),
            "csv" => self.csv = truth(value),
            "timestamp" => self.stamp = truth(value),
            "fullurl" => self.full_url = truth(value),
            "limit" => self.limit = atoi(value).max(1) as u64,
            "protocol" => self.http10 = value.eq_ignore_ascii_case("HTTP/1.0"),
            "cache" => self.cache = truth(value),
            "connection" => self.keep_alive = value.eq_ignore_ascii_case("keep-alive"),
            "concurrent" => self.concurrent = atoi(value).max(1) as u64,
            "time" => self.time = time(value),
            "reps" => self.reps = reps(value),
            "file" => self.file = Some(PathBuf::from(value)),
            "url" => self.url = Some(text()),
            "delay" => self.delay_s = value.parse().unwrap_or(0.0),
            "timeout" => self.timeout_s = atoi(value).max(1) as u64,
            "failures" => self.failures = atoi(value).max(1) as u64,
            "internet" => self.internet = truth(value),
            "benchmark" => self.benchmark = truth(value),
            "user-agent" => self.agent = text(),
            "accept-encoding" => self.encoding = text(),
            "login" => self.login = Some(text()),
            "proxy-host" => self.proxy_host = Some(text()),
            "proxy-port" => self.proxy_port = atoi(value) as u16,
            "proxy-login" => self.proxy_login = Some(text()),
            "ssl-cert" => self.certificate = Some(PathBuf::from(value)),
            "ssl-key" => self.key = Some(PathBuf::from(value)),
            "nofollow" => self.no_follow.push(text()),
            "cookies" => self.cookies = truth(value),
            "login-url" | "ftp-login" | "ssl-ciphers" => {
                let instead = match name {
                    "login-url" => "a plan with a request that is sent once does this: see 'Plan files' in the manual",
                    "ftp-login" => "FTP is not spoken here",
                    _ => "cipher suites cannot be chosen here",
                };
                return refuse(1, format!("siege: {name} in {}: {instead}", self.rc.display()));
            }
            other => {
                self.variables.insert(other.to_string(), text());
            }
        }
        Ok(())
    }

    fn read_rc(&mut self, given: bool) -> Result<(), Refusal> {
        let Ok(text) = fs::read_to_string(&self.rc) else {
            if !given {
                // siege would write its template, which has these.
                (self.json, self.show_log, self.encoding) = (true, true, "gzip, deflate".into());
                return Ok(());
            }
            let stars = "*".repeat(50);
            return refuse(
                1,
                format!(
                    "{stars}\nsiege: could not open {}\nrun 'siege.config' to generate a new config file\n{stars}",
                    self.rc.display()
                ),
            );
        };
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            if let Some((name, value)) = line.split_once('=') {
                let mut value = value.trim().to_string();
                for (from, to) in &self.variables {
                    value = value.replace(&format!("$({from})"), to).replace(&format!("${{{from}}}"), to);
                }
                if let Ok(home) = std::env::var("HOME") {
                    value = value.replace("$(HOME)", &home).replace("${HOME}", &home);
                }
                self.set(name.trim(), &value)?;
            }
        }
        Ok(())
    }
}

fn reps(text: &str) -> Option<Reps> {
    match text {
        "once" => Some(Reps::Once),
        n => Some(atoi(n)).filter(|n| *n > 0).map(|n| Reps::Times(n as u64)),
    }
}

/// The settings file: the one named, SIEGERC, the user's, or the system's.
fn rc_of(options: &[(usize, Option<String>)]) -> (PathBuf, bool) {
    if let Some((_, Some(file))) = options.iter().find(|(at, _)| TABLE[*at].short == 'R') {
        return (PathBuf::from(file), true);
    }
    if let Ok(file) = std::env::var("SIEGERC") {
        return (PathBuf::from(file), false);
    }
    let own = std::env::var("HOME").map(|home| Path::new(&home).join(".siege/siege.conf"));
    match own {
        Ok(file) if file.exists() => (file, false),
        _ => (PathBuf::from("/etc/siege/siegerc"), false),
    }
}

fn read(args: &[String]) -> Result<Order, Refusal> {
    let parsed = parse("siege", Style::Long, TABLE, args);
    // siege goes through its command line twice, complains twice, and carries on.
    for e in &parsed.errors {
        eprintln!("{e}");
        if e.contains("requires an argument") {
            return usage();
        }
        eprintln!("{e}");
    }
    let (rc, given) = rc_of(&parsed.options);
    let mut o = Order::defaults(rc);
    o.read_rc(given)?;
    for (at, value) in parsed.options {
        let value = value.unwrap_or_default();
        match TABLE[at].short {
            'V' => return refuse(0, format!("SIEGE 4.0.7\n\n{COPYRIGHT}")),
            'h' => return usage(),
            'v' => o.verbose = true,
            'q' => o.quiet = true,
            'D' => o.debug = true,
            'N' => o.parser = false,
            'F' => o.follow = false,
            'p' => o.print = true,
            'g' => o.get = true,
            'l' => {
                o.logging = true;
                if !value.is_empty() {
                    o.log_file = PathBuf::from(value);
                }
            }
            'i' => o.internet = true,
            'b' => o.benchmark = true,
            'r' => o.reps = reps(&value),
            't' => o.time = time(&value),
            'f' => o.file = Some(PathBuf::from(value)),
            'd' => o.delay_s = value.parse().unwrap_or(0.0),
            'c' => o.concurrent = atoi(&value).max(1) as u64,
            'm' => {
                o.logging = true;
                o.mark = Some(value);
            }
            'H' => match header_line(&value) {
                Ok(header) => o.headers.push(header),
                Err(_) if !value.contains(':') => return refuse(1, "[\x1b[1;31mfatal\x1b[0m] no ':' in http-header"),
                Err(e) => return refuse(1, format!("siege: -H: {e}")),
            },
            'A' => o.agent = value,
            'T' => o.content_type = Some(value),
            'j' => o.json = true,
            'C' => {
                say(&config(&o));
                return refuse(0, "");
            }
            _ => {}
        }
    }
    // The last one counts.
    if let Some(url) = parsed.words.last() {
        o.url = Some(url.clone());
    }
    if o.url.is_none() && o.file.is_none() {
        return usage();
    }
    if o.get || o.print {
        (o.concurrent, o.reps, o.time, o.parser) = (1, Some(Reps::Times(1)), None, false);
    }
    Ok(o)
}

/// What -C shows.
fn config(o: &Order) -> String {
    let mut out = format!(
        "CURRENT  SIEGE  CONFIGURATION\n{}\nEdit the resource file to change the settings.\n{}\n",
        o.agent,
        "-".repeat(46)
    );
    let yes = |b: bool| b.to_string();
    let no_time = || "n/a".to_string();
    let rows = [
        ("version:", "4.0.7".into()),
        ("verbose:", yes(o.verbose && !o.json)),
        ("color:", yes(o.color)),
        ("quiet:", yes(o.quiet || o.json)),
        ("debug:", yes(o.debug)),
        ("protocol:", if o.http10 { "HTTP/1.0" } else { "HTTP/1.1" }.into()),
        ("HTML parser:", if o.parser { "enabled" } else { "disabled" }.into()),
        ("get method:", o.get_method.clone()),
        ("connection:", if o.keep_alive { "keep-alive" } else { "close" }.into()),
        ("concurrent users:", o.concurrent.to_string()),
        ("time to run:", o.time.map_or_else(no_time, |t| format!("{} seconds", t.as_secs()))),
        (
            "repetitions:",
            match o.reps {
                Some(Reps::Times(n)) => n.to_string(),
                _ => no_time(),
            },
        ),
        ("socket timeout:", o.timeout_s.to_string()),
        ("cache enabled:", yes(o.cache)),
        ("accept-encoding:", o.encoding.clone()),
        ("delay:", format!("{:.3} sec", o.delay_s)),
        ("internet simulation:", yes(o.internet)),
        ("benchmark mode:", yes(o.benchmark)),
        ("failures until abort:", o.failures.to_string()),
        ("named URL:", o.url.clone().unwrap_or_else(|| "none".into())),
        ("URLs file:", o.file.as_ref().map_or_else(|| "/etc/siege/urls.txt".into(), |f| f.display().to_string())),
        ("thread limit:", o.limit.to_string()),
        ("logging:", yes(o.logging)),
        ("log file:", o.log_file.display().to_string()),
        ("resource file:", o.rc.display().to_string()),
        ("timestamped output:", yes(o.stamp)),
        ("comma separated output:", yes(o.csv)),
        ("allow redirects:", yes(o.follow)),
        ("allow zero byte data:", "true".into()),
        ("allow chunked encoding:", "true".into()),
        ("upload unique files:", "true".into()),
        ("json output:", yes(o.json)),
    ];
    for (label, value) in rows {
        let _ = writeln!(out, "{label:<32}{value}");
    }
    if !o.no_follow.is_empty() {
        out.push_str("no-follow:\n");
        for host in &o.no_follow {
            let _ = writeln!(out, " - {host}");
        }
    }
    for label in ["proxy auth:", "www auth:"] {
        let _ = writeln!(out, "{label:<32}");
    }
    out
}

/// The requests: of the URL named, or of the file.
fn requests(o: &Order) -> Result<Vec<RequestSpec>, Refusal> {
    if let Some(url) = &o.url {
        let line = url_file::parse(url, Path::new("."), |_| None);
        return line.or_else(|e| refuse(1, format!("siege: {}", e.what)));
    }
    let Some(file) = &o.file else { return usage() };
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) => {
            eprintln!("[\x1b[1;32malert\x1b[0m] unable to open file: {}: {}", file.display(), describe(&e));
            return usage();
        }
    };
    // siege looks for files to send where it was started.
    url_file::parse(&text, Path::new("."), |name| o.variables.get(name).cloned().or_else(|| std::env::var(name).ok()))
        .or_else(|e| refuse(1, format!("siege: {}: {e}", file.display())))
}

fn plan_of(o: &Order, users: u64) -> Result<Plan, Refusal> {
    let mut specs = requests(o)?;
    let url = specs[0].url.clone();
    for spec in &mut specs {
        let mut headers: Vec<(String, String)> = vec![
            ("Host".into(), spec.url.authority()),
            ("Accept".into(), "*/*".into()),
            ("Accept-Encoding".into(), o.encoding.clone()),
            ("User-Agent".into(), o.agent.clone()),
        ];
        headers.extend(o.headers.clone());
        headers.push(("Connection".into(), if o.keep_alive { "keep-alive" } else { "close" }.into()));
        if spec.body != Body::None {
            let kind = o.content_type.as_deref().unwrap_or("application/x-www-form-urlencoded");
            headers.push(("Content-type".into(), kind.into()));
        }
        // The last of a name is the one that is meant.
        let mut seen: Vec<String> = Vec::new();
        headers.reverse();
        headers.retain(|(n, _)| {
            let name = n.to_ascii_lowercase();
            let new = !seen.contains(&name);
            seen.push(name);
            new
        });
        headers.reverse();
        spec.headers = headers;
        if let Some((user, rest)) = o.login.as_deref().and_then(|l| l.split_once(':')) {
            let password = rest.split(':').next().unwrap_or_default();
            spec.auth = Some(Auth::Basic { user: user.into(), password: password.into() });
        }
    }
    let hits = specs.len() as u64;
    let mut plan = Plan::new(url, super::seed());
    plan.requests = specs;
    plan.pick = if o.internet { Pick::Weighted } else { Pick::Order };
    plan.http.http10 = o.http10 || o.get || o.print;
    plan.http.redirects = if o.follow { REDIRECTS } else { 0 };
    plan.http.cookies = o.cookies;
    plan.keepalive = if o.keep_alive { KeepAlive::On } else { KeepAlive::Off };
    plan.page = o.parser.then_some(Page { connections_per_host: 1, cache: o.cache });
    plan.timeout = Duration::from_secs(o.timeout_s);
    plan.drain = Duration::ZERO;
    plan.tls.insecure = true;
    plan.tls.certificate.clone_from(&o.certificate);
    plan.tls.key.clone_from(&o.key);
    if !o.benchmark && o.delay_s > 0.0 && !o.get && !o.print {
        plan.think = Some(Think::Uniform(Duration::ZERO, Duration::from_secs_f64(o.delay_s)));
    }
    plan.network.proxy = o.proxy_host.clone().map(|host| Proxy {
        host,
        port: o.proxy_port,
        credentials: o.proxy_login.as_ref().map(|l| l.split(':').take(2).collect::<Vec<_>>().join(":")),
        tunnel: false,
    });
    let phase = &mut plan.phases[0];
    phase.load = Load::closed(users as u32);
    phase.duration = o.time;
    phase.requests = match (o.time, o.reps) {
        // Nobody said when to stop: Ctrl-C will.
        (Some(_), _) => None,
        (None, None) => Some(u64::MAX),
        (None, Some(Reps::Times(n))) => Some(n.saturating_mul(users)),
        (None, Some(Reps::Once)) => Some(hits * users),
    };
    Ok(plan)
}

#[derive(Debug, Default)]
struct Tally {
    hits: u64,
    ok: u64,
    ok200: u64,
    failed: u64,
    bytes: u64,
    times: Samples,
}

impl Tally {
    fn take(&mut self, e: &Exchange) {
        match e.fate {
            Fate::Censored | Fate::Unsent => return,
            // siege counts an error of the server as a failure.
            Fate::Answered if e.status >= 500 => self.failed += 1,
            Fate::Answered => {
                self.hits += 1;
                self.ok += u64::from(e.status < 400 || matches!(e.status, 401 | 407));
                self.ok200 += u64::from(e.status == 200);
            }
            Fate::Failed(_) | Fate::TimedOut => {
                self.failed += 1;
                return;
            }
        }
        self.bytes += e.body_bytes;
        self.times.record(e.service_us());
    }
}

/// One line for a hit.
fn hit_line(e: &Exchange, o: &Order, plan: &Plan) -> String {
    let spec = &plan.requests[e.request as usize];
    let (method, path) = e
        .detour
        .as_ref()
        .map_or((spec.method.as_str(), spec.url.path.as_str()), |d| (d.method.as_str(), d.path.as_str()));
    let url = format!("{}{path}", spec.url.origin());
    let seconds = e.service_us() as f64 / 1e6;
    let protocol = if plan.http.http10 { "HTTP/1.0" } else { "HTTP/1.1" };
    let now = e.done.unwrap_or(e.due) / 1_000_000;
    let stamp = if o.stamp { format!("[{}, {}] ", day(now), date(now)) } else { String::new() };
    let shown = if o.full_url || matches!(method, "POST" | "PUT") { url.as_str() } else { path };
    let line = if o.csv {
        format!("{stamp}{protocol},{},{seconds:6.2},{:7},{url},{},{}", e.status, e.body_bytes, e.request, date(now))
    } else {
        format!("{stamp}{protocol} {}   {seconds:6.2} secs: {:7} bytes ==> {method:<4} {shown}", e.status, e.body_bytes)
    };
    let color = match e.status {
        200..300 => 34,
        300..400 => 36,
        400..500 => 35,
        _ => 31,
    };
    if o.color { format!("\x1b[0;{color}m{line}\x1b[0m\n") } else { format!("{line}\n") }
}

/// `2026-11-22 09:32:09`
fn date(unix_s: u64) -> String {
    let t = local_time(unix_s);
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
        t.tm_year + 1900,
        t.tm_mon + 1,
        t.tm_mday,
        t.tm_hour,
        t.tm_min,
        t.tm_sec
    )
}

pub fn main(args: &[String], manner: Manner) -> Result<u8, Refusal> {
    let o = read(args)?;
    let mut users = o.concurrent;
    if users > o.limit {
        users = o.limit;
        let line = "=".repeat(64);
        say(&format!(
            "\n{line}\nWARNING: The number of users is capped at {}.  To increase this\n         limit, search your .siegerc file for \
             'limit' and change\n         its value. Make sure you read the instructions there...\n{line}\n",
            o.limit
        ));
    }
    let plan = plan_of(&o, users)?;
    let loud = !o.json && !o.quiet;
    if loud && !o.get {
        eprint!("** SIEGE 4.0.7\n** Preparing {users} concurrent users for battle.\nThe server is now under siege...");
    }
    if o.get || o.print {
        let wire = first_wire(&plan);
        if !o.json && !o.quiet {
            say(&format!("{}\n", String::from_utf8_lossy(&wire)));
        }
    }
    let stop = catch_signals()?;
    let mut tally = Tally::default();
    let mut aborted = false;
    // The line on which the siege was announced is ended by the first thing that follows.
    let mut line_open = loud && !o.get && (o.verbose || o.print);
    let mut show = |some: &[Exchange]| {
        for e in some {
            tally.take(e);
            if let (true, Some(raw)) = (o.get || o.print, &e.raw) {
                say(&transaction(raw, &o));
            } else if loud && o.verbose && e.fate == Fate::Answered && !o.get && !o.print {
                say(&hit_line(e, &o, &plan));
            }
            if e.fate == Fate::Failed(Failure::Connect) {
                if std::mem::take(&mut line_open) {
                    eprintln!();
                }
                eprintln!("[\x1b[1;33merror\x1b[0m] socket: unable to connect sock.c:282: Connection refused");
            }
            if tally.failed >= o.failures && !aborted {
                aborted = true;
                stop.end();
            }
        }
    };
    let wish = if o.get || o.print { Wish::Answers } else { Wish::Exchanges };
    let carried = match carry_out(&plan, wish, &stop, &mut show) {
        Err(LabError::Load(LoadError::Resolve { .. })) => {
            // siege asks for the address again for each request; one failure says as much.
            let error = "[\x1b[1;33merror\x1b[0m]";
            let newline = if line_open { "\n" } else { "" };
            eprintln!("{newline}{error} Address resolution failed at sock.c:158 with the following error:");
            eprintln!("{error} Name or service not known");
            let lost = Tally { failed: plan.phases[0].requests.unwrap_or(1), ..Tally::default() };
            show_block(&o, &Block::of(&lost, 0.0, manner), &lost, false);
            return Ok(0);
        }
        other => other.map_err(|e| failed("siege", e))?,
    };
    if line_open {
        eprintln!();
    }
    if aborted {
        eprintln!(
            "siege aborted due to excessive socket failure; you\ncan change the failure threshold in $HOME/.siegerc"
        );
    }
    let block = Block::of(&tally, carried.run.phases[0].duration_s, manner);
    show_block(&o, &block, &tally, o.time.is_some() || carried.signal.is_some());
    write_log(&o, &block)?;
    remark(
        manner,
        &carried.run,
        "siege has no percentiles and a clock of 10 ms; a closed loop: while the server stalls nobody else asks",
    );
    Ok(0)
}

/// The report, as JSON on stdout or as text on stderr. `lifted`: the siege had to be ended.
fn show_block(o: &Order, block: &Block, t: &Tally, lifted: bool) {
    if o.json {
        eprintln!();
        say(&block.json());
    } else if !o.quiet {
        let lifting = if lifted { "\nLifting the server siege..." } else { "" };
        eprint!("{lifting}\n{} \n", block.text(o.debug, t.ok200));
    } else if o.get || o.print {
        eprintln!();
    }
}

/// What -g and -p show of an answer.
fn transaction(raw: &[u8], o: &Order) -> String {
    let text = String::from_utf8_lossy(raw);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    if o.json || o.quiet {
        String::new()
    } else if o.print {
        format!("{body}\n")
    } else {
        format!("{head}\r\n\r\n\n")
    }
}

/// The numbers of the report.
struct Block {
    hits: u64,
    availability: f64,
    elapsed_s: f64,
    megabytes: f64,
    response_s: f64,
    rate: f64,
    throughput: f64,
    concurrency: f64,
    ok: u64,
    failed: u64,
    longest_s: f64,
    shortest_s: f64,
}

impl Block {
    fn of(t: &Tally, elapsed_s: f64, manner: Manner) -> Block {
        // siege's clock counts hundredths of a second, and what took none has no rate.
        let tick = |s: f64| if manner.like_the_original { (s / TICK_S).round() * TICK_S } else { s };
        let elapsed_s = tick(elapsed_s);
        let per_second = |x: f64| if elapsed_s > 0.0 { x / elapsed_s } else { 0.0 };
        let all = t.hits + t.failed;
        let available = if manner.like_the_original { t.hits } else { t.ok };
        let busy_s = tick(t.times.sum() / 1e6);
        Block {
            hits: t.hits,
            // For siege a 403 is as good as a page.
            availability: if all == 0 { 0.0 } else { available as f64 / all as f64 * 100.0 },
            elapsed_s,
            megabytes: t.bytes as f64 / 1_048_576.0,
            response_s: if t.hits == 0 { 0.0 } else { busy_s / t.hits as f64 },
            rate: per_second(t.hits as f64),
            throughput: per_second(t.bytes as f64 / 1_048_576.0),
            concurrency: per_second(busy_s),
            ok: t.ok,
            failed: t.failed,
            longest_s: tick(t.times.max() as f64 / 1e6),
            shortest_s: tick(t.times.min() as f64 / 1e6),
        }
    }

    fn text(&self, debug: bool, ok200: u64) -> String {
        let mut out = format!(
            "Transactions:\t\t{:12} hits\nAvailability:\t\t{:12.2} %\nElapsed time:\t\t{:12.2} secs\n\
             Data transferred:\t{:12.2} MB\nResponse time:\t\t{:12.2} secs\nTransaction rate:\t{:12.2} trans/sec\n\
             Throughput:\t\t{:12.2} MB/sec\nConcurrency:\t\t{:12.2}\nSuccessful transactions:{:12}\n",
            self.hits,
            self.availability,
            self.elapsed_s,
            self.megabytes,
            self.response_s,
            self.rate,
            self.throughput,
            self.concurrency,
            self.ok,
        );
        if debug {
            let _ = writeln!(out, "HTTP OK received:\t{ok200:12}");
        }
        let _ = write!(
            out,
            "Failed transactions:\t{:12}\nLongest transaction:\t{:12.2}\nShortest transaction:\t{:12.2}\n",
            self.failed, self.longest_s, self.shortest_s
        );
        out
    }

    fn json(&self) -> String {
        format!(
            "{{\t\"transactions\":\t\t\t{:12},\n\t\"availability\":\t\t\t{:12.2},\n\t\"elapsed_time\":\t\t\t{:12.2},\n\
             \t\"data_transferred\":\t\t{:12.2},\n\t\"response_time\":\t\t{:12.2},\n\t\"transaction_rate\":\t\t{:12.2},\n\
             \t\"throughput\":\t\t\t{:12.2},\n\t\"concurrency\":\t\t\t{:12.2},\n\t\"successful_transactions\":\t{:12},\n\
             \t\"failed_transactions\":\t\t{:12},\n\t\"longest_transaction\":\t\t{:12.2},\n\t\"shortest_transaction\":\t\t{:12.2}\n}}\n",
            self.hits,
            self.availability,
            self.elapsed_s,
            self.megabytes,
            self.response_s,
            self.rate,
            self.throughput,
            self.concurrency,
            self.ok,
            self.failed,
            self.longest_s,
            self.shortest_s
        )
    }
}

/// A line for the run in the log file, and the mark before it.
fn write_log(o: &Order, b: &Block) -> Result<(), Refusal> {
    if !o.logging {
        return Ok(());
    }
    let mut text = String::new();
    if !o.log_file.exists() {
        text.push_str(
            "      Date & Time,  Trans,  Elap Time,  Data Trans,  Resp Time,  Trans Rate,  Throughput,  Concurrent,    OKAY,   Failed\n",
        );
    }
    if let Some(mark) = &o.mark {
        let _ = writeln!(text, "**** {mark} ****");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let _ = writeln!(
        text,
        "{},{:7},{:11.2},{:12},{:11.2},{:12.2},{:12.2},{:12.2},{:8},{:8}",
        date(now),
        b.hits,
        b.elapsed_s,
        b.megabytes as u64,
        b.response_s,
        b.rate,
        b.throughput,
        b.concurrency,
        b.ok,
        b.failed
    );
    let path = o.log_file.display();
    let written = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&o.log_file)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    if o.show_log {
        say(&format!(
            "LOG FILE: {path}\nYou can disable this log file notification by editing\n{} and changing 'show-logfile' to \
             false.\n",
            std::env::var("HOME").map_or_else(|_| o.rc.display().to_string(), |h| format!("{h}/.siege/siege.conf"))
        ));
    }
    if let Err(e) = written {
        eprintln!("[\x1b[1;33merror\x1b[0m] unable to create log file: {path}: {}", describe(&e));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_repetitions_are_read() {
        assert_eq!(
            (time("10S"), time("2"), time("1h"), time("x")),
            (Some(Duration::from_secs(10)), Some(Duration::from_secs(120)), Some(Duration::from_secs(3600)), None)
        );
        assert_eq!((reps("once"), reps("3"), reps("0")), (Some(Reps::Once), Some(Reps::Times(3)), None));
    }

    #[test]
    fn a_clock_of_hundredths_has_no_rate_for_what_took_less() {
        let mut t = Tally { hits: 2, ..Tally::default() };
        t.times.record(1000);
        let like = |like_the_original| Manner { like_the_original, remark: false };
        assert!((Block::of(&t, 0.004, like(false)).rate - 500.0).abs() < 1e-9);
        assert!(Block::of(&t, 0.004, like(true)).rate.abs() < 1e-9);
    }
}
