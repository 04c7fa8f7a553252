//! Where runs are made: load, clock, host readings and store put together into one [`Run`].

use std::fmt::Write as _;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use lastdrop_analyze::objective;
use lastdrop_analyze::validity::{self, Evidence};
use lastdrop_load::{Event, FirstAnswer, LoadError, RunClock};
use lastdrop_model::run::{End, RUN_SCHEMA, RunBuilder};
use lastdrop_model::{Counts, Exchange, Generator, Plan, Run, Slice, Wish};
use lastdrop_probe::host::{self, Clocks, CpuTicks};
use lastdrop_server::Found;
use lastdrop_store::{Store, StoreError};
use serde_json::json;

use crate::beside::{Beside, is_local};

/// Why an experiment could not be done.
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

/// What happens while an experiment is under way.
#[derive(Debug)]
pub enum Progress<'a> {
    /// A second of a run has passed: the phase, its seconds so far, its counts so far, and the second itself.
    Second { phase: &'a str, second: u32, so_far: Counts, slice: &'a Slice },
    /// The live line, if there is one, is over.
    RunOver,
    /// Something worth a line.
    Note(String),
}

/// Whoever shows progress to a person.
pub trait Narrator {
    fn tell(&mut self, progress: Progress<'_>);
}

impl dyn Narrator + '_ {
    pub fn note(&mut self, text: impl Into<String>) {
        self.tell(Progress::Note(text.into()));
    }
}

/// Somebody who is shown requests as they end.
pub type Watcher<'a> = dyn FnMut(&[Exchange]) + 'a;

/// The means of making runs.
pub struct Lab<'a> {
    pub store: Option<Store>,
    /// Set when the user asks to stop.
    pub stop: &'a AtomicBool,
    pub narrator: &'a mut dyn Narrator,
    /// The first thing that went wrong with keeping runs. A run goes on without its store; the command says so.
    pub store_error: Option<StoreError>,
    /// Where a line for each request goes, where that is wanted, and what went wrong with it.
    pub log: Option<RequestLog>,
    /// The server that the runs are about, where the user named it; else it is looked for by the URL.
    pub server: Option<Found>,
    /// Who wants to see each request that is over.
    pub exchanges: Option<Box<Watcher<'a>>>,
    /// How much of it they want to see.
    pub wish: Wish,
    /// Look at the server beside the load.
    pub observe: bool,
    /// What the first answer of the last run said of its server, where each request was wanted.
    pub first_answer: Option<FirstAnswer>,
}

/// The columns of the log of requests; times are microseconds since 1970, empty where there is none.
const LOG_COLUMNS: &str = "phase,request,due_us,sent_us,first_byte_us,done_us,fate,status\n";

/// A file that takes a line for each request.
#[derive(Debug)]
pub struct RequestLog {
    file: File,
    /// What went wrong first; nothing is written after it.
    pub error: Option<io::Error>,
}

impl RequestLog {
    #[must_use]
    pub fn new(mut file: File) -> RequestLog {
        let error = file.write_all(LOG_COLUMNS.as_bytes()).err();
        RequestLog { file, error }
    }

    fn write(&mut self, exchanges: &[Exchange]) {
        if self.error.is_some() {
            return;
        }
        let mut text = String::new();
        for e in exchanges {
            let _ = write!(text, "{},{},{},", e.phase, e.request, e.due);
            for at in [e.sent, e.first_byte, e.done] {
                if let Some(at) = at {
                    let _ = write!(text, "{at}");
                }
                text.push(',');
            }
            let _ = writeln!(text, "{},{}", e.fate.name(), e.status);
        }
        self.error = self.file.write_all(text.as_bytes()).err();
    }
}

impl std::fmt::Debug for Lab<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lab").field("store", &self.store).finish_non_exhaustive()
    }
}

/// A number that differs from call to call, for ids and seeds.
#[must_use]
pub fn random_u32() -> u32 {
    (RandomState::new().hash_one(SystemTime::now()) >> 16) as u32
}

impl<'a> Lab<'a> {
    #[must_use]
    pub fn new(store: Option<Store>, stop: &'a AtomicBool, narrator: &'a mut dyn Narrator) -> Lab<'a> {
        Lab {
            store,
            stop,
            narrator,
            store_error: None,
            log: None,
            server: None,
            exchanges: None,
            wish: Wish::Nothing,
            observe: true,
            first_answer: None,
        }
    }
}

