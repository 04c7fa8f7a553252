//! A run as text that can be read aloud.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use lastdrop_model::plan::{BEGIN_TOGETHER, Load, Pace, Phase, ReplaySummary};
use lastdrop_model::printable::line;
use lastdrop_model::request::Pick;
use lastdrop_model::run::{AgentReport, End, PhaseReport, SlowRequest, StartingWorkers};
use lastdrop_model::units::{show_bytes, show_us};
use lastdrop_model::{Kind, Plan, Run, Validity, Verdict};

use crate::anatomy::anatomy_text;
use crate::classes::classes_text;
use crate::html::first;
use crate::mismatch::{different_classes, mismatch_text};
use crate::parts::{joined_text, parts_text};
use crate::server::server_text;
use crate::table::aligned;

/// The summary of a run.
#[must_use]
pub fn run_text(run: &Run) -> String {
    let mut out = first::run(run).line();
    for sentence in different_classes(run) {
        let _ = writeln!(out, "{}", line(&sentence));
    }
    let _ = writeln!(out, "{}   run {}   seed {}", what(run), run.id, run.seed);
    if let Some(agreed) = run.plan.http.agreed {
        let _ = writeln!(out, "HTTP/{} was agreed on before the run (--http auto)", agreed.name());
    }
    // Reports leave out phases that never began; only phases at the end of the plan can be missing.
    for (at, phase) in run.phases.iter().enumerate() {
        let load = run.plan.phases.get(at).map(|p| describe(&run.plan, p)).unwrap_or_default();
        let note = if phase.measured { "" } else { "  (warm-up, not measured)" };
        let _ = writeln!(
            out,
            "\n{}: {load}, keep-alive {}, {:.1} s{note}",
            phase.name, run.plan.keepalive, phase.duration_s
        );
        if phase.measured || run.phases.len() == 1 {
            phase_text(&mut out, phase);
            out.push_str(&parts_text(phase, run.plan.server_time.as_ref()));
            out.push_str(&slowest_text(phase));
        } else {
            let _ = writeln!(out, "  answered {} ({:.1}/s)", phase.requests.answered, phase.rate.answered_rps);
        }
    }
    if let Some(played) = &run.replay {
        played_text(&mut out, played);
    }
    if let Some(log) = &run.joined_log {
        out.push_str(&joined_text(log));
    }
    out.push_str(&anatomy_text(run.anatomy.as_ref()));
    for (error, n) in &run.generator.connect_errors {
        let _ = writeln!(out, "  connect: {n} × {}", line(error));
    }
    for (error, n) in &run.generator.protocol_errors {
        let what = if run.plan.http.is_http2() { "HTTP/2" } else { "not HTTP" };
        let _ = writeln!(out, "  {what}: {n} × {}", line(error));
    }
    if let Some(weak) = &run.generator.unverified {
        let _ = writeln!(out, "  TLS: {}", line(&unverified_text(weak)));
    }
    for (part, n) in worst_parts(run) {
        let _ = writeln!(out, "  incomplete: {n} × {}", line(part));
    }
    generator_text(&mut out, run);
    for agent in &run.agents {
        let _ = writeln!(out, "{}", line(&agent_text(agent)));
    }
    let peak = run.phases.iter().map(|p| p.connections.peak).max().unwrap_or(0);
    let sources = run.plan.network.sources.len().max(1) as u64;
    if run.plan.network.unix_socket.is_none()
        && peak * 2 > run.generator.local_ports * sources
        && run.generator.local_ports > 0
    {
        let _ = writeln!(
            out,
            "local ports: {peak} of the {} that {} for one server; --source with more addresses gives more",
            run.generator.local_ports * sources,
            if sources == 1 { "one source address has".into() } else { format!("{sources} source addresses have") },
        );
    }
    if let Some(server) = &run.server {
        out.push_str(&server_text(server));
    }
    for mark in &run.marks {
        let _ = writeln!(out, "mark at {:.1} s: {}", mark.t_s, line(&mark.text));
    }
    match run.end {
        End::Finished => {}
        End::Interrupted => out.push_str("ended early: interrupted; the numbers are those up to then\n"),
        End::Unreachable => out.push_str("given up: nothing could be connected\n"),
        End::Killed => {
            out.push_str("did not end by itself (killed, or still running); these are the seconds on disk\n")
        }
    }
    for j in &run.objectives {
        let word = if j.met { "met" } else { "MISSED" };
        let _ = writeln!(out, "objective {}: {word}, {} is {}", j.objective, j.objective.what(), j.seen);
    }
    validity_text(&mut out, &run.validity);
    out
}

