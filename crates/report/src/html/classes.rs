//! Requests by class: bars of the time spent in each class, and a table.

use lastdrop_model::Kind;
use lastdrop_model::run::{ClassReport, PhaseReport};
use lastdrop_model::units::show_us;
use maud::{Markup, html};

use super::bars::{Bar, bars};
use super::number::{Unit, count, share};
use super::table::Table;
use crate::classes::{name_of, shown, time_in};

/// Renders the requests of a phase by class, if there are several classes.
pub(super) fn classes(p: &PhaseReport) -> Markup {
    if p.classes.len() < 2 {
        return Markup::default();
    }
    let all: f64 = p.classes.iter().map(time_in).sum();
    let shown = shown(p);
    let rows: Vec<Bar> = shown
        .iter()
        .map(|c| Bar {
            name: name_of(c),
            value: time_in(c) / all.max(1.0),
            says: share(time_in(c) / all.max(1.0)),
            colour: "c1",
            mark: None,
        })
        .collect();
    let left = p.classes.len() - shown.len();
    let tells = match left {
        0 => "The share of all the time that people waited.".to_string(),
        n => format!(
            "The share of all the time that people waited; the {} classes with most of it, {n} more are in the JSON.",
            shown.len()
        ),
    };
    html! {
        h2.group { "By what was asked for" }
        (bars("Where people's time went", &tells, &rows, &table(&shown)))
    }
}

fn table(shown: &[&ClassReport]) -> Table {
    let replay = shown.iter().any(|c| c.mismatch.is_some());
    let mut heading = vec![
        "class",
        "statuses",
        "answered",
        "rate",
        "unanswered",
        "mean",
        "half within",
        "99 of 100 within",
        "slowest",
    ];
    if replay {
        heading.push("other answers than in the log");
    }
    let rows = shown.iter().map(|c| {
        let r = &c.requests;
        let us = |field| {
            let mark = if c.is_lower_bound(field) { "≥ " } else { "" };
            c.latency(Kind::Response, field).map_or("–".into(), |us| format!("{mark}{}", show_us(us)))
        };
        let statuses: Vec<String> = c.status.iter().map(|(code, n)| format!("{} × {code}", count(*n))).collect();
        let mut row = vec![
            name_of(c),
            statuses.join(", "),
            count(r.answered),
            Unit::Rate.show(c.rate.answered_rps),
            count(r.due - r.answered.min(r.due)),
            us("mean"),
            us("p50"),
            us("p99"),
            us("max"),
        ];
        if replay {
            row.push(
                c.mismatch.as_ref().map_or("–".into(), |m| format!("{} of {}", count(m.status), count(m.compared))),
            );
        }
        row
    });
    Table::new("requests by class", 2, &heading).rows(rows)
}
