//! What the servers have done: time in each stage of a request, as sums since the world began. Evidence is the difference of two.

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    ProxyQueue,
    /// On CPU, in the proxy.
    Proxy,
    /// Dropped, until it is tried again.
    Retry,
    ListenQueue,
    /// On CPU, in a worker.
    Worker,
    LockQueue,
    /// On CPU, with the lock.
    Lock,
    Wait,
    DatabaseQueue,
    /// On CPU, in the database.
    Database,
    DatabaseWait,
    /// Answered, or given up.
    Over,
}

const STAGES: usize = Stage::Over as usize + 1;

/// The moment when a request came to its stage, and the processor time that each job had had by then.
#[derive(Debug, Clone, Copy)]
pub(super) struct StageStart {
    pub at_us: f64,
    pub job_cpu_us: f64,
}

/// Sums since the world began, µs.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    pub now_us: f64,
    stage_us: [f64; STAGES],
    cpu_us: [f64; STAGES],
    /// Connections that found the listen queue full.
    pub drops: u64,
    /// Most requests in the listen queue since that was last forgotten.
    pub longest_queue: u64,
    /// Processor time of other programs and of the hypervisor, and the hypervisor's part.
    pub others_us: f64,
    pub stolen_us: f64,
    /// By which all CPU work is slower because the machine swaps; 1 if it does not.
    pub slowdown: f64,
}

impl Usage {
    #[inline]
    pub(super) fn add(&mut self, stage: Stage, since: StageStart, now: StageStart) {
        self.stage_us[stage as usize] += now.at_us - since.at_us;
        self.cpu_us[stage as usize] += now.job_cpu_us - since.job_cpu_us;
    }

    /// Returns what was done after `before`.
    #[must_use]
    pub fn since(&self, before: &Usage) -> Usage {
        let less = |now: &[f64; STAGES], then: &[f64; STAGES]| std::array::from_fn(|i| now[i] - then[i]);
        Usage {
            now_us: self.now_us - before.now_us,
            stage_us: less(&self.stage_us, &before.stage_us),
            cpu_us: less(&self.cpu_us, &before.cpu_us),
            drops: self.drops - before.drops,
            longest_queue: self.longest_queue,
            others_us: self.others_us - before.others_us,
            stolen_us: self.stolen_us - before.stolen_us,
            slowdown: self.slowdown,
        }
    }

    /// Returns the mean number of requests in these stages.
    #[must_use]
    pub fn mean_in(&self, stages: &[Stage]) -> f64 {
        stages.iter().map(|stage| self.stage_us[*stage as usize]).sum::<f64>() / self.now_us.max(1.0)
    }

    /// Returns how many processors these stages used on average. A stage off CPU uses none.
    #[must_use]
    pub fn cores(&self, stages: &[Stage]) -> f64 {
        stages.iter().map(|stage| self.cpu_us[*stage as usize]).sum::<f64>() / self.now_us.max(1.0)
    }
}
