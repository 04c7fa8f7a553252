//! The section of a run: verdict, answers over time with the server below, latencies, requests by class.

use lastdrop_model::request::{Expectation, Pick};
use lastdrop_model::run::{Anatomy, ClassReport, End, PhaseReport};
use lastdrop_model::units::{show_bytes, show_us};
use lastdrop_model::{Classes, Kind, Run, Verdict};
use maud::{Markup, html};

use super::bins::{Bin, Bins, asked};
use super::classes::classes;
use super::heatmap::heat_map;
use super::number::{Unit, count, grouped, seconds, share};
use super::page::Section;
use super::percentiles::percentile_curve;
use super::server::server;
use super::table::{NOTES, Table};
use super::text::block;
use super::timeplot::{Clock, Plots, Series, TimePlot};
use super::verdict::{Headline, Tone};
use crate::anatomy;
use crate::mismatch::{different_classes, headline};
use crate::run::{describe, run_text, utc, what, worst_parts};

/// Kinds of latency in the order in which a request passes them, with their names and meaning for readers.
const KINDS: [(Kind, &str, &str); 13] = [
    (Kind::Response, "response", "from when it was due to its end: what a person waits"),
    (Kind::Service, "service", "from when it was sent to its end"),
    (Kind::Blocked, "blocked", "until a connection was free"),
    (Kind::Lateness, "lateness", "until we sent it: our own fault"),
    (Kind::Connect, "connect", "to open a connection"),
    (Kind::Tls, "TLS", "to open it and shake hands"),
    (Kind::FirstByte, "first byte", "from when it was sent to the first byte"),
    (Kind::Page, "page", "with all that it embeds"),
    (Kind::Link, "link", "on the way there and back"),
    (Kind::Queue, "queue", "before the server began"),
    (Kind::Server, "server", "in the server, by its own word"),
    (Kind::Upstream, "upstream", "of that, for a server behind it"),
    (Kind::Transfer, "transfer", "from the first byte to the last"),
];

pub(super) fn section(run: &Run, plots: &mut Plots) -> Section {
    let bins = Bins::of(run);
    let clock = clock(run, &bins);
    let body = html! {
        (verdict(run).shown())
        (reasons(run))
        (objectives(run))
        @if run.phases.len() > 1 { (phases(run)) }
        h2.group { "Over time" }
        div.stack { (answers(run, &bins, &clock, plots)) (latency(&bins, &clock, plots)) }
        @if let Some(observed) = &run.server { (server(observed, &bins, &clock, plots)) }
        h2.group { "How long answers took" }
        (heat_map(&bins))
        div.pair {
            (curve(&bins))
            @if let Some(phase) = run.measured() { div.beside { (ends(run, phase)) } }
        }
        (kinds(run))
        @if let Some(anatomy) = &run.anatomy { (anatomy_table(anatomy)) }
        @if let Some(phase) = run.measured() { (classes(phase)) }
        (small_print(run))
    };
    Section { title: what(run), about: about(run), body }
}

fn about(run: &Run) -> Vec<String> {
    let mut about = vec![format!("{} UTC", utc(run.started_unix_ms).replace('T', " ").trim_end_matches('Z'))];
    about.extend(run.plan.phases.iter().find(|p| p.measured).map(|p| describe(&run.plan, p)));
    about.push(format!("keep-alive {}", run.plan.keepalive));
    about.push(format!("run {}", run.id));
    if !run.label.is_empty() {
        about.push(run.label.clone());
    }
    about
}

