//! `./x simulate [SECONDS [SEED]]` runs the engine in simulated worlds, for that many seconds (10) on all processors,
//! from a seed on (by default from the clock). `0 SEED` runs that seed alone and prints what happens. The exit code is
//! 1 if an invariant failed, and the seeds of those runs are printed. `--first SECONDS SEED` stops at the first such
//! run, for tests with mutants.

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

/// One run in this many is repeated, and has to be identical.
const TWICE: u64 = 50;
/// Most seeds to print.
const MOST_TOLD: usize = 20;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let first_only = arguments.first().is_some_and(|a| a == "--first");
    if first_only {
        arguments.remove(0);
    }
    let numbers: Option<Vec<u64>> = arguments.iter().map(|a| a.parse().ok()).collect();
    let by_clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_secs() * 1_000_000);
    match numbers.as_deref() {
        Some([0, seed]) => one(*seed),
        Some([]) => many(10, by_clock(), first_only),
        Some([seconds]) if *seconds > 0 => many(*seconds, by_clock(), first_only),
        Some([seconds, seed]) => many(*seconds, *seed, first_only),
        _ => {
            eprintln!(
                "simulate [--first] [SECONDS [SEED]], or simulate 0 SEED for one run with all that happens in it"
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

fn many(seconds: u64, first: u64, first_only: bool) -> ExitCode {
    let until = Instant::now() + Duration::from_secs(seconds);
    let (next, runs, requests) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let enough = AtomicBool::new(false);
    let failed: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
    let work = || {
        while Instant::now() < until && !enough.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let report = looked_at(seed);
            runs.fetch_add(1, Ordering::Relaxed);
            requests.fetch_add(report.requests, Ordering::Relaxed);
            if let Some(what) = report.violations.into_iter().next() {
                enough.fetch_or(first_only, Ordering::Relaxed);
                failed.lock().unwrap_or_else(PoisonError::into_inner).push((seed, what));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort();
    for (seed, what) in failed.iter().take(MOST_TOLD) {
        println!("seed {seed}: {what}");
    }
    if failed.len() > MOST_TOLD {
        println!("and {} more", failed.len() - MOST_TOLD);
    }
    let (runs, requests) = (runs.into_inner(), requests.into_inner());
    println!("{runs} runs, {requests} requests, {} violations", failed.len());
    ExitCode::from(u8::from(!failed.is_empty()))
}
