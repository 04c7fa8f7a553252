//! Reads numbers that change between two samples, more than ten times per second on a thread of their own: listen
//! queues, sockets of the namespace, running workers. A sample then contains the maximum and the mean.
//!
//! The times are uneven, so that periodic events are not missed again and again; the random numbers have a fixed seed.
//! The cost decides what is read. The kernel returns one listener in about 3 µs, however many connections there are.
//! Listeners that share an address come only all together, for which the kernel walks a table (20 to 50 µs). The counts
//! of sockstat take 10 µs. A worker's state takes 6 µs; of a large pool, each reading covers a part in turn. Two things
//! are not read this often: connections by state, because the kernel walks a larger table, and status pages, because
//! each is a request.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::namespace::{self, Namespace};
use crate::sock_diag::{SockDiag, StateFlags};
use crate::stat::Stat;

/// Range of the pause between two readings: 12.5 readings per second on average.
const PAUSES_US: std::ops::Range<u64> = 40_000..120_000;
/// Up to this many workers, each reading covers all of them; of a larger pool it covers `SOME_WORKERS`.
const ALL_WORKERS: usize = 12;
const SOME_WORKERS: usize = 2;
/// Makes the pauses the same in every run.
const SEED: u64 = 12;

/// Count, sum and maximum of the readings of one number.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ValueStats {
    pub count: u32,
    pub sum: f64,
    pub max: f64,
}

impl ValueStats {
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.max = self.max.max(value);
    }

    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| (self.sum / f64::from(self.count) * 100.0).round() / 100.0)
    }
}

/// All readings since the last `take`.
#[derive(Debug, Default)]
pub(crate) struct GaugeReadings {
    pub count: u32,
    /// Listen queues by the inode of the listener.
    pub listen: HashMap<u64, ValueStats>,
    /// Sockets by the names of [`namespace::socket_counts`].
    pub sockets: BTreeMap<String, ValueStats>,
    /// Workers that run or wait for a disk, scaled to the pool if a reading covers only a part of it.
    pub busy: ValueStats,
    /// Maximum of the readings that covered every worker.
    pub busy_max: Option<u64>,
}

/// What to read, as of the last sample.
#[derive(Debug, Default, Clone)]
pub(crate) struct GaugeTargets {
    pub workers: Vec<i32>,
    /// Listeners that do not share their address.
    pub listeners: Vec<SocketAddr>,
    /// Some listeners share an address, so all of the namespace are read.
    pub tcp: bool,
    /// The server also listens on unix sockets.
    pub unix: bool,
}

#[derive(Debug, Default)]
struct GaugeState {
    wanted: GaugeTargets,
    readings: GaugeReadings,
    /// Processor time that reading has used so far.
    cost: Duration,
}

/// The reading thread. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Gauges {
    shared: Arc<Mutex<GaugeState>>,
    _over: Sender<()>,
}

fn lock(shared: &Mutex<GaugeState>) -> MutexGuard<'_, GaugeState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Raises this thread's priority, if we are root. It rarely runs, and then for microseconds. A queue is full only for
/// moments, and just then the processors are busy.
fn go_first() {
    // SAFETY: a plain call, about this thread alone (0).
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) };
}

impl Gauges {
    /// Starts to read in the namespace of a process. `want` tells it what to read.
    ///
    /// # Errors
    /// When the namespace cannot be entered (it needs root), or no thread can be started.
    pub fn start(master: i32, namespace: &Namespace) -> io::Result<Gauges> {
        let sockets = namespace.sock_diag()?;
        let shared = Arc::<Mutex<GaugeState>>::default();
        let (over, is_over) = channel::<()>();
        let counts = namespace::open_socket_counts(master).ok();
        let mut reader = GaugeReader { sockets, counts, files: HashMap::new(), next: 0 };
        let theirs = Arc::clone(&shared);
        let work = move || {
            go_first();
            let mut chance = Xoshiro256PlusPlus::seed_from_u64(SEED);
            let span = PAUSES_US.end - PAUSES_US.start;
            loop {
                let pause = PAUSES_US.start + chance.next_u64() % span;
                if is_over.recv_timeout(Duration::from_micros(pause)) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                let wanted = lock(&theirs).wanted.clone();
                let seen = reader.read(&wanted);
                let mut shared = lock(&theirs);
                seen.add_to(&mut shared.readings);
                shared.cost = crate::host::thread_cpu();
            }
        };
        thread::Builder::new().name("gauges".into()).spawn(work)?;
        Ok(Gauges { shared, _over: over })
    }

    pub fn want(&self, wanted: GaugeTargets) {
        lock(&self.shared).wanted = wanted;
    }

    /// Returns the readings since the last call.
    pub fn take(&self) -> GaugeReadings {
        std::mem::take(&mut lock(&self.shared).readings)
    }

    /// Returns the processor time that reading has used so far.
    pub fn cost(&self) -> Duration {
        lock(&self.shared).cost
    }
}

/// One reading.
#[derive(Debug, Default)]
struct SingleReading {
    listen: Vec<(u64, u32)>,
    sockets: BTreeMap<String, u64>,
    /// (running workers, sampled workers, all workers).
    busy: (usize, usize, usize),
}

