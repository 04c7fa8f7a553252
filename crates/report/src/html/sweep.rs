//! The section of a sweep: the table of combinations, and the effect of each varying column.

use lastdrop_model::documents::{SweepDocument, SweepRow};
use lastdrop_model::units::show_us;
use maud::{Markup, html};

use super::axis::Axis;
use super::bars::{Bar, bars};
use super::chart::{Chart, Shape};
use super::compare::notes;
use super::number::{Unit, count, grouped};
use super::page::Section;
use super::percentiles::COLOURS;
use super::table::{NOTES, Table};
use super::text::short;
use super::verdict::{Headline, Tone};

/// Rows that get a bar.
const MOST_BARS: usize = 60;

pub(super) fn section(d: &SweepDocument) -> Section {
    let body = html! {
        (verdict(d).shown())
        (overview(d))
        div.pair { @for column in &d.varying { (against(d, column)) } }
        (fixed(d))
        (notes(&d.notes))
    };
    let server = d.server.as_deref().unwrap_or("a server");
    Section {
        title: format!("What settings of {server} do"),
        about: vec![format!("{} combinations", d.rows.len())],
        body,
    }
}

/// Returns the value of a row in a varying column.
fn cell(row: &SweepRow, column: &str) -> String {
    match column {
        "series" | "variant" => row.series.clone(),
        "url" => row.url.clone(),
        "users" | "NC" => row.users.to_string(),
        "requests" | "NR" => row.requests.to_string(),
        "query_length" | "query" => row.query_length.map_or("–".into(), |n| n.to_string()),
        "header" => row.header.clone(),
        "directives" => row.directives.clone(),
        name => row.settings.get(name).map_or("–".into(), ToString::to_string),
    }
}

fn named(d: &SweepDocument, row: &SweepRow) -> String {
    let is_said = |c: &&String| *c != "directives" || !row.directives.is_empty();
    let parts: Vec<String> = d
        .varying
        .iter()
        .filter(is_said)
        .map(|c| if c == "series" || c == "directives" { cell(row, c) } else { format!("{c} {}", cell(row, c)) })
        .collect();
    if parts.is_empty() { row.series.clone() } else { parts.join(", ") }
}

pub(crate) fn verdict(d: &SweepDocument) -> Headline {
    let measured: Vec<&SweepRow> = d.rows.iter().filter(|r| r.answered > 0).collect();
    let best = measured.iter().max_by(|a, b| a.rps.total_cmp(&b.rps));
    let worst = measured.iter().min_by(|a, b| a.rps.total_cmp(&b.rps));
    let (Some(best), Some(worst)) = (best, worst) else { return Headline::new(Tone::Bad, "Nothing was answered.") };
    let tone = if d.complete { Tone::Note } else { Tone::Warning };
    let mut told = Headline::new(tone, format!("Most answers a second with {}.", short(&named(d, best), 160)));
    told.say(format!(
        "{} there, {} with {}.",
        Unit::Rate.show(best.rps),
        Unit::Rate.show(worst.rps),
        short(&named(d, worst), 160)
    ));
    told.say(if d.rounds > 1 {
        "Where the intervals of two overlap they may well be equal; compare and tune decide."
    } else {
        "One measurement of each does not prove which is better; compare and tune do."
    });
    if !d.complete {
        told.say("It ended before all combinations were measured.");
    }
    told.number(Unit::Rate.show(best.rps), "best");
    told.number(Unit::Rate.show(worst.rps), "worst");
    told.number(count(d.rows.len() as u64), "combinations");
    told
}

