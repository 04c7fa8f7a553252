//! The list panes: trials, causes, events, keys.

use lastdrop_model::printable::line;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::Span;

use super::clock;
use super::panes::Pane;
use super::screen::{Screen, take};
use super::trials::{TrialRow, TrialStanding, grouped};

impl Screen<'_> {
    pub(super) fn trials(&mut self, mut area: Rect) {
        let trials = &self.live.trials;
        let best = trials.best();
        self.rule(&mut area, "trials", &format!("{}", trials.rows.len()));
        if let Some(lead) = &self.live.lead {
            let row = take(&mut area, 1);
            let between =
                lead.interval.map_or("not proven yet".into(), |[low, high]| format!("between {low:.2} and {high:.2}"));
            let text = format!("{:.2} times {}, {between}, in {}", lead.ratio, lead.times, lead.rests_on);
            let (name, colour) =
                if lead.ratio < 1.0 { ("best of others", Color::Yellow) } else { ("best so far", Color::Green) };
            let mut spans = vec![
                Span::styled(format!(" {name:<15}"), self.paint.dim()),
                Span::styled(text, self.paint.fg(colour).patch(self.paint.bold())),
            ];
            if area.height < 4 {
                spans.push(Span::raw(format!("  {}", lead.what)));
                self.line(row, spans);
            } else {
                self.line(row, spans);
                let row = take(&mut area, 1);
                self.line(row, vec![Span::raw(format!("{:16}{}", "", lead.what))]);
            }
        } else if let Some(words) = trials.best_words() {
            let row = take(&mut area, 1);
            let style = self.paint.fg(Color::Green).patch(self.paint.bold());
            let spans =
                vec![Span::styled(format!(" {:<15}", "best so far"), self.paint.dim()), Span::styled(words, style)];
            self.line(row, spans);
        }
        let room = usize::from(area.height);
        let all = trials.rows.len();
        let end = all.saturating_sub(self.manner.skip.min(all.saturating_sub(room)));
        let most = trials.rows.iter().map(|r| r.value).fold(0.0, f64::max);
        for at in end.saturating_sub(room)..end {
            let row = take(&mut area, 1);
            self.trial(row, &trials.rows[at], best == Some(at), most);
        }
    }

    fn trial(&mut self, area: Rect, row: &TrialRow, best: bool, most: f64) {
        let cells = if area.width >= 100 { 24 } else { 10 };
        let style = match (row.worth, best) {
            (TrialStanding::Fails, _) => self.paint.dim(),
            (_, true) => self.paint.fg(Color::Green),
            _ => self.paint.fg(Color::Cyan),
        };
        let sign = if best { "★" } else { " " };
        let mut spans = vec![
            Span::styled(format!("{sign}{:>3} ", row.number), self.paint.dim()),
            Span::styled(format!("{:>11} ", row.shown), if best { self.paint.bold() } else { Style::new() }),
            Span::raw(format!("p99 {:>8} ", row.p99)),
            Span::styled(bar(if most > 0.0 { row.value / most } else { 0.0 }, cells), style),
        ];
        spans.push(Span::styled(format!(" {}", row.name), if best { self.paint.bold() } else { Style::new() }));
        if !row.note.is_empty() {
            let style = if row.worth == TrialStanding::Fails { self.paint.fg(Color::Yellow) } else { self.paint.dim() };
            spans.push(Span::styled(format!("  {}", row.note), style));
        }
        self.line(area, spans);
    }

    pub(super) fn causes(&mut self, mut area: Rect) {
        let Some(suspicion) = &self.live.suspicion else { return };
        self.rule(&mut area, "suspected", "");
        if suspicion.suspects.is_empty() {
            let row = take(&mut area, 1);
            self.line(row, vec![Span::raw(" nothing so far: nobody had to wait")]);
        }
        for (i, suspect) in suspicion.suspects.iter().enumerate() {
            let row = take(&mut area, 1);
            let share = f64::from(suspect.confidence) / 100.0;
            let style = if i == 0 { self.paint.fg(Color::Yellow).patch(self.paint.bold()) } else { Style::new() };
            let spans = vec![
                Span::styled(format!(" {}", bar(share, 6)), self.paint.fg(Color::Yellow)),
                Span::styled(format!(" {:>3} % ", suspect.confidence), self.paint.dim()),
                Span::styled(line(&suspect.title), style),
                Span::styled(format!("  {}", line(&suspect.reason)), self.paint.dim()),
            ];
            self.line(row, spans);
        }
        if area.height < 2 {
            return;
        }
        self.rule(&mut area, "excluded", &suspicion.excluded.len().to_string());
        let mut text = String::from(" ");
        for id in suspicion.excluded.iter() {
            if text.chars().count() + id.chars().count() + 2 > usize::from(area.width) {
                let row = take(&mut area, 1);
                self.line(row, vec![Span::styled(std::mem::replace(&mut text, " ".into()), self.paint.dim())]);
            }
            text.push_str(&format!("{id}  "));
        }
        let row = take(&mut area, 1);
        self.line(row, vec![Span::styled(text, self.paint.dim())]);
    }

    pub(super) fn news(&mut self, mut area: Rect) {
        if area.height == 0 {
            return;
        }
        self.rule(&mut area, "events", "");
        let room = usize::from(area.height);
        let all = self.live.news.len();
        let skip = if self.manner.pane == Pane::News { self.manner.skip.min(all.saturating_sub(room)) } else { 0 };
        let end = all - skip;
        for news in self.live.news.iter().take(end).skip(end.saturating_sub(room)) {
            let row = take(&mut area, 1);
            let style = if news.text.starts_with("mark: ") { self.paint.fg(Color::Magenta) } else { Style::new() };
            // A counter's name may end with its unit: `throttled, ms`.
            let (text, unit) = match news.text.rsplit_once(", ") {
                Some((text, unit @ ("s" | "ms"))) if news.counted.is_some() => (text, format!(" {unit}")),
                _ => (news.text.as_str(), String::new()),
            };
            let mut spans =
                vec![Span::styled(format!("{:>6}  ", clock(news.second)), self.paint.dim()), Span::styled(text, style)];
            if let Some((n, until)) = news.counted {
                spans.push(Span::styled(format!(": {}{unit}", grouped(n)), self.paint.bold()));
                if until > news.second {
                    spans.push(Span::styled(format!("  until {}", clock(until)), self.paint.dim()));
                }
            }
            self.line(row, spans);
        }
    }

    pub(super) fn help(&mut self, area: Rect) {
        let width = 62.min(area.width);
        let height = (HELP.len() as u16 + 2).min(area.height);
        let place =
            Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
        for y in place.y..place.y + place.height {
            for x in place.x..place.x + place.width {
                self.buf[(x, y)].reset();
            }
        }
        let mut rest = place;
        self.rule(&mut rest, "keys", "any of them closes this");
        for (key, what) in HELP {
            let row = take(&mut rest, 1);
            self.line(row, vec![Span::styled(format!("  {key:<12}"), self.paint.bold()), Span::raw(*what)]);
        }
        let row = take(&mut rest, 1);
        self.line(row, vec![Span::styled("─".repeat(usize::from(width)), self.paint.dim())]);
    }
}

const HELP: &[(&str, &str)] = &[
    ("q, Ctrl-C", "stop as planned: report, server put back"),
    ("p, Space", "hold the picture; the load goes on"),
    ("Tab, ← →", "the next part in large, and back to the overview"),
    ("1 … 6", "a part by its number"),
    ("m", "mark this moment; it stands in the report"),
    ("↑ ↓", "scroll a list"),
    ("Ctrl-L", "draw all of it again"),
    ("", ""),
    ("latency", "darker: more of the answers of that second;"),
    ("", "green: the faster half, cyan: to p99, yellow: rest"),
    ("errors", "no answer, or a status of 400 and up"),
    ("▲ ╵", "a mark; another run or phase"),
];

/// Draws a bar for a fraction of 1 in `cells` cells, to an eighth of a cell.
fn bar(share: f64, cells: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * cells as f64 * 8.0).round() as usize;
    let part = PARTS[eighths % 8];
    let full = eighths / 8;
    let pad = cells - full - usize::from(!part.is_empty());
    format!("{}{part}{}", "█".repeat(full), " ".repeat(pad))
}
