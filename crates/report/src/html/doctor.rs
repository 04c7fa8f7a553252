//! The section of a diagnosis: the one limit first, then each finding with its evidence and fixes, and the
//! experiments behind it.

use lastdrop_model::documents::{DoctorDocument, Evidence, Finding, Severity};
use lastdrop_model::examination::{ExaminationStep, StepKind};
use lastdrop_model::units::show_us;
use maud::{Markup, html};

use super::axis::Axis;
use super::bars::{Bar, bars};
use super::chart::{Chart, Shape};
use super::compare::notes;
use super::number::{Unit, grouped, share};
use super::page::Section;
use super::table::{NOTES, Table};
use super::text::{EscapedText, short};
use super::verdict::{Headline, Tone};
use crate::doctor::{change, machine, number};
use crate::nodes::differing_lines;

pub(super) fn section(d: &DoctorDocument) -> Section {
    let body = html! {
        (verdict(d).shown())
        @if !d.findings.is_empty() { h2.group { "What was found" } }
        @for finding in &d.findings { (found(finding)) }
        (steps(&d.examination.steps))
        (waits(&d.examination))
        (chain(d))
        @if !d.differs.is_empty() { h2.group { "Which machine is not as the others" } (notes(&differing_lines(&d.differs))) }
        (notes(&d.notes))
        @if !d.unseen.is_empty() { h2.group { "What could not be seen" } (notes(&d.unseen)) }
    };
    let machine = machine(&d.examination).unwrap_or("the machine".into());
    let on = share(d.cost_cores / d.examination.processors.max(1) as f64);
    Section {
        title: format!("What holds {} back", d.url),
        about: vec![format!("looking took {on} of {machine}")],
        body,
    }
}

pub(super) fn verdict(d: &DoctorDocument) -> Headline {
    let limit = d.findings.iter().find(|f| f.severity == Severity::Limit);
    let mut told = match limit {
        Some(limit) => Headline::new(Tone::Warning, format!("The limit: {}.", limit.title.trim_end_matches('.'))),
        None => match d.undecided() {
            Some(why) => Headline::new(Tone::Bad, format!("Nothing is concluded: {why}.")),
            None => Headline::new(Tone::Good, "Nothing holds the server back under this load."),
        },
    };
    for fix in limit.iter().flat_map(|l| &l.fix).take(3) {
        told.say(format!("To change: {}", change(fix, limit.map_or("", |l| &l.server))));
    }
    if let Some(e) = limit.and_then(|l| l.expect.as_ref()).filter(|e| e.ratio > 1.04) {
        told.say(format!("That should give {:.1} times the throughput: {}", e.ratio, e.reason));
    }
    for [a, b] in &d.cannot_tell {
        told.say(format!("{a} cannot be told from {b}."));
    }
    if let Some(c) = &d.confirmed {
        told.say(format!(
            "The change was tried: {:.2} times the throughput (between {:.2} and {:.2}); the limit is {} then. {}",
            c.ratio,
            c.interval[0],
            c.interval[1],
            c.limit_after.as_deref().unwrap_or("none"),
            if c.kept { "It is kept." } else { "It was put back." }
        ));
    }
    if let Some(c) = &d.cache {
        told.say(match &c.difference {
            Some(difference) => format!("A cache was tried and put back, for an answer would be another one: {difference}."),
            None => format!(
                "A cache for {} was tried: {:.2} times the throughput (between {:.2} and {:.2}), promised {:.2}. It {}.",
                c.pages.join(", "),
                c.ratio,
                c.interval[0],
                c.interval[1],
                c.promised,
                if c.kept { "is kept" } else { "was put back" }
            ),
        });
    }
    if d.interrupted {
        told.say("It was stopped before all experiments were made.");
    }
    let of = |s: Severity| d.findings.iter().filter(|f| f.severity == s).count().to_string();
    if let Some(limit) = limit {
        told.number(share(limit.confidence), "confidence in the limit");
    }
    told.number(of(Severity::Waste), "wastes");
    told.number(of(Severity::Risk), "risks");
    if let Some(main) = d.examination.main() {
        told.number(Unit::Rate.show(main.answered_rps), "answered under the load asked about");
    }
    told
}

fn found(f: &Finding) -> Markup {
    let (tone, word) = match f.severity {
        Severity::Limit => ("bad", "Limit"),
        Severity::Waste => ("warning", "Waste"),
        Severity::Risk => ("note", "Risk"),
    };
    // Plot evidence that has a threshold; print the rest as text.
    let measured: Vec<(&Evidence, f64)> = f
        .evidence
        .iter()
        .filter_map(|e| Some((e, e.value.as_f64()? / e.threshold.as_f64().filter(|t| *t > 0.0)?)))
        .filter(|(_, r)| r.is_finite())
        .collect();
    let rows: Vec<Bar> = measured
        .iter()
        .take(12)
        .map(|(e, ratio)| Bar {
            name: short(&e.name, 120),
            // Bars end at five times the threshold.
            value: ratio.clamp(0.0, 5.0),
            says: format!("{} (from {})", number(&e.value), number(&e.threshold)),
            colour: if e.speaks() { "c2" } else { "c4" },
            mark: Some(1.0),
        })
        .collect();
    let table = Table::new(format!("evidence for {}", f.id), 2, &["what", "source", "value", "speaks from"]).rows(
        f.evidence.iter().map(|e| vec![e.name.clone(), e.source.clone(), number(&e.value), number(&e.threshold)]),
    );
    html! {
        article.finding.(tone) {
            p.kind { (word) " · " (EscapedText(&f.id)) " · confidence " (share(f.confidence)) @if !f.server.is_empty() { " · " (EscapedText(&f.server)) } }
            h3 { (EscapedText(&f.title)) }
            @if !f.fix.is_empty() { ul { @for fix in &f.fix { li { "Change " (EscapedText(&change(fix, &f.server))) } } } }
            @if !f.advice.is_empty() { p { (EscapedText(&f.advice)) } }
            @if let Some(e) = f.expect.as_ref().filter(|e| e.ratio > 1.04) { p { "Should be " (format!("{:.1}", e.ratio)) " times the throughput: " (EscapedText(&e.reason)) } }
            @if !f.check.is_empty() { p.quiet { "To check: " (EscapedText(&f.check)) } }
            @if rows.is_empty() { (table.folded()) }
            @else { (bars("Known by", "Against the number from which each speaks for the finding, which is the line; grey does not.", &rows, &table)) }
            @for against in &f.against { p.quiet { "Would have contradicted it, and was not seen: " (EscapedText(against)) } }
        }
    }
}

