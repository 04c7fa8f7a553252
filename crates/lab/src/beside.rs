//! Looks at the server beside a run, on a thread of its own and on the run's clock.
//!
//! A server that the user named (`--server`) is looked at with its status page. One that was only found by its listening
//! socket is looked at from outside: a question to its status page would be a request that nobody asked for, and would
//! stand in the counts of the server. One on another machine is looked at there, by whoever can (`Afar`).

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lastdrop_load::RunClock;
use lastdrop_model::documents::WatchDocument;
use lastdrop_model::run::Pool;
use lastdrop_model::{Plan, Sample, ServerTimeline, Timeline};
use lastdrop_probe::listeners::{Endpoint, is_local};
use lastdrop_probe::namespace::ConnectionTables;
use lastdrop_probe::process::{self, Helpers};
use lastdrop_probe::sampler::{Detail, SampledServer, Sampler};
use lastdrop_server::{FoundServer, find_listening_at};

use crate::others::Goal;

/// Runs shorter than this are too short for a pool to grow in, and for a look at every process.
const SHORTEST: Duration = Duration::from_secs(3);
/// The first requests shall not share the processor with the search for the server.
const SETTLE: Duration = Duration::from_millis(50);

/// Looks at a server of another machine: what it sees now, with differences since the look before.
pub type Afar = Box<dyn FnMut() -> Result<WatchDocument, String> + Send>;

enum News {
    Found { name: String, pool: Pool, helpers: Helpers },
    Look(Box<Sample>),
}

/// Looks beside a run. Dropped or finished, its thread ends.
pub struct Beside {
    news: Receiver<News>,
    /// Let go of when the run is over.
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<Option<ServerTimeline>>>,
    pub pool: Option<Pool>,
    helpers: Helpers,
    name: String,
    /// What the caller has not been given yet.
    fresh: Vec<Sample>,
}

impl Beside {
    /// Begins to look for the server and then at it. `named` is the server that the user named.
    /// One of another machine is looked at by `afar` instead.
    pub fn start(
        plan: &Plan,
        clock: RunClock,
        named: Option<FoundServer>,
        afar: Option<Afar>,
        observe: bool,
    ) -> Beside {
        let (tell, news) = channel();
        let (over, is_over) = channel();
        let measured = plan.phases.iter().find(|p| p.measured);
        let long_enough = measured.is_some_and(|p| p.duration.is_none_or(|d| d >= SHORTEST));
        let asked = plan.objectives.iter().any(|o| o.metric.is_of_server());
        let wanted = observe && (named.is_some() || afar.is_some() || long_enough || asked);
        let work = {
            let goal = Goal::of(plan);
            move || {
                sleep(SETTLE, &is_over);
                if let Some(afar) = afar {
                    return look_from_afar(afar, clock, &is_over, &tell);
                }
                let endpoint = goal.endpoint();
                let here = endpoint.as_ref().filter(|e| !matches!(e, Endpoint::Tcp(address) if !is_local(address)));
                let found = named.or_else(|| find_listening_at(here?))?;
                look_on(&found, endpoint, clock, &is_over, &tell)
            }
        };
        let thread = wanted.then(|| thread::Builder::new().name("probe".into()).spawn(work).ok()).flatten();
        Beside { news, over: Some(over), thread, pool: None, helpers: &[], name: String::new(), fresh: Vec::new() }
    }

    /// What has been seen since the last call.
    pub fn news(&mut self) -> Vec<Sample> {
        while let Ok(news) = self.news.try_recv() {
            match news {
                News::Found { name, pool, helpers } => {
                    (self.name, self.pool, self.helpers) = (name, Some(pool), helpers);
                }
                News::Look(look) => self.fresh.push(*look),
            }
        }
        std::mem::take(&mut self.fresh)
    }

    /// Workers at this moment.
    pub fn count_workers(&self) -> u32 {
        self.pool.as_ref().map_or(0, |p| as_count(&process::worker_pids(p.master, self.helpers)))
    }

