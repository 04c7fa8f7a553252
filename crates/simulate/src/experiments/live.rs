//! Simulated tunes beside visitors: is the verdict right, what do visitors lose by it, and is everything put back?

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lastdrop_experiment::lab::{Clock, LabError};
use lastdrop_experiment::trials::tune::{SearchConstraints, TuneOptions, tune};
use lastdrop_model::Experience;
use lastdrop_model::documents::{TuneDocument, TuneVerdict};

use super::machine::{Costs, SimulatedMachine, count_of, requests};
use super::shares::{Claim, ExperimentResult};
use super::stacks::{noise_level, stack};
use super::tune::{is_restored, order};
use super::watch::{self, TRUTH, Watch, visits};
use crate::rng::Rng;
use crate::world::{World, WorldPlan, rough_rate};

pub const VERDICT: &str = "live tune verdict right";
pub const HARM: &str = "live tune harms fewer visits than come in 5 s";
pub const RESTORED: &str = "live tune restores the settings, also where it is stopped";

pub const SECONDS: &str = "seconds of a live tune";
pub const HARMED: &str = "tenths of a second whose visits a live tune harms";

pub const CLAIMS: [Claim; 3] = [
    Claim { name: VERDICT, least: 0.97, most: 1.0 },
    Claim { name: HARM, least: 0.98, most: 1.0 },
    Claim { name: RESTORED, least: 1.0, most: 1.0 },
];

/// A visit that took so many times as long as 99 of 100 did before is a harm, like one without an answer.
const LONG: f64 = 3.0;
const MOST_HARMED_S: f64 = 5.0;
/// A step that makes the compared percentile so many times as short must not be overlooked.
const PLAIN: f64 = 1.5;

/// Users that keep a pool busy, and simulated seconds that tell its rate.
const BUSY_USERS: u32 = 200;
const RATE_S: f64 = 30.0;

/// A tune beside visitors to be made.
#[derive(Debug)]
pub struct LiveScenario {
    pub world: WorldPlan,
    /// Visitors a second.
    pub rate: f64,
    /// When the user stops it.
    pub stopped_at: Option<Duration>,
    pub watch: Option<Watch>,
    pub seed: u64,
}

/// What a tune left.
#[derive(Debug)]
pub struct LiveResult {
    /// `None` where it was stopped.
    pub document: Option<TuneDocument>,
    pub seconds: f64,
    pub is_restored: bool,
    /// All visits until its end.
    pub visited: Experience,
}

impl LiveScenario {
    #[must_use]
    pub fn new(seed: u64) -> LiveScenario {
        let mut rng = Rng::new(seed);
        let level = noise_level(&mut rng);
        let mut world = stack(&mut rng, (100, 400), level);
        world.pool.reloads = rng.in_thousand(800);
        if world.pool.reloads {
            world.pool.restart_ms = rng.between(10, 80) as f64;
        }
        // The pool is just busy with its visitors, or has room.
        world.pool.workers = rng.around(2, 16) as u32;
        let calm = world.without_noise();
        let most = rough_rate(&calm, calm.pool.workers, calm.pool.backlog, BUSY_USERS, RATE_S);
        let rate = most * rng.between(30, 90) as f64 / 100.0;
        let stopped_at = rng.in_thousand(250).then(|| Duration::from_secs(rng.between(1, 300)));
        let watch = rng.in_thousand(600).then(|| Watch::draw(&mut rng));
        LiveScenario { world, rate, stopped_at, watch, seed }
    }

    /// Tunes the size of the pool as `lastdrop tune --live` does.
    ///
    /// # Errors
    /// When it cannot be carried out.
    pub fn tune(&self) -> Result<LiveResult, String> {
        let machine = SimulatedMachine::new(&self.world, Costs::default(), self.seed);
        let visitors = machine.be_visited(self.rate, self.seed);
        let stop = AtomicBool::new(false);
        let clock = machine.clock_until(self.stopped_at, &stop);
        let mut lab = machine.lab(&stop, &clock, &[]);
        machine.worsen_kept(self.watch.and_then(|watch| watch.worsens));
        let mut plan = requests("/", self.seed);
        plan.phases[0].duration = Some(Duration::from_secs(5));
        let order = TuneOptions {
            keep: self.watch.is_some(),
            watch: self.watch.map(|watch| watch.time),
            constraints: SearchConstraints { only: vec!["workers".into()], ..SearchConstraints::default() },
            ..order(plan, &[], self.seed)
        };
        let document = match tune(&mut lab, machine.open()?, &order, None, None, Some(visitors)) {
            Err(LabError::Interrupted) => None,
            done => Some(done.map_err(|e| e.to_string())?),
        };
        Ok(LiveResult {
            seconds: clock.now().as_secs_f64(),
            is_restored: is_restored(&machine, document.as_ref()),
            document,
            visited: machine.all_visited(),
        })
    }

