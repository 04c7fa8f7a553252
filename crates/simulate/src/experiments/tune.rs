//! Simulated tunes: is the verdict right, and how near to the best do they come, with how many trials?

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lastdrop_experiment::lab::warm::RECYCLING_WARM_UP;
use lastdrop_experiment::lab::{Clock, LabError};
use lastdrop_experiment::trials::tune::{SearchConstraints, TuneOptions, tune};
use lastdrop_model::documents::{Clue, Goal, TuneDocument, TuneVerdict};
use lastdrop_model::plan::{KeepAlive, Load, Plan};
use lastdrop_model::{Event, Setting, Settings};

use super::machine::{Costs, SimulatedMachine, count_of, defaults, requests};
use super::shares::{Claim, ExperimentResult};
use super::stacks::{noise_level, stack};
use super::watch::{self, TRUTH, Watch, visits};
use crate::rng::Rng;
use crate::world::{World, WorldPlan, rough_rate};

pub const VERDICT: &str = "tune verdict right";
pub const BEST: &str = "tune reaches 97 % of the best";
pub const RATIO: &str = "tune ratio interval holds the truth";
pub const LOWER: &str = "tune ends below its start";
pub const TRIALS: &str = "tune within 25 trials and 8 pairs";
pub const RESTORED: &str = "tune restores the settings, also where it is stopped";

pub const SEARCH: &str = "trials of a tune before its race";
pub const ALL: &str = "trials of a tune and its race";
pub const SECONDS: &str = "seconds of a tune";

pub const CLAIMS: [Claim; 6] = [
    Claim { name: VERDICT, least: 0.97, most: 1.0 },
    Claim { name: BEST, least: 0.90, most: 1.0 },
    Claim { name: RATIO, least: 0.93, most: 1.0 },
    Claim { name: LOWER, least: 0.0, most: 0.0 },
    Claim { name: TRIALS, least: 1.0, most: 1.0 },
    Claim { name: RESTORED, least: 1.0, most: 1.0 },
];

/// The smallest gain that a tune takes for worth a change, and one that it must not overlook.
const WORTH: f64 = 1.05;
const PLAIN: f64 = 1.15;

/// Simulated seconds that tell a rate to a percent.
const TRUTH_S: f64 = 100.0;

/// Starts, and the time of each, that tell the rate on a machine with noise.
const STARTS: u64 = 16;
const START_TIME: Duration = Duration::from_secs(30);

/// A tune to be made.
#[derive(Debug)]
pub struct TuneScenario {
    pub world: WorldPlan,
    pub costs: Costs,
    pub users: u32,
    pub clues: Vec<String>,
    /// The user stops it during a load, after so many others.
    pub stopped_after: Option<u64>,
    /// The better settings are kept, and watched under a light load.
    pub watch: Option<Watch>,
    pub seed: u64,
}

/// What a tune left.
#[derive(Debug)]
pub struct TuneResult {
    /// `None` where it was stopped.
    pub document: Option<TuneDocument>,
    /// How long it took, in seconds of the world.
    pub seconds: f64,
    pub is_restored: bool,
}

impl TuneScenario {
    #[must_use]
    pub fn new(seed: u64) -> TuneScenario {
        let mut rng = Rng::new(seed);
        let level = noise_level(&mut rng);
        let mut world = stack(&mut rng, (100, 400), level);
        let users = rng.around(8, 64) as u32;
        // Often the pool is too small, sometimes it is right, sometimes memory bounds it.
        world.pool.workers = rng.around(1, 2 * u64::from(users)) as u32;
        if rng.in_thousand(200) {
            world.memory_mb = world.pool.shared_mb + world.pool.worker_mb * rng.between(4, 60) as f64;
            world.pool.workers = world.pool.workers.clamp(1, world.fitting_workers().max(1));
        }
        let (costs, clues) = costs(&mut rng);
        let stopped_after = rng.in_thousand(200).then(|| rng.around(1, 60));
        let watch = (stopped_after.is_none() && rng.in_thousand(300)).then(|| Watch::draw(&mut rng));
        TuneScenario { world, costs, users, clues, stopped_after, watch, seed }
    }

    fn plan(&self) -> Plan {
        let mut plan = requests("/", self.seed);
        plan.keepalive = KeepAlive::Off;
        plan.phases[0].load = Load::closed(self.users);
        plan.phases[0].duration = Some(Duration::from_secs(5));
        plan
    }

