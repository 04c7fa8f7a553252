//! Experiments in a simulated world: the same code as on real machines, in virtual time, with a truth to compare with.
//!
//! `machine` is what an experiment is given of a simulated machine. `stacks` draws servers and noise by seed. `site` is what the
//! doctor sees of it. `compare`, `capacity`, `tune`, `live` and `doctor` carry out one experiment and check what it says; `watch` is
//! the end of a tune. `shares` counts how often each claim held. `plan` has experiments of a file.

pub mod capacity;
pub mod compare;
pub mod doctor;
pub mod live;
pub mod machine;
pub mod plan;
pub mod shares;
pub mod site;
pub mod stacks;
pub mod tune;
pub mod watch;

use std::panic::catch_unwind;

use capacity::CapacityScenario;
use compare::CompareScenario;
use doctor::DoctorScenario;
use live::LiveScenario;
use plan::ExperimentFile;
use shares::{Claim, ExperimentResult};
use tune::TuneScenario;

/// An experiment to be made, with its world.
#[derive(Debug)]
pub enum Scenario {
    Compare(CompareScenario),
    Capacity(CapacityScenario),
    Tune(TuneScenario),
    Live(LiveScenario),
    Doctor(DoctorScenario),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExperimentKind {
    Compare,
    Capacity,
    Tune,
    /// A tune beside visitors.
    Live,
    Doctor,
}

impl std::str::FromStr for ExperimentKind {
    type Err = String;

    fn from_str(name: &str) -> Result<ExperimentKind, String> {
        match name {
            "compare" => Ok(ExperimentKind::Compare),
            "capacity" => Ok(ExperimentKind::Capacity),
            "tune" => Ok(ExperimentKind::Tune),
            "live" => Ok(ExperimentKind::Live),
            "doctor" => Ok(ExperimentKind::Doctor),
            _ => Err(format!("{name:?} is no kind of experiment; they are compare, capacity, tune, live and doctor")),
        }
    }
}

/// Where scenarios come from.
#[derive(Debug, Clone)]
pub enum ScenarioSource {
    /// Drawn by seed: all kinds, or one.
    Drawn(Option<ExperimentKind>),
    File(ExperimentFile),
}

impl Scenario {
    /// Draws the scenario of a seed, or takes it from a file.
    #[must_use]
    pub fn new(seed: u64, source: &ScenarioSource) -> Scenario {
        let kind = match source {
            ScenarioSource::File(file) => return file.scenario(seed),
            ScenarioSource::Drawn(Some(kind)) => *kind,
            // Most are comparisons, which take least.
            ScenarioSource::Drawn(None) => match seed % 8 {
                0..3 => ExperimentKind::Compare,
                3 => ExperimentKind::Live,
                4 | 5 => ExperimentKind::Doctor,
                6 => ExperimentKind::Capacity,
                _ => ExperimentKind::Tune,
            },
        };
        match kind {
            ExperimentKind::Compare => Scenario::Compare(CompareScenario::new(seed)),
            ExperimentKind::Capacity => Scenario::Capacity(CapacityScenario::new(seed)),
            ExperimentKind::Tune => Scenario::Tune(TuneScenario::new(seed)),
            ExperimentKind::Live => Scenario::Live(LiveScenario::new(seed)),
            ExperimentKind::Doctor => Scenario::Doctor(DoctorScenario::new(seed)),
        }
    }

    fn check(&self) -> Result<ExperimentResult, String> {
        match self {
            Scenario::Compare(scenario) => compare::check(scenario),
            Scenario::Capacity(scenario) => capacity::check(scenario),
            Scenario::Tune(scenario) => tune::check(scenario),
            Scenario::Live(scenario) => live::check(scenario),
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
            Scenario::Live(scenario) => live::show(scenario),
            Scenario::Doctor(scenario) => doctor::show(scenario),
        }
    }
}

/// Returns all claims, in the order in which they are printed.
pub fn claims() -> impl Iterator<Item = &'static Claim> {
    let experiments = compare::CLAIMS.iter().chain(&capacity::CLAIMS).chain(&tune::CLAIMS).chain(&live::CLAIMS);
    experiments.chain(&watch::CLAIMS).chain(&doctor::CLAIMS)
}

/// Carries out the experiment of a seed. A panic is an error.
///
/// # Errors
/// When it cannot be carried out.
pub fn one(seed: u64, source: &ScenarioSource) -> Result<ExperimentResult, String> {
    let checked = catch_unwind(|| Scenario::new(seed, source).check());
    checked.unwrap_or_else(|_| Err("a panic".into()))
}
