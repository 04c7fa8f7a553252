//! Measures the processor time that the server, the servers it talks to, and unrelated programs use during a run.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lastdrop_diagnose::others_threshold_cores;
use lastdrop_model::{Plan, Url};
use lastdrop_probe::chain::Chain;
use lastdrop_probe::host;
use lastdrop_probe::listeners::Endpoint;
use lastdrop_probe::others::{OtherProcesses, Snapshot};

/// When connections are followed, from the start of the run; after the last one, each pause is three times the previous
/// one. A server talks to its database for most of a request, or keeps the connection open, so a few looks find it.
const LOOKS: [Duration; 4] =
    [Duration::from_millis(150), Duration::from_millis(350), Duration::from_millis(800), Duration::from_millis(1500)];
/// First pause in `LOOKS` if the chain is known from an earlier run, so that short runs do not pay for a look.
const KNOWN: usize = 2;
/// Connections are followed this often per run even if no unknown program is busy: a database that uses little is still
/// part of the cost of a request.
const FOLLOWED: u32 = 3;
/// The phase may begin at any time.
const LONGEST_WAIT: Duration = Duration::from_millis(250);
/// When the measured phase shows what new workers use: after this time, later after a tenth of its length so far, and never
/// more often than costs a part in [`MOST_COST`] of the time.
const SNAPSHOT_PAUSE: Duration = Duration::from_millis(400);
/// There is none after this length.
const LAST_SNAPSHOT: Duration = Duration::from_secs(90);
/// In a long run, following connections takes at most one part in this many of the time.
const MOST_COST: u32 = 200;

/// What the load of a plan connects to.
#[derive(Debug, Clone)]
pub(crate) struct LoadTarget {
    url: Url,
    unix: Option<PathBuf>,
}

impl LoadTarget {
    pub fn of(plan: &Plan) -> LoadTarget {
        LoadTarget { url: plan.url.clone(), unix: plan.network.unix_socket.clone() }
    }

    /// Returns its address as of now. Resolves a name, which may take a while.
    pub fn endpoint(&self) -> Option<Endpoint> {
        match &self.unix {
            Some(path) => Some(Endpoint::Unix(path.clone())),
            None => lastdrop_load::resolve(&self.url).ok().map(Endpoint::Tcp),
        }
    }
}

/// The processes that take part in the runs of a lab, as far as they are known; kept from run to run.
pub type SharedChain = Arc<Mutex<Chain>>;

/// Processor time that was used in the measured phase.
#[derive(Debug, Default)]
pub(crate) struct CpuUse {
    /// By programs unrelated to the run. None if they cannot be identified.
    pub others: Option<OtherProcesses>,
    /// By the server and all servers that it talks to, in seconds. None if the server is not on this machine or not
    /// known.
    pub chain_s: Option<f64>,
    /// The same in parts of the phase, if workers began to work in it.
    pub starting: Option<StartingUse>,
}

/// Processor time in a phase in which workers began to work.
#[derive(Debug)]
pub(crate) struct StartingUse {
    /// How many did.
    pub workers: u64,
    pub parts: Vec<UseInterval>,
}

/// Processor time in a part of the phase; parts follow each other.
#[derive(Debug)]
pub(crate) struct UseInterval {
    /// From the beginning of the phase.
    pub until: Duration,
    pub chain_s: f64,
    /// What the newest worker had used when the part began, see [`Snapshot::newest_until`].
    pub newest_s: f64,
}

/// Measures until it is finished.
pub(crate) struct CpuUseMeter {
    chain: SharedChain,
    goal: LoadTarget,
    /// From the beginning of the measured phase on; empty outside of it.
    snapshots: Arc<Mutex<Vec<Snapshot>>>,
    seen: Option<CpuUse>,
    /// Dropped when the run is over.
    _over: Sender<()>,
}

pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_worth_a_look(others: &OtherProcesses) -> bool {
    others.cores >= others_threshold_cores(host::processors())
}

