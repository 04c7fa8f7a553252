//! Simulated examinations: is what limits the servers named first, is nothing named where nothing limits, and is the advised
//! number of workers good?

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lastdrop_diagnose::findings::diagnose;
use lastdrop_experiment::doctor::{DoctorOptions, Intrusiveness, examine};
use lastdrop_experiment::observe::databases::DatabaseOptions;
use lastdrop_model::documents::DoctorDocument;
use lastdrop_model::plan::Load;
use lastdrop_server::ServerRef;

use super::machine::{Costs, SimulatedMachine, requests};
use super::shares::{Claim, ExperimentResult};
use super::site::SimulatedSite;
use super::stacks::{noise_level, noise_of, unit};
use crate::rng::Rng;
use crate::world::{BackendPlan, FrontPlan, PoolKind, PoolPlan, WaitFor, WorldPlan, rough_rate, true_rate};

pub const LIMIT: &str = "doctor limit right";
pub const HEALTHY: &str = "doctor healthy left alone";
pub const WORKERS: &str = "doctor's workers within 5 % of the best";

const fn named(name: &'static str) -> Claim {
    Claim { name, least: 0.90, most: 1.0 }
}

pub const CLAIMS: [Claim; 11] = [
    Claim { name: LIMIT, least: 0.95, most: 1.0 },
    Claim { name: HEALTHY, least: 0.99, most: 1.0 },
    Claim { name: WORKERS, least: 0.90, most: 1.0 },
    named("doctor names cpu-saturated"),
    named("doctor names fpm-children-exhausted"),
    named("doctor names sync-workers-waiting"),
    named("doctor names workers-exhausted"),
    named("doctor names serialized"),
    named("doctor names slow-upstream"),
    named("doctor names db-slow"),
    named("doctor names memory-pressure"),
];

/// Returns the claim about one limit. A file may name others, which have none.
fn claim_of(limit: &str) -> Option<&'static str> {
    let is_it = |claim: &&Claim| claim.name.strip_prefix("doctor names ").is_some_and(|name| name == limit);
    CLAIMS.iter().find(is_it).map(|claim| claim.name)
}

/// Length of the load that is asked about, as in `lastdrop doctor`.
const TIME: Duration = Duration::from_secs(12);
/// Simulated seconds that tell a rate well enough to choose among numbers of workers.
const ROUGH_S: f64 = 60.0;

/// Least time for which a request holds its worker where another program is in the way, µs.
const LEAST_HELD_US: f64 = 120_000.0;

/// Names of a full pool by its program; and the others.
const FULL_POOL: [&str; 3] = ["fpm-children-exhausted", "sync-workers-waiting", "workers-exhausted"];

/// What is wrong with the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    Processors,
    SmallPool,
    /// A small pool with a listen queue so short that connections are dropped.
    SmallPoolShortQueue,
    Lock,
    SlowPeer,
    SlowDatabase,
    Memory,
    /// Another program uses the processors.
    Neighbour,
}

const FAULTS: [Fault; 9] = [
    Fault::Nothing,
    Fault::Processors,
    Fault::SmallPool,
    Fault::SmallPoolShortQueue,
    Fault::Lock,
    Fault::SlowPeer,
    Fault::SlowDatabase,
    Fault::Memory,
    Fault::Neighbour,
];

/// An examination to be made.
#[derive(Debug)]
pub struct DoctorScenario {
    pub world: WorldPlan,
    pub users: u32,
    /// Names that are right for what limits these servers; none where nothing does.
    pub limits: Vec<String>,
    pub seed: u64,
}

