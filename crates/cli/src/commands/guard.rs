//! `lastdrop guard SERVER`

use std::fs::OpenOptions;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use lastdrop_analyze::guard::Limits;
use lastdrop_experiment::guard::{Event, GuardOrder, guard as run_guard};
use lastdrop_model::units::show_bytes;
use lastdrop_report::utc;

use crate::args::GuardArgs;
use crate::exit::{Exit, UsageError};
use crate::signals::Stop;

pub fn guard(args: &GuardArgs) -> Result<Exit> {
    let limits = Limits {
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
    let order = GuardOrder {
        server: args.server.clone(),
        limits,
        every: args.every,
        share: args.share,
        act: args.act,
        even_busy: args.even_busy,
        duration: args.duration,
    };
    let mut log = match &args.log {
        None => None,
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            Some(file.with_context(|| format!("cannot write {}", path.display()))?)
        }
    };
    let stop = Stop::on_signals(false)?;
    let mut trouble = None;
    let summary = run_guard(&order, &stop.flag, &mut |event| {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let line = format!("{} {}\n", utc(seconds * 1000), describe(&event));
        if !args.quiet {
            // A terminal that has gone is no reason to stop guarding.
            let _ = std::io::stdout().write_all(line.as_bytes());
        }
        if let Some(file) = &mut log
            && let Err(e) = file.write_all(line.as_bytes())
        {
            trouble = Some(e);
        }
    })?;
    if !args.quiet {
        let (would, left) = if args.act {
            ("asked to leave", format!(", {} have left, {} were killed", summary.left, summary.killed))
        } else {
            ("would have been asked to leave", String::new())
        };
        println!(
            "{} checks, {} workers {would}{left}; real memory at most {}",
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

fn describe(event: &Event) -> String {
    match event {
        Event::Started { server, workers, act } => {
            let how = if *act { "replacing" } else { "dry run: nothing is replaced without --act" };
            format!("guarding {server}: {workers} workers; {how}")
        }
        Event::Asked { pid, why, requests, age_s, real_memory, acted } => {
            let what = if *acted { "replacing" } else { "would replace" };
            let requests = requests.map_or(String::new(), |n| format!(", {n} requests"));
            let real = real_memory.map_or(String::new(), |b| format!("; the group has {}", show_bytes(b)));
            format!("{what} {pid}: {why} ({age_s:.0} s old{requests}{real})")
        }
        Event::Left { pid, after_s } => format!("{pid} has left after {after_s:.2} s"),
        Event::Killed { pid, signal } => format!("{pid} did not leave: {signal}"),
        Event::Note(text) => text.clone(),
    }
}