fn overview(d: &SweepDocument) -> Markup {
    let heading = [
        "what",
        "requests",
        "users",
        "answered",
        "failed",
        "rate",
        "from",
        "to",
        "half within",
        "99 of 100 within",
        NOTES,
    ];
    let mut table = Table::new("all combinations", 1, &heading);
    for r in &d.rows {
        let edge = |i: usize| r.rps_interval.map_or("–".into(), |v| grouped(v[i]));
        // Without answers there is no latency.
        let took = |us: f64| if r.answered == 0 { "–".into() } else { show_us(us) };
        table.row(vec![
            named(d, r),
            count(r.requests),
            r.users.to_string(),
            count(r.answered),
            count(r.failed),
            Unit::Rate.show(r.rps),
            edge(0),
            edge(1),
            took(r.p50_us),
            took(r.p99_us),
            // A note may have several lines of a log.
            r.note.replace('\n', " "),
        ]);
    }
    let rows: Vec<Bar> = d
        .rows
        .iter()
        .take(MOST_BARS)
        .map(|r| Bar {
            name: short(&named(d, r), 140),
            value: r.rps,
            says: if r.answered == 0 {
                "nothing".into()
            } else {
                format!("{}, p99 {}", Unit::Rate.show(r.rps), show_us(r.p99_us))
            },
            colour: if r.failed > 0 { "c2" } else { "c1" },
            mark: None,
        })
        .collect();
    html! {
        h2.group { "All combinations" }
        (bars("Answers a second", "Where some requests failed the bar is orange.", &rows, &Table::default()))
        (table.shown())
    }
}

/// Plots a numeric column against throughput, with a line per combination of the others.
fn against(d: &SweepDocument, column: &str) -> Markup {
    // Keep the order of the rows, in which 2 comes before 16.
    let mut lines: Vec<(String, Vec<(f64, &SweepRow)>)> = Vec::new();
    for r in d.rows.iter().filter(|r| r.answered > 0) {
        let Ok(x) = cell(r, column).parse::<f64>() else { continue };
        let others: Vec<String> =
            d.varying.iter().filter(|c| *c != column).map(|c| format!("{c} {}", cell(r, c))).collect();
        let others = others.join(", ");
        match lines.iter_mut().find(|(name, _)| *name == others) {
            Some((_, points)) => points.push((x, r)),
            None => lines.push((others, vec![(x, r)])),
        }
    }
    lines.retain(|(_, points)| points.len() > 1);
    if lines.is_empty() {
        return Markup::default();
    }
    let all = || lines.iter().flat_map(|(_, points)| points);
    let mut chart = Chart::new(
        format!("Answers a second against {column}"),
        Axis::around("value of the setting", Unit::Count, all().map(|(x, _)| *x)),
        Axis::from_zero("answers a second", Unit::Rate, all().map(|(_, r)| r.rps)),
    );
    let mut table =
        Table::new(format!("answers a second against {column}"), 1, &["others", "value", "rate", "99 of 100 within"]);
    for ((others, points), colour) in lines.iter_mut().zip(COLOURS) {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart.line(colour, "thin", &points.iter().map(|(x, r)| (*x, r.rps)).collect::<Vec<_>>());
        for (x, r) in points.iter() {
            if let Some([low, high]) = r.rps_interval {
                chart.interval(colour, *x, low, high);
            }
            let says =
                format!("{column} {}: {}, 99 of 100 within {}", grouped(*x), Unit::Rate.show(r.rps), show_us(r.p99_us));
            chart.point(colour, Shape::Dot, *x, r.rps, &says);
            table.row(vec![others.clone(), grouped(*x), Unit::Rate.show(r.rps), show_us(r.p99_us)]);
        }
        if !others.is_empty() {
            chart.legend(colour, "line", short(others, 60));
        }
    }
    chart.figure(&short(column, 60), "", &table)
}

fn fixed(d: &SweepDocument) -> Markup {
    let rows = d
        .fixed
        .iter()
        .map(|(name, value)| vec![name.clone(), value.as_str().map_or_else(|| value.to_string(), ToString::to_string)]);
    let table = Table::new("the same in all of them", 2, &["what", "value"]).rows(rows);
    html! { @if !table.is_empty() { (table.folded()) } }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::SWEEP_SCHEMA;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_combination_that_was_refused_has_no_times_and_says_why() {
        let d: SweepDocument = serde_json::from_value(json!({
            "schema": SWEEP_SCHEMA, "server": "apache", "varying": ["workers"], "fixed": {}, "complete": true, "notes": [],
            "rows": [{"series": "", "url": "http://a/", "settings": {"workers": 8}, "requests": 0, "users": 2, "answered": 0, "failed": 0,
                "rps": 0.0, "p50_us": 0.0, "p99_us": 0.0, "warmed": "no", "run": "", "note": "it would not take it:\nAH00180: too many"}]}))
        .expect("a document");
        let page = overview(&d).into_string();
        assert!(!page.contains("0 µs") && page.contains("it would not take it: AH00180: too many"), "{page}");
    }
}