/// Page parts that are named in a report.
const MOST_PARTS: usize = 5;

/// Returns the page parts that failed most often.
pub(crate) fn worst_parts(run: &Run) -> Vec<(&String, u64)> {
    let mut parts: Vec<(&String, u64)> = run.generator.page_errors.iter().map(|(part, n)| (part, *n)).collect();
    parts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    parts.truncate(MOST_PARTS);
    parts
}

/// The line about one agent's share of a run.
fn agent_text(agent: &AgentReport) -> String {
    let r = &agent.requests;
    let whole = if agent.complete { "" } else { ", NOT COMPLETE" };
    let unsent = if r.unsent > 0 { format!(", {} unsent", r.unsent) } else { String::new() };
    format!(
        "agent {}: {} sent, {} answered{unsent}{whole}; its clock is {:+.1} ms off, ± {:.1} ms",
        agent.name,
        r.sent,
        r.answered,
        agent.offset_us as f64 / 1e3,
        agent.error_us as f64 / 1e3
    )
}

/// Formats milliseconds since 1970 like this: 2026-01-31T23:59:59Z.
#[must_use]
pub fn utc(unix_ms: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(unix_ms)).to_string()
}

/// The target and load that the run was asked for.
pub(crate) fn what(run: &Run) -> String {
    what_of(&run.plan)
}

pub(crate) fn what_of(plan: &Plan) -> String {
    if let Some(replay) = &plan.replay {
        return format!("replay of {} to {}", replay.logs.join(", "), plan.url);
    }
    match plan.requests.as_slice() {
        [] => format!("GET {}", plan.url),
        [one] => format!("{} {}", one.method, one.url),
        [first, more @ ..] => {
            let kind = if plan.pick == Pick::Session { "session of" } else { "mix of" };
            format!("{kind} {} requests: {} {} …", more.len() + 1, first.method, first.url)
        }
    }
}

/// One line about a planned phase.
#[must_use]
pub fn phase_line(plan: &Plan, phase: &Phase) -> String {
    let duration = phase.duration.map_or(String::new(), |d| format!(", {:.1} s", d.as_secs_f64()));
    let requests = phase.requests.map_or(String::new(), |n| format!(", {n} requests"));
    let note = if phase.measured { "" } else { " (warm-up, not measured)" };
    let load = describe(plan, phase);
    format!("{}: {load}, keep-alive {}{duration}{requests}{note}\n", phase.name, plan.keepalive)
}

pub(crate) fn describe(plan: &Plan, phase: &Phase) -> String {
    match (plan.replay.as_ref().map(|r| &r.pace), &phase.load) {
        (Some(Pace::Original { speed }), Load::Open { connections, .. }) => {
            let speed = if *speed == 1.0 { "as it came".into() } else { format!("at {speed} × its speed") };
            format!("{speed}, over at most {connections} connections")
        }
        (Some(Pace::Sessions { by }), _) => format!("{} as the sessions of its users (by {by})", describe_load(phase)),
        _ if plan.http.is_http2() => describe_shared(plan, phase),
        _ => describe_load(phase),
    }
}

