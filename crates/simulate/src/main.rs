//! `./x simulate [SECONDS [SEED]]` runs the engine in simulated worlds, for that many seconds (10) on all processors,
//! from a seed on (by default from the clock). `0 SEED` runs that seed alone and prints what happens. The exit code is
//! 1 if an invariant failed, and the seeds of those runs are printed. `--first SECONDS SEED` stops at the first such
//! run, for tests with mutants.
//!
//! `./x simulate experiments [SECONDS [SEED]]` does the same with experiments: it prints in how many of them each claim
//! held, and ends with 1 if a share is out of its bounds. `--plan FILE` takes worlds, noise and truth from a file.

// A developer's tool: it prints only its own lines.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lastdrop_simulate::plan::Scenario;
use lastdrop_simulate::{Report, run};

#[cfg(feature = "experiments")]
mod experiments_command;

/// One run in this many is repeated, and has to be identical.
const TWICE: u64 = 50;
/// Most seeds to print.
const MOST_TOLD: usize = 20;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let kind = arguments.first().cloned().unwrap_or_default();
    let (first_only, of_experiments) = (kind == "--first", kind == "experiments");
    if first_only || of_experiments {
        arguments.remove(0);
    }
    let by_clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_secs() * 1_000_000);
    #[cfg(feature = "experiments")]
    if of_experiments && let Some(code) = experiments_command::run(arguments.clone(), by_clock()) {
        return code;
    }
    let numbers: Option<Vec<u64>> = arguments.iter().map(|a| a.parse().ok()).collect();
    match numbers.as_deref().filter(|_| !of_experiments) {
        Some([0, seed]) => one(*seed),
        Some([]) => many(10, by_clock(), first_only),
        Some([seconds]) if *seconds > 0 => many(*seconds, by_clock(), first_only),
        Some([seconds, seed]) => many(*seconds, *seed, first_only),
        _ => {
            eprintln!(
                "simulate [--first|experiments [--plan FILE | --kind KIND]] [SECONDS [SEED]], or simulate [experiments] 0 SEED for one with all that happens in it"
            );
            ExitCode::from(2)
        }
    }
}

/// One run of many; a panic counts as a violation.
fn looked_at(seed: u64) -> Report {
    let made = catch_unwind(|| {
        let mut report = run(seed, false);
        if seed.is_multiple_of(TWICE) && run(seed, false).number != report.number {
            report.violations.push("another run with the same seed".into());
        }
        report
    });
    made.unwrap_or_else(|_| Report { violations: vec!["a panic".into()], ..Report::default() })
}

/// Runs one seed and prints what happens.
fn one(seed: u64) -> ExitCode {
    let report = run(seed, true);
    println!("{:#?}", Scenario::new(seed).plan);
    for (at, shard, line) in &report.lines {
        println!("{at:>10} µs  shard {shard}  {line}");
    }
    let mut violations = report.violations;
    if run(seed, false).number != report.number {
        violations.push("another run with the same seed".into());
    }
    for violation in &violations {
        println!("violation: {violation}");
    }
    println!("1 runs, {} requests, {} violations", report.requests, violations.len());
    ExitCode::from(u8::from(!violations.is_empty()))
}

/// Calls `each` with one seed after the other, on all processors, until the time is over or it returns false.
fn for_seeds(seconds: u64, first: u64, each: impl Fn(u64) -> bool + Sync) {
    let until = Instant::now() + Duration::from_secs(seconds);
    let (next, enough) = (AtomicU64::new(first), AtomicBool::new(false));
    let work = || {
        while Instant::now() < until && !enough.load(Ordering::Relaxed) {
            if !each(next.fetch_add(1, Ordering::Relaxed)) {
                enough.store(true, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
}

/// Prints the first of these seeds, each with what is wrong.
fn tell_failed(mut failed: Vec<(u64, String)>) {
    failed.sort();
    for (seed, what) in failed.iter().take(MOST_TOLD) {
        println!("seed {seed}: {what}");
    }
    if failed.len() > MOST_TOLD {
        println!("and {} more", failed.len() - MOST_TOLD);
    }
}

fn many(seconds: u64, first: u64, first_only: bool) -> ExitCode {
    let (runs, requests) = (AtomicU64::new(0), AtomicU64::new(0));
    let failed: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
    for_seeds(seconds, first, |seed| {
        let report = looked_at(seed);
        runs.fetch_add(1, Ordering::Relaxed);
        requests.fetch_add(report.requests, Ordering::Relaxed);
        let Some(what) = report.violations.into_iter().next() else { return true };
        failed.lock().unwrap_or_else(PoisonError::into_inner).push((seed, what));
        !first_only
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let count = failed.len();
    tell_failed(failed);
    let (runs, requests) = (runs.into_inner(), requests.into_inner());
    println!("{runs} runs, {requests} requests, {count} violations");
    ExitCode::from(u8::from(count > 0))
}