/// The headline and main numbers of a run.
pub(crate) fn verdict(run: &Run) -> Headline {
    let Some(p) = run.measured().or(run.phases.first()).filter(|_| run.answered_anything()) else {
        let mut told =
            Headline::new(Tone::Bad, "Nothing was answered: there is nothing to say about how fast the server is.");
        told.sentences.extend(run.generator.connect_errors.iter().map(|(why, n)| format!("{} × {why}", count(*n))));
        return told;
    };
    let r = &p.requests;
    let bad_status = unexpected_errors(run, p);
    let different = different_classes(run);
    let missed: Vec<_> = run.objectives.iter().filter(|j| !j.met).collect();
    let unanswered = r.due - r.answered.min(r.due);
    let mut told = if run.validity.verdict == Verdict::Invalid {
        Headline::new(Tone::Bad, "These numbers cannot be used: the measurement itself went wrong.")
    } else if let Some(first) = missed.first() {
        Headline::new(
            Tone::Bad,
            format!(
                "It misses what was asked of it: {}, but {} is {}.",
                first.objective,
                first.objective.what(),
                first.seen
            ),
        )
    } else if let Some(headline) = headline(run) {
        Headline::new(Tone::Warning, headline)
    } else if unanswered > 0 {
        let share = share(p.unanswered_share());
        Headline::new(
            Tone::Warning,
            format!("{share} of the requests got no answer ({} of {}).", count(unanswered), count(r.due)),
        )
    } else if let Some(headline) = incomplete_pages(run, p) {
        Headline::new(Tone::Warning, headline)
    } else if p.expectations.missed > 0 {
        Headline::new(
            Tone::Warning,
            format!(
                "{} of {} answers are not what was expected: not all of the work was done.",
                count(p.expectations.missed),
                count(r.answered)
            ),
        )
    } else if bad_status > 0 {
        let of = share(bad_status as f64 / r.answered.max(1) as f64);
        Headline::new(
            Tone::Warning,
            format!(
                "Every request was answered, but {of} of the answers say that something is wrong (status 400 and up)."
            ),
        )
    } else if let Some(first) = run.generator.doubted().first() {
        Headline::new(
            Tone::Warning,
            format!("Every request was answered, but {first}: not all of the work may have been done."),
        )
    } else if !run.objectives.is_empty() {
        Headline::new(Tone::Good, "It does what was asked of it, and every request was answered.")
    } else {
        Headline::new(Tone::Good, "Every request was answered.")
    };
    different.into_iter().for_each(|sentence| told.say(sentence));
    let at = |field: &str| p.latency(Kind::Response, field);
    // The latency of requests without an answer is unknown, so some percentiles are bounds.
    let bound = |field: &str| if p.is_lower_bound(field) { "at least" } else { "at most" };
    if let (Some(p50), Some(p99), Some(max)) = (at("p50"), at("p99"), at("max")) {
        told.say(format!(
            "{} answers a second for {}. Half of them took {} {}, 99 of 100 {} {}, the slowest {}.",
            grouped(p.rate.answered_rps),
            seconds(p.duration_s),
            bound("p50"),
            show_us(p50),
            bound("p99"),
            show_us(p99),
            show_us(max)
        ));
    }
    if run.validity.verdict == Verdict::Doubtful {
        told.say("Read the numbers with care: the reasons stand below.");
    }
    match run.end {
        End::Finished => {}
        End::Interrupted => told.say("It was interrupted; the numbers are those up to then."),
        End::Unreachable => told.say("It was given up because nothing could be connected."),
        End::Killed => told.say("It did not end by itself; the numbers are those of the seconds that were kept."),
    }
    told.number(Unit::Rate.show(p.rate.answered_rps), "answered");
    for (field, name) in [("p50", "half within"), ("p99", "99 of 100 within"), ("max", "slowest")] {
        if let Some(us) = at(field) {
            let mark = if p.is_lower_bound(field) { "≥ " } else { "" };
            told.number(format!("{mark}{}", show_us(us)), name);
        }
    }
    told.number(share(p.unanswered_share()), "without an answer");
    told.number(count(r.answered), "answers");
    told
}

