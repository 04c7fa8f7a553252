//! A chart drawn by lastdrop: two axes and the marks between them, as SVG. Colours are CSS classes, so that
//! light, dark and print styles can differ. The label of a mark is in `data-v`; the script shows it on hover
//! and on keyboard focus.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};

use super::axis::Axis;
use super::table::Table;
use super::text::EscapedText;

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 46.0;

/// The shape of a point; it repeats what the colour says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Dot,
    Ring,
    Square,
    Cross,
}

/// A CSS class that names a colour by its use.
pub(super) type Colour = &'static str;

#[derive(Debug)]
pub(super) struct Chart {
    label: String,
    x: Axis,
    y: Axis,
    /// Markup of the marks, with all text already escaped.
    marks: String,
    legend: Vec<(Colour, &'static str, String)>,
}

impl Chart {
    pub(super) fn new(label: impl Into<String>, x: Axis, y: Axis) -> Chart {
        Chart { label: label.into(), x, y, marks: String::new(), legend: Vec::new() }
    }

    fn px(&self, x: f64) -> f64 {
        LEFT + self.x.at(x) * (WIDTH - LEFT - RIGHT)
    }

    fn py(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.at(y) * (HEIGHT - TOP - BOTTOM)
    }

    /// Adds an entry to the legend; `form` is `line`, `dashed`, `dot`, `ring`, `square`, `cross` or `area`.
    pub(super) fn legend(&mut self, colour: Colour, form: &'static str, name: impl Into<String>) {
        self.legend.push((colour, form, name.into()));
    }

    /// Draws a line through points; `form` is empty or `dashed`.
    pub(super) fn line(&mut self, colour: Colour, form: &'static str, points: &[(f64, f64)]) {
        let mut path = String::new();
        for (i, (x, y)) in points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()).enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if i == 0 { 'M' } else { 'L' }, self.px(*x), self.py(*y));
        }
        self.put(html! { path.line.(colour).(form) d=(path) {} });
    }

    /// Fills the area between two lines.
    pub(super) fn band(&mut self, colour: Colour, points: &[(f64, f64, f64)]) {
        let mut path = String::new();
        let up = points.iter().map(|(x, low, _)| (x, low));
        for (i, (x, y)) in up.chain(points.iter().rev().map(|(x, _, high)| (x, high))).enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if i == 0 { 'M' } else { 'L' }, self.px(*x), self.py(*y));
        }
        self.put(html! { path.band.(colour) d=(path) {} });
    }

    /// Draws a point with a label for hover and keyboard.
    pub(super) fn point(&mut self, colour: Colour, shape: Shape, x: f64, y: f64, says: &str) {
        let (x, y) = (self.px(x), self.py(y));
        let f = |v: f64| format!("{v:.1}");
        let mark = match shape {
            Shape::Dot => html! { circle.pt.(colour) cx=(f(x)) cy=(f(y)) r="5" data-v=(EscapedText(says)) {} },
            Shape::Ring => html! { circle.pt.hollow.(colour) cx=(f(x)) cy=(f(y)) r="5" data-v=(EscapedText(says)) {} },
            Shape::Square => {
                html! { rect.pt.(colour) x=(f(x - 5.0)) y=(f(y - 5.0)) width="10" height="10" data-v=(EscapedText(says)) {} }
            }
            Shape::Cross => {
                let d = format!("M{:.1} {:.1}l10 10m0 -10l-10 10", x - 5.0, y - 5.0);
                html! { path.pt.hollow.(colour) d=(d) data-v=(EscapedText(says)) {} }
            }
        };
        self.put(mark);
    }

    /// Adds an invisible point on a line; its label appears on hover.
    pub(super) fn stop(&mut self, colour: Colour, x: f64, y: f64, says: &str) {
        let at = |v: f64| format!("{v:.1}");
        let (x, y) = (at(self.px(x)), at(self.py(y)));
        self.put(html! { circle.pt.stop.(colour) cx=(x) cy=(y) r="4" data-v=(EscapedText(says)) {} });
    }

    /// Draws an interval of y at x.
    pub(super) fn interval(&mut self, colour: Colour, x: f64, low: f64, high: f64) {
        let (x, low, high) = (self.px(x), self.py(low), self.py(high));
        let d = format!("M{x:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h8M{:.1} {high:.1}h8", x - 4.0, x - 4.0);
        self.put(html! { path.line.thin.(colour) d=(d) {} });
    }

    /// Draws a horizontal line labelled at its left end, because rising curves end at the right.
    pub(super) fn level(&mut self, colour: Colour, y: f64, word: &str) {
        let y = self.py(y);
        self.put(html! {
            path.line.dashed.thin.(colour) d=(format!("M{LEFT} {y:.1}H{:.1}", WIDTH - RIGHT)) {}
            text.word.(colour) x=(format!("{:.1}", LEFT + 5.0)) y=(format!("{:.1}", y - 5.0)) { (EscapedText(word)) }
        });
    }

    /// Draws a vertical line labelled at its top.
    pub(super) fn mark(&mut self, colour: Colour, x: f64, word: &str) {
        let x = self.px(x);
        let right = x > WIDTH * 0.7;
        let (at, anchor) = if right { (x - 5.0, "end") } else { (x + 5.0, "start") };
        self.put(html! {
            path.line.dashed.thin.(colour) d=(format!("M{x:.1} {TOP}V{:.1}", HEIGHT - BOTTOM)) {}
            text.word.(colour) x=(format!("{at:.1}")) y=(format!("{:.1}", TOP + 12.0)) text-anchor=(anchor) { (EscapedText(word)) }
        });
    }

    fn put(&mut self, markup: Markup) {
        self.marks.push_str(&markup.into_string());
    }

    fn svg(&self) -> Markup {
        let f = |v: f64| format!("{v:.1}");
        let bottom = HEIGHT - BOTTOM;
        html! {
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(EscapedText(&self.label)) {
                @for (value, word) in self.y.ticks() {
                    @let y = self.py(value);
                    path.grid d=(format!("M{LEFT} {y:.1}H{:.1}", WIDTH - RIGHT)) {}
                    text.tick x=(f(LEFT - 8.0)) y=(f(y + 4.0)) text-anchor="end" { (EscapedText(&word)) }
                }
                @for (value, word) in spaced(self.x.ticks().into_iter().map(|(v, w)| (self.px(v), w))) {
                    path.grid d=(format!("M{value:.1} {TOP}V{bottom:.1}")) {}
                    text.tick x=(f(value)) y=(f(bottom + 18.0)) text-anchor="middle" { (EscapedText(&word)) }
                }
                path.axis d=(format!("M{LEFT} {bottom:.1}H{:.1}", WIDTH - RIGHT)) {}
                text.title x=(f(WIDTH - RIGHT)) y=(f(HEIGHT - 8.0)) text-anchor="end" { (self.x.title) }
                text.title x=(f(4.0)) y=(f(16.0)) { (self.y.title) }
                (PreEscaped(&self.marks))
            }
        }
    }

    /// Returns the chart with its title, explanation and table.
    pub(super) fn figure(&self, title: &str, tells: &str, table: &Table) -> Markup {
        figure(
            title,
            tells,
            &self.legend,
            html! { div.svg tabindex="0" role="group" aria-label=(EscapedText(&self.label)) { (self.svg()) } },
            table,
        )
    }
}

