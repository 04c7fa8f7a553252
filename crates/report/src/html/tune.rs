//! The section of a tune: the gain of the better settings, every trial, the trade-off between throughput and
//! latency, the race, and the configuration change.

use lastdrop_model::documents::{Goal, Trial, TuneDocument, TuneVerdict};
use lastdrop_model::settings::describe;
use lastdrop_model::units::{show_bytes, show_us};
use maud::{Markup, html};

use super::axis::Axis;
use super::bars::{Bar, bars};
use super::chart::{Chart, Shape};
use super::compare::notes;
use super::number::{Unit, change, count, grouped};
use super::page::Section;
use super::table::{NOTES, Table};
use super::text::{EscapedText, short};
use super::verdict::{Headline, Tone};
use crate::tune::other_load;

/// Trials that get a bar.
const MOST_BARS: usize = 40;

pub(super) fn section(d: &TuneDocument) -> Section {
    let body = html! {
        (verdict(d).shown())
        (diff(d))
        (steps(d))
        (trials(d))
        h2.group { "How it was decided" }
        div.pair { (trade_off(d)) (race(d)) }
        (notes(&d.notes))
    };
    Section { title: format!("Better settings for {}", d.server), about: vec![d.url.clone()], body }
}

pub(crate) fn verdict(d: &TuneDocument) -> Headline {
    let tried = d.tried();
    let (tone, headline) = match d.verdict {
        TuneVerdict::Improved => (Tone::Good, String::from("There are better settings, and it is proven.")),
        TuneVerdict::NoGain if tried.is_empty() => (Tone::Note, "No better settings were found.".into()),
        TuneVerdict::NoGain => (Tone::Note, format!("No better value was found of: {}.", tried.join(", "))),
        TuneVerdict::Infeasible => (Tone::Bad, "No setting could be tried that does what it has to.".into()),
        TuneVerdict::Inconclusive if tried.is_empty() => (Tone::Warning, "Nothing was tried.".into()),
        TuneVerdict::Inconclusive => {
            (Tone::Warning, "It could not be proven whether other settings are better.".into())
        }
        TuneVerdict::Planned => (Tone::Note, "This is what would be tried. Nothing was changed.".into()),
    };
    let mut told = Headline::new(tone, headline);
    told.say(d.reason.clone());
    if matches!(d.verdict, TuneVerdict::NoGain | TuneVerdict::Inconclusive) {
        let untried = d.untried();
        for (why, names) in &untried {
            told.say(format!("Not tried: {}: {why}.", names.join(", ")));
        }
    }
    match (&d.kept_in, d.kept, d.restored) {
        (Some(file), true, _) => told.say(format!("The better settings are in force, kept in {file}.")),
        (None, true, _) => told.say("The better settings are in force."),
        (_, _, true) => told.say("The server is back as it was found."),
        _ => {}
    }
    if let Some(w) = &d.watch {
        told.say(format!("Watched for {:.0} s ({}): {}.", w.during.seconds, w.watched, w.reason));
    }
    if d.interrupted {
        told.say("It was interrupted; this is what was known by then.");
    }
    if let Some(b) = &d.baseline {
        told.number(Unit::Rate.show(b.objective), "answered as it was");
    }
    if let Some(w) = &d.winner {
        if d.goal == Goal::Throughput {
            told.number(Unit::Rate.show(w.objective), "answered with the best");
        }
        if let (Some(ratio), Some([low, high])) = (w.ratio, w.interval) {
            let times = d.goal.times();
            told.number(Unit::Ratio.show(ratio), format!("{times}, between {low:.2} and {high:.2}"));
        }
        if let Some(b) = d.baseline.as_ref().filter(|b| b.p99_us > 0.0) {
            told.number(show_us(w.p99_us), format!("99 of 100 within; before {}", show_us(b.p99_us)));
        }
    }
    told
}

