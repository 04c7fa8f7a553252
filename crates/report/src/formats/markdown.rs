//! Markdown for a merge request or a wiki: the verdict, its evidence, the table.

use lastdrop_model::Verdict;
use lastdrop_model::printable::line;

use super::tables::table;
use crate::html::ReportDocument;

pub(super) fn markdown(shown: &ReportDocument) -> String {
    let told = shown.headline();
    let mut out = format!("**{}: {}**\n\n", told.tone.word(), escaped(&told.headline));
    for sentence in &told.sentences {
        out += &format!("{}\n\n", escaped(sentence));
    }
    for (value, name) in &told.numbers {
        out += &format!("- {}: {}\n", escaped(name), escaped(value));
    }
    if let ReportDocument::Run(run) = shown
        && run.validity.verdict != Verdict::Valid
    {
        for reason in &run.validity.reasons {
            let word = if reason.verdict == Verdict::Invalid { "invalid" } else { "doubtful" };
            out += &format!("- {word}: {}; {}\n", escaped(&reason.what), escaped(&reason.advice));
        }
    }
    if let Some(table) = table(shown).filter(|t| !t.rows.is_empty()) {
        out += &format!("\n{}", table.markdown());
    }
    out
}

/// Returns foreign text in one line with all Markdown characters escaped.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in line(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_no_markup() {
        assert_eq!(escaped("a|b\n<img> **x** [y](z)"), "a\\|b\\\\n&lt;img> \\*\\*x\\*\\* \\[y\\](z)");
    }
}
