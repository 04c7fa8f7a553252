//! The section of a server's memory: what a worker really takes, how many fit, and the model with what it was fitted to.

use lastdrop_model::documents::{SharingPoint, SizeBound, SizeDocument, SizeFit};
use lastdrop_model::settings::describe;
use lastdrop_model::units::show_bytes;
use maud::{Markup, html};

use super::axis::Axis;
use super::bars::{Bar, bars};
use super::chart::{Chart, Colour, Shape};
use super::compare::notes;
use super::number::{Unit, count, grouped};
use super::page::Section;
use super::table::{NOTES, Table};
use super::text::short;
use super::verdict::{Told, Tone};

pub(super) fn section(d: &SizeDocument) -> Section {
    let body = html! {
        (verdict(d).shown())
        h2.group { "Memory" }
        div.pair { (sums(d)) (fits(d)) }
        @if let Some(fit) = &d.fit { (model(d, fit)) }
        (workers(d))
        (variants(d))
        (notes(&d.notes))
    };
    let about = vec![d.version.clone(), d.model.clone(), format!("{} workers", d.workers.count)];
    Section { title: format!("How many workers of {} fit", d.server), about, body }
}

pub(crate) fn verdict(d: &SizeDocument) -> Told {
    let each = d.workers.private_bytes.max;
    let (safe, tight) = (d.fits.worst_case, d.fits.independent);
    let mut told = Told::new(
        if safe == 0 { Tone::Bad } else { Tone::Note },
        format!(
            "{} workers surely fit into {}; {} if not all are at their largest at once.",
            count(safe),
            show_bytes(d.budget_bytes),
            count(tight)
        ),
    );
    // An option is no sentence.
    told.say(match d.budget_from.as_str() {
        "--memory" => "The budget is what was given by --memory.".into(),
        from => format!("The budget is {from}."),
    });
    let tighter = tighter(d);
    if !d.suggested.is_empty() {
        let by = if tighter.is_some() { "By memory alone" } else { "Suggested" };
        told.say(format!("{by}: {}.", describe(&d.suggested)));
    }
    if let Some(bound) = tighter {
        told.say(format!("But set no more than {} workers: {}.", count(bound.workers), bound.because));
    }
    told.number(count(safe), "workers, worst case");
    told.number(show_bytes(d.real_memory_bytes), "memory they take now");
    told.number(show_bytes(each), "of its own, the largest worker");
    told.number(show_bytes(d.budget_bytes), "budget");
    told
}

/// What leaves room for fewer workers than memory does; of several the tightest.
pub(crate) fn tighter(d: &SizeDocument) -> Option<&SizeBound> {
    d.bounds.iter().filter(|bound| bound.workers < d.fits.independent).min_by_key(|bound| bound.workers)
}

/// The same memory by three ways of adding up.
fn sums(d: &SizeDocument) -> Markup {
    let rows: Vec<Bar> = [
        ("really (shared pages once)", d.real_memory_bytes, "c1"),
        ("size less shared, and the largest shared part", d.classic_real_memory_bytes, "c3"),
        ("sum of all sizes, as top shows them", d.sum_rss_bytes, "c4"),
        ("shared by all", d.shared_once_bytes, "c5"),
        ("budget", d.budget_bytes, "c2"),
    ]
    .into_iter()
    .map(|(name, bytes, colour)| Bar {
        name: name.into(),
        value: bytes as f64,
        says: show_bytes(bytes),
        colour,
        mark: None,
    })
    .collect();
    let table = Table::new("the pool's memory", 1, &["reckoned", "bytes"])
        .rows(rows.iter().map(|b| vec![b.name.clone(), count(b.value as u64)]));
    bars("What the pool takes now", "The same workers, added up in different ways.", &rows, &table)
}

