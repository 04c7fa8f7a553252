//! Samples all servers of the chain during a step: a thread for each server, one for the states of all their threads,
//! and their error logs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::observe::databases::{DatabaseOptions, Databases};
use lastdrop_diagnose::fold;
use lastdrop_model::Sample;
use lastdrop_model::examination::{ExaminationStep, PeerConnections, ServerMeasurements};
use lastdrop_probe::error_log::ErrorLogs;
use lastdrop_probe::host;
use lastdrop_probe::listeners::is_local;
use lastdrop_probe::namespace::{ConnectionCounts, ConnectionTables};
use lastdrop_probe::process;
use lastdrop_probe::sampler::{Detail, Sampler};
use lastdrop_probe::thread_states::{ServerProcesses, ThreadStateSampler, ThreadStates};

use crate::doctor::costs::Costs;
use crate::doctor::site::Goal;
use crate::observe::members::Members;

const EVERY: Duration = Duration::from_secs(1);
/// Sampling all servers may use one of this many parts of the machine. Pauses get longer for it, up to [`LONGEST`].
const PARTS: usize = 300;
const LONGEST: Duration = Duration::from_secs(2);
/// Samples between two lists of connections: a client that holds many holds them for long.
const CLIENTS_EVERY: usize = 4;

/// Maximum number of peer addresses: a front may lead to thousands.
const MOST_PEERS: usize = 64;

/// Other clients' connections by client address, and outgoing connections by the address that they lead to: sums over
/// `looks` samples.
#[derive(Debug, Default)]
struct Clients {
    by_address: BTreeMap<IpAddr, u64>,
    made: BTreeMap<SocketAddr, ConnectionCounts>,
    looks: u64,
}

impl Clients {
    fn look(&mut self, walks: &ConnectionTables, master: i32, ports: &[u16], load: &LoadSources, connects: &[String]) {
        self.looks += 1;
        let (ends, made) = walks.others_and_made(master, ports).unwrap_or_default();
        for (to, now) in made {
            // Connections that other servers have accepted look like outgoing ones. So an address counts only if this
            // server is known to connect to it, or if a connection to it is not answered yet.
            let counts = now.opening > 0 || self.made.contains_key(&to) || connects.contains(&to.to_string());
            if counts && (self.made.len() < MOST_PEERS || self.made.contains_key(&to)) {
                *self.made.entry(to).or_default() += now;
            }
        }
        for end in ends.into_iter().filter(|end| !load.has(end)) {
            *self.by_address.entry(end.ip()).or_default() += 1;
        }
    }

    /// Mean number of connections by the address that they lead to.
    fn peers(&self) -> BTreeMap<String, PeerConnections> {
        let mean = |n: u64| n as f64 / self.looks.max(1) as f64;
        let seen = |made: &ConnectionCounts| PeerConnections { open: mean(made.open), opening: mean(made.opening) };
        self.made.iter().map(|(to, made)| (to.to_string(), seen(made))).collect()
    }

    /// The client address with the most connections, its share, and the mean number of other clients' connections.
    fn top(&self) -> Option<(String, f64, f64)> {
        let all: u64 = self.by_address.values().sum();
        let (address, most) = self.by_address.iter().max_by_key(|(_, n)| **n)?;
        Some((address.to_string(), *most as f64 / all.max(1) as f64, all as f64 / self.looks.max(1) as f64))
    }
}

/// Addresses that the load comes from, apart from this process.
#[derive(Debug, Clone)]
struct LoadSources {
    addresses: Vec<IpAddr>,
    /// True if one of them is this machine, which has several addresses.
    here: bool,
}

impl LoadSources {
    fn of(addresses: &[IpAddr]) -> LoadSources {
        let addresses: Vec<IpAddr> = addresses.iter().map(IpAddr::to_canonical).collect();
        let here = addresses.iter().any(|a| is_local(&SocketAddr::new(*a, 0)));
        LoadSources { addresses, here }
    }

    fn has(&self, end: &SocketAddr) -> bool {
        self.addresses.contains(&end.ip().to_canonical()) || self.here && is_local(end)
    }
}

/// A request to a sampling thread.
enum SamplerRequest {
    Begin,
    /// Asks for the samples since `Begin`, and for what could not be read.
    End(Sender<SamplerReply>),
}

#[derive(Default)]
struct SamplerReply {
    looks: Vec<Sample>,
    unread: Vec<String>,
    clients: Clients,
}

