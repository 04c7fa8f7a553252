//! Results of commands as text, JSON, CSV, Markdown or JUnit. CSV, Markdown and JUnit are made from the
//! document, so a stored document can be shown in each.

mod cases;
mod markdown;
mod tables;

pub use self::cases::junit;
use self::tables::table;
pub use self::tables::{HistoryRow, Table, history_table, sweep_csv};
use crate::html::ReportDocument;

/// The format of a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    Json,
    Csv,
    Markdown,
    Junit,
}

/// All formats with the names that users give.
pub const FORMATS: [(&str, Format); 5] = [
    ("text", Format::Text),
    ("json", Format::Json),
    ("csv", Format::Csv),
    ("md", Format::Markdown),
    ("junit", Format::Junit),
];

impl Format {
    /// Returns the format with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Format> {
        FORMATS.into_iter().find(|(n, _)| *n == name).map(|(_, format)| format)
    }
}

/// Renders documents in a format other than text and JSON.
///
/// # Errors
/// A sentence that says why a document has no such format.
pub fn formatted(shown: &[ReportDocument], format: Format) -> Result<String, String> {
    match format {
        Format::Csv => Ok(shown.iter().filter_map(table).map(|t| t.csv()).collect::<Vec<_>>().join("\r\n")),
        Format::Markdown => Ok(shown.iter().map(markdown::markdown).collect::<Vec<_>>().join("\n")),
        Format::Junit => cases::of_documents(shown),
        Format::Text | Format::Json => Ok(shown.iter().map(ReportDocument::text).collect()),
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::{Objective, ObjectiveResult};

    use super::*;
    use crate::html::fixtures::run_of;

    fn shown() -> Vec<ReportDocument> {
        let mut run = run_of(3, 10);
        run.phases[0].name = "a|b, \"c\"".into();
        let judged = |text: &str, met| {
            let objective: Objective = text.parse().expect("valid");
            ObjectiveResult { objective, value: Some(0.5), seen: "5 ms".into(), met }
        };
        run.objectives = vec![judged("p99<1ms", false), judged("errors<1%", true)];
        vec![ReportDocument::Run(Box::new(run))]
    }

    #[test]
    fn a_table_has_raw_numbers_under_names_with_units() {
        let csv = formatted(&shown(), Format::Csv).expect("a table");
        let lines: Vec<&str> = csv.split("\r\n").collect();
        assert!(lines[0].starts_with("phase,measured,seconds,due,sent,answered,"), "{csv}");
        assert!(lines[1].starts_with("\"a|b, \"\"c\"\"\",true,3,30,30,30,"), "{csv}");
    }

    #[test]
    fn markdown_says_the_verdict_first_and_keeps_its_table() {
        let text = formatted(&shown(), Format::Markdown).expect("text");
        assert!(text.starts_with("**Not good: It misses what was asked of it: p99&lt;1ms"), "{text}");
        let rows: Vec<&str> = text.lines().filter(|l| l.starts_with('|')).collect();
        assert!(rows.len() >= 3 && rows.iter().any(|r| r.starts_with("| a\\|b, \"c\" |")), "{text}");
    }

    #[test]
    fn what_was_missed_is_a_failure() {
        let xml = formatted(&shown(), Format::Junit).expect("cases");
        assert!(xml.contains("tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"0\""), "{xml}");
    }
}