fn fits(d: &SizeDocument) -> Markup {
    let formula = |name: &str| d.formulas.get(name).cloned().unwrap_or_default();
    let all = [
        ("worst case: all at their largest", "worst_case", d.fits.worst_case, "c1"),
        ("independent of each other", "independent", d.fits.independent, "c3"),
        ("with the classic formula", "classic_sharing", d.fits.classic_sharing, "c4"),
        ("nothing shared", "no_sharing", d.fits.no_sharing, "c4"),
    ];
    let rows: Vec<Bar> = all
        .iter()
        .map(|(name, _, n, colour)| Bar { name: (*name).into(), value: *n as f64, says: count(*n), colour, mark: None })
        .collect();
    let table = Table::new("workers that fit", 1, &["reckoned", "workers", NOTES])
        .rows(all.iter().map(|(name, key, n, _)| vec![(*name).into(), count(*n), formula(key)]));
    bars("How many fit into the budget", "", &rows, &table)
}

/// The line that was fitted to pools of several sizes, and how workers grow.
fn model(d: &SizeDocument, fit: &SizeFit) -> Markup {
    let (shared, each) = (fit.shared_bytes.value, fit.per_worker_bytes.value);
    let most = fit
        .points
        .iter()
        .map(|p| p.workers)
        .chain([d.fits.worst_case.min(4 * d.workers.count.max(8))])
        .max()
        .unwrap_or(1) as f64;
    let top = fit.points.iter().map(|p| p.total_bytes as f64).chain([shared + each * most]);
    let highest = top.clone().fold(0.0, f64::max);
    let mut chart = Chart::new(
        "Memory against workers",
        Axis::from_zero("workers", Unit::Count, [most]),
        Axis::from_zero("memory", Unit::Bytes, top),
    );
    let ends = |s: usize, w: usize| {
        let (s, w) = (fit.shared_bytes.interval[s], fit.per_worker_bytes.interval[w]);
        move |n: f64| (s + w * n).max(0.0)
    };
    let (low, high) = (ends(0, 0), ends(1, 1));
    chart.band("c1", &[0.0, most].map(|n| (n, low(n), high(n))));
    chart.line("c1", "", &[0.0, most].map(|n| (n, shared + each * n)));
    // Beyond the chart a line for it would stand at a wrong place.
    let budget = d.budget_bytes as f64;
    if budget <= highest {
        chart.level("c2", budget, "budget");
    }
    let mut table =
        Table::new("pools that were tried", 0, &["workers", "memory", "real", "anonymous", "of the kernel"]);
    for p in &fit.points {
        chart.point(
            "c2",
            Shape::Square,
            p.workers as f64,
            p.total_bytes as f64,
            &format!("{} workers: {}", p.workers, show_bytes(p.total_bytes)),
        );
        table.row(vec![
            count(p.workers),
            show_bytes(p.total_bytes),
            show_bytes(p.pss_bytes),
            show_bytes(p.pss_anonymous_bytes),
            show_bytes(p.kernel_bytes),
        ]);
    }
    chart.legend("c2", "square", "measured");
    chart.legend(
        "c1",
        "line",
        format!("{} shared + {} each", show_bytes(shared.max(0.0) as u64), show_bytes(each.max(0.0) as u64)),
    );
    chart.legend("c1", "area", "95 % of cases");
    let beyond =
        if budget > highest { format!("The budget, {}, is above.", show_bytes(d.budget_bytes)) } else { String::new() };
    html! { div.pair {
        (chart.figure("Memory against workers", &beyond, &table))
        (growth(fit))
    } }
}

