//! A second simulated world: not the sockets of the load engine, but the servers behind them.
//!
//! A discrete-event simulation of a stack of servers on one machine, in virtual time. Requests go through it one by one,
//! so throughput and latency come out of queues, workers and processors; nothing about them is planted. Experiments run
//! on it in milliseconds, thousands of times, and what is true of it is known ([`true_rate`], [`true_capacity`]). The
//! same seed gives the same world, to the last bit.
//!
//! `plan` describes such a world. In it, `machine` shares the processors, `noise` disturbs them, `pool` is the way of a
//! request through the servers, `service` draws its times. `load` is the client: it puts the load of a plan on the
//! servers, at the times of `arrivals`, and counts its requests (`in_flight`) as the load engine does. `truth` measures
//! without noise.

use std::time::Duration;

use lastdrop_model::{Event, Experience, Plan};

mod arrivals;
mod in_flight;
mod load;
mod machine;
mod noise;
mod plan;
mod pool;
mod schedule;
mod service;
#[cfg(test)]
mod theory;
mod truth;
mod usage;
mod visits;

pub use plan::{BackendPlan, FrontPlan, NoisePlan, PoolKind, PoolPlan, WaitFor, WorldPlan};
pub use truth::{rough_rate, true_capacity, true_rate};
pub use usage::{Stage, Usage};

use load::LoadRun;
use pool::Stack;
use visits::Visits;

use crate::rng::Rng;

/// Number of a request in flight.
type RequestId = u32;

/// How long [`World::warm_each`] waits for answers.
const WARM_UP_US: f64 = 60e6;

/// Settings of the pool in force, and the luck of its start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolSettings {
    pub workers: u32,
    pub backlog: u32,
    /// Factor for its CPU costs, drawn when it started; 1 without noise.
    pub start_factor: f64,
}

/// Servers on a machine, with their own clock.
#[derive(Debug)]
pub struct World {
    plan: WorldPlan,
    stack: Stack,
    visits: Option<Visits>,
}

impl World {
    /// A world at the moment when its servers have started.
    #[must_use]
    pub fn new(plan: &WorldPlan, seed: u64) -> World {
        World { plan: plan.clone(), stack: Stack::new(plan, seed), visits: None }
    }

    /// From now on visitors come, so many a second on average. While a load is on, there are none.
    pub fn be_visited(&mut self, rate: f64, seed: u64) {
        self.visits = Some(Visits::new(rate, self.stack.now_us(), Rng::new(seed)));
    }

    /// Returns what visitors have experienced since the last call.
    pub fn visited(&mut self) -> Experience {
        self.visits.as_mut().map(Visits::take).unwrap_or_default()
    }

    /// Returns the virtual time since the world began.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos((self.stack.now_us() * 1e3) as u64)
    }

    /// Returns what visitors have experienced since they began to come.
    pub fn all_visited(&mut self) -> Experience {
        self.visits.as_mut().map(|visits| visits.all().clone()).unwrap_or_default()
    }

    /// From a time on, each request costs the pool so many times the CPU, until other settings are applied.
    pub fn worsen(&mut self, after: Duration, factor: f64) {
        self.stack.worsen(self.stack.now_us() + micros(after), factor);
    }

    /// Lets virtual time pass; the servers go on with what they have, and with their visitors.
    pub fn sleep(&mut self, time: Duration) {
        let until = self.stack.now_us() + micros(time);
        loop {
            let next = self.visits.as_ref().map_or(until, |visits| visits.next_us.min(until));
            while let Some(id) = self.stack.run_until(next) {
                if let Some(visits) = &mut self.visits {
                    visits.answered(id, self.stack.now_us());
                }
            }
            match &mut self.visits {
                Some(visits) if next < until => visits.come(self.stack.submit(), next),
                _ => return,
            }
        }
    }

    #[must_use]
    pub fn settings(&self) -> PoolSettings {
        PoolSettings {
            workers: self.stack.workers(),
            backlog: self.stack.backlog(),
            start_factor: self.stack.start_factor(),
        }
    }

    /// Sets the factor of the pool's CPU per request for requests that begin from now on: what other settings save or cost,
    /// or another kind of request.
    pub fn set_cpu_factor(&mut self, factor: f64) {
        self.stack.set_cpu_factor(factor);
    }

    /// Restarts the pool with other settings; all workers are cold. Where the pool reloads, requests are ended by the old workers,
    /// and new ones wait for the new workers; otherwise those in flight are lost.
    pub fn apply(&mut self, workers: u32, backlog: u32) {
        let restart = Duration::from_secs_f64(self.plan.pool.restart_ms / 1e3);
        if self.plan.pool.reloads {
            self.stack.retire();
            self.sleep(restart);
            self.stack.replace(workers, backlog);
            return;
        }
        self.stack.start(workers, backlog);
        if let Some(visits) = &mut self.visits {
            visits.lose_all();
        }
        self.sleep(restart);
    }

    #[must_use]
    pub fn workers(&self) -> u32 {
        self.stack.workers()
    }

    /// Returns the memory of the pool, megabytes.
    #[must_use]
    pub fn memory_mb(&self) -> f64 {
        self.plan.memory_of(self.stack.workers())
    }

    /// Sends one request to each worker, all at once. Returns how many were answered within a minute.
    pub fn warm_each(&mut self) -> usize {
        self.part_with_visitors();
        let mut in_flight: Vec<RequestId> = (0..self.stack.workers()).map(|_| self.stack.submit()).collect();
        let until = self.stack.now_us() + WARM_UP_US;
        let mut answered = 0;
        while !in_flight.is_empty()
            && let Some(id) = self.stack.run_until(until)
        {
            if let Some(at) = in_flight.iter().position(|other| *other == id) {
                in_flight.swap_remove(at);
                answered += 1;
            }
        }
        in_flight.into_iter().for_each(|id| self.stack.abandon(id));
        answered
    }

    /// Returns what the servers have done since the world began.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.stack.usage()
    }

    /// Puts the load of a plan on the servers, all its phases one after the other. Reports each second of each phase as
    /// [`Event::Second`] and the end of each as [`Event::PhaseEnd`], as the load engine does. After each second it asks
    /// whether that is `enough`; if so, it ends at once.
    pub fn load(&mut self, plan: &Plan, report: &mut dyn FnMut(&Event<'_>), enough: &dyn Fn() -> bool) {
        self.part_with_visitors();
        self.stack.forget_longest_queue();
        LoadRun::new(&mut self.stack, plan, report, enough).run();
        self.part_with_visitors();
    }

    /// Visitors leave, and others come.
    fn part_with_visitors(&mut self) {
        if let Some(visits) = &mut self.visits {
            let left = visits.pause_until(self.stack.now_us());
            left.into_iter().for_each(|id| self.stack.abandon(id));
        }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
