//! `top`: the latest window of a log or of a server's status, as a terminal screen and as lines for a log.

use std::fmt::Write as _;

use lastdrop_model::documents::{LogSpread, TopDocument, TopGroup};
use lastdrop_model::printable::line;
use lastdrop_model::units::{show_bytes, show_us};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use crate::run::utc;
use crate::table::aligned;

/// Longer names are cut to this many characters.
const LONGEST_NAME: usize = 60;
/// Rows of a table in plain text.
const SHOWN: usize = 10;

/// The sort order of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TopBy {
    /// By mean server time.
    #[default]
    Slow,
    /// By total server time.
    Time,
    Count,
    Errors,
}

impl TopBy {
    pub const ALL: [TopBy; 4] = [TopBy::Slow, TopBy::Time, TopBy::Count, TopBy::Errors];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TopBy::Slow => "slow",
            TopBy::Time => "time",
            TopBy::Count => "count",
            TopBy::Errors => "errors",
        }
    }

    /// Returns the next order, wrapping around.
    #[must_use]
    pub fn next(self) -> TopBy {
        let at = TopBy::ALL.iter().position(|s| *s == self).unwrap_or(0);
        TopBy::ALL[(at + 1) % TopBy::ALL.len()]
    }

    fn key(self, g: &TopGroup) -> f64 {
        let mean = g.server_time_us.as_ref().map_or(0.0, |s| s.mean);
        match self {
            TopBy::Slow => mean,
            TopBy::Time => mean * g.count as f64,
            TopBy::Count => g.count as f64,
            TopBy::Errors => g.errors as f64,
        }
    }
}

impl std::str::FromStr for TopBy {
    type Err = String;

    fn from_str(text: &str) -> Result<TopBy, String> {
        TopBy::ALL.into_iter().find(|s| s.name() == text).ok_or_else(|| {
            let names: Vec<&str> = TopBy::ALL.iter().map(|s| s.name()).collect();
            format!("'{text}' is nothing to sort by; there are {}", names.join(", "))
        })
    }
}

/// Options of the screen.
#[derive(Debug, Clone, Default)]
pub struct TopView {
    pub by: TopBy,
    pub paused: bool,
}

/// Renders one line for a log: `12:00:01  812.0/s  1.2 MB/s  5xx 3  server mean 1.2 ms  slowest GET /report
/// 1.2 s  most 10.0.0.7 31 %`.
#[must_use]
pub fn top_line(d: &TopDocument) -> String {
    let time = utc(d.unix_ms);
    let time = time.get(11..19).unwrap_or_default();
    let mut out = format!("{time}  {:.1}/s", d.rps);
    if !d.sampled {
        let _ = write!(out, "  {}/s", show_bytes(d.bytes_per_s as u64));
    }
    if !d.status.is_empty() {
        let _ = write!(out, "  {}", statuses(d));
    }
    out.push_str(&workers(d));
    if let Some(s) = &d.server_time_us {
        let _ = write!(out, "  server {} p99 {}", show_us(s.mean), show_us(s.p99 as f64));
    }
    match d.classes.first() {
        Some(slowest) if slowest.server_time_us.as_ref().is_some_and(|s| s.mean > 0.0) => {
            let mean = slowest.server_time_us.as_ref().map_or(0.0, |s| s.mean);
            let _ = write!(out, "  slowest {} {}", short(&slowest.name), show_us(mean));
        }
        Some(most) => {
            let _ = write!(out, "  most {} {}", short(&most.name), share(most.count, d.requests));
        }
        None => {}
    }
    if let Some(client) = d.clients.first() {
        let _ = write!(out, "  {} {}", short(&client.name), share(client.count, d.requests));
    }
    if let Some(trouble) = &d.trouble {
        let _ = write!(out, "  {}", line(trouble));
    }
    out.push('\n');
    out
}

fn share(n: u64, of: u64) -> String {
    format!("{:.0} %", n as f64 * 100.0 / of.max(1) as f64)
}