    /// Returns the true times of visits with so many workers, without noise, each request costing `factor` times the CPU.
    #[must_use]
    pub fn truth(&self, workers: u32, factor: f64) -> Experience {
        let world = World::new(&self.world.without_noise(), self.seed);
        visits(world, (workers, self.world.pool.backlog), self.rate, factor, TRUTH)
    }

    /// Returns in how many seconds as many visits come as a tune harmed, beyond those that would have taken as long without it.
    /// `before`: the true times with the original settings.
    fn harm(&self, before: &Experience, visited: &Experience, seconds: f64) -> f64 {
        let long_us = (LONG * before.latency.quantile(0.99) as f64) as u64;
        let share =
            |seen: &Experience| (seen.errors + seen.latency.count_above(long_us)) as f64 / seen.requests.max(1) as f64;
        let time = Duration::from_secs_f64(seconds.max(1.0));
        let pool = (self.world.pool.workers, self.world.pool.backlog);
        let harm = share(visited) - share(&visits(World::new(&self.world, self.seed), pool, self.rate, 1.0, time));
        harm * seconds
    }
}

/// Carries out one tune and checks what it says.
///
/// # Errors
/// When it cannot be carried out.
pub fn check(scenario: &LiveScenario) -> Result<ExperimentResult, String> {
    let LiveResult { document, seconds, is_restored, visited } = scenario.tune()?;
    let mut held = vec![(RESTORED, is_restored)];
    let before = scenario.truth(scenario.world.pool.workers, 1.0);
    let finished = document.as_ref().filter(|document| !document.interrupted);
    if let Some((document, steps)) = finished.and_then(|d| Some((d, d.visited.as_ref()?))) {
        let quantile = match steps.compared.as_str() {
            "p99" => 0.99,
            "p95" => 0.95,
            _ => 0.5,
        };
        let at = |seen: &Experience| seen.latency.quantile(quantile) as f64;
        let winner = document.winner.as_ref().and_then(|winner| count_of(&winner.settings, "workers"));
        let right = match (document.verdict, winner) {
            (TuneVerdict::Improved, Some(workers)) => at(&scenario.truth(workers, 1.0)) < at(&before),
            (TuneVerdict::Improved, None) => false,
            // A reload that loses requests allows no steps.
            _ if !scenario.world.pool.reloads => true,
            _ => {
                let now = scenario.world.pool.workers;
                let up = (now + now / 2).max(now + 1).min(scenario.world.fitting_workers());
                at(&before) < PLAIN * at(&scenario.truth(up, 1.0)) || steps.steps.is_empty()
            }
        };
        held.push((VERDICT, right));
        let median = |seen: &Experience| seen.latency.quantile(0.5);
        let times = |factor| (median(&before), winner.map_or(0, |workers| median(&scenario.truth(workers, factor))));
        held.extend(watch::held(scenario.watch, document.watch.as_ref(), times));
    }
    let harm = scenario.harm(&before, &visited, seconds);
    held.push((HARM, harm <= MOST_HARMED_S));
    Ok(ExperimentResult { held, sizes: vec![(SECONDS, seconds), (HARMED, 10.0 * harm)] })
}

/// Describes a scenario, its truth and the document.
#[must_use]
pub fn show(scenario: &LiveScenario) -> String {
    let result = scenario.tune();
    let winner =
        result.as_ref().ok().and_then(|r| count_of(&r.document.as_ref()?.winner.as_ref()?.settings, "workers"));
    let truth = |workers: u32| (workers, scenario.truth(workers, 1.0).metrics());
    let now = scenario.world.pool.workers;
    format!("{scenario:#?}\ntruth: {:#?}\n{result:#?}", (truth(now), truth(now + now.div_ceil(2)), winner.map(truth)))
}
