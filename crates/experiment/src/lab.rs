//! Where runs are made: load, clock, host readings and store put together into one [`Run`].

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lastdrop_analyze::objective;
use lastdrop_analyze::validity::{self, Evidence};
use lastdrop_load::{Event, LoadError, RunClock};
use lastdrop_model::run::{End, Pool, RUN_SCHEMA, RunBuilder};
use lastdrop_model::{Counts, Generator, Plan, Run, Slice};
use lastdrop_probe::host::{self, Clocks, CpuTicks};
use lastdrop_probe::{listeners, process};
use lastdrop_store::{Store, StoreError};
use serde_json::json;

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
}

/// A file that takes a line for each request.
#[derive(Debug)]
pub struct RequestLog {
    pub file: File,
    pub error: Option<io::Error>,
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
        let mut watch = PoolWatch::start(plan);
        let measured_phase = plan.phases.iter().position(|p| p.measured);
        let logging = self.log.is_some();
        let result = lastdrop_load::run(plan, clock, stop, logging, |event| match event {
            Event::Log(lines) => {
                if let Some(log) = self.log.as_mut().filter(|l| l.error.is_none()) {
                    log.error = log.file.write_all(lines).err();
                }
            }
            Event::Second(slice) => {
                builder.add(slice);
                self.keep(|s| s.second(&id, slice));
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
                if let (Some(measured), Some(pool)) = (measured_phase, watch.seen()) {
                    if phase + 1 == measured {
                        pool.workers_at_start = count_workers(pool.master);
                    } else if phase == measured {
                        pool.workers_at_end = count_workers(pool.master);
                    }
                }
                self.keep(|s| s.phase_end(&id, phase, duration_us, peak));
            }
        });
        self.narrator.tell(Progress::RunOver);
        let finished = result?;
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
        // Killed or interrupted before its measured phase ended: nothing can be said.
        let pool = watch.seen().cloned().filter(|p| p.workers_at_end > 0);
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

/// Runs shorter than this are too short for a pool to grow in, and for a look at every process.
const SHORTEST_WATCHED: Duration = Duration::from_secs(3);

/// Looks for the server's processes beside the run: it takes longer than a first request may.
enum PoolWatch {
    Looking(Option<JoinHandle<Option<Pool>>>),
    Seen(Pool),
}

impl PoolWatch {
    fn start(plan: &Plan) -> PoolWatch {
        let look = watchable(plan).map(|address| {
            move || {
                // The first requests shall not share the processor with it.
                thread::sleep(Duration::from_millis(50));
                look_at_pool(&address)
            }
        });
        PoolWatch::Looking(look.and_then(|look| thread::Builder::new().name("pool".into()).spawn(look).ok()))
    }

    /// What is known by now.
    fn seen(&mut self) -> Option<&mut Pool> {
        if let PoolWatch::Looking(handle) = self {
            let pool = handle.take_if(|h| h.is_finished())?.join().ok()??;
            *self = PoolWatch::Seen(pool);
        }
        match self {
            PoolWatch::Seen(pool) => Some(pool),
            PoolWatch::Looking(_) => None,
        }
    }
}

/// Where the server listens, if it is on this machine under its own address and the run is long enough.
fn watchable(plan: &Plan) -> Option<SocketAddr> {
    let measured = plan.phases.iter().find(|p| p.measured)?;
    if measured.duration.is_some_and(|d| d < SHORTEST_WATCHED) || plan.network.unix_socket.is_some() {
        return None;
    }
    let ip: IpAddr = plan.url.host.trim_matches(['[', ']']).parse().ok()?;
    Some(SocketAddr::new(ip, plan.url.port)).filter(is_local)
}

/// The processes of the server that listens there.
fn look_at_pool(address: &SocketAddr) -> Option<Pool> {
    let master = listeners::owner(address)?;
    let own = process::affinity(0);
    let theirs: Vec<usize> = process::children(master).iter().flat_map(|p| process::affinity(p.pid)).collect();
    let theirs = if theirs.is_empty() { process::affinity(master) } else { theirs };
    let shares_cpus = own.is_empty() || theirs.is_empty() || theirs.iter().any(|c| own.contains(c));
    let workers = count_workers(master);
    Some(Pool { master, workers_at_start: workers, workers_at_end: 0, shares_cpus })
}

fn count_workers(master: i32) -> u32 {
    // A server without children is its own worker.
    (process::children(master).len() as u32).max(1)
}

/// Is the server on this machine? A UDP socket "connected" to it shows which address we would send from, without
/// sending anything; to ourselves it is the server's own.
fn is_local(address: &SocketAddr) -> bool {
    if address.ip().is_loopback() {
        return true;
    }
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    UdpSocket::bind(any)
        .and_then(|s| s.connect(address).and_then(|()| s.local_addr()))
        .is_ok_and(|own| own.ip() == address.ip())
}