/// Over HTTP/2 users, connections and streams are three numbers.
fn describe_shared(plan: &Plan, phase: &Phase) -> String {
    let streams = format!("each with at most {} streams (HTTP/2)", plan.http.most_streams());
    let is_session = matches!(plan.pick, Pick::Session | Pick::Sessions);
    match &phase.load {
        Load::Closed { connections: None, .. } if is_session => {
            format!("{}, each with a connection of its own to each server (HTTP/2)", describe_load(phase))
        }
        Load::Open { .. } if is_session => {
            format!("{}, each user with a connection of its own (HTTP/2)", describe_load(phase))
        }
        Load::Closed { connections: None, .. } => {
            format!("{} over as few connections as they fill, {streams}", describe_load(phase))
        }
        _ => format!("{}, {streams}", describe_load(phase)),
    }
}

pub(crate) fn describe_load(phase: &Phase) -> String {
    match &phase.load {
        Load::Closed { users, to_users, connections } => {
            let who = match to_users {
                Some(to) => format!("{users} to {to} users"),
                None if *users > BEGIN_TOGETHER => format!("{users} users, who begin over the first second"),
                None => format!("{users} user{}", if *users == 1 { "" } else { "s" }),
            };
            who + &connections.map_or(String::new(), |n| format!(" over at most {n} connections"))
        }
        Load::Open { rate_rps, to_rps, steps, arrivals, burst, connections } => {
            let rate = match (to_rps, steps) {
                (Some(to), Some(steps)) => format!("{rate_rps} to {to} requests/s in {steps} steps"),
                (Some(to), None) => format!("{rate_rps} to {to} requests/s"),
                _ => format!("{} requests/s", (rate_rps * 1e3).round() / 1e3),
            };
            let burst = if *burst > 1 { format!(" in bursts of {burst}") } else { String::new() };
            format!("{rate}{burst}, {arrivals}, over at most {connections} connections")
        }
    }
}

/// Says that the server's certificate was not verified, and what a verifying client would object to.
#[must_use]
pub fn unverified_text(weak: &[String]) -> String {
    let but = if weak.is_empty() { String::new() } else { format!("; it {}", weak.join(", ")) };
    format!("the server's certificate was not verified (--insecure){but}")
}

/// What the load and the servers' processors took.
fn generator_text(out: &mut String, run: &Run) {
    let g = &run.generator;
    // Memory is unknown if /proc is not mounted.
    let memory = match g.peak_rss_bytes {
        0 => String::new(),
        bytes => format!(", {} memory", show_bytes(bytes)),
    };
    let _ = writeln!(
        out,
        "\ngenerator: {:.1} µs CPU a request, busiest thread {:.0} % of a core{memory}",
        g.cpu_us_per_request,
        g.busiest_thread_cores * 100.0,
    );
    if let Some(cpu) = run.measured().and_then(|phase| phase.server_cpu).filter(|cpu| cpu.us_per_request > 0.0) {
        let _ = writeln!(
            out,
            "CPU per request: {} (processor time of the server and all that it talks to here)",
            show_us(cpu.us_per_request)
        );
        if let Some(StartingWorkers { workers, cpu_s, settled }) = cpu.starting {
            let processes = if workers == 1 { "1 process".into() } else { format!("{workers} processes") };
            let _ = match settled {
                true => {
                    writeln!(out, "  without {} of {processes} that had served nothing before", show_us(cpu_s * 1e6))
                }
                false => writeln!(
                    out,
                    "  {processes} had served nothing before, and too little was answered after their first requests to leave those out: run again, or longer, or with --warm-up 30s"
                ),
            };
        }
    }
}

/// The slowest requests with the traces that they began, to be looked up where the server's spans are kept.
fn slowest_text(phase: &PhaseReport) -> String {
    let row = |slow: &SlowRequest| {
        let end = slow.status.map_or_else(|| "timed out".into(), |status| status.to_string());
        let class = slow.class.as_deref().map_or_else(String::new, |class| format!("  {}", line(class)));
        let SlowRequest { trace, response_us, second, .. } = slow;
        format!("  trace {trace}  {:>9}  {end}  in second {second}{class}\n", show_us(*response_us as f64))
    };
    let rows: String = phase.slowest.iter().map(row).collect();
    if rows.is_empty() { rows } else { format!("  slowest:\n{rows}") }
}