    /// The run is over: the pool, the server without its looks, and the looks since the last call of [`Beside::news`].
    pub fn finish(mut self) -> (Option<Pool>, Option<ServerTimeline>, Vec<Sample>) {
        self.over = None;
        let observed = self.thread.take().and_then(|t| t.join().ok()).flatten();
        let last = self.news();
        let name = std::mem::take(&mut self.name);
        let observed = observed.map(|o| if o.name.is_empty() { ServerTimeline { name, ..o } } else { o });
        // Killed or interrupted before its measured phase ended: nothing can be said.
        (self.pool.take().filter(|p| p.workers_at_end > 0), observed, last)
    }
}

/// Sleeps, but not beyond the end of the run. Is the run still on?
fn sleep(time: Duration, over: &Receiver<()>) -> bool {
    over.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
}

/// A look at every whole second of the run.
fn look_on(
    found: &FoundServer,
    url: Option<Endpoint>,
    clock: RunClock,
    over: &Receiver<()>,
    tell: &Sender<News>,
) -> Option<ServerTimeline> {
    let workers = found.workers();
    let pool = Pool {
        master: found.master,
        workers_at_start: as_count(&workers),
        workers_at_end: 0,
        shares_cpus: shares_cpus(found.master, &workers),
    };
    tell.send(News::Found { name: found.name.clone(), pool, helpers: found.helpers }).ok()?;
    let (listeners, status) = (found.listeners.clone(), found.status.clone());
    let subject = SampledServer {
        master: found.master,
        helpers: found.helpers,
        listeners,
        status,
        url,
        walks: ConnectionTables::default(),
    };
    let mut sampler = Sampler::new(&subject, Detail::Timeline);
    let seconds = |us: u64| us as f64 / 1e6;
    // From here on differences count.
    sampler.sample(seconds(clock.now_us()), false);
    loop {
        let now = clock.now_us();
        let on = sleep(Duration::from_micros(1_000_000 - now % 1_000_000), over);
        let look = sampler.sample((seconds(clock.now_us()) * 1e3).round() / 1e3, false);
        let alive = sampler.is_alive();
        // The last look covers what is left of a second; a moment is not worth one.
        if (look.span_s > 0.2 || !on) && tell.send(News::Look(Box::new(look))).is_err() {
            return None;
        }
        if !on || !alive {
            break;
        }
    }
    Some(ServerTimeline {
        name: String::new(),
        master: found.master,
        workers: sampler.workers(),
        looks: Timeline::default(),
        unread: sampler.unread(),
        cost_cores: (sampler.cost_cores() * 1e5).round() / 1e5,
    })
}

/// The same of a server of another machine. What it sees is of the time between two answers; a look that does not come is the end of
/// looking, and said.
fn look_from_afar(mut afar: Afar, clock: RunClock, over: &Receiver<()>, tell: &Sender<News>) -> Option<ServerTimeline> {
    let seconds = || (clock.now_us() as f64 / 1e3).round() / 1e3;
    let mut seen = match afar() {
        Ok(first) => first,
        Err(why) => return Some(ServerTimeline { unread: vec![why], ..ServerTimeline::default() }),
    };
    let mut trouble = None;
    loop {
        let on = sleep(Duration::from_micros(1_000_000 - clock.now_us() % 1_000_000), over);
        match afar() {
            Ok(next) => seen = next,
            Err(why) => {
                trouble = Some(format!("anything after {:.0} s: {why}", seconds()));
                break;
            }
        }
        let look = Sample { t_s: seconds(), ..seen.look.clone() };
        if (look.span_s > 0.2 || !on) && tell.send(News::Look(Box::new(look))).is_err() {
            return None;
        }
        if !on {
            break;
        }
    }
    Some(ServerTimeline {
        name: seen.server,
        master: seen.master,
        workers: seen.workers,
        looks: Timeline::default(),
        unread: seen.unread.into_iter().chain(trouble).collect(),
        cost_cores: (seen.cost_cores * 1e5).round() / 1e5,
    })
}

/// May the server run where we run?
fn shares_cpus(master: i32, workers: &[i32]) -> bool {
    let own = process::affinity(0);
    let theirs: Vec<usize> = workers.iter().flat_map(|pid| process::affinity(*pid)).collect();
    let theirs = if theirs.is_empty() { process::affinity(master) } else { theirs };
    own.is_empty() || theirs.is_empty() || theirs.iter().any(|c| own.contains(c))
}

/// A server without children is its own worker.
fn as_count(workers: &[i32]) -> u32 {
    (workers.len() as u32).max(1)
}