fn statuses(d: &TopDocument) -> String {
    d.status.iter().map(|(digit, n)| format!("{digit} {n}")).collect::<Vec<_>>().join(" ")
}

fn workers(d: &TopDocument) -> String {
    let part = |n: Option<u64>, what: &str| n.map_or_else(String::new, |n| format!("  {n} {what}"));
    format!("{}{}{}", part(d.busy, "busy"), part(d.idle, "idle"), part(d.queued, "wait for a server"))
}

fn short(name: &str) -> String {
    let name = line(name);
    match name.char_indices().nth(LONGEST_NAME) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name,
    }
}

fn table(what: &str, groups: &[&TopGroup], d: &TopDocument, most: usize) -> String {
    let timed = groups.iter().any(|g| g.server_time_us.is_some());
    let row = |g: &&TopGroup| {
        let mut cells = vec![
            g.count.to_string(),
            share(g.count, d.requests),
            g.errors.to_string(),
            if d.sampled { "–".into() } else { show_bytes(g.bytes) },
        ];
        if timed {
            let time = |f: fn(&LogSpread) -> f64| g.server_time_us.as_ref().map_or("–".into(), |s| show_us(f(s)));
            cells.extend([time(|s| s.mean), time(|s| s.p99 as f64), time(|s| s.mean * s.count as f64)]);
        }
        cells.push(short(&g.name));
        cells
    };
    let mut heading = vec!["requests", "share", "errors", "bytes"];
    if timed {
        heading.extend(["mean", "p99", "in all"]);
    }
    heading.push(what);
    aligned(&heading, &groups.iter().take(most).map(row).collect::<Vec<_>>())
}

fn sorted(groups: &[TopGroup], by: TopBy) -> Vec<&TopGroup> {
    let mut all: Vec<&TopGroup> = groups.iter().collect();
    all.sort_by(|a, b| by.key(b).total_cmp(&by.key(a)).then(b.count.cmp(&a.count)));
    all
}

fn numbers(d: &TopDocument) -> Vec<(String, bool)> {
    let mut out = vec![(format!("{:.1} requests/s", d.rps), false)];
    if !d.sampled {
        out.push((format!("{}/s", show_bytes(d.bytes_per_s as u64)), false));
    }
    let failed = d.server_errors * 100 > d.requests;
    if !d.status.is_empty() {
        out.push((format!("{} (5xx {})", statuses(d), share(d.server_errors, d.requests)), failed));
    }
    let workers = workers(d);
    if !workers.is_empty() {
        out.push((workers.trim_start().to_string(), d.queued.is_some_and(|n| n > 0)));
    }
    if let Some(s) = &d.server_time_us {
        let us = |n: u64| show_us(n as f64);
        out.push((format!("server mean {}, p50 {}, p99 {}", show_us(s.mean), us(s.p50), us(s.p99)), false));
    }
    out
}

fn notes(d: &TopDocument) -> String {
    let mut notes = vec![format!("the latest {:.0} s, {} requests", d.window_s, d.requests)];
    if d.sampled {
        notes.push("who and what by each worker's latest request".into());
    }
    if !d.exact {
        notes.push("more classes or clients than are counted one by one".into());
    }
    if d.unparsed > 0 {
        notes.push(format!("{} lines not understood", d.unparsed));
    }
    if d.rotations > 0 {
        notes.push(format!("rotated {} ×", d.rotations));
    }
    notes.join("; ")
}

/// The window as text.
#[must_use]
pub fn top_text(d: &TopDocument, view: &TopView) -> String {
    let shown: Vec<String> = numbers(d).into_iter().map(|(text, _)| text).collect();
    let mut out = format!("{}\n{}\n{}\n", line(&d.source), shown.join("   "), notes(d));
    if !d.classes.is_empty() {
        let _ = write!(out, "\n{}", table("class", &sorted(&d.classes, view.by), d, SHOWN));
    }
    if !d.clients.is_empty() {
        let _ = write!(out, "\n{}", table("client", &sorted(&d.clients, TopBy::Count), d, SHOWN));
    }
    out
}

