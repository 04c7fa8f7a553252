//! Watches beside a run what the server and all behind it use of the processors, and programs that have nothing to do with it.

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

/// When connections are followed, after the start of the run; beyond the last each pause is three times the one before.
/// A server talks to its database for most of a request or keeps the connection: a few looks find it.
const LOOKS: [Duration; 4] =
    [Duration::from_millis(150), Duration::from_millis(350), Duration::from_millis(800), Duration::from_millis(1500)];
/// Where the chain is known from an earlier run, the first of them is this one: short runs are not to pay for any.
const KNOWN: usize = 2;
/// So many times in a run connections are followed even where nobody unknown is busy: a database that uses little is a part of what a
/// request costs.
const FOLLOWED: u32 = 3;
/// Of the time of a long run, looking takes at most this part.
const MOST_COST: u32 = 200;

/// What the load of a plan connects to.
#[derive(Debug, Clone)]
pub(crate) struct Goal {
    url: Url,
    unix: Option<PathBuf>,
}

impl Goal {
    pub fn of(plan: &Plan) -> Goal {
        Goal { url: plan.url.clone(), unix: plan.network.unix_socket.clone() }
    }

    /// Its address as it is now. A name is resolved, which may take a while.
    pub fn endpoint(&self) -> Option<Endpoint> {
        match &self.unix {
            Some(path) => Some(Endpoint::Unix(path.clone())),
            None => lastdrop_load::resolve(&self.url).ok().map(Endpoint::Tcp),
        }
    }
}

/// Who takes part in the runs of a lab, as far as is known: kept from run to run.
pub type KnownChain = Arc<Mutex<Chain>>;

/// Processor time that was used in the measured phase.
#[derive(Debug, Default)]
pub(crate) struct Used {
    /// By programs that have nothing to do with the run. None where they cannot be told apart.
    pub others: Option<OtherProcesses>,
    /// By the server and all that it talks to, seconds. None where the server is not on this machine or not known.
    pub chain_s: Option<f64>,
}

/// Watches until it is finished.
pub(crate) struct OthersWatch {
    chain: KnownChain,
    goal: Goal,
    before: Option<Snapshot>,
    seen: Option<Used>,
    /// Let go of when the run is over.
    _over: Sender<()>,
}

pub(crate) fn lock(chain: &Mutex<Chain>) -> MutexGuard<'_, Chain> {
    chain.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_worth_a_look(others: &OtherProcesses) -> bool {
    others.cores >= others_threshold_cores(host::processors())
}

impl OthersWatch {
    /// The run begins. With `all`, whoever takes part is looked for even where nobody unknown is busy.
    pub fn start(chain: &KnownChain, goal: Goal, all: bool) -> OthersWatch {
        let (over, is_over) = channel::<()>();
        let (known, to) = (Arc::clone(chain), goal.clone());
        let work = move || {
            let first = if lock(&known).has_others() && !all { KNOWN } else { 0 };
            let to = to.endpoint();
            let mut before = Snapshot::now();
            let mut pause = LOOKS[first];
            let mut followed = 0;
            for turn in first + 1.. {
                if is_over.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                let start = std::time::Instant::now();
                let now = Snapshot::now();
                let mut chain = lock(&known);
                // Whoever is busy and unknown may take part: follow the connections that there are now.
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
        // Without the thread others are told, and perhaps some that take part.
        let _ = thread::Builder::new().name("others".into()).spawn(work);
        OthersWatch { chain: Arc::clone(chain), goal, before: None, seen: None, _over: over }
    }

    /// What is to be told begins now.
    pub fn begin(&mut self) {
        self.before = Some(Snapshot::now());
    }

    /// It ends now.
    pub fn end(&mut self) {
        let Some(before) = self.before.take() else { return };
        let now = Snapshot::now();
        let mut chain = lock(&self.chain);
        let mut others = now.others_since(&before, &chain);
        if is_worth_a_look(&others) {
            chain.look(self.goal.endpoint().as_ref());
            others = now.others_since(&before, &chain);
        }
        let chain_s = chain.has_others().then(|| now.chain_since(&before, &chain));
        self.seen = Some(Used { others: Some(others), chain_s });
    }

    /// What was used in the measured phase. Nothing is known of others where the server is here (`server_here`) and its processes may not be
    /// seen, and nothing at all where the measurement did not come to its end.
    pub fn finish(self, server_here: bool) -> Used {
        let known = lock(&self.chain).has_others();
        let Used { others, chain_s } = self.seen.unwrap_or_default();
        Used { others: others.filter(|_| known || !server_here), chain_s: chain_s.filter(|_| server_here) }
    }
}
