//! `lastdrop watch SERVER…`

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_diagnose::findings::certain;
use lastdrop_diagnose::fold;
use lastdrop_experiment::observe::watch_stack::Watchers;
use lastdrop_files::input;
use lastdrop_model::bounds::{DURATION, INTERVAL};
use lastdrop_model::documents::{WatchDocument, WatchOutput};
use lastdrop_report::watch::{SortBy, View};
use lastdrop_report::watch_stack::{draw_watched, most_workers, watched_news};
use lastdrop_report::{limit_line, watched_line, watched_text};
use lastdrop_server::{Kind, ServerRef, check_called_apart, kinds};
use ratatui::crossterm::event::{KeyCode, KeyModifiers};

use crate::commands::Report;
use crate::exit::{Exit, UsageError};
use crate::fleet::{machines, on_agents};
use crate::options::{DatabaseArgs, FleetArgs, within};
use crate::outfile::json_line;
use crate::signals::Stop;
use crate::stdio::{self, note};
use crate::view::canvas::{Canvas, Input};
use crate::view::tty::{KeySignals, Stream};

#[derive(Debug, Args)]
#[command(
    after_help = "Keys: q quit, p pause, s sort by the next column, r reverse, arrows scroll.\nPrivate, shared and PSS are read in turn, each at most 15 s old.\n\nExamples:\n  lastdrop watch apache\n  lastdrop watch nginx@http://127.0.0.1/nginx_status --sort private\n  lastdrop watch pid:1234 --once --json -\n  lastdrop watch front=nginx php-fpm\n  lastdrop watch nginx php-fpm --db postgres://look@db.example/shop --db-password-file ~/.db\n  lastdrop watch web-1,web-2/apache --nats tls://10.0.0.1:4222 --token-file FILE\n  lastdrop watch apache --fleet all --nats tls://10.0.0.1:4222 --token-file FILE\n  lastdrop watch php-fpm --record night.jsonl -d 8h      and later: lastdrop watch --replay night.jsonl"
)]
pub struct WatchArgs {
    #[arg(value_name = "SERVER", required_unless_present = "replay", help = format!(
        "The server, or several ([NAME=]SERVER), each with @URL; of several the chain is shown, too. Kinds: {}. AGENT/KIND or A,B/KIND is a \
         server on the machines of a fleet's agents, side by side",
        kinds::list_with_files(Kind::is_program)
    ))]
    pub servers: Vec<ServerRef>,
    #[command(flatten)]
    pub database: DatabaseArgs,
    /// Show the servers on the machines of a fleet's agents, side by side: all, a number of them, or names ('a,b')
    #[arg(long = "fleet", value_name = "WHO", conflicts_with = "replay")]
    pub who: Option<String>,
    #[command(flatten)]
    pub fleet: FleetArgs,
    /// Time between two samples, which differences cover
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = within::<Duration>(INTERVAL))]
    pub interval: Duration,
    /// Take one sample, then end
    #[arg(long)]
    pub once: bool,
    /// Execute no program of the server, not even to learn its version; show only what the kernel and its status page tell
    #[arg(long)]
    pub execute_nothing: bool,
    /// End after this long
    #[arg(short, long, value_name = "TIME", value_parser = within::<Duration>(DURATION))]
    pub duration: Option<Duration>,
    /// Sort workers by cpu, private, rss, requests, age or pid
    #[arg(long, value_name = "COLUMN", default_value = "cpu", value_parser = str::parse::<SortBy>)]
    pub sort: SortBy,
    /// Sort the other way round
    #[arg(long)]
    pub reverse: bool,
    /// Append each sample to this file, one JSON document per line
    #[arg(long, value_name = "FILE", conflicts_with = "once")]
    pub record: Option<String>,
    /// Show a recording instead of a server
    #[arg(long, value_name = "FILE", conflicts_with_all = ["servers", "record"])]
    pub replay: Option<PathBuf>,
    /// Write samples as JSON to a file, or to stdout with '-'; without --once one document per line
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    pub json: Option<String>,
    /// No text
    #[arg(short, long)]
    pub quiet: bool,
}

