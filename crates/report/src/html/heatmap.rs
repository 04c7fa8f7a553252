//! Latency as a heat map: columns are time, rows are bands of latency, and darker cells hold more answers. It
//! shows what percentiles hide: two groups of answers, a stall, a drift.

use std::fmt::Write as _;

use lastdrop_model::units::show_us;
use maud::{Markup, html};
use serde_json::json;

use super::bins::{Bins, row_begins};
use super::chart::figure;
use super::number::{count, seconds};
use super::table::Table;
use super::text::json_block;

const MOST_COLUMNS: usize = 180;
const LEVELS: usize = 8;
/// A map with fewer rows gets empty rows above and below.
const FEWEST_ROWS: u16 = 8;

/// Cells of the map: per column, the number of answers in each row from the lowest up.
struct Cells {
    /// Start and end of each column, seconds.
    columns: Vec<(f64, f64)>,
    lowest: u16,
    rows: usize,
    counts: Vec<Vec<u64>>,
}

impl Cells {
    fn of(bins: &Bins) -> Option<Cells> {
        let together = bins.bins.len().div_ceil(MOST_COLUMNS);
        let all = bins.bins.iter().flat_map(|b| b.rows.keys());
        let (lowest, highest) = (all.clone().min().copied()?, all.max().copied()?);
        // If all answers took about the same time, add empty rows above and below.
        let beside = if highest - lowest < FEWEST_ROWS { FEWEST_ROWS / 2 } else { 0 };
        let lowest = lowest.saturating_sub(beside);
        let rows = usize::from(highest + beside - lowest) + 1;
        let mut cells = Cells { columns: Vec::new(), lowest, rows, counts: Vec::new() };
        for some in bins.bins.chunks(together) {
            let mut column = vec![0; rows];
            for (row, n) in some.iter().flat_map(|b| &b.rows) {
                column[usize::from(row - lowest)] += n;
            }
            let (first, last) = (&some[0], &some[some.len() - 1]);
            cells.columns.push((first.start_s, last.start_s + last.span_s));
            cells.counts.push(column);
        }
        Some(cells)
    }

    /// Returns the shade for a number of answers. The scale is logarithmic, so one in ten thousand remains
    /// visible.
    fn level(n: u64, most: u64) -> usize {
        let share = (n as f64).ln_1p() / (most as f64).ln_1p();
        ((share * LEVELS as f64).ceil() as usize).clamp(1, LEVELS)
    }
}

/// Draws the map, if there were answers.
pub(super) fn heat_map(bins: &Bins) -> Markup {
    let Some(cells) = Cells::of(bins) else { return Markup::default() };
    let most = cells.counts.iter().flatten().copied().max().unwrap_or(1);
    // One path per shade: thousands of cells take only tens of kilobytes.
    let mut paths = vec![String::new(); LEVELS];
    for (x, column) in cells.counts.iter().enumerate() {
        for (y, n) in column.iter().enumerate().filter(|(_, n)| **n > 0) {
            let _ = write!(paths[Cells::level(*n, most) - 1], "M{x} {}h1v1h-1z", cells.rows - 1 - y);
        }
    }
    let (columns, rows) = (cells.columns.len(), cells.rows);
    let end = cells.columns.last().map_or(0.0, |c| c.1);
    let moment = if end < 1.0 { digits } else { rounded };
    let data = json!({
        "columns": cells.columns.iter().map(|(a, b)| json!([moment(*a), moment(*b)])).collect::<Vec<_>>(),
        "rows": (0..=rows).map(|i| rounded(row_begins(cells.lowest + i as u16))).collect::<Vec<_>>(),
        "counts": cells.counts,
    });
    let words = words_of_rows(&cells);
    let drawing = html! {
        div.heat tabindex="0" role="img" aria-label="Answers by time and latency" {
            ol.rows { @for word in &words { li { (word) } } }
            svg viewBox=(format!("0 0 {columns} {rows}")) preserveAspectRatio="none" aria-hidden="true" {
                @for (i, path) in paths.iter().enumerate() { path.heat-cell.(format!("h{}", i + 1)) d=(path) {} }
                rect.aim x="0" y="0" width="1" height="1" visibility="hidden" {}
            }
            ol.columns { @for i in 0..=4 { li { (seconds(digits(end * f64::from(i) / 4.0))) } } }
            script type="application/json" { (maud::PreEscaped(json_block(&data))) }
        }
        p.scale {
            "one answer "
            @for i in 1..=LEVELS { svg.swatch viewBox="0 0 1 1" aria-hidden="true" { path.(format!("h{i}")) d="M0 0h1v1h-1z" {} } }
            " " (count(most)) @if most > 1 { " answers" } @else { " answer" }
        }
    };
    figure(
        "Every answer, by when and how long",
        "Darker is more answers. Two dark bands are two kinds of answers; a column that reaches up is a stall.",
        &[],
        drawing,
        &table(&cells),
    )
}

