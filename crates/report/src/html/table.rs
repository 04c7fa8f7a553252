//! Tables with a caption. Numbers are right-aligned; a wide table scrolls inside its frame.

use maud::{Markup, html};

use super::text::EscapedText;

/// A table for people: headings, and rows of text cells.
#[derive(Debug, Default)]
pub(super) struct Table {
    caption: String,
    heading: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    /// Number of omitted rows.
    more: usize,
    /// Number of leading columns that hold text; the others hold numbers.
    words: usize,
}

/// Limits the size of a page, whatever a run contains.
const MOST_ROWS: usize = 250;

impl Table {
    /// The first `words` columns hold text, as does a last column named `notes`; the others hold numbers.
    pub(super) fn new(caption: impl Into<String>, words: usize, heading: &[&'static str]) -> Table {
        Table { caption: caption.into(), words, heading: heading.to_vec(), ..Table::default() }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        if self.rows.len() < MOST_ROWS { self.rows.push(cells) } else { self.more += 1 }
    }

    pub(super) fn rows(mut self, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
        rows.into_iter().for_each(|r| self.row(r));
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn is_number(&self, column: usize) -> bool {
        column >= self.words && self.heading.get(column) != Some(&NOTES)
    }

    /// Renders the table, visible.
    pub(super) fn shown(&self) -> Markup {
        html! {
            div.wide tabindex="0" role="group" aria-label=(EscapedText(&self.caption)) {
                table {
                    caption { (EscapedText(&self.caption)) }
                    thead { tr {
                        @for (i, h) in self.heading.iter().enumerate() { th scope="col" .n[self.is_number(i)] { (h) } }
                    } }
                    tbody {
                        @for row in &self.rows { tr {
                            @for (i, cell) in row.iter().enumerate() {
                                @if i == 0 && self.words > 0 { th scope="row" { (EscapedText(cell)) } }
                                @else { td .n[self.is_number(i)] { (EscapedText(cell)) } }
                            }
                        } }
                    }
                }
            }
            @if self.more > 0 { p.quiet { (self.more) " more; the JSON of the run has all" } }
        }
    }

    /// Renders the table behind a summary that opens without scripts.
    pub(super) fn folded(&self) -> Markup {
        html! { details.numbers { summary { "Table: " (EscapedText(&self.caption)) } (self.shown()) } }
    }
}

/// Heading of a last column that holds text.
pub(super) const NOTES: &str = "notes";