fn phase_text(out: &mut String, p: &PhaseReport) {
    let r = &p.requests;
    let statuses: Vec<String> = p.status.iter().map(|(code, n)| format!("{n} × {code}")).collect();
    let _ = writeln!(out, "  answered   {:>10}   {:.1}/s   {}", r.answered, p.rate.answered_rps, statuses.join(", "));
    let mut bad = Vec::new();
    for (n, what) in [
        (r.failed.connect, "could not connect"),
        (r.failed.reset, "reset"),
        (r.failed.closed, "closed without an answer"),
        (r.failed.protocol, "not HTTP"),
        (r.failed.refused, "refused by the server"),
        (r.timed_out, "timed out"),
        (r.censored, "in flight at the end"),
        (r.unsent, "never sent"),
    ] {
        if n > 0 {
            bad.push(format!("{n} {what}"));
        }
    }
    let unanswered = r.due - r.answered.min(r.due);
    if unanswered > 0 {
        let share = p.unanswered_share() * 100.0;
        let _ = writeln!(out, "  unanswered {unanswered:>10}   {share:.2} %: {}", bad.join(", "));
    }
    if p.connections.goaway + p.connections.sent_again > 0 {
        let _ = writeln!(
            out,
            "  GOAWAY     {:>10}   connections ended by the server; {} requests sent again that it had not processed",
            p.connections.goaway, p.connections.sent_again
        );
    }
    if p.connections.lost_on_reuse > 0 {
        let _ = writeln!(
            out,
            "  {} of them on a kept connection that the server had let go of",
            p.connections.lost_on_reuse
        );
    }
    if p.expectations.missed > 0 {
        let _ = writeln!(out, "  missed     {:>10}   answers are not what was expected", p.expectations.missed);
    }
    out.push_str(&mismatch_text(p));
    followed_text(out, p);
    received_text(out, p);
    latencies_text(out, p);
    out.push_str(&classes_text(p));
}

/// Pages, redirects and challenges, and what was left out of them.
fn followed_text(out: &mut String, p: &PhaseReport) {
    let (pages, f) = (&p.pages, &p.followed);
    if pages.loaded + pages.failed > 0 {
        let failed = if pages.failed > 0 { format!(", {} incomplete", pages.failed) } else { String::new() };
        let _ = writeln!(out, "  pages      {:>10}   loaded with all that they embed{failed}", pages.loaded);
    }
    if f.redirects + f.challenges > 0 {
        let _ = writeln!(
            out,
            "  followed   {:>10}   {} redirects, {} challenges; each is a request of its own",
            f.redirects + f.challenges,
            f.redirects,
            f.challenges
        );
    }
    let not_followed: Vec<String> = [
        (f.elsewhere, "on hosts that the plan does not name"),
        (f.unusable, "no URL that can be loaded"),
        (f.left_out, "beyond the bounds of redirects and pages"),
    ]
    .iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, what)| format!("{n} {what}"))
    .collect();
    if !not_followed.is_empty() {
        let all = f.elsewhere + f.unusable + f.left_out;
        let _ = writeln!(out, "  left out   {all:>10}   redirects and parts of pages: {}", not_followed.join(", "));
    }
}

fn received_text(out: &mut String, p: &PhaseReport) {
    let decoded = match (p.bytes.coded, p.bytes.decoded) {
        (_, 0) => String::new(),
        // Runs stored by older versions have the decoded size only.
        (0, out) => format!(" (compressed bodies became {})", show_bytes(out)),
        (coded, out) => format!(" ({} of it compressed, {} decoded)", show_bytes(coded), show_bytes(out)),
    };
    let handshakes = match (p.connections.handshakes_full, p.connections.handshakes_resumed) {
        (0, 0) => String::new(),
        (full, resumed) => format!(", TLS handshakes: {full} full, {resumed} resumed"),
    };
    let _ = writeln!(
        out,
        "  received   {:>10}{decoded}   over {} connection{}{handshakes}",
        show_bytes(p.bytes.received),
        p.connections.opened,
        if p.connections.opened == 1 { "" } else { "s" },
    );
}

