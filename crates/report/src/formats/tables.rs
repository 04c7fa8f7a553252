//! The table of each document: raw numbers with units in the column names for programs, readable values for
//! people.

use lastdrop_model::documents::{
    CapacityDocument, CompareDocument, DoctorDocument, HeadroomDocument, Severity, SizeDocument, SweepDocument,
    TraceDocument, TuneDocument,
};
use lastdrop_model::units::{show_bytes, show_us};
use lastdrop_model::{Kind, Run, Settings};
use serde_json::{Map, Value};

use crate::html::ReportDocument;
use crate::run::{describe_load, utc};
use crate::table::quote;

/// A cell of a table.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    None,
    Text(String),
    Count(u64),
    /// In the unit that the column name gives.
    Number(f64),
    Us(f64),
    Bytes(u64),
    /// A fraction of 1.
    Share(f64),
}

impl Cell {
    fn maybe<T>(value: Option<T>, cell: impl FnOnce(T) -> Cell) -> Cell {
        value.map_or(Cell::None, cell)
    }

    fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    /// Returns the raw value, for programs.
    fn raw(&self) -> String {
        match self {
            Cell::None => String::new(),
            Cell::Text(text) => quote(text),
            Cell::Count(n) | Cell::Bytes(n) => n.to_string(),
            Cell::Number(x) | Cell::Us(x) | Cell::Share(x) => x.to_string(),
        }
    }

    /// Returns the value as people read it.
    pub fn shown(&self) -> String {
        match self {
            Cell::None => "–".into(),
            Cell::Text(text) => text.clone(),
            Cell::Count(n) => n.to_string(),
            Cell::Number(x) if x.fract() == 0.0 => x.to_string(),
            Cell::Number(x) => format!("{x:.3}"),
            Cell::Us(us) => show_us(*us),
            Cell::Bytes(bytes) => show_bytes(*bytes),
            Cell::Share(share) => format!("{:.2} %", share * 100.0),
        }
    }
}

/// A table: column names and rows.
#[derive(Debug, Default, PartialEq)]
pub struct Table {
    pub(super) heading: Vec<String>,
    pub(super) rows: Vec<Vec<Cell>>,
}

impl Table {
    fn new(heading: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> Table {
        Table { heading: heading.iter().map(ToString::to_string).collect(), rows: rows.into_iter().collect() }
    }

    /// Renders CSV as in RFC 4180.
    #[must_use]
    pub fn csv(&self) -> String {
        let heading = self.heading.iter().map(|h| quote(h)).collect::<Vec<_>>().join(",");
        let rows = self.rows.iter().map(|row| row.iter().map(Cell::raw).collect::<Vec<_>>().join(","));
        std::iter::once(heading).chain(rows).map(|line| line + "\r\n").collect()
    }

    /// Returns one object per row, keyed by column name; empty cells are left out.
    #[must_use]
    pub fn objects(&self) -> Vec<Map<String, Value>> {
        let value = |cell: &Cell| match cell {
            Cell::None => None,
            Cell::Text(text) => Some(text.as_str().into()),
            Cell::Count(n) | Cell::Bytes(n) => Some((*n).into()),
            Cell::Number(x) | Cell::Us(x) | Cell::Share(x) => Some((*x).into()),
        };
        let object = |row: &Vec<Cell>| {
            self.heading.iter().zip(row).filter_map(|(name, cell)| Some((name.clone(), value(cell)?))).collect()
        };
        self.rows.iter().map(object).collect()
    }

    /// Renders Markdown: units stand with the numbers, not in the column names.
    #[must_use]
    pub fn markdown(&self) -> String {
        let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let name = |heading: &String| {
            let bare = ["_us", "_bytes"].iter().find_map(|unit| heading.strip_suffix(unit)).unwrap_or(heading);
            super::markdown::escaped(&bare.replace("p99_9", "p99.9").replace('_', " "))
        };
        let is_number = |i: usize| self.rows.iter().all(|r| !matches!(r.get(i), Some(Cell::Text(_)) | None));
        let rule = (0..self.heading.len()).map(|i| if is_number(i) { "---:".into() } else { "---".into() }).collect();
        let rows = self.rows.iter().map(|r| row(r.iter().map(|c| super::markdown::escaped(&c.shown())).collect()));
        [row(self.heading.iter().map(name).collect()), row(rule)].into_iter().chain(rows).collect()
    }
}

/// A row of a store's history: a run, or the result of several.
#[derive(Debug)]
pub struct HistoryRow<'a> {
    pub id: &'a str,
    pub unix_ms: u64,
    /// `run`, `tune` …
    pub what: &'a str,
    pub url: &'a str,
    pub label: &'a str,
    /// The run, if it has ended.
    pub run: Option<&'a Run>,
    /// Number of runs that the row stands for; 0 if unknown.
    pub runs: usize,
}

