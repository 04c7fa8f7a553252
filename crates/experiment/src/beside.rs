//! Looks at the server beside a run, on a thread of its own and on the run's clock.
//!
//! A server that the user named (`--server`) is looked at with its status page. One that was only found by its listening
//! socket is looked at from outside: a question to its status page would be a request that nobody asked for, and would
//! stand in the counts of the server.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lastdrop_load::RunClock;
use lastdrop_model::run::Pool;
use lastdrop_model::{Look, Observed, Plan};
use lastdrop_probe::observer::{Detail, Observer, Subject};
use lastdrop_probe::process;
use lastdrop_server::{Found, find_listening_at};

/// Runs shorter than this are too short for a pool to grow in, and for a look at every process.
const SHORTEST: Duration = Duration::from_secs(3);
/// The first requests shall not share the processor with the search for the server.
const SETTLE: Duration = Duration::from_millis(50);

enum News {
    Found { name: String, pool: Pool },
    Look(Box<Look>),
}

/// Looks beside a run. Dropped or finished, its thread ends.
pub struct Beside {
    news: Receiver<News>,
    /// Let go of when the run is over.
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<Option<Observed>>>,
    pub pool: Option<Pool>,
    name: String,
    looks: Vec<Look>,
}

impl Beside {
    /// Begins to look for the server and then at it. `named` is the server that the user named.
    pub fn start(plan: &Plan, clock: RunClock, named: Option<Found>, observe: bool) -> Beside {
        let (tell, news) = channel();
        let (over, is_over) = channel();
        let measured = plan.phases.iter().find(|p| p.measured);
        let long_enough = measured.is_some_and(|p| p.duration.is_none_or(|d| d >= SHORTEST));
        let wanted = observe && (named.is_some() || long_enough && plan.network.unix_socket.is_none());
        let work = {
            let url = plan.url.clone();
            move || {
                sleep(SETTLE, &is_over);
                let found = named.or_else(|| {
                    let address = lastdrop_load::resolve(&url).ok().filter(is_local)?;
                    find_listening_at(&address)
                })?;
                look_on(&found, clock, &is_over, &tell)
            }
        };
        let thread = wanted.then(|| thread::Builder::new().name("probe".into()).spawn(work).ok()).flatten();
        Beside { news, over: Some(over), thread, pool: None, name: String::new(), looks: Vec::new() }
    }

    /// What has been seen since the last call.
    pub fn news(&mut self) -> &[Look] {
        let before = self.looks.len();
        while let Ok(news) = self.news.try_recv() {
            match news {
                News::Found { name, pool } => (self.name, self.pool) = (name, Some(pool)),
                News::Look(look) => self.looks.push(*look),
            }
        }
        &self.looks[before..]
    }

    /// All that has been seen.
    pub fn seen(&self) -> &[Look] {
        &self.looks
    }

    /// Workers at this moment.
    pub fn count_workers(&self) -> u32 {
        self.pool.as_ref().map_or(0, |p| count_workers(p.master))
    }

    /// The run is over: a last look, and all that was seen.
    pub fn finish(mut self) -> (Option<Pool>, Option<Observed>) {
        self.over = None;
        let observed = self.thread.take().and_then(|t| t.join().ok()).flatten();
        self.news();
        let looks = std::mem::take(&mut self.looks);
        let observed = observed.map(|o| Observed { looks, name: std::mem::take(&mut self.name), ..o });
        // Killed or interrupted before its measured phase ended: nothing can be said.
        (self.pool.take().filter(|p| p.workers_at_end > 0), observed)
    }
}

/// Sleeps, but not beyond the end of the run. Is the run still on?
fn sleep(time: Duration, over: &Receiver<()>) -> bool {
    over.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
}

/// A look at every whole second of the run.
fn look_on(found: &Found, clock: RunClock, over: &Receiver<()>, tell: &Sender<News>) -> Option<Observed> {
    let workers = process::child_pids(found.master);
    let pool = Pool {
        master: found.master,
        workers_at_start: as_count(&workers),
        workers_at_end: 0,
        shares_cpus: shares_cpus(found.master, &workers),
    };
    tell.send(News::Found { name: found.name.clone(), pool }).ok()?;
    let subject = Subject { master: found.master, listeners: found.listeners.clone(), status: found.status.clone() };
    let mut observer = Observer::new(&subject, Detail::Timeline);
    let seconds = |us: u64| us as f64 / 1e6;
    // From here on differences count.
    observer.look(seconds(clock.now_us()), false);
    loop {
        let now = clock.now_us();
        let on = sleep(Duration::from_micros(1_000_000 - now % 1_000_000), over);
        let look = observer.look((seconds(clock.now_us()) * 1e3).round() / 1e3, false);
        let alive = observer.is_alive();
        // The last look covers what is left of a second; a moment is not worth one.
        if (look.span_s > 0.2 || !on) && tell.send(News::Look(Box::new(look))).is_err() {
            return None;
        }
        if !on || !alive {
            break;
        }
    }
    Some(Observed {
        name: String::new(),
        master: found.master,
        workers: observer.workers(),
        looks: Vec::new(),
        unread: observer.unread(),
        cost_cores: (observer.cost_cores() * 1e5).round() / 1e5,
    })
}

/// May the server run where we run?
fn shares_cpus(master: i32, workers: &[i32]) -> bool {
    let own = process::affinity(0);
    let theirs: Vec<usize> = workers.iter().flat_map(|pid| process::affinity(*pid)).collect();
    let theirs = if theirs.is_empty() { process::affinity(master) } else { theirs };
    own.is_empty() || theirs.is_empty() || theirs.iter().any(|c| own.contains(c))
}

fn count_workers(master: i32) -> u32 {
    as_count(&process::child_pids(master))
}

/// A server without children is its own worker.
fn as_count(workers: &[i32]) -> u32 {
    (workers.len() as u32).max(1)
}

/// Is the server on this machine? A UDP socket "connected" to it shows which address we would send from, without
/// sending anything; to ourselves it is the server's own.
pub fn is_local(address: &SocketAddr) -> bool {
    if address.ip().is_loopback() {
        return true;
    }
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    UdpSocket::bind(any)
        .and_then(|s| s.connect(address).and_then(|()| s.local_addr()))
        .is_ok_and(|own| own.ip() == address.ip())
}