/// A table of the latencies by kind.
fn latencies_text(out: &mut String, p: &PhaseReport) {
    let mut rows = Vec::new();
    for (kind, name) in [
        (Kind::Response, "response"),
        (Kind::Service, "service"),
        (Kind::Blocked, "blocked"),
        (Kind::Lateness, "lateness"),
        (Kind::Connect, "connect"),
        (Kind::Tls, "TLS"),
        (Kind::Page, "page"),
        (Kind::Link, "link"),
        (Kind::Queue, "queue"),
        (Kind::Server, "server"),
        (Kind::Upstream, "upstream"),
        (Kind::Transfer, "transfer"),
    ] {
        if p.latency(kind, "count").is_none() {
            continue;
        }
        let mut row = vec![name.to_string()];
        for field in ["mean", "p50", "p90", "p99", "p99_9", "max"] {
            let value = show_us(p.latency(kind, field).unwrap_or(0.0));
            let bound = kind == Kind::Response && p.is_lower_bound(field);
            row.push(if bound { format!("≥{value}") } else { value });
        }
        rows.push(row);
    }
    if !rows.is_empty() {
        let _ = write!(out, "\n{}", aligned(&["latency", "mean", "p50", "p90", "p99", "p99.9", "max"], &rows));
    }
}

fn played_text(out: &mut String, p: &ReplaySummary) {
    let _ = writeln!(out, "\n  log        {:>10}   requests in {} lines", p.requests, p.lines);
    for (n, what) in [
        (p.unparsed, "lines are not understood"),
        (p.skipped, "requests before the place to begin"),
        (p.unsafe_left_out, "requests that may change something were left out (--unsafe sends them)"),
        (p.unusable, "requests cannot be sent: no method, or no target"),
        (p.late, "requests out of order by more than the window (--window) were sent at once"),
    ] {
        if n > 0 {
            let _ = writeln!(out, "             {n:>10}   {what}");
        }
    }
    for line_of in &p.rejected {
        let _ = writeln!(out, "    {}", line(line_of));
    }
    let _ = writeln!(out, "  to go on where this ended: --from {}", p.next);
}

fn validity_text(out: &mut String, v: &Validity) {
    if v.verdict == Verdict::Valid {
        return;
    }
    let word = if v.verdict == Verdict::Invalid { "INVALID, do not use these numbers" } else { "doubtful" };
    let _ = writeln!(out, "{word}:");
    for r in &v.reasons {
        let _ = writeln!(out, "  {}; {}", r.what, r.advice);
    }
}

/// The numbers in a list of runs: answers per second, p99 (microseconds), requests without an answer.
#[must_use]
pub fn listed_numbers(answered_rps: f64, p99_us: Option<f64>, unanswered: u64) -> [String; 3] {
    [format!("{answered_rps:.1}"), p99_us.map_or("–".into(), show_us), unanswered.to_string()]
}

/// The load of a run, short enough for a list.
#[must_use]
pub fn listed_load(plan: &Plan) -> String {
    plan.phases.iter().find(|p| p.measured).map(describe_load).unwrap_or_default()
}

/// One line of the history.
#[must_use]
pub fn history_line(id: &str, started_unix_ms: u64, label: &str, url: &str, run: Option<&Run>) -> Vec<String> {
    let when = utc(started_unix_ms);
    let when = when.replace('T', " ");
    let mut cells = vec![id.to_string(), when.trim_end_matches('Z').to_string()];
    match run.and_then(Run::measured) {
        Some(p) => {
            let unanswered = p.requests.due - p.requests.answered.min(p.requests.due);
            cells.extend(listed_numbers(p.rate.answered_rps, p.latency(Kind::Response, "p99"), unanswered));
        }
        None => cells.extend(["–".to_string(), "–".to_string(), "–".to_string()]),
    }
    let how = run.map_or("unfinished".to_string(), |run| listed_load(&run.plan));
    cells.push(how);
    cells.push(if label.is_empty() { url.to_string() } else { format!("{url} ({label})") });
    cells
}