/// Names the page part that failed most often, if one did. A page cut off by the end of the run does not
/// count as incomplete.
fn incomplete_pages(run: &Run, p: &PhaseReport) -> Option<String> {
    let (part, n) = worst_parts(run).into_iter().next()?;
    let all = p.pages.loaded + p.pages.failed;
    Some(format!("Parts of the {} pages are missing, above all: {} × {part}", count(all), count(n)))
}

/// Counts answers with status 400 and above that neither the plan nor a replayed log expects.
fn unexpected_errors(run: &Run, p: &PhaseReport) -> u64 {
    if p.mismatch.as_ref().is_some_and(|m| m.compared > 0) {
        return 0;
    }
    let errors = |status: &std::collections::BTreeMap<String, u64>| -> u64 {
        status.iter().filter(|(s, _)| s.starts_with(['4', '5'])).map(|(_, n)| n).sum()
    };
    let all = errors(&p.status);
    if all == 0 || p.classes.is_empty() {
        return all;
    }
    let classes = Classes::of(&run.plan);
    let says_status = |at: usize| {
        let expect = run.plan.requests.get(at).map_or(&[][..], |r| &r.expect);
        expect.iter().any(|e| matches!(e, Expectation::Status(_)))
    };
    let expected = |class: &&ClassReport| {
        let mut requests = classes.requests(&class.name).peekable();
        requests.peek().is_some() && requests.all(says_status)
    };
    let of_expected: u64 = p.classes.iter().filter(expected).map(|c| errors(&c.status)).sum();
    all.saturating_sub(of_expected)
}

fn reasons(run: &Run) -> Markup {
    html! {
        @if run.validity.verdict != Verdict::Valid {
            ul.reasons { @for reason in &run.validity.reasons {
                li.(if reason.verdict == Verdict::Invalid { "bad" } else { "warning" }) {
                    strong { (if reason.verdict == Verdict::Invalid { "Invalid: " } else { "Doubtful: " }) }
                    (super::text::EscapedText(&reason.what)) "; " (super::text::EscapedText(&reason.advice)) "."
                }
            } }
        }
    }
}

fn objectives(run: &Run) -> Markup {
    let rows = run
        .objectives
        .iter()
        .map(|j| vec![j.objective.to_string(), if j.met { "met".into() } else { "missed".into() }, j.seen.clone()]);
    let table = Table::new("what was asked of it", 2, &["objective", "verdict", "seen"]).rows(rows);
    html! { @if !table.is_empty() { (table.shown()) } }
}

fn phases(run: &Run) -> Markup {
    let heading =
        ["phase", "load", "seconds", "answered", "rate", "half within", "99 of 100 within", "without an answer"];
    let rows = run.phases.iter().enumerate().map(|(i, p)| {
        let us = |field| p.latency(Kind::Response, field).map_or("–".into(), show_us);
        vec![
            if p.measured { p.name.clone() } else { format!("{} (not counted)", p.name) },
            run.plan.phases.get(i).map(|plan| describe(&run.plan, plan)).unwrap_or_default(),
            format!("{:.1}", p.duration_s),
            count(p.requests.answered),
            Unit::Rate.show(p.rate.answered_rps),
            us("p50"),
            us("p99"),
            share(p.unanswered_share()),
        ]
    });
    Table::new("phases", 2, &heading).rows(rows).shown()
}

/// The time axis of a run's plots.
pub(super) fn clock(run: &Run, bins: &Bins) -> Clock {
    let phases = bins.phases.iter().filter(|_| bins.phases.len() > 1).cloned();
    let marks = phases.chain(run.marks.iter().map(|m| (m.t_s, m.text.clone()))).collect();
    Clock { name: run.id.clone(), moments: bins.middles(), end_s: bins.end_s.max(1.0), marks }
}

