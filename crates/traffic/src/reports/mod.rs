//! Reads the reports of other load generators, text or JSON, for comparisons. A value that a report lacks is absent
//! here, and described in words; nothing is derived that its numbers do not give.

mod ab;
mod hey;
mod json;
mod oha;
mod siege;
mod vegeta;
mod wrk;

use serde_json::Value;

/// The values of one report. Latencies are in microseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The program that wrote it.
    pub tool: &'static str,
    pub url: Option<String>,
    /// Completed requests, answered or not.
    pub requests: Option<u64>,
    /// Answers per second, of any status.
    pub rps: Option<f64>,
    pub p50_us: Option<f64>,
    pub p90_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// Share of requests that failed, 0 to 1: without an answer, or with one that reports an error.
    pub errors: Option<f64>,
    /// Requests came due at scheduled times, not when the last one was answered.
    pub open_loop: bool,
    /// What it cannot tell, and how its numbers differ: `no percentile above 99`.
    pub limits: Vec<String>,
}

/// Why no report was found in a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReportError(String);

/// Reads a file of reports, one or several of the same program.
///
/// # Errors
/// It has no report, or an incomplete one.
pub fn read(text: &str) -> Result<Vec<Report>, ReportError> {
    let text = text.trim_start_matches('\u{feff}');
    let text_reports = read_text(text);
    let reports = if text_reports.is_empty() { read_json(text)? } else { text_reports };
    if reports.is_empty() {
        return Err(ReportError(format!(
            "it is no report of ab, siege, wrk, wrk2, hey, oha, k6 (--summary-export) or vegeta (report){}",
            of_another(text)
        )));
    }
    let silent = |r: &Report| r.rps.is_none() && r.p50_us.is_none();
    match reports.iter().find(|r| silent(r)) {
        Some(r) => {
            Err(ReportError(format!("the report of {} is not whole: it tells neither a rate nor a median", r.tool)))
        }
        None => Ok(reports.into_iter().map(tidy).collect()),
    }
}

/// Names a known format that is not read.
fn of_another(text: &str) -> &'static str {
    const MARKS: [(&str, &str); 7] = [
        ("http_req_duration", "; this is k6's text, its numbers are in --summary-export FILE"),
        ("finished in ", "; this is h2load's"),
        ("Bombarding ", "; this is bombardier's"),
        ("response-time,DNS+dialup", "; this is hey's CSV, its summary is read"),
        ("Running ", "; the line of wrk that says its URL is not whole"),
        ("Summary report @", "; this is artillery's"),
        ("summary =", "; this is JMeter's"),
    ];
    MARKS.iter().find(|(mark, _)| text.contains(mark)).map_or("", |(_, what)| what)
}

/// Removes impossible numbers. A time of zero is below the program's resolution.
fn tidy(mut report: Report) -> Report {
    let mut zero = Vec::new();
    for (name, value) in [("p50", &mut report.p50_us), ("p90", &mut report.p90_us), ("p99", &mut report.p99_us)] {
        *value = value.filter(|x| x.is_finite() && *x >= 0.0);
        if *value == Some(0.0) {
            *value = None;
            zero.push(name);
        }
    }
    if !zero.is_empty() {
        report.limits.push(format!("{} is below what it can tell", zero.join(", ")));
    }
    report.rps = report.rps.filter(|x| x.is_finite() && *x >= 0.0);
    report.errors = report.errors.filter(|x| x.is_finite()).map(|x| x.clamp(0.0, 1.0));
    report
}

/// Reads each JSON document that begins a line. Text between them (siege's notes on its configuration) is skipped.
fn read_json(mut text: &str) -> Result<Vec<Report>, ReportError> {
    let mut reports = Vec::new();
    while let Some(at) = begin_of_json(text) {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
        let Some(value) = values.next() else { break };
        let value = value.map_err(|e| ReportError(format!("its JSON is not whole: {e}")))?;
        reports.push(json::read(&value).ok_or_else(|| {
            let known = "siege -j, oha --json, k6 (--summary-export, handleSummary) and vegeta report -type=json";
            ReportError(format!("this JSON is of no program that is known: {known}"))
        })?);
        text = &text[at + values.byte_offset()..];
    }
    Ok(reports)
}

fn begin_of_json(text: &str) -> Option<usize> {
    let begin = text.len() - text.trim_start().len();
    if text[begin..].starts_with('{') { Some(begin) } else { text.find("\n{").map(|at| at + 1) }
}

/// A program with text reports: the beginning of the line that starts each one, and its reader.
type TextReport = (&'static str, fn(&str) -> Report);

const TEXTS: [TextReport; 5] = [
    ("Server Software:", ab::read),
    ("Transactions:", siege::read),
    ("Running ", wrk::read),
    ("Requests      [", vegeta::read),
    ("Summary:", hey_or_oha),
];

/// oha imitates hey, but its report begins with a success rate.
fn hey_or_oha(text: &str) -> Report {
    if field(text, "Success rate").is_some() { oha::read(text) } else { hey::read(text) }
}

fn read_text(text: &str) -> Vec<Report> {
    let begins = |line: &str, mark: &str| {
        line.trim_start().starts_with(mark) && (mark != "Running " || line.contains(" test @ "))
    };
    let known = TEXTS.iter().find(|(mark, _)| text.lines().any(|line| begins(line, mark)));
    let Some((mark, read)) = known else { return Vec::new() };
    let mut parts: Vec<String> = Vec::new();
    for line in text.lines() {
        if begins(line, mark) {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts.iter().map(|part| read(part)).collect()
}

/// The text after a label and its colon, on the first line that begins so.
fn field<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.trim_start().strip_prefix(label)?.strip_prefix(':')?.trim()))
}

/// The first number of a text.
fn number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.trim_end_matches('%').parse().ok()
}

fn number_of(text: &str, label: &str) -> Option<f64> {
    number(field(text, label)?)
}

/// A duration with its unit, such as `635.91us`, in microseconds.
fn duration_us(text: &str) -> Option<f64> {
    let unit = text.find(|c: char| c.is_alphabetic() || c == '\u{b5}')?;
    let factor = match &text[unit..] {
        "ns" => 1e-3,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        "h" => 3600e6,
        _ => return None,
    };
    Some(text[..unit].parse::<f64>().ok()? * factor)
}

/// A share of a whole; `None` if the whole is 0.
fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
mod tests;