impl SingleReading {
    fn add_to(self, readings: &mut GaugeReadings) {
        readings.count += 1;
        for (inode, queue) in self.listen {
            readings.listen.entry(inode).or_default().add(f64::from(queue));
        }
        for (name, n) in self.sockets {
            readings.sockets.entry(name).or_default().add(n as f64);
        }
        let (busy, seen, workers) = self.busy;
        if seen > 0 {
            readings.busy.add(busy as f64 * workers as f64 / seen as f64);
        }
        if seen > 0 && seen == workers {
            readings.busy_max = readings.busy_max.max(Some(busy as u64));
        }
    }
}

struct GaugeReader {
    sockets: SockDiag,
    /// Kept open: opening a file of /proc costs more than reading it again.
    counts: Option<File>,
    files: HashMap<i32, File>,
    /// Index of the worker at which the next reading starts.
    next: usize,
}

impl GaugeReader {
    fn read(&mut self, wanted: &GaugeTargets) -> SingleReading {
        let mut seen = SingleReading::default();
        // What fails here also fails in the next sample, which reports it.
        for address in &wanted.listeners {
            let one = self.sockets.listener(address).ok().flatten();
            seen.listen.extend(one.map(|s| (s.inode, s.queues.0)));
        }
        if wanted.tcp {
            let _ = self.sockets.tcp(StateFlags::LISTEN, 0, |s| seen.listen.push((s.inode, s.queues.0)));
        }
        if wanted.unix {
            let _ = self.sockets.unix_listeners(|s| seen.listen.push((s.inode, s.queues.0)));
        }
        seen.sockets = self.counts.as_ref().and_then(|f| namespace::read_socket_counts(f).ok()).unwrap_or_default();
        seen.busy = self.busy(&wanted.workers);
        seen
    }

    fn busy(&mut self, workers: &[i32]) -> (usize, usize, usize) {
        if self.files.len() > 2 * workers.len() {
            self.files.retain(|pid, _| workers.contains(pid));
        }
        let mut found = (0, 0, workers.len());
        let some = if workers.len() <= ALL_WORKERS { workers.len() } else { SOME_WORKERS };
        for i in 0..some {
            let pid = workers[(self.next + i) % workers.len()];
            let file = match self.files.entry(pid) {
                Entry::Occupied(file) => file,
                Entry::Vacant(place) => match Stat::open(pid) {
                    Some(file) => place.insert_entry(file),
                    None => continue,
                },
            };
            match Stat::state(file.get()) {
                Some(state) => {
                    found.0 += usize::from(state == 'R' || state == 'D');
                    found.1 += 1;
                }
                // The process has ended; its pid may now belong to another one.
                None => _ = file.remove(),
            }
        }
        self.next = (self.next + some) % workers.len().max(1);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_of_a_part_is_scaled_and_gives_no_largest() {
        let mut readings = GaugeReadings::default();
        SingleReading { busy: (4, 16, 64), ..SingleReading::default() }.add_to(&mut readings);
        SingleReading { busy: (8, 16, 64), listen: vec![(7, 3)], ..SingleReading::default() }.add_to(&mut readings);
        SingleReading { listen: vec![(7, 5)], ..SingleReading::default() }.add_to(&mut readings);
        assert_eq!((readings.busy.mean(), readings.busy_max, readings.count), (Some(24.0), None, 3));
        let queue = readings.listen[&7];
        assert_eq!((queue.max, queue.mean()), (5.0, Some(4.0)));
        SingleReading { busy: (2, 3, 3), ..SingleReading::default() }.add_to(&mut readings);
        assert_eq!(readings.busy_max, Some(2));
    }

    #[test]
    fn a_queue_that_is_gone_at_the_next_look_was_read() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("its address");
        let own = std::process::id() as i32;
        let namespace = Namespace::of(own).expect("ours");
        let gauges = Gauges::start(own, &namespace).expect("starts");
        gauges.want(GaugeTargets { workers: vec![own], listeners: vec![address], ..GaugeTargets::default() });
        let inode = namespace.look().expect("answers").tcp.iter().find(|l| l.address == address).expect("ours").inode;
        let mut readings = GaugeReadings::default();
        let mut until = |done: &dyn Fn(&GaugeReadings) -> bool| {
            let deadline = std::time::Instant::now() + Duration::from_secs(20);
            while !done(&readings) {
                assert!(std::time::Instant::now() < deadline, "{readings:?}");
                thread::sleep(Duration::from_millis(20));
                let more = gauges.take();
                readings.count += more.count;
                readings.listen.extend(more.listen.into_iter().filter(|(_, t)| t.max > 0.0));
                readings.busy = more.busy;
            }
        };
        let clients: Vec<_> = (0..3).map(|_| std::net::TcpStream::connect(address).expect("a place")).collect();
        until(&|r| r.listen.get(&inode).is_some_and(|t| t.max == 3.0));
        until(&|r| r.count >= 12);
        drop(clients);
        assert!(gauges.cost() > Duration::ZERO);
    }
}
