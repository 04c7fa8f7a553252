//! A sample of a server: a terminal screen, and lines for a log.

use std::cmp::Ordering;
use std::fmt::Write as _;

use lastdrop_model::documents::WatchDocument;
use lastdrop_model::printable::line as one_line;
use lastdrop_model::units::show_bytes;
use lastdrop_model::{DatabaseSample, Sample, WorkerSample};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};

use crate::database::{database_lines, database_summary, database_text};
use crate::server::events;
use crate::table::aligned;

/// The sort order of the table of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortBy {
    #[default]
    Cpu,
    Private,
    Size,
    Requests,
    Age,
    Pid,
}

impl SortBy {
    pub const ALL: [SortBy; 6] =
        [SortBy::Cpu, SortBy::Private, SortBy::Size, SortBy::Requests, SortBy::Age, SortBy::Pid];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SortBy::Cpu => "cpu",
            SortBy::Private => "private",
            SortBy::Size => "rss",
            SortBy::Requests => "requests",
            SortBy::Age => "age",
            SortBy::Pid => "pid",
        }
    }

    /// Returns the next order, wrapping around.
    #[must_use]
    pub fn next(self) -> SortBy {
        let at = SortBy::ALL.iter().position(|s| *s == self).unwrap_or(0);
        SortBy::ALL[(at + 1) % SortBy::ALL.len()]
    }

    fn compare(self, a: &WorkerSample, b: &WorkerSample) -> Ordering {
        let float = |x: Option<f64>, y: Option<f64>| y.unwrap_or(-1.0).total_cmp(&x.unwrap_or(-1.0));
        let order = match self {
            SortBy::Cpu => float(a.cpu_cores, b.cpu_cores),
            SortBy::Private => b.private_bytes.cmp(&a.private_bytes),
            SortBy::Size => b.rss_bytes.cmp(&a.rss_bytes),
            SortBy::Requests => b.requests.cmp(&a.requests),
            SortBy::Age => b.age_s.total_cmp(&a.age_s),
            SortBy::Pid => Ordering::Equal,
        };
        order.then(a.pid.cmp(&b.pid))
    }
}

impl std::str::FromStr for SortBy {
    type Err = String;

    fn from_str(text: &str) -> Result<SortBy, String> {
        SortBy::ALL.into_iter().find(|s| s.name() == text).ok_or_else(|| {
            let names: Vec<&str> = SortBy::ALL.iter().map(|s| s.name()).collect();
            format!("'{text}' is no column to sort by; there are {}", names.join(", "))
        })
    }
}

/// Options of the screen.
#[derive(Debug, Clone, Default)]
pub struct View {
    pub sort: SortBy,
    pub reverse: bool,
    /// Number of workers scrolled past.
    pub skip: usize,
    pub paused: bool,
    /// An important message: the server is gone, a file cannot be written.
    pub alert: Option<String>,
    /// Events of the latest samples as (seconds, text), newest last.
    pub events: Vec<(f64, String)>,
}

const HEADING: [&str; 11] = ["pid", "S", "cpu %", "private", "shared", "pss", "rss", "swap", "requests", "fds", "age"];

fn cells(w: &WorkerSample) -> Vec<String> {
    let dash = || "-".to_string();
    let bytes = |b: Option<u64>| b.map_or_else(dash, show_bytes);
    vec![
        w.pid.to_string(),
        one_line(&w.state),
        w.cpu_cores.map_or_else(dash, |c| format!("{:.1}", c * 100.0)),
        bytes(w.private_bytes),
        bytes(w.shared_bytes),
        bytes(w.pss_bytes),
        bytes(w.rss_bytes),
        w.swap_bytes.filter(|b| *b > 0).map_or_else(dash, show_bytes),
        w.requests.map_or_else(dash, |n| n.to_string()),
        w.fds.map_or_else(dash, |n| n.to_string()),
        show_age(w.age_s),
    ]
}

fn show_age(s: f64) -> String {
    match s {
        s if s < 100.0 => format!("{s:.0} s"),
        s if s < 6000.0 => format!("{:.0} min", s / 60.0),
        s if s < 360_000.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} d", s / 86400.0),
    }
}

fn sorted<'a>(workers: &'a [WorkerSample], view: &View) -> Vec<&'a WorkerSample> {
    let mut all: Vec<&WorkerSample> = workers.iter().collect();
    all.sort_by(|a, b| view.sort.compare(a, b));
    if view.reverse {
        all.reverse();
    }
    all
}