struct ServerSampler {
    called: String,
    master: i32,
    asks: Option<Sender<SamplerRequest>>,
    /// Processor time of its samples so far, µs.
    cost_us: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    logs: ErrorLogs,
    /// Zombie children at the end of the previous step.
    zombies: BTreeSet<i32>,
}

/// Samplers of all servers. Dropping them ends their threads.
pub struct StepSamplers {
    watched: Vec<ServerSampler>,
    census: ThreadStateSampler,
    databases: Databases,
    softirq: Option<Vec<(u64, u64)>>,
    started_tasks: Option<u64>,
    pub unread: Vec<String>,
}

impl StepSamplers {
    /// Starts the samplers. Samples of the first server go to `samples` as they are made.
    pub fn start(
        members: &Members,
        goal: &Goal,
        databases: &DatabaseOptions,
        samples: &Sender<Sample>,
    ) -> StepSamplers {
        let url = goal.endpoint();
        let load = LoadSources::of(&goal.load_from);
        let census = ThreadStateSampler::start(
            members.all.iter().map(|m| ServerProcesses { master: m.found.master, helpers: m.found.helpers }).collect(),
        );
        let walks = ConnectionTables::default();
        let rest = (PARTS * members.all.len() / host::processors().max(1) as usize) as u32;
        let known: Vec<(String, i32)> = members.all.iter().map(|m| (m.called.clone(), m.found.master)).collect();
        let watch = |(place, member): (usize, &crate::observe::members::Member)| {
            let found = &member.found;
            let subject = found.to_sample(url.clone().filter(|_| place == 0), walks.clone());
            let (asks, asked) = channel::<SamplerRequest>();
            let samples = (place == 0).then(|| samples.clone());
            let connects: Vec<String> =
                members.links.links.iter().filter(|l| l.from == place).map(|l| l.via.to_string()).collect();
            let is_loop = !found.prefork && found.kind.database.is_none();
            let load = load.clone();
            let cost_us = Arc::<AtomicU64>::default();
            let cost = Arc::clone(&cost_us);
            let work = move || {
                let mut sampler = Sampler::new(&subject, Detail::Timeline);
                let began = Instant::now();
                let (mut looks, mut clients) = (Vec::new(), Clients::default());
                let ports: Vec<u16> = subject.listeners.iter().map(std::net::SocketAddr::port).collect();
                let (mut next, mut before) = (began + EVERY, sampler.cost());
                loop {
                    match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
                        Ok(SamplerRequest::Begin) => {
                            sampler.sample(began.elapsed().as_secs_f64(), false);
                            looks.clear();
                            clients = Clients::default();
                        }
                        Ok(SamplerRequest::End(to)) => {
                            looks.push(sampler.sample(began.elapsed().as_secs_f64(), false));
                            let _ = to.send(SamplerReply {
                                looks: std::mem::take(&mut looks),
                                unread: sampler.unread(),
                                clients: std::mem::take(&mut clients),
                            });
                        }
                        Err(RecvTimeoutError::Timeout) => {
                            let look = sampler.sample(began.elapsed().as_secs_f64(), false);
                            if let Some(samples) = &samples {
                                // The receiver may be gone.
                                let _ = samples.send(look.clone());
                            }
                            looks.push(look);
                            // The clients of the other servers belong to the chain. Only event loops are listed, as
                            // their threads do not show which peer they wait for. The kernel walks its whole table for
                            // each list.
                            if (place == 0 || is_loop) && looks.len() % CLIENTS_EVERY == 1 {
                                clients.look(&subject.walks, subject.master, &ports, &load, &connects);
                            }
                        }
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                    let so_far = sampler.cost();
                    cost.store(so_far.as_micros() as u64, Ordering::Relaxed);
                    let pause = so_far.saturating_sub(before) * rest;
                    before = so_far;
                    next = Instant::now() + pause.clamp(EVERY, LONGEST);
                }
            };
            let thread = thread::Builder::new().name("looks".into()).spawn(work).ok();
            ServerSampler {
                called: member.called.clone(),
                master: found.master,
                asks: Some(asks),
                cost_us,
                thread,
                logs: ErrorLogs::of(found.master),
                zombies: process::zombies_of(found.master),
            }
        };
        StepSamplers {
            watched: members.all.iter().enumerate().map(watch).collect(),
            census,
            databases: Databases::start(databases, &known),
            softirq: None,
            started_tasks: None,
            unread: Vec::new(),
        }
    }

