//! Samples of several servers: who is connected to whom, then each server's own table.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use lastdrop_model::documents::{ChainServer, StackWatchDocument, WatchOutput};
use lastdrop_model::printable::line as one_line;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use crate::database::{database_summary, database_text};
use crate::nodes::differing_lines;
use crate::watch::{
    View, database_rows, draw, draw_databases, draw_keys, draw_news, draw_part, news, watch_line, watch_text,
};

/// Paths that are listed; a mesh has more than anybody reads.
const MOST_PATHS: usize = 8;

/// Returns a line for each path that starts at a server to which no other connects: `web (nginx) -> php-fpm
/// via unix:/run/php.sock`.
#[must_use]
pub fn chain_lines(chain: &[ChainServer]) -> Vec<String> {
    let name = |server: &ChainServer| {
        let called = one_line(&server.server);
        if server.kind == server.server { called } else { format!("{called} ({})", one_line(&server.kind)) }
    };
    let reached: BTreeSet<&String> = chain.iter().flat_map(|s| &s.to).collect();
    let connecting = || chain.iter().filter(|s| !s.to.is_empty());
    let mut firsts: Vec<&ChainServer> = connecting().filter(|s| !reached.contains(&s.server)).collect();
    if firsts.is_empty() {
        // Every remaining server has a predecessor: the connections form a circle, so start anywhere.
        firsts.extend(connecting().next());
    }
    let mut lines = Vec::new();
    let mut open: Vec<(Vec<&str>, String)> = firsts.iter().rev().map(|s| (vec![s.server.as_str()], name(s))).collect();
    while let Some((way, text)) = open.pop() {
        let last = chain.iter().find(|s| Some(s.server.as_str()) == way.last().copied());
        let ways = last.map_or_else(Vec::new, |s| s.connects.iter().zip(&s.to).collect());
        let on: Vec<(Vec<&str>, String)> = ways
            .iter()
            .filter(|(_, to)| !way.contains(&to.as_str()))
            .filter_map(|(via, to)| {
                let next = chain.iter().find(|s| s.server == **to)?;
                let on = way.iter().copied().chain([next.server.as_str()]).collect();
                Some((on, format!("{text} -> {} via {}", name(next), one_line(via))))
            })
            .collect();
        if on.is_empty() {
            lines.push(text);
        }
        if lines.len() == MOST_PATHS {
            break;
        }
        open.extend(on.into_iter().rev());
    }
    lines
}

/// The connection paths, or a note that none was seen; then nodes that differ from the others.
fn chain_or_none(d: &StackWatchDocument) -> Vec<String> {
    let mut lines = chain_lines(&d.chain);
    // Connections are only visible on a single machine.
    if lines.is_empty() && !d.chain.iter().any(|s| s.server.contains('/')) {
        lines.push("no connection between these servers was seen yet".into());
    }
    lines.extend(differing_lines(&d.differs));
    lines
}

/// One sample as text, for `--once`.
#[must_use]
pub fn watched_text(watched: &WatchOutput, view: &View) -> String {
    let d = match watched {
        WatchOutput::One(d) => return watch_text(d, view),
        WatchOutput::Several(d) => d,
    };
    let mut out = String::new();
    for line in chain_or_none(d) {
        let _ = writeln!(out, "{line}");
    }
    for server in d.servers() {
        let _ = write!(out, "\n{}", watch_text(&server, view));
    }
    for database in d.other_databases() {
        let _ = write!(out, "\n{}", database_text(&database));
    }
    out
}

/// One sample as lines, one per server, for output without a terminal.
#[must_use]
pub fn watched_line(watched: &WatchOutput) -> String {
    match watched {
        WatchOutput::One(d) => watch_line(d),
        WatchOutput::Several(d) => {
            let chain: String = chain_lines(&d.chain).into_iter().map(|line| line + "\n").collect();
            let own = |(look, server): (&_, &_)| -> String {
                let look: &lastdrop_model::documents::ServerSample = look;
                format!("{}  {}", one_line(&look.server), watch_line(server))
            };
            let others = d.other_databases();
            let others: String = others.iter().map(|of| database_summary(of).0 + "\n").collect();
            let differs: String = differing_lines(&d.differs).into_iter().map(|line| line + "\n").collect();
            chain + &differs + &d.samples.iter().zip(&d.servers()).map(own).collect::<String>() + &others
        }
    }
}

/// Returns the events of a sample, for the list of events.
#[must_use]
pub fn watched_news(watched: &WatchOutput) -> Vec<(f64, String)> {
    match watched {
        WatchOutput::One(d) => news(&d.look),
        WatchOutput::Several(d) => {
            let of = |l: &lastdrop_model::documents::ServerSample| {
                let server = one_line(&l.server);
                news(&l.look).into_iter().map(move |(t, text)| (t, format!("{server}: {text}"))).collect::<Vec<_>>()
            };
            d.samples.iter().flat_map(of).collect()
        }
    }
}

