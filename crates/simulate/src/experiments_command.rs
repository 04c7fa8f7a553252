//! `./x simulate experiments [--plan FILE | --kind KIND] [SECONDS [SEED]]`: see `main.rs`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use lastdrop_simulate::experiments::plan::ExperimentFile;
use lastdrop_simulate::experiments::shares::Shares;
use lastdrop_simulate::experiments::{self, Scenario, ScenarioSource};

use crate::{MOST_TOLD, for_seeds, tell_failed};

/// Carries out the experiments of these arguments; `None` if they mean nothing.
pub fn run(mut arguments: Vec<String>, by_clock: u64) -> Option<ExitCode> {
    let mut source = ScenarioSource::Drawn(None);
    if let [option, value, ..] = arguments.as_slice() {
        let read = match option.as_str() {
            "--plan" => std::fs::read_to_string(value)
                .map_err(|e| e.to_string())
                .and_then(|text| ExperimentFile::read(&text))
                .map(ScenarioSource::File)
                .map_err(|why| format!("{value}: {why}")),
            "--kind" => value.parse().map(|kind| ScenarioSource::Drawn(Some(kind))),
            _ => Ok(ScenarioSource::Drawn(None)),
        };
        match read {
            Ok(read) => source = read,
            Err(why) => {
                eprintln!("{why}");
                return Some(ExitCode::from(2));
            }
        }
        if option.starts_with("--") {
            arguments.drain(..2);
        }
    }
    let numbers: Option<Vec<u64>> = arguments.iter().map(|a| a.parse().ok()).collect();
    Some(match numbers?.as_slice() {
        [0, seed] => one(*seed, &source),
        [] => many(10, by_clock, &source),
        [seconds] if *seconds > 0 => many(*seconds, by_clock, &source),
        [seconds, seed] => many(*seconds, *seed, &source),
        _ => return None,
    })
}

/// Carries out the experiment of one seed and prints what it was and what it said.
fn one(seed: u64, source: &ScenarioSource) -> ExitCode {
    println!("{}", Scenario::new(seed, source).show());
    match experiments::one(seed, source) {
        Ok(result) => {
            for (name, size) in result.sizes {
                println!("{name}: {size:.0}");
            }
            for (name, held) in result.held {
                println!("{name}: {}", if held { "yes" } else { "no" });
            }
            println!("1 experiments, 0 violations");
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("seed {seed}: {what}");
            println!("1 experiments, 1 violations");
            ExitCode::FAILURE
        }
    }
}

fn many(seconds: u64, first: u64, source: &ScenarioSource) -> ExitCode {
    let count = AtomicU64::new(0);
    let shares: Mutex<Shares> = Mutex::default();
    let failed: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
    for_seeds(seconds, first, |seed| {
        let held = experiments::one(seed, source);
        count.fetch_add(1, Ordering::Relaxed);
        match held {
            Ok(held) => shares.lock().unwrap_or_else(PoisonError::into_inner).add(seed, &held),
            Err(what) => failed.lock().unwrap_or_else(PoisonError::into_inner).push((seed, what)),
        }
        true
    });
    let shares = shares.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    for claim in experiments::claims() {
        let share = shares.claims.get(claim.name).cloned().unwrap_or_default();
        println!("{}: {} of {}", claim.name, share.held, share.of);
        if claim.is_broken(&share) {
            let wrong =
                if share.held as f64 > claim.most * share.of as f64 { &share.held_in } else { &share.failed_in };
            failed.extend(wrong.iter().take(MOST_TOLD).map(|seed| (*seed, claim.name.to_string())));
        }
    }
    let violations = failed.len();
    for (name, mut sizes) in shares.sizes {
        sizes.sort_by(f64::total_cmp);
        let at = |part: usize| sizes[(sizes.len() - 1) * part / 10];
        println!("{name}: half up to {:.0}, nine of ten up to {:.0}", at(5), at(9));
    }
    tell_failed(failed);
    println!("{} experiments, {violations} violations", count.into_inner());
    ExitCode::from(u8::from(violations > 0))
}