fn answers(run: &Run, bins: &Bins, clock: &Clock, plots: &mut Plots) -> Markup {
    let rate = |of: fn(&Bin) -> u64| bins.bins.iter().map(|b| b.rate(of(b))).collect::<Vec<_>>();
    // The plan has a rate of requests only without a replayed log, and not if its rate counts sessions.
    let planned = run.plan.replay.is_none() && run.plan.pick != Pick::Session;
    let due = |t: &f64| {
        let at = bins.phases.partition_point(|(start, _)| start <= t).checked_sub(1).filter(|_| planned)?;
        let (phase, report) = (run.plan.phases.get(at)?, run.phases.get(at)?);
        let since = t - bins.phases[at].0;
        (since <= report.duration_s).then(|| asked(phase, since, report.duration_s)).flatten()
    };
    let due = clock.moments.iter().map(due).collect();
    let failed = bins.bins.iter().any(|b| b.failed > 0);
    let mut series =
        vec![Series::new("answered", "c1", rate(|b| b.answered)), Series::new("asked for", "c3", due).dashed()];
    if failed {
        series.push(Series::new("failed or timed out", "c2", rate(|b| b.failed)));
    }
    let tells = if bins.width > 1 {
        format!("A second, each point the mean of {} s.", bins.width)
    } else {
        "Each second.".into()
    };
    let plot = TimePlot { title: "Answers a second", tells, unit: Unit::Rate, log: false, small: false, series };
    plots.add(clock, plot, &[], &over_time(bins))
}

fn latency(bins: &Bins, clock: &Clock, plots: &mut Plots) -> Markup {
    let of = |f: fn(&super::bins::Latency) -> f64| {
        bins.bins.iter().map(|b| b.latency.as_ref().map(|l| f(l).max(1.0))).collect()
    };
    let series = vec![
        Series::new("half within", "c1", of(|l| l.p50)),
        Series::new("90 of 100 within", "c3", of(|l| l.p90)),
        Series::new("99 of 100 within", "c2", of(|l| l.p99)),
        Series::new("slowest", "c4", of(|l| l.max)).dashed(),
    ];
    let plot = TimePlot {
        title: "How long people waited",
        tells: "From when a request was due to the end of its answer. The scale is logarithmic.".into(),
        unit: Unit::Micros,
        log: true,
        small: false,
        series,
    };
    plots.add(clock, plot, &[], &Table::default())
}

/// The plots of rate and latency as a table.
fn over_time(bins: &Bins) -> Table {
    const ROWS: usize = 120;
    let together = bins.bins.len().div_ceil(ROWS).max(1);
    let heading =
        ["from", "answers", "rate", "failed", "half within", "90 of 100 within", "99 of 100 within", "slowest"];
    let mut table = Table::new("rate and latency over time", 1, &heading);
    for some in bins.bins.chunks(together) {
        let answered: u64 = some.iter().map(|b| b.answered).sum();
        let span: f64 = some.iter().map(|b| b.span_s).sum();
        // A row of several stretches has the percentiles of the worst one.
        let worst = |of: fn(&super::bins::Latency) -> f64| {
            some.iter().filter_map(|b| b.latency.as_ref().map(of)).reduce(f64::max).map_or("–".into(), show_us)
        };
        table.row(vec![
            seconds(some[0].start_s),
            count(answered),
            Unit::Rate.show(answered as f64 / span.max(1e-9)),
            count(some.iter().map(|b| b.failed).sum()),
            worst(|l| l.p50),
            worst(|l| l.p90),
            worst(|l| l.p99),
            worst(|l| l.max),
        ]);
    }
    table
}

fn curve(bins: &Bins) -> Markup {
    let curves: Vec<_> = bins.measured.iter().map(|(name, h)| (name.clone(), h)).collect();
    percentile_curve(
        &curves,
        "The further to the right, the rarer: how long the slowest one in ten, in a hundred, in a thousand took.",
    )
}