    /// Tunes as `lastdrop tune` does with its defaults, after a look that found these clues.
    ///
    /// # Errors
    /// When the server answers nothing.
    pub fn tune(&self) -> Result<TuneResult, String> {
        let machine = SimulatedMachine::new(&self.world, self.costs.clone(), self.seed);
        if let Some(loads) = self.stopped_after {
            machine.stop_after(loads);
        }
        let (stop, clock) = (AtomicBool::new(false), machine.clock());
        let mut lab = machine.lab(&stop, &clock, &[]);
        let order = TuneOptions {
            keep: self.watch.is_some(),
            watch: self.watch.map(|watch| watch.time),
            ..order(self.plan(), &self.clues, self.seed)
        };
        machine.worsen_kept(self.watch.and_then(|watch| watch.worsens));
        let document = match tune(&mut lab, machine.open()?, &order, None, None, None) {
            Err(LabError::Interrupted) => None,
            done => Some(done.map_err(|e| e.to_string())?).filter(|document| !document.interrupted),
        };
        let is_restored = is_restored(&machine, document.as_ref());
        Ok(TuneResult { document, seconds: clock.now().as_secs_f64(), is_restored })
    }

    /// Returns the true rate with these settings.
    #[must_use]
    pub fn rate(&self, settings: &Settings) -> f64 {
        let (workers, _, factor) = self.in_force(settings);
        self.rate_of(workers, factor)
    }

    /// Returns the rate that these settings have on average on the machine as it is, with its noise: what is taken away from the
    /// processors matters to a server that needs them, and not to one that waits.
    #[must_use]
    pub fn noisy_rate(&self, settings: &Settings) -> f64 {
        let (workers, backlog, factor) = self.in_force(settings);
        let mut plan = self.plan();
        plan.phases[0].duration = Some(START_TIME);
        plan.warm_up("settling", Duration::from_secs(1));
        let mut answered = 0;
        for seed in 0..STARTS {
            let mut world = World::new(&self.world, self.seed ^ (seed + 1) << 32);
            world.set_cpu_factor(factor);
            world.apply(workers, backlog);
            world.warm_each();
            let mut report = |event: &Event<'_>| match event {
                Event::Second { slice } if slice.phase == 1 => answered += slice.counts.answered_in_time,
                _ => {}
            };
            world.load(&plan, &mut report, &|| false);
        }
        answered as f64 / (STARTS as f64 * START_TIME.as_secs_f64())
    }

    /// Returns the number of workers, the length of the listen queue, and the factor of the processor time with these settings.
    fn in_force(&self, settings: &Settings) -> (u32, u32, f64) {
        let mut all = defaults(&self.world);
        all.extend(settings.clone());
        let count = |name| count_of(&all, name).unwrap_or(1);
        (count("workers"), count("backlog"), self.costs.factor(&all))
    }

    fn rate_of(&self, workers: u32, factor: f64) -> f64 {
        let mut calm = self.world.clone();
        calm.pool.cpu_us *= factor;
        rough_rate(&calm, workers, calm.pool.backlog, self.users, TRUTH_S)
    }

    /// Returns the highest true rate of all settings that fit into memory and that a tune may try.
    #[must_use]
    pub fn best(&self) -> f64 {
        let factor = self.costs.lowest();
        let pool = &self.world.pool;
        let fitting = self.world.fitting_workers().max(1);
        let most = self.users.min(fitting).max(pool.workers);
        let mut sizes: Vec<u32> = (0..)
            .map(|i| 1.2f64.powi(i).round() as u32)
            .take_while(|n| *n < most)
            .chain([most, pool.workers])
            .collect();
        sizes.dedup();
        sizes.into_iter().map(|n| self.rate_of(n, factor)).fold(0.0, f64::max)
    }
}

/// Returns the options of `lastdrop tune` with its defaults, after a look that found these clues.
pub fn order(plan: Plan, clues: &[String], seed: u64) -> TuneOptions {
    let clue = |finding: &String| Clue { finding: finding.clone(), reason: "seen".into(), ..Clue::default() };
    TuneOptions {
        plan,
        goal: Goal::Throughput,
        memory: None,
        keep: false,
        watch: None,
        beside_visitors: None,
        constraints: SearchConstraints::default(),
        proposals: Vec::new(),
        clues: clues.iter().map(clue).collect(),
        workers: Vec::new(),
        dry_run: false,
        trials: 25,
        time: None,
        seed,
        checkpoint: None,
        max_pairs: 8,
        min_gain: WORTH - 1.0,
        recycling_warm_up: RECYCLING_WARM_UP,
        settling: Duration::from_secs(1),
        advise_keepalive: true,
    }
}

/// Returns true if a machine has the settings that it began with, or those that a tune kept.
pub fn is_restored(machine: &SimulatedMachine, document: Option<&TuneDocument>) -> bool {
    machine.has_its_first_settings() != document.is_some_and(|document| document.kept)
}