/// The state of every worker as one letter; the server's own scoreboard if it has one.
fn scoreboard(d: &WatchDocument) -> String {
    one_line(&d.look.scoreboard.clone().unwrap_or_else(|| d.workers.iter().map(|w| w.state.as_str()).collect()))
}

fn letter_style(letter: char) -> Style {
    match letter {
        'W' | 'R' => Style::new().fg(Color::Green),
        'K' => Style::new().fg(Color::Cyan),
        'D' | 'L' | 'G' | 'C' => Style::new().fg(Color::Yellow),
        '.' => Style::new().add_modifier(Modifier::DIM),
        _ => Style::new(),
    }
}

/// A number about the whole server: label, value, and whether it is alarming.
type Number = (&'static str, String, bool);

/// Numbers about the whole server, in lines.
fn summary(d: &WatchDocument) -> Vec<Vec<Number>> {
    let l: &Sample = &d.look;
    let dash = || "-".to_string();
    let bytes = |b: Option<u64>| b.map_or_else(dash, show_bytes);
    let busy = l.busy.map_or_else(dash, |b| b.to_string());
    let waiting = l.queued.map_or_else(String::new, |n| format!(", {n} wait for a server"));
    let cores = l.host.cores.len();
    let host_busy: f64 = l.host.cores.iter().sum();
    let steal = l.host.steal.unwrap_or(0.0);
    let queues: Vec<String> =
        l.listen.iter().map(|q| format!("{} {}/{}", one_line(&q.address), q.queue, q.limit)).collect();
    let full = l.listen.iter().any(|q| q.limit > 0 && q.queue * 2 >= q.limit);
    let socket = |name: &str| l.sockets.get(name).map_or_else(dash, ToString::to_string);
    let pressure: Vec<String> = ["cpu_some", "memory_some", "io_some"]
        .iter()
        .filter_map(|n| Some(format!("{} {:.0} %", n.split('_').next()?, l.pressure.get(*n)? * 100.0)))
        .collect();
    let pressed = l.pressure.get("memory_some").is_some_and(|p| *p > 0.01);
    let fds = l.fds.zip(l.fds_limit);
    vec![
        vec![
            ("workers", format!("{}, {busy} busy{waiting}", l.worker_count), l.queued.is_some_and(|n| n > 0)),
            ("requests", l.requests_rps.map_or_else(dash, |r| format!("{r:.0}/s")), false),
            ("cpu", l.cpu_cores.map_or_else(dash, |c| format!("{c:.2} cores")), false),
            ("machine", format!("{host_busy:.2} of {cores}"), cores > 0 && host_busy > cores as f64 * 0.95),
            ("steal", format!("{:.1} %", steal * 100.0), steal > 0.05),
        ],
        vec![
            ("real memory", bytes(l.real_memory_bytes), false),
            ("private", bytes(l.private_bytes), false),
            ("swap", bytes(l.swap_bytes), l.swap_bytes.is_some_and(|b| b > 0)),
            ("available", bytes(l.host.memory_available_bytes), false),
        ],
        vec![
            ("queue", if queues.is_empty() { dash() } else { queues.join("  ") }, full),
            ("established", socket("established"), false),
            ("time-wait", socket("time_wait"), false),
            // The kernel reports only the states that occur.
            ("close-wait", l.sockets.get("close_wait").copied().unwrap_or(0).to_string(), false),
        ],
        vec![
            ("waiting for", if pressure.is_empty() { dash() } else { pressure.join(", ") }, pressed),
            (
                "fds",
                fds.map_or_else(dash, |(n, of)| format!("{n} of {of}")),
                fds.is_some_and(|(n, of)| n * 10 > of * 9),
            ),
            ("watching costs", format!("{:.1} %", d.cost_cores * 100.0), false),
        ],
    ]
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn alarm() -> Style {
    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
}

/// Returns the number of rows that a scoreboard needs.
fn board_rows(board: &str, area: Rect, most: usize) -> u16 {
    board.chars().count().div_ceil(usize::from(area.width.max(1))).clamp(1, most) as u16
}

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, d: &WatchDocument, view: &View) {
    let area = frame.area();
    let board = scoreboard(d);
    let large = area.height >= 40;
    let [title, numbers, databases, states, workers, news, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(4),
        Constraint::Length(database_rows(&d.databases)),
        Constraint::Length(board_rows(&board, area, if large { 6 } else { 3 })),
        Constraint::Min(3),
        Constraint::Length(if large { 6 } else { 3 }),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_title(frame, title, d, view);
    draw_numbers(frame, numbers, d);
    draw_databases(frame, databases, &d.databases);
    draw_scoreboard(frame, states, &board);
    draw_workers(frame, workers, d, view);
    draw_news(frame, news, d.unread.first(), view);
    draw_keys(frame, keys, view);
}

/// Draws one of several servers into its area.
pub(crate) fn draw_part(frame: &mut Frame<'_>, area: Rect, d: &WatchDocument, view: &View) {
    let board = scoreboard(d);
    let [title, numbers, databases, states, workers] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(if area.height >= 12 { 4 } else { 2 }),
        Constraint::Length(database_rows(&d.databases)),
        Constraint::Length(board_rows(&board, area, 1)),
        Constraint::Min(2),
    ])
    .areas(area);
    draw_title(frame, title, d, view);
    draw_numbers(frame, numbers, d);
    draw_databases(frame, databases, &d.databases);
    draw_scoreboard(frame, states, &board);
    draw_workers(frame, workers, d, view);
}

