//! Samples the server during a run, on a thread of its own and on the run's clock.
//!
//! A server that the user named (`--server`) is sampled with its status page. A server found only by its listening
//! socket is sampled from outside: reading its status page would be a request that the user did not ask for, and would
//! show in the server's counts. A server on another machine is sampled there.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lastdrop_load::RunClock;
use lastdrop_model::run::Pool;
use lastdrop_model::{Plan, Sample, ServerTimeline, Timeline};
use lastdrop_probe::listeners::{Endpoint, is_local};
use lastdrop_probe::namespace::ConnectionTables;
use lastdrop_probe::process::{self, Helpers};
use lastdrop_probe::sampler::{Detail, Sampler};
use lastdrop_server::{FoundServer, find_listening_at};

use crate::lab::others::LoadTarget;
use crate::observe::watch::ServerWatch;

/// Shorter runs are too short for a pool to grow, and for a sample of every process.
const SHORTEST: Duration = Duration::from_secs(3);
/// Delay before searching for the server, so that the search does not compete with the first requests for a processor.
const SETTLE: Duration = Duration::from_millis(50);

/// A server that is sampled during runs.
#[derive(Clone)]
pub enum SampledServer {
    /// Its processes are read by this one.
    Found(FoundServer),
    /// Its machine samples it.
    Watched(Arc<Mutex<dyn ServerWatch>>),
}

impl fmt::Debug for SampledServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SampledServer::Found(found) => f.debug_tuple("Found").field(&found.name).finish(),
            SampledServer::Watched(_) => f.write_str("Watched"),
        }
    }
}

impl SampledServer {
    /// A server whose machine samples it.
    #[must_use]
    pub fn watched(watch: impl ServerWatch + 'static) -> SampledServer {
        SampledServer::Watched(Arc::new(Mutex::new(watch)))
    }
}

enum SamplerMessage {
    Found { name: String, pool: Pool, helpers: Helpers },
    Sample(Box<Sample>),
}

/// Samples the server during a run. Its thread ends when this is dropped or finished.
pub struct RunSampler {
    news: Receiver<SamplerMessage>,
    /// Dropped when the run is over.
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<Option<ServerTimeline>>>,
    pub pool: Option<Pool>,
    helpers: Helpers,
    name: String,
    /// Samples that the caller has not received yet.
    fresh: Vec<Sample>,
}

impl RunSampler {
    /// Starts to look for the server and then to sample it. `named` is the server that the user named.
    pub fn start(plan: &Plan, clock: RunClock, named: Option<SampledServer>, observe: bool) -> RunSampler {
        let (tell, news) = channel();
        let (over, is_over) = channel();
        let measured = plan.phases.iter().find(|p| p.measured);
        let long_enough = measured.is_some_and(|p| p.duration.is_none_or(|d| d >= SHORTEST));
        let asked = plan.objectives.iter().any(|o| o.metric.is_of_server());
        let wanted = observe && (named.is_some() || long_enough || asked);
        let work = {
            let goal = LoadTarget::of(plan);
            move || {
                sleep(SETTLE, &is_over);
                let named = match named {
                    Some(SampledServer::Watched(watch)) => return sample_watched(&watch, clock, &is_over, &tell),
                    Some(SampledServer::Found(found)) => Some(found),
                    None => None,
                };
                let endpoint = goal.endpoint();
                let here = endpoint.as_ref().filter(|e| !matches!(e, Endpoint::Tcp(address) if !is_local(address)));
                let found = named.or_else(|| find_listening_at(here?))?;
                sample_local(&found, endpoint, clock, &is_over, &tell)
            }
        };
        let thread = wanted.then(|| thread::Builder::new().name("probe".into()).spawn(work).ok()).flatten();
        RunSampler { news, over: Some(over), thread, pool: None, helpers: &[], name: String::new(), fresh: Vec::new() }
    }

    /// Returns the samples since the last call.
    pub fn news(&mut self) -> Vec<Sample> {
        while let Ok(news) = self.news.try_recv() {
            match news {
                SamplerMessage::Found { name, pool, helpers } => {
                    (self.name, self.pool, self.helpers) = (name, Some(pool), helpers);
                }
                SamplerMessage::Sample(look) => self.fresh.push(*look),
            }
        }
        std::mem::take(&mut self.fresh)
    }

    /// Returns the number of workers at this moment.
    pub fn count_workers(&self) -> u32 {
        self.pool.as_ref().map_or(0, |p| as_count(&process::worker_pids(p.master, self.helpers)))
    }

