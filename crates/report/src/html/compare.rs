//! The section of a comparison: what got better or worse, how certain that is, then both runs in the same
//! plots.

use lastdrop_model::documents::{CompareDocument, CompareKind, CompareVerdict, MetricComparison, MetricVerdict};
use lastdrop_model::{Histogram, Kind, Run};
use maud::{Markup, html};

use super::axis::Axis;
use super::bins::Bins;
use super::chart::{Chart, Colour, Shape};
use super::number::{Unit, change, seconds};
use super::page::Section;
use super::percentiles::percentile_curve;
use super::table::{NOTES, Table};
use super::text::{EscapedText, short};
use super::timeplot::{Clock, Plots, Series, TimePlot};
use super::verdict::{Headline, Tone};

pub(super) fn section(d: &CompareDocument, runs: Option<(&Run, &Run)>, plots: &mut Plots) -> Section {
    let body = html! {
        (verdict(d).shown())
        (intervals(d))
        @if let Some((a, b)) = runs { (over_each_other(a, b, plots)) }
        (blocks(d))
        (classes(d))
        (notes(&d.notes))
    };
    let title = match d.kind {
        CompareKind::Aa => format!("The noise of this machine, with {}", d.a.name),
        _ => format!("{} against {}", short(&d.b.name, 80), short(&d.a.name, 80)),
    };
    let how = match d.kind {
        CompareKind::Stored => "two runs that were made one after the other",
        CompareKind::Live => "both measured now, in interleaved blocks",
        CompareKind::Aa => "the same against itself, in interleaved blocks",
    };
    Section { title, about: vec![format!("A is {}", d.a.name), format!("B is {}", d.b.name), how.into()], body }
}

/// The notes below all other parts.
pub(super) fn notes(notes: &[String]) -> Markup {
    html! { @if !notes.is_empty() { ul.quiet { @for note in notes { li { (EscapedText(note)) } } } } }
}

fn name_of(metric: &str) -> String {
    match metric {
        "rps" => "answers a second".into(),
        "p50_us" => "half within".into(),
        "p90_us" => "90 of 100 within".into(),
        "p95_us" => "95 of 100 within".into(),
        "p99_us" => "99 of 100 within".into(),
        "p99_9_us" => "999 of 1,000 within".into(),
        "mean_us" => "mean latency".into(),
        other => other.trim_end_matches("_us").replace('_', " "),
    }
}

fn unit_of(metric: &str) -> Unit {
    match metric {
        "rps" => Unit::Rate,
        m if m.ends_with("_us") => Unit::Micros,
        m if m.contains("error") => Unit::Share,
        _ => Unit::Count,
    }
}

fn word(c: MetricVerdict) -> &'static str {
    match c {
        MetricVerdict::Better => "better",
        MetricVerdict::Worse => "worse",
        MetricVerdict::NoDifference => "no difference",
        MetricVerdict::Inconclusive => "cannot be told",
    }
}

fn colour(c: MetricVerdict) -> (Colour, Shape) {
    match c {
        MetricVerdict::Better => ("c3", Shape::Dot),
        MetricVerdict::Worse => ("c2", Shape::Square),
        MetricVerdict::NoDifference => ("c4", Shape::Ring),
        MetricVerdict::Inconclusive => ("c4", Shape::Cross),
    }
}

pub(crate) fn verdict(d: &CompareDocument) -> Headline {
    let (tone, headline) = match d.verdict {
        CompareVerdict::Better => (Tone::Good, "B is better."),
        CompareVerdict::Worse => (Tone::Bad, "B is worse."),
        CompareVerdict::Mixed => (Tone::Warning, "B is better in some ways and worse in others."),
        CompareVerdict::NoDifference => (Tone::Note, "No difference was shown."),
        CompareVerdict::Inconclusive => (Tone::Note, "It cannot be told from this whether B is better or worse."),
    };
    let mut told = Headline::new(tone, headline);
    told.say(d.reason.clone());
    if d.interrupted {
        told.say("It was interrupted; this is what was known by then.");
    }
    for (metric, m) in &d.metrics {
        if ["rps", "p50_us", "p99_us"].contains(&metric.as_str()) && m.ratio.is_finite() {
            told.number(
                change(m.ratio),
                format!("{}: {} → {}", name_of(metric), unit_of(metric).show(m.a), unit_of(metric).show(m.b)),
            );
        }
    }
    told
}

