//! The result of `tune`, as text.

use std::fmt::Write as _;

use lastdrop_model::documents::{
    Goal, LiveTuning, SearchedSetting, SettingEffect, TuneDocument, TuneVerdict, UserMetrics, WatchPeriod,
};
use lastdrop_model::settings::describe;
use lastdrop_model::units::{show_bytes, show_us};

use crate::html::first;
use crate::size::advice_text;
use crate::table::aligned;

/// The report of `tune`; with `explains`, it gives the reason why each setting was searched or not.
#[must_use]
pub fn tune_text(d: &TuneDocument, explains: bool) -> String {
    let mut out = first::tune(d).line();
    let _ = writeln!(out, "{}   {}\n", d.server, d.url);
    if let Some(advice) = &d.workers_advice {
        let server = if advice.server.is_empty() { String::new() } else { format!("{}: ", advice.server) };
        let _ = writeln!(out, "{server}{}", advice_text(advice));
    }
    out.push_str(&seen_before(d, explains));
    out.push_str(&trials_text(d));
    if let Some(visited) = &d.visited {
        out.push_str(&walked(visited));
    }
    out.push_str(&race_text(d));
    let verdict = match d.verdict {
        TuneVerdict::Improved => "IMPROVED",
        TuneVerdict::NoGain => "NO GAIN",
        TuneVerdict::Infeasible => "INFEASIBLE",
        TuneVerdict::Inconclusive => "INCONCLUSIVE",
        TuneVerdict::Planned => "PLANNED",
    };
    let _ = writeln!(out, "\n{verdict}: {}", d.reason);
    if matches!(d.verdict, TuneVerdict::NoGain | TuneVerdict::Inconclusive) {
        out.push_str(&tried_and_not(d));
    }
    if let (Some(b), Some(w)) = (d.baseline.as_ref().filter(|b| b.objective > 0.0), &d.winner) {
        let _ = writeln!(out, "  p99 {} before, {} with the best", show_us(b.p99_us), show_us(w.p99_us));
    }
    if let Some(m) = d.winner.as_ref().and_then(|w| w.memory) {
        let (workers, foretold, used) = (m.workers, show_bytes(m.predicted_bytes), show_bytes(m.used_bytes));
        let _ = writeln!(out, "  memory of {workers} workers: {used} used, {foretold} predicted");
    }
    out.push_str(&what_mattered(&d.effects));
    if let Some(next) = &d.limit_after {
        let id = next.id.as_ref().map_or(String::new(), |id| format!(" ({id})"));
        let _ = writeln!(out, "  to look at next, with the best: {}{id}", next.title);
    }
    out.push_str(&choices(d));
    if !d.diff.is_empty() {
        let title = if d.verdict == TuneVerdict::Improved { "the change" } else { "what was raced" };
        let _ = writeln!(out, "\n{title}:");
        for line in &d.diff {
            let _ = writeln!(out, "  {line}");
        }
    }
    out.push_str(&left_behind(d));
    out
}

/// What the look before the search saw, and what follows from it.
fn seen_before(d: &TuneDocument, explains: bool) -> String {
    let mut out = String::new();
    for clue in d.clues.iter().filter(|_| explains) {
        let server = if clue.server.is_empty() { String::new() } else { format!("{}: ", clue.server) };
        let _ = writeln!(out, "seen: {server}{} ({})", clue.reason, clue.finding);
    }
    if explains || d.verdict == TuneVerdict::Planned {
        out.push_str(&explained(&d.searched));
    }
    for p in &d.proposals {
        let gain = p.expected.filter(|ratio| *ratio >= LEAST_GAIN);
        let expected = gain.map_or(String::new(), |ratio| format!(", should give {ratio:.2} times the throughput"));
        let _ = writeln!(out, "proposed: {}{expected}: {} ({})", describe(&p.settings), p.reason, p.finding);
    }
    if !d.proposals.is_empty() {
        out.push('\n');
    }
    out
}

