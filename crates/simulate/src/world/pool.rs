//! The way of a request through the servers: proxy, listen queue, worker, lock, database.
//!
//! ```text
//! proxy's loop (CPU) → listen queue → worker: CPU → lock: CPU → wait → database: connection, CPU, wait → answer
//! ```
//!
//! A worker is held to the end. Requests that wait for something (a worker, the lock, a connection of the database) do so
//! first come, first served. A request that finds the listen queue full is dropped, and tried again as TCP repeats a SYN:
//! after 1, 3, 7, 15 … seconds. The servers do not notice that a client has given up, so its request costs them all the
//! same.

use std::collections::VecDeque;

use super::RequestId;
use super::machine::Machine;
use super::noise::Noise;
use super::plan::WorldPlan;
use super::schedule::Schedule;
use super::service::ServiceTime;
use super::usage::{Stage, StageStart, Usage};
use crate::rng::Rng;

/// Least CPU of a request in a worker and in the database, µs. So time passes with every request.
const LEAST_CPU_US: f64 = 0.01;
/// Time until a dropped request is tried again; it doubles each time (RFC 6298, 2.1 and 5.5).
const FIRST_RETRY_US: f64 = 1e6;

#[derive(Debug, Clone, Copy)]
struct ServerRequest {
    stage: Stage,
    drops: u8,
    /// The client has given up.
    abandoned: bool,
    /// CPU that it needs with the lock, µs.
    locked_us: f64,
    /// The start of the pool whose worker has it.
    start: u32,
    since: StageStart,
}

/// What a request costs.
#[derive(Debug)]
struct Costs {
    proxy_us: f64,
    cpu: ServiceTime,
    locked_share: f64,
    wait: ServiceTime,
    cold_us: f64,
    database_cpu: ServiceTime,
    database_wait: ServiceTime,
}

/// The servers with their requests.
#[derive(Debug)]
pub(super) struct Stack {
    plan: WorldPlan,
    machine: Machine,
    noise: Noise,
    rng: Rng,
    costs: Costs,
    requests: Vec<ServerRequest>,
    free: Vec<RequestId>,
    /// Ends of waits and of pauses before a retry.
    timers: Schedule,
    proxy_loops: u32,
    proxy_queue: VecDeque<RequestId>,
    workers: u32,
    backlog: u32,
    /// Counts starts and reloads of the pool.
    start_number: u32,
    start_factor: f64,
    /// Factor of the pool's CPU per request, by its settings and by what is asked for.
    cpu_factor: f64,
    /// Another factor, and the time from which it holds, µs.
    worse: (f64, f64),
    idle: u32,
    /// Workers without a request since the start. The one that has been idle longest accepts the next connection, so
    /// these come first.
    cold: u32,
    listen_queue: VecDeque<RequestId>,
    lock_is_held: bool,
    lock_queue: VecDeque<RequestId>,
    database_connections: u32,
    database_queue: VecDeque<RequestId>,
    usage: Usage,
}

impl Stack {
    pub fn new(plan: &WorldPlan, seed: u64) -> Stack {
        // A plan may have the same seed; the arrivals must not draw the same numbers.
        let mut rng = Rng::new(seed).others();
        let noise = Noise::new(&plan.noise, &mut rng);
        let (pool, backend) = (&plan.pool, plan.backend.as_ref());
        let costs = Costs {
            proxy_us: plan.front.as_ref().map_or(0.0, |front| front.cpu_us),
            cpu: ServiceTime::new(pool.cpu_us, pool.cpu_spread),
            locked_share: pool.locked_share.clamp(0.0, 1.0),
            wait: ServiceTime::new(pool.wait_us, pool.wait_spread),
            cold_us: pool.cold_us,
            database_cpu: backend.map_or(ServiceTime::Fixed(0.0), |b| ServiceTime::new(b.cpu_us, b.cpu_spread)),
            database_wait: backend.map_or(ServiceTime::Fixed(0.0), |b| ServiceTime::new(b.wait_us, b.wait_spread)),
        };
        let mut stack = Stack {
            machine: Machine::new(plan.cores, pool.switch_cost, noise.disturbance()),
            noise,
            rng,
            costs,
            requests: Vec::new(),
            free: Vec::new(),
            timers: Schedule::default(),
            proxy_loops: 0,
            proxy_queue: VecDeque::new(),
            workers: 0,
            backlog: 0,
            start_number: 0,
            start_factor: 1.0,
            cpu_factor: 1.0,
            worse: (1.0, f64::INFINITY),
            idle: 0,
            cold: 0,
            listen_queue: VecDeque::new(),
            lock_is_held: false,
            lock_queue: VecDeque::new(),
            database_connections: 0,
            database_queue: VecDeque::new(),
            usage: Usage::default(),
            plan: plan.clone(),
        };
        stack.start(pool.workers, pool.backlog);
        stack
    }

