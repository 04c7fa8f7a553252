//! Makes runs: combines load, clock, host readings and store into one [`Run`].

use std::borrow::Cow;
use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lastdrop_analyze::objective;
use lastdrop_analyze::request_cost::{LoadInterval, settled};
use lastdrop_diagnose::RunEvidence;
use lastdrop_load::{FirstAnswer, LoadError, LoadResult, PreparedPlan, RunClock};
use lastdrop_model::event::{ExperimentDecision, RepeatScope};
use lastdrop_model::plan::ServerTimeFrom;
use lastdrop_model::run::{End, OtherProgram, RUN_SCHEMA, ServerCpu};
use lastdrop_model::{CaptureLevel, Event, Generator, KeptPlan, PhaseReport, Plan, Run, Sample};
use lastdrop_probe::chain::Chain;
use lastdrop_probe::host;
use lastdrop_probe::listeners::is_local;
use lastdrop_probe::resident::release_code;
use lastdrop_probe::{namespace, tool};
use serde_json::json;

use crate::lab::carrier::{Carrier, CarrierResult, CarrierTask};
use crate::lab::clock::{Clock, RealClock};
use crate::lab::live_run::{LiveRun, RunRecord, RunShown};
use crate::lab::observers::{Observer, Scratch};
use crate::lab::others::{SharedChain, StartingUse, UseInterval, lock};
use crate::lab::readings::{MachineChanges, MachineReadings};
use crate::lab::run_sampler::{RunSampler, SampledServer};
use crate::lab::server_log::ServerLog;
use crate::lab::warm::warm_each;
use crate::observe::anatomy::AnatomyRecorder;

/// Why an experiment failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Server(#[from] lastdrop_server::ServerError),
    #[error(transparent)]
    Probe(#[from] lastdrop_probe::ProbeError),
    #[error("interrupted")]
    Interrupted,
    #[error("{0}")]
    Other(String),
}

/// Everything needed to make runs.
pub struct Lab<'a> {
    /// Set when the user asks to stop.
    pub stop: &'a AtomicBool,
    /// Observers, in the order in which they see events.
    pub observers: Vec<Box<dyn Observer + 'a>>,
    /// The server under test, if the user named it; otherwise it is found by the URL.
    pub server: Option<SampledServer>,
    /// Generates the load; None: this process does.
    pub carrier: Option<Box<dyn Carrier + 'a>>,
    pub clock: &'a dyn Clock,
    /// Sample the server during the load.
    pub observe: bool,
    /// Find where the requests of each run spend their time, on this machine.
    pub anatomy: bool,
    /// Processes that take part in the runs, as far as they are known.
    pub chain: SharedChain,
    /// Rediscover the process chain on every run, not only when an unknown process uses the processors.
    pub find_chain: bool,
    /// How many more runs may be repeated because other programs were busy.
    pub repeats: u32,
    /// Samples of the server that another component takes during the runs, without the run's time.
    pub looks: Option<Receiver<Sample>>,
    /// Receives the moment at which the load of a run begins, which is some time after the run began.
    pub begins: Option<Sender<Instant>>,
    /// What the first response of the last run said about its server, if the observers wanted each request.
    pub first_answer: Option<FirstAnswer>,
}

/// Most repeated runs of a whole experiment because other programs were busy.
const MOST_REPEATS: u32 = 6;
/// Most repetitions of one run.
const MOST_REPEATS_OF_ONE: u32 = 2;
/// Most repetitions of one run because workers were at their first requests: each may meet others that have served nothing.
const MOST_REPEATS_OF_STARTS: u32 = 4;
/// If a repetition finds at least this share of the earlier use by other programs, the machine stays busy: one more try
/// is enough.
const STAYS_BUSY: f64 = 0.7;
/// Most other programs that a report lists by name.
const MOST_OTHERS: usize = 10;

impl std::fmt::Debug for Lab<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lab").field("observers", &self.observers.len()).finish_non_exhaustive()
    }
}

/// Returns a number that differs from call to call, for ids and seeds.
#[must_use]
pub fn random_u32() -> u32 {
    (RandomState::new().hash_one(SystemTime::now()) >> 16) as u32
}

