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
use lastdrop_model::run::{End, Mark, OtherProgram, RUN_SCHEMA, RunBuilder, ServerCpu};
use lastdrop_model::{Event, Generator, KeptPlan, PhaseReport, Plan, Run, Sample, ServerTimeline, Timeline};
use lastdrop_probe::chain::Chain;
use lastdrop_probe::host;
use lastdrop_probe::listeners::is_local;
use lastdrop_probe::{namespace, tool};
use serde_json::json;

use crate::lab::carrier::{Carrier, CarrierTask};
use crate::lab::clock::{Clock, RealClock};
use crate::lab::observers::{Observer, Scratch};
use crate::lab::others::{CpuUse, SharedChain, StartingUse, UseInterval, lock};
use crate::lab::readings::MachineReadings;
use crate::lab::run_sampler::{RunSampler, SampledServer};
use crate::lab::server_log::ServerLog;
use crate::lab::warm::warm_each;

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

    fn carry_out(
        &mut self,
        plan: &Plan,
        prepared: Option<PreparedPlan>,
        label: &str,
        id: &str,
    ) -> Result<Run, LabError> {
        let started_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let environment = environment();
        let kept = KeptPlan::from(plan);
        self.tell(&Event::Began {
            id: id.into(),
            started_unix_ms,
            label: label.into(),
            plan: Cow::Borrowed(&kept),
            environment: Cow::Borrowed(&environment),
        });
        let prepared = match prepared.map_or_else(|| PreparedPlan::new(plan), Ok) {
            Ok(prepared) => prepared,
            Err(e) => return Err(self.failed(e)),
        };
        let (prepared, mut server_log) = match &plan.server_time {
            Some(ServerTimeFrom::Log { file, format }) => {
                let prefix = format!("lastdrop-{id}-");
                match ServerLog::open(file, format.as_deref(), prefix.clone()) {
                    Ok(log) => (prepared.identified(prefix), Some(log)),
                    Err(why) => return Err(self.failed(LabError::Other(why))),
                }
            }
            _ => (prepared, None),
        };
        let prepared = match &self.begins {
            Some(begins) => prepared.telling(begins.clone()),
            None => prepared,
        };
        if self.observers.iter().all(|o| o.archive().is_none()) {
            self.observers.extend(Scratch::of(plan, id).map(|scratch| -> Box<dyn Observer> { Box::new(scratch) }));
        }
        // The first observer that archives the run is the one that is read.
        let archive = self.observers.iter().position(|o| o.archive().is_some());
        let readable = move |observers: &[Box<dyn Observer + '_>]| {
            archive.is_some_and(|i| observers.get(i).is_some_and(|o| o.archive().is_some()))
        };
        let store = archive.and_then(|i| self.observers[i].archive()).cloned();
        let mut looks = store.as_ref().map_or_else(Timeline::default, |s| Timeline::archived(s.looks(id)));
        let mut builder = match &store {
            Some(store) => RunBuilder::archived(plan, |phase| store.seconds(id, phase)),
            None => RunBuilder::new(plan),
        };
        let measured_phase = plan.phases.iter().position(|p| p.measured);
        if let Some(SampledServer::Found(server)) = &self.server {
            lock(&self.chain).add(server.master);
        }
        let is_real = self.is_real();
        let mut readings = is_real.then(|| MachineReadings::start(&self.chain, plan, self.find_chain));
        let clock = RunClock::start();
        // Seconds count from the start of the load, which is later than ours if another machine generates it.
        let began = Cell::new(Instant::now());
        let mut marks = Vec::new();
        let stop = self.stop;
        let mut sampler = RunSampler::start(plan, clock, self.server.clone(), self.observe && is_real);
        let told = self.looks.as_ref();
        // Drop samples from the time between runs.
        let _ = told.map_or(0, |told| told.try_iter().count());
        let capture_level = self.observers.iter().map(|o| o.capture_level()).max().unwrap_or_default();
        let observers = &mut self.observers;
        let is_carried = self.carrier.is_some();
        let planned_s = plan.phases.iter().map(|p| p.duration).sum::<Option<Duration>>().map(|d| d.as_secs_f64());
        let mut look_at = |observers: &mut [Box<dyn Observer + '_>], mut look: Sample| {
            if is_carried {
                look.t_s = thousandth(look.t_s - clock.at(began.get()) as f64 / 1e6);
                // Drop samples from before the load, and from after it while the machines send the rest.
                if look.t_s < look.span_s / 2.0 || planned_s.is_some_and(|end| look.t_s - look.span_s >= end) {
                    return;
                }
            }
            tell(observers, &Event::Sample { sample: Cow::Borrowed(&look) });
            looks.push(look);
            if readable(observers) {
                looks.forget_older();
            }
        };
        let mut pass_on = |observers: &mut [Box<dyn Observer + '_>], event: &Event<'_>| {
            match event {
                Event::Second { slice } => builder.add(slice),
                Event::PhaseEnd { phase, duration_us, peak } => builder.end_phase(*phase, *duration_us, *peak),
                _ => {}
            }
            tell(observers, event);
            if !readable(observers) {
                builder.forget_nothing();
            }
            if let Event::Second { slice } = event
                && slice.second % seconds_between(slice.by_class.counts.len()) == 0
                && !slice.by_class.counts.is_empty()
            {
                let phase = usize::from(slice.phase);
                tell(observers, &Event::Classes { phase, classes: builder.classes(phase).into() });
            }
        };
        let enough = AtomicBool::new(false);
        let mut report = |event: &Event<'_>| {
            if let Event::PhaseEnd { phase, .. } = event {
                if let Some(readings) = &mut readings {
                    readings.phase_ended(*phase);
                }
                let workers = sampler.count_workers();
                if let (Some(measured), Some(pool)) = (measured_phase, &mut sampler.pool) {
                    if phase + 1 == measured {
                        pool.workers_at_start = workers;
                    } else if *phase == measured {
                        pool.workers_at_end = workers;
                    }
                }
            }
            match &mut server_log {
                None => pass_on(observers, event),
                Some(log) => {
                    log.take(event, |event| pass_on(observers, event));
                    if log.trouble.is_some() {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }
            if matches!(event, Event::Second { .. }) {
                if observers.iter().any(|o| o.has_seen_enough()) {
                    enough.store(true, Ordering::Relaxed);
                }
                let now_s = clock.now_us() as f64 / 1e6;
                let told = told.into_iter().flat_map(Receiver::try_iter).map(|look| Sample { t_s: now_s, ..look });
                for look in sampler.news().into_iter().chain(told) {
                    look_at(observers, look);
                }
                hear(observers, began.get(), &mut marks);
            }
        };
        let told_begins = self.begins.as_ref();
        let begins = |at: Instant| {
            began.set(at);
            // The receiver may be gone.
            let _ = told_begins.map(|begins| begins.send(at));
        };
        let carried = self.carrier.as_mut().map(|carrier| {
            let run = CarrierTask { id, plan, stop, enough: &enough, store: store.clone(), begins: &begins };
            carrier.carry(&run, &mut report).map_err(LabError::Other)
        });
        let (finished, carried) = match carried.transpose() {
            Err(e) => return Err(self.failed(e)),
            Ok(Some(carried)) => {
                let (unreachable, stopped) = (carried.unreachable, carried.stopped);
                (LoadResult { unreachable, stopped, ..LoadResult::default() }, Some(carried))
            }
            Ok(None) => match lastdrop_load::run(plan, &prepared, clock, stop, &enough, capture_level, &mut report) {
                Ok(finished) => (finished, None),
                Err(e) => return Err(self.failed(e)),
            },
        };
        self.first_answer = finished.first_answer;
        let joined = server_log.map(|log| log.finish(stop, |event| pass_on(&mut self.observers, event))).transpose();
        let joined_log = match joined {
            Ok(joined) => joined,
            Err(why) => return Err(self.failed(LabError::Other(why))),
        };
        let mut phases = builder.into_reports();
        let answered: u64 = phases.iter().map(|p| p.requests.answered).sum();
        let cpu_us: u64 = finished.threads.iter().map(|(cpu, _)| cpu).sum();
        let busiest = finished
            .threads
            .iter()
            // Starting a thread takes a whole core for a moment, which says nothing about the load.
            .filter(|(_, wall)| *wall >= 500_000)
            .map(|(cpu, wall)| *cpu as f64 / *wall as f64)
            .fold(0.0, f64::max);
        let (pool, server, last) = sampler.finish();
        for look in last {
            look_at(&mut self.observers, look);
        }
        hear(&mut self.observers, began.get(), &mut marks);
        let server = server.map(|server| ServerTimeline { samples: looks, ..server });
        let co_located = plan.network.unix_socket.is_some() || finished.peers.iter().any(is_local);
        let changes = readings.map(|readings| readings.finish(co_located)).unwrap_or_default();
        let CpuUse { others, chain_s, starting } = changes.used;
        if let Some(phase) = phases.iter_mut().find(|p| p.measured) {
            phase.server_cpu = chain_s.map(|cpu_s| server_cpu(cpu_s, starting, phase));
        }
        let of_this_machine = || Generator {
            cpu_s: cpu_us as f64 / 1e6,
            cpu_us_per_request: if answered == 0 { 0.0 } else { cpu_us as f64 / answered as f64 },
            peak_rss_bytes: host::own_peak_rss(),
            threads: plan.threads,
            saturated: lastdrop_diagnose::saturated(busiest),
            busiest_thread_cores: busiest,
            thread_cores: finished
                .threads
                .iter()
                .map(|(cpu, wall)| (*cpu as f64 / (*wall).max(1) as f64 * 1000.0).round() / 1000.0)
                .collect(),
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
        };
        let (generator, agents, reasons) = match carried {
            Some(carried) => (carried.generator, carried.agents, Some(carried.reasons)),
            None => (of_this_machine(), Vec::new(), None),
        };
        let measured = phases.iter().find(|p| p.measured);
        let evidence = RunEvidence { plan, phase: measured, generator: &generator, pool: pool.as_ref() };
        let mut validity = lastdrop_diagnose::judge(&evidence);
        if let Some(of_machines) = reasons {
            validity = crate::lab::fleet::of_fleet(of_machines, validity);
        }
        let objectives = objective::judge(&plan.objectives, plan, &phases, server.as_ref());
        let run = Run {
            schema: RUN_SCHEMA.into(),
            id: id.into(),
            seed: plan.seed,
            started_unix_ms,
            label: label.into(),
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
            agents,
            marks,
            objectives,
        };
        for reason in &run.validity.reasons {
            self.tell(&Event::Finding { reason: Cow::Borrowed(reason) });
        }
        self.tell(&Event::Ended { run: Cow::Borrowed(&run) });
        Ok(run)
    }
}

/// Returns true if what a request cost in this run has the first requests of workers in it.
pub(crate) fn starts_workers(run: &Run) -> bool {
    run.measured().and_then(|phase| phase.server_cpu).is_some_and(|cpu| cpu.has_starts())
}

fn tell(observers: &mut [Box<dyn Observer + '_>], event: &Event<'_>) {
    for observer in observers {
        observer.on_event(event);
    }
}

/// Takes new marks from the observers and shows them to all observers.
fn hear(observers: &mut [Box<dyn Observer + '_>], began: Instant, marks: &mut Vec<Mark>) {
    let said: Vec<(Instant, String)> = observers.iter_mut().flat_map(|o| o.take_marks()).collect();
    for (at, text) in said {
        let t_s = at.saturating_duration_since(began).as_millis() as f64 / 1e3;
        let mark = Mark { t_s, text };
        tell(observers, &Event::Mark { mark: Cow::Borrowed(&mark) });
        marks.push(mark);
    }
}

/// Returns how often the classes of a run are reported while it goes on: summing up a hundred of them takes some
/// milliseconds.
fn seconds_between(classes: usize) -> u32 {
    (classes as u32).div_ceil(10).clamp(1, 10)
}

/// Rounds to a thousandth.
fn thousandth(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
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