/// Drops ticks whose labels would overlap.
fn spaced(ticks: impl Iterator<Item = (f64, String)>) -> Vec<(f64, String)> {
    let mut out: Vec<(f64, String)> = Vec::new();
    let half = |w: &str| w.chars().count() as f64 * 5.0 + 6.0;
    for (x, word) in ticks {
        if out.last().is_none_or(|(before, w)| x - half(&word) >= before + half(w)) {
            out.push((x, word));
        }
    }
    out
}

/// The frame of every plot: title, explanation, legend, a line for the value under the pointer, table.
pub(super) fn figure(
    title: &str,
    tells: &str,
    legend: &[(Colour, &'static str, String)],
    drawing: Markup,
    table: &Table,
) -> Markup {
    html! {
        figure {
            figcaption { h3 { (EscapedText(title)) } @if !tells.is_empty() { p { (EscapedText(tells)) } } }
            div.head {
                @if !legend.is_empty() {
                    ul.legend { @for (colour, form, name) in legend { li.(colour).(form) { (EscapedText(name)) } } }
                }
                output.readout {}
            }
            (drawing)
            @if !table.is_empty() { (table.folded()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::number::Unit;
    use super::*;

    #[test]
    fn what_a_mark_says_is_text() {
        let mut chart = Chart::new(
            "a <b>",
            Axis::from_zero("users", Unit::Count, [4.0]),
            Axis::around("latency", Unit::Micros, [100.0, 9e6]),
        );
        chart.point("c1", Shape::Dot, 2.0, 300.0, "\"><script>");
        chart.level("c2", 500.0, "</text>");
        chart.line("c1", "", &[(0.0, f64::NAN), (1.0, 5.0)]);
        let page = chart.figure("<t>", "", &Table::default()).into_string();
        assert!(!page.contains("<script") && !page.contains("NaN") && page.matches("</text>").count() > 3, "{page}");
        assert!(page.contains("&quot;&gt;&lt;script&gt;"), "{page}");
    }
}