    /// Processor time of sampling so far.
    pub fn costs(&self) -> Costs {
        let mut costs = Costs::default();
        costs.add("threads", self.census.cost());
        costs.add("databases", self.databases.cost());
        for watched in &self.watched {
            costs.add("looks", Duration::from_micros(watched.cost_us.load(Ordering::Relaxed)));
        }
        costs
    }

    pub fn begin(&mut self) {
        for watched in &mut self.watched {
            if let Some(asks) = &watched.asks {
                let _ = asks.send(SamplerRequest::Begin);
            }
            watched.logs.news();
        }
        self.databases.looks(false);
        self.census.begin();
        self.softirq = Some(host::softirq_ticks());
        self.started_tasks = host::started_tasks();
    }

    /// Returns a step with all samples since `begin`, without the load's own numbers.
    pub fn end(&mut self) -> ExaminationStep {
        let mut step = ExaminationStep::default();
        let started = host::started_tasks().zip(self.started_tasks.take());
        step.started_tasks = started.map(|(now, then)| now.saturating_sub(then));
        let counted = self.census.end();
        // Read at once, before the served sessions are gone.
        step.databases = self.databases.looks(true);
        for look in &step.databases {
            let called = look.server.as_deref().unwrap_or(&look.service);
            let trouble = look.trouble.as_ref().map(|t| &t.what);
            for what in trouble.into_iter().chain(&look.unread) {
                let what = format!("the database {called}: {what}");
                if !self.unread.contains(&what) {
                    self.unread.push(what);
                }
            }
        }
        for (place, watched) in self.watched.iter_mut().enumerate() {
            let (to, answer) = channel();
            let asked = watched.asks.as_ref().is_some_and(|asks| asks.send(SamplerRequest::End(to)).is_ok());
            let SamplerReply { looks, unread, clients } =
                asked.then(|| answer.recv_timeout(Duration::from_secs(20)).ok()).flatten().unwrap_or_default();
            if place == 0 {
                fold::machine(&looks, &mut step);
            }
            let mut seen = fold::server(&watched.called, &looks);
            if let Some(counted) = counted.get(place) {
                count(counted, &mut seen);
            }
            let news = watched.logs.news();
            (seen.log, seen.log_samples) = (news.counts, news.samples);
            seen.peers = clients.peers();
            if let Some((address, share, connections)) = clients.top().filter(|_| place == 0) {
                (seen.top_client, seen.other_clients) = (Some((address, share)), connections);
            }
            // A master may reap its children only once a second. So only children count that were zombies at the end of
            // the previous step, too.
            let zombies = process::zombies_of(watched.master);
            seen.zombies = zombies.intersection(&watched.zombies).count() as u64;
            watched.zombies = zombies;
            step.servers.push(seen);
            for what in unread {
                let what = if self.unread.len() < 20 { format!("{}: {what}", watched.called) } else { continue };
                if !self.unread.contains(&what) {
                    self.unread.push(what);
                }
            }
        }
        if let Some(before) = self.softirq.take() {
            let share = |(now, then): ((u64, u64), (u64, u64))| {
                let all = now.1.saturating_sub(then.1);
                if all == 0 { 0.0 } else { now.0.saturating_sub(then.0) as f64 / all as f64 }
            };
            step.softirq = host::softirq_ticks().into_iter().zip(before).map(share).collect();
        }
        step
    }
}

impl Drop for StepSamplers {
    fn drop(&mut self) {
        for watched in &mut self.watched {
            watched.asks = None;
            if let Some(thread) = watched.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

/// Adds the states of the threads to what the samples show.
fn count(counted: &ThreadStates, seen: &mut ServerMeasurements) {
    (seen.workers_first, seen.workers_last) = (counted.workers_first, counted.workers_last);
    (seen.workers_most, seen.born) = (counted.workers_most, counted.born);
    (seen.readings, seen.threads) = (counted.readings, counted.threads);
    seen.waits.clone_from(&counted.waits);
    seen.hottest_thread_cores = counted.hottest_thread_cores;
    seen.hottest_process_cores = counted.hottest_process_cores;
    seen.most_runnable = counted.most_runnable;
    seen.programs.clone_from(&counted.programs);
    seen.ended_children_cores = counted.ended_children_cores;
}
