//! Pictures over time with shared columns: bars for a number, shades for latencies, the time axis.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::clock;
use super::timeline::{BINS, Column, Timeline, edge};

/// Width left of a picture, for a name and a number, or for percentiles and the scale.
pub(super) const GUTTER: u16 = 22;

/// The columns of a screen.
pub(super) struct Grid {
    pub columns: Vec<Column>,
    /// Seconds per column.
    seconds: usize,
    /// Cells per column: a short experiment of known length fills the screen, too.
    wide: u16,
}

/// Whether to draw in colour.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paint {
    pub colour: bool,
}

impl Paint {
    pub fn fg(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    pub fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub fn alarm(self) -> Style {
        self.fg(Color::Red).add_modifier(Modifier::BOLD)
    }
}

impl Grid {
    /// Columns for a picture of `width` cells; `whole` is the total number of seconds, if known.
    pub fn new(timeline: &Timeline, width: u16, whole: Option<usize>) -> Grid {
        let (columns, seconds) = timeline.fit(usize::from(width));
        let all = whole.unwrap_or(usize::MAX).max(timeline.seconds).div_ceil(seconds);
        let wide = (usize::from(width) / all.max(1)).clamp(1, 8) as u16;
        Grid { columns, seconds, wide }
    }

    /// Returns the cells of a column in a picture: start and width.
    fn cells(&self, area: Rect, column: usize) -> Option<(u16, u16)> {
        let from = u16::try_from(column).ok()?.checked_mul(self.wide)?;
        (from < area.width).then(|| (area.x + from, self.wide.min(area.width - from)))
    }

    /// Draws a row of bars; `top` is the value of a full bar.
    pub fn bars(&self, buf: &mut Buffer, area: Rect, top: f64, style: Style, of: impl Fn(&Column) -> Option<f64>) {
        const LEVELS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
        for (at, column) in self.columns.iter().enumerate() {
            let (Some((x, cells)), Some(value)) = (self.cells(area, at), of(column)) else { continue };
            let level = if top > 0.0 { (value / top * LEVELS.len() as f64).ceil() as usize } else { 0 };
            // Zero is a dot, to distinguish it from a second without data.
            let glyph = if value <= 0.0 { "·" } else { LEVELS[level.clamp(1, LEVELS.len()) - 1] };
            for i in 0..cells {
                buf[(x + i, area.y)].set_symbol(glyph).set_style(style);
            }
        }
    }

    /// Returns the highest value, rounded up so that the scale changes seldom.
    pub fn top(&self, of: impl Fn(&Column) -> Option<f64>) -> f64 {
        let most = self.columns.iter().filter_map(of).fold(0.0, f64::max);
        if most <= 0.0 {
            return 0.0;
        }
        let decade = 10f64.powf(most.log10().floor());
        [1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0].into_iter().map(|m| m * decade).find(|top| *top >= most).unwrap_or(most)
    }

    /// Returns the lowest and the highest bin with answers.
    fn range(&self) -> Option<(usize, usize)> {
        let seen = |bin: &usize| self.columns.iter().any(|c| c.bins[*bin] > 0);
        Some(((0..BINS).find(seen)?, (0..BINS).rev().find(seen)?))
    }

    /// Returns the number of rows that the latencies can fill.
    pub fn heat_rows(&self) -> u16 {
        self.range().map_or(0, |(low, high)| (high - low + 1) as u16)
    }

    /// Draws latencies, slow ones on top. The shade is the share of the column's answers in that row. The
    /// colour says which part of them is faster: up to half, up to 99 of 100, the rest.
    pub fn heat(&self, buf: &mut Buffer, area: Rect, paint: Paint) {
        let Some((low, high)) = self.range() else { return };
        let rows = usize::from(area.height).max(1);
        let per_row = (high - low + 1).div_ceil(rows);
        for row in 0..area.height.min((high - low).div_euclid(per_row) as u16 + 1) {
            let y = area.y + area.height - 1 - row;
            let first = low + usize::from(row) * per_row;
            for (at, column) in self.columns.iter().enumerate() {
                let all: u64 = column.bins.iter().map(|n| u64::from(*n)).sum();
                let count = |bins: &[u32]| bins.iter().map(|n| u64::from(*n)).sum::<u64>();
                let here = count(&column.bins[first..(first + per_row).min(BINS)]);
                let (Some((x, cells)), true) = (self.cells(area, at), here > 0) else { continue };
                let below = count(&column.bins[..first]) as f64 / all as f64;
                let style = match below {
                    b if b < 0.5 => paint.fg(Color::Green),
                    b if b < 0.99 => paint.fg(Color::Cyan),
                    _ => paint.fg(Color::Yellow),
                };
                for i in 0..cells {
                    buf[(x + i, y)].set_symbol(shade(here as f64 / all as f64)).set_style(style);
                }
            }
            // Labels of the scale, on every second row if there are many rows.
            if row % 2 == 0 || area.height < 6 {
                let label = format!("{:>6}", short(edge(first)));
                buf.set_string(area.x.saturating_sub(7), y, label, paint.dim());
            }
        }
    }

    /// Draws the axis: time, starts of runs, marks.
    pub fn axis(&self, buf: &mut Buffer, area: Rect, paint: Paint) {
        let every = (10usize).div_ceil(usize::from(self.wide)).max(1);
        let end = usize::from(area.width / self.wide);
        for at in (0..end).step_by(every) {
            let Some((x, _)) = self.cells(area, at) else { break };
            let label = clock(at * self.seconds);
            if x + label.len() as u16 <= area.x + area.width {
                buf.set_string(x, area.y, label, paint.dim());
            }
        }
        for (at, column) in self.columns.iter().enumerate().filter(|(_, c)| c.begins || c.marked) {
            let Some((x, _)) = self.cells(area, at) else { break };
            match column.marked {
                true => buf.set_string(x, area.y, "▲", paint.fg(Color::Magenta).add_modifier(Modifier::BOLD)),
                false if buf[(x, area.y)].symbol() == " " => buf.set_string(x, area.y, "╵", paint.dim()),
                false => {}
            }
        }
    }
}

/// Returns the character that shades a share of the answers.
fn shade(share: f64) -> &'static str {
    match share {
        s if s < 0.02 => "·",
        s if s < 0.10 => "░",
        s if s < 0.30 => "▒",
        s if s < 0.60 => "▓",
        _ => "█",
    }
}

/// Formats a time in at most six characters: `12 µs`, `316 ms`, `2.5 s`.
fn short(us: f64) -> String {
    let digits = |value: f64| if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") };
    match us {
        us if us < 999.5 => format!("{us:.0} µs"),
        us if us < 999_500.0 => format!("{} ms", digits(us / 1e3)),
        us => format!("{} s", digits(us / 1e6)),
    }
}