impl<'a> Lab<'a> {
    #[must_use]
    pub fn new(stop: &'a AtomicBool, observers: Vec<Box<dyn Observer + 'a>>) -> Lab<'a> {
        Lab {
            stop,
            observers,
            server: None,
            carrier: None,
            clock: &RealClock,
            observe: true,
            anatomy: false,
            chain: Arc::new(Mutex::new(Chain::of_ourselves())),
            find_chain: false,
            repeats: MOST_REPEATS,
            looks: None,
            begins: None,
            first_answer: None,
        }
    }
}

impl Lab<'_> {
    /// Returns true if the servers run on real machines, see [`Carrier::is_real`].
    ///
    /// [`Carrier::is_real`]: crate::lab::Carrier::is_real
    pub(crate) fn is_real(&self) -> bool {
        self.carrier.as_ref().is_none_or(|carrier| carrier.is_real())
    }

    /// Returns true if the user has asked to stop.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Fails if the user has asked to stop.
    ///
    /// # Errors
    /// [`LabError::Interrupted`].
    pub fn check_stop(&self) -> Result<(), LabError> {
        if self.stopped() { Err(LabError::Interrupted) } else { Ok(()) }
    }

    /// Returns the processes that take part in the runs, as far as they are known.
    #[must_use]
    pub fn members(&self) -> Vec<i32> {
        lock(&self.chain).members()
    }

    /// Returns where the load comes from, if not from this process.
    #[must_use]
    pub fn load_from(&self) -> Vec<IpAddr> {
        self.carrier.as_ref().map_or_else(Vec::new, |carrier| carrier.addresses())
    }

    /// Sends one request to each of `workers` workers and returns how many responded.
    #[must_use]
    pub fn warm_each(&mut self, plan: &Plan, workers: usize) -> usize {
        let of_carrier = self.carrier.as_mut().and_then(|carrier| carrier.warm_each(workers));
        of_carrier.unwrap_or_else(|| warm_each(plan, workers))
    }

    /// Gives each worker two requests: the second finds what the first has loaded.
    pub(crate) fn warm_twice(&mut self, plan: &Plan, workers: usize) {
        for _ in 0..2 {
            let _ = self.warm_each(plan, workers);
        }
    }

    /// Shows an event to all observers.
    pub fn tell(&mut self, event: &Event<'_>) {
        tell(&mut self.observers, event);
    }

    /// Returns what observers could not do, each as the end of a sentence that begins with the runs.
    #[must_use]
    pub fn trouble(&self) -> Vec<String> {
        self.observers.iter().filter_map(|o| o.error()).collect()
    }

    /// Carries out a plan, and repeats it a few times at most if other programs used the processors meanwhile. Returns
    /// the run in which they used least, and the number of repetitions.
    ///
    /// # Errors
    /// As [`Lab::run`].
    pub fn run_undisturbed(&mut self, plan: &Plan, label: &str) -> Result<(Run, u32), LabError> {
        let mut best = self.run(plan, label)?;
        let mut repeated = 0;
        while repeated < MOST_REPEATS_OF_ONE
            && self.repeats > 0
            && !self.stopped()
            && let Some(reason) = lastdrop_diagnose::others_busy(&best.validity)
        {
            let (rule, why) = (reason.rule.as_str().into(), reason.what.as_str().into());
            tell(&mut self.observers, &Event::Repeated { what: RepeatScope::Run, rule, why });
            (self.repeats, repeated) = (self.repeats - 1, repeated + 1);
            let again = self.run(plan, label)?;
            let cores = |run: &Run| run.generator.others_cores.unwrap_or(0.0);
            if cores(&again) > STAYS_BUSY * cores(&best) {
                self.repeats = self.repeats.min(1);
            }
            if cores(&again) < cores(&best) {
                best = again;
            }
        }
        if repeated > 0 && self.repeats == 0 {
            let reason = "other programs stay busy".into();
            self.tell(&Event::Decided { what: ExperimentDecision::RepeatNoMore, reason });
        }
        Ok((best, repeated))
    }

    /// Like `run`, but repeated as long as workers load the application on their first requests for most of it, some times at
    /// most: what a request costs shows after that.
    ///
    /// # Errors
    /// As [`Lab::run`].
    pub fn run_started(&mut self, plan: &Plan, label: &str) -> Result<Run, LabError> {
        let mut run = self.run(plan, label)?;
        for _ in 0..MOST_REPEATS_OF_STARTS {
            if self.stopped() || !starts_workers(&run) {
                break;
            }
            let why = "workers that had served nothing before were at their first requests".into();
            tell(&mut self.observers, &Event::Repeated { what: RepeatScope::Run, rule: "starting".into(), why });
            run = self.run(plan, label)?;
        }
        Ok(run)
    }

    /// Carries out a plan. Observers see it second by second; the returned run has been judged.
    ///
    /// # Errors
    /// When no load could be generated at all.
    pub fn run(&mut self, plan: &Plan, label: &str) -> Result<Run, LabError> {
        self.run_prepared(plan, None, label)
    }

    /// Like `run`, for a plan that is prepared already.
    ///
    /// # Errors
    /// As [`Lab::run`].
    pub fn run_prepared(&mut self, plan: &Plan, prepared: Option<PreparedPlan>, label: &str) -> Result<Run, LabError> {
        let id = format!("{:08x}", random_u32());
        let lasting = self.observers.len();
        let run = self.carry_out(plan, prepared, label, &id);
        self.observers.truncate(lasting);
        if run.is_ok()
            && let Some(carrier) = &mut self.carrier
            // Ask only observers that store runs: exporters finish when asked for their error.
            && self.observers.iter().all(|o| o.archive().is_none() || o.error().is_none())
        {
            carrier.is_kept();
        }
        run
    }

    /// Reports that a run failed.
    fn failed(&mut self, e: impl Into<LabError>) -> LabError {
        let e = e.into();
        self.tell(&Event::Failed { why: e.to_string().into() });
        e
    }

    /// Returns the prepared plan, and the server's log if its lines are to be found by the requests' ids.
    fn prepare(
        &self,
        plan: &Plan,
        prepared: Option<PreparedPlan>,
        id: &str,
    ) -> Result<(PreparedPlan, Option<ServerLog>), LabError> {
        let prepared = prepared.map_or_else(|| PreparedPlan::new(plan), Ok)?;
        let (prepared, server_log) = match &plan.server_time {
            Some(ServerTimeFrom::Log { file, format }) => {
                let prefix = format!("lastdrop-{id}-");
                let log = ServerLog::open(file, format.as_deref(), prefix.clone()).map_err(LabError::Other)?;
                (prepared.identified(prefix), Some(log))
            }
            _ => (prepared, None),
        };
        let prepared = match &self.begins {
            Some(begins) => prepared.telling(begins.clone()),
            None => prepared,
        };
        Ok((prepared, server_log))
    }

    fn carry_out(
        &mut self,
        plan: &Plan,
        prepared: Option<PreparedPlan>,
        label: &str,
        id: &str,
    ) -> Result<Run, LabError> {
        let begun = BegunRun {
            id: id.into(),
            label: label.into(),
            started_unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64),
            environment: environment(),
            plan: KeptPlan::from(plan),
        };
        self.tell(&Event::Began {
            id: id.into(),
            started_unix_ms: begun.started_unix_ms,
            label: label.into(),
            plan: Cow::Borrowed(&begun.plan),
            environment: Cow::Borrowed(&begun.environment),
        });
        let (prepared, server_log) = match self.prepare(plan, prepared, id) {
            Ok(ready) => ready,
            Err(e) => return Err(self.failed(e)),
        };
        if self.observers.iter().all(|o| o.archive().is_none()) {
            self.observers.extend(Scratch::of(plan, id).map(|scratch| -> Box<dyn Observer> { Box::new(scratch) }));
        }
        if let Some(SampledServer::Found(server)) = &self.server {
            lock(&self.chain).add(server.master);
        }
        let is_real = self.is_real();
        let capture_level = self.observers.iter().map(|o| o.capture_level()).max().unwrap_or_default();
        let wants_anatomy = self.anatomy && is_real && self.carrier.is_none();
        let capture_level = if wants_anatomy { capture_level.max(CaptureLevel::Exchanges) } else { capture_level };
        let (clock, began, enough) = (RunClock::start(), Cell::new(Instant::now()), AtomicBool::new(false));
        // Drop samples from the time between runs.
        let _ = self.looks.as_ref().map_or(0, |samples| samples.try_iter().count());
        let readings = is_real.then(|| MachineReadings::start(&self.chain, plan, self.find_chain));
        let mut live = LiveRun {
            record: RunRecord::new(&mut self.observers, (plan, id), clock, &began, self.carrier.is_some()),
            server_log,
            sampler: RunSampler::start(plan, clock, self.server.clone(), self.observe && is_real),
            anatomy: wants_anatomy.then(|| AnatomyRecorder::start(plan, clock)),
            readings,
            measured: plan.phases.iter().position(|p| p.measured),
            others_samples: self.looks.as_ref(),
            stop: self.stop,
            enough: &enough,
        };
        let store = live.record.store().cloned();
        let begins = |at: Instant| {
            began.set(at);
            // The receiver may be gone.
            let _ = self.begins.as_ref().map(|begins| begins.send(at));
        };
        let mut report = |event: &Event<'_>| live.report(event);
        let put_on = match &mut self.carrier {
            Some(carrier) => {
                let run = CarrierTask { id, plan, stop: self.stop, enough: &enough, store, begins: &begins };
                carrier.carry(&run, &mut report).map_err(LabError::Other).map(|carried| {
                    let (unreachable, stopped) = (carried.unreachable, carried.stopped);
                    (LoadResult { unreachable, stopped, ..LoadResult::default() }, Some(carried))
                })
            }
            None => {
                if is_real {
                    release_code();
                }
                lastdrop_load::run(plan, &prepared, clock, self.stop, &enough, capture_level, &mut report)
                    .map_err(LabError::from)
                    .map(|finished| (finished, None))
            }
        };
        if is_real {
            // What judges and reports it executes much that the load does not.
            release_code();
        }
        let shown = put_on.and_then(|(mut finished, carried)| {
            self.first_answer = finished.first_answer.take();
            let co_located = plan.network.unix_socket.is_some() || finished.peers.iter().any(is_local);
            let shown = live.finish(co_located).map_err(LabError::Other)?;
            Ok((finished, carried, co_located, shown))
        });
        let (finished, carried, co_located, shown) = match shown {
            Ok(shown) => shown,
            Err(e) => return Err(self.failed(e)),
        };
        let run = judged(plan, begun, (finished, carried), shown, co_located);
        for reason in &run.validity.reasons {
            self.tell(&Event::Finding { reason: Cow::Borrowed(reason) });
        }
        self.tell(&Event::Ended { run: Cow::Borrowed(&run) });
        Ok(run)
    }
}

