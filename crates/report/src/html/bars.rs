//! Horizontal bars with a name on the left and a number on the right, read from top to bottom.

use maud::{Markup, html};

use super::chart::Colour;
use super::table::Table;
use super::text::EscapedText;

#[derive(Debug)]
pub(super) struct Bar {
    pub name: String,
    pub value: f64,
    /// The value as text.
    pub says: String,
    pub colour: Colour,
    /// A reference value, such as a threshold.
    pub mark: Option<f64>,
}

/// Draws the bars; the longest fills the width.
pub(super) fn bars(title: &str, tells: &str, rows: &[Bar], table: &Table) -> Markup {
    html! {
        figure {
            figcaption { h3 { (EscapedText(title)) } @if !tells.is_empty() { p { (EscapedText(tells)) } } }
            (list(rows))
            @if !table.is_empty() { (table.folded()) }
        }
    }
}

fn list(rows: &[Bar]) -> Markup {
    let most = rows.iter().flat_map(|b| [b.value, b.mark.unwrap_or(0.0)]).filter(|v| v.is_finite()).fold(0.0, f64::max);
    html! {
        ul.bars {
            @for b in rows {
                @let width = if most > 0.0 && b.value.is_finite() { b.value / most * 100.0 } else { 0.0 };
                li {
                    span.name { (EscapedText(&b.name)) }
                    svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true" {
                        rect.track width="100" height="1" {} rect.(b.colour) width=(format!("{width:.2}")) height="1" {}
                        @if let Some(mark) = b.mark.filter(|_| most > 0.0) {
                            rect.limit x=(format!("{:.2}", mark / most * 100.0 - 0.4)) width="0.4" height="1" {}
                        }
                    }
                    span.value { (EscapedText(&b.says)) }
                }
            }
        }
    }
}