impl Lab<'_> {
    /// Has the user asked to stop?
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// An error if the user has asked to stop.
    ///
    /// # Errors
    /// [`LabError::Interrupted`].
    pub fn check_stop(&self) -> Result<(), LabError> {
        if self.stopped() { Err(LabError::Interrupted) } else { Ok(()) }
    }

    fn keep(&mut self, write: impl FnOnce(&Store) -> Result<(), StoreError>) {
        if self.store_error.is_none()
            && let Some(store) = &self.store
        {
            self.store_error = write(store).err();
        }
    }

    /// Carries out a plan. The run is in the store second by second and judged when it comes back.
    ///
    /// # Errors
    /// When no load could be put on at all.
    pub fn run(&mut self, plan: &Plan, label: &str) -> Result<Run, LabError> {
        let id = format!("{:08x}", random_u32());
        let started_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let environment = environment();
        self.keep(|s| s.begin(&id, started_unix_ms, label, plan, &environment));
        let ticks = CpuTicks::now();
        let mut builder = RunBuilder::new(plan.clone());
        let clock = RunClock::start();
        let stop = self.stop;
        let throttled = host::throttled();
        let clocks = Clocks::now();
        let mut beside = Beside::start(plan, clock, self.server.clone(), self.observe);
        let measured_phase = plan.phases.iter().position(|p| p.measured);
        let least = if self.log.is_some() { Wish::Exchanges } else { Wish::Nothing };
        let wish = if self.wish == Wish::Nothing { least } else { self.wish };
        let result = lastdrop_load::run(plan, clock, stop, wish, |event| match event {
            Event::Exchanges(some) => {
                if let Some(log) = &mut self.log {
                    log.write(some);
                }
                if let Some(watch) = &mut self.exchanges {
                    watch(some);
                }
            }
            Event::Second(slice) => {
                builder.add(slice);
                self.keep(|s| s.second(&id, slice));
                for look in beside.news() {
                    self.keep(|s| s.look(&id, look));
                }
                let phase = slice.phase as usize;
                self.narrator.tell(Progress::Second {
                    phase: &plan.phases[phase].name,
                    second: slice.second,
                    so_far: builder.counts(phase),
                    slice,
                });
            }
            Event::PhaseEnd { phase, duration_us, peak } => {
                builder.end_phase(phase, duration_us, peak);
                let workers = beside.count_workers();
                if let (Some(measured), Some(pool)) = (measured_phase, &mut beside.pool) {
                    if phase + 1 == measured {
                        pool.workers_at_start = workers;
                    } else if phase == measured {
                        pool.workers_at_end = workers;
                    }
                }
                self.keep(|s| s.phase_end(&id, phase, duration_us, peak));
            }
        });
        self.narrator.tell(Progress::RunOver);
        let finished = result?;
        self.first_answer = finished.first_answer;
        let phases = builder.into_reports();
        let answered: u64 = phases.iter().map(|p| p.requests.answered).sum();
        let cpu_us: u64 = finished.threads.iter().map(|(cpu, _)| cpu).sum();
        let busiest = finished
            .threads
            .iter()
            // Starting up takes a whole core for a moment; that says nothing about the load.
            .filter(|(_, wall)| *wall >= 500_000)
            .map(|(cpu, wall)| *cpu as f64 / *wall as f64)
            .fold(0.0, f64::max);
        let (clock_step_s, suspended_s) =
            clocks.zip(Clocks::now()).map_or((0.0, 0.0), |(before, now)| now.faults_since(&before));
        for look in beside.news() {
            self.keep(|s| s.look(&id, look));
        }
        let kept = beside.seen().len();
        let (pool, server) = beside.finish();
        for look in server.iter().flat_map(|o| &o.looks[kept..]) {
            self.keep(|s| s.look(&id, look));
        }
        let generator = Generator {
            cpu_s: cpu_us as f64 / 1e6,
            cpu_us_per_request: if answered == 0 { 0.0 } else { cpu_us as f64 / answered as f64 },
            peak_rss_bytes: host::own_peak_rss(),
            threads: plan.threads,
            saturated: validity::saturated(busiest),
            busiest_thread_cores: busiest,
            thread_cores: finished
                .threads
                .iter()
                .map(|(cpu, wall)| (*cpu as f64 / (*wall).max(1) as f64 * 1000.0).round() / 1000.0)
                .collect(),
            connect_errors: finished.connect_errors.clone(),
            protocol_errors: finished.protocol_errors.clone(),
            descriptor_limit: finished.descriptor_limit,
            local_ports: host::local_ports(),
            time_wait: host::time_wait(),
            throttled_s: throttled.zip(host::throttled()).map(|(a, b)| b.saturating_sub(a).as_secs_f64()),
            clock_step_s,
            suspended_s,
            steal: ticks.and_then(|t| CpuTicks::now()?.steal_since(&t)),
            co_located: plan.network.unix_socket.is_some() || finished.peers.iter().any(is_local),
        };
        let measured = phases.iter().find(|p| p.measured);
        let evidence = Evidence { plan, phase: measured, generator: &generator, pool: pool.as_ref() };
        let validity = validity::judge(&evidence);
        let objectives = objective::judge(&plan.objectives, plan, measured);
        let mut run = Run {
            schema: RUN_SCHEMA.into(),
            id: id.clone(),
            seed: plan.seed,
            started_unix_ms,
            label: label.into(),
            end: match (finished.unreachable, finished.stopped) {
                (true, _) => End::Unreachable,
                (_, true) => End::Interrupted,
                _ => End::Finished,
            },
            environment,
            plan: plan.clone(),
            phases,
            generator,
            pool,
            server,
            validity,
            objectives,
        };
        self.keep(|s| s.finish(&mut run));
        Ok(run)
    }
}

fn environment() -> serde_json::Value {
    json!({
        "lastdrop": env!("CARGO_PKG_VERSION"),
        "kernel": host::kernel(),
        "cpus": host::cpus(),
    })
}
