//! Settings of servers, as text.

use std::fmt::Write as _;

use lastdrop_model::documents::{KnobRow, KnobsDocument};
use lastdrop_model::printable::line;

use crate::nodes::differing_lines;
use crate::table::aligned;

/// The report of `knobs`: a table for each server, then what its settings do.
#[must_use]
pub fn knobs_text(d: &KnobsDocument) -> String {
    let mut out = String::new();
    for rows in d.knobs.chunk_by(|a, b| a.server == b.server) {
        let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
        let _ = write!(
            out,
            "{}\n\n{}",
            line(&rows[0].server),
            aligned(&["setting", "is", "may be", "needs", "from"], &cells)
        );
        out.push('\n');
        for row in rows {
            let constraint = if row.constraint.is_empty() { String::new() } else { format!(" ({})", row.constraint) };
            let when = row.when.as_ref().filter(|_| !row.matters).map(|when| format!("; only when {when}"));
            let findings = if row.findings.is_empty() { "" } else { "; try it for " };
            let rest = format!("{constraint}{}{findings}{}", when.unwrap_or_default(), row.findings.join(", "));
            let _ = writeln!(out, "  {}: {}{}", line(name(row)), line(&row.effect), line(&rest));
        }
        out.push('\n');
    }
    for one in differing_lines(&d.differs) {
        let _ = writeln!(out, "{one}");
    }
    for note in &d.notes {
        let _ = writeln!(out, "note: {}", line(note));
    }
    out
}

/// The name that a plan uses for the setting.
fn name(row: &KnobRow) -> &str {
    if row.setting.is_empty() { &row.name } else { &row.setting }
}

fn cells(row: &KnobRow) -> Vec<String> {
    let range = row.range.map(|[least, most]| format!("{least} to {most}"));
    let may_be: Vec<String> = range.into_iter().chain(row.choices.iter().cloned()).collect();
    vec![
        name(row).into(),
        row.value.as_ref().map_or_else(|| "not known".into(), ToString::to_string),
        may_be.join(", "),
        row.needs.name().into(),
        row.source.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::{NodeDifference, NodeDifferenceKind};
    use lastdrop_model::{ReloadClass, Setting};

    use super::*;

    #[test]
    fn a_table_for_each_server_says_what_is_and_what_may_be() {
        let row = |server: &str, name: &str, range, choices: &[&str]| KnobRow {
            server: server.into(),
            name: name.into(),
            setting: String::new(),
            value: Some(Setting::Count(4)),
            source: "/etc/x.conf:3".into(),
            default: Setting::Count(1),
            range,
            choices: choices.iter().map(ToString::to_string).collect(),
            needs: ReloadClass::Reload,
            effect: "what it does".into(),
            constraint: String::new(),
            when: Some("pm is dynamic".into()),
            matters: name == "workers",
            findings: Vec::new(),
        };
        let mut knobs = vec![row("a", "workers", Some([1, 9]), &[]), row("b", "keep", None, &["on", "off"])];
        knobs[1].setting = "b.keep".into();
        let differs = NodeDifference {
            server: "b".into(),
            what: NodeDifferenceKind::Settings,
            name: "keep".into(),
            value: "on".into(),
            others: serde_json::Value::Null,
        };
        let notes = vec!["b: \u{1b}[1m".into()];
        let d = KnobsDocument { schema: String::new(), knobs, differs: vec![differs], notes };
        let text = knobs_text(&d);
        let wanted = [
            "workers",
            "1 to 9",
            "reload",
            "/etc/x.conf:3",
            "on, off",
            "  b.keep: what it does; only when pm is dynamic\n",
            "b differs: keep is on, on the others not set\n",
        ];
        assert!(wanted.iter().all(|w| text.contains(w)) && !text.contains('\u{1b}'), "{text}");
    }
}