impl DoctorScenario {
    #[must_use]
    pub fn new(seed: u64) -> DoctorScenario {
        let mut rng = Rng::new(seed);
        let fault = rng.one_of(&FAULTS);
        let level = noise_level(&mut rng);
        let cores = rng.one_of(&[2, 2, 4, 8]);
        let kind = rng.one_of(&[PoolKind::PhpFpm, PoolKind::Gunicorn, PoolKind::Apache]);
        let front = (kind != PoolKind::Apache || rng.in_thousand(300)).then(|| rng.around(20, 200));
        // A request holds its worker for 10 to 300 ms.
        let held_us = 1000.0 * rng.around(10, 300) as f64;
        let computes = 0.15 + 0.25 * unit(&mut rng);
        let pool = PoolPlan {
            kind,
            backlog: 511,
            cpu_us: computes * held_us,
            cpu_spread: rng.one_of(&[0.0, 0.3, 0.6, 1.0]),
            wait_us: (1.0 - computes) * held_us,
            wait_spread: rng.one_of(&[0.0, 0.5, 1.0]),
            worker_mb: 20.0 + 60.0 * unit(&mut rng),
            shared_mb: 30.0,
            cold_us: 0.0,
            switch_cost: 0.001 * unit(&mut rng),
            ..PoolPlan::default()
        };
        let mut world = WorldPlan {
            cores,
            memory_mb: 64_000.0,
            front: front.map(|us| FrontPlan { cpu_us: us as f64 }),
            pool,
            backend: None,
            noise: noise_of(&mut rng, level, cores),
        };
        if rng.in_thousand(400) {
            world.backend = Some(BackendPlan {
                connections: 400,
                cpu_us: 0.05 * held_us,
                cpu_spread: 1.0,
                wait_us: 0.05 * held_us,
                wait_spread: 1.0,
            });
        }
        let mut scenario = DoctorScenario { world, users: 0, limits: Vec::new(), seed };
        scenario.plant(fault, &mut rng);
        scenario
    }

    /// Makes the servers such that this limits them, and nothing else.
    fn plant(&mut self, fault: Fault, rng: &mut Rng) {
        let world = &mut self.world;
        let cores = f64::from(world.cores);
        let between = |rng: &mut Rng, low: f64, high: f64| low + (high - low) * unit(rng);
        let own_cpu = |w: &WorldPlan| {
            w.pool.cpu_us + w.backend.as_ref().map_or(0.0, |b| b.cpu_us) + w.front.as_ref().map_or(0.0, |f| f.cpu_us)
        };
        // Users with whom all processors are busy, if each has a worker and nothing else is in the way.
        let knee = |w: &WorldPlan| cores * w.held_us() / own_cpu(w);
        let pool_name = match world.pool.kind {
            PoolKind::PhpFpm => FULL_POOL[0],
            PoolKind::Gunicorn => FULL_POOL[1],
            PoolKind::Apache => FULL_POOL[2],
        };
        let name = match fault {
            Fault::Nothing => {
                self.users = (between(rng, 0.05, 0.3) * knee(world)).max(1.0) as u32;
                world.pool.workers = 3 * self.users + 4;
                world.noise.neighbour_cores = world.noise.neighbour_cores.min(0.2 * cores);
                return;
            }
            Fault::Processors => {
                self.users = (between(rng, 3.0, 5.0) * knee(world)).ceil() as u32;
                world.pool.workers = self.users + 4;
                world.noise.neighbour_cores = 0.0;
                "cpu-saturated"
            }
            Fault::SmallPool | Fault::SmallPoolShortQueue => {
                world.pool.workers = (between(rng, 0.15, 0.5) * knee(world)).max(1.0) as u32;
                self.users = (between(rng, 3.0, 8.0) * f64::from(world.pool.workers)).ceil() as u32 + 2;
                if fault == Fault::SmallPoolShortQueue {
                    world.pool.backlog = (self.users - world.pool.workers) / 2;
                    // A proxy in front meets the full queue first.
                    self.limits.extend(world.front.is_some().then(|| "upstream-backlog-overflow".to_string()));
                }
                pool_name
            }
            Fault::Lock => {
                // One request at a time has at most two thirds of the processors that there are.
                let cpu_us = own_cpu(world);
                world.pool.locked_share =
                    between(rng, 0.7, 1.0) * (1.5 * cpu_us / world.pool.cpu_us / cores).clamp(0.75, 1.0);
                world.pool.locked_share = world.pool.locked_share.min(1.0);
                let at_once = world.held_us() / (world.pool.locked_share * world.pool.cpu_us);
                self.users = (between(rng, 4.0, 8.0) * at_once).ceil() as u32 + 4;
                world.pool.workers = 2 * self.users;
                "serialized"
            }
            Fault::SlowPeer => {
                world.pool.waits_for = WaitFor::Peer;
                world.pool.workers = (between(rng, 0.15, 0.5) * knee(world)).max(1.0) as u32;
                self.users = (between(rng, 3.0, 8.0) * f64::from(world.pool.workers)).ceil() as u32 + 2;
                "slow-upstream"
            }
            Fault::SlowDatabase => {
                let held_us = world.held_us();
                let pool = &mut world.pool;
                world.backend = Some(BackendPlan {
                    connections: 400,
                    cpu_us: 0.1 * held_us,
                    cpu_spread: 1.0,
                    wait_us: pool.wait_us * between(rng, 2.0, 4.0),
                    wait_spread: 1.0,
                });
                pool.wait_us *= 0.2;
                world.pool.workers = (between(rng, 0.15, 0.5) * knee(world)).max(1.0) as u32;
                self.users = (between(rng, 3.0, 8.0) * f64::from(world.pool.workers)).ceil() as u32 + 2;
                "db-slow"
            }
            Fault::Memory => {
                self.users = (between(rng, 0.3, 0.6) * knee(world)).max(4.0) as u32;
                world.pool.workers = self.users + 4;
                world.memory_mb = world.memory_of(world.pool.workers) / between(rng, 1.15, 1.5);
                "memory-pressure"
            }
            Fault::Neighbour => {
                // Nobody notices that an answer takes 20 instead of 5 ms.
                let longer = (LEAST_HELD_US / world.held_us()).max(1.0);
                world.pool.cpu_us *= longer;
                world.pool.wait_us *= longer;
                self.users = (between(rng, 0.3, 0.6) * knee(world)).max(4.0) as u32;
                world.pool.workers = 2 * self.users;
                world.noise.neighbour_cores = cores * between(rng, 6.0, 12.0);
                (world.noise.neighbour_on_s, world.noise.neighbour_off_s) = (1e6, 0.0);
                "cpu-saturated"
            }
        };
        self.limits.push(name.into());
    }

