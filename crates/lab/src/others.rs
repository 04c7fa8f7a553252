//! Watches beside a run for programs that have nothing to do with it and take the processors that it needs.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lastdrop_diagnose::others_worth_a_word;
use lastdrop_model::{Plan, Url};
use lastdrop_probe::chain::Chain;
use lastdrop_probe::host;
use lastdrop_probe::listeners::Endpoint;
use lastdrop_probe::others::{Others, Snapshot};

/// When connections are followed, after the start of the run; beyond the last each pause is three times the one before.
/// A server talks to its database for most of a request or keeps the connection: a few looks find it.
const LOOKS: [Duration; 4] =
    [Duration::from_millis(150), Duration::from_millis(350), Duration::from_millis(800), Duration::from_millis(1500)];
/// Where the chain is known from an earlier run, the first of them is this one: short runs are not to pay for any.
const KNOWN: usize = 2;
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

/// Watches until it is finished.
pub(crate) struct OthersWatch {
    chain: KnownChain,
    goal: Goal,
    before: Option<Snapshot>,
    seen: Option<Others>,
    /// Let go of when the run is over.
    _over: Sender<()>,
}

pub(crate) fn lock(chain: &Mutex<Chain>) -> MutexGuard<'_, Chain> {
    chain.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_worth_a_look(others: &Others) -> bool {
    others.cores >= others_worth_a_word(host::processors())
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
            for turn in first + 1.. {
                if is_over.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                let start = std::time::Instant::now();
                let now = Snapshot::now();
                let mut chain = lock(&known);
                // Whoever is busy and unknown may take part: follow the connections that there are now.
                if all || !chain.has_others() || is_worth_a_look(&now.others_since(&before, &chain)) {
                    chain.look(to.as_ref());
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
        self.seen = Some(others);
    }

    /// What others used. None where it cannot be told: the measurement did not come to its end, or the server is here
    /// (`server_here`) and its processes may not be seen.
    pub fn finish(self, server_here: bool) -> Option<Others> {
        let known = lock(&self.chain).has_others();
        self.seen.filter(|_| known || !server_here)
    }
}