fn trials_text(d: &TuneDocument) -> String {
    let rows: Vec<Vec<String>> = d
        .trials
        .iter()
        .filter(|t| !matches!(t.role.as_str(), "race" | "step"))
        .map(|t| {
            let mut cells = Vec::new();
            // A refused trial. Trials judged by real visitors have no run either, but they have an objective.
            if t.run.is_empty() && t.objective == 0.0 {
                cells.extend(["–", "–", "–"].map(String::from));
            } else {
                cells.extend([format!("{:.1}", t.objective), show_us(t.p99_us), t.unanswered.to_string()]);
            }
            cells.push(t.warmed.clone());
            // The settings stand last because they can be long.
            let mut settings = describe(&t.settings);
            settings.push_str(other_load(&t.role));
            if let Some(why) = t.why.lines().next() {
                let how = if t.cut_short { "cut short" } else { "does not count" };
                settings.push_str(&format!("; {how}: {why}"));
            }
            cells.push(settings);
            cells
        })
        .collect();
    match rows.as_slice() {
        [] => String::new(),
        rows => aligned(&[rate_of(d), "p99", "unanswered", "warmed", "settings"], rows),
    }
}

fn race_text(d: &TuneDocument) -> String {
    if d.race.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = d
        .race
        .iter()
        .enumerate()
        .map(|(i, p)| {
            let ratio = d.goal.goodness(p.best) / d.goal.goodness(p.baseline);
            let ratio = if p.baseline > 0.0 { format!("{ratio:.2}") } else { "–".into() };
            let show = |n: f64| match d.goal {
                Goal::Throughput => format!("{n:.1}"),
                Goal::Latency => show_us(n),
                Goal::Memory => show_bytes(n as u64),
            };
            vec![(i + 1).to_string(), show(p.baseline), show(p.best), ratio]
        })
        .collect();
    let what = match d.goal {
        Goal::Throughput => rate_of(d),
        Goal::Latency => d.visited.as_ref().map_or("p99", |v| &v.compared),
        Goal::Memory => "memory of the workers",
    };
    format!("\nthe race, {what}:\n{}", aligned(&["pair", "baseline", "best", "ratio"], &rows))
}

