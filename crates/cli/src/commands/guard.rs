//! `lastdrop guard SERVER…`

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_analyze::guard::WorkerLimits;
use lastdrop_experiment::lab::LabError;
use lastdrop_experiment::observe::guard::{GuardOptions, GuardSummary, guard as run_guard};
use lastdrop_model::bounds::{BoundError, DURATION, INTERVAL, MEMORY, SHARE};
use lastdrop_model::units::show_bytes;
use lastdrop_model::{Event, printable};
use lastdrop_report::{event_line, utc};
use lastdrop_server::{Kind, ServerRef, check_called_apart, kinds};

use crate::exit::{Exit, UsageError};
use crate::options::within;
use crate::signals::Stop;
use crate::stdio::{self, say};

#[derive(Debug, Args)]
#[command(
    after_help = "Without --act it only says what it would do. A worker is asked to leave when it is idle, finishes what it has begun, and\nits master starts another; only one that is stuck is ended against its will. Apache has to be prefork.\n\nExamples:\n  lastdrop guard apache --max-private 60M\n  lastdrop guard apache --memory 2G --stuck 5m --act --log /var/log/lastdrop-guard.log\n  lastdrop guard php-fpm --max-size 200M --max-age 6h --share 5 --every 30s --act"
)]
pub struct GuardArgs {
    #[arg(required = true, value_name = "SERVER", help = format!(
        "The server, or several ([NAME=]SERVER), each with these limits: {}, with a configuration or @URL where several run",
        kinds::list(Kind::can_replace)
    ))]
    pub servers: Vec<ServerRef>,
    /// Replace workers whose resident size is above this
    #[arg(long, value_name = "SIZE", help_heading = "Limits", value_parser = within::<u64>(MEMORY))]
    pub max_size: Option<u64>,
    /// Replace workers with more private memory than this
    #[arg(long, value_name = "SIZE", help_heading = "Limits", value_parser = within::<u64>(MEMORY))]
    pub max_private: Option<u64>,
    /// Replace workers that share less than this
    #[arg(long, value_name = "SIZE", help_heading = "Limits", value_parser = within::<u64>(MEMORY))]
    pub min_shared: Option<u64>,
    /// Replace workers that have used more CPU time than this
    #[arg(long, value_name = "TIME", help_heading = "Limits", value_parser = within::<Duration>(DURATION))]
    pub max_cpu: Option<Duration>,
    /// Replace workers that are older than this
    #[arg(long, value_name = "TIME", help_heading = "Limits", value_parser = within::<Duration>(DURATION))]
    pub max_age: Option<Duration>,
    /// End workers that spend longer than this on one request (needs a status page)
    #[arg(long, value_name = "TIME", help_heading = "Limits", value_parser = within::<Duration>(DURATION))]
    pub stuck: Option<Duration>,
    /// Real memory of the whole server: from nine tenths of it on, the largest workers are replaced
    #[arg(long, value_name = "SIZE", help_heading = "Limits", value_parser = within::<u64>(MEMORY))]
    pub memory: Option<u64>,
    /// Time between two checks
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = within::<Duration>(INTERVAL))]
    pub every: Duration,
    /// Most workers replaced at a time, in percent of the pool (at least one worker)
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = share)]
    pub share: f64,
    /// Also ask busy workers; they finish their request first
    #[arg(long)]
    pub even_busy: bool,
    /// Replace workers instead of only naming them
    #[arg(long)]
    pub act: bool,
    /// Execute no program of a server's: its settings are not asked, only what its processes show
    #[arg(long)]
    pub execute_nothing: bool,
    /// End after this long
    #[arg(short, long, value_name = "TIME", value_parser = within::<Duration>(DURATION))]
    pub duration: Option<Duration>,
    /// Append a line for each event to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// No text
    #[arg(short, long)]
    pub quiet: bool,
}