/// Takes the next snapshot of a measured phase if it is time for it. `took` is how long the last one took.
fn take_if_due(snapshots: &Mutex<Vec<Snapshot>>, took: &mut Duration) {
    let mut all = lock(snapshots);
    let Some((age, pause)) = all.first().zip(all.last()).map(|(first, last)| (first.age(), last.age())) else { return };
    if age <= LAST_SNAPSHOT && pause >= SNAPSHOT_PAUSE.max(age / 10).max(*took * MOST_COST) {
        let began = std::time::Instant::now();
        all.push(Snapshot::now());
        *took = began.elapsed();
    }
}

impl CpuUseMeter {
    /// Starts with the run. With `all`, follows connections even if no unknown program is busy.
    pub fn start(chain: &SharedChain, goal: LoadTarget, all: bool) -> CpuUseMeter {
        let (over, is_over) = channel::<()>();
        let (known, to) = (Arc::clone(chain), goal.clone());
        let snapshots = Arc::<Mutex<Vec<Snapshot>>>::default();
        let taken = Arc::clone(&snapshots);
        let work = move || {
            let first = if lock(&known).has_others() && !all { KNOWN } else { 0 };
            let to = to.endpoint();
            let mut before = Snapshot::now();
            let mut pause = LOOKS[first];
            let (mut followed, mut took) = (0, Duration::ZERO);
            for turn in first + 1.. {
                let due = std::time::Instant::now() + pause;
                while let Some(left) = due.checked_duration_since(std::time::Instant::now()) {
                    if is_over.recv_timeout(left.min(LONGEST_WAIT)) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                    take_if_due(&taken, &mut took);
                }
                let start = std::time::Instant::now();
                let now = Snapshot::now();
                let mut chain = lock(&known);
                // A busy unknown program may take part: follow the connections that exist now.
                let unknown = || is_worth_a_look(&now.others_since(&before, &chain));
                if all || followed < FOLLOWED || !chain.has_others() || unknown() {
                    chain.look(to.as_ref());
                    followed += 1;
                }
                drop(chain);
                before = now;
                pause = LOOKS.get(turn).copied().unwrap_or_else(|| (pause * 3).max(start.elapsed() * MOST_COST));
            }
        };
        // Without this thread, programs that take part may be reported as unrelated ones.
        let _ = thread::Builder::new().name("others".into()).spawn(work);
        CpuUseMeter { chain: Arc::clone(chain), goal, snapshots, seen: None, _over: over }
    }

    /// Starts the measured period.
    pub fn begin(&mut self) {
        *lock(&self.snapshots) = vec![Snapshot::now()];
    }

    /// Ends the measured period.
    pub fn end(&mut self) {
        let earlier = std::mem::take(&mut *lock(&self.snapshots));
        let [before, between @ ..] = &earlier[..] else { return };
        let now = Snapshot::now();
        let mut chain = lock(&self.chain);
        let mut others = now.others_since(before, &chain);
        if is_worth_a_look(&others) {
            chain.look(self.goal.endpoint().as_ref());
            others = now.others_since(before, &chain);
        }
        let chain_s = chain.has_others().then(|| now.chain_since(before, &chain));
        let started = now.started_since(before, &chain);
        let starting = (!started.is_empty() && chain_s.is_some()).then(|| {
            let later = between.iter().chain([&now]);
            let part = |(from, to): (&Snapshot, &Snapshot)| UseInterval {
                until: to.after(before),
                chain_s: to.chain_since(from, &chain),
                newest_s: from.newest_until(to, &started),
            };
            StartingUse { workers: started.len() as u64, parts: earlier.iter().zip(later).map(part).collect() }
        });
        self.seen = Some(CpuUse { others: Some(others), chain_s, starting });
    }

    /// Returns what was used in the measured phase. Other programs are unknown if the server is on this machine
    /// (`server_here`) and its processes cannot be inspected. Nothing is known if the measurement was cut short.
    pub fn finish(self, server_here: bool) -> CpuUse {
        let known = lock(&self.chain).has_others();
        let CpuUse { others, chain_s, starting } = self.seen.unwrap_or_default();
        CpuUse {
            others: others.filter(|_| known || !server_here),
            chain_s: chain_s.filter(|_| server_here),
            starting: starting.filter(|_| server_here),
        }
    }
}
