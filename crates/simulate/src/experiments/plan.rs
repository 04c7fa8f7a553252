//! Files of simulated experiments: worlds with their noise, and what is done on them.

use std::collections::BTreeMap;

use lastdrop_model::Setting;
use lastdrop_model::plan::{Arrival, Load};
use serde::Deserialize;

use super::Scenario;
use super::capacity::CapacityScenario;
use super::compare::CompareScenario;
use super::doctor::DoctorScenario;
use super::machine::Costs;
use super::tune::TuneScenario;
use crate::world::WorldPlan;

/// A file of experiments, which take turns.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentFile {
    #[serde(rename = "experiment")]
    pub experiments: Vec<FileExperiment>,
}

/// Connections of a load with a rate.
const CONNECTIONS: u32 = 256;

fn ten() -> u32 {
    10
}

/// An experiment of a file.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum FileExperiment {
    /// Compares A with B, which costs `factor` times the processor time.
    Compare {
        #[serde(default)]
        world: WorldPlan,
        #[serde(default = "ten")]
        users: u32,
        /// Requests per second; without it, users send one request after the other.
        rate: Option<f64>,
        factor: f64,
    },
    /// Searches the highest rate with this 99th percentile.
    Capacity {
        #[serde(default)]
        world: WorldPlan,
        p99_ms: u64,
    },
    /// Tunes the pool, and settings that cost or save processor time.
    Tune {
        #[serde(default)]
        world: WorldPlan,
        #[serde(default = "ten")]
        users: u32,
        /// Factors of the processor time of a request, by setting and value.
        #[serde(default)]
        costs: BTreeMap<String, BTreeMap<String, f64>>,
        /// Findings that a look before the tune hinted at.
        #[serde(default)]
        clues: Vec<String>,
    },
    /// Examines servers. `limits`: names that are right for what limits them; none where nothing does.
    Doctor {
        #[serde(default)]
        world: WorldPlan,
        #[serde(default = "ten")]
        users: u32,
        #[serde(default)]
        limits: Vec<String>,
    },
}

impl ExperimentFile {
    /// Reads a file.
    ///
    /// # Errors
    /// With the place, or the number that makes no sense.
    pub fn read(text: &str) -> Result<ExperimentFile, String> {
        let file: ExperimentFile = toml::from_str(text).map_err(|e| e.to_string())?;
        if file.experiments.is_empty() {
            return Err("it has no [[experiment]]".into());
        }
        for experiment in &file.experiments {
            let (FileExperiment::Compare { world, .. }
            | FileExperiment::Capacity { world, .. }
            | FileExperiment::Tune { world, .. }
            | FileExperiment::Doctor { world, .. }) = experiment;
            world.check()?;
        }
        Ok(file)
    }

    /// Returns the scenario of a seed.
    #[must_use]
    pub fn scenario(&self, seed: u64) -> Scenario {
        let place = (seed % self.experiments.len() as u64) as usize;
        match self.experiments[place].clone() {
            FileExperiment::Compare { world, users, rate, factor } => {
                let load = match rate {
                    Some(rate) => Load::open(rate, Arrival::Uniform, CONNECTIONS),
                    None => Load::closed(users),
                };
                Scenario::Compare(CompareScenario { world, load, factor, seed })
            }
            FileExperiment::Capacity { world, p99_ms } => Scenario::Capacity(CapacityScenario { world, p99_ms, seed }),
            FileExperiment::Doctor { world, users, limits } => {
                Scenario::Doctor(DoctorScenario { world, users, limits, seed })
            }
            FileExperiment::Tune { world, users, costs, clues } => {
                let levels = |levels: BTreeMap<String, f64>| {
                    levels.into_iter().map(|(value, factor)| (Setting::read(&value), factor)).collect()
                };
                let costs = Costs(costs.into_iter().map(|(name, of)| (name, levels(of))).collect());
                Scenario::Tune(TuneScenario { world, costs, users, clues, stopped_after: None, watch: None, seed })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_in_the_manual_can_be_read() {
        let page = include_str!("../../../../docs/simulated-experiments.md");
        let (_, file) = page.split_once("```toml\n").expect("a file");
        let file = ExperimentFile::read(file.split_once("```").expect("its end").0).expect("it can be read");
        assert_eq!(file.experiments.len(), 4);
    }

    #[test]
    fn a_file_says_world_noise_and_truth() {
        let text = "[[experiment]]\nkind = 'compare'\nfactor = 1.2\n[experiment.world]\ncores = 2\n\
                    [experiment.world.noise]\nsteal = 0.05\n\
                    [[experiment]]\nkind = 'tune'\nusers = 30\nclues = ['compression-bound']\n\
                    costs = { compression = { '0' = 0.8, '9' = 1.3 } }\n[experiment.world.pool]\nworkers = 2\n";
        let file = ExperimentFile::read(text).expect("it can be read");
        let Scenario::Compare(first) = file.scenario(4) else { panic!("{file:?}") };
        assert_eq!((first.factor, first.world.noise.steal, first.world.cores), (1.2, 0.05, 2));
        let Scenario::Tune(second) = file.scenario(5) else { panic!("{file:?}") };
        assert_eq!((second.users, second.world.pool.workers, second.costs.lowest()), (30, 2, 0.8));
        assert!(ExperimentFile::read("[[experiment]]\nkind = 'tune'\nuser = 3").is_err());
        assert!(
            ExperimentFile::read("[[experiment]]\nkind = 'capacity'\np99_ms = 9\n[experiment.world]\ncores = 0")
                .expect_err("none")
                .contains("cores")
        );
    }
}