    /// Examines as `lastdrop doctor` does with its defaults.
    ///
    /// # Errors
    /// When the server answers nothing.
    pub fn examine(&self) -> Result<DoctorDocument, String> {
        let machine = SimulatedMachine::new(&self.world, Costs::default(), self.seed);
        let (stop, clock) = (AtomicBool::new(false), machine.clock());
        let mut lab = machine.lab(&stop, &clock, &[]);
        let mut plan = requests("/", self.seed);
        plan.phases[0].load = Load::closed(self.users);
        let servers: Vec<ServerRef> = Vec::new();
        let options = DoctorOptions {
            servers: &servers,
            plan,
            intrusiveness: Intrusiveness::Whole,
            live: false,
            ignore: Vec::new(),
            databases: DatabaseOptions::default(),
            time: TIME,
            brief: false,
        };
        let mut site = SimulatedSite(machine);
        examine(&mut lab, &options, &mut site).map(|all| diagnose(&all)).map_err(|e| e.to_string())
    }

    /// Returns the rate with so many workers, as a share of the best rate of any number that fits into memory. `None` if the number
    /// makes no difference.
    fn share_of_best(&self, workers: u32) -> Option<f64> {
        let rough = |n: u32| rough_rate(&self.world, n, self.world.pool.backlog, self.users, ROUGH_S);
        let fits = |n: &u32| self.world.memory_of(*n) <= self.world.memory_mb;
        let all = std::iter::successors(Some(1_u32), |n| Some((n + 1).max(n * 5 / 4)))
            .take_while(|n| *n <= 4 * self.users + 4);
        let rates: Vec<(u32, f64)> = all.filter(fits).map(|n| (n, rough(n))).collect();
        let best = rates.iter().max_by(|a, b| a.1.total_cmp(&b.1))?.0;
        let exact = |n: u32| true_rate(&self.world, n, self.world.pool.backlog, self.users);
        Some(exact(workers) / exact(best))
    }
}

/// Carries out one examination and checks what it says.
///
/// # Errors
/// When it cannot be carried out.
pub fn check(scenario: &DoctorScenario) -> Result<ExperimentResult, String> {
    let document = scenario.examine()?;
    let is_named = document.limit.as_ref().is_some_and(|limit| scenario.limits.contains(limit));
    let mut held = match scenario.limits.last() {
        None => vec![(HEALTHY, document.limit.is_none())],
        Some(limit) => claim_of(limit).into_iter().chain([LIMIT]).map(|claim| (claim, is_named)).collect(),
    };
    // The number of workers matters where there are too few of them.
    let is_small = document.limit.as_ref().is_some_and(|limit| FULL_POOL.contains(&limit.as_str()));
    if let Some(advice) = document.workers_advice.iter().find(|_| is_small)
        && let Some(share) = u32::try_from(advice.number).ok().and_then(|n| scenario.share_of_best(n))
    {
        held.push((WORKERS, share >= 0.95));
    }
    Ok(ExperimentResult { held, sizes: Vec::new() })
}

/// Describes a scenario, its truth and the document.
#[must_use]
pub fn show(scenario: &DoctorScenario) -> String {
    format!("{scenario:#?}\n{:#?}", scenario.examine())
}