/// Returns the rows for databases: one each, plus one for its longest lock wait and one for its heaviest
/// statement.
pub(crate) fn database_rows(databases: &[DatabaseSample]) -> u16 {
    database_lines(databases).len().min(6) as u16
}

pub(crate) fn draw_databases(frame: &mut Frame<'_>, area: Rect, databases: &[DatabaseSample]) {
    let line = |(text, alarming)| Line::styled(text, if alarming { alarm() } else { Style::new() });
    let lines: Vec<Line<'_>> = database_lines(databases).into_iter().map(line).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, d: &WatchDocument, view: &View) {
    let mut head = vec![
        Span::styled(one_line(&d.server), bold()),
        Span::raw(format!("  {}  pid {}  every {:.1} s", one_line(&d.software), d.master, d.look.span_s)),
    ];
    if view.paused {
        head.insert(0, Span::styled("PAUSED  ", alarm()));
    }
    frame.render_widget(Paragraph::new(Line::from(head)), area);
}

fn draw_numbers(frame: &mut Frame<'_>, area: Rect, d: &WatchDocument) {
    let lines: Vec<Line<'_>> = summary(d)
        .into_iter()
        .map(|row| {
            let spans = row.into_iter().flat_map(|(label, value, alarming)| {
                let style = if alarming { alarm() } else { bold() };
                [Span::styled(format!("{label} "), dim()), Span::styled(format!("{value}   "), style)]
            });
            Line::from(spans.collect::<Vec<_>>())
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), area);
}