fn kinds(run: &Run) -> Markup {
    let Some(p) = run.measured() else { return Markup::default() };
    let mut table = Table::new(
        "where the time of a request went",
        1,
        &["part", "mean", "p50", "p90", "p99", "p99.9", "slowest", NOTES],
    );
    for (kind, name, what) in KINDS {
        if p.latency(kind, "count").is_none_or(|n| n == 0.0) {
            continue;
        }
        let mut row = vec![name.to_string()];
        for field in ["mean", "p50", "p90", "p99", "p99_9", "max"] {
            let mark = if kind == Kind::Response && p.is_lower_bound(field) { "≥ " } else { "" };
            row.push(format!("{mark}{}", show_us(p.latency(kind, field).unwrap_or(0.0))));
        }
        row.push(what.to_string());
        table.row(row);
    }
    table.shown()
}

/// Where the requests were in the servers.
fn anatomy_table(anatomy: &Anatomy) -> Markup {
    let mut table = Table::new(
        "what the servers did for a typical and for a slow request (means)",
        1,
        &["part", "typical", "slow", "more by"],
    );
    for row in anatomy::rows(anatomy) {
        let more = row.slow.map_or_else(String::new, |slow| show_us((slow - row.typical).max(0.0)));
        table.row(vec![row.what, show_us(row.typical), row.slow.map_or_else(String::new, show_us), more]);
    }
    html! {
        @if let Some(said) = anatomy::sentence(anatomy) { p { (said) "." } }
        @for note in &anatomy.notes { p { (note) } }
        @if anatomy.typical.requests > 0 { (table.shown()) }
    }
}

/// How the requests ended.
fn ends(run: &Run, p: &PhaseReport) -> Markup {
    let r = &p.requests;
    let of = |n: u64| share(n as f64 / r.due.max(1) as f64);
    let mut table = Table::new("how requests ended", 1, &["end", "requests", "of those due"]);
    for (code, n) in &p.status {
        table.row(vec![format!("answered with status {code}"), count(*n), of(*n)]);
    }
    for (what, n) in [
        ("could not connect", r.failed.connect),
        ("connection was reset", r.failed.reset),
        ("closed without an answer", r.failed.closed),
        ("answer was not HTTP", r.failed.protocol),
        ("refused by the server", r.failed.refused),
        ("timed out", r.timed_out),
        ("in flight at the end", r.censored),
        ("never sent", r.unsent),
        ("answered, but not as expected", p.expectations.missed),
        ("answered in another way than in the log", p.mismatch.as_ref().map_or(0, |m| m.status)),
        ("answered with an unusual size for the log", p.mismatch.as_ref().map_or(0, |m| m.size)),
    ] {
        if n > 0 {
            table.row(vec![what.into(), count(n), of(n)]);
        }
    }
    for (part, n) in worst_parts(run) {
        table.row(vec![format!("part of a page: {part}"), count(n), String::new()]);
    }
    let c = &p.connections;
    table.row(vec!["connections opened".into(), count(c.opened), String::new()]);
    table.row(vec!["bytes received".into(), show_bytes(p.bytes.received), String::new()]);
    table.shown()
}

fn small_print(run: &Run) -> Markup {
    let environment = serde_json::to_string_pretty(&run.environment).unwrap_or_default();
    html! {
        details { summary { "The whole report as text" } pre.said { (block(&run_text(run))) } }
        @if environment.len() > 4 { details { summary { "Where it was measured" } pre.said { (block(&environment)) } } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::fixtures::run_of;

    #[test]
    fn a_percentile_that_is_only_a_bound_is_at_least_that() {
        let mut run = run_of(2, 50);
        let of = |run: &Run| verdict(run).sentences[0].clone();
        assert!(of(&run).contains("99 of 100 at most 2."), "{}", of(&run));
        let response = run.phases[0].results.latency_us.get_mut("response").expect("answers");
        response["lower_bounds"] = serde_json::json!(["p99"]);
        assert!(
            of(&run).contains("Half of them took at most ") && of(&run).contains("99 of 100 at least 2."),
            "{}",
            of(&run)
        );
    }
}
