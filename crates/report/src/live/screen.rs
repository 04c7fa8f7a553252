//! Lays out the screen by the available room, and draws each part.

use std::time::Duration;

use lastdrop_model::printable::line;
use lastdrop_model::units::{show_bytes, show_us};
use lastdrop_model::{ListenQueue, Sample};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::panes::Pane;
use super::strip::{GUTTER, Grid, Paint};
use super::trials::{grouped, rate};
use super::{LiveExperiment, PhaseSoFar, clock};

/// Options of the screen.
#[derive(Debug, Clone, Default)]
pub struct ScreenOptions {
    pub pane: Pane,
    pub colour: bool,
    /// The screen shows an earlier state.
    pub paused: bool,
    /// Number of list rows scrolled back.
    pub skip: usize,
    pub help: bool,
    /// The text of the mark that the user is typing.
    pub writing: Option<String>,
    /// Time since the experiment began.
    pub elapsed: Duration,
    /// The user has asked to stop.
    pub stopping: bool,
}

/// From this width on, the screen has two halves.
const TWO_HALVES: u16 = 150;
/// Largest useful number of rows for latencies.
const ENOUGH_HEAT: u16 = 14;
/// Rows of percentiles, left of the latencies.
const PERCENTILES: u16 = 5;

/// Draws an experiment.
pub fn draw(frame: &mut Frame<'_>, live: &LiveExperiment, manner: &ScreenOptions) {
    let area = frame.area();
    if area.width < 8 || area.height < 2 {
        return;
    }
    let paint = Paint { colour: manner.colour };
    let server_below = live.look.is_some();
    let mut s = Screen { buf: frame.buffer_mut(), live, manner, paint, server_below };
    let mut rest = area;
    let title = take(&mut rest, 1);
    let keys = take_last(&mut rest, 1);
    s.title(title);
    s.keys(keys);
    let now = take(&mut rest, 1);
    s.now(now);
    match manner.pane {
        Pane::Overview if rest.width >= TWO_HALVES => {
            let left = Rect { width: rest.width / 2, ..rest };
            let right = Rect { x: rest.x + left.width + 2, width: rest.width - left.width - 2, ..rest };
            s.load(left);
            s.right_half(right);
        }
        Pane::Overview => s.stacked(rest),
        Pane::Latency => s.load(rest),
        Pane::Server => s.server(rest),
        Pane::Trials => s.trials(rest),
        Pane::Doctor => s.causes(rest),
        Pane::News => s.news(rest),
    }
    if manner.help {
        s.help(area);
    }
}

/// Takes rows from the top of an area, as far as there are any.
pub(super) fn take(area: &mut Rect, rows: u16) -> Rect {
    let taken = Rect { height: rows.min(area.height), ..*area };
    area.y += taken.height;
    area.height -= taken.height;
    taken
}

/// Takes rows from the bottom of an area.
fn take_last(area: &mut Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    area.height -= rows;
    Rect { y: area.y + area.height, height: rows, ..*area }
}

/// The screen being drawn.
pub(super) struct Screen<'a> {
    pub buf: &'a mut Buffer,
    pub live: &'a LiveExperiment,
    pub manner: &'a ScreenOptions,
    pub paint: Paint,
    /// The server fits below the load.
    server_below: bool,
}

