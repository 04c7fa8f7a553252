//! The section of a server's memory: what a worker really takes, how many fit, and the fitted model with its
//! data.

use lastdrop_model::documents::{SharingPoint, SizeDocument, SizeFit, SizeFits};
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
use super::verdict::{Headline, Tone};

pub(super) fn section(d: &SizeDocument) -> Section {
    let body = html! {
        (verdict(d).shown())
        h2.group { "Memory" }
        div.pair { (sums(d)) @if let Some(found) = &d.fits { (fits(d, found)) } }
        @if let Some(fit) = &d.fit { (model(d, fit)) }
        (workers(d))
        (variants(d))
        (notes(&d.notes))
    };
    let about = vec![d.version.clone(), d.model.clone(), format!("{} workers", d.workers.count)];
    Section { title: format!("How many workers of {} fit", d.server), about, body }
}

pub(crate) fn verdict(d: &SizeDocument) -> Headline {
    let each = d.workers.private_bytes.max;
    let mut told = match d.fits {
        Some(fits) => Headline::new(
            if fits.worst_case == 0 { Tone::Bad } else { Tone::Note },
            format!(
                "{}{} workers surely fit into {}; {} if not all are at their largest at once.",
                needed(d),
                count(fits.worst_case),
                show_bytes(d.budget_bytes),
                count(fits.independent)
            ),
        ),
        None => Headline::new(
            Tone::Note,
            format!(
                "None of the {} workers has served anything yet: how many fit is not known before they have (--url URL).",
                count(d.workers.count)
            ),
        ),
    };
    // The name of an option alone makes no sentence.
    told.say(match d.budget_from.as_str() {
        "--memory" => "The budget is what was given by --memory.".into(),
        from => format!("The budget is {from}."),
    });
    if let Some(advice) = &d.workers_advice {
        told.say(format!("Workers: {}.", advice.line()));
    }
    if !d.suggested.is_empty() {
        told.say(format!("Suggested: {}.", describe(&d.suggested)));
    }
    if let Some(fits) = d.fits {
        told.number(count(fits.worst_case), "workers, worst case");
    }
    told.number(show_bytes(d.real_memory_bytes), "memory they take now");
    told.number(show_bytes(each), "of its own, the largest worker");
    told.number(show_bytes(d.budget_bytes), "budget");
    told
}

/// Says how many workers are needed before how many would fit; on a large machine the two are far apart.
fn needed(d: &SizeDocument) -> String {
    match d.workers_advice.as_ref().map(|advice| (advice, advice.need)) {
        Some((advice, Some(need))) if advice.too_few => format!(
            "{} workers are all that {} allows, {} would be needed; ",
            count(advice.number),
            advice.bound_by,
            count(need)
        ),
        Some((advice, Some(_))) => format!("{} workers are needed; ", count(advice.number)),
        Some((advice, None)) if advice.bound_by != "memory" => {
            format!("No more than {} workers ({}); ", count(advice.number), advice.bound_by)
        }
        _ => String::new(),
    }
}

/// The same memory, added up in three ways.
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

fn fits(d: &SizeDocument, found: &SizeFits) -> Markup {
    let formula = |name: &str| d.formulas.get(name).cloned().unwrap_or_default();
    let all = [
        ("worst case: all at their largest", "worst_case", found.worst_case, "c1"),
        ("independent of each other", "independent", found.independent, "c3"),
        ("with the classic formula", "classic_sharing", found.classic_sharing, "c4"),
        ("nothing shared", "no_sharing", found.no_sharing, "c4"),
    ];
    let rows: Vec<Bar> = all
        .iter()
        .map(|(name, _, n, colour)| Bar { name: (*name).into(), value: *n as f64, says: count(*n), colour, mark: None })
        .collect();
    let table = Table::new("workers that fit", 1, &["reckoned", "workers", NOTES])
        .rows(all.iter().map(|(name, key, n, _)| vec![(*name).into(), count(*n), formula(key)]));
    bars("How many fit into the budget", "", &rows, &table)
}

/// The line fitted to pools of several sizes, and the growth of workers.
fn model(d: &SizeDocument, fit: &SizeFit) -> Markup {
    let (shared, each) = (fit.shared_bytes.value, fit.per_worker_bytes.value);
    let most = fit
        .points
        .iter()
        .map(|p| p.workers)
        .chain([d.fits.unwrap_or_default().worst_case.min(4 * d.workers.count.max(8))])
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
    // Draw the budget only if it lies within the chart.
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

/// A component of a worker's memory: name, colour, shape, bytes.
type MemoryPart = (&'static str, Colour, Shape, fn(&SharingPoint) -> u64);

fn growth(fit: &SizeFit) -> Markup {
    if fit.sharing.is_empty() {
        return Markup::default();
    }
    let parts: [MemoryPart; 3] = [
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
    use lastdrop_model::documents::{WorkersAdvice, WorkersCeiling};
    use lastdrop_model::{Setting, Settings};

    use super::*;
    use crate::size::size_text;

    #[test]
    fn there_is_one_number_of_workers_and_the_block_to_copy_has_it() {
        let suggested = Settings::from([("MaxRequestWorkers".to_string(), Setting::from(57))]);
        let ceiling =
            |by: &str, number| WorkersCeiling { by: by.into(), number, reason: format!("{by} allows {number}") };
        let mut d = SizeDocument {
            fits: Some(SizeFits { independent: 213, worst_case: 200, ..SizeFits::default() }),
            profiles: [("dedicated".to_string(), suggested.clone())].into(),
            suggested,
            workers_advice: Some(WorkersAdvice {
                number: 57,
                need: Some(120),
                ceilings: vec![ceiling("database", 57), ceiling("memory", 213)],
                bound_by: "database".into(),
                too_few: true,
                lower: vec!["KeepAlive Off: 4 workers".into()],
                ..WorkersAdvice::default()
            }),
            ..SizeDocument::default()
        };
        let words = |d: &SizeDocument| verdict(d).sentences.join(" ");
        let advised = "57, TOO FEW, bound by database (need: 120; ceilings: database 57, memory 213)";
        assert!(words(&d).contains(advised) && words(&d).contains("Suggested: MaxRequestWorkers 57."), "{}", words(&d));
        let text = size_text(&d);
        assert!(text.contains(&format!("\nworkers: {advised}\n")) && text.contains("MaxRequestWorkers 57\n"), "{text}");
        assert!(text.contains("KeepAlive Off: 4 workers") && !text.contains("set no more than"), "{text}");
        // No worker has served a request yet, so none can be counted.
        (d.fits, d.workers_advice, d.workers.count, d.workers.cold) = (None, None, 5, 5);
        (d.suggested, d.profiles) = (Settings::new(), std::collections::BTreeMap::new());
        let all = words(&d) + &size_text(&d);
        assert!(all.contains("None of the 5 workers has served anything yet"), "{all}");
        assert!(
            !all.contains("surely") && !all.contains("MaxRequestWorkers") && !all.contains("workers that fit"),
            "{all}"
        );
    }
}