fn says(name: &str, m: &MetricComparison, unit: Unit) -> String {
    format!(
        "{name}: {} → {}, {} ({} to {}): {}",
        unit.show(m.a),
        unit.show(m.b),
        change(m.ratio),
        change(m.interval[0]),
        change(m.interval[1]),
        word(m.verdict)
    )
}

/// Each metric's ratio with its interval; 1 means no change.
fn intervals(d: &CompareDocument) -> Markup {
    // Without errors on both sides there is no ratio of errors.
    let no_errors = |name: &str, m: &MetricComparison| name == "errors" && m.a == 0.0 && m.b == 0.0;
    let mut metrics: Vec<_> =
        d.metrics.iter().filter(|(name, m)| m.ratio.is_finite() && m.ratio > 0.0 && !no_errors(name, m)).collect();
    metrics.sort_by_key(|(name, _)| *name != "rps");
    if metrics.is_empty() {
        return Markup::default();
    }
    // Metrics go from left to right, changes upwards, so the x axis has names instead of values.
    let finite = |v: f64, or: f64| if v.is_finite() { v.clamp(1.0 / FARTHEST, FARTHEST) } else { or };
    // A few more or fewer errors make a large ratio, which would squeeze the changes of the other metrics.
    let is_drawn = |name: &str, m: &MetricComparison| {
        name != "errors" || [m.ratio, m.interval[0], m.interval[1]].iter().all(|r| (1.0 / FEW..=FEW).contains(r))
    };
    let drawn: Vec<_> = metrics.iter().filter(|(name, m)| is_drawn(name, m)).collect();
    let edge = drawn.iter().flat_map(|(_, m)| [finite(m.interval[0], m.ratio), finite(m.interval[1], m.ratio)]);
    let far = edge.map(|v| v.ln().abs()).fold(0.05, f64::max) * 1.1;
    let named = drawn.iter().enumerate().map(|(i, (name, _))| ((i + 1) as f64, short_name(name))).collect();
    let mut chart = Chart::new(
        "Change of each metric with its interval",
        Axis::between("", Unit::Count, 0.4, drawn.len() as f64 + 0.6).with_names(named),
        ratios(far),
    );
    chart.level("c4", 1.0, "as A");
    let mut table =
        Table::new("B against A", 2, &["metric", "verdict", "A", "B", "change", "from", "to", "would be seen"]);
    for (i, (name, m)) in drawn.iter().enumerate() {
        let (colour, shape) = colour(m.verdict);
        let x = (i + 1) as f64;
        chart.interval(colour, x, finite(m.interval[0], m.ratio), finite(m.interval[1], m.ratio));
        chart.point(colour, shape, x, finite(m.ratio, 1.0), &says(&name_of(name), m, unit_of(name)));
    }
    for (name, m) in &metrics {
        let unit = unit_of(name);
        table.row(vec![
            name_of(name),
            word(m.verdict).into(),
            unit.show(m.a),
            unit.show(m.b),
            change(m.ratio),
            change(m.interval[0]),
            change(m.interval[1]),
            // A detection limit above tenfold says nothing.
            if m.smallest_difference < 10.0 { format!("{:.1} %", m.smallest_difference * 100.0) } else { "–".into() },
        ]);
    }
    for (c, form) in [
        (MetricVerdict::Better, "dot"),
        (MetricVerdict::Worse, "square"),
        (MetricVerdict::NoDifference, "ring"),
        (MetricVerdict::Inconclusive, "cross"),
    ] {
        if drawn.iter().any(|(_, m)| m.verdict == c) {
            chart.legend(colour(c).0, form, word(c));
        }
    }
    html! { h2.group { "What changed" } div.pair.uneven {
        (chart.figure("How much changed, and how sure that is", "The bar is where the true change is in 95 of 100 cases. Answers a second: up is better; times: down is better.", &Table::default()))
        div.beside { (table.shown()) }
    } }
}

/// A ratio of errors up to this is drawn with those of the other metrics.
const FEW: f64 = 5.0;
/// Larger changes are drawn at this value.
const FARTHEST: f64 = 200.0;

/// A symmetric axis of ratios around 1: linear for small ranges, logarithmic for large ones.
fn ratios(far: f64) -> Axis {
    const TITLE: &str = "change of B against A";
    if far < 1.0 {
        return Axis::between(TITLE, Unit::Ratio, (-far).exp(), far.exp());
    }
    let named = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0].map(|r| (r, format!("{r} ×"))).to_vec();
    Axis::named(TITLE, (-far).exp(), far.exp(), named)
}

