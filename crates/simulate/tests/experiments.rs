//! Experiments in the simulated world: what they claim holds, and a seed is an experiment. `./x simulate experiments` tries more.
#![cfg(feature = "experiments")]

use std::sync::Mutex;
use std::thread;

use lastdrop_simulate::experiments::shares::Shares;
use lastdrop_simulate::experiments::{ExperimentKind, ScenarioSource, capacity, claims, one};

const SEEDS: std::ops::Range<u64> = 0..64;

#[test]
fn what_experiments_claim_holds_in_the_simulated_world() {
    let shares = Mutex::new(Shares::default());
    let part = |rest: u64| {
        for seed in SEEDS.filter(|seed| seed % 2 == rest) {
            let result = one(seed, &ScenarioSource::Drawn(None)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            shares.lock().expect("no panic").add(seed, &result);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| part(0));
        scope.spawn(|| part(1));
    });
    let shares = shares.into_inner().expect("no panic");
    for claim in claims() {
        let share = shares.claims.get(claim.name).cloned().unwrap_or_default();
        assert!(!claim.is_broken(&share), "{}: {share:?}", claim.name);
    }
    let tried: u64 = shares.claims.values().map(|share| share.of).sum();
    assert!(tried > 120, "{shares:?}");
}

#[test]
fn the_same_seed_is_the_same_experiment() {
    for seed in [1, 4, 6, 7] {
        let [first, second] = [one(seed, &ScenarioSource::Drawn(None)), one(seed, &ScenarioSource::Drawn(None))]
            .map(|result| result.expect("it runs"));
        assert_eq!((first.held, first.sizes), (second.held, second.sizes), "seed {seed}");
    }
}

/// A hold that failed by chance, or a first short trial that did, made these answers 4 to 11 % too low.
#[test]
fn chance_does_not_lower_a_capacity() {
    let check = |seed| {
        let result = one(seed, &ScenarioSource::Drawn(Some(ExperimentKind::Capacity)))
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(result.held.contains(&(capacity::NEAR, true)), "seed {seed}: {result:?}");
    };
    thread::scope(|scope| {
        scope.spawn(|| [10, 71, 109].map(check));
        scope.spawn(|| [285, 374, 376].map(check));
    });
}