fn load_of(s: &ExaminationStep) -> String {
    match s.kind {
        StepKind::Observed => "traffic of others".into(),
        _ if s.users == 0 => format!("{} asked for", Unit::Rate.show(s.rate_rps)),
        _ => format!("{} user{}", s.users, if s.users == 1 { "" } else { "s" }),
    }
}

/// The experiments: throughput and latency at each step of load.
fn steps(all: &[ExaminationStep]) -> Markup {
    let shown: Vec<&ExaminationStep> = all.iter().filter(|s| s.kind != StepKind::Inside && s.answered > 0).collect();
    if shown.is_empty() {
        return Markup::default();
    }
    let heading =
        ["load", "keep-alive", "answered", "mean", "99 of 100 within", "unanswered", "processors busy", NOTES];
    let mut table = Table::new("experiments", 2, &heading);
    let x_of = |s: &ExaminationStep| if s.users > 0 { f64::from(s.users) } else { s.rate_rps };
    let users = shown.iter().any(|s| s.users > 0);
    let charted: Vec<&&ExaminationStep> = shown.iter().filter(|s| (s.users > 0) == users && x_of(s) > 0.0).collect();
    let axis = || {
        let (title, unit) = if users { ("users", Unit::Count) } else { ("requests a second", Unit::Rate) };
        Axis::from_zero(title, unit, charted.iter().map(|s| x_of(s)))
    };
    let mut rate = Chart::new(
        "Answers at each step",
        axis(),
        Axis::from_zero("answers a second", Unit::Rate, charted.iter().map(|s| s.answered_rps)),
    );
    let times = charted.iter().flat_map(|s| [s.response.p50, s.response.p99]);
    let mut time = Chart::new("Latency at each step", axis(), Axis::around("response", Unit::Micros, times));
    for s in &shown {
        let busy = if s.cores.is_empty() { "–".into() } else { share(s.busy(&[])) };
        table.row(vec![
            load_of(s),
            if s.keepalive { "on" } else { "off" }.into(),
            Unit::Rate.show(s.answered_rps),
            show_us(s.response.mean),
            show_us(s.response.p99),
            s.unanswered().to_string(),
            busy,
            s.kind.difference().unwrap_or_default().into(),
        ]);
    }
    for s in &charted {
        let shape = if s.kind.difference().is_some() { Shape::Ring } else { Shape::Dot };
        let x = x_of(s);
        let says = format!(
            "{}, {}: {}",
            load_of(s),
            s.kind.difference().unwrap_or(if s.keepalive { "keep-alive on" } else { "keep-alive off" }),
            Unit::Rate.show(s.answered_rps)
        );
        rate.point("c1", shape, x, s.answered_rps, &says);
        time.point("c1", shape, x, s.response.p50, &format!("{}: half within {}", load_of(s), show_us(s.response.p50)));
        time.point(
            "c2",
            Shape::Square,
            x,
            s.response.p99,
            &format!("{}: 99 of 100 within {}", load_of(s), show_us(s.response.p99)),
        );
    }
    time.legend("c1", "dot", "half within");
    time.legend("c2", "square", "99 of 100 within");
    rate.legend("c1", "dot", "answers");
    if charted.iter().any(|s| s.kind.difference().is_some()) {
        rate.legend("c1", "ring", "with one thing otherwise");
    }
    html! {
        h2.group { "The experiments" }
        @if charted.is_empty() { (table.shown()) } @else {
            div.pair {
                (rate.figure("What more load brings", "", &table))
                (time.figure("What more load costs", "", &Table::default()))
            }
        }
    }
}

/// Shows what the threads of each server waited for under the requested load.
fn waits(e: &lastdrop_model::examination::Examination) -> Markup {
    let Some(main) = e.main() else { return Markup::default() };
    html! {
        @for server in main.servers.iter().filter(|s| s.waits.values().any(|n| *n > 0.0)).take(8) {
            @let mut all = server.waits.iter().collect::<Vec<_>>();
            @let sorted = { all.sort_by(|a, b| b.1.total_cmp(a.1)); all };
            @let rows = sorted.iter().take(10).map(|(what, n)| Bar {
                name: short(what, 80), value: **n, says: format!("{} threads", grouped((**n * 100.0).round() / 100.0)), colour: "c1", mark: None }).collect::<Vec<_>>();
            (bars(&format!("What threads of {} were at", short(&server.server, 60)), "On average, under the load asked about.", &rows, &Table::default()))
        }
    }
}

fn chain(d: &DoctorDocument) -> Markup {
    let rows =
        d.chain.iter().map(|l| vec![l.server.clone(), l.listens.join(", "), l.connects.join(", "), l.to.join(", ")]);
    let table = Table::new("who is behind whom", 4, &["server", "listens", "connects", "which is"]).rows(rows);
    html! { @if !table.is_empty() { (table.shown()) } }
}