/// Reads a percentage as a fraction.
fn share(text: &str) -> Result<f64, BoundError> {
    SHARE.read::<f64>(text).map(|percent| percent / 100.0)
}

/// The destination of event lines.
struct Log {
    quiet: bool,
    file: Option<File>,
    /// The error that left the file incomplete.
    trouble: Option<std::io::Error>,
}

impl Log {
    fn write(&mut self, line: &str) {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let line = format!("{} {}\n", utc(seconds * 1000), printable::line(line));
        if !self.quiet {
            // Go on guarding when the terminal is gone.
            stdio::out(&line);
        }
        if let Some(file) = &mut self.file
            && let Err(e) = file.write_all(line.as_bytes())
        {
            self.trouble = Some(e);
        }
    }
}

/// The beginning of a line about one of several servers.
fn whose(args: &GuardArgs, server: &ServerRef) -> String {
    if args.servers.len() > 1 { format!("{}: ", server.called()) } else { String::new() }
}

pub fn guard(args: &GuardArgs) -> Result<Exit> {
    let limits = WorkerLimits {
        max_size: args.max_size,
        max_private: args.max_private,
        min_shared: args.min_shared,
        max_cpu_s: args.max_cpu.map(|d| d.as_secs_f64()),
        max_age_s: args.max_age.map(|d| d.as_secs_f64()),
        stuck_s: args.stuck.map(|d| d.as_secs_f64()),
        memory: args.memory,
    };
    if !limits.any() {
        let what = "say what workers may be: --max-private 60M, --max-age 6h, --stuck 5m, --memory 2G …";
        return Err(UsageError(what.into()).into());
    }
    check_called_apart(&args.servers).map_err(UsageError)?;
    if args.execute_nothing {
        lastdrop_server::execution::forbid();
    }
    let file = match &args.log {
        None => None,
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            Some(file.with_context(|| format!("cannot write {}", path.display()))?)
        }
    };
    let stop = Stop::on_signals(false)?;
    let log = Mutex::new(Log { quiet: args.quiet, file, trouble: None });
    let summaries = thread::scope(|scope| {
        let guarded = args.servers.iter().map(|server| {
            let order = GuardOptions {
                server: server.clone(),
                limits,
                every: args.every,
                share: args.share,
                act: args.act,
                even_busy: args.even_busy,
                duration: args.duration,
            };
            let (log, stop, whose) = (&log, &stop, whose(args, server));
            scope.spawn(move || {
                let tell = &mut |event: &Event<'_>| {
                    if let Some(line) = event_line(event) {
                        log.lock().unwrap_or_else(PoisonError::into_inner).write(&format!("{whose}{line}"));
                    }
                };
                // If one server cannot be guarded, end the others, too.
                run_guard(&order, &stop.flag, tell).inspect_err(|_| stop.end())
            })
        });
        let guarded: Vec<_> = guarded.collect();
        let end = |one: thread::ScopedJoinHandle<'_, Result<GuardSummary, LabError>>| match one.join() {
            Ok(summary) => summary,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        guarded.into_iter().map(end).collect::<Result<Vec<GuardSummary>, LabError>>()
    })?;
    let trouble = log.into_inner().unwrap_or_else(PoisonError::into_inner).trouble;
    for (server, summary) in args.servers.iter().zip(&summaries).filter(|_| !args.quiet) {
        let (would, left) = if args.act {
            ("asked to leave", format!(", {} have left, {} were killed", summary.left, summary.killed))
        } else {
            ("would have been asked to leave", String::new())
        };
        say!(
            "{}{} checks, {} workers {would}{left}; real memory at most {}",
            whose(args, server),
            summary.checks,
            summary.asked,
            show_bytes(summary.largest_real_memory)
        );
    }
    if let Some(e) = trouble {
        anyhow::bail!("the pool was guarded but the log could not be written: {e}");
    }
    Ok(stop.signal().map_or(Exit::Done, Exit::Signal))
}