    /// Starts a fresh pool. Everything in flight is lost.
    pub fn start(&mut self, workers: u32, backlog: u32) {
        self.requests.clear();
        self.free.clear();
        self.timers.clear();
        for queue in [&mut self.proxy_queue, &mut self.listen_queue, &mut self.lock_queue, &mut self.database_queue] {
            queue.clear();
        }
        self.machine.clear();
        self.lock_is_held = false;
        self.proxy_loops = self.plan.cores.max(1);
        self.database_connections = self.plan.backend.as_ref().map_or(0, |b| b.connections.max(1));
        self.retire();
        self.replace(workers, backlog);
    }

    /// The workers take no further request. They end those that they have.
    pub fn retire(&mut self) {
        self.start_number += 1;
        self.worse.1 = f64::INFINITY;
        self.idle = 0;
    }

    /// Fresh workers take the place of those that have retired, and the requests that wait.
    pub fn replace(&mut self, workers: u32, backlog: u32) {
        self.workers = workers.max(1);
        self.backlog = backlog;
        self.idle = self.workers;
        self.cold = self.workers;
        self.start_factor = self.noise.start_factor();
        self.machine.set_memory(self.plan.memory_of(self.workers), self.plan.memory_mb);
        while self.idle > 0
            && let Some(next) = self.listen_queue.pop_front()
        {
            self.idle -= 1;
            self.work(next);
        }
    }

    pub fn now_us(&self) -> f64 {
        self.machine.now_us()
    }

    pub fn workers(&self) -> u32 {
        self.workers
    }

    pub fn backlog(&self) -> u32 {
        self.backlog
    }

    pub fn start_factor(&self) -> f64 {
        self.start_factor
    }

    /// Sets the factor of the pool's CPU for requests that begin from now on.
    pub fn set_cpu_factor(&mut self, factor: f64) {
        self.cpu_factor = factor;
    }

    /// From a time on, each request costs so many times the CPU, until the pool is started anew.
    pub fn worsen(&mut self, from_us: f64, factor: f64) {
        self.worse = (factor, from_us);
    }

    /// Takes a request of a client. [`Stack::run_until`] returns its number when it is answered.
    pub fn submit(&mut self) -> RequestId {
        let since = self.stage_start();
        let fresh = ServerRequest {
            stage: Stage::ProxyQueue,
            drops: 0,
            abandoned: false,
            locked_us: 0.0,
            start: self.start_number,
            since,
        };
        let id = if let Some(id) = self.free.pop() {
            self.requests[id as usize] = fresh;
            id
        } else {
            self.requests.push(fresh);
            (self.requests.len() - 1) as RequestId
        };
        if self.costs.proxy_us <= 0.0 {
            self.connect(id);
        } else if self.proxy_loops > 0 {
            self.proxy_loops -= 1;
            self.run(id, Stage::Proxy, self.costs.proxy_us);
        } else {
            self.proxy_queue.push_back(id);
        }
        id
    }

    /// The client has given up a request: it will not be returned. A dropped one is not tried again.
    pub fn abandon(&mut self, id: RequestId) {
        self.requests[id as usize].abandoned = true;
    }

    /// Lets time pass up to the next answer, whose number it returns, but at most until `until_us`.
    #[inline]
    pub fn run_until(&mut self, until_us: f64) -> Option<RequestId> {
        loop {
            let job = self.machine.next_end();
            let timer = self.timers.next();
            let noise = self.noise.next();
            let next = job.min(timer).min(noise);
            if next > until_us {
                self.machine.advance(until_us);
                return None;
            }
            self.machine.advance(next);
            let answered = if next == job {
                self.machine.end().and_then(|id| self.job_ended(id))
            } else if next == timer {
                self.timers.pop().and_then(|id| self.timer_ended(id))
            } else {
                self.noise.change(next);
                self.machine.disturb(self.noise.disturbance());
                None
            };
            if answered.is_some() {
                return answered;
            }
        }
    }

    fn stage_start(&self) -> StageStart {
        StageStart { at_us: self.machine.now_us(), job_cpu_us: self.machine.job_cpu_us() }
    }

    /// A request comes to its next stage.
    #[inline]
    fn enter(&mut self, id: RequestId, stage: Stage) {
        let now = self.stage_start();
        let request = &mut self.requests[id as usize];
        self.usage.add(request.stage, request.since, now);
        (request.stage, request.since) = (stage, now);
    }

    /// Returns what the servers have done so far.
    pub fn usage(&self) -> Usage {
        let now = self.stage_start();
        let mut usage = self.usage.clone();
        for request in &self.requests {
            usage.add(request.stage, request.since, now);
        }
        usage.now_us = now.at_us;
        (usage.others_us, usage.stolen_us) = (self.machine.others_us(), self.machine.stolen_us());
        usage.slowdown = self.machine.slowdown();
        usage
    }

    /// Forgets how long the listen queue was at most.
    pub fn forget_longest_queue(&mut self) {
        self.usage.longest_queue = self.listen_queue.len() as u64;
    }

    fn run(&mut self, id: RequestId, stage: Stage, work_us: f64) {
        self.enter(id, stage);
        self.machine.start(id, work_us);
    }