/// The table of a store's contents.
#[must_use]
pub fn history_table(kept: &[HistoryRow<'_>]) -> Table {
    let row = |k: &HistoryRow<'_>| {
        let measured = k.run.and_then(Run::measured);
        let load = k.run.and_then(|run| run.plan.phases.iter().find(|p| p.measured));
        vec![
            Cell::text(k.id),
            Cell::text(utc(k.unix_ms)),
            Cell::text(k.what),
            Cell::maybe(measured, |p| Cell::Number(p.rate.answered_rps)),
            Cell::maybe(measured.and_then(|p| p.latency(Kind::Response, "p99")), Cell::Us),
            Cell::maybe(measured, |p| Cell::Count(p.requests.due.saturating_sub(p.requests.answered))),
            Cell::maybe(load, |p| Cell::Text(describe_load(p))),
            Cell::text(k.url),
            Cell::text(k.label),
            Cell::maybe(Some(k.runs).filter(|n| *n > 0), |n| Cell::Count(n as u64)),
        ]
    };
    let heading = ["id", "started", "what", "answered_rps", "p99_us", "unanswered", "load", "url", "label", "runs"];
    Table::new(&heading, kept.iter().map(row))
}

/// Returns the document's table, or `None` if it has none.
pub(super) fn table(shown: &ReportDocument) -> Option<Table> {
    Some(match shown {
        ReportDocument::Run(run) => phases(run),
        ReportDocument::Pair(d, ..) | ReportDocument::Compare(d) => metrics(d),
        ReportDocument::Capacity(d) => steps(d),
        ReportDocument::Headroom(d) => headroom(d),
        ReportDocument::Tune(d) => trials(d),
        ReportDocument::Doctor(d) => findings(d),
        ReportDocument::Sweep(d) => sweep(d),
        ReportDocument::Size(d) => fits(d),
        ReportDocument::Trace(d) => calls(d),
        ReportDocument::Profile(_) => return None,
    })
}

const LATENCIES: [&str; 7] = ["mean", "p50", "p90", "p95", "p99", "p99_9", "max"];

fn phases(run: &Run) -> Table {
    let heading = [
        "phase",
        "measured",
        "seconds",
        "due",
        "sent",
        "answered",
        "failed",
        "timed_out",
        "censored",
        "unsent",
        "answered_rps",
        "mean_us",
        "p50_us",
        "p90_us",
        "p95_us",
        "p99_us",
        "p99_9_us",
        "max_us",
    ];
    let row = |p: &lastdrop_model::PhaseReport| {
        let r = &p.requests;
        let counts = [r.due, r.sent, r.answered, r.failed.total(), r.timed_out, r.censored, r.unsent].map(Cell::Count);
        let first = [Cell::text(&p.name), Cell::text(p.measured.to_string()), Cell::Number(p.duration_s)];
        let times = LATENCIES.map(|field| Cell::maybe(p.latency(Kind::Response, field), Cell::Us));
        first.into_iter().chain(counts).chain([Cell::Number(p.rate.answered_rps)]).chain(times).collect()
    };
    Table::new(&heading, run.phases.iter().map(row))
}

/// The verdict's name in JSON.
fn word(verdict: impl serde::Serialize) -> String {
    serde_json::to_value(verdict).ok().and_then(|v| v.as_str().map(String::from)).unwrap_or_default()
}