/// How the server is left, and what else is to be known.
fn left_behind(d: &TuneDocument) -> String {
    let mut out = String::new();
    if let Some(watch) = &d.watch {
        out.push_str(&watched(watch));
    }
    out.push('\n');
    if d.interrupted {
        out.push_str("ended early: interrupted\n");
    }
    if let Some(file) = &d.kept_in {
        let _ = writeln!(out, "kept in {file}");
    }
    if d.restored {
        out.push_str("the server is back as it was found");
        out.push_str(if d.verdict == TuneVerdict::Improved && d.watch.is_none() {
            "; to have the change: the same command with --keep\n"
        } else {
            "\n"
        });
    }
    for note in &d.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

/// Lists the settings that were tried with other values, then the others with the reason.
fn tried_and_not(d: &TuneDocument) -> String {
    let mut out = String::new();
    let tried = d.tried();
    if !tried.is_empty() {
        let _ = writeln!(out, "  tried: {}", tried.join(", "));
    }
    for (why, names) in d.untried() {
        let _ = writeln!(out, "  not tried: {}: {why}", names.join(", "));
    }
    out
}

/// The user metrics of each step.
fn walked(v: &LiveTuning) -> String {
    let mut out = format!("\nseen by the {}: {}\n", v.by, saw(&v.before));
    let rows = v.steps.iter().map(|s| {
        let ratio = s.ratio.map_or_else(|| "–".into(), |r| format!("{r:.2}"));
        let interval = s.interval.map_or_else(|| "–".into(), |[low, high]| format!("{low:.2} to {high:.2}"));
        vec![format!("{} {} → {}", s.name, s.from, s.to), s.pairs.to_string(), ratio, interval, s.reason.clone()]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if !rows.is_empty() {
        let shorter = format!("times as short a {}", v.compared);
        out.push_str(&aligned(&["step", "pairs", &shorter, "95 %", "what came of it"], &rows));
    }
    out
}

/// The result of watching the server after the better settings were applied.
fn watched(w: &WatchPeriod) -> String {
    let fate = if w.went_back { "WENT BACK" } else { "STAYED" };
    format!(
        "\nthe watch, {}:\n  before  {}\n  during  {}\n{fate}: {}\n",
        w.watched,
        saw(&w.before),
        saw(&w.during),
        w.reason
    )
}

fn saw(s: &UserMetrics) -> String {
    let times = match (s.p50_us, s.p99_us) {
        (Some(p50), Some(p99)) => format!(", p50 {}, p99 {}", show_us(p50), show_us(p99)),
        _ => ", no times".into(),
    };
    format!("{} requests in {:.0} s, {} without a good answer{times}", s.requests, s.seconds, s.errors)
}

/// The heading of the column with the trials' rates.
fn rate_of(d: &TuneDocument) -> &'static str {
    if d.trials.iter().any(|t| !t.steps.is_empty()) { "met at/s" } else { "answered/s" }
}

/// Lists the settings that matter according to the search model, and those that do not.
fn what_mattered(effects: &[SettingEffect]) -> String {
    let mut out = String::new();
    let (shown, others): (Vec<&SettingEffect>, Vec<&SettingEffect>) = effects.iter().partition(|e| e.is_shown());
    for e in shown {
        let [low, high] = e.interval;
        let _ = writeln!(
            out,
            "  {} {} instead of {}: {:.2} times as good, {low:.2} to {high:.2} (as the search has it)",
            e.name, e.value, e.other, e.ratio
        );
    }
    if !others.is_empty() {
        let names: Vec<&str> = others.iter().map(|e| e.name.as_str()).collect();
        let _ = writeln!(out, "  not shown to matter: {}", names.join(", "));
    }
    out
}

/// Lists other settings with a different trade-off, if there is a choice.
fn choices(d: &TuneDocument) -> String {
    let trials: Vec<_> = d.undominated.iter().filter_map(|i| d.trials.get(*i)).collect();
    if trials.len() < 2 {
        return String::new();
    }
    let memory = |bytes: Option<u64>| bytes.map_or_else(|| "–".into(), show_bytes);
    let row = |t: &&lastdrop_model::documents::Trial| {
        vec![format!("{:.1}", t.objective), show_us(t.p99_us), memory(t.real_memory_bytes), describe(&t.settings)]
    };
    let rows: Vec<Vec<String>> = trials.iter().map(row).collect();
    format!(
        "\nthe choice between throughput, p99 and memory:\n{}",
        aligned(&[rate_of(d), "p99", "memory", "settings"], &rows)
    )
}

/// Lists the searched settings with their values, then the others with the reason.
fn explained(all: &[SearchedSetting]) -> String {
    let mut out = String::new();
    let (searched, left): (Vec<&SearchedSetting>, Vec<&SearchedSetting>) =
        all.iter().partition(|s| !s.values.is_empty());
    for s in searched {
        let values = match s.values.as_slice() {
            [first, .., last] if s.values.len() > MOST_VALUES => {
                format!("{first} … {last} ({} values)", s.values.len())
            }
            all => all.join(", "),
        };
        let _ = writeln!(out, "searched: {}: {values}: {}", s.name, s.reason);
    }
    for s in left {
        let _ = writeln!(out, "left alone: {}: {}", s.name, s.reason);
    }
    out.push('\n');
    out
}

/// An expected ratio below this is reported as no gain.
const LEAST_GAIN: f64 = 1.01;
/// If a setting has more values, only the first and the last are listed.
const MOST_VALUES: usize = 6;

/// Says how the load of a trial in this role differed from the others'. Empty if it did not, so that the
/// trials are comparable.
pub(crate) fn other_load(role: &str) -> &'static str {
    match role {
        "advice" => "; clients keep connections",
        "probe" => "; all users at once",
        "hold" => "; held",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::{Baseline, Pair, Winner};
    use lastdrop_model::{Setting, Settings};

    use super::*;

    #[test]
    fn a_baseline_that_answers_nothing_has_words_and_no_ratio() {
        let settings = Settings::from([("workers".to_string(), Setting::Count(8))]);
        let document = TuneDocument {
            verdict: TuneVerdict::Improved,
            reason: "the server as it is answered nothing".into(),
            baseline: Some(Baseline { settings: Settings::new(), objective: 0.0, p99_us: 0.0, run: "a".into() }),
            winner: Some(Winner {
                settings,
                ratio: None,
                interval: None,
                objective: 90.0,
                p99_us: 2000.0,
                meets: None,
                memory: None,
            }),
            race: vec![Pair { baseline: 0.0, best: 90.0 }],
            diff: vec!["+workers 8".into()],
            restored: true,
            ..TuneDocument::new("target".into(), "http://127.0.0.1/".into(), Goal::Throughput)
        };
        let text = tune_text(&document, false);
        assert!(text.contains("IMPROVED: the server as it is answered nothing") && text.contains('–'), "{text}");
        assert!(!text.contains("inf") && !text.contains("before"), "{text}");
    }
}