impl Screen<'_> {
    /// Draws a line of text. A line that is cut off ends with a mark, so that a cut number is not taken for a
    /// smaller one.
    pub(super) fn line(&mut self, area: Rect, spans: Vec<Span<'_>>) {
        if area.height > 0 && area.width > 0 {
            let line = Line::from(spans);
            self.buf.set_line(area.x, area.y, &line, area.width);
            if line.width() > usize::from(area.width) {
                self.buf[(area.right() - 1, area.y)].set_symbol("…");
            }
        }
    }

    /// Draws a horizontal rule with a heading.
    pub(super) fn rule(&mut self, area: &mut Rect, heading: &str, more: &str) {
        let row = take(area, 1);
        let head = format!("── {heading} ");
        let tail = if more.is_empty() { String::new() } else { format!(" {more} ") };
        let room = usize::from(row.width).saturating_sub(head.chars().count() + tail.chars().count());
        let spans = vec![
            Span::styled("── ", self.paint.dim()),
            Span::styled(format!("{heading} "), self.paint.bold()),
            Span::raw(tail),
            Span::styled("─".repeat(room), self.paint.dim()),
        ];
        self.line(row, spans);
    }

    fn title(&mut self, area: Rect) {
        let mut elapsed = clock(self.manner.elapsed.as_secs() as usize);
        // The axis and the events count seconds of load. Between runs there is none, so that time differs
        // from the clock.
        if self.live.runs > 1 {
            elapsed = format!("{} of load in {elapsed}", clock(self.live.now_s as usize));
        }
        let state = match (self.manner.stopping, self.manner.paused) {
            (true, _) => " STOPPING ",
            (_, true) => " PAUSED ",
            _ => "",
        };
        let right = format!("{state} {elapsed} ");
        let room = usize::from(area.width).saturating_sub(right.chars().count());
        let what = if self.live.run.what.is_empty() { "lastdrop" } else { &self.live.run.what };
        let left = fitted(&format!(" {what}"), room);
        let bar = Style::new().add_modifier(Modifier::REVERSED);
        let alarm = if state.is_empty() { bar } else { bar.patch(self.paint.alarm()) };
        self.line(area, vec![Span::styled(left, bar), Span::styled(right, alarm)]);
    }

    /// Draws the current activity, and how long it will take.
    fn now(&mut self, area: Rect) {
        let live = self.live;
        let mut parts: Vec<String> = Vec::new();
        if !live.stage.is_empty() {
            parts.push(live.stage.clone());
        }
        if !live.doing.is_empty() {
            parts.push(live.doing.clone());
        }
        let phase = live.phase().filter(|_| live.run.under_way);
        if let Some(phase) = phase {
            let warm = if phase.measured { "" } else { " (not measured)" };
            parts.push(format!("{}{warm}: {}", phase.name, phase.load));
        } else if live.runs > 0 && parts.is_empty() {
            parts.push("over".into());
        }
        let bar = phase.and_then(PhaseSoFar::progress).map(|(share, left)| {
            let cells = if area.width >= 100 { 24 } else { 12 };
            let full = (share * f64::from(cells)).round() as usize;
            (format!("{}{}", "█".repeat(full), "░".repeat(cells as usize - full.min(cells as usize))), left)
        });
        let right = bar.as_ref().map_or(0, |(bar, left)| bar.chars().count() + left.chars().count() + 3);
        let room = usize::from(area.width).saturating_sub(right + 1);
        let words = fitted(&format!(" {}", parts.join(" · ")), room);
        let mut spans = vec![Span::styled(words, self.paint.bold())];
        if let Some((bar, left)) = bar {
            spans.push(Span::styled(format!(" {bar} "), self.paint.fg(Color::Cyan)));
            spans.push(Span::raw(left));
        }
        self.line(area, spans);
    }

    fn keys(&mut self, area: Rect) {
        if let Some(text) = &self.manner.writing {
            let room = usize::from(area.width).saturating_sub(30);
            let tail: String = text.chars().skip(text.chars().count().saturating_sub(room)).collect();
            let spans = vec![
                Span::styled(" mark: ", self.paint.bold()),
                Span::raw(format!("{tail}▏")),
                Span::styled("  Enter sets it, Esc not", self.paint.dim()),
            ];
            return self.line(area, spans);
        }
        let mut spans = vec![Span::styled(" q", self.paint.bold()), Span::styled(" stop  ", self.paint.dim())];
        for (key, what) in [("p", "pause"), ("m", "mark"), ("?", "help")] {
            spans.push(Span::styled(key, self.paint.bold()));
            spans.push(Span::styled(format!(" {what}  "), self.paint.dim()));
        }
        spans.push(Span::styled("Tab ", self.paint.bold()));
        for pane in self.live.panes() {
            let style =
                if pane == self.manner.pane { Style::new().add_modifier(Modifier::REVERSED) } else { self.paint.dim() };
            spans.push(Span::styled(pane.name(), style));
            spans.push(Span::raw(" "));
        }
        self.line(area, spans);
    }

    /// Draws all parts in one column; the code decides how many rows each gets.
    fn stacked(&mut self, mut area: Rect) {
        let list = !self.live.trials.rows.is_empty() || self.live.lead.is_some() || self.live.suspicion.is_some();
        self.server_below &= !list || area.height >= 14;
        // Load and server get their minimum first, then the list, then the rest is shared.
        let spare = area.height.saturating_sub(self.load_rows(if area.height >= 14 { 4 } else { 1 }));
        let beyond = spare.saturating_sub(8);
        let news = if list { spare.min(2) + beyond / 4 } else { (spare / 3).min(8) };
        let middle = if list { spare.saturating_sub(news) - beyond / 3 } else { 0 };
        let load = (area.height - news - middle).min(self.load_rows(2 * ENOUGH_HEAT));
        let part = take(&mut area, load);
        self.load(part);
        let part = take(&mut area, middle);
        match (self.live.suspicion.is_some(), list) {
            (true, _) => self.causes(part),
            (_, true) => self.trials(part),
            _ => {}
        }
        self.news(area);
    }

    /// Draws the right half of a wide screen.
    fn right_half(&mut self, mut area: Rect) {
        let third = area.height / 3;
        if self.live.suspicion.is_some() {
            let part = take(&mut area, third + third / 2);
            self.causes(part);
        } else if !self.live.trials.rows.is_empty() || self.live.lead.is_some() {
            let part = take(&mut area, third + third / 2);
            self.trials(part);
        }
        if self.live.look.is_some() {
            let part = take(&mut area, 11);
            self.server_numbers(part);
        }
        self.news(area);
    }

    /// Returns the rows of load and server with `heat` rows of latencies.
    fn load_rows(&self, heat: u16) -> u16 {
        3 + 1 + heat + 1 + 1 + if self.server_below { 3 } else { 0 }
    }

    fn grid(&self, area: Rect) -> Grid {
        let phases = &self.live.run.phases;
        let whole: Option<Duration> = phases.iter().map(|p| p.duration).sum();
        let whole = whole.filter(|_| self.live.runs == 1).map(|d| d.as_secs_f64().ceil() as usize);
        Grid::new(&self.live.timeline, area.width.saturating_sub(GUTTER + 1), whole)
    }

    /// Draws rates, latencies and the server over time, below each other.
    fn load(&mut self, mut area: Rect) {
        let grid = self.grid(area);
        let phase = self.live.phase();
        let latest = phase.and_then(|p| p.latest);
        let top = grid.top(|c| c.due_rps().into_iter().chain(c.answered_rps()).reduce(f64::max));
        let dash = || "-".to_string();
        let of = |value: Option<f64>| value.map_or_else(dash, rate);
        let plain = Style::new();
        let row = take(&mut area, 1);
        self.strip(row, "due", &of(latest.map(|l| l.due_rps)), plain);
        grid.bars(self.buf, plot(row), top, self.paint.dim(), |c| c.due_rps());
        let row = take(&mut area, 1);
        self.strip(row, "answered", &of(latest.map(|l| l.answered_rps)), plain);
        grid.bars(self.buf, plot(row), top, self.paint.fg(Color::Green), |c| c.answered_rps());
        let row = take(&mut area, 1);
        let bad = phase.map_or(0, bad_of);
        let style = if bad > 0 { self.paint.alarm() } else { plain };
        self.strip(row, "errors", &grouped(bad), style);
        let worst = grid.top(|c| Some(c.bad as f64));
        grid.bars(self.buf, plot(row), worst, self.paint.fg(Color::Red), |c| (c.bad > 0).then_some(c.bad as f64));
        let server = if self.server_below { 3 } else { 0 };
        let heat = area.height.saturating_sub(3 + server);
        if heat > 0 {
            let words = latest.map_or(String::new(), |l| {
                let unanswered =
                    if l.unanswered > 0 { format!("  unanswered {}", l.unanswered) } else { String::new() };
                format!("now p50 {}  p99 {}{unanswered}", show_us(l.p50_us), show_us(l.p99_us))
            });
            self.rule(&mut area, "response", &words);
            // Takes only as many rows as have latencies, so that no gap follows on a large screen. The number
            // is rounded up to fours, so that it seldom changes.
            let part = take(&mut area, heat.min(grid.heat_rows().next_multiple_of(4).max(PERCENTILES)));
            if let Some(phase) = phase {
                self.percentiles(part, phase);
            }
            grid.heat(self.buf, plot(part), self.paint);
        }
        let row = take(&mut area, 1);
        if row.height > 0 {
            grid.axis(self.buf, plot(row), self.paint);
        }
        if let Some(look) = self.live.look.as_ref().filter(|_| self.server_below && area.height >= 3) {
            self.server_strips(take(&mut area, 3), &grid, look);
        }
        if let Some(phase) = phase {
            let row = take(&mut area, 1);
            self.answers(row, phase);
        }
    }

    /// Draws a name and a number left of a picture.
    fn strip(&mut self, area: Rect, name: &str, value: &str, style: Style) {
        let value = format!("{value:>11}");
        self.line(
            Rect { width: area.width.min(GUTTER), ..area },
            vec![
                Span::styled(format!(" {name:<9}"), self.paint.dim()),
                Span::styled(value, style.patch(self.paint.bold())),
            ],
        );
    }

    /// Draws percentiles of the phase so far, left of its latencies.
    fn percentiles(&mut self, area: Rect, phase: &PhaseSoFar) {
        let all = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];
        let h = &phase.response;
        if h.count() == 0 {
            return;
        }
        for (i, (name, q)) in all.iter().enumerate().take(usize::from(area.height)) {
            let row = Rect { y: area.y + i as u16, height: 1, width: area.width.min(16), ..area };
            let value = format!("{:>8}", show_us(h.quantile(*q) as f64));
            self.line(
                row,
                vec![Span::styled(format!(" {name:<6}"), self.paint.dim()), Span::styled(value, self.paint.bold())],
            );
        }
    }

    fn server_strips(&mut self, mut area: Rect, grid: &Grid, look: &Sample) {
        let dash = || "-".to_string();
        let row = take(&mut area, 1);
        let busy = look.busy_mean.or(look.busy.map(|n| n as f64));
        let words = busy.map_or_else(|| look.worker_count.to_string(), |b| format!("{b:.0} of {}", look.worker_count));
        let full = busy.is_some_and(|b| look.worker_count > 0 && b >= look.worker_count as f64 - 0.5);
        self.strip(row, "workers", &words, if full { self.paint.fg(Color::Yellow) } else { Style::new() });
        grid.bars(self.buf, plot(row), look.worker_count as f64, self.paint.fg(Color::Blue), |c| c.busy());
        let row = take(&mut area, 1);
        let cores = look.host.cores.len().max(1) as f64;
        let words = look.cpu_cores.map_or_else(dash, |c| format!("{c:.2} of {cores:.0}"));
        self.strip(row, "cpu", &words, Style::new());
        grid.bars(self.buf, plot(row), cores, self.paint.fg(Color::Blue), |c| c.cpu());
        let row = take(&mut area, 1);
        let queue = look.listen.first();
        let words = queue.map_or_else(dash, |q| format!("{} of {}", q.queue, q.limit));
        let half = queue.is_some_and(|q| q.limit > 0 && q.queue * 2 >= q.limit);
        self.strip(row, "queue", &words, if half { self.paint.alarm() } else { Style::new() });
        let top = grid.top(|c| c.queue());
        grid.bars(self.buf, plot(row), top, self.paint.fg(Color::Yellow), |c| c.queue());
    }

    /// Draws the answers by status, and the reasons of failures.
    fn answers(&mut self, area: Rect, phase: &PhaseSoFar) {
        let mut spans = vec![Span::styled(" answers  ", self.paint.dim())];
        if phase.counts.answered == 0 {
            spans.push(Span::raw("none so far  "));
        }
        for (code, n) in &phase.status {
            let style = match code {
                200..=299 => self.paint.fg(Color::Green),
                400.. => self.paint.alarm(),
                _ => Style::new(),
            };
            spans.push(Span::styled(format!("{code}"), style));
            spans.push(Span::raw(format!(" × {}  ", grouped(*n))));
        }
        let c = &phase.counts;
        let kinds = [
            (c.failed.connect, "not connected"),
            (c.failed.reset, "reset"),
            (c.failed.closed, "closed"),
            (c.failed.protocol, "not HTTP"),
            (c.failed.refused, "refused"),
            (c.timed_out, "timed out"),
            (c.missed, "not as expected"),
            (c.mismatched, "not as in the log"),
        ];
        for (n, what) in kinds.into_iter().filter(|(n, _)| *n > 0) {
            spans.push(Span::styled(format!("{what} {}  ", grouped(n)), self.paint.alarm()));
        }
        self.line(area, spans);
    }

    /// Draws the server pane: pictures over time, and its numbers.
    fn server(&mut self, mut area: Rect) {
        let grid = self.grid(area);
        if let Some(look) = &self.live.look {
            let strips = take(&mut area, 3);
            self.server_strips(strips, &grid, look);
            let row = take(&mut area, 1);
            grid.axis(self.buf, plot(row), self.paint);
        }
        self.server_numbers(area);
    }

    fn server_numbers(&mut self, mut area: Rect) {
        let Some(look) = &self.live.look else { return };
        self.rule(&mut area, "server", "");
        for (name, value) in server_lines(look) {
            let row = take(&mut area, 1);
            let spans = vec![Span::styled(format!(" {name:<12}"), self.paint.dim()), Span::raw(line(&value))];
            self.line(row, spans);
        }
    }
}