/// Draws the events, newest last; without events, something that could not be read.
pub(crate) fn draw_news(frame: &mut Frame<'_>, area: Rect, unread: Option<&String>, view: &View) {
    let mut lines: Vec<Line<'_>> = Vec::new();
    if let Some(text) = &view.alert {
        lines.push(Line::styled(one_line(text), alarm()));
    }
    let room = usize::from(area.height).saturating_sub(lines.len());
    if view.events.is_empty() {
        let text = unread.map_or("no kernel events".to_string(), |u| format!("not read: {}", one_line(u)));
        lines.push(Line::styled(text, dim()));
    }
    for (t, text) in view.events.iter().rev().take(room).rev() {
        lines.push(Line::from(vec![Span::styled(format!("{t:>6.0} s  "), dim()), Span::raw(one_line(text))]));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

pub(crate) fn draw_keys(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let order = format!("{}{}", view.sort.name(), if view.reverse { " (reversed)" } else { "" });
    let help = format!("q quit  p pause  s sort: {order}  r reverse  up/down scroll");
    frame.render_widget(Paragraph::new(Line::styled(help, dim())), area);
}

fn draw_scoreboard(frame: &mut Frame<'_>, area: Rect, board: &str) {
    let width = usize::from(area.width.max(1));
    let letters: Vec<char> = board.chars().take(usize::from(area.height) * width).collect();
    let lines: Vec<Line<'_>> = letters
        .chunks(width)
        .map(|row| Line::from(row.iter().map(|c| Span::styled(c.to_string(), letter_style(*c))).collect::<Vec<_>>()))
        .collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_workers(frame: &mut Frame<'_>, area: Rect, d: &WatchDocument, view: &View) {
    // All columns fit into 80 characters; a wider terminal gets wider columns.
    let widths: [u16; 11] = [7, 1, 5, 8, 8, 8, 8, 6, 8, 4, 6];
    let needed: usize = widths.iter().map(|w| usize::from(*w) + 1).sum();
    let extra = (usize::from(area.width).saturating_sub(needed) / widths.len()).min(4) as u16;
    // Columns that do not fit are left out entirely rather than cut.
    let mut room = usize::from(area.width) + 1;
    let shown: Vec<usize> = (0..widths.len())
        .take_while(|i| {
            let fits = room > usize::from(widths[*i]);
            room = room.saturating_sub(usize::from(widths[*i]) + 1);
            fits
        })
        .collect();
    let line = |cells: &[String]| -> Row<'static> {
        Row::new(shown.iter().map(|i| {
            let width = usize::from(widths[*i] + extra);
            let cell = &cells[*i];
            if *i == 1 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        }))
    };
    let workers = sorted(&d.workers, view);
    let rows = workers.iter().skip(view.skip).take(usize::from(area.height)).map(|w| line(&cells(w)));
    let constraints: Vec<Constraint> = shown.iter().map(|i| Constraint::Length(widths[*i] + extra)).collect();
    let heading: Vec<String> = HEADING.iter().map(ToString::to_string).collect();
    let heading = line(&heading).style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_widget(Table::new(rows, constraints).header(heading).column_spacing(1), area);
}

/// Returns the events of a sample, for the list of events.
#[must_use]
pub fn news(look: &Sample) -> Vec<(f64, String)> {
    events(look).into_iter().map(|(what, n)| (look.t_s, format!("{}: {n}", one_line(&what)))).collect()
}

/// One sample as text, for `--once`.
#[must_use]
pub fn watch_text(d: &WatchDocument, view: &View) -> String {
    let mut out = format!("{}   {}   pid {}\n\n", one_line(&d.server), one_line(&d.software), d.master);
    for row in summary(d) {
        let parts: Vec<String> = row.into_iter().map(|(label, value, _)| format!("{label} {value}")).collect();
        let _ = writeln!(out, "{}", parts.join("   "));
    }
    let _ = writeln!(out, "\n{}\n", scoreboard(d));
    let rows: Vec<Vec<String>> = sorted(&d.workers, view).into_iter().map(cells).collect();
    out.push_str(&aligned(&HEADING, &rows));
    for (_, text) in news(&d.look) {
        let _ = writeln!(out, "event: {text}");
    }
    for what in &d.unread {
        let _ = writeln!(out, "not read: {}", one_line(what));
    }
    for database in &d.databases {
        let _ = write!(out, "\n{}", database_text(database));
    }
    out
}

/// One sample as a line, for output without a terminal.
#[must_use]
pub fn watch_line(d: &WatchDocument) -> String {
    let dash = || "-".to_string();
    let l = &d.look;
    let databases = d.databases.iter().map(|of| database_summary(of).0);
    let events: Vec<String> = news(l).into_iter().map(|(_, text)| text).chain(databases).collect();
    format!(
        "{:.0} s  workers {} busy {}  {}/s  {} cores  real {}  queue {}  {}\n",
        l.t_s,
        l.worker_count,
        l.busy.map_or_else(dash, |b| b.to_string()),
        l.requests_rps.map_or_else(dash, |r| format!("{r:.0}")),
        l.cpu_cores.map_or_else(dash, |c| format!("{c:.2}")),
        l.real_memory_bytes.map_or_else(dash, show_bytes),
        l.listen.iter().map(|q| format!("{}/{}", q.queue, q.limit)).collect::<Vec<_>>().join(" "),
        events.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn document(workers: usize) -> WatchDocument {
        let worker = |i: usize| WorkerSample {
            pid: 10_000 + i as i32,
            state: if i.is_multiple_of(3) { "W" } else { "_" }.into(),
            rss_bytes: Some(30_000_000 + i as u64 * 1000),
            pss_bytes: Some(12_345_678),
            private_bytes: Some(10_000_000 + i as u64),
            shared_bytes: Some(20_000_000),
            swap_bytes: Some(0),
            cpu_cores: Some(i as f64 / 1000.0),
            age_s: 125.0,
            requests: Some(123_456),
            fds: Some(17),
            ..WorkerSample::default()
        };
        let mut look =
            Sample { t_s: 12.0, span_s: 2.0, worker_count: workers as u64, busy: Some(7), ..Sample::default() };
        look.listen.push(lastdrop_model::ListenQueue {
            address: "127.0.0.1:80".into(),
            queue: 500,
            limit: 511,
            ..Default::default()
        });
        look.kernel.insert("ListenOverflows".into(), 42);
        look.real_memory_bytes = Some(1_234_567_890);
        WatchDocument {
            server: "apache:/etc/apache2/apache2.conf".into(),
            software: "Apache/2.4.62 (Debian), prefork".into(),
            master: 999,
            workers: (0..workers).map(worker).collect(),
            look,
            ..WatchDocument::default()
        }
    }

    fn screen(width: u16, height: u16, workers: usize, view: &View) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
        terminal.draw(|f| draw(f, &document(workers), view)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol().to_string()).collect::<String>()).collect()
    }

    #[test]
    fn the_screen_of_a_small_terminal_holds_everything() {
        let d = document(200);
        let view = View { events: news(&d.look), ..View::default() };
        let rows = screen(80, 24, 200, &view);
        let all = rows.join("\n");
        let real = show_bytes(1_234_567_890);
        let queue = "127.0.0.1:80 500/511";
        for text in ["apache2.conf", "workers 200, 7 busy", &real, queue, "ListenOverflows: 42", "q quit"] {
            assert!(all.contains(text), "{text} is missing:\n{all}");
        }
        // Two hundred letters take three lines of eighty; then comes the table, busiest worker first.
        assert!(rows[5].starts_with("W__W"), "{all}");
        let head = rows.iter().position(|r| r.contains("private") && r.contains("pid")).expect("a heading");
        assert!(rows[head + 1].trim_start().starts_with("10199"), "{all}");
        assert!(rows[head].contains("age"), "{all}");
        assert!(rows[23].contains("sort: cpu"), "{all}");
    }

    #[test]
    fn a_large_terminal_shows_more_and_a_tiny_one_does_not_break() {
        let rows = screen(200, 50, 200, &View { sort: SortBy::Pid, skip: 5, ..View::default() });
        let head = rows.iter().position(|r| r.contains("shared") && r.contains("pid")).expect("a heading");
        assert!(rows[head + 1].trim_start().starts_with("10005"), "{rows:#?}");
        let workers = rows.iter().filter(|r| r.contains("123456")).count();
        assert!(workers >= 30, "{rows:#?}");
        for (w, h) in [(1, 1), (10, 3), (40, 10), (80, 1), (300, 100)] {
            screen(w, h, 200, &View { alert: Some("gone".into()), paused: true, ..View::default() });
        }
        screen(80, 24, 0, &View::default());
    }

    #[test]
    fn nothing_that_others_named_steers_the_terminal() {
        fn spoil(value: &mut serde_json::Value) {
            match value {
                serde_json::Value::String(text) => text.push_str("\x1b]0;x\x07\u{9b}2J\u{202e}\nforged"),
                serde_json::Value::Array(all) => all.iter_mut().for_each(spoil),
                serde_json::Value::Object(all) => all.values_mut().for_each(spoil),
                _ => {}
            }
        }
        let mut value = serde_json::to_value(WatchDocument { unread: vec!["x".into()], ..document(3) }).expect("JSON");
        spoil(&mut value);
        let evil: WatchDocument = serde_json::from_value(value).expect("the same form");
        let view = View { events: news(&evil.look), alert: Some(evil.server.clone()), ..View::default() };
        let mut terminal = Terminal::new(TestBackend::new(200, 40)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &evil, &view)).expect("drawn");
        let all: String = terminal.backend().buffer().content().iter().map(|c| c.symbol()).collect();
        assert!(!all.contains(|c: char| c.is_control() || c == '\u{202e}'), "{all:?}");
        assert!(all.contains("apache2.conf\\x1b]0;x\\x07\\u{9b}2J\\u{202e}\\nforged"), "{all}");
        for text in [watch_text(&evil, &View::default()), watch_line(&evil)] {
            assert!(text.lines().all(|l| !l.starts_with("forged")), "{text:?}");
        }
    }

    #[test]
    fn a_column_to_sort_by_is_named() {
        assert_eq!("private".parse::<SortBy>(), Ok(SortBy::Private));
        assert!("size".parse::<SortBy>().is_err_and(|e| e.contains("private")));
        assert_eq!(SortBy::ALL.iter().fold(SortBy::Cpu, |s, _| s.next()), SortBy::Cpu);
    }
}
