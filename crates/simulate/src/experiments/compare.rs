//! Simulated comparisons: are the intervals as wide as they should be, and the verdicts true?

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lastdrop_analyze::compare::{Metrics, metrics_of};
use lastdrop_experiment::trials::compare::{CompareOptions, compare};
use lastdrop_model::documents::{CompareDocument, CompareVerdict};
use lastdrop_model::plan::{Arrival, Load, Plan};

use super::machine::{Costs, SimulatedMachine, requests};
use super::shares::{Claim, ExperimentResult};
use super::stacks::{noise_level, stack};
use crate::rng::Rng;
use crate::world::{WorldPlan, rough_rate};

pub const INTERVAL: &str = "compare interval holds the truth";
pub const SAME: &str = "compare better or worse with nothing changed";
pub const OPPOSITE: &str = "compare says the opposite of the truth";
pub const FOUND: &str = "compare finds twice its smallest difference";
pub const UNSURE: &str = "compare inconclusive at four times its smallest difference";

pub const BLOCKS: &str = "blocks of a comparison";

pub const CLAIMS: [Claim; 5] = [
    Claim { name: INTERVAL, least: 0.93, most: 0.97 },
    Claim { name: SAME, least: 0.0, most: 0.05 },
    Claim { name: OPPOSITE, least: 0.0, most: 0.005 },
    Claim { name: FOUND, least: 0.80, most: 1.0 },
    Claim { name: UNSURE, least: 0.0, most: 0.10 },
];

const PATHS: [&str; 2] = ["/a", "/b"];
/// Length of the run that tells the truth.
const LONG: Duration = Duration::from_secs(60);
/// Longest request of a single user, µs.
const LONGEST_US: f64 = 60_000.0;
/// A smaller change counts as none.
const NONE: f64 = 0.002;

/// A comparison to be made.
#[derive(Debug)]
pub struct CompareScenario {
    pub world: WorldPlan,
    pub load: Load,
    /// B's processor time per request as a factor of A's.
    pub factor: f64,
    pub seed: u64,
}

impl CompareScenario {
    #[must_use]
    pub fn new(seed: u64) -> CompareScenario {
        let mut rng = Rng::new(seed);
        let level = noise_level(&mut rng);
        let mut world = stack(&mut rng, (150, 600), level);
        world.pool.workers = world.pool.workers.max(8);
        // A stretch of half a second has answers of many requests.
        let shorter = (LONGEST_US / world.held_us()).min(1.0);
        world.pool.cpu_us *= shorter;
        world.pool.wait_us *= shorter;
        if let Some(backend) = &mut world.backend {
            backend.cpu_us *= shorter;
            backend.wait_us *= shorter;
        }
        let users = rng.around(1, 40) as u32;
        let factor = match rng.below(4) {
            0 | 1 => 1.0,
            _ => {
                let change = 0.005 * rng.around(1, 300) as f64;
                if rng.in_thousand(500) { 1.0 + change } else { 1.0 / (1.0 + change) }
            }
        };
        let load = if rng.in_thousand(300) {
            let most = rough_rate(&world, world.pool.workers, world.pool.backlog, 40, 30.0);
            let rate = most * (0.2 + 0.5 * rng.below(1000) as f64 / 1000.0) / factor.max(1.0);
            Load::open(rate, Arrival::Uniform, 256)
        } else {
            Load::closed(users)
        };
        CompareScenario { world, load, factor, seed }
    }

    fn plan(&self, side: usize) -> Plan {
        let mut plan = requests(PATHS[side], self.seed);
        plan.phases[0].load = self.load.clone();
        plan
    }

    fn by_path(&self) -> [(&'static str, f64); 2] {
        [(PATHS[0], 1.0), (PATHS[1], self.factor)]
    }

    /// Compares as `lastdrop compare --live` does with its defaults.
    ///
    /// # Errors
    /// When a side answers nothing.
    pub fn compare(&self) -> Result<CompareDocument, String> {
        let machine = SimulatedMachine::new(&self.world, Costs::default(), self.seed);
        let (stop, clock) = (AtomicBool::new(false), machine.clock());
        let mut lab = machine.lab(&stop, &clock, &self.by_path());
        let order = CompareOptions {
            a: ("A".into(), self.plan(0)),
            b: ("B".into(), self.plan(1)),
            aa: false,
            blocks: 15,
            stretch: Duration::from_millis(520),
            settling: Duration::from_millis(50),
            seed: self.seed,
        };
        compare(&mut lab, &order).map_err(|e| e.to_string())
    }

    /// Measures both sides for long on the same machine without noise.
    ///
    /// # Errors
    /// When a run fails.
    pub fn truth(&self) -> Result<[Metrics; 2], String> {
        let machine = SimulatedMachine::new(&self.world.without_noise(), Costs::default(), self.seed ^ 1);
        let (stop, clock) = (AtomicBool::new(false), machine.clock());
        let mut lab = machine.lab(&stop, &clock, &self.by_path());
        let mut side = |side| {
            let mut plan = self.plan(side);
            plan.phases[0].duration = Some(LONG);
            plan.warm_up("settling", Duration::from_secs(2));
            let run = lab.run(&plan, "truth").map_err(|e| e.to_string())?;
            Ok::<_, String>(run.measured().map(|phase| metrics_of(&run, phase)).unwrap_or_default())
        };
        Ok([side(0)?, side(1)?])
    }
}

/// Carries out one comparison and checks what it says.
///
/// # Errors
/// When it cannot be carried out.
pub fn check(scenario: &CompareScenario) -> Result<ExperimentResult, String> {
    let document = scenario.compare()?;
    let mut held = Vec::new();
    let sizes = vec![(BLOCKS, document.blocks.len() as f64)];
    let is_open = matches!(scenario.load, Load::Open { .. });
    let main = if is_open { "p50_us" } else { "rps" };
    let is_same = (scenario.factor - 1.0).abs() < NONE;
    let said_other = matches!(document.verdict, CompareVerdict::Better | CompareVerdict::Worse | CompareVerdict::Mixed);
    let truth = if is_same { None } else { Some(scenario.truth()?) };
    let of = |metric: &str| match &truth {
        None => Some(1.0),
        Some([a, b]) => Some(b.get(metric)? / a.get(metric)?),
    };
    if let (Some(found), Some(truth)) = (document.metrics.get(main), of(main)) {
        held.push((INTERVAL, found.interval[0] <= truth && truth <= found.interval[1]));
    }
    if is_same {
        held.push((SAME, said_other));
        return Ok(ExperimentResult { held, sizes });
    }
    let better = scenario.factor < 1.0;
    let opposite = if better { CompareVerdict::Worse } else { CompareVerdict::Better };
    held.push((OPPOSITE, document.verdict == opposite));
    if let Some(ratio) = of(main) {
        let change = (ratio - 1.0).abs();
        if change >= 2.0 * document.smallest_difference {
            held.push((FOUND, said_other));
        }
        if change >= 4.0 * document.smallest_difference {
            held.push((UNSURE, document.verdict == CompareVerdict::Inconclusive));
        }
    }
    Ok(ExperimentResult { held, sizes })
}

/// Describes a scenario, its truth and the document.
#[must_use]
pub fn show(scenario: &CompareScenario) -> String {
    format!("{scenario:#?}\ntruth: {:#?}\n{:#?}", scenario.truth(), scenario.compare())
}
