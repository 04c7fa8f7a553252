//! The servers of a simulated world: what each request costs them, and what disturbs their machine.
//!
//! Such a plan is a file in TOML or JSON. Every field has a default, and the defaults are a PHP pool behind nginx on four
//! processors, without noise. Times are means; a spread is a coefficient of variation: 0 is a fixed time, 1 an
//! exponentially distributed one, and between them (or above) a gamma distribution.

use serde::{Deserialize, Serialize};

/// A stack of servers on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorldPlan {
    /// Processors of the machine.
    pub cores: u32,
    /// Memory for the pool, megabytes. With a larger pool the machine swaps, and all CPU work slows down.
    pub memory_mb: f64,
    /// A proxy before the pool.
    pub front: Option<FrontPlan>,
    pub pool: PoolPlan,
    /// A database that each request asks once.
    pub backend: Option<BackendPlan>,
    pub noise: NoisePlan,
}

impl Default for WorldPlan {
    fn default() -> WorldPlan {
        WorldPlan {
            cores: 4,
            memory_mb: 2_000.0,
            front: Some(FrontPlan::default()),
            pool: PoolPlan::default(),
            backend: None,
            noise: NoisePlan::default(),
        }
    }
}

/// A proxy such as nginx: one event loop per processor, which never blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FrontPlan {
    /// CPU per request, µs.
    pub cpu_us: f64,
}

impl Default for FrontPlan {
    fn default() -> FrontPlan {
        FrontPlan { cpu_us: 50.0 }
    }
}

/// The program whose pool it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolKind {
    #[default]
    PhpFpm,
    Gunicorn,
    /// Apache with prefork.
    Apache,
}

/// What a worker waits for in `wait_us`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitFor {
    /// For nobody: it sleeps.
    #[default]
    Sleep,
    /// For a service on another machine.
    Peer,
}

/// A pool of workers, each with one request at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolPlan {
    pub kind: PoolKind,
    /// Workers at the start.
    pub workers: u32,
    /// Length of the listen queue, in requests.
    pub backlog: u32,
    /// CPU per request, µs.
    pub cpu_us: f64,
    /// Coefficient of variation of `cpu_us`.
    pub cpu_spread: f64,
    /// Time that a request holds its worker without using CPU here, µs.
    pub wait_us: f64,
    /// Coefficient of variation of `wait_us`.
    pub wait_spread: f64,
    pub waits_for: WaitFor,
    /// Share (0 to 1) of the CPU per request that needs the one lock of the whole pool.
    pub locked_share: f64,
    /// Memory of a worker, megabytes.
    pub worker_mb: f64,
    /// Memory that all workers share, megabytes.
    pub shared_mb: f64,
    /// Additional CPU of a worker's first request after a start, µs.
    pub cold_us: f64,
    /// How much slower each runnable job beyond the processors makes all CPU work, as a share: 0.002 is 0.2 %.
    pub switch_cost: f64,
    /// Duration of a restart, ms.
    pub restart_ms: f64,
    /// Other settings need only a reload: the old workers end their requests, and nothing is lost.
    pub reloads: bool,
}

impl Default for PoolPlan {
    fn default() -> PoolPlan {
        PoolPlan {
            kind: PoolKind::PhpFpm,
            workers: 5,
            backlog: 511,
            cpu_us: 2_000.0,
            cpu_spread: 0.5,
            wait_us: 6_000.0,
            wait_spread: 1.0,
            waits_for: WaitFor::Sleep,
            locked_share: 0.0,
            worker_mb: 40.0,
            shared_mb: 100.0,
            cold_us: 20_000.0,
            switch_cost: 0.002,
            restart_ms: 500.0,
            reloads: false,
        }
    }
}

/// A database on the same machine. A worker is held while its request is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackendPlan {
    /// Most requests inside at once; others wait, first come, first served.
    pub connections: u32,
    /// CPU per request, µs.
    pub cpu_us: f64,
    /// Coefficient of variation of `cpu_us`.
    pub cpu_spread: f64,
    /// Time per request without CPU (its disk), µs.
    pub wait_us: f64,
    /// Coefficient of variation of `wait_us`.
    pub wait_spread: f64,
}

impl Default for BackendPlan {
    fn default() -> BackendPlan {
        BackendPlan { connections: 20, cpu_us: 500.0, cpu_spread: 1.0, wait_us: 1_000.0, wait_spread: 1.0 }
    }
}

/// What makes two runs with the same settings differ. The default is no noise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NoisePlan {
    /// Each start of the pool draws a factor for its CPU costs: lognormal with median 1, and this standard deviation of
    /// its logarithm.
    pub start_spread: f64,
    /// Slow change of the processors' speed: its logarithm is a stationary AR(1) process with this standard deviation and
    /// a correlation of 0.95 from one second to the next.
    pub drift: f64,
    /// Processors that another program wants while it is on.
    pub neighbour_cores: f64,
    /// Mean time for which it is on, s (exponentially distributed).
    pub neighbour_on_s: f64,
    /// Mean time for which it is off, s (exponentially distributed); 0 is never.
    pub neighbour_off_s: f64,
    /// Mean share (below 0.8) of the processors that a hypervisor takes away, in bursts of 50 to 200 ms.
    pub steal: f64,
}

