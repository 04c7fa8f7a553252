//! Random stacks of servers, with the noise of real machines.

use crate::rng::Rng;
use crate::world::{BackendPlan, FrontPlan, NoisePlan, PoolKind, PoolPlan, WaitFor, WorldPlan};

/// How much a machine disturbs what is measured on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoiseLevel {
    None,
    /// A machine of one's own: starts differ by a percent, the processors drift a little.
    Quiet,
    /// A virtual machine beside others: also steal.
    Shared,
    /// Another program that comes and goes.
    Neighbour,
}

/// Returns a level: mostly a quiet machine or a shared one.
pub fn noise_level(rng: &mut Rng) -> NoiseLevel {
    rng.one_of(&[
        NoiseLevel::None,
        NoiseLevel::Quiet,
        NoiseLevel::Quiet,
        NoiseLevel::Quiet,
        NoiseLevel::Shared,
        NoiseLevel::Shared,
        NoiseLevel::Neighbour,
    ])
}

/// A number from 0 to 1.
pub fn unit(rng: &mut Rng) -> f64 {
    rng.below(1 << 32) as f64 / (1u64 << 32) as f64
}

/// Draws the noise of a machine with so many processors.
pub fn noise_of(rng: &mut Rng, level: NoiseLevel, cores: u32) -> NoisePlan {
    let mut plan = NoisePlan { neighbour_on_s: 1.0, neighbour_off_s: 1.0, ..NoisePlan::default() };
    if level == NoiseLevel::None {
        return plan;
    }
    plan.start_spread = 0.02 * unit(rng);
    plan.drift = 0.005 + 0.025 * unit(rng);
    if level == NoiseLevel::Shared {
        plan.steal = 0.08 * unit(rng);
        plan.drift += 0.03 * unit(rng);
    }
    if level == NoiseLevel::Neighbour {
        plan.neighbour_cores = f64::from(cores) * (0.1 + 0.4 * unit(rng));
        plan.neighbour_on_s = 0.5 + 10.0 * unit(rng);
        plan.neighbour_off_s = 1.0 + 20.0 * unit(rng);
    }
    plan
}

/// Makes a stack whose machine can answer about `rate` requests a second.
pub fn stack(rng: &mut Rng, rate: (u64, u64), level: NoiseLevel) -> WorldPlan {
    let cores = rng.one_of(&[1, 2, 2, 4, 8]);
    let rate = rng.around(rate.0, rate.1) as f64;
    let cpu_us = 1e6 * f64::from(cores) / rate;
    let spread = rng.one_of(&[0.0, 0.3, 0.6, 1.0]);
    let front = rng.in_thousand(400).then_some(FrontPlan { cpu_us: 0.05 * cpu_us });
    let backend = rng.in_thousand(400).then(|| BackendPlan {
        connections: rng.between(4, 200) as u32,
        cpu_us: 0.3 * cpu_us,
        cpu_spread: spread,
        wait_us: cpu_us * 3.0 * unit(rng),
        wait_spread: 0.5,
    });
    let own = 1.0 - 0.05 * f64::from(u8::from(front.is_some())) - 0.3 * f64::from(u8::from(backend.is_some()));
    let wait_us = if rng.in_thousand(600) { cpu_us * 12.0 * unit(rng) } else { 0.0 };
    let pool = PoolPlan {
        workers: rng.around(2, 64) as u32,
        backlog: 511,
        cpu_us: own * cpu_us,
        cpu_spread: spread,
        wait_us,
        wait_spread: rng.one_of(&[0.0, 0.5, 1.0]),
        kind: PoolKind::PhpFpm,
        waits_for: WaitFor::Sleep,
        locked_share: if rng.in_thousand(150) { 0.3 * unit(rng) } else { 0.0 },
        worker_mb: 20.0 + 60.0 * unit(rng),
        shared_mb: 30.0,
        cold_us: cpu_us * 5.0 * unit(rng),
        switch_cost: 0.002 * unit(rng),
        restart_ms: 50.0 + 400.0 * unit(rng),
        reloads: false,
    };
    WorldPlan { cores, memory_mb: 16_000.0, front, pool, backend, noise: noise_of(rng, level, cores) }
}
