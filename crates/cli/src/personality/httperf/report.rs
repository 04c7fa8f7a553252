//! The output of httperf: its options, requests and responses on request, and the report.

use std::fmt::Write as _;

use lastdrop_analyze::samples::Samples;
use lastdrop_load::{AnswerParts, answer_parts};
use lastdrop_model::printable;
use lastdrop_model::secrets::{self, MARK};

use super::counts::{HttperfCounts, RATE_INTERVAL_US};
use super::flags::{HttperfOptions, Workload, port};
use crate::personality::number::g;
use crate::personality::{Compatibility, FinishedRun};

/// The line of effective options that the report begins with.
pub fn echo(o: &HttperfOptions) -> String {
    let mut out = String::from("httperf");
    let mut add = |text: String| {
        out.push(' ');
        out.push_str(&text);
    };
    if o.verbose > 0 {
        add("--verbose".into());
    }
    for (name, what) in [("print-reply", &o.print_reply), ("print-request", &o.print_request)] {
        match what.as_deref() {
            Some("all") => add(format!("--{name}")),
            Some(what) => add(format!("--{name}={what}")),
            None => {}
        }
    }
    if o.hog {
        add("--hog".into());
    }
    if o.think_timeout > 0.0 {
        add(format!("--think-timeout={}", g(o.think_timeout)));
    }
    if o.timeout > 0.0 {
        add(format!("--timeout={}", g(o.timeout)));
    }
    add(format!("--client={}/{}", o.client.0, o.client.1));
    add(format!("--server={}", o.server));
    if let Some(name) = &o.server_name {
        add(format!("--server_name={name}"));
    }
    add(format!("--port={}", port(o)));
    add(format!("--uri={}", secrets::url(&o.uri)));
    if let Some(status) = o.failure_status {
        add(format!("--failure-status={status}"));
    }
    if o.http_version != (1, 1) {
        add(format!("--http-version={}.{}", o.http_version.0, o.http_version.1));
    }
    if let Some(n) = o.max_connections {
        add(format!("--max-connections={n}"));
    }
    if let Some(period) = &o.period {
        add(format!("--period={period}"));
    } else if o.rate > 0.0 {
        add(format!("--rate={}", g(o.rate)));
    }
    add(format!("--send-buffer={}", o.send_buffer));
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
        // Each header ends with the two characters \n.
        let shown = o.headers.split("\\n").map(|line| match line.split_once(':') {
            Some((name, value)) if secrets::is_secret(name) && !value.is_empty() => format!("{name}: {MARK}"),
            _ => line.to_string(),
        });
        add(format!("--add-header='{}'", shown.collect::<Vec<_>>().join("\\n")));
    }
    if let Some(method) = &o.method {
        add(format!("--method={method}"));
    }
    match &o.work {
        Workload::Sessions(n, calls, think) => add(format!("--wsess={n},{calls},{think:.3}")),
        Workload::SessionLog(n, think, file) => add(format!("--wsesslog={n},{think:.3},{file}")),
        _ => {
            add(format!("--num-conns={}", o.num_conns));
            add(format!("--num-calls={}", o.num_calls));
        }
    }
    if o.burst > 1 {
        add(format!("--burst-length={}", o.burst));
    }
    if let Some((files, rate)) = o.set {
        add(format!("--wset={files},{rate:.3}"));
    }
    out.push('\n');
    out
}

/// A request or a response as --print-request and --print-reply show it.
pub fn marked(side: char, serial: u64, bytes: &[u8], what: Option<&str>) -> String {
    let parts = if side == 'R' { answer_parts(bytes) } else { request_parts(bytes) };
    let head = printable::lossless(&parts.head);
    let mut out = String::new();
    if what != Some("body") {
        for line in head.trim_end_matches("\r\n").split("\r\n") {
            let _ = write!(out, "{side}H{serial}:{line}\r\n");
        }
        let _ = write!(out, "{side}H{serial}:\r\n");
    }
    if what != Some("header") {
        for piece in &parts.pieces {
            for line in printable::lossless(piece).lines() {
                let _ = writeln!(out, "{side}B{serial}:{line}");
            }
        }
    }
    let footer = if side == 'R' { format!(" footer {}", parts.footer_bytes) } else { String::new() };
    let content: usize = parts.pieces.iter().map(Vec::len).sum();
    let _ = writeln!(out, "{side}S{serial}: header {} content {content}{footer}", parts.head.len());
    out
}

/// The complete lines of the head of a response that was cut off.
pub fn begun_head(serial: u64, raw: &[u8], what: Option<&str>) -> String {
    let text = printable::lossless(raw);
    let head = text.find("\r\n\r\n").map_or(text.as_str(), |end| &text[..end + 4]);
    let whole = head.rfind("\r\n").map_or("", |end| &head[..end + 2]);
    if what == Some("body") || !text.starts_with("HTTP/") {
        return String::new();
    }
    whole.split_inclusive("\r\n").map(|line| format!("RH{serial}:{line}")).collect()
}

