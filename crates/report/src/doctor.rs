//! The result of `doctor`, as text for a reader in a hurry.

use std::fmt::Write as _;

use lastdrop_model::documents::{CacheTrial, DoctorDocument, Evidence, Finding, Fix, Severity};
use lastdrop_model::examination::{Examination, ExaminationStep, StepKind};
use lastdrop_model::printable;
use lastdrop_model::units::show_us;
use serde_json::Value;

use crate::anatomy;
use crate::nodes::differing_lines;
use crate::size::advice_text;
use crate::table::aligned;

/// Wastes and risks that get a line each unless `--all` is given.
const TOLD: usize = 10;

/// The report of `doctor`.
#[must_use]
pub fn doctor_text(d: &DoctorDocument, all: bool) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}\n", d.url);
    match d.findings.iter().find(|f| f.severity == Severity::Limit) {
        Some(limit) => {
            let _ =
                writeln!(out, "LIMIT  {}   ({}, confidence {:.0} %)", limit.title, limit.id, limit.confidence * 100.0);
            out.push_str(&whole(limit));
        }
        None if d.examination.main().is_none() && !d.examination.has_lost_main() => {
            out.push_str("NOTHING WAS MEASURED\n")
        }
        None => match d.undecided() {
            Some(why) => drop(writeln!(out, "NOTHING IS CONCLUDED  {why}")),
            None => out.push_str("NO LIMIT  nothing holds the server back under this load\n"),
        },
    }
    for pair in &d.cannot_tell {
        let _ = writeln!(
            out,
            "  cannot tell {} from {}: lastdrop doctor --explain {} says what would",
            pair[0], pair[1], pair[1]
        );
    }
    let rest: Vec<&Finding> = d.findings.iter().filter(|f| f.severity != Severity::Limit).collect();
    if all {
        for finding in &rest {
            let _ = writeln!(out, "\n{:<6} {}   ({})", word(finding), finding.title, finding.id);
            out.push_str(&whole(finding));
        }
    } else if !rest.is_empty() {
        out.push('\n');
        rest.iter().take(TOLD).for_each(|finding| out.push_str(&line(finding)));
        let more = if rest.len() > TOLD { format!("{} more, ", rest.len() - TOLD) } else { String::new() };
        let _ = writeln!(out, "{more}how each is known, and what to do: --all");
    }
    if let Some(c) = &d.confirmed {
        let came = match () {
            () if c.is_refuted() => "REFUTED",
            () if c.interval[0] > 1.0 => "CONFIRMED",
            () => "TRIED",
        };
        // If that finding was withdrawn, the limit printed above is a different one.
        let _ = writeln!(
            out,
            "\n{came}  the change for {} gives {:.2} times the throughput (between {:.2} and {:.2}); the limit is {} then{}",
            c.id,
            c.ratio,
            c.interval[0],
            c.interval[1],
            c.limit_after.as_deref().unwrap_or("none"),
            if c.kept { "; it is kept" } else { "; it was put back" }
        );
    }
    out.push_str(&slow_requests(d, all));
    out.push_str(&d.cache.as_ref().map_or_else(String::new, cache_text));
    if let Some(advice) = &d.workers_advice {
        let _ = write!(out, "\n{}: {}", advice.server, advice_text(advice));
    }
    out.push_str(&chain(d));
    for line in differing_lines(&d.differs) {
        let _ = writeln!(out, "{line}");
    }
    out.push_str(&steps(&d.examination.steps));
    for note in &d.notes {
        let _ = writeln!(out, "note: {note}");
    }
    for unseen in &d.unseen {
        let _ = writeln!(out, "not seen: {unseen}");
    }
    if d.interrupted {
        out.push_str("stopped before all experiments were made\n");
    }
    let machine =
        machine(&d.examination).map_or("the machine's processors".into(), |whose| format!("the processors of {whose}"));
    let took = d.cost_cores * 100.0 / d.examination.processors.max(1) as f64;
    let _ = writeln!(out, "looking took {took:.2} % of {machine}");
    out
}

