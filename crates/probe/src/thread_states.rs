//! Samples what the threads of some servers are doing, at uneven times on a thread of its own, and sums the samples up.
//!
//! One sample of a thread costs three small files of /proc, 20 to 40 µs. If a server has many threads, each reading
//! samples some of them in turn and scales the result to all.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lastdrop_model::examination::Runnable;
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::host::thread_cpu;
use crate::process::{Helpers, name, worker_pids};
use crate::stat::{self, Stat};
use crate::thread_waits::{Sockets, waits_for};

/// Range of the pause between two readings. A pause is also at least `PAUSES` times the processor time of a reading, up
/// to `LONGEST_PAUSE`. With more threads, fewer readings give the same precision.
const PAUSES_US: std::ops::Range<u64> = 100_000..200_000;
const PAUSES: u32 = 250;
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Most threads of one server that one reading samples.
const MOST_THREADS: usize = 24;
/// Most threads of one process that are listed at all.
const MOST_OF_A_PROCESS: usize = 256;
/// Most threads whose children are listed in one reading, and most names of programs that are kept.
const MOST_PARENTS: usize = 64;
const MOST_PROGRAMS: usize = 20;
/// Children are listed again only this often, because that reads all of /proc.
const CHILDREN_EVERY: Duration = Duration::from_millis(250);
/// A thread is observed at least this long before its share of a processor counts.
const LONG_ENOUGH: Duration = Duration::from_secs(1);
/// Most threads of a server that are watched at many moments, and how often they and the workers are listed again.
const MOST_WATCHED: usize = 512;
const THREADS_EVERY: Duration = Duration::from_millis(100);
const WORKERS_EVERY: Duration = Duration::from_secs(1);
/// State of a thread that is on a processor or waits for one.
const RUNNING: &str = "running";
/// State of a thread whose wait could not be read.
const UNSEEN: &str = "unseen";

/// Time averages of the states of a server's threads since the last call of `begin`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ThreadStates {
    pub readings: u64,
    /// Worker threads, on average.
    pub threads: f64,
    /// Average number of threads by state; `model::examination` defines the names of the states.
    pub waits: BTreeMap<String, f64>,
    /// Worker processes that were started meanwhile.
    pub born: u64,
    pub workers_first: u64,
    pub workers_last: u64,
    pub workers_most: u64,
    /// Processors used by the busiest thread and by the busiest process.
    pub hottest_thread_cores: f64,
    pub hottest_process_cores: f64,
    /// The thread that was running, or waiting for a processor, for the largest share of the time.
    pub most_runnable: Option<Runnable>,
    /// Samples of threads whose wait could not be read.
    pub unseen: u64,
    /// Average number of running children of another program, by name; and the processors that ended children used.
    pub programs: BTreeMap<String, f64>,
    pub ended_children_cores: f64,
}

/// A server: its master process, and which of its children are not workers.
#[derive(Debug, Clone, Copy)]
pub struct ServerProcesses {
    pub master: i32,
    pub helpers: Helpers,
}

#[derive(Debug, Default)]
struct SamplingState {
    counted: Vec<ThreadStates>,
    cost: Duration,
    /// The sums start again at the next reading.
    anew: bool,
    /// Sampling is paused.
    rests: bool,
}