fn diff(d: &TuneDocument) -> Markup {
    html! {
        @if !d.diff.is_empty() {
            h2.group { (if d.verdict == TuneVerdict::Improved { "The change" } else { "What was raced" }) }
            pre.diff {
                @for line in &d.diff {
                    @let class = match line.as_bytes().first() { Some(b'+') => "plus", Some(b'-') => "minus", _ => "same" };
                    span.(class) { (EscapedText(line)) }
                }
            }
        }
    }
}

/// The steps of a tune that used real visitors.
fn steps(d: &TuneDocument) -> Markup {
    let Some(v) = d.visited.as_ref().filter(|v| !v.steps.is_empty()) else { return Markup::default() };
    let heading = ["setting", "from", "to", "times as short", "pairs", NOTES];
    let mut table = Table::new(format!("{} of visitors, by the {}", v.compared, v.by), 3, &heading);
    for s in &v.steps {
        let ratio = match (s.ratio, s.interval) {
            (Some(ratio), Some([low, high])) => format!("{ratio:.2} ({low:.2} to {high:.2})"),
            _ => "–".into(),
        };
        let (from, to) = (s.from.clone(), s.to.clone());
        table.row(vec![s.name.clone(), from, to, ratio, s.pairs.to_string(), s.reason.clone()]);
    }
    html! {
        h2.group { "Step by step" }
        (table.shown())
    }
}

/// The purpose of a trial as a colour and a shape.
fn colour(t: &Trial) -> (&'static str, Shape) {
    match (t.valid, t.role.as_str()) {
        (false, _) => ("c4", Shape::Cross),
        (_, "baseline") => ("c2", Shape::Square),
        _ => ("c1", Shape::Dot),
    }
}

fn says(t: &Trial) -> String {
    let memory = t.real_memory_bytes.map_or(String::new(), |b| format!(", {} memory", show_bytes(b)));
    let why = t.why.lines().next().map_or(String::new(), |why| format!("; does not count: {why}"));
    format!(
        "{}: {}, 99 of 100 within {}{memory}{why}",
        short(&describe(&t.settings), 200),
        Unit::Rate.show(t.objective),
        show_us(t.p99_us)
    )
}

/// The result of a trial in a word. If no rate met the objectives, it has no rate.
fn outcome(t: &Trial) -> String {
    match (t.objective == 0.0, t.run.is_empty()) {
        (true, true) => "refused".into(),
        (true, false) if !t.why.is_empty() => "not met".into(),
        _ => Unit::Rate.show(t.objective),
    }
}

fn trials(d: &TuneDocument) -> Markup {
    let all: Vec<&Trial> = d.trials.iter().filter(|t| t.role != "race").collect();
    if all.is_empty() {
        return Markup::default();
    }
    let heading = ["for", "settings", "answered", "99 of 100 within", "unanswered", "real memory", "warmed", NOTES];
    let mut table = Table::new("trials", 2, &heading);
    for t in &all {
        table.row(vec![
            t.role.clone(),
            describe(&t.settings),
            outcome(t),
            if t.p99_us > 0.0 { show_us(t.p99_us) } else { "–".into() },
            count(t.unanswered),
            t.real_memory_bytes.map_or("–".into(), show_bytes),
            t.warmed.clone(),
            t.why.clone(),
        ]);
    }
    let rows: Vec<Bar> = all
        .iter()
        .take(MOST_BARS)
        .map(|t| Bar {
            name: short(&describe(&t.settings), 140) + other_load(&t.role),
            value: t.objective,
            says: outcome(t),
            colour: colour(t).0,
            mark: None,
        })
        .collect();
    html! {
        h2.group { "What was tried" }
        (bars("Answers a second of each trial", "In their order; the server as it was is orange, what does not count is grey.", &rows, &table))
    }
}

