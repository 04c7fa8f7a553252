//! `lastdrop watch SERVER`

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, IsTerminal, Write, stdout};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lastdrop_experiment::watch::Watcher;
use lastdrop_model::documents::{WATCH_SCHEMA, WatchDocument};
use lastdrop_report::watch::{View, draw, news};
use lastdrop_report::{watch_line, watch_text};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::args::WatchArgs;
use crate::commands::{print_report, write_json};
use crate::exit::{Exit, UsageError};
use crate::signals::Stop;

/// Events that the screen remembers.
const MOST_EVENTS: usize = 100;

pub fn watch(args: &WatchArgs) -> Result<Exit> {
    let view = View { sort: args.sort, reverse: args.reverse, ..View::default() };
    let stop = Stop::on_signals(false)?;
    if let Some(path) = &args.replay {
        return replay(path, args, view, &stop);
    }
    let server =
        args.server.as_ref().ok_or_else(|| UsageError("name the server to watch: lastdrop watch apache".into()))?;
    let mut watcher = Watcher::start(server)?;
    if args.once {
        sleep(args.interval, &stop);
        let document = watcher.look(true);
        print_report(&watch_text(&document, &view), args.json.as_deref(), args.quiet);
        if let Some(to) = &args.json {
            write_json(to, &document)?;
        }
        return Ok(leave(&stop));
    }
    let record = args.record.as_deref().or(args.json.as_deref()).map(Recorder::open).transpose()?;
    let limit = args.duration.map(|d| Instant::now() + d);
    let source = Live { watcher, interval: args.interval, gone: false };
    // A terminal to draw on, and nothing else that wants stdout.
    if stdout().is_terminal() && args.json.as_deref() != Some("-") && !args.quiet {
        screen(source, view, record, limit, &stop)
    } else {
        lines(source, record, args, limit, &stop)
    }
}

fn leave(stop: &Stop) -> Exit {
    stop.signal().map_or(Exit::Done, Exit::Signal)
}

fn sleep(time: Duration, stop: &Stop) {
    let end = Instant::now() + time;
    while stop.signal().is_none() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Takes a document a line.
struct Recorder {
    to: Box<dyn Write>,
    name: String,
}

impl Recorder {
    fn open(to: &str) -> Result<Recorder> {
        let file: Box<dyn Write> = if to == "-" {
            Box::new(stdout())
        } else {
            let open = OpenOptions::new().create(true).append(true).open(to);
            Box::new(open.with_context(|| format!("cannot write {to}"))?)
        };
        Ok(Recorder { to: file, name: to.to_string() })
    }

    /// One line, whole and at once: a recording that is cut off ends with a whole line.
    fn write(&mut self, document: &WatchDocument) -> Result<()> {
        let mut line = serde_json::to_vec(document)?;
        line.push(b'\n');
        self.to.write_all(&line).and_then(|()| self.to.flush()).with_context(|| format!("cannot write {}", self.name))
    }
}

/// Where looks come from.
trait Source {
    /// The next look; None at the end.
    fn next(&mut self) -> Option<Result<WatchDocument>>;
    /// How long until it is due.
    fn interval(&self) -> Duration;
    /// What is to be said in red.
    fn alert(&self) -> Option<String>;
}

struct Live {
    watcher: Watcher,
    interval: Duration,
    gone: bool,
}

impl Source for Live {
    fn next(&mut self) -> Option<Result<WatchDocument>> {
        if self.gone {
            self.gone = !self.watcher.find_again();
        }
        let document = self.watcher.look(false);
        self.gone |= !self.watcher.is_alive();
        Some(Ok(document))
    }

    fn interval(&self) -> Duration {
        self.interval
    }

    fn alert(&self) -> Option<String> {
        let master = self.watcher.found().master;
        self.gone.then(|| format!("the server has ended (process {master} is gone); looking for it again"))
    }
}

struct Recording {
    lines: std::io::Lines<BufReader<File>>,
    number: usize,
    interval: Duration,
}

impl Source for Recording {
    fn next(&mut self) -> Option<Result<WatchDocument>> {
        self.number += 1;
        let line = self.lines.next()?;
        let number = self.number;
        let document = line.map_err(anyhow::Error::from).and_then(|l| {
            let document: WatchDocument = serde_json::from_str(&l)?;
            anyhow::ensure!(document.schema == WATCH_SCHEMA, "it is no {WATCH_SCHEMA}");
            Ok(document)
        });
        Some(document.with_context(|| format!("line {number} of the recording")))
    }

    fn interval(&self) -> Duration {
        self.interval
    }

    fn alert(&self) -> Option<String> {
        None
    }
}

fn replay(path: &Path, args: &WatchArgs, view: View, stop: &Stop) -> Result<Exit> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let source = Recording { lines: BufReader::new(file).lines(), number: 0, interval: args.interval };
    if stdout().is_terminal() && !args.once && !args.quiet && args.json.is_none() {
        screen(source, view, None, None, stop)
    } else {
        let source = Recording { interval: Duration::ZERO, ..source };
        let record = args.json.as_deref().map(Recorder::open).transpose()?;
        lines(source, record, args, None, stop)
    }
}