/// A part of a worker's memory: its name, its colour and shape, its bytes.
type Part = (&'static str, Colour, Shape, fn(&SharingPoint) -> u64);

fn growth(fit: &SizeFit) -> Markup {
    if fit.sharing.is_empty() {
        return Markup::default();
    }
    let parts: [Part; 3] = [
        ("size", "c4", Shape::Ring, |p| p.size_bytes),
        ("of its own", "c1", Shape::Dot, |p| p.private_bytes),
        ("shared", "c3", Shape::Square, |p| p.shared_bytes),
    ];
    let mut chart = Chart::new(
        "A worker's memory by its age",
        Axis::from_zero("requests served", Unit::Count, fit.sharing.iter().map(|p| p.requests)),
        Axis::from_zero("memory", Unit::Bytes, fit.sharing.iter().map(|p| p.size_bytes as f64)),
    );
    let mut table = Table::new("a worker by its age", 0, &["requests", "size", "of its own", "shared"]);
    for p in &fit.sharing {
        table.row(vec![
            grouped(p.requests),
            show_bytes(p.size_bytes),
            show_bytes(p.private_bytes),
            show_bytes(p.shared_bytes),
        ]);
    }
    for (name, colour, shape, of) in parts {
        chart.line(colour, "thin", &fit.sharing.iter().map(|p| (p.requests, of(p) as f64)).collect::<Vec<_>>());
        for p in &fit.sharing {
            chart.point(
                colour,
                shape,
                p.requests,
                of(p) as f64,
                &format!("after {} requests: {name} {}", grouped(p.requests), show_bytes(of(p))),
            );
        }
        chart.legend(
            colour,
            match shape {
                Shape::Ring => "ring",
                Shape::Square => "square",
                _ => "dot",
            },
            name,
        );
    }
    let tells = match fit.settling.as_str() {
        "settled" => "It has reached its size.",
        "growing" => "It grows at the end as fast as before.",
        "slowing" => "It still grows, less and less.",
        other => &short(other, 80),
    };
    chart.figure("How a worker grows", tells, &table)
}

fn workers(d: &SizeDocument) -> Markup {
    let w = &d.workers;
    let rows = [
        ("size", w.rss_bytes),
        ("real (shared pages in parts)", w.pss_bytes),
        ("of its own", w.private_bytes),
        ("shared", w.shared_bytes),
    ];
    Table::new("a worker", 1, &["part", "mean", "largest"])
        .rows(rows.map(|(name, m)| vec![name.to_string(), show_bytes(m.mean), show_bytes(m.max)]))
        .shown()
}

fn variants(d: &SizeDocument) -> Markup {
    let heading = ["variant", "directives", "own, first request", "own, second request", "fit, worst case"];
    let rows = d.variants.iter().map(|v| {
        vec![
            v.name.clone(),
            v.directives.clone(),
            show_bytes(v.first.private_bytes),
            show_bytes(v.second.private_bytes),
            count(v.fits.worst_case),
        ]
    });
    let table = Table::new("with other directives", 2, &heading).rows(rows);
    html! { @if !table.is_empty() { (table.shown()) } }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::SizeFits;
    use lastdrop_model::{Setting, Settings};

    use super::*;
    use crate::size::size_text;

    #[test]
    fn more_workers_than_are_of_use_are_not_suggested() {
        let bound = |what: &str, workers| SizeBound { what: what.into(), workers, because: format!("{what} are few") };
        let suggested = Settings::from([("MaxRequestWorkers".to_string(), Setting::from(400))]);
        let mut d = SizeDocument {
            fits: SizeFits { independent: 400, worst_case: 300, ..SizeFits::default() },
            profiles: [("dedicated".to_string(), suggested.clone())].into(),
            suggested,
            bounds: vec![bound("processors", 450)],
            ..SizeDocument::default()
        };
        let words = |d: &SizeDocument| verdict(d).sentences.join(" ");
        assert!(
            words(&d).contains("Suggested: MaxRequestWorkers 400.") && !words(&d).contains("no more"),
            "{}",
            words(&d)
        );
        assert!(size_text(&d).contains("for a dedicated machine:"), "{}", size_text(&d));
        d.bounds.extend([bound("database-connections", 90), bound("processors", 17)]);
        assert!(!words(&d).contains("Suggested"), "{}", words(&d));
        assert!(
            words(&d).contains(
                "By memory alone: MaxRequestWorkers 400. But set no more than 17 workers: processors are few."
            )
        );
        let text = size_text(&d);
        assert!(text.contains("for a dedicated machine, by memory alone; set no more than 17 workers:"), "{text}");
    }
}