/// What makes slow requests slow under the load that was asked about; with `all`, place by place.
fn slow_requests(d: &DoctorDocument, all: bool) -> String {
    let anatomy = d.examination.main().and_then(|step| step.anatomy.as_ref());
    let Some((anatomy, said)) = anatomy.and_then(|a| Some((a, anatomy::sentence(a)?))) else { return String::new() };
    let table = if all { anatomy::anatomy_text(Some(anatomy)) } else { String::new() };
    format!("\nSLOW REQUESTS  {}\n{table}", printable::line(&said))
}

/// What a cache on trial brought, or why it was not measured; and the lines that would keep it.
fn cache_text(c: &CacheTrial) -> String {
    let mut out = String::new();
    let pages = c.pages.join(", ");
    let same = format!("{} answers compared with those of the server without it", c.compared);
    match &c.difference {
        Some(difference) => {
            let _ = writeln!(
                out,
                "\nNO CACHE  on {} for {pages}: an answer would be another one\n  {difference}\n  {same}; it was put back",
                c.server
            );
            return out;
        }
        None if c.ratio <= 0.0 => {
            let _ =
                writeln!(out, "\nNO CACHE  on {} for {pages}: it was not measured; {same}; it was put back", c.server);
            return out;
        }
        None => {}
    }
    let _ = writeln!(
        out,
        "\n{}  a cache on {} for {pages} gives {:.2} times the throughput (between {:.2} and {:.2}), promised {:.2}; it {}",
        if c.interval[0] > 1.0 { "CONFIRMED" } else { "TRIED" },
        c.server,
        c.ratio,
        c.interval[0],
        c.interval[1],
        c.promised,
        if c.kept { "is kept" } else { "was put back" }
    );
    let _ = writeln!(out, "  safe       {same}, all the same");
    let shared = if c.kept { c.shared.join(", ") } else { pages };
    // Apache answers HEAD itself, and nothing bounds its folder but the number of pages.
    let methods = if c.kind == "apache" { "GET" } else { "GET and HEAD" };
    let queries = if c.kind == "apache" && c.kept { "without a query" } else { "with any query" };
    let _ = writeln!(
        out,
        "  shared     {methods} of {shared} {queries}, for {} s, among all who send neither Cookie nor Authorization; not what sets a cookie, or is private or no-store",
        c.lifetime_s
    );
    if c.kept {
        out.push_str("  undo       lastdrop restore takes it away and empties its folder\n");
    }
    let place = if c.kind == "nginx" { "http of " } else { "the configuration of " };
    let _ = writeln!(out, "  {} in {place}{}:", if c.kept { "kept      " } else { "to keep it" }, c.server);
    for line in &c.lines {
        let _ = writeln!(out, "    {line}");
    }
    out
}

/// Names the machine that was examined if it is not the local one, or the number of machines.
pub(crate) fn machine(examination: &Examination) -> Option<String> {
    Some(match (examination.machine.as_str(), examination.nodes.len()) {
        ("", _) => return None,
        (agents, 2..) => format!("the machines of {agents}, where the servers were looked at"),
        (agent, _) => format!("agent {agent}'s machine, where the servers were looked at"),
    })
}

/// One line about a limit, for commands other than `doctor`.
#[must_use]
pub fn limit_line(limit: &Finding) -> String {
    let known =
        limit.evidence.iter().find(|e| e.speaks()).map_or_else(String::new, |e| format!("; {}", evidence_text(e)));
    format!("limit: {} ({}{known})\n", limit.title, limit.id)
}

fn word(f: &Finding) -> &'static str {
    match f.severity {
        Severity::Limit => "LIMIT",
        Severity::Waste => "WASTE",
        Severity::Risk => "RISK",
    }
}

/// One line about a finding, with its first fix if it has one.
fn line(f: &Finding) -> String {
    let fix = f.fix.first().map_or_else(String::new, |fix| format!(": {}", from_to(fix, &f.server)));
    let brings = f
        .expect
        .as_ref()
        .filter(|e| e.ratio > 1.0 || f.severity == Severity::Waste)
        .map_or_else(String::new, |e| format!(", expected × {:.2}", e.ratio));
    format!("{:<6} {}{fix}{brings}   ({})\n", word(f), f.title, f.id)
}

