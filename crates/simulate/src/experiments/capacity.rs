//! Simulated searches for a capacity: how near are they to the truth?

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lastdrop_analyze::capacity::falls_behind;
use lastdrop_analyze::objective::judge;
use lastdrop_experiment::trials::capacity::{CapacityOptions, HORIZON_S, SETTLING, capacity};
use lastdrop_model::documents::CapacityDocument;
use lastdrop_model::plan::{Arrival, Load};
use lastdrop_model::{Objective, ObjectiveResult};

use super::machine::{Costs, SimulatedMachine, requests};
use super::shares::{Claim, ExperimentResult};
use super::stacks::{NoiseLevel, stack};
use crate::rng::Rng;
use crate::world::WorldPlan;

pub const NEAR: &str = "capacity within 3 %";

pub const STEPS: &str = "steps of a capacity";

pub const CLAIMS: [Claim; 1] = [Claim { name: NEAR, least: 0.95, most: 1.0 }];

/// Holds that decide whether a rate can be held, and the precision of the truth.
const HOLDS: u64 = 7;
const PRECISION: f64 = 0.004;

/// A search to be made.
#[derive(Debug)]
pub struct CapacityScenario {
    pub world: WorldPlan,
    pub p99_ms: u64,
    pub seed: u64,
}

impl CapacityScenario {
    #[must_use]
    pub fn new(seed: u64) -> CapacityScenario {
        let mut rng = Rng::new(seed);
        let level = rng.one_of(&[NoiseLevel::None, NoiseLevel::None, NoiseLevel::Quiet]);
        let mut world = stack(&mut rng, (300, 3000), level);
        // With a hundred answers a second chance alone moves what is held for some seconds by percents.
        let busy = f64::from(world.cores) * world.held_us() / world.pool.cpu_us;
        world.pool.workers = world.pool.workers.max((busy * rng.between(8, 20) as f64 / 10.0) as u32);
        // What drifts has no one capacity: only as much as leaves the answer within a percent.
        world.noise.drift = world.noise.drift.min(0.003);
        world.noise.start_spread = 0.0;
        let p99_ms = (world.held_us() / 1000.0 * rng.between(8, 30) as f64).clamp(30.0, 2000.0) as u64;
        CapacityScenario { world, p99_ms, seed }
    }

    /// Searches as `lastdrop capacity` does with its defaults.
    ///
    /// # Errors
    /// When the server answers nothing.
    pub fn search(&self) -> Result<CapacityDocument, String> {
        let machine = SimulatedMachine::new(&self.world, Costs::default(), self.seed);
        let (stop, clock) = (AtomicBool::new(false), machine.clock());
        let mut lab = machine.lab(&stop, &clock, &[]);
        capacity(&mut lab, &self.order()?).map_err(|e| e.to_string())
    }

    fn order(&self) -> Result<CapacityOptions, String> {
        let objectives = [format!("p99<{}ms", self.p99_ms), "errors<0.1%".into()];
        let objectives = objectives.iter().map(|o| o.parse::<Objective>()).collect::<Result<Vec<_>, _>>()?;
        Ok(CapacityOptions {
            plan: requests("/", self.seed),
            objectives,
            arrivals: Arrival::Uniform,
            connections: 256,
            start: None,
            ceiling: 1e6,
            precision: 0.025,
            hold: Duration::from_secs(15),
            max_time: Duration::from_secs(115),
            most_users: Some(256),
        })
    }

    /// Returns the true capacity: the highest rate that fresh servers without noise hold more often than not.
    ///
    /// # Errors
    /// When a run fails.
    pub fn truth(&self) -> Result<f64, String> {
        let (mut low, mut high) = (0.0, 2.0 * 1e6 * f64::from(self.world.cores) / self.world.pool.cpu_us);
        while high - low > PRECISION * high {
            let middle = (low + high) / 2.0;
            if self.is_held(middle)? {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok((low + high) / 2.0)
    }

    fn is_held(&self, rate: f64) -> Result<bool, String> {
        let calm = self.world.without_noise();
        let order = self.order()?;
        let (mut held, mut not) = (0, 0);
        for seed in 1..=HOLDS {
            let machine = SimulatedMachine::new(&calm, Costs::default(), seed);
            let (stop, clock) = (AtomicBool::new(false), machine.clock());
            let mut lab = machine.lab(&stop, &clock, &[]);
            let mut plan = order.plan.clone();
            plan.phases[0].load = Load::open(rate, order.arrivals, order.connections);
            plan.phases[0].duration = Some(order.hold);
            plan.warm_up("settling", SETTLING);
            let _ = lab.warm_each(&plan, self.world.pool.workers as usize);
            let run = lab.run(&plan, "truth").map_err(|e| e.to_string())?;
            let judged = judge(&order.objectives, &run.plan, &run.phases, None);
            let behind = run.measured().and_then(|p| falls_behind(p, &order.objectives, HORIZON_S));
            if ObjectiveResult::all_met(&judged) && behind.is_none() {
                held += 1
            } else {
                not += 1
            }
            if 2 * held.max(not) > HOLDS {
                break;
            }
        }
        Ok(held > not)
    }
}

/// Carries out one search and checks its answer.
///
/// # Errors
/// When it cannot be carried out.
pub fn check(scenario: &CapacityScenario) -> Result<ExperimentResult, String> {
    let document = scenario.search()?;
    let truth = scenario.truth()?;
    let is_near = document.met && (document.capacity_rps / truth - 1.0).abs() <= 0.03;
    Ok(ExperimentResult { held: vec![(NEAR, is_near)], sizes: vec![(STEPS, document.steps.len() as f64)] })
}

/// Describes a scenario, its truth and the document.
#[must_use]
pub fn show(scenario: &CapacityScenario) -> String {
    format!("{scenario:#?}\ntruth: {:#?}\n{:#?}", scenario.truth(), scenario.search())
}