impl WorldPlan {
    /// Checks that every number makes sense.
    ///
    /// # Errors
    /// With the first one that does not.
    pub fn check(&self) -> Result<(), String> {
        let (p, n) = (&self.pool, &self.noise);
        let front = self.front.clone().unwrap_or(FrontPlan { cpu_us: 0.0 });
        let b = self.backend.clone().unwrap_or_default();
        let bounds = [
            ("cores", f64::from(self.cores), 1.0, 1_024.0),
            ("memory_mb", self.memory_mb, 1.0, 1e9),
            ("front.cpu_us", front.cpu_us, 0.0, 1e9),
            ("pool.workers", f64::from(p.workers), 1.0, 1e6),
            ("pool.backlog", f64::from(p.backlog), 0.0, 1e6),
            ("pool.cpu_us", p.cpu_us, 1.0, 1e9),
            ("pool.cpu_spread", p.cpu_spread, 0.0, 10.0),
            ("pool.wait_us", p.wait_us, 0.0, 1e9),
            ("pool.wait_spread", p.wait_spread, 0.0, 10.0),
            ("pool.locked_share", p.locked_share, 0.0, 1.0),
            ("pool.worker_mb", p.worker_mb, 0.0, 1e9),
            ("pool.shared_mb", p.shared_mb, 0.0, 1e9),
            ("pool.cold_us", p.cold_us, 0.0, 1e9),
            ("pool.switch_cost", p.switch_cost, 0.0, 1.0),
            ("pool.restart_ms", p.restart_ms, 0.0, 1e7),
            ("backend.connections", f64::from(b.connections), 1.0, 1e6),
            ("backend.cpu_us", b.cpu_us, 0.0, 1e9),
            ("backend.cpu_spread", b.cpu_spread, 0.0, 10.0),
            ("backend.wait_us", b.wait_us, 0.0, 1e9),
            ("backend.wait_spread", b.wait_spread, 0.0, 10.0),
            ("noise.start_spread", n.start_spread, 0.0, 2.0),
            ("noise.drift", n.drift, 0.0, 2.0),
            ("noise.neighbour_cores", n.neighbour_cores, 0.0, 1_024.0),
            ("noise.neighbour_on_s", n.neighbour_on_s, 0.0, 1e7),
            ("noise.neighbour_off_s", n.neighbour_off_s, 0.0, 1e7),
            ("noise.steal", n.steal, 0.0, 0.8),
        ];
        match bounds.iter().find(|(_, value, low, high)| !(*low..=*high).contains(value)) {
            None => Ok(()),
            Some((name, value, low, high)) => {
                Err(format!("{name} of a simulated world is {value}; write a number from {low} to {high}"))
            }
        }
    }

    /// The same world without noise.
    #[must_use]
    pub fn without_noise(&self) -> WorldPlan {
        WorldPlan { noise: NoisePlan::default(), ..self.clone() }
    }

    /// Mean time for which a request holds its worker if it is alone, µs.
    #[must_use]
    pub fn held_us(&self) -> f64 {
        self.pool.cpu_us + self.pool.wait_us + self.backend.as_ref().map_or(0.0, |b| b.cpu_us + b.wait_us)
    }

    /// Workers that fit into nine tenths of the memory, as `lastdrop size` counts its budget.
    #[must_use]
    pub fn fitting_workers(&self) -> u32 {
        ((0.9 * self.memory_mb - self.pool.shared_mb) / self.pool.worker_mb.max(1e-3)).max(0.0) as u32
    }

    /// Memory of a pool of so many workers, megabytes.
    #[must_use]
    pub fn memory_of(&self, workers: u32) -> f64 {
        self.pool.shared_mb + f64::from(workers) * self.pool.worker_mb
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_needs_only_what_differs_from_the_defaults() {
        let plan: WorldPlan =
            toml::from_str("cores = 2\n[pool]\nworkers = 9\n[backend]\nconnections = 3").expect("TOML");
        assert_eq!((plan.cores, plan.pool.workers, plan.pool.cpu_us), (2, 9, 2_000.0));
        assert_eq!(plan.backend.as_ref().map(|b| (b.connections, b.cpu_us)), Some((3, 500.0)));
        let text = serde_json::to_string(&plan).expect("JSON");
        assert_eq!(lastdrop_model::read_json::<WorldPlan>(&text).expect("own output"), plan);
        assert!(toml::from_str::<WorldPlan>("[pool]\nworker = 9").is_err());
    }

    #[test]
    fn a_number_without_sense_is_refused_by_name() {
        assert_eq!(WorldPlan::default().check(), Ok(()));
        let mut plan = WorldPlan::default();
        plan.pool.wait_us = f64::NAN;
        assert!(plan.check().expect_err("not a number").contains("pool.wait_us"));
    }
}
