//! The sources of `top`: growing logs, or a server's status page.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use lastdrop_experiment::observe::requests::{RequestGroup, Requests};
use lastdrop_model::documents::{LogDocument, TopDocument};
use lastdrop_server::ServerRef;
use lastdrop_traffic::{Analysis, GrowingLog, Hit, LineCounts, Window};

use super::TopArgs;
use crate::exit::UsageError;
use crate::signals::Stop;

pub(super) enum Source {
    Logs(Box<Logs>),
    Status(Box<Status>),
}

impl Source {
    /// Opens existing files as logs; any other name is a server.
    pub(super) fn open(args: &TopArgs) -> Result<Source> {
        let is_file = |name: &String| Path::new(name).exists();
        if args.sources.iter().any(is_file) || args.sources.len() > 1 {
            return Ok(Source::Logs(Box::new(Logs::open(args)?)));
        }
        let name = &args.sources[0];
        let server: ServerRef = name
            .parse()
            .map_err(|e| UsageError(format!("there is no file {name}, and as the name of a server: {e}")))?;
        if args.from_start || args.format.is_some() {
            return Err(UsageError("--from-start and --format are about logs".into()).into());
        }
        Ok(Source::Status(Box::new(Status { requests: Requests::start(&server)?, trouble: None })))
    }

    /// Counts new lines of logs.
    pub(super) fn read(&mut self, window: &mut Window, now_s: f64, window_s: f64, stop: &Stop) {
        if let Source::Logs(logs) = self {
            logs.read(window, now_s, window_s, stop);
        }
    }

    /// Reads the status page of a server.
    pub(super) fn ask(&mut self, window: &mut Window, now_s: f64) {
        if let Source::Status(status) = self {
            status.ask(window, now_s);
        }
    }

    /// Adds to a sample what the window does not know.
    pub(super) fn tell(&self, d: &mut TopDocument) {
        match self {
            Source::Logs(logs) => logs.tell(d),
            Source::Status(status) => status.tell(d),
        }
    }

    /// The analysis of the logs since the start; None for a server.
    pub(super) fn summary(self) -> Option<LogDocument> {
        match self {
            Source::Logs(logs) => Some(logs.summary()),
            Source::Status(_) => None,
        }
    }
}

pub(super) struct Logs {
    logs: Vec<GrowingLog>,
    analysis: Analysis,
    /// True while the lines from before the start are read.
    backlog: bool,
    trouble: Option<String>,
}

impl Logs {
    fn open(args: &TopArgs) -> Result<Logs> {
        let open = |name: &String| {
            let log = GrowingLog::open(Path::new(name), args.format.as_ref(), args.from_start);
            log.with_context(|| format!("cannot read {name}"))
        };
        let logs = args.sources.iter().map(open).collect::<Result<_>>()?;
        Ok(Logs { logs, analysis: Analysis::default(), backlog: args.from_start, trouble: None })
    }

    fn read(&mut self, window: &mut Window, now_s: f64, window_s: f64, stop: &Stop) {
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64);
        let (analysis, backlog) = (&mut self.analysis, self.backlog);
        let mut newest_s = 0.0f64;
        self.trouble = None;
        for log in &mut self.logs {
            let read = log.look(|entry| {
                analysis.take(entry);
                // Old lines have the age that they say; a new line is new, whatever its clock says.
                let age_s = if backlog { now_us.saturating_sub(entry.time_us).max(0) as f64 / 1e6 } else { 0.0 };
                if age_s <= window_s {
                    newest_s = newest_s.max(now_s - age_s);
                    window.take(entry, newest_s);
                }
                stop.signal().is_none()
            });
            if let Err(e) = read {
                self.trouble = Some(format!("{}: {e}", log.file().file));
            }
        }
        self.backlog = false;
    }

    fn tell(&self, d: &mut TopDocument) {
        d.source = self.logs.iter().map(|l| l.file().file).collect::<Vec<_>>().join(", ");
        d.unparsed = self.logs.iter().map(|l| l.tally().unparsed).sum();
        d.rotations = self.logs.iter().map(GrowingLog::rotations).sum();
        d.trouble.clone_from(&self.trouble);
        let unknown = self.logs.iter().find(|l| l.file().format.is_empty() && l.tally().lines > 0);
        if let Some(log) = unknown {
            d.trouble = Some(format!("the format of {} is not recognised; --format says it", log.file().file));
        }
    }

    fn summary(self) -> LogDocument {
        let mut tally = LineCounts::default();
        self.logs.iter().for_each(|l| tally.add(l.tally()));
        self.analysis.document(self.logs.iter().map(GrowingLog::file).collect(), &tally)
    }
}

pub(super) struct Status {
    requests: Requests,
    trouble: Option<String>,
}

impl Status {
    fn ask(&mut self, window: &mut Window, now_s: f64) {
        let count = |told: RequestGroup<'_>| {
            let RequestGroup { class, client, server_us, count } = told;
            window.count(&Hit { class, client: client.as_bytes(), status: 0, bytes: 0, server_us, count }, now_s);
        };
        self.trouble = self.requests.look(count).err().map(|e| e.to_string());
    }

    fn tell(&self, d: &mut TopDocument) {
        let reading = &self.requests.latest;
        d.source.clone_from(&self.requests.name);
        d.sampled = true;
        d.trouble.clone_from(&self.trouble);
        (d.busy, d.idle, d.queued) = (reading.busy, reading.idle, reading.queued);
    }
}
