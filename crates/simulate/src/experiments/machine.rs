//! A simulated machine as experiments know a machine: a load, a clock, and a server whose settings can be changed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lastdrop_experiment::lab::{Carrier, CarrierResult, CarrierTask, Clock, Lab};
use lastdrop_experiment::observe::visitors::{VisitorSource, Visitors};
use lastdrop_model::documents::{MeanMax, SIZE_SCHEMA, SizeDocument, SizeFits, SizeWorkers};
use lastdrop_model::settings::KnobValues;
use lastdrop_model::{Event, Experience, Generator, Knob, Plan, ReloadClass, Role, Setting, Settings, Url};
use lastdrop_server::operations::OperationCall;
use lastdrop_server::{
    Change, EffectiveSettings, Member, PersistedIn, RestoreReport, RestoredServer, ServerError, ServerRef, Stack,
};
use serde_json::{Value, json};

use crate::world::{Usage, World, WorldPlan};

/// The name of the server in documents.
const NAME: &str = "simulated";

const fn sized(name: &'static str, most: i64, default: &'static str, role: Role) -> Knob {
    let effect = "as the plan of the world says";
    Knob { role: Some(role), ..Knob::new(name, KnobValues::Count(1, most), default, ReloadClass::Restart, "", effect) }
}

const fn chosen(
    name: &'static str,
    takes: KnobValues,
    default: &'static str,
    findings: &'static [&'static str],
) -> Knob {
    Knob { findings, ..Knob::new(name, takes, default, ReloadClass::Restart, "", "as the plan of the world says") }
}

/// The settings of the simulated server. The later ones change what a request costs, see [`Costs`].
static KNOBS: [Knob; 7] = [
    sized("workers", 5000, "4", Role::PoolSize),
    sized("backlog", 4096, "128", Role::Backlog),
    Knob { usual: &[0, 1, 4, 6, 9], ..chosen("compression", KnobValues::Count(0, 9), "6", &["compression-bound"]) },
    chosen("log_buffer", KnobValues::Switch { on: "on", off: "off" }, "off", &["access-log-unbuffered"]),
    chosen("code_cache", KnobValues::Switch { on: "on", off: "off" }, "on", &["cpu-saturated"]),
    chosen("upstream_keepalive", KnobValues::Switch { on: "on", off: "off" }, "off", &["upstream-connect-per-request"]),
    chosen("lock", KnobValues::Choice(&["file", "pthread", "sysv"]), "file", &["cpu-saturated"]),
];

/// What the settings make of a request's costs: factors of its processor time, by setting and value. A setting that is
/// not among them changes nothing.
#[derive(Debug, Clone, Default)]
pub struct Costs(pub Vec<(String, Vec<(Setting, f64)>)>);

impl Costs {
    /// Returns the factor of a request's processor time with these settings.
    #[must_use]
    pub fn factor(&self, settings: &Settings) -> f64 {
        let of = |(name, levels): &(String, Vec<(Setting, f64)>)| {
            let value = settings.get(name)?;
            levels.iter().find(|(level, _)| level == value).map(|(_, factor)| *factor)
        };
        self.0.iter().filter_map(of).product()
    }

    /// Returns the lowest factor that any settings give.
    #[must_use]
    pub fn lowest(&self) -> f64 {
        self.0
            .iter()
            .map(|(_, levels)| levels.iter().map(|(_, factor)| *factor).fold(f64::INFINITY, f64::min))
            .product()
    }
}

/// Returns a plan of requests for this path of the simulated server.
#[must_use]
pub fn requests(path: &str, seed: u64) -> Plan {
    Plan::new(Url { tls: false, host: "127.0.0.1".into(), port: 8000, path: path.into() }, seed)
}

/// A machine with a server, shared by all that an experiment is given of it.
#[derive(Clone)]
pub struct SimulatedMachine {
    state: Arc<Mutex<MachineState>>,
    plan: Arc<WorldPlan>,
    costs: Arc<Costs>,
}

struct MachineState {
    world: World,
    /// Factor of a request's processor time by the settings in force.
    factor: f64,
    /// What the servers did under the last load.
    last_load: Usage,
    /// Loads until the user asks to stop.
    loads_left: Option<u64>,
    /// What becomes of settings that are kept.
    worsens: Option<Worsening>,
}

/// Settings that prove bad only later: the time after which they do, and the factor of a request's processor time from then on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worsening {
    pub after: Duration,
    pub factor: f64,
}