fn request_parts(bytes: &[u8]) -> AnswerParts {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
    let pieces = if end < bytes.len() { vec![bytes[end..].to_vec()] } else { Vec::new() };
    AnswerParts { head: bytes[..end].to_vec(), pieces, footer_bytes: 0 }
}

/// The median of the connections' times, ms.
fn median_of(t: &HttperfCounts, compatibility: Compatibility) -> f64 {
    // httperf bins connection times by the millisecond and takes the middle of a bin.
    if compatibility.like_the_original && t.lives_counted > 0 {
        (t.lifetime.median() / 1000.0).floor() + 0.5
    } else {
        t.lifetime.median() / 1000.0
    }
}

pub fn report(
    o: &HttperfOptions,
    t: &HttperfCounts,
    finished: &FinishedRun,
    cpu: (f64, f64),
    compatibility: Compatibility,
) -> String {
    let ms = |us: f64| us / 1000.0;
    let span_s = t.start.map_or(0.0, |start| t.end.saturating_sub(start) as f64 / 1e6);
    let rate = |n: u64| if span_s > 0.0 { n as f64 / span_s } else { 0.0 };
    let each = |n: u64| if n > 0 { span_s * 1e3 / n as f64 } else { 0.0 };
    // httperf divides whole numbers of bytes and drops the rest.
    let mean = |sum: u64, n: u64| match n {
        0 => 0.0,
        n if compatibility.like_the_original => (sum / n) as f64,
        n => sum as f64 / n as f64,
    };
    let per_second: Vec<f64> = {
        // Complete intervals only.
        let whole = (span_s * 1e6) as u64 / RATE_INTERVAL_US;
        (0..whole).map(|i| t.samples.get(&i).copied().unwrap_or(0) as f64 / (RATE_INTERVAL_US as f64 / 1e6)).collect()
    };
    let burst = i64::from(t.connections > 1);
    let median = median_of(t, compatibility);
    let errors = &finished.run.generator.connect_errors;
    let of = |words: &str| errors.iter().filter(|(k, _)| k.contains(words)).map(|(_, n)| n).sum::<u64>();
    let (refused, kernel_timeouts) = (of("refused"), of("timed out"));
    let (no_files, no_ports, table_full) =
        (of("Too many open files"), of("Cannot assign"), of("Too many open files in system"));
    let known = refused + kernel_timeouts + no_files + no_ports;
    let other = errors.values().sum::<u64>().saturating_sub(known);
    let total = t.client_timeouts + kernel_timeouts + refused + t.resets + no_files + no_ports + other;
    let (user, system) = cpu;
    let percent = |s: f64| if span_s > 0.0 { 100.0 * s / span_s } else { 0.0 };
    let bytes = t.request_bytes + t.header_bytes + t.content_bytes + t.footer_bytes;
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
         Reply size [B]: header {:.1} content {:.1} footer {:.1} (total {:.1})\n\
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
        finished.run.phases[0].connections.peak,
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
        mean(t.footer_bytes, t.replies),
        mean(t.header_bytes + t.content_bytes + t.footer_bytes, t.replies),
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
        other,
    );
    if matches!(o.work, Workload::Sessions(..) | Workload::SessionLog(..)) {
        out.push_str(&session_block(t, span_s));
    }
    out
}

/// The histogram that a second -v adds: connections by the middle of their millisecond.
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

/// The part of the report about sessions.
fn session_block(t: &HttperfCounts, span_s: f64) -> String {
    let s = &t.sessions;
    let whole = (span_s * 1e6) as u64 / RATE_INTERVAL_US;
    let rates: Vec<f64> = (0..whole).map(|i| s.rates.get(&i).copied().unwrap_or(0) as f64 / 5.0).collect();
    let (min, _, max, spread) = spread_of(&rates);
    let average = if span_s > 0.0 { s.good.count as f64 / span_s } else { 0.0 };
    let longest = s.lengths.keys().last().copied().unwrap_or(0);
    let lengths: Vec<String> = (0..=longest).map(|n| s.lengths.get(&n).copied().unwrap_or(0).to_string()).collect();
    let all = s.count();
    format!(
        "\nSession rate [sess/s]: min {min:.2} avg {average:.2} max {max:.2} stddev {spread:.2} ({}/{all})\n\
         Session: avg {:.2} connections/session\nSession lifetime [s]: {:.1}\nSession failtime [s]: {:.1}\n\
         Session length histogram: {}\n",
        s.good.count,
        s.good.connections as f64 / s.good.count.max(1) as f64,
        s.good.mean_s(),
        s.bad.mean_s(),
        lengths.join(" ")
    )
}

/// Minimum, mean, maximum and standard deviation.
fn spread_of(values: &[f64]) -> (f64, f64, f64, f64) {
    let n = values.len() as f64;
    let mean = if n > 0.0 { values.iter().sum::<f64>() / n } else { 0.0 };
    let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    let deviation = if n > 1.0 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
    let min = values.iter().copied().reduce(f64::min).unwrap_or(0.0);
    (min, mean, values.iter().copied().fold(0.0, f64::max), deviation)
}