/// Returns the largest number of workers of any server: the limit for scrolling.
#[must_use]
pub fn most_workers(watched: &WatchOutput) -> usize {
    match watched {
        WatchOutput::One(d) => d.workers.len(),
        WatchOutput::Several(d) => d.servers().iter().map(|s| s.workers.len()).max().unwrap_or(0),
    }
}

/// Draws the whole screen: the connection paths, then the servers one below the other.
pub fn draw_watched(frame: &mut Frame<'_>, watched: &WatchOutput, view: &View) {
    let d = match watched {
        WatchOutput::One(d) => return draw(frame, d, view),
        WatchOutput::Several(d) => d,
    };
    let servers = d.servers();
    let lines = chain_or_none(d);
    let news_rows = if frame.area().height >= 40 { 4 } else { 1 };
    let others = d.other_databases();
    let mut rows = vec![Constraint::Length(lines.len().min(3) as u16)];
    rows.extend(servers.iter().map(|_| Constraint::Fill(1)));
    rows.extend([Constraint::Length(database_rows(&others)), Constraint::Length(news_rows), Constraint::Length(1)]);
    let areas = Layout::vertical(rows).split(frame.area());
    let [chain, parts @ .., databases, news, keys] = &*areas else { return };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let shown: Vec<Line<'_>> = lines.into_iter().map(|text| Line::styled(text, bold)).collect();
    frame.render_widget(Paragraph::new(shown), *chain);
    for (area, server) in parts.iter().zip(&servers) {
        draw_part(frame, *area, server, view);
    }
    draw_databases(frame, *databases, &others);
    let unread = servers.iter().find_map(|s| s.unread.first());
    draw_news(frame, *news, unread, view);
    draw_keys(frame, *keys, view);
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::WatchDocument;
    use lastdrop_model::{Sample, WorkerSample};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn server(called: &str, kind: &str, ways: &[(&str, &str)]) -> ChainServer {
        let (connects, to) = ways.iter().map(|(via, to)| ((*via).to_string(), (*to).to_string())).unzip();
        ChainServer { server: called.into(), kind: kind.into(), listens: Vec::new(), connects, to }
    }

    #[test]
    fn a_chain_is_told_from_its_first_server_on() {
        let chain = [
            server("db", "mariadb", &[]),
            server("web", "nginx", &[("unix:/run/php.sock", "php-fpm")]),
            server("php-fpm", "php-fpm", &[("127.0.0.1:3306", "db")]),
        ];
        let line = "web (nginx) -> php-fpm via unix:/run/php.sock -> db (mariadb) via 127.0.0.1:3306";
        assert_eq!(chain_lines(&chain), [line]);
        let fork = [
            server("web", "nginx", &[("[::1]:1", "a"), ("[::1]:2", "b")]),
            server("a", "a", &[("[::1]:3", "web")]),
            server("b", "b", &[]),
        ];
        let circle = ["web (nginx) -> a via [::1]:1", "web (nginx) -> b via [::1]:2"];
        assert_eq!(chain_lines(&fork), circle);
        assert!(chain_lines(&[server("a", "a", &[])]).is_empty() && chain_lines(&[]).is_empty());
    }

    #[test]
    fn every_server_has_its_part_of_the_screen() {
        let one = |name: &str, pid| WatchDocument {
            server: name.into(),
            workers: vec![WorkerSample { pid, state: "S".into(), ..WorkerSample::default() }],
            look: Sample { worker_count: 1, ..Sample::default() },
            ..WatchDocument::default()
        };
        let servers =
            vec![("web".to_string(), one("nginx:/a", 4711)), ("php-fpm".to_string(), one("php-fpm:/b", 4712))];
        let chain = vec![server("web", "nginx", &[("unix:/x\u{1b}[1m", "php-fpm")]), server("php-fpm", "php-fpm", &[])];
        let all = WatchOutput::Several(StackWatchDocument::of(servers, chain));
        for (width, height) in [(80, 24), (120, 50), (40, 5), (1, 1)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
            terminal.draw(|frame| draw_watched(frame, &all, &View::default())).expect("drawn");
            let text: String = terminal.backend().buffer().content().iter().map(|c| c.symbol()).collect();
            if height >= 24 {
                let wanted = ["web (nginx) -> php-fpm via", "web (nginx:/a)", "php-fpm:/b", "4711", "4712", "q quit"];
                assert!(wanted.iter().all(|w| text.contains(w)), "{text}");
            }
        }
        let text = watched_text(&all, &View::default());
        assert!(text.starts_with("web (nginx) -> ") && text.contains("4711") && !text.contains('\u{1b}'), "{text}");
        let lines = watched_line(&all);
        assert!(lines.contains("\nweb  0 s  workers 1") && lines.contains("\nphp-fpm  0 s"), "{lines}");
    }
}