/// Cuts or pads a text to exactly this width.
fn fitted(text: &str, width: usize) -> String {
    if text.chars().count() > width {
        return text.chars().take(width.saturating_sub(1)).chain(['…']).take(width).collect();
    }
    format!("{text:<width$}")
}

/// Returns the part of a row right of the gutter.
fn plot(row: Rect) -> Rect {
    let gutter = (GUTTER + 1).min(row.width);
    Rect { x: row.x + gutter, width: row.width - gutter, ..row }
}

/// Counts the requests of a phase that failed, timed out, or got a status of 400 or more.
fn bad_of(phase: &PhaseSoFar) -> u64 {
    phase.unanswered() + phase.status.range(400..).map(|(_, n)| n).sum::<u64>()
}

/// The latest sample in words.
fn server_lines(look: &Sample) -> Vec<(&'static str, String)> {
    let dash = || "-".to_string();
    let bytes = |b: Option<u64>| b.map_or_else(dash, show_bytes);
    let busy = look.busy.map_or(String::new(), |n| format!(", {n} busy"));
    let states: Vec<String> = look.states.iter().map(|(s, n)| format!("{n} {}", line(s))).collect();
    let queue = |q: &ListenQueue| format!("{} {} of {}", q.address, q.queue, q.limit);
    let queues: Vec<String> = look.listen.iter().map(queue).collect();
    let socket = |name: &str| look.sockets.get(name).copied().unwrap_or(0);
    let cores: Vec<String> = look.host.cores.iter().map(|c| format!("{:.0} %", c * 100.0)).collect();
    let steal = look.host.steal.map_or(String::new(), |s| format!(", stolen {:.1} %", s * 100.0));
    let mut lines = vec![
        ("workers", format!("{}{busy}   {}", look.worker_count, states.join(", "))),
        ("cpu", look.cpu_cores.map_or_else(dash, |c| format!("{c:.2} cores"))),
        ("machine", format!("{}{steal}", cores.join("  "))),
        (
            "memory",
            format!(
                "{} real, {} its own, swap {}",
                bytes(look.real_memory_bytes),
                bytes(look.private_bytes),
                bytes(look.swap_bytes)
            ),
        ),
        ("available", bytes(look.host.memory_available_bytes)),
        ("queues", if queues.is_empty() { dash() } else { queues.join("   ") }),
        (
            "sockets",
            format!(
                "{} established, {} time-wait, {} close-wait",
                socket("established"),
                socket("time_wait"),
                socket("close_wait")
            ),
        ),
    ];
    if let Some(rps) = look.requests_rps {
        lines.push(("requests", format!("{rps:.0}/s by its status page")));
    }
    if let Some(board) = &look.scoreboard {
        lines.push(("scoreboard", board.clone()));
    }
    lines
}