/// What is known of a run when it begins.
struct BegunRun {
    id: String,
    label: String,
    started_unix_ms: u64,
    environment: serde_json::Value,
    plan: KeptPlan,
}

/// Returns the run with its verdict. `co_located`: the server is on this machine.
fn judged(
    plan: &Plan,
    begun: BegunRun,
    (finished, carried): (LoadResult, Option<CarrierResult>),
    shown: RunShown,
    co_located: bool,
) -> Run {
    let RunShown { mut phases, pool, server, marks, joined_log, anatomy, mut changes } = shown;
    let starting = changes.used.starting.take();
    if let Some(phase) = phases.iter_mut().find(|p| p.measured) {
        phase.server_cpu = changes.used.chain_s.map(|cpu_s| server_cpu(cpu_s, starting, phase));
    }
    let (generator, agents, reasons) = match carried {
        Some(carried) => (carried.generator, carried.agents, Some(carried.reasons)),
        None => (generator(plan, &finished, &phases, changes, co_located), Vec::new(), None),
    };
    let measured = phases.iter().find(|p| p.measured);
    let evidence = RunEvidence { plan, phase: measured, generator: &generator, pool: pool.as_ref() };
    let mut validity = lastdrop_diagnose::judge(&evidence);
    if let Some(of_machines) = reasons {
        validity = crate::lab::fleet::of_fleet(of_machines, validity);
    }
    let objectives = objective::judge(&plan.objectives, plan, &phases, server.as_ref());
    let BegunRun { id, label, started_unix_ms, environment, plan: kept } = begun;
    Run {
        schema: RUN_SCHEMA.into(),
        id,
        seed: plan.seed,
        started_unix_ms,
        label,
        end: match (finished.unreachable, finished.stopped) {
            (true, _) => End::Unreachable,
            (_, true) => End::Interrupted,
            _ => End::Finished,
        },
        environment,
        plan: kept,
        phases,
        generator,
        pool,
        server,
        validity,
        replay: None,
        joined_log,
        anatomy,
        agents,
        marks,
        objectives,
    }
}

