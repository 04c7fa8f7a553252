//! What this machine's processors and clocks show during a run.

use std::time::Duration;

use lastdrop_model::Plan;
use lastdrop_probe::host::{self, Clocks, CpuTicks};

use crate::lab::others::{CpuUse, CpuUseMeter, LoadTarget, SharedChain};

/// Readings from the start of a run on.
pub(crate) struct MachineReadings {
    ticks: Option<CpuTicks>,
    throttled: Option<Duration>,
    clocks: Option<Clocks>,
    meter: CpuUseMeter,
    measured: Option<usize>,
}

/// The differences over a run.
#[derive(Debug, Default)]
pub(crate) struct MachineChanges {
    pub steal: Option<f64>,
    pub throttled_s: Option<f64>,
    pub clock_step_s: f64,
    pub suspended_s: f64,
    pub used: CpuUse,
}

impl MachineReadings {
    /// Starts with the run. With `all`, connections are followed even if no unknown program is busy.
    pub fn start(chain: &SharedChain, plan: &Plan, all: bool) -> MachineReadings {
        let measured = plan.phases.iter().position(|p| p.measured);
        let mut meter = CpuUseMeter::start(chain, LoadTarget::of(plan), all);
        if measured == Some(0) {
            meter.begin();
        }
        MachineReadings { ticks: CpuTicks::now(), throttled: host::throttled(), clocks: Clocks::now(), meter, measured }
    }

    /// A phase has ended.
    pub fn phase_ended(&mut self, phase: usize) {
        if self.measured == Some(phase + 1) {
            self.meter.begin();
        } else if self.measured == Some(phase) {
            self.meter.end();
        }
    }

    /// Ends with the run. `server_here`: the server is on this machine.
    pub fn finish(self, server_here: bool) -> MachineChanges {
        let faults = self.clocks.zip(Clocks::now()).map(|(before, now)| now.faults_since(&before));
        let (clock_step_s, suspended_s) = faults.unwrap_or_default();
        let throttled = self.throttled.zip(host::throttled());
        MachineChanges {
            steal: self.ticks.and_then(|before| CpuTicks::now()?.steal_since(&before)),
            throttled_s: throttled.map(|(before, now)| now.saturating_sub(before).as_secs_f64()),
            clock_step_s,
            suspended_s,
            used: self.meter.finish(server_here),
        }
    }
}