fn metrics(d: &CompareDocument) -> Table {
    let classes = d.classes.iter().flat_map(|c| c.metrics.iter().map(move |(name, m)| (c.name.as_str(), name, m)));
    let rows = d.metrics.iter().map(|(name, m)| ("", name, m)).chain(classes).map(|(class, name, m)| {
        let value = |x: f64| match name.as_str() {
            "errors" => Cell::Share(x),
            name if name.ends_with("_us") => Cell::Us(x),
            _ => Cell::Number(x),
        };
        let known = |x: f64| if m.interval[1] < 1e9 { Cell::Number(x) } else { Cell::None };
        vec![
            Cell::text(class),
            Cell::text(name),
            value(m.a),
            value(m.b),
            Cell::Number(m.ratio),
            known(m.interval[0]),
            known(m.interval[1]),
            Cell::text(word(m.verdict)),
        ]
    });
    Table::new(&["class", "metric", "a", "b", "ratio", "ratio_low", "ratio_high", "verdict"], rows)
}

fn steps(d: &CapacityDocument) -> Table {
    let stairs = d.stairs.iter().map(|s| {
        vec![
            Cell::text("stair"),
            Cell::Count(u64::from(s.users)),
            Cell::None,
            Cell::Number(s.rps),
            Cell::Us(s.p50_us),
            Cell::Us(s.p99_us),
            Cell::Share(s.errors),
            Cell::None,
            Cell::text(&s.run),
        ]
    });
    let steps = d.steps.iter().map(|s| {
        vec![
            Cell::text(&s.role),
            Cell::None,
            Cell::Number(s.rate),
            Cell::Number(s.answered_rps),
            Cell::Us(s.p50_us),
            Cell::Us(s.p99_us),
            Cell::Share(s.errors),
            Cell::text(s.ok.to_string()),
            Cell::text(&s.run),
        ]
    });
    let heading = ["what", "users", "rate_rps", "answered_rps", "p50_us", "p99_us", "errors", "ok", "run"];
    Table::new(&heading, stairs.chain(steps))
}

fn headroom(d: &HeadroomDocument) -> Table {
    let days = d.reached.as_ref();
    let row = vec![
        Cell::Number(d.demand.peak_rps),
        Cell::Number(d.demand.busiest_minute_rps),
        Cell::Number(d.demand.busiest_hour_rps),
        Cell::maybe(d.demand.growth.as_ref(), |g| Cell::Share(g.per_week)),
        Cell::maybe(d.capacity_rps, Cell::Number),
        Cell::maybe(d.headroom, Cell::Number),
        Cell::maybe(d.workers, Cell::Count),
        Cell::maybe(d.machines, Cell::Count),
        Cell::maybe(days, |days| Cell::text(&days.from)),
        Cell::maybe(days, |days| Cell::text(&days.to)),
    ];
    let heading = [
        "peak_rps",
        "busiest_minute_rps",
        "busiest_hour_rps",
        "growth_per_week",
        "capacity_rps",
        "headroom",
        "workers",
        "machines",
        "reached_from",
        "reached_to",
    ];
    Table::new(&heading, [row])
}