    /// Ends sampling. Returns the pool, the server without its samples, and the samples since the last call of
    /// [`RunSampler::news`].
    pub fn finish(mut self) -> (Option<Pool>, Option<ServerTimeline>, Vec<Sample>) {
        self.over = None;
        let observed = self.thread.take().and_then(|t| t.join().ok()).flatten();
        let last = self.news();
        let name = std::mem::take(&mut self.name);
        let observed = observed.map(|o| if o.name.is_empty() { ServerTimeline { name, ..o } } else { o });
        // Killed or interrupted before its measured phase ended: no statement about the pool is possible.
        (self.pool.take().filter(|p| p.workers_at_end > 0), observed, last)
    }
}

/// Sleeps, but not beyond the end of the run. Returns true while the run goes on.
fn sleep(time: Duration, over: &Receiver<()>) -> bool {
    over.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
}

/// Samples the server at every whole second of the run.
fn sample_local(
    found: &FoundServer,
    url: Option<Endpoint>,
    clock: RunClock,
    over: &Receiver<()>,
    tell: &Sender<SamplerMessage>,
) -> Option<ServerTimeline> {
    let workers = found.workers();
    let pool = Pool {
        master: found.master,
        workers_at_start: as_count(&workers),
        workers_at_end: 0,
        shares_cpus: shares_cpus(found.master, &workers),
    };
    tell.send(SamplerMessage::Found { name: found.name.clone(), pool, helpers: found.helpers }).ok()?;
    let subject = found.to_sample(url, ConnectionTables::default());
    let mut sampler = Sampler::new(&subject, Detail::Timeline);
    let seconds = |us: u64| us as f64 / 1e6;
    // The first sample only sets the base for differences.
    sampler.sample(seconds(clock.now_us()), false);
    loop {
        let now = clock.now_us();
        let on = sleep(Duration::from_micros(1_000_000 - now % 1_000_000), over);
        let look = sampler.sample((seconds(clock.now_us()) * 1e3).round() / 1e3, false);
        let alive = sampler.is_alive();
        // The last sample covers the rest of a second; very short spans are left out.
        if (look.span_s > 0.2 || !on) && tell.send(SamplerMessage::Sample(Box::new(look))).is_err() {
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
        samples: Timeline::default(),
        unread: sampler.unread(),
        cost_cores: (sampler.cost_cores() * 1e5).round() / 1e5,
    })
}

/// Samples a server of another machine. Each sample covers the time between two answers. If a sample does not come,
/// sampling ends and this is reported.
fn sample_watched(
    watch: &Mutex<dyn ServerWatch>,
    clock: RunClock,
    over: &Receiver<()>,
    tell: &Sender<SamplerMessage>,
) -> Option<ServerTimeline> {
    let seconds = || (clock.now_us() as f64 / 1e3).round() / 1e3;
    let sample = || {
        let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch.sample(false).map(|(document, _)| document).map_err(|e| e.to_string())
    };
    let mut seen = match sample() {
        Ok(first) => first,
        Err(why) => return Some(ServerTimeline { unread: vec![why], ..ServerTimeline::default() }),
    };
    let mut trouble = None;
    loop {
        let on = sleep(Duration::from_micros(1_000_000 - clock.now_us() % 1_000_000), over);
        match sample() {
            Ok(next) => seen = next,
            Err(why) => {
                trouble = Some(format!("anything after {:.0} s: {why}", seconds()));
                break;
            }
        }
        let look = Sample { t_s: seconds(), ..seen.look.clone() };
        if (look.span_s > 0.2 || !on) && tell.send(SamplerMessage::Sample(Box::new(look))).is_err() {
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
        samples: Timeline::default(),
        unread: seen.unread.into_iter().chain(trouble).collect(),
        cost_cores: (seen.cost_cores * 1e5).round() / 1e5,
    })
}

/// Returns true if the server may run on processors that we may use.
fn shares_cpus(master: i32, workers: &[i32]) -> bool {
    let own = process::affinity(0);
    let theirs: Vec<usize> = workers.iter().flat_map(|pid| process::affinity(*pid)).collect();
    let theirs = if theirs.is_empty() { process::affinity(master) } else { theirs };
    own.is_empty() || theirs.is_empty() || theirs.iter().any(|c| own.contains(c))
}

/// Returns the number of workers; a server without children is its own worker.
fn as_count(workers: &[i32]) -> u32 {
    (workers.len() as u32).max(1)
}