/// Draws the whole screen.
pub fn draw_top(frame: &mut Frame<'_>, d: &TopDocument, view: &TopView) {
    let dim = Style::new().add_modifier(Modifier::DIM);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let alarm = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
    let [title, head, note, classes, clients, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Fill(3),
        Constraint::Fill(2),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let mut spans = vec![Span::styled(line(&d.source), bold), Span::raw(format!("  {}", utc(d.unix_ms)))];
    if view.paused {
        spans.insert(0, Span::styled("PAUSED  ", alarm));
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), title);
    let numbers = numbers(d).into_iter();
    let spans: Vec<Span<'_>> =
        numbers.map(|(text, bad)| Span::styled(format!("{text}   "), if bad { alarm } else { bold })).collect();
    let wrap = ratatui::widgets::Wrap { trim: true };
    frame.render_widget(Paragraph::new(Line::from(spans)).wrap(wrap), head);
    match &d.trouble {
        Some(trouble) => frame.render_widget(Paragraph::new(Line::styled(line(trouble), alarm)), note),
        None => frame.render_widget(Paragraph::new(Line::styled(notes(d), dim)), note),
    }
    let mut draw = |what: &str, groups: Vec<&TopGroup>, area: Rect| {
        let text = table(what, &groups, d, usize::from(area.height.saturating_sub(1)));
        let mut lines: Vec<Line<'_>> = text.lines().map(|l| Line::raw(l.to_string())).collect();
        lines.first_mut().into_iter().for_each(|heading| *heading = heading.clone().style(dim));
        frame.render_widget(Paragraph::new(lines), area);
    };
    draw("class", sorted(&d.classes, view.by), classes);
    draw("client", sorted(&d.clients, TopBy::Count), clients);
    let help = format!("q quit  p pause  s classes by: {}", view.by.name());
    frame.render_widget(Paragraph::new(Line::styled(help, dim)), keys);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn document() -> TopDocument {
        let spread = |mean: f64| Some(LogSpread { count: 10, mean, p99: 9_000, ..LogSpread::default() });
        let group = |name: &str, count, mean| TopGroup {
            name: name.into(),
            count,
            server_time_us: spread(mean),
            ..TopGroup::default()
        };
        TopDocument {
            source: "/var/log/a\x1b.log".into(),
            unix_ms: 1_800_000_000_000,
            window_s: 60.0,
            rps: 12.5,
            requests: 100,
            server_errors: 3,
            status: [("2xx".to_string(), 97), ("5xx".to_string(), 3)].into(),
            server_time_us: spread(1_500.0),
            classes: vec![group("GET /slow", 10, 9_000.0), group("GET /often\x1b", 90, 10.0)],
            clients: vec![group("10.0.0.7", 31, 2.0)],
            exact: true,
            rotations: 1,
            ..TopDocument::default()
        }
    }

    #[test]
    fn a_line_says_the_slowest_and_the_greediest() {
        let text = top_line(&document());
        for part in ["08:00:00  12.5/s", "2xx 97 5xx 3", "server 1.50 ms", "slowest GET /slow 9.00 ms", "10.0.0.7 31 %"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.lines().count(), 1);
        assert!(top_line(&TopDocument::default()).contains("0.0/s"));
    }

    #[test]
    fn screens_of_all_sizes_are_drawn_and_steer_nothing() {
        let d = document();
        for (width, height) in [(120, 40), (40, 8), (1, 1)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
            let drawn = terminal.draw(|frame| draw_top(frame, &d, &TopView::default())).expect("drawn");
            let text: String = drawn.buffer.content.iter().map(|c| c.symbol()).collect();
            assert!(!text.contains('\x1b'), "{text}");
            assert!(width < 100 || (text.contains("GET /slow") && text.contains("rotated 1")), "{text}");
        }
        let text = top_text(&d, &TopView { by: TopBy::Count, ..TopView::default() });
        assert!(text.find("/often") < text.find("/slow"), "{text}");
    }
}