/// Limit of the events that the screen remembers.
const MOST_EVENTS: usize = 100;

pub fn watch(args: &WatchArgs) -> Result<Exit> {
    if args.execute_nothing {
        lastdrop_server::execution::forbid();
    }
    let view = View { sort: args.sort, reverse: args.reverse, ..View::default() };
    let stop = Stop::on_signals(false)?;
    if let Some(path) = &args.replay {
        return replay(path, args, view, &stop);
    }
    check_called_apart(&args.servers).map_err(UsageError)?;
    let databases = args.database.options()?;
    let (servers, machines) = match &args.who {
        Some(who) => on_agents(&args.servers, who, &args.fleet)?,
        None => (args.servers.clone(), machines(&args.servers, &args.fleet)?),
    };
    if args.once {
        let report = Report::open(args.json.as_deref(), args.quiet)?;
        let mut watchers = Watchers::start(&servers, &databases, &machines)?;
        sleep(args.interval, &stop);
        let seen = watchers.look(true)?;
        if let Some(alert) = watchers.alert() {
            note!("lastdrop: {alert}");
        }
        if let Some(seen) = seen {
            report.give(&(watched_text(&seen, &view) + &limits(&seen)), &seen)?;
        }
        return Ok(leave(&stop));
    }
    let watchers = Watchers::start(&servers, &databases, &machines)?;
    let record = args.record.as_deref().or(args.json.as_deref()).map(Recorder::open).transpose()?;
    let limit = args.duration.map(|d| Instant::now() + d);
    let source = Live { watchers, interval: args.interval };
    // Draw only if stdout is a terminal and is not used for JSON.
    if stdio::out_is_terminal() && args.json.as_deref() != Some("-") && !args.quiet {
        screen(source, view, record, limit, &stop)
    } else {
        lines(source, record, args, limit, &stop)
    }
}

/// A line for each server whose limit the counters of a sample prove.
fn limits(seen: &WatchOutput) -> String {
    let of = |d: &WatchDocument| certain(&fold::look(&d.server, &d.look)).map(|limit| limit_line(&limit));
    match seen {
        WatchOutput::One(one) => of(one).into_iter().collect(),
        WatchOutput::Several(all) => all.servers().iter().filter_map(of).collect(),
    }
}

pub(super) fn leave(stop: &Stop) -> Exit {
    stop.signal().map_or(Exit::Done, Exit::Signal)
}

