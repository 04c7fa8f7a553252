//! Plots over time, drawn by the script with uPlot. The plots of one run share their pointer, so that a
//! moment can be read in all of them.

use maud::{Markup, html};
use serde_json::{Map, Value, json};

use super::chart::{Colour, figure};
use super::number::Unit;
use super::table::Table;
use super::text::EscapedText;

/// A line of a plot.
#[derive(Debug)]
pub(super) struct Series {
    pub name: String,
    pub colour: Colour,
    pub dashed: bool,
    /// One value per moment; `None` is a gap.
    pub values: Vec<Option<f64>>,
}

impl Series {
    pub(super) fn new(name: impl Into<String>, colour: Colour, values: Vec<Option<f64>>) -> Series {
        Series { name: name.into(), colour, dashed: false, values }
    }

    pub(super) fn dashed(self) -> Series {
        Series { dashed: true, ..self }
    }

    fn says_something(&self) -> bool {
        self.values.iter().any(Option::is_some)
    }
}

/// The plots of a page, as the script reads them.
#[derive(Debug, Default)]
pub(super) struct Plots {
    all: Map<String, Value>,
}

/// The contents of a plot.
#[derive(Debug)]
pub(super) struct TimePlot {
    pub title: &'static str,
    pub tells: String,
    pub unit: Unit,
    /// Logarithmic y axis.
    pub log: bool,
    /// A low plot that stands below others.
    pub small: bool,
    pub series: Vec<Series>,
}

/// The time axis that several plots share: moments, marks and the pointer.
#[derive(Debug)]
pub(super) struct Clock {
    /// Plots with the same name share the pointer.
    pub name: String,
    pub moments: Vec<f64>,
    pub end_s: f64,
    /// Start and name of phases and marks.
    pub marks: Vec<(f64, String)>,
}

impl Plots {
    /// Adds the plot unless it is empty. `events` are moments (by index) with what happened.
    pub(super) fn add(&mut self, clock: &Clock, plot: TimePlot, events: &[(usize, String)], table: &Table) -> Markup {
        let series: Vec<&Series> = plot.series.iter().filter(|s| s.says_something()).collect();
        if series.is_empty() || clock.moments.is_empty() {
            return Markup::default();
        }
        self.put(clock, &plot, &series, events, table)
    }

    /// Adds a plot that grows, with all its series even if they are still empty. `news` are the series' field
    /// names in the updates for the script.
    pub(super) fn add_growing(&mut self, clock: &Clock, plot: &TimePlot, news: &[&str]) -> Markup {
        let series: Vec<&Series> = plot.series.iter().collect();
        let id = self.next_id();
        let figure = self.put(clock, plot, &series, &[], &Table::default());
        self.all[&id]["news"] = json!(news);
        figure
    }

    fn next_id(&self) -> String {
        format!("plot-{}", self.all.len() + 1)
    }

    fn put(
        &mut self,
        clock: &Clock,
        plot: &TimePlot,
        series: &[&Series],
        events: &[(usize, String)],
        table: &Table,
    ) -> Markup {
        let id = self.next_id();
        let lines: Vec<Value> = series
            .iter()
            .map(|s| {
                let values: Vec<Value> = s.values.iter().map(|v| v.filter(|v| v.is_finite()).map_or(Value::Null, brief)).collect();
                json!({"name": lastdrop_model::printable::line(&s.name), "colour": s.colour, "dashed": s.dashed, "values": values})
            })
            .collect();
        let marks: Vec<Value> =
            clock.marks.iter().map(|(at, name)| json!([brief(*at), lastdrop_model::printable::line(name)])).collect();
        let events: Vec<Value> =
            events.iter().map(|(at, what)| json!([at, lastdrop_model::printable::line(what)])).collect();
        self.all.insert(
            id.clone(),
            json!({
                "x": clock.moments.iter().map(|v| brief(*v)).collect::<Vec<_>>(), "end": brief(clock.end_s),
                "sync": clock.name, "unit": plot.unit.name(), "log": plot.log, "small": plot.small, "series": lines,
                "marks": marks, "events": events,
            }),
        );
        let legend: Vec<_> =
            series.iter().map(|s| (s.colour, if s.dashed { "dashed" } else { "line" }, s.name.clone())).collect();
        let drawing = html! {
            div.over-time.small[plot.small] data-plot=(id) tabindex="0" role="img" aria-label=(EscapedText(&label(plot, series))) {}
        };
        figure(plot.title, &plot.tells, &legend, drawing, table)
    }

    pub(super) fn json(self) -> Value {
        Value::Object(self.all)
    }
}

fn label(plot: &TimePlot, series: &[&Series]) -> String {
    let names: Vec<&str> = series.iter().map(|s| s.name.as_str()).collect();
    format!("{} over time: {}", plot.title, names.join(", "))
}

/// Rounds to four digits; more cannot be seen in a plot.
fn brief(v: f64) -> Value {
    if v == 0.0 {
        return json!(0);
    }
    let digits = (3 - v.abs().log10().floor() as i32).clamp(-300, 300);
    let scale = 10f64.powi(digits);
    let rounded = (v * scale).round() / scale;
    if rounded.fract() == 0.0 && rounded.abs() < 9e15 { json!(rounded as i64) } else { json!(rounded) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_plot_have_four_digits() {
        let text: Vec<String> =
            [0.0, 1234.567, 123_456.0, 0.000_123_456, 2.0].map(|v| brief(v).to_string()).into_iter().collect();
        assert_eq!(text, ["0", "1235", "123500", "0.0001235", "2"]);
    }
}
