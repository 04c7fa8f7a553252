//! Aligned text tables.

use lastdrop_model::printable::line;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Returns the lines of a table: numeric columns are right-aligned, the others left-aligned. Each line is
/// indented by two blanks.
#[must_use]
pub fn aligned(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(heading.to_vec());
    for row in rows {
        // A cell is one line, wherever its text comes from.
        table.add_row(row.iter().map(|cell| line(cell)));
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        let numeric = rows.iter().filter_map(|r| r.get(i)).all(|c| {
            c.trim_start_matches(['≥', '-', '+']).starts_with(|c: char| c.is_ascii_digit()) || c.is_empty() || c == "–"
        });
        if numeric {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|l| format!(" {}\n", l.trim_end())).collect()
}

/// A CSV field (RFC 4180).
#[must_use]
pub(crate) fn quote(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_string() }
}