/// Settings as `NAME=VALUE`, separated by blanks.
fn settings(settings: &Settings) -> Cell {
    Cell::Text(settings.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "))
}

fn trials(d: &TuneDocument) -> Table {
    let row = |t: &lastdrop_model::documents::Trial| {
        vec![
            Cell::text(&t.role),
            settings(&t.settings),
            Cell::Number(t.objective),
            Cell::Us(t.p99_us),
            Cell::Count(t.unanswered),
            Cell::maybe(t.real_memory_bytes, Cell::Bytes),
            Cell::text(t.valid.to_string()),
            Cell::text(&t.why),
            Cell::text(&t.run),
        ]
    };
    let heading =
        ["role", "settings", "answered_rps", "p99_us", "unanswered", "real_memory_bytes", "valid", "why", "run"];
    Table::new(&heading, d.trials.iter().map(row))
}

/// A JSON value as text, strings without quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

fn findings(d: &DoctorDocument) -> Table {
    let row = |f: &lastdrop_model::documents::Finding| {
        let severity = match f.severity {
            Severity::Limit => "limit",
            Severity::Waste => "waste",
            Severity::Risk => "risk",
        };
        let fix = |x: &lastdrop_model::documents::Fix| format!("{} {} -> {}", x.knob, plain(&x.from), plain(&x.to));
        vec![
            Cell::text(severity),
            Cell::text(&f.id),
            Cell::Number(f.confidence),
            Cell::text(&f.server),
            Cell::text(&f.title),
            Cell::Text(f.fix.iter().map(fix).collect::<Vec<_>>().join("; ")),
        ]
    };
    Table::new(&["severity", "id", "confidence", "server", "title", "fix"], d.findings.iter().map(row))
}

/// A sweep's table with all columns, for a spreadsheet.
#[must_use]
pub fn sweep_csv(d: &SweepDocument) -> String {
    sweep(d).csv()
}

fn sweep(d: &SweepDocument) -> Table {
    let mut names: Vec<&String> = d.rows.iter().flat_map(|r| r.settings.keys()).collect();
    names.sort();
    names.dedup();
    let mut heading = vec!["name", "url", "query_length", "header", "requests", "users"];
    heading.extend(names.iter().map(|n| n.as_str()));
    heading.extend([
        "answered",
        "failed",
        "avtime_us",
        "rps",
        "rps_low",
        "rps_high",
        "p50_us",
        "p99_us",
        "warmed",
        "run",
        "note",
    ]);
    let rows = d.rows.iter().map(|r| {
        let mut cells = vec![
            Cell::text(&r.series),
            Cell::text(&r.url),
            Cell::maybe(r.query_length, |n| Cell::Count(u64::from(n))),
            Cell::text(&r.header),
            Cell::Count(r.requests),
            Cell::Count(u64::from(r.users)),
        ];
        cells.extend(names.iter().map(|n| Cell::maybe(r.settings.get(*n), |v| Cell::Text(v.to_string()))));
        cells.extend([Cell::Count(r.answered), Cell::Count(r.failed), Cell::Us(r.avtime_us), Cell::Number(r.rps)]);
        cells.extend([0, 1].map(|i| Cell::maybe(r.rps_interval, |b| Cell::Number(b[i]))));
        cells.extend([Cell::Us(r.p50_us), Cell::Us(r.p99_us)]);
        cells.extend([Cell::text(&r.warmed), Cell::text(&r.run), Cell::text(&r.note)]);
        cells
    });
    Table::new(&heading, rows)
}

fn fits(d: &SizeDocument) -> Table {
    let (w, f) = (&d.workers, d.fits);
    let heading = [
        "server",
        "workers",
        "rss_mean_bytes",
        "pss_mean_bytes",
        "private_mean_bytes",
        "private_max_bytes",
        "shared_mean_bytes",
        "real_memory_bytes",
        "budget_bytes",
        "fits_no_sharing",
        "fits_classic_sharing",
        "fits_independent",
        "fits_worst_case",
        "suggested",
    ];
    let row = vec![
        Cell::text(&d.server),
        Cell::Count(w.count),
        Cell::Bytes(w.rss_bytes.mean),
        Cell::Bytes(w.pss_bytes.mean),
        Cell::Bytes(w.private_bytes.mean),
        Cell::Bytes(w.private_bytes.max),
        Cell::Bytes(w.shared_bytes.mean),
        Cell::Bytes(d.real_memory_bytes),
        Cell::Bytes(d.budget_bytes),
        Cell::maybe(f, |f| Cell::Count(f.no_sharing)),
        Cell::maybe(f, |f| Cell::Count(f.classic_sharing)),
        Cell::maybe(f, |f| Cell::Count(f.independent)),
        Cell::maybe(f, |f| Cell::Count(f.worst_case)),
        settings(&d.suggested),
    ];
    Table::new(&heading, [row])
}

fn calls(d: &TraceDocument) -> Table {
    let row = |c: &lastdrop_model::documents::TraceRow| {
        vec![
            Cell::text(&c.call),
            Cell::text(&c.path),
            Cell::Number(c.per_request),
            Cell::text(c.error.clone().unwrap_or_default()),
            Cell::Us(c.us_per_request),
        ]
    };
    Table::new(&["call", "path", "per_request", "error", "us_per_request"], d.calls.iter().map(row))
}
