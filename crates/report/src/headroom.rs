//! Demand against capacity, as text.

use std::fmt::Write as _;

use lastdrop_model::documents::{DayInterval, HeadroomDocument, LogMoment};
use lastdrop_model::printable::line;
use lastdrop_model::units::{show_bytes, show_us};

use crate::html::first;
use crate::run::utc;
use crate::table::aligned;

const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// The report of `headroom`.
#[must_use]
pub fn headroom_text(d: &HeadroomDocument) -> String {
    let mut out = first::headroom(d).line();
    if let Some(found) = &d.capacity {
        let _ = writeln!(out, "{}\n", line(&found.reason));
    }
    out.push_str(&aligned(&["demand", "requests/s", "at"], &demand(d)));
    out.push('\n');
    for (name, text) in facts(d) {
        let _ = writeln!(out, "{name:<12}{}", line(&text));
    }
    if !d.burst.is_empty() {
        let rows: Vec<Vec<String>> =
            d.burst.iter().map(|b| vec![b.rank.to_string(), show_us(b.wait_s * 1e6)]).collect();
        let _ = write!(out, "\n{}", aligned(&["rank in a burst", "waits"], &rows));
    }
    out.push('\n');
    for assumption in &d.assumptions {
        let _ = writeln!(out, "assumed: {}", line(assumption));
    }
    for note in &d.notes {
        let _ = writeln!(out, "note: {}", line(note));
    }
    out
}

fn demand(d: &HeadroomDocument) -> Vec<Vec<String>> {
    let row = |name: &str, rps: f64, at: Option<&LogMoment>| {
        let at = at.map_or(String::new(), |m| utc((m.unix_s.max(0) as u64).saturating_mul(1000)));
        vec![name.to_string(), format!("{rps:.1}"), at]
    };
    let demand = &d.demand;
    vec![
        row("mean", demand.mean_rps, None),
        row("busiest hour", demand.busiest_hour_rps, demand.busiest_hour.as_ref()),
        row("busiest minute", demand.busiest_minute_rps, demand.busiest_minute.as_ref()),
        row("busiest second", demand.peak_rps, demand.busiest_second.as_ref()),
    ]
}

/// What is known, a line each: a name and a text. The page has the same.
pub(crate) fn facts(d: &HeadroomDocument) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let percent = |share: f64| format!("{:+.1} %", share * 100.0);
    if let Some(bytes) = d.demand.bytes_per_s {
        facts.push((
            "bandwidth",
            format!("{}/s in the busiest minute ({:.1} Mbit/s)", show_bytes(bytes as u64), bytes * 8e-6),
        ));
    }
    if let Some(g) = &d.demand.growth {
        let chance = if g.significant { "" } else { "; it may be chance" };
        let [low, high] = g.interval.map(percent);
        facts.push(("growth", format!("{} per week (80 %: {low} to {high}){chance}", percent(g.per_week))));
    }
    if !d.demand.rhythm.is_empty() {
        let days = WEEKDAYS.iter().zip(&d.demand.rhythm).filter(|(_, factor)| **factor > 0.0);
        let days: Vec<String> = days.map(|(name, factor)| format!("{name} {factor:.2}")).collect();
        facts.push(("rhythm", format!("{}, against the mean of the week", days.join(", "))));
    }
    if let Some(rps) = d.capacity_rps {
        let least = if d.at_least { "at least " } else { "" };
        facts.push(("capacity", format!("{least}{rps:.1} requests/s")));
    }
    if let (Some(workers), Some(held)) = (d.workers, d.held_s) {
        let text = format!(
            "{workers} busy in the busiest minute: a request holds one for {} ({})",
            show_us(held * 1e6),
            d.held_from
        );
        facts.push(("workers", text));
    }
    if let Some(machines) = d.machines {
        facts.push(("machines", format!("{machines}, of which one may be down")));
    }
    match &d.reached {
        Some(days) => facts.push(("limit", format!("reached {} (80 %)", days_text(days)))),
        None => facts.push(("limit", format!("cannot tell when: {}", d.cannot_tell))),
    }
    if let Some(step) = &d.step {
        let mut text = format!("{}: {}", step_name(d), step.reason);
        if let Some(headroom) = step.headroom {
            text += &format!("; headroom {headroom:.2}");
        }
        if let Some(days) = &step.reached {
            text += &format!("; the limit is then reached {}", days_text(days));
        }
        facts.push(("next step", text));
    }
    facts
}

fn step_name(d: &HeadroomDocument) -> &'static str {
    use lastdrop_model::documents::StepKind;
    match d.step.as_ref().map(|s| s.what).unwrap_or_default() {
        StepKind::None => "none",
        StepKind::Machine => "one more machine",
        StepKind::Workers => "more workers",
        StepKind::Measure => "measure again",
    }
}

pub(crate) fn days_text(days: &DayInterval) -> String {
    if days.from == days.to { format!("on {}", days.from) } else { format!("from {} to {}", days.from, days.to) }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::{BurstWait, Demand, DemandGrowth, HeadroomStep, StepKind};

    use super::*;

    #[test]
    fn all_that_is_known_is_in_the_text() {
        let d = HeadroomDocument {
            demand: Demand {
                busiest_minute_rps: 50.0,
                busiest_minute: Some(LogMoment { unix_s: 1_700_000_000, rps: 50.0 }),
                growth: Some(DemandGrowth { per_week: 0.02, interval: [0.01, 0.03], ..DemandGrowth::default() }),
                rhythm: vec![1.1, 0.0],
                bytes_per_s: Some(1e6),
                ..Demand::default()
            },
            capacity_rps: Some(100.0),
            headroom: Some(2.0),
            workers: Some(5),
            held_s: Some(0.1),
            held_from: "the logs' own times".into(),
            machines: Some(2),
            burst: vec![BurstWait { rank: 10, wait_s: 0.1 }],
            reached: Some(DayInterval { from: "2027-01-01".into(), to: "2027-02-01".into() }),
            step: Some(HeadroomStep { what: StepKind::Machine, headroom: Some(4.0), ..HeadroomStep::default() }),
            notes: vec!["\x1b[2J".into()],
            ..HeadroomDocument::default()
        };
        let text = headroom_text(&d);
        for part in [
            "2.0 times",
            "2023-11-14T22:13:20Z",
            "+2.0 % per week (80 %: +1.0 % to +3.0 %); it may be chance",
            "Mon 1.10, against",
            "8.0 Mbit/s",
            "5 busy in the busiest minute: a request holds one for 100.0 ms",
            "2, of which one may be down",
            "reached from 2027-01-01 to 2027-02-01 (80 %)",
            "one more machine: ; headroom 4.00",
            "note: \\x1b[2J",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let nothing = headroom_text(&HeadroomDocument { cannot_tell: "so".into(), ..HeadroomDocument::default() });
        assert!(nothing.contains("cannot tell when: so"), "{nothing}");
    }
}