/// Draws what settings cost, and what a look would point to.
fn costs(rng: &mut Rng) -> (Costs, Vec<String>) {
    let mut share = |most: f64| most * rng.below(1000) as f64 / 1000.0;
    let on_off = |on: f64| vec![(Setting::read("on"), on), (Setting::read("off"), 1.0)];
    let level = share(0.4);
    let compression = (0..=9).map(|n| (Setting::Count(n), 1.0 + level * (n as f64 - 6.0) / 9.0)).collect();
    let (buffered, kept) = (1.0 - share(0.2), 1.0 - share(0.3));
    let locks = vec![
        (Setting::read("file"), 1.0),
        (Setting::read("pthread"), 1.0 - share(0.1)),
        (Setting::read("sysv"), 1.0 + share(0.1)),
    ];
    let all = [
        ("compression", "compression-bound", compression),
        ("log_buffer", "access-log-unbuffered", on_off(buffered)),
        ("upstream_keepalive", "upstream-connect-per-request", on_off(kept)),
        ("lock", "cpu-saturated", locks),
    ];
    let (mut costs, mut clues) = (Costs::default(), Vec::new());
    for (name, finding, levels) in all {
        // A clue may be wrong, and what is not seen has no effect.
        let (has_effect, is_seen) = (rng.in_thousand(400), rng.in_thousand(200));
        if has_effect {
            costs.0.push((String::from(name), levels));
        }
        if has_effect || is_seen {
            clues.push(String::from(finding));
        }
    }
    (costs, clues)
}

/// Carries out one tune and checks what it says.
///
/// # Errors
/// When it cannot be carried out.
pub fn check(scenario: &TuneScenario) -> Result<ExperimentResult, String> {
    let TuneResult { document, seconds, is_restored } = scenario.tune()?;
    let Some(document) = document else {
        return Ok(ExperimentResult { held: vec![(RESTORED, is_restored)], sizes: Vec::new() });
    };
    let start = scenario.rate(&Settings::new());
    let best = scenario.best().max(start);
    let winner = document.winner.as_ref().map(|w| (scenario.rate(&w.settings), w));
    let improved = document.verdict == TuneVerdict::Improved;
    let reached = winner.as_ref().filter(|_| improved).map_or(start, |(rate, _)| *rate);
    let possible = best / start;
    let right = match document.verdict {
        TuneVerdict::Improved => reached > start,
        TuneVerdict::NoGain => possible < PLAIN,
        // Not wrong where there is little to be gained.
        _ => possible < WORTH,
    };
    let mut held = vec![(VERDICT, right), (BEST, reached >= 0.97 * best), (LOWER, reached < 0.995 * start)];
    held.push((RESTORED, is_restored));
    let rate =
        document.watch.as_ref().map_or(1.0, |watch| watch.during.requests as f64 / watch.during.seconds.max(1.0));
    let median = |settings: &Settings, worse: f64| {
        let (workers, backlog, factor) = scenario.in_force(settings);
        let world = World::new(&scenario.world.without_noise(), scenario.seed);
        visits(world, (workers, backlog), rate.max(1.0), factor * worse, TRUTH).latency.quantile(0.5)
    };
    let kept = document.winner.as_ref().map(|winner| &winner.settings);
    let times = |worse| (median(&Settings::new(), 1.0), kept.map_or(0, |settings| median(settings, worse)));
    held.extend(watch::held(scenario.watch, document.watch.as_ref(), times));
    if let Some((winner, [low, high])) = winner.and_then(|(_, w)| Some((w, w.interval?))) {
        let truth = scenario.noisy_rate(&winner.settings) / scenario.noisy_rate(&Settings::new());
        held.push((RATIO, low <= truth && truth <= high));
    }
    // Those that were made again in longer blocks do not count.
    let is_made_again = |why: &str| why.ends_with("are too few");
    let trials = document.trials.iter().filter(|t| t.role != "race" && !is_made_again(&t.why)).count();
    held.push((TRIALS, trials <= 25 && document.race.len() <= 8));
    let all = document.trials.len() as f64;
    let mut sizes = vec![(SEARCH, trials as f64), (ALL, all)];
    if scenario.watch.is_none() {
        sizes.push((SECONDS, seconds));
    }
    Ok(ExperimentResult { held, sizes })
}

/// Describes a scenario, its truth and the document.
#[must_use]
pub fn show(scenario: &TuneScenario) -> String {
    format!("{scenario:#?}\ntruth: {:#?}\n{:#?}", (scenario.rate(&Settings::new()), scenario.best()), scenario.tune())
}