fn short_name(metric: &str) -> String {
    match metric {
        "rps" => "rate".into(),
        m => m.trim_end_matches("_us").replacen("99_9", "99.9", 1).replace('_', " "),
    }
}

/// Both runs in the same plots: rate and latency by time since start, and the percentile curves.
fn over_each_other(a: &Run, b: &Run, plots: &mut Plots) -> Markup {
    let (bins_a, bins_b) = (Bins::of(a), Bins::of(b));
    // Both use the longer run's clock; the shorter run's values are placed at its moments.
    let (long, short) = if bins_a.end_s >= bins_b.end_s { (&bins_a, &bins_b) } else { (&bins_b, &bins_a) };
    let clock = Clock {
        name: "pair".into(),
        moments: long.middles(),
        end_s: long.end_s.max(short.end_s).max(1.0),
        marks: Vec::new(),
    };
    let at = |bins: &Bins, of: &dyn Fn(&super::bins::Bin) -> Option<f64>| -> Vec<Option<f64>> {
        clock.moments.iter().map(|t| bins.bins.get((*t / bins.width as f64) as usize).and_then(of)).collect()
    };
    let rate = |b: &super::bins::Bin| b.rate(b.answered);
    let series = |of: &dyn Fn(&super::bins::Bin) -> Option<f64>, name: &str| {
        vec![
            Series::new(format!("A {name}").trim().to_string(), "c1", at(&bins_a, of)),
            Series::new(format!("B {name}").trim().to_string(), "c2", at(&bins_b, of)).dashed(),
        ]
    };
    let mut latency = series(&|b| b.latency.map(|l| l.p50.max(1.0)), "half within");
    let mut slow = series(&|b| b.latency.map(|l| l.p99.max(1.0)), "99 of 100 within");
    slow[0].colour = "c5";
    slow[1].colour = "c6";
    latency.append(&mut slow);
    let table = {
        let mut table = Table::new(
            "A and B over time",
            1,
            &["from", "A rate", "B rate", "A half within", "B half within", "A 99 of 100", "B 99 of 100"],
        );
        let (mut i, step) = (0, clock.moments.len().div_ceil(60).max(1));
        let show = |v: Option<f64>, unit: Unit| v.map_or("–".into(), |v| unit.show(v));
        while i < clock.moments.len() {
            let of = |bins: &Bins| bins.bins.get((clock.moments[i] / bins.width as f64) as usize).cloned();
            let (a, b) = (of(&bins_a), of(&bins_b));
            let p = |bin: &Option<super::bins::Bin>, high: bool| {
                show(bin.as_ref().and_then(|b| b.latency).map(|l| if high { l.p99 } else { l.p50 }), Unit::Micros)
            };
            let r = |bin: &Option<super::bins::Bin>| show(bin.as_ref().and_then(rate), Unit::Rate);
            table.row(vec![
                seconds(clock.moments[i]),
                r(&a),
                r(&b),
                p(&a, false),
                p(&b, false),
                p(&a, true),
                p(&b, true),
            ]);
            i += step;
        }
        table
    };
    let plot = |title, unit, log, series| TimePlot {
        title,
        tells: "By the time since each began.".into(),
        unit,
        log,
        small: false,
        series,
    };
    let merged = |bins: &Bins| {
        let mut all = Histogram::new();
        bins.measured.iter().for_each(|(_, h)| all.add(h));
        all
    };
    let (ha, hb) = (merged(&bins_a), merged(&bins_b));
    let mut where_ = Table::new("where the time of a request went", 1, &["part", "A mean", "B mean", "A p99", "B p99"]);
    if let (Some(pa), Some(pb)) = (a.measured(), b.measured()) {
        for kind in Kind::ALL {
            let of = |p: &lastdrop_model::PhaseReport, f| {
                p.latency(kind, f).map_or("–".into(), |us| Unit::Micros.show(us))
            };
            if pa.latency(kind, "count").or(pb.latency(kind, "count")).is_some() {
                where_.row(vec![
                    kind.name().replace('_', " "),
                    of(pa, "mean"),
                    of(pb, "mean"),
                    of(pa, "p99"),
                    of(pb, "p99"),
                ]);
            }
        }
    }
    html! {
        h2.group { "Both over each other" }
        div.stack {
            (plots.add(&clock, plot("Answers a second", Unit::Rate, false, series(&rate, "")), &[], &table))
            (plots.add(&clock, plot("How long people waited", Unit::Micros, true, latency), &[], &Table::default()))
        }
        div.pair {
            (percentile_curve(&[("A".into(), &ha), ("B".into(), &hb)], "Where the curves part, the slowest ones differ and not the usual ones."))
            div.beside { (where_.shown()) }
        }
    }
}