    fn pause(&mut self, id: RequestId, stage: Stage, time_us: f64) {
        self.enter(id, stage);
        self.timers.push(self.machine.now_us() + time_us, id);
    }

    /// A request reaches the listen queue of the pool.
    fn connect(&mut self, id: RequestId) {
        if self.idle > 0 {
            self.idle -= 1;
            self.work(id);
        } else if self.listen_queue.len() < self.backlog as usize {
            self.enter(id, Stage::ListenQueue);
            self.listen_queue.push_back(id);
            self.usage.longest_queue = self.usage.longest_queue.max(self.listen_queue.len() as u64);
        } else {
            let drops = self.requests[id as usize].drops;
            self.requests[id as usize].drops = drops.saturating_add(1);
            self.usage.drops += 1;
            self.pause(id, Stage::Retry, FIRST_RETRY_US * f64::from(drops.min(16)).exp2());
        }
    }

    /// A worker begins a request.
    fn work(&mut self, id: RequestId) {
        let worse = if self.machine.now_us() >= self.worse.1 { self.worse.0 } else { 1.0 };
        let drawn = self.costs.cpu.draw(&mut self.rng) * self.start_factor * self.cpu_factor * worse;
        let locked_us = drawn * self.costs.locked_share;
        let mut cpu_us = drawn - locked_us;
        if self.cold > 0 {
            self.cold -= 1;
            cpu_us += self.costs.cold_us * self.start_factor;
        }
        (self.requests[id as usize].locked_us, self.requests[id as usize].start) = (locked_us, self.start_number);
        self.run(id, Stage::Worker, cpu_us.max(LEAST_CPU_US));
    }

    /// A job has ended. Returns the request if that answers it.
    fn job_ended(&mut self, id: RequestId) -> Option<RequestId> {
        let request = self.requests[id as usize];
        match request.stage {
            Stage::Proxy => {
                match self.proxy_queue.pop_front() {
                    Some(next) => self.run(next, Stage::Proxy, self.costs.proxy_us),
                    None => self.proxy_loops += 1,
                }
                self.connect(id);
                None
            }
            Stage::Worker if request.locked_us > 0.0 => {
                if self.lock_is_held {
                    self.enter(id, Stage::LockQueue);
                    self.lock_queue.push_back(id);
                } else {
                    self.lock_is_held = true;
                    self.run(id, Stage::Lock, request.locked_us);
                }
                None
            }
            Stage::Lock => {
                match self.lock_queue.pop_front() {
                    Some(next) => self.run(next, Stage::Lock, self.requests[next as usize].locked_us),
                    None => self.lock_is_held = false,
                }
                self.computed(id)
            }
            Stage::Worker => self.computed(id),
            Stage::Database if self.costs.database_wait.is_zero() => self.leave_database(id),
            Stage::Database => {
                let wait_us = self.costs.database_wait.draw(&mut self.rng);
                self.pause(id, Stage::DatabaseWait, wait_us);
                None
            }
            _ => None,
        }
    }

    /// A pause has ended. Returns the request if that answers it.
    fn timer_ended(&mut self, id: RequestId) -> Option<RequestId> {
        let request = self.requests[id as usize];
        match request.stage {
            Stage::Retry if request.abandoned => {
                self.enter(id, Stage::Over);
                self.free.push(id);
                None
            }
            Stage::Retry => {
                self.connect(id);
                None
            }
            Stage::Wait => self.ask_database(id),
            Stage::DatabaseWait => self.leave_database(id),
            _ => None,
        }
    }

    /// The request needs no more CPU of its worker.
    fn computed(&mut self, id: RequestId) -> Option<RequestId> {
        if self.costs.wait.is_zero() {
            return self.ask_database(id);
        }
        let wait_us = self.costs.wait.draw(&mut self.rng);
        self.pause(id, Stage::Wait, wait_us);
        None
    }

    fn ask_database(&mut self, id: RequestId) -> Option<RequestId> {
        if self.plan.backend.is_none() {
            return self.answer(id);
        }
        if self.database_connections > 0 {
            self.database_connections -= 1;
            self.query(id);
        } else {
            self.enter(id, Stage::DatabaseQueue);
            self.database_queue.push_back(id);
        }
        None
    }

    fn query(&mut self, id: RequestId) {
        let cpu_us = self.costs.database_cpu.draw(&mut self.rng);
        self.run(id, Stage::Database, cpu_us.max(LEAST_CPU_US));
    }

    fn leave_database(&mut self, id: RequestId) -> Option<RequestId> {
        match self.database_queue.pop_front() {
            Some(next) => self.query(next),
            None => self.database_connections += 1,
        }
        self.answer(id)
    }

    /// Answers a request. Its worker takes the next one, unless it has retired.
    fn answer(&mut self, id: RequestId) -> Option<RequestId> {
        if self.requests[id as usize].start == self.start_number {
            match self.listen_queue.pop_front() {
                Some(next) => self.work(next),
                None => self.idle += 1,
            }
        }
        self.enter(id, Stage::Over);
        self.free.push(id);
        (!self.requests[id as usize].abandoned).then_some(id)
    }
}