/// Without a terminal: a line a look.
fn lines(
    mut source: impl Source,
    mut record: Option<Recorder>,
    args: &WatchArgs,
    limit: Option<Instant>,
    stop: &Stop,
) -> Result<Exit> {
    let mut last: Option<WatchDocument> = None;
    while stop.signal().is_none() && limit.is_none_or(|l| Instant::now() < l) {
        sleep(source.interval(), stop);
        let Some(document) = source.next() else { break };
        let document = document?;
        if let Some(record) = &mut record {
            record.write(&document)?;
        }
        if args.once {
            last = Some(document);
            continue;
        }
        if !args.quiet && args.json.as_deref() != Some("-") {
            let alert = source.alert().map_or(String::new(), |a| format!("{a}\n"));
            // A reader that has gone (head) ends the watch.
            if stdout().write_all(format!("{}{alert}", watch_line(&document)).as_bytes()).is_err() {
                break;
            }
        }
    }
    if let Some(document) = last {
        print_report(
            &watch_text(&document, &View { sort: args.sort, ..View::default() }),
            args.json.as_deref(),
            args.quiet,
        );
    }
    Ok(leave(stop))
}

/// The screen, until it is left.
fn screen(
    source: impl Source,
    view: View,
    record: Option<Recorder>,
    limit: Option<Instant>,
    stop: &Stop,
) -> Result<Exit> {
    // Sets the terminal back also after a panic.
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal; try --once")?;
    let result = draw_until_left(&mut terminal, source, view, record, limit, stop);
    ratatui::restore();
    result.map(|()| leave(stop))
}

fn draw_until_left(
    terminal: &mut DefaultTerminal,
    mut source: impl Source,
    mut view: View,
    mut record: Option<Recorder>,
    limit: Option<Instant>,
    stop: &Stop,
) -> Result<()> {
    let mut due = Instant::now() + source.interval().min(Duration::from_millis(500));
    let mut shown: Option<WatchDocument> = None;
    let mut over = false;
    while stop.signal().is_none() && limit.is_none_or(|l| Instant::now() < l) {
        if !over && !view.paused && Instant::now() >= due {
            due = Instant::now() + source.interval();
            match source.next() {
                Some(document) => {
                    let document = document?;
                    if let Some(recorder) = &mut record
                        && let Err(e) = recorder.write(&document)
                    {
                        // A full disk ends the recording, not the watch.
                        view.alert = Some(format!("{e:#}; the recording has ended"));
                        record = None;
                    } else if let Some(alert) = source.alert() {
                        view.alert = Some(alert);
                    } else if record.is_some() || view.alert.as_ref().is_some_and(|a| a.contains("is gone")) {
                        view.alert = None;
                    }
                    view.events.extend(news(&document.look));
                    let excess = view.events.len().saturating_sub(MOST_EVENTS);
                    view.events.drain(..excess);
                    shown = Some(document);
                }
                None => {
                    over = true;
                    view.alert = Some("the end of the recording; q quits".into());
                }
            }
        }
        if let Some(document) = &shown {
            view.skip = view.skip.min(document.workers.len().saturating_sub(1));
            terminal.draw(|frame| draw(frame, document, &view)).context("cannot draw")?;
        }
        let wait = if over || view.paused { Duration::from_millis(200) } else { due - Instant::now().min(due) };
        if event::poll(wait.min(Duration::from_millis(200))).context("cannot read keys")?
            && let Event::Key(key) = event::read().context("cannot read keys")?
            && key.kind == KeyEventKind::Press
        {
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                KeyCode::Char('p' | ' ') => view.paused = !view.paused,
                KeyCode::Char('s') => view.sort = view.sort.next(),
                KeyCode::Char('r') => view.reverse = !view.reverse,
                KeyCode::Down => view.skip += 1,
                KeyCode::Up => view.skip = view.skip.saturating_sub(1),
                KeyCode::PageDown => view.skip += 10,
                KeyCode::PageUp => view.skip = view.skip.saturating_sub(10),
                KeyCode::Home => view.skip = 0,
                _ => {}
            }
        }
    }
    Ok(())
}
