//! The section of a trace: the system calls of a request, its waits, and avoidable calls.

use lastdrop_model::documents::{TraceDocument, TraceRow};
use maud::{Markup, html};

use super::bars::{Bar, bars};
use super::compare::notes;
use super::number::{Unit, count, grouped};
use super::page::Section;
use super::table::{NOTES, Table};
use super::text::{EscapedText, short};
use super::verdict::{Headline, Tone};

/// Calls that get a bar.
const MOST_BARS: usize = 15;

pub(super) fn section(d: &TraceDocument) -> Section {
    let body = html! {
        (verdict(d).shown())
        h2.group { "What it does" }
        @for kind in &d.kinds {
            article.finding.note {
                h3 { (EscapedText(&kind.title)) }
                p { (grouped(kind.per_request)) " a request, " (Unit::Micros.show(kind.us_per_request)) @if !kind.advice.is_empty() { ". " (EscapedText(&kind.advice)) } }
            }
        }
        (calls(d))
        (waiting(d))
        (notes(&d.notes))
    };
    Section {
        title: format!("What a request to {} is made of", d.server),
        about: vec![d.url.clone(), format!("{} requests traced", count(d.requests))],
        body,
    }
}

pub(super) fn verdict(d: &TraceDocument) -> Headline {
    let spared: f64 = d.kinds.iter().filter(|k| !k.advice.is_empty()).map(|k| k.us_per_request).sum();
    let mut told = match d.kinds.iter().find(|k| !k.advice.is_empty()) {
        _ if d.requests == 0 => Headline::new(Tone::Bad, "Nothing was answered while it was traced."),
        Some(first) => Headline::new(
            Tone::Warning,
            format!("Some of what a request does could be spared, first of all: {}", first.title),
        ),
        None => Headline::new(Tone::Good, "Nothing stands out that a request could be spared."),
    };
    told.number(grouped(d.calls_per_request), "system calls a request");
    told.number(Unit::Micros.show(d.us_per_request), "in them");
    told.number(Unit::Micros.show(d.waiting_us_per_request), "waiting for others");
    if spared > 0.0 {
        told.number(Unit::Micros.show(spared), "could be spared");
    }
    told
}

fn name(r: &TraceRow) -> String {
    let error = r.error.as_ref().map_or(String::new(), |e| format!(" ({e})"));
    format!("{} {}{error}", r.call, short(&r.path, 90))
}

fn calls(d: &TraceDocument) -> Markup {
    let heading = ["call", "on", "a request", "time a request", NOTES];
    let table = Table::new("calls", 2, &heading).rows(d.calls.iter().map(|r| {
        let note = [
            r.error.as_deref().unwrap_or_default(),
            if r.waits { "waits" } else { "" },
            if r.traced { "time as traced" } else { "" },
        ];
        let note: Vec<&str> = note.into_iter().filter(|n| !n.is_empty()).collect();
        vec![
            r.call.clone(),
            r.path.clone(),
            grouped(r.per_request),
            Unit::Micros.show(r.us_per_request),
            note.join(", "),
        ]
    }));
    let rows: Vec<Bar> = d
        .calls
        .iter()
        .filter(|r| !r.waits)
        .take(MOST_BARS)
        .map(|r| Bar {
            name: name(r),
            value: r.us_per_request,
            says: format!("{} in {}", Unit::Micros.show(r.us_per_request), grouped(r.per_request)),
            colour: if r.error.is_some() { "c2" } else { "c1" },
            mark: None,
        })
        .collect();
    html! { (bars("The costliest calls", "Time a request, and how many calls; those that fail are orange.", &rows, &table)) }
}

fn waiting(d: &TraceDocument) -> Markup {
    if d.waiting.is_empty() {
        return Markup::default();
    }
    let who = |w: &lastdrop_model::documents::TraceWait| {
        let known = w.service.as_deref().or(w.process.as_deref()).map_or(String::new(), |s| format!(" ({s})"));
        format!("{} {}{known}", w.what, short(&w.peer, 90))
    };
    let rows: Vec<Bar> = d
        .waiting
        .iter()
        .take(MOST_BARS)
        .map(|w| Bar {
            name: who(w),
            value: w.us_per_request,
            says: Unit::Micros.show(w.us_per_request),
            colour: "c3",
            mark: None,
        })
        .collect();
    let table = Table::new("waits", 3, &["call", "for", "whom", "a request", "time a request"]).rows(
        d.waiting.iter().map(|w| {
            vec![w.call.clone(), w.what.clone(), who(w), grouped(w.per_request), Unit::Micros.show(w.us_per_request)]
        }),
    );
    bars("What a request waits for", "", &rows, &table)
}