/// A finding in full: evidence, fixes, expected effect, and how to check it.
fn whole(f: &Finding) -> String {
    let mut out = String::new();
    // At most four numbers: the decisive ones come first, and few readers look at more.
    for evidence in f.evidence.iter().filter(|e| e.speaks()).take(4) {
        let _ = writeln!(out, "  known by   {}", evidence_text(evidence));
    }
    for against in f.against.iter().take(1) {
        let _ = writeln!(out, "  not seen   {against}");
    }
    for fix in &f.fix {
        let _ = writeln!(out, "  change     {}", change(fix, &f.server));
    }
    if !f.advice.is_empty() {
        let word = if f.fix.is_empty() { "do" } else { "also" };
        let _ = writeln!(out, "  {word:<10} {}", f.advice);
    }
    if let Some(e) = &f.expect {
        let between = e.interval.map_or_else(String::new, |[low, high]| format!(" (between {low:.2} and {high:.2})"));
        let _ = writeln!(out, "  should be  {:.2} times the throughput{between}: {}", e.ratio, e.reason);
    }
    if !f.check.is_empty() {
        let _ = writeln!(out, "  check      {}", f.check);
    }
    out
}

fn evidence_text(e: &Evidence) -> String {
    let value = number(&e.value);
    let worth = match &e.threshold {
        Value::Null => String::new(),
        Value::Number(n) if n.as_f64() == Some(0.0) => String::new(),
        Value::String(reason) if reason.is_empty() => String::new(),
        // Without a numeric threshold, print the reason why the evidence counts.
        Value::String(reason) => format!(" ({reason})"),
        threshold => format!(" (from {})", number(threshold)),
    };
    format!("{}: {value}{worth}   [{}]", e.name, e.source)
}

pub(crate) fn number(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Number(n) => {
            let n = n.as_f64().unwrap_or(0.0);
            if n.fract() == 0.0 { format!("{n:.0}") } else { format!("{n:.2}") }
        }
        Value::Null => "not set".into(),
        other => other.to_string(),
    }
}

/// A fix of a finding about this server, with the file or place where it is made.
pub(crate) fn change(fix: &Fix, server: &str) -> String {
    let place = if fix.place.is_empty() { String::new() } else { format!(", {}", fix.place) };
    format!("{}   ({}{place})", from_to(fix, server), fix.needs)
}

/// The setting, its present value and the suggested value.
fn from_to(fix: &Fix, server: &str) -> String {
    let of = if fix.server.is_empty() || fix.server == server { String::new() } else { format!("{}: ", fix.server) };
    format!("{of}{} {} → {}", fix.knob, number(&fix.from), number(&fix.to))
}

fn chain(d: &DoctorDocument) -> String {
    let mut out = String::from("\n");
    for link in &d.chain {
        let to: Vec<String> = link.connects.iter().zip(&link.to).map(|(via, to)| format!("{to} ({via})")).collect();
        let to = if to.is_empty() { String::new() } else { format!(" → {}", to.join(", ")) };
        let _ = writeln!(out, "{}{to}", link.server);
    }
    out
}