impl std::fmt::Debug for SimulatedMachine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedMachine").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl SimulatedMachine {
    #[must_use]
    pub fn new(plan: &WorldPlan, costs: Costs, seed: u64) -> SimulatedMachine {
        let factor = costs.factor(&defaults(plan));
        let mut world = World::new(plan, seed);
        world.set_cpu_factor(factor);
        let state = MachineState { world, factor, last_load: Usage::default(), loads_left: None, worsens: None };
        SimulatedMachine { state: Arc::new(Mutex::new(state)), plan: Arc::new(plan.clone()), costs: Arc::new(costs) }
    }

    fn state(&self) -> MutexGuard<'_, MachineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the plan of its world.
    #[must_use]
    pub fn plan(&self) -> &WorldPlan {
        &self.plan
    }

    /// The user asks to stop during a load, after so many others.
    pub fn stop_after(&self, loads: u64) {
        self.state().loads_left = Some(loads);
    }

    /// Settings that are kept will prove bad.
    pub fn worsen_kept(&self, worsening: Option<Worsening>) {
        self.state().worsens = worsening;
    }

    /// From now on its server has visitors, so many a second. Returns them as a tune sees them.
    #[must_use]
    pub fn be_visited(&self, rate: f64, seed: u64) -> Visitors {
        self.state().world.be_visited(rate, seed);
        Visitors::new(Box::new(SimulatedVisits(self.clone())), "log of the world".into())
    }

    /// Returns what all visitors have experienced.
    #[must_use]
    pub fn all_visited(&self) -> Experience {
        self.state().world.all_visited()
    }

    /// Returns true if its server has the settings that it began with.
    #[must_use]
    pub fn has_its_first_settings(&self) -> bool {
        let state = self.state();
        let now = state.world.settings();
        let first = &self.plan.pool;
        let factor = self.costs.factor(&defaults(&self.plan));
        (now.workers, now.backlog, state.factor) == (first.workers, first.backlog, factor)
    }

    /// Returns what the servers did under the last load.
    #[must_use]
    pub fn last_load(&self) -> Usage {
        self.state().last_load.clone()
    }

    /// Returns its clock.
    #[must_use]
    pub fn clock(&self) -> SimulatedClock<'static> {
        SimulatedClock { machine: self.clone(), stop: None }
    }

    /// Returns its clock; when it shows this time, the user asks to stop.
    #[must_use]
    pub fn clock_until<'a>(&self, at: Option<Duration>, stop: &'a AtomicBool) -> SimulatedClock<'a> {
        SimulatedClock { machine: self.clone(), stop: at.map(|at| (at, stop)) }
    }

    /// Returns a lab whose load goes to this machine. `by_path`: factors of a request's processor time by the path of its URL.
    #[must_use]
    pub fn lab<'a>(&self, stop: &'a AtomicBool, clock: &'a dyn Clock, by_path: &[(&'static str, f64)]) -> Lab<'a> {
        let load = SimulatedLoad { machine: self.clone(), by_path: by_path.to_vec() };
        Lab { carrier: Some(Box::new(load)), clock, observe: false, ..Lab::new(stop, Vec::new()) }
    }

    /// Opens its server to be changed.
    ///
    /// # Errors
    /// Never, for a name that can be read.
    pub fn open(&self) -> Result<Stack, String> {
        let name: ServerRef = "gunicorn".parse()?;
        let original = EffectiveSettings { settings: defaults(&self.plan), ..EffectiveSettings::default() };
        let server = SimulatedServer { machine: self.clone(), original, is_open: true };
        Ok(Stack::of(vec![(&name, Box::new(server))]))
    }

    fn workers(&self) -> u64 {
        u64::from(self.state().world.workers())
    }

    fn apply(&self, settings: &Settings) {
        let mut now = defaults(&self.plan);
        now.extend(settings.clone());
        let count = |name| count_of(&now, name).unwrap_or(1);
        let mut state = self.state();
        let factor = self.costs.factor(&now);
        state.factor = factor;
        state.world.set_cpu_factor(factor);
        state.world.apply(count("workers"), count("backlog"));
    }
}

/// Returns the settings that the server has at the start.
#[must_use]
pub fn defaults(plan: &WorldPlan) -> Settings {
    let mut all: Settings = KNOBS.iter().map(|knob| (knob.name.to_string(), Setting::read(knob.default))).collect();
    all.insert("workers".into(), Setting::Count(i64::from(plan.pool.workers)));
    all.insert("backlog".into(), Setting::Count(i64::from(plan.pool.backlog)));
    all
}

/// Returns a setting that is a number.
#[must_use]
pub fn count_of(settings: &Settings, name: &str) -> Option<u32> {
    settings.get(name).and_then(Setting::count).and_then(|n| u32::try_from(n).ok())
}

/// The time of a simulated machine, and when the user asks to stop.
pub struct SimulatedClock<'a> {
    machine: SimulatedMachine,
    stop: Option<(Duration, &'a AtomicBool)>,
}

impl std::fmt::Debug for SimulatedClock<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SimulatedClock").field(&self.now()).finish()
    }
}