/// The sampling thread. Dropping this ends it.
#[derive(Debug)]
pub struct ThreadStateSampler {
    shared: Arc<Mutex<SamplingState>>,
    /// A message ends the thread's pause; dropping the sender ends the thread.
    awake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

fn lock(shared: &Mutex<SamplingState>) -> MutexGuard<'_, SamplingState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThreadStateSampler {
    #[must_use]
    pub fn start(subjects: Vec<ServerProcesses>) -> ThreadStateSampler {
        let shared = Arc::new(Mutex::new(SamplingState { anew: true, ..SamplingState::default() }));
        let (awake, wake) = channel::<()>();
        let theirs = Arc::clone(&shared);
        let work = move || {
            let mut chance = Xoshiro256PlusPlus::seed_from_u64(7);
            let span = PAUSES_US.end - PAUSES_US.start;
            let mut servers: Vec<ServerThreads> = subjects.into_iter().map(ServerThreads::new).collect();
            loop {
                let begun = thread_cpu();
                let (is_anew, rests) = {
                    let mut shared = lock(&theirs);
                    (std::mem::take(&mut shared.anew), shared.rests)
                };
                if is_anew {
                    servers.iter_mut().for_each(ServerThreads::begin);
                }
                if !rests {
                    servers.iter_mut().for_each(ServerThreads::read);
                    let counted = servers.iter().map(ServerThreads::counted).collect();
                    let mut shared = lock(&theirs);
                    if !shared.anew {
                        shared.counted = counted;
                    }
                }
                let now = thread_cpu();
                lock(&theirs).cost = now;
                let pause = Duration::from_micros(PAUSES_US.start + chance.next_u64() % span);
                let pause = pause.max((now.saturating_sub(begun) * PAUSES).min(LONGEST_PAUSE));
                if wake.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("census".into()).spawn(work).ok();
        ThreadStateSampler { shared, awake: Some(awake), thread }
    }

    /// Starts counting now.
    pub fn begin(&self) {
        let mut shared = lock(&self.shared);
        (shared.anew, shared.rests) = (true, false);
        shared.counted.clear();
        drop(shared);
        if let Some(awake) = &self.awake {
            // If the thread could not be started, there is nothing to count.
            let _ = awake.send(());
        }
    }

    /// Returns the counts since `begin`, one per server; empty before the first reading. Pauses sampling until the next
    /// `begin`.
    #[must_use]
    pub fn end(&self) -> Vec<ThreadStates> {
        let mut shared = lock(&self.shared);
        shared.rests = true;
        shared.counted.clone()
    }

    /// Returns the processor time that sampling has used so far.
    #[must_use]
    pub fn cost(&self) -> Duration {
        lock(&self.shared).cost
    }
}

impl Drop for ThreadStateSampler {
    fn drop(&mut self) {
        self.awake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Processor time of a thread or process at the first and at the last sample.
#[derive(Debug, Clone, Copy)]
struct CpuUse {
    first: (Instant, u64),
    last: (Instant, u64),
}

impl CpuUse {
    fn note(all: &mut HashMap<i32, CpuUse>, id: i32, ticks: u64) {
        let now = (Instant::now(), ticks);
        all.entry(id).or_insert(CpuUse { first: now, last: now }).last = now;
    }

    fn cores(&self) -> f64 {
        let time = self.last.0 - self.first.0;
        if time < LONG_ENOUGH {
            return 0.0;
        }
        self.last.1.saturating_sub(self.first.1) as f64 / stat::ticks_per_second() / time.as_secs_f64()
    }
}

/// Nanoseconds that a thread has run and has waited for a processor, at the first and at the last sample.
#[derive(Debug, Clone, Copy)]
struct SchedulerTimes {
    first: (Instant, (u64, u64)),
    last: (Instant, (u64, u64)),
}

impl SchedulerTimes {
    fn runnable(&self) -> Option<Runnable> {
        let time = self.last.0 - self.first.0;
        let share = |of: fn((u64, u64)) -> u64| {
            of(self.last.1).saturating_sub(of(self.first.1)) as f64 / 1e9 / time.as_secs_f64()
        };
        (time >= LONG_ENOUGH).then(|| Runnable { cores: share(|(ran, _)| ran), run_delay: share(|(_, waited)| waited) })
    }
}

#[derive(Debug)]
struct ServerThreads {
    subject: ServerProcesses,
    workers: Vec<i32>,
    listed: Option<(Instant, Option<i32>)>,
    sockets: Sockets,
    /// Index of the thread at which the next reading starts.
    next: usize,
    known: HashSet<i32>,
    readings: u64,
    threads: f64,
    waits: HashMap<String, f64>,
    unseen: u64,
    first: u64,
    most: u64,
    born: u64,
    of_threads: HashMap<i32, CpuUse>,
    of_processes: HashMap<i32, CpuUse>,
    scheduled: HashMap<i32, SchedulerTimes>,
    programs: HashMap<String, u64>,
    /// Time of children that each process has waited for.
    reaped: HashMap<i32, CpuUse>,
}

impl ServerThreads {
    fn new(subject: ServerProcesses) -> ServerThreads {
        ServerThreads {
            subject,
            workers: Vec::new(),
            listed: None,
            sockets: Sockets::default(),
            next: 0,
            known: HashSet::new(),
            readings: 0,
            threads: 0.0,
            waits: HashMap::new(),
            unseen: 0,
            first: 0,
            most: 0,
            born: 0,
            of_threads: HashMap::new(),
            of_processes: HashMap::new(),
            scheduled: HashMap::new(),
            programs: HashMap::new(),
            reaped: HashMap::new(),
        }
    }

    fn begin(&mut self) {
        *self = ServerThreads { next: self.next, ..ServerThreads::new(self.subject) };
    }

    /// Lists the workers. A server without children is its own worker.
    fn list(&mut self) {
        let newest = stat::newest_pid();
        let fresh = self.listed.is_some_and(|(at, then)| at.elapsed() < CHILDREN_EVERY || then == newest);
        let all_live = self.workers.iter().all(|pid| Stat::open(*pid).as_ref().and_then(Stat::state).is_some());
        if fresh && all_live {
            return;
        }
        let mut workers = worker_pids(self.subject.master, self.subject.helpers);
        if workers.is_empty() {
            workers.push(self.subject.master);
        }
        let is_first = self.listed.is_none();
        for pid in &workers {
            if self.known.insert(*pid) && !is_first {
                self.born += 1;
            }
        }
        if is_first {
            self.first = workers.len() as u64;
        }
        self.most = self.most.max(workers.len() as u64);
        self.workers = workers;
        self.listed = Some((Instant::now(), newest));
    }

    fn read(&mut self) {
        self.list();
        let threads = self.threads();
        for pid in self.workers.iter().take(MOST_THREADS) {
            if let Some(stat) = Stat::open(*pid).as_ref().and_then(Stat::read) {
                CpuUse::note(&mut self.of_processes, *pid, stat.ticks);
                CpuUse::note(&mut self.reaped, *pid, stat.reaped_ticks);
            }
        }
        self.find_programs(&threads);
        if threads.is_empty() {
            return;
        }
        self.readings += 1;
        self.threads += threads.len() as f64;
        let some = threads.len().min(MOST_THREADS);
        let weight = threads.len() as f64 / some as f64;
        self.sockets.begin(self.subject.master);
        for i in 0..some {
            let (pid, tid) = threads[(self.next + i) % threads.len()];
            let path = format!("/proc/{pid}/task/{tid}/stat");
            let Some(stat) = File::open(path).ok().as_ref().and_then(Stat::read) else { continue };
            CpuUse::note(&mut self.of_threads, tid, stat.ticks);
            if let Some(times) = stat::schedule_of_thread(pid, tid) {
                let now = (Instant::now(), times);
                self.scheduled.entry(tid).or_insert(SchedulerTimes { first: now, last: now }).last = now;
            }
            let state = state_of(pid, tid, stat.state, &mut self.sockets);
            self.unseen += u64::from(state == UNSEEN);
            *self.waits.entry(state).or_default() += weight;
        }
        self.next = (self.next + some) % threads.len();
    }

    /// The threads of all workers.
    fn threads(&self) -> Vec<(i32, i32)> {
        let mut threads: Vec<(i32, i32)> = Vec::new();
        for pid in &self.workers {
            let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            let tids = tasks.filter_map(|t| t.ok()?.file_name().to_str()?.parse::<i32>().ok());
            threads.extend(tids.take(MOST_OF_A_PROCESS).map(|tid| (*pid, tid)));
        }
        threads
    }

    /// Counts children that run another program than the process that has started them.
    fn find_programs(&mut self, threads: &[(i32, i32)]) {
        let master = self.subject.master;
        let own = exe(master);
        let mut found = Vec::new();
        for (pid, tid) in threads.iter().take(MOST_PARENTS).copied().chain([(master, master)]) {
            found.extend(children_of_thread(pid, tid).into_iter().filter(|child| exe(*child) != own));
        }
        found.sort_unstable();
        found.dedup();
        // A server whose only children are such programs has waited for no workers.
        if !found.is_empty()
            && self.workers.iter().all(|pid| found.contains(pid))
            && let Some(stat) = Stat::open(master).as_ref().and_then(Stat::read)
        {
            CpuUse::note(&mut self.reaped, master, stat.reaped_ticks);
        }
        for child in found {
            // What a shell has started tells more than the shell.
            let started = children_of_thread(child, child);
            for pid in if started.is_empty() { vec![child] } else { started } {
                let Some(name) = name(pid) else { continue };
                if self.programs.len() < MOST_PROGRAMS || self.programs.contains_key(&name) {
                    *self.programs.entry(name).or_default() += 1;
                }
            }
        }
    }

    fn counted(&self) -> ThreadStates {
        let readings = self.readings.max(1) as f64;
        let hottest = |all: &HashMap<i32, CpuUse>| all.values().map(CpuUse::cores).fold(0.0, f64::max);
        ThreadStates {
            readings: self.readings,
            threads: self.threads / readings,
            waits: self.waits.iter().map(|(what, n)| (what.clone(), n / readings)).collect(),
            born: self.born,
            workers_first: self.first,
            workers_last: self.workers.len() as u64,
            workers_most: self.most,
            hottest_thread_cores: hottest(&self.of_threads),
            hottest_process_cores: hottest(&self.of_processes),
            most_runnable: self
                .scheduled
                .values()
                .filter_map(SchedulerTimes::runnable)
                .max_by(|a, b| a.share().total_cmp(&b.share())),
            unseen: self.unseen,
            programs: self.programs.iter().map(|(name, n)| (name.clone(), *n as f64 / readings)).collect(),
            // Of a large pool only some processes are read.
            ended_children_cores: self.reaped.values().map(CpuUse::cores).sum::<f64>()
                * (self.workers.len() as f64 / MOST_THREADS as f64).max(1.0),
        }
    }
}

/// Names what a thread is doing, in the words of `model::examination`. `letter` is the kernel's for its state.
fn state_of(pid: i32, tid: i32, letter: char, sockets: &mut Sockets) -> String {
    match letter {
        'R' => RUNNING.to_string(),
        'D' => "disk".to_string(),
        _ => waits_for(pid, tid, sockets).unwrap_or_else(|| UNSEEN.to_string()),
    }
}

/// The threads of a server, read at many moments. A thread that has not run since the last moment is still in the same
/// wait, which one small file says.
#[derive(Debug)]
pub(crate) struct WatchedThreads {
    server: ServerThreads,
    threads: HashMap<i32, WatchedThread>,
    listed: Option<Instant>,
    workers_listed: Option<Instant>,
}

#[derive(Debug)]
struct WatchedThread {
    pid: i32,
    /// Its `schedstat`.
    schedule: File,
    /// How often it had been put on a processor at the last moment, and what it did then.
    times_run: u64,
    state: String,
}

impl WatchedThreads {
    pub(crate) fn new(subject: ServerProcesses) -> WatchedThreads {
        WatchedThreads {
            server: ServerThreads::new(subject),
            threads: HashMap::new(),
            listed: None,
            workers_listed: None,
        }
    }

    /// Lists the threads; those that are known keep their state.
    fn list(&mut self) {
        if self.listed.is_some_and(|at| at.elapsed() < THREADS_EVERY) {
            return;
        }
        // On a machine where many processes begin, it takes milliseconds to find the workers.
        if self.workers_listed.is_none_or(|at| at.elapsed() >= WORKERS_EVERY) {
            self.server.list();
            self.workers_listed = Some(Instant::now());
        }
        let mut known = std::mem::take(&mut self.threads);
        for (pid, tid) in self.server.threads().into_iter().take(MOST_WATCHED) {
            let fresh = || {
                let schedule = File::open(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
                Some(WatchedThread { pid, schedule, times_run: u64::MAX, state: RUNNING.into() })
            };
            if let Some(thread) = known.remove(&tid).filter(|thread| thread.pid == pid).or_else(fresh) {
                self.threads.insert(tid, thread);
            }
        }
        self.listed = Some(Instant::now());
    }

    /// Counts the threads in each state at this moment.
    pub(crate) fn states(&mut self) -> BTreeMap<String, f64> {
        self.list();
        let sockets = &mut self.server.sockets;
        sockets.begin(self.server.subject.master);
        let mut states: BTreeMap<String, f64> = BTreeMap::new();
        for (tid, thread) in &mut self.threads {
            // It may have ended meanwhile.
            let Some(times_run) = stat::times_run(&thread.schedule) else { continue };
            // A kernel without these counts has zeros.
            if times_run == 0 || times_run != thread.times_run || thread.state == RUNNING {
                let path = format!("/proc/{}/task/{tid}/stat", thread.pid);
                let Some(stat) = File::open(path).ok().as_ref().and_then(Stat::read) else { continue };
                (thread.times_run, thread.state) = (times_run, state_of(thread.pid, *tid, stat.state, sockets));
            }
            if let Some(count) = states.get_mut(&thread.state) {
                *count += 1.0;
            } else {
                states.insert(thread.state.clone(), 1.0);
            }
        }
        states
    }
}

/// Returns the program that a process runs. A zombie runs none.
fn exe(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Returns the children that a thread has started. Empty if the kernel does not tell (CONFIG_PROC_CHILDREN).
fn children_of_thread(pid: i32, tid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    let running = |pid: &i32| exe(*pid).is_some();
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).filter(running).collect()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::process::{Child, Command};

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;

    use super::*;

    /// A program that computes until it is dropped.
    struct BusyProgram(Child);

    impl BusyProgram {
        fn on(cpu: usize) -> BusyProgram {
            let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
            let mut one = CpuSet::new();
            one.set(cpu).expect("a processor");
            sched_setaffinity(Pid::from_raw(child.id() as i32), &one).expect("it is ours");
            BusyProgram(child)
        }
    }

    impl Drop for BusyProgram {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_thread_waits_for_the_processor_that_another_program_has() {
        let own = sched_getaffinity(Pid::from_raw(0)).expect("ours");
        let cpu = (0..CpuSet::count()).find(|i| own.is_set(*i).unwrap_or(false)).expect("a processor");
        let (seen, _other) = (BusyProgram::on(cpu), BusyProgram::on(cpu));
        let census = ThreadStateSampler::start(vec![ServerProcesses { master: seen.0.id() as i32, helpers: &[] }]);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let counted = census.end().into_iter().next().unwrap_or_default();
            // The program never sleeps, and the other one runs for half of the time or more.
            if let Some(thread) = counted.most_runnable
                && thread.run_delay > 0.3
                && thread.share() > 0.9
            {
                assert!(counted.hottest_thread_cores < 0.8, "{counted:?}");
                return;
            }
            assert!(Instant::now() < deadline, "{counted:?}");
            lock(&census.shared).rests = false;
            thread::sleep(Duration::from_millis(100));
        }
    }

    #[test]
    fn threads_are_counted_by_what_they_do_at_a_moment() {
        let own = sched_getaffinity(Pid::from_raw(0)).expect("ours");
        let cpu = (0..CpuSet::count()).find(|i| own.is_set(*i).unwrap_or(false)).expect("a processor");
        let busy = BusyProgram::on(cpu);
        let idle = BusyProgram(Command::new("sleep").arg("600").spawn().expect("it sleeps"));
        let watched = |program: &BusyProgram| {
            WatchedThreads::new(ServerProcesses { master: program.0.id() as i32, helpers: &[] })
        };
        let one = |state: &str| BTreeMap::from([(state.to_string(), 1.0)]);
        for (program, state) in [(&busy, "running"), (&idle, "sleep")] {
            let (mut threads, deadline) = (watched(program), Instant::now() + Duration::from_secs(60));
            while threads.states() != one(state) {
                assert!(Instant::now() < deadline, "{state}: {:?}", threads.states());
            }
            // It has not run since, or runs all the time.
            assert_eq!(threads.states(), one(state));
        }
    }
}