pub(super) fn sleep(time: Duration, stop: &Stop) {
    let end = Instant::now() + time;
    while stop.signal().is_none() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Writes documents, one per line.
pub(super) struct Recorder {
    to: Box<dyn Write>,
    name: String,
}

impl Recorder {
    pub(super) fn open(to: &str) -> Result<Recorder> {
        let file: Box<dyn Write> = if to == "-" {
            Box::new(stdio::Document)
        } else {
            let open = OpenOptions::new().create(true).append(true).open(to);
            Box::new(open.with_context(|| format!("cannot write {to}"))?)
        };
        Ok(Recorder { to: file, name: to.to_string() })
    }

    /// Writes a whole line at once, so that a recording that is cut off ends with a complete line.
    pub(super) fn write(&mut self, document: &impl serde::Serialize) -> Result<()> {
        let line = json_line(document)?;
        let written = self.to.write_all(line.as_bytes()).and_then(|()| self.to.flush());
        written.with_context(|| format!("cannot write {}", self.name))
    }
}

/// Source of samples.
trait Source {
    /// The next sample; None at the end.
    fn next(&mut self) -> Option<Result<WatchOutput>>;
    /// Time between two samples.
    fn interval(&self) -> Duration;
    /// A text for the alert line.
    fn alert(&self) -> Option<String>;
}

struct Live {
    watchers: Watchers,
    interval: Duration,
}

impl Source for Live {
    fn next(&mut self) -> Option<Result<WatchOutput>> {
        self.watchers.look(false).map_err(Into::into).transpose()
    }

    fn interval(&self) -> Duration {
        self.interval
    }

    fn alert(&self) -> Option<String> {
        self.watchers.alert()
    }
}

struct Recording {
    lines: std::io::Lines<BufReader<input::Input>>,
    number: usize,
    interval: Duration,
}

impl Source for Recording {
    fn next(&mut self) -> Option<Result<WatchOutput>> {
        self.number += 1;
        let line = self.lines.next()?;
        let number = self.number;
        let document = line.map_err(anyhow::Error::from).and_then(|l| Ok(WatchOutput::read(&l)?));
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
    let file = input::open_stream(path).with_context(|| format!("cannot read {}", path.display()))?;
    let source = Recording { lines: BufReader::new(file).lines(), number: 0, interval: args.interval };
    if stdio::out_is_terminal() && !args.once && !args.quiet && args.json.is_none() {
        screen(source, view, None, None, stop)
    } else {
        let source = Recording { interval: Duration::ZERO, ..source };
        let record = args.json.as_deref().map(Recorder::open).transpose()?;
        lines(source, record, args, None, stop)
    }
}

/// Prints a line for each sample, without a terminal.
fn lines(
    mut source: impl Source,
    mut record: Option<Recorder>,
    args: &WatchArgs,
    limit: Option<Instant>,
    stop: &Stop,
) -> Result<Exit> {
    let mut last: Option<WatchOutput> = None;
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
            stdio::out(format!("{}{}{alert}", watched_line(&document), limits(&document)));
        }
        // A closed pipe (head) ends the watch.
        if !stdio::is_open() {
            break;
        }
    }
    if let Some(document) = last {
        let text = watched_text(&document, &View { sort: args.sort, ..View::default() });
        Report::open(args.json.as_deref().filter(|to| *to == "-"), args.quiet)?.text(&text);
    }
    Ok(leave(stop))
}

/// Shows the screen until the user leaves it.
fn screen(
    source: impl Source,
    view: View,
    record: Option<Recorder>,
    limit: Option<Instant>,
    stop: &Stop,
) -> Result<Exit> {
    // Its drop restores the terminal, also after a panic.
    let mut canvas =
        Canvas::take(Stream::Stdout, KeySignals::Key).context("cannot draw on this terminal; try --once")?;
    let result = draw_until_left(&mut canvas, source, view, record, limit, stop);
    drop(canvas);
    until_terminal_is_gone(result)?;
    Ok(leave(stop))
}

/// Ignores errors after the terminal is gone: a view ends with its terminal.
pub(super) fn until_terminal_is_gone(result: Result<()>) -> Result<()> {
    if stdio::has_lost_terminal() { Ok(()) } else { result }
}

fn draw_until_left(
    canvas: &mut Canvas,
    mut source: impl Source,
    mut view: View,
    mut record: Option<Recorder>,
    limit: Option<Instant>,
    stop: &Stop,
) -> Result<()> {
    let mut keyboard = canvas.keyboard();
    let mut due = Instant::now() + source.interval().min(Duration::from_millis(500));
    let mut shown: Option<WatchOutput> = None;
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
                    view.events.extend(watched_news(&document));
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
            view.skip = view.skip.min(most_workers(document).saturating_sub(1));
            canvas.draw(|frame| draw_watched(frame, document, &view)).context("cannot draw")?;
        }
        let wait = if over || view.paused { Duration::from_millis(200) } else { due - Instant::now().min(due) };
        let input = keyboard.next(wait.min(Duration::from_millis(200))).context("cannot read keys")?;
        if let Input::Key(key) = input {
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