/// The pairs of interleaved blocks.
fn blocks(d: &CompareDocument) -> Markup {
    let pairs: Vec<_> = d.blocks.iter().filter_map(|b| Some((b.a.get("rps")?, b.b.get("rps")?, b))).collect();
    if pairs.is_empty() {
        return Markup::default();
    }
    let mut chart = Chart::new(
        "Answers a second of each block",
        Axis::between("block", Unit::Count, 0.0, pairs.len() as f64 + 1.0),
        Axis::from_zero("answers a second", Unit::Rate, pairs.iter().flat_map(|(a, b, _)| [**a, **b])),
    );
    let mut table = Table::new("blocks", 1, &["block", "A", "B", "change", NOTES]);
    for (i, (a, b, block)) in pairs.iter().enumerate() {
        let x = (i + 1) as f64;
        let spoiled =
            if block.spoiled.is_empty() { String::new() } else { format!("; does not count: {}", block.spoiled) };
        for (value, colour, shape, name) in [(**a, "c1", Shape::Dot, "A"), (**b, "c2", Shape::Square, "B")] {
            let shape = if block.spoiled.is_empty() { shape } else { Shape::Cross };
            chart.point(
                colour,
                shape,
                x,
                value,
                &format!("block {}, {name}: {}{spoiled}", i + 1, Unit::Rate.show(value)),
            );
        }
        let ratio = if **a > 0.0 { change(**b / **a) } else { "–".into() };
        table.row(vec![(i + 1).to_string(), Unit::Rate.show(**a), Unit::Rate.show(**b), ratio, block.spoiled.clone()]);
    }
    chart.legend("c1", "dot", "A");
    chart.legend("c2", "square", "B");
    html! { h2.group { "Block by block" } div.pair { (chart.figure("The blocks one by one", "A pair a block; crosses do not count.", &table)) } }
}

fn classes(d: &CompareDocument) -> Markup {
    let mut table = Table::new("by class of request", 2, &["class", "metric", "A", "B", "change", "from", "to", NOTES]);
    for class in &d.classes {
        for (metric, m) in &class.metrics {
            table.row(vec![
                short(&class.name, 60),
                name_of(metric),
                unit_of(metric).show(m.a),
                unit_of(metric).show(m.b),
                change(m.ratio),
                change(m.interval[0]),
                change(m.interval[1]),
                word(m.verdict).into(),
            ]);
        }
    }
    html! { @if !table.is_empty() { (table.shown()) } }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::COMPARE_SCHEMA;
    use serde_json::json;

    use super::*;

    fn comparison(errors: (f64, f64), ratio: f64, interval: [f64; 2]) -> String {
        let d: CompareDocument = serde_json::from_value(json!({
            "schema": COMPARE_SCHEMA, "kind": "live", "a": {"name": "a", "runs": []}, "b": {"name": "b", "runs": []},
            "metrics": {
                "rps": {"a": 1.0, "b": 1.1, "ratio": 1.1, "interval": [1.05, 1.15], "verdict": "better", "smallest_difference": 0.1},
                "errors": {"a": errors.0, "b": errors.1, "ratio": ratio, "interval": interval, "verdict": "inconclusive",
                    "smallest_difference": 276.7}},
            "verdict": "better", "because": "", "smallest_difference": 0.1, "blocks": [], "noise_floor": null, "interrupted": false,
            "notes": []}))
        .expect("a document");
        intervals(&d).into_string()
    }

    #[test]
    fn errors_are_told_where_there_are_some_and_drawn_where_that_leaves_room_for_the_others() {
        let drawn = |page: &str| page.split("<table").next().is_some_and(|chart| chart.contains(">errors<"));
        let none = comparison((0.0, 0.0), 1.0, [0.007, 19.0]);
        assert!(!none.contains("errors") && none.contains("+10.0 %"), "{none}");
        let many = comparison((0.001, 0.2), 150.0, [40.0, 900.0]);
        assert!(
            !drawn(&many) && many.contains("errors") && many.contains("150 ×") && !many.contains("27670"),
            "{many}"
        );
        // Without the errors, the other metrics have a scale of their own.
        assert!(!many.contains("100 ×<"), "{many}");
        let some = comparison((0.1, 0.2), 2.0, [1.5, 3.0]);
        assert!(drawn(&some), "{some}");
    }
}