fn steps(steps: &[ExaminationStep]) -> String {
    let rows: Vec<Vec<String>> = steps
        .iter()
        .filter(|s| s.kind != StepKind::Inside)
        .map(|s| {
            let load = match s.kind {
                StepKind::Observed => "watched".to_string(),
                _ if s.users == 0 => format!("{:.0}/s", s.rate_rps),
                _ => format!("{}", s.users),
            };
            // Keep-alive has its own column.
            let load = match s.kind.difference().filter(|_| s.kind != StepKind::OtherKeepalive) {
                Some(difference) => format!("{load}, {difference}"),
                None => load,
            };
            let load = if s.is_whole() { load } else { format!("{load} (lost {})", s.lost.join(", ")) };
            let time = |us: f64| if us > 0.0 { show_us(us) } else { "–".into() };
            vec![
                load,
                if s.keepalive { "on" } else { "off" }.into(),
                format!("{:.1}", s.answered_rps),
                time(s.response.mean),
                time(s.response.p99),
                s.unanswered().to_string(),
                if s.cores.is_empty() { "–".into() } else { format!("{:.0} %", s.busy(&[]) * 100.0) },
                s.cpu_per_request_s().map_or_else(
                    || "–".into(),
                    |each| {
                        let starts = if s.starting { ", workers started" } else { "" };
                        format!("{}{starts}", show_us(each * 1e6))
                    },
                ),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "\n{}",
        aligned(&["users", "keep-alive", "answered/s", "mean", "p99", "unanswered", "CPU", "CPU per request"], &rows)
    )
}

/// The list of all findings.
#[must_use]
pub fn doctor_list<'a>(all: impl Iterator<Item = (&'a str, Severity, &'a str)>) -> String {
    let word = |s: Severity| match s {
        Severity::Limit => "limit",
        Severity::Waste => "waste",
        Severity::Risk => "risk",
    };
    let rows: Vec<Vec<String>> = all.map(|(id, s, what)| vec![id.into(), word(s).into(), what.into()]).collect();
    aligned(&["finding", "kind", "what is wrong"], &rows)
}

/// The background of one finding, for `--explain`.
#[must_use]
pub fn explain_text(id: &str, severity: Severity, what: &str, decides: &str, unlike: &str) -> String {
    let means = match severity {
        Severity::Limit => "a limit: it bounds throughput now",
        Severity::Waste => "a waste: it costs without being the bound",
        Severity::Risk => "a risk: it will bite",
    };
    format!("{id}: {what}\n\n  {means}\n  decided by    {decides}\n  looks like    {unlike}\n")
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::Confirmation;
    use serde_json::json;

    use super::*;

    fn known(value: Value, threshold: Value) -> Evidence {
        Evidence { source: "load".into(), name: "connections a request".into(), value, threshold }
    }

    #[test]
    fn wastes_and_risks_are_a_line_each_unless_all_are_wanted() {
        let waste = Finding {
            id: "keepalive-off".into(),
            severity: Severity::Waste,
            title: "the server closes each connection".into(),
            server: "apache".into(),
            evidence: vec![known(json!(1.0), json!(0.5))],
            fix: vec![Fix {
                server: "apache".into(),
                knob: "KeepAlive".into(),
                from: json!("Off"),
                to: json!("On"),
                needs: "reload".into(),
                place: "apache2.conf:7".into(),
            }],
            ..Finding::default()
        };
        let document = DoctorDocument { findings: vec![waste; 12], ..DoctorDocument::default() };
        let (short, long) = (doctor_text(&document, false), doctor_text(&document, true));
        let line = "WASTE  the server closes each connection: KeepAlive Off → On   (keepalive-off)\n";
        assert!(short.contains(&format!("\n\n{line}{line}")) && short.matches(line).count() == 10, "{short}");
        assert!(short.contains("\n2 more, how each is known, and what to do: --all\n"), "{short}");
        assert!(!short.contains("known by") && !short.contains("apache2.conf"), "{short}");
        assert_eq!(long.matches("  change     KeepAlive Off → On   (reload, apache2.conf:7)\n").count(), 12, "{long}");
        assert!(long.matches("known by").count() == 12 && !long.contains("--all"), "{long}");
    }

    #[test]
    fn a_change_is_called_confirmed_only_where_it_helped() {
        let cases = [(1.2, 1.9, "CONFIRMED"), (0.9, 1.3, "TRIED"), (0.9, 1.01, "REFUTED"), (1.01, 1.04, "REFUTED")];
        for (low, high, word) in cases {
            let confirmed = Confirmation {
                id: "a-limit".into(),
                ratio: (low + high) / 2.0,
                interval: [low, high],
                ..Confirmation::default()
            };
            let document = DoctorDocument { confirmed: Some(confirmed), ..DoctorDocument::default() };
            let text = doctor_text(&document, false);
            assert!(text.contains(&format!("\n{word}  the change for a-limit gives")), "{word}: {text}");
        }
    }

    #[test]
    fn a_threshold_in_words_is_a_reason() {
        assert_eq!(evidence_text(&known(json!(3), json!(2))), "connections a request: 3 (from 2)   [load]");
        assert_eq!(
            evidence_text(&known(json!(3), json!("more than users"))),
            "connections a request: 3 (more than users)   [load]"
        );
        assert_eq!(evidence_text(&known(json!(3), json!(""))), "connections a request: 3   [load]");
    }
}
