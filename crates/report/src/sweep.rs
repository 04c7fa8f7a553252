//! The table of a sweep, as text and CSV.

use std::fmt::Write as _;

use lastdrop_model::documents::{SweepDocument, SweepRow};
use lastdrop_model::units::show_us;

use crate::html::first;
use crate::table::aligned;

/// Abbreviations for columns of the load. The document has those of settings.
const ABBREVIATIONS: &[(&str, &str)] = &[("requests", "NR"), ("users", "NC")];

/// A longer header is cut; JSON and CSV have all of it.
const LONGEST_HEADER: usize = 30;

/// Returns all column names that have an abbreviation, with the abbreviation.
fn abbreviations(d: &SweepDocument) -> Vec<(&str, &str)> {
    let settings = d.abbreviations.iter().map(|(long, short)| (long.as_str(), short.as_str()));
    ABBREVIATIONS.iter().copied().chain(settings).collect()
}

fn heading<'a>(name: &'a str, abbreviations: &[(&str, &'a str)]) -> &'a str {
    if name == "series" {
        return "name";
    }
    abbreviations.iter().find(|(long, _)| *long == name).map_or(name, |(_, short)| short)
}

fn cell(row: &SweepRow, column: &str) -> String {
    match column {
        "series" => row.series.clone(),
        "requests" => row.requests.to_string(),
        "users" => row.users.to_string(),
        "query_length" => row.query_length.map_or_else(String::new, |n| n.to_string()),
        "header" => row.header.clone(),
        "directives" => row.directives.clone(),
        "url" => row.url.clone(),
        name => row.settings.get(name).map_or_else(String::new, ToString::to_string),
    }
}

/// Returns path and query of a URL, since most sweeps test one server.
fn path_of(url: &str) -> &str {
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    url[after_scheme..].find('/').map_or(url, |at| &url[after_scheme + at..])
}

/// Returns a URL without its query.
fn base_of(url: &str, one_server: bool) -> &str {
    let url = if one_server { path_of(url) } else { url };
    url.split('?').next().unwrap_or(url)
}

/// The table, the constant settings below it, and a legend.
#[must_use]
pub fn sweep_text(d: &SweepDocument) -> String {
    let abbreviations = abbreviations(d);
    let mut headings: Vec<String> = d.varying.iter().map(|c| heading(c, &abbreviations).into()).collect();
    headings.extend(["│", "avtime", "completed", "failed", "rps"].map(String::from));
    let several = d.rows.iter().any(|r| r.rps_interval.is_some());
    if several {
        headings.push("95 % interval".into());
    }
    headings.extend(["p50", "p99", "warmed"].map(String::from));
    // Rows about one server differ in their paths; rows about several servers need whole URLs.
    let server = |url: &str| url.len() - path_of(url).len();
    let one_server = d.rows.windows(2).all(|w| w[0].url[..server(&w[0].url)] == w[1].url[..server(&w[1].url)]);
    let shown = |row: &SweepRow, column: &str| {
        match column {
            // The query's length says what differs; the query itself may be long.
            "url" if row.query_length.is_some() => base_of(&row.url, one_server).to_string(),
            "url" if one_server => path_of(&row.url).to_string(),
            "header" | "directives" if cell(row, column).chars().count() > LONGEST_HEADER => {
                cell(row, column).chars().take(LONGEST_HEADER).chain(['…']).collect()
            }
            _ => cell(row, column),
        }
    };
    let noted = d.rows.iter().any(|r| !r.note.is_empty());
    if noted {
        headings.push("note".into());
    }
    let rows: Vec<Vec<String>> = d
        .rows
        .iter()
        .map(|r| {
            let mut cells: Vec<String> = d.varying.iter().map(|c| shown(r, c)).collect();
            cells.push("│".into());
            if r.run.is_empty() {
                cells.extend(std::iter::repeat_n("–".to_string(), if several { 8 } else { 7 }));
            } else {
                cells.extend([
                    show_us(r.avtime_us),
                    r.answered.to_string(),
                    r.failed.to_string(),
                    format!("{:.1}", r.rps),
                ]);
                if several {
                    cells.push(
                        r.rps_interval.map_or_else(|| "–".into(), |[low, high]| format!("{low:.1} to {high:.1}")),
                    );
                }
                cells.extend([show_us(r.p50_us), show_us(r.p99_us), r.warmed.clone()]);
            }
            if noted {
                // Only the first line of the note; JSON has all of it.
                cells.push(r.note.lines().next().unwrap_or_default().to_string());
            }
            cells
        })
        .collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut out = first::sweep(d).line() + &aligned(&headings, &rows);
    if !d.fixed.is_empty() {
        out.push_str("\nnot varying:\n");
        for (name, value) in &d.fixed {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_string);
            let short = abbreviations.iter().find(|(long, _)| long == name).map(|(_, s)| format!(" ({s})"));
            let _ = writeln!(out, "  {name}{}: {value}", short.unwrap_or_default());
        }
    }
    let used: Vec<String> = abbreviations
        .iter()
        .filter(|(long, _)| d.varying.iter().any(|v| v == long))
        .map(|(long, short)| format!("{short} {long}"))
        .collect();
    let _ = writeln!(
        out,
        "\n{}{}avtime mean response; completed answered; failed: no answer, or an error status; rps answered a second",
        used.join(", "),
        if used.is_empty() { "" } else { ", " }
    );
    out.push_str(
        "warmed: each worker by a request, or by load for so long where recycling would not leave a warm one\n",
    );
    if !d.complete {
        out.push_str("ended early: the table is not complete\n");
    }
    for note in &d.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep_csv;
    use lastdrop_model::Setting;
    use lastdrop_model::documents::SWEEP_SCHEMA;

    fn document() -> SweepDocument {
        let row = |mc: i64, note: &str| SweepRow {
            series: String::new(),
            url: "http://h/".into(),
            query_length: None,
            header: String::new(),
            settings: [("MaxRequestWorkers".to_string(), Setting::Count(mc))].into(),
            directives: String::new(),
            requests: 5000,
            users: 50,
            answered: 5000,
            failed: 0,
            avtime_us: 375_000.0,
            rps: 133.25,
            rps_interval: Some([131.0, 135.5]),
            p50_us: 340_000.0,
            p99_us: 1_200_000.0,
            warmed: "each".into(),
            run: "ab".into(),
            runs: vec!["ab".into()],
            note: note.into(),
        };
        SweepDocument {
            schema: SWEEP_SCHEMA.into(),
            server: None,
            varying: vec!["MaxRequestWorkers".into()],
            abbreviations: vec![("MaxRequestWorkers".into(), "MC".into())],
            fixed: [("requests".to_string(), 5000.into())].into(),
            rows: vec![row(10, ""), row(50, "a \"note\", with\nlines")],
            rounds: 3,
            sorted_by: "rps".into(),
            complete: true,
            notes: vec![],
        }
    }

    #[test]
    fn the_table_has_the_columns_that_vary_and_the_rest_beneath() {
        let text = sweep_text(&document());
        assert!(text.lines().nth(2).expect("heading").contains("MC"), "{text}");
        assert!(text.contains("requests (NR): 5000") && text.contains("133.2"), "{text}");
        assert!(text.contains("│  375.0 ms") && text.contains("131.0 to 135.5"), "{text}");
    }

    #[test]
    fn csv_keeps_every_cell_in_its_place() {
        let text = sweep_csv(&document());
        assert!(text.contains("\"a \"\"note\"\", with\nlines\"\r\n"), "{text}");
        assert!(text.contains(",5000,0,375000,133.25,131,135.5,340000,1200000,each,ab,"), "{text}");
    }
}