/// Throughput against latency; the line joins the trials that no other beats in both. Trials under a
/// different load are left out.
fn trade_off(d: &TuneDocument) -> Markup {
    let same_load = |t: &&Trial| t.role != "race" && other_load(&t.role).is_empty();
    let all: Vec<&Trial> = d.trials.iter().filter(same_load).filter(|t| !t.run.is_empty() && t.p99_us > 0.0).collect();
    if all.len() < 2 {
        return Markup::default();
    }
    let mut chart = Chart::new(
        "Throughput against latency of each trial",
        Axis::from_zero("answers a second", Unit::Rate, all.iter().map(|t| t.objective)),
        Axis::around("99 of 100 within", Unit::Micros, all.iter().map(|t| t.p99_us)),
    );
    let mut best: Vec<&Trial> =
        all.iter().copied().filter(|t| t.valid && !all.iter().any(|o| o.valid && beats(o, t))).collect();
    best.sort_by(|a, b| a.objective.total_cmp(&b.objective));
    // A single best trial makes no line.
    let line = best.len() > 1;
    if line {
        chart.line("c3", "dashed", &best.iter().map(|t| (t.objective, t.p99_us)).collect::<Vec<_>>());
    }
    let mut table = Table::new("trials that none beats in both", 1, &["settings", "answered", "99 of 100 within"]);
    for t in &best {
        table.row(vec![describe(&t.settings), grouped(t.objective), show_us(t.p99_us)]);
    }
    for t in &all {
        let (colour, shape) = colour(t);
        chart.point(colour, shape, t.objective, t.p99_us, &says(t));
    }
    chart.legend("c1", "dot", "a trial");
    chart.legend("c2", "square", "as it was");
    if all.iter().any(|t| !t.valid) {
        chart.legend("c4", "cross", "does not count");
    }
    if line {
        chart.legend("c3", "dashed", "none is better in both");
    }
    chart.figure("The trade-off", "To the right is more, down is faster.", &table)
}

fn beats(a: &Trial, b: &Trial) -> bool {
    a.objective >= b.objective && a.p99_us <= b.p99_us && (a.objective > b.objective || a.p99_us < b.p99_us)
}

fn race(d: &TuneDocument) -> Markup {
    if d.race.is_empty() {
        return Markup::default();
    }
    let mut chart = Chart::new(
        "The race, pair by pair",
        Axis::between("pair", Unit::Count, 0.0, d.race.len() as f64 + 1.0),
        Axis::from_zero("answers a second", Unit::Rate, d.race.iter().flat_map(|p| [p.baseline, p.best])),
    );
    let mut table = Table::new("the race", 1, &["pair", "as it was", "best", "change"]);
    for (i, p) in d.race.iter().enumerate() {
        let x = (i + 1) as f64;
        let ratio = if p.baseline > 0.0 { change(p.best / p.baseline) } else { "–".into() };
        chart.line("c4", "thin", &[(x, p.baseline), (x, p.best)]);
        chart.point(
            "c2",
            Shape::Square,
            x,
            p.baseline,
            &format!("pair {}, as it was: {}", i + 1, Unit::Rate.show(p.baseline)),
        );
        chart.point(
            "c1",
            Shape::Dot,
            x,
            p.best,
            &format!("pair {}, best: {} ({ratio})", i + 1, Unit::Rate.show(p.best)),
        );
        table.row(vec![(i + 1).to_string(), Unit::Rate.show(p.baseline), Unit::Rate.show(p.best), ratio]);
    }
    chart.legend("c2", "square", "as it was");
    chart.legend("c1", "dot", "the best settings");
    chart.figure("The race that proves it", "In turns, each on a fresh start.", &table)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rate_that_does_not_meet_the_objectives_is_no_throughput_of_nothing() {
        let trial = |objective: f64, run: &str, why: &str| -> Trial {
            serde_json::from_value(json!({"settings": {}, "objective": objective, "valid": true, "why": why, "p99_us": 0.0,
                "unanswered": 9, "real_memory_bytes": null, "warmed": "no", "role": "search", "keepalive": "on", "run": run}))
            .expect("a trial")
        };
        let said = [
            trial(0.0, "", "it would not start"),
            trial(0.0, "a1", "100/s do not meet p99<1ms"),
            trial(0.0, "a2", ""),
            trial(90.0, "a3", "p99 is 3 s"),
        ];
        assert_eq!(said.map(|t| outcome(&t)), ["refused", "not met", "0/s", "90/s"]);
    }
}