/// Formats three digits, also for columns of a few milliseconds.
fn digits(v: f64) -> f64 {
    let scale = 10f64.powi((2 - v.log10().floor().clamp(-9.0, 2.0) as i32).max(0));
    (v * scale).round() / scale
}

fn rounded(v: f64) -> f64 {
    (v * 100.0).round() / 100.0
}

/// Five evenly spaced row labels, from the top.
fn words_of_rows(cells: &Cells) -> Vec<String> {
    let at = |i: usize| row_begins(cells.lowest + ((cells.rows * i) as f64 / 4.0).round() as u16);
    (0..=4).rev().map(|i| show_us(at(i))).collect()
}

/// The map as a table: wide columns of time, bands of a third of a decade.
fn table(cells: &Cells) -> Table {
    const COLUMNS: usize = 12;
    let together = cells.columns.len().div_ceil(COLUMNS);
    let mut table = Table::new(
        "answers by time and latency",
        1,
        &["from", "to", "answers", "fastest band", "most answers in", "slowest band"],
    );
    for (columns, counts) in cells.columns.chunks(together).zip(cells.counts.chunks(together)) {
        let sums: Vec<u64> = (0..cells.rows).map(|r| counts.iter().map(|c| c[r]).sum()).collect();
        let band = |row: Option<usize>| {
            row.map_or("–".into(), |r| {
                let begins = cells.lowest + r as u16;
                format!("{} – {}", show_us(row_begins(begins)), show_us(row_begins(begins + 1)))
            })
        };
        let most = sums.iter().enumerate().max_by_key(|(_, n)| **n).filter(|(_, n)| **n > 0).map(|(r, _)| r);
        table.row(vec![
            seconds(columns[0].0),
            seconds(columns[columns.len() - 1].1),
            count(sums.iter().sum()),
            band(sums.iter().position(|n| *n > 0)),
            band(most),
            band(sums.iter().rposition(|n| *n > 0)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::run_of;
    use super::*;

    #[test]
    fn one_answer_in_many_is_seen() {
        assert_eq!((Cells::level(1, 1), Cells::level(1, 1_000_000), Cells::level(1_000_000, 1_000_000)), (8, 1, 8));
    }

    #[test]
    fn moments_of_the_shortest_runs_are_told_apart() {
        assert_eq!([0.0, 0.001_923, 0.5, 4.625, 17.25, 3600.5].map(digits), [0.0, 0.00192, 0.5, 4.63, 17.3, 3601.0]);
    }

    #[test]
    fn a_map_has_all_answers_and_is_small() {
        let bins = Bins::of(&run_of(3600, 40));
        let cells = Cells::of(&bins).expect("answers");
        assert!(cells.columns.len() <= MOST_COLUMNS);
        assert_eq!(cells.counts.iter().flatten().sum::<u64>(), 3600 * 40);
        assert!(heat_map(&bins).into_string().len() < 200_000);
        assert!(heat_map(&Bins::default()).into_string().is_empty());
    }
}