/// Returns true if what a request cost in this run has the first requests of workers in it.
pub(crate) fn starts_workers(run: &Run) -> bool {
    run.measured().and_then(|phase| phase.server_cpu).is_some_and(|cpu| cpu.has_starts())
}

pub(super) fn tell(observers: &mut [Box<dyn Observer + '_>], event: &Event<'_>) {
    for observer in observers {
        observer.on_event(event);
    }
}

/// Rounds to a thousandth.
pub(super) fn thousandth(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// Returns what this machine's threads used to put the load on, and what disturbed them.
fn generator(
    plan: &Plan,
    finished: &LoadResult,
    phases: &[PhaseReport],
    changes: MachineChanges,
    co_located: bool,
) -> Generator {
    let answered: u64 = phases.iter().map(|p| p.requests.answered).sum();
    let cpu_us: u64 = finished.threads.iter().map(|(cpu, _)| cpu).sum();
    let cores = |(cpu, wall): &(u64, u64)| *cpu as f64 / (*wall).max(1) as f64;
    // Starting a thread takes a whole core for a moment, which says nothing about the load.
    let busiest = finished.threads.iter().filter(|(_, wall)| *wall >= 500_000).map(cores).fold(0.0, f64::max);
    let others = changes.used.others;
    Generator {
        cpu_s: cpu_us as f64 / 1e6,
        cpu_us_per_request: if answered == 0 { 0.0 } else { cpu_us as f64 / answered as f64 },
        peak_rss_bytes: host::own_peak_rss(),
        threads: plan.threads,
        saturated: lastdrop_diagnose::saturated(busiest),
        busiest_thread_cores: busiest,
        thread_cores: finished.threads.iter().map(|thread| thousandth(cores(thread))).collect(),
        connect_errors: finished.connect_errors.clone(),
        protocol_errors: finished.protocol_errors.clone(),
        unverified: finished.unverified.clone(),
        page_errors: finished.page_errors.clone(),
        looked_at: finished.looked_at.clone(),
        doubts: finished.doubts.clone(),
        shortage: finished.shortage,
        descriptor_limit: finished.descriptor_limit,
        local_ports: host::local_ports(),
        time_wait: namespace::time_wait_to(&finished.peers).unwrap_or(0),
        throttled_s: changes.throttled_s,
        clock_step_s: changes.clock_step_s,
        suspended_s: changes.suspended_s,
        steal: changes.steal,
        co_located,
        processors: host::processors(),
        others_cores: others.as_ref().map(|o| thousandth(o.cores)),
        others: others.map_or_else(Vec::new, |o| {
            let told = o.programs.into_iter().take(MOST_OTHERS);
            told.map(|p| OtherProgram { name: p.name, pid: p.pid, cores: thousandth(p.cores) }).collect()
        }),
    }
}

fn environment() -> serde_json::Value {
    json!({
        "lastdrop": env!("CARGO_PKG_VERSION"),
        "kernel": host::kernel(),
        "cpus": host::cpus(),
        "executed": tool::executed(),
    })
}
/// All parts of a phase but its last end in its first seconds.
const MOST_SECONDS: usize = 100;

/// Returns the processor time of the servers in a phase, and what a request costs without starting workers.
fn server_cpu(cpu_s: f64, starting: Option<StartingUse>, phase: &PhaseReport) -> ServerCpu {
    let answered = phase.requests.answered;
    let all = ServerCpu::of(cpu_s, answered);
    let Some(StartingUse { workers, parts }) = starting else { return all };
    // Answers are counted by the second; within one, they are taken as even.
    let seconds: Vec<(u32, u64)> = phase.seconds.iter().take(MOST_SECONDS).map(|s| (s.t, s.answered)).collect();
    let Some((first, _)) = seconds.first().copied() else { return all };
    let until = |at: Duration| {
        let within =
            |(t, answered): &(u32, u64)| *answered as f64 * (at.as_secs_f64() - f64::from(t - first)).clamp(0.0, 1.0);
        seconds.iter().map(within).sum::<f64>()
    };
    let (mut intervals, mut before, last) = (Vec::new(), 0.0, parts.len().saturating_sub(1));
    for (i, UseInterval { until: at, chain_s, newest_s }) in parts.into_iter().enumerate() {
        let so_far = if i == last { answered as f64 } else { until(at) };
        intervals.push(LoadInterval { cpu_s: chain_s, answered: so_far - before, newest_s });
        before = so_far;
    }
    match settled(&intervals) {
        Some(cost) if !cost.settled || cost.cpu_s < 0.99 * all.us_per_request / 1e6 => {
            all.with_starting(workers, cost.cpu_s, cost.settled, answered)
        }
        _ => all,
    }
}
