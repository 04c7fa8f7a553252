//! `lastdrop top LOG…|SERVER`

mod source;

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_model::bounds::{DURATION, INTERVAL};
use lastdrop_model::documents::TopDocument;
use lastdrop_report::{TopBy, TopView, draw_top, log_text, top_line, top_text};
use lastdrop_server::{Kind, kinds};
use lastdrop_traffic::{Format, Window};
use ratatui::crossterm::event::{KeyCode, KeyModifiers};

use self::source::Source;
use crate::commands::watch::{Recorder, leave, until_terminal_is_gone};
use crate::exit::Exit;
use crate::options::within;
use crate::signals::Stop;
use crate::stdio;
use crate::view::canvas::{Canvas, Input};
use crate::view::tty::{KeySignals, Stream};

#[derive(Debug, Args)]
#[command(
    after_help = "Keys: q quit, p pause, s sort classes by the next column.\n\nExamples:\n  lastdrop top /var/log/nginx/access.log\n  lastdrop top access.log --format '%h %l %u %t \"%r\" %>s %b %D' --window 5m\n  lastdrop top access.log --from-start -d 10m --json top.jsonl\n  lastdrop top apache"
)]
pub struct TopArgs {
    #[arg(value_name = "LOG|SERVER", required = true, help = format!(
        "Access logs that grow, or a server with a status page, with @URL. Kinds: {}",
        kinds::list_with_files(Kind::is_program)
    ))]
    pub sources: Vec<String>,
    /// Format of the logs: a name, a LogFormat or log_format [default: recognised]
    #[arg(long, value_name = "LOGFORMAT", value_parser = str::parse::<Format>)]
    pub format: Option<Format>,
    /// Also read what is in the logs already, not only new lines
    #[arg(long)]
    pub from_start: bool,
    /// Time between two samples
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = within::<Duration>(INTERVAL))]
    pub interval: Duration,
    /// Counts cover this latest time
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = within::<Duration>(DURATION))]
    pub window: Duration,
    /// End after this long
    #[arg(short, long, value_name = "TIME", value_parser = within::<Duration>(DURATION))]
    pub duration: Option<Duration>,
    /// Sort classes by slow (mean time of the server), time (all of it), count or errors
    #[arg(long, value_name = "COLUMN", default_value = "slow", value_parser = str::parse::<TopBy>)]
    pub sort: TopBy,
    /// Append each sample to this file, one JSON document per line, or to stdout with '-'
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    /// No text
    #[arg(short, long)]
    pub quiet: bool,
}

/// How often growing files are read, whatever the interval is, so that no rotation is missed.
const BETWEEN_READS: Duration = Duration::from_millis(100);

pub fn top(args: &TopArgs) -> Result<Exit> {
    let stop = Stop::on_signals(true)?;
    let source = Source::open(args)?;
    let record = args.json.as_deref().map(Recorder::open).transpose()?;
    let started = Instant::now();
    let window = Window::new(args.window.as_secs_f64());
    let limit = args.duration.map(|d| started + d);
    let mut top = Top { args, source, window, record, started, limit, latest: TopDocument::default() };
    let to_stdout = args.json.as_deref() == Some("-");
    if stdio::out_is_terminal() && !to_stdout && !args.quiet {
        // Its drop restores the terminal, also after a panic.
        let mut canvas = Canvas::take(Stream::Stdout, KeySignals::Key)
            .context("cannot draw on this terminal; try it in a pipe: … | cat")?;
        let result = top.screen(&mut canvas, &stop);
        drop(canvas);
        until_terminal_is_gone(result)?;
    } else {
        top.lines(&stop)?;
    }
    let view = TopView { by: args.sort, ..TopView::default() };
    let Top { source, mut record, latest, .. } = top;
    let text = match source.summary() {
        Some(document) => {
            record.iter_mut().try_for_each(|r| r.write(&document))?;
            log_text(&document)
        }
        None => top_text(&latest, &view),
    };
    match (args.quiet, to_stdout) {
        (true, _) => {}
        (_, true) => stdio::err(text),
        (_, false) => stdio::out(format!("\n{text}")),
    }
    Ok(leave(&stop))
}

/// State of the command.
struct Top<'a> {
    args: &'a TopArgs,
    source: Source,
    window: Window,
    record: Option<Recorder>,
    started: Instant,
    limit: Option<Instant>,
    latest: TopDocument,
}

impl Top<'_> {
    /// Seconds on the window's clock. It starts one window ahead, so that old lines of a log fit before the start.
    fn now_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64() + self.args.window.as_secs_f64()
    }

    fn is_over(&self, stop: &Stop) -> bool {
        stop.signal().is_some() || self.limit.is_some_and(|l| Instant::now() >= l) || !stdio::is_open()
    }

    fn read(&mut self, stop: &Stop) {
        let (now_s, window_s) = (self.now_s(), self.args.window.as_secs_f64());
        self.source.read(&mut self.window, now_s, window_s, stop);
    }

    /// Takes the next sample and records it.
    fn look(&mut self, stop: &Stop) -> Result<()> {
        self.read(stop);
        let now_s = self.now_s();
        self.source.ask(&mut self.window, now_s);
        let mut d = self.window.look(now_s);
        if !self.args.from_start {
            d.window_s = d.window_s.min(self.started.elapsed().as_secs_f64());
        }
        d.unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        self.source.tell(&mut d);
        self.record.iter_mut().try_for_each(|r| r.write(&d))?;
        self.latest = d;
        Ok(())
    }

    /// Goes on reading until a sample is due or the command ends.
    fn wait(&mut self, due: Instant, stop: &Stop) {
        let due = self.limit.map_or(due, |l| l.min(due));
        while Instant::now() < due && !self.is_over(stop) {
            thread::sleep(due.saturating_duration_since(Instant::now()).min(BETWEEN_READS));
            self.read(stop);
        }
    }

    fn lines(&mut self, stop: &Stop) -> Result<()> {
        let mut due = Instant::now();
        while !self.is_over(stop) {
            // Do not catch up on samples missed during a long backlog.
            due = (due + self.args.interval).max(Instant::now());
            self.wait(due, stop);
            self.look(stop)?;
            if !self.args.quiet && self.args.json.as_deref() != Some("-") {
                stdio::out(top_line(&self.latest));
            }
        }
        Ok(())
    }

    fn screen(&mut self, canvas: &mut Canvas, stop: &Stop) -> Result<()> {
        let mut view = TopView { by: self.args.sort, ..TopView::default() };
        let mut keyboard = canvas.keyboard();
        let mut due = Instant::now();
        while !self.is_over(stop) {
            self.read(stop);
            if Instant::now() >= due && !view.paused {
                due = Instant::now() + self.args.interval;
                self.look(stop)?;
            }
            canvas.draw(|frame| draw_top(frame, &self.latest, &view)).context("cannot draw")?;
            if let Input::Key(key) = keyboard.next(BETWEEN_READS).context("cannot read keys")? {
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    KeyCode::Char('p' | ' ') => view.paused = !view.paused,
                    KeyCode::Char('s') => view.by = view.by.next(),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