impl Clock for SimulatedClock<'_> {
    fn now(&self) -> Duration {
        self.machine.state().world.now()
    }

    fn sleep(&self, time: Duration) {
        self.machine.state().world.sleep(time);
        if let Some((_, stop)) = self.stop.filter(|(at, _)| self.now() >= *at) {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

/// What a simulated server's visitors experience, as its log shows it.
#[derive(Debug)]
struct SimulatedVisits(SimulatedMachine);

impl VisitorSource for SimulatedVisits {
    fn look(&mut self) -> Experience {
        self.0.state().world.visited()
    }
}

/// Puts load on a simulated machine.
struct SimulatedLoad {
    machine: SimulatedMachine,
    by_path: Vec<(&'static str, f64)>,
}

impl Carrier for SimulatedLoad {
    fn carry(&mut self, task: &CarrierTask<'_>, report: &mut dyn FnMut(&Event<'_>)) -> Result<CarrierResult, String> {
        let factor =
            self.by_path.iter().find(|(path, _)| task.plan.url.path == *path).map_or(1.0, |(_, factor)| *factor);
        let mut state = self.machine.state();
        let now = state.factor * factor;
        state.world.set_cpu_factor(now);
        if state.loads_left == Some(0) {
            task.stop.store(true, Ordering::Relaxed);
        }
        state.loads_left = state.loads_left.map(|left| left.saturating_sub(1));
        let before = state.world.usage();
        let stopped = || task.enough.load(Ordering::Relaxed) || task.stop.load(Ordering::Relaxed);
        state.world.load(task.plan, report, &stopped);
        state.last_load = state.world.usage().since(&before);
        let used = &state.last_load;
        let processors = u64::from(self.machine.plan.cores);
        let generator = Generator {
            others_cores: Some((used.others_us - used.stolen_us) / used.now_us.max(1.0)),
            steal: Some(used.stolen_us / used.now_us.max(1.0) / processors as f64),
            processors,
            threads: 1,
            ..Generator::default()
        };
        Ok(CarrierResult { generator, stopped: task.stop.load(Ordering::Relaxed), ..CarrierResult::default() })
    }

    fn is_real(&self) -> bool {
        false
    }

    fn warm_each(&mut self, _workers: usize) -> Option<usize> {
        Some(self.machine.state().world.warm_each())
    }
}

/// The server of a simulated machine, to be changed.
struct SimulatedServer {
    machine: SimulatedMachine,
    original: EffectiveSettings,
    is_open: bool,
}

impl Member for SimulatedServer {
    fn name(&self) -> &str {
        NAME
    }

    fn original(&self) -> &EffectiveSettings {
        &self.original
    }

    fn knobs(&self) -> Vec<&'static Knob> {
        KNOBS.iter().collect()
    }

    fn cores(&self) -> u64 {
        u64::from(self.machine.plan.cores)
    }

    fn check(&self, change: &Change) -> Result<(), ServerError> {
        self.check_names(&change.settings)
    }

    fn apply(&mut self, change: &Change) -> Result<(), ServerError> {
        self.check_names(&change.settings)?;
        self.machine.apply(&change.settings);
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.is_open
    }

    fn restore_files(&mut self) -> Result<RestoredServer, ServerError> {
        self.machine.apply(&Settings::new());
        self.is_open = false;
        Ok(RestoredServer::whole(RestoreReport::untouched(NAME)))
    }

    fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        self.machine.apply(settings);
        let mut state = self.machine.state();
        if let Some(Worsening { after, factor }) = state.worsens {
            state.world.worsen(after, factor);
        }
        Ok(PersistedIn::Elsewhere("the simulated server".into()))
    }

    fn commit(&mut self, _: &PersistedIn) -> Result<(), ServerError> {
        self.is_open = false;
        Ok(())
    }

    fn operate(&self, call: OperationCall) -> Result<Value, ServerError> {
        Ok(match call {
            OperationCall::CountWorkers => json!(self.machine.workers()),
            OperationCall::RealMemory => json!(bytes(self.machine.state().world.memory_mb())),
            OperationCall::Drain => json!(true),
        })
    }

    fn size(&self, memory: Option<u64>) -> Result<SizeDocument, ServerError> {
        let pool = &self.machine.plan.pool;
        let (each, shared, count) = (bytes(pool.worker_mb), bytes(pool.shared_mb), self.machine.workers());
        let budget = memory.unwrap_or(bytes(self.machine.plan.memory_mb) * 9 / 10);
        let fits = budget.saturating_sub(shared) / each.max(1);
        let of = |bytes: u64| MeanMax { mean: bytes, max: bytes };
        Ok(SizeDocument {
            schema: SIZE_SCHEMA.into(),
            server: NAME.into(),
            threads_per_worker: 1,
            workers: SizeWorkers {
                count,
                cold: 0,
                rss_bytes: of(each + shared),
                pss_bytes: of(each + shared / count.max(1)),
                private_bytes: of(each),
                shared_bytes: of(shared),
            },
            real_memory_bytes: shared + count * each,
            shared_once_bytes: shared,
            budget_bytes: budget,
            budget_from: "the memory of the world".into(),
            fits: Some(SizeFits { no_sharing: fits, classic_sharing: fits, independent: fits, worst_case: fits }),
            effective: self.original.settings.clone(),
            ..SizeDocument::default()
        })
    }
}

/// Returns megabytes as bytes.
#[must_use]
pub fn bytes(mb: f64) -> u64 {
    (mb * 1e6) as u64
}
