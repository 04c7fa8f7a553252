//! Numbers that come and go between two looks, read more than ten times a second on a thread of their own: the listen
//! queues, the sockets of the namespace, the workers that run. A look gets the largest and the mean.
//!
//! The times are uneven, so that nothing that happens at a steady pace falls between them again and again; chance has a
//! seed. What it costs decides what is read. One listener comes from the kernel in about 3 µs, whatever is connected to
//! it; listeners that share an address come all together, for which the kernel walks a table (20 to 50 µs). The counts
//! of sockstat take 10 µs. A worker's state takes 6 µs; of a large pool each reading sees a part, the next one the next
//! part. Not read so often: connections by state (the kernel walks a larger table) and status pages (each question is a
//! request).

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

/// A pause between two readings is between these: 12.5 readings a second.
const PAUSES_US: std::ops::Range<u64> = 40_000..120_000;
/// Up to so many workers are all looked at in each reading, of more a few.
const ALL_WORKERS: usize = 12;
const SOME_WORKERS: usize = 2;
/// The same pauses in every run, whoever looks.
const SEED: u64 = 12;

/// Readings of one number.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Tally {
    pub count: u32,
    pub sum: f64,
    pub max: f64,
}

impl Tally {
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.max = self.max.max(value);
    }

    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| (self.sum / f64::from(self.count) * 100.0).round() / 100.0)
    }
}

/// All readings since they were taken last.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    pub count: u32,
    /// Listen queues by the inode of the listener.
    pub listen: HashMap<u64, Tally>,
    /// Sockets by what [`namespace::socket_counts`] calls them.
    pub sockets: BTreeMap<String, Tally>,
    /// Workers that run or wait for a disk, scaled to the pool where a reading sees a part of it.
    pub busy: Tally,
    /// The largest of the readings that saw every worker.
    pub busy_max: Option<u64>,
}

/// What is to be read, as of the last look.
#[derive(Debug, Default, Clone)]
pub(crate) struct Wanted {
    pub workers: Vec<i32>,
    /// Addresses of listeners that are alone there.
    pub listeners: Vec<SocketAddr>,
    /// Some are not: all of the namespace are read.
    pub tcp: bool,
    /// It listens on unix sockets, too.
    pub unix: bool,
}

#[derive(Debug, Default)]
struct Shared {
    wanted: Wanted,
    readings: Readings,
    /// Processor time that reading has taken so far.
    cost: Duration,
}

/// The thread that reads. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Gauges {
    shared: Arc<Mutex<Shared>>,
    _over: Sender<()>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is rarely at work and then only for microseconds goes before those that fill the processors: a full queue is there
/// for moments, and just then the machine is busy. Only root may.
fn go_first() {
    // SAFETY: a plain call, about this thread alone (0).
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) };
}

impl Gauges {
    /// Begins to read in the namespace of a process. What is to be read is to be said then.
    ///
    /// # Errors
    /// When the namespace cannot be entered (it wants root), or there is no thread to be had.
    pub fn start(master: i32, namespace: &Namespace) -> io::Result<Gauges> {
        let sockets = namespace.sock_diag()?;
        let shared = Arc::<Mutex<Shared>>::default();
        let (over, is_over) = channel::<()>();
        let counts = namespace::open_socket_counts(master).ok();
        let mut reader = Reader { sockets, counts, files: HashMap::new(), next: 0 };
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

    pub fn want(&self, wanted: Wanted) {
        lock(&self.shared).wanted = wanted;
    }

    /// The readings since the last call.
    pub fn take(&self) -> Readings {
        std::mem::take(&mut lock(&self.shared).readings)
    }

    /// Processor time that reading has taken so far.
    pub fn cost(&self) -> Duration {
        lock(&self.shared).cost
    }
}

/// One reading.
#[derive(Debug, Default)]
struct Seen {
    listen: Vec<(u64, u32)>,
    sockets: BTreeMap<String, u64>,
    /// Workers that run, of how many that were seen, of how many that there are.
    busy: (usize, usize, usize),
}

impl Seen {
    fn add_to(self, readings: &mut Readings) {
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

struct Reader {
    sockets: SockDiag,
    /// Opening a file of /proc costs more than reading it again.
    counts: Option<File>,
    files: HashMap<i32, File>,
    /// The worker that the next reading begins with.
    next: usize,
}

impl Reader {
    fn read(&mut self, wanted: &Wanted) -> Seen {
        let mut seen = Seen::default();
        // What fails here fails in the next look, too, and is told there.
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
                // It has ended; who has its id now is another one.
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
        let mut readings = Readings::default();
        Seen { busy: (4, 16, 64), ..Seen::default() }.add_to(&mut readings);
        Seen { busy: (8, 16, 64), listen: vec![(7, 3)], ..Seen::default() }.add_to(&mut readings);
        Seen { listen: vec![(7, 5)], ..Seen::default() }.add_to(&mut readings);
        assert_eq!((readings.busy.mean(), readings.busy_max, readings.count), (Some(24.0), None, 3));
        let queue = readings.listen[&7];
        assert_eq!((queue.max, queue.mean()), (5.0, Some(4.0)));
        Seen { busy: (2, 3, 3), ..Seen::default() }.add_to(&mut readings);
        assert_eq!(readings.busy_max, Some(2));
    }

    #[test]
    fn a_queue_that_is_gone_at_the_next_look_was_read() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("its address");
        let own = std::process::id() as i32;
        let namespace = Namespace::of(own).expect("ours");
        let gauges = Gauges::start(own, &namespace).expect("starts");
        gauges.want(Wanted { workers: vec![own], listeners: vec![address], ..Wanted::default() });
        let inode = namespace.look().expect("answers").tcp.iter().find(|l| l.address == address).expect("ours").inode;
        let mut readings = Readings::default();
        let mut until = |done: &dyn Fn(&Readings) -> bool| {
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
