//! Experiments in a simulated world: the same code as on real machines, in virtual time, with a truth to compare with.
//!
//! `machine` is what an experiment is given of a simulated machine. `stacks` draws servers and noise by seed. `site` is what the
//! doctor sees of it. `compare`, `capacity`, `tune` and `doctor` carry out one experiment and check what it says; `shares` counts how often
//! each claim held. `plan` has experiments of a file.

pub mod capacity;
pub mod compare;
pub mod doctor;
pub mod machine;
pub mod plan;
pub mod shares;
pub mod site;
pub mod stacks;
pub mod tune;

use std::panic::catch_unwind;

use capacity::CapacityScenario;
use compare::CompareScenario;
use doctor::DoctorScenario;
use plan::ExperimentFile;
use shares::{Claim, ExperimentResult};
use tune::TuneScenario;

/// An experiment to be made, with its world.
#[derive(Debug)]
pub enum Scenario {
    Compare(CompareScenario),
    Capacity(CapacityScenario),
    Tune(TuneScenario),
    Doctor(DoctorScenario),
}

impl Scenario {
    /// Draws the scenario of a seed, or takes it from a file: most are comparisons, which take least.
    #[must_use]
    pub fn new(seed: u64, file: Option<&ExperimentFile>) -> Scenario {
        match (file, seed % 8) {
            (Some(file), _) => file.scenario(seed),
            (None, 0..4) => Scenario::Compare(CompareScenario::new(seed)),
            (None, 4 | 5) => Scenario::Doctor(DoctorScenario::new(seed)),
            (None, 6) => Scenario::Capacity(CapacityScenario::new(seed)),
            (None, _) => Scenario::Tune(TuneScenario::new(seed)),
        }
    }

    fn check(&self) -> Result<ExperimentResult, String> {
        match self {
            Scenario::Compare(scenario) => compare::check(scenario),
            Scenario::Capacity(scenario) => capacity::check(scenario),
            Scenario::Tune(scenario) => tune::check(scenario),
            Scenario::Doctor(scenario) => doctor::check(scenario),
        }
    }

    /// Describes it, its truth and what was said of it, for people.
    #[must_use]
    pub fn show(&self) -> String {
        match self {
            Scenario::Compare(scenario) => compare::show(scenario),
            Scenario::Capacity(scenario) => capacity::show(scenario),
            Scenario::Tune(scenario) => tune::show(scenario),
            Scenario::Doctor(scenario) => doctor::show(scenario),
        }
    }
}

/// Returns all claims, in the order in which they are printed.
pub fn claims() -> impl Iterator<Item = &'static Claim> {
    compare::CLAIMS.iter().chain(&capacity::CLAIMS).chain(&tune::CLAIMS).chain(&doctor::CLAIMS)
}

/// Carries out the experiment of a seed. A panic is an error.
///
/// # Errors
/// When it cannot be carried out.
pub fn one(seed: u64, file: Option<&ExperimentFile>) -> Result<ExperimentResult, String> {
    let checked = catch_unwind(|| Scenario::new(seed, file).check());
    checked.unwrap_or_else(|_| Err("a panic".into()))
}
