//! The processors of the machine, shared by all runnable jobs alike.
//!
//! Egalitarian processor sharing: each runnable job gets the same share of the processors, and at most one of them. All
//! jobs attain service at the same rate, so a job that starts when each has attained V ends when each has attained
//! V + its work. A heap by that number makes every event cost O(log n), whatever changes the rate meanwhile.
//!
//! The neighbour of [`NoisePlan`](super::NoisePlan) is a fractional number of jobs that never end. It competes for its
//! share like any other program; only stolen time is taken from everybody.

use super::RequestId;
use super::schedule::Schedule;

/// How much slower CPU work gets while the machine swaps, by the memory that is missing as a share of what it has. One
/// page fault of some 100 µs on a disk outweighs thousands of accesses to memory.
const SWAP_COST: f64 = 20.0;

#[derive(Debug)]
pub(super) struct Machine {
    cores: f64,
    switch_cost: f64,
    /// At least 1; more while the machine swaps.
    slowdown: f64,
    disturbance: Disturbance,
    /// Runnable jobs by the attained service at which they end.
    jobs: Schedule,
    /// Service that each job has attained since there was last none, µs of a processor at speed 1.
    attained_us: f64,
    /// Service that each job attains per µs.
    rate: f64,
    now_us: f64,
    /// Processors that other programs use at present.
    others: f64,
    /// Processor time that they have used, µs; the hypervisor's part is `stolen_us`.
    others_us: f64,
    stolen_us: f64,
    /// Share of a processor that each job has at present.
    share: f64,
    /// Processor time that a job would have had that was there from the beginning, µs.
    job_cpu_us: f64,
}

/// What disturbs the processors at present.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Disturbance {
    /// Speed of the processors; 1 is normal.
    pub speed: f64,
    /// Processors that the neighbour wants.
    pub neighbour_cores: f64,
    /// Share of all processors that is stolen.
    pub stolen_share: f64,
}

impl Machine {
    pub fn new(cores: u32, switch_cost: f64, disturbance: Disturbance) -> Machine {
        let mut machine = Machine {
            cores: f64::from(cores.max(1)),
            switch_cost,
            slowdown: 1.0,
            disturbance,
            jobs: Schedule::default(),
            attained_us: 0.0,
            rate: 1.0,
            now_us: 0.0,
            others: 0.0,
            others_us: 0.0,
            stolen_us: 0.0,
            share: 1.0,
            job_cpu_us: 0.0,
        };
        machine.share_out();
        machine
    }

    /// Sets the memory in use, and how much there is.
    pub fn set_memory(&mut self, used_mb: f64, memory_mb: f64) {
        self.slowdown = 1.0 + SWAP_COST * (used_mb / memory_mb - 1.0).max(0.0);
        self.share_out();
    }

    pub fn disturb(&mut self, disturbance: Disturbance) {
        self.disturbance = disturbance;
        self.share_out();
    }

    pub fn now_us(&self) -> f64 {
        self.now_us
    }

    /// Lets the jobs attain service up to a time before which none of them ends.
    #[inline]
    pub fn advance(&mut self, to_us: f64) {
        let passed = to_us - self.now_us;
        self.attained_us += self.rate * passed;
        self.others_us += self.others * passed;
        self.stolen_us += self.disturbance.stolen_share * self.cores * passed;
        self.job_cpu_us += self.share * passed;
        self.now_us = to_us;
    }

    /// Starts a job of so much work.
    #[inline]
    pub fn start(&mut self, job: RequestId, work_us: f64) {
        self.jobs.push(self.attained_us + work_us, job);
        self.share_out();
    }

    /// When the next job ends, if nothing changes before; infinity without a job.
    #[inline]
    pub fn next_end(&self) -> f64 {
        self.now_us + ((self.jobs.next() - self.attained_us) / self.rate).max(0.0)
    }

    /// Ends the next job, at the time of [`Machine::next_end`].
    #[inline]
    pub fn end(&mut self) -> Option<RequestId> {
        let end = self.jobs.next();
        let job = self.jobs.pop()?;
        // Without the rounding error of the way here, and small again when nothing runs.
        self.attained_us = if self.jobs.len() == 0 { 0.0 } else { end };
        self.share_out();
        Some(job)
    }

    /// Ends every job at once.
    pub fn clear(&mut self) {
        self.jobs.clear();
        self.attained_us = 0.0;
        self.share_out();
    }

    /// Processor time that other programs have used, µs.
    pub fn others_us(&self) -> f64 {
        self.others_us
    }

    /// Processor time of them that the hypervisor took, µs.
    pub fn stolen_us(&self) -> f64 {
        self.stolen_us
    }

    /// Processor time that a job would have had that was there from the beginning, µs. The difference of two moments is what a job
    /// between them had.
    #[inline]
    pub fn job_cpu_us(&self) -> f64 {
        self.job_cpu_us
    }

    /// By which all CPU work is slower because the machine swaps; 1 if it does not.
    pub fn slowdown(&self) -> f64 {
        self.slowdown
    }

    #[inline]
    fn share_out(&mut self) {
        let d = &self.disturbance;
        let stolen = d.stolen_share * self.cores;
        let wanted = self.jobs.len() as f64 + d.neighbour_cores;
        let left = self.cores - stolen;
        let share = if wanted > left { left / wanted } else { 1.0 };
        let switches = 1.0 + self.switch_cost * (wanted - self.cores).max(0.0);
        self.rate = d.speed * share / (switches * self.slowdown);
        self.others = stolen + d.neighbour_cores * share;
        self.share = share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Disturbance = Disturbance { speed: 1.0, neighbour_cores: 0.0, stolen_share: 0.0 };

    fn next(machine: &mut Machine) -> (u32, f64) {
        let at = machine.next_end();
        machine.advance(at);
        (machine.end().expect("a job"), at)
    }

    #[test]
    fn jobs_share_the_processors_and_have_at_most_one_each() {
        let mut machine = Machine::new(2, 0.0, QUIET);
        machine.start(0, 100.0);
        assert_eq!(next(&mut machine), (0, 100.0));
        // Four jobs on two processors: each at half speed, and the last two at full speed.
        [100.0, 100.0, 200.0, 200.0].iter().enumerate().for_each(|(i, work)| machine.start(i as u32, *work));
        let ends: Vec<f64> = (0..4).map(|_| next(&mut machine).1).collect();
        assert_eq!(ends, [300.0, 300.0, 400.0, 400.0]);
    }

    #[test]
    fn no_work_is_lost_or_made() {
        let mut rng = crate::rng::Rng::new(5);
        let mut machine = Machine::new(3, 0.0, QUIET);
        let mut works: Vec<f64> = (0..1_000).map(|_| 1_000.0 * rng.exponential()).collect();
        works.iter().enumerate().for_each(|(i, work)| machine.start(i as u32, *work));
        works.sort_by(f64::total_cmp);
        // All attain the same service; of n jobs each has 3/n of a processor, and at most one.
        let (mut at, mut attained) = (0.0, 0.0);
        for (ended, work) in works.iter().enumerate() {
            let left = (works.len() - ended) as f64;
            at += (work - attained) / (3.0 / left).min(1.0);
            attained = *work;
            assert!((next(&mut machine).1 / at - 1.0).abs() < 1e-9, "job {ended}");
        }
    }

    #[test]
    fn the_neighbour_gets_a_fair_share_and_stolen_time_is_missing() {
        let mut machine = Machine::new(2, 0.0, Disturbance { neighbour_cores: 2.0, ..QUIET });
        (0..2).for_each(|job| machine.start(job, 100.0));
        assert_eq!(next(&mut machine).1, 200.0);
        assert_eq!(machine.others_us(), 200.0);
        let mut machine = Machine::new(2, 0.0, Disturbance { stolen_share: 0.5, ..QUIET });
        (0..2).for_each(|job| machine.start(job, 100.0));
        assert_eq!((next(&mut machine).1, machine.others_us()), (200.0, 200.0));
    }

    #[test]
    fn switches_and_swapping_make_work_slower() {
        let mut machine = Machine::new(1, 0.01, QUIET);
        (0..11).for_each(|job| machine.start(job, 100.0));
        assert!((next(&mut machine).1 - 1_210.0).abs() < 1e-6);
        let mut machine = Machine::new(1, 0.0, QUIET);
        machine.set_memory(1_100.0, 1_000.0);
        machine.start(0, 100.0);
        assert!((next(&mut machine).1 - 300.0).abs() < 1e-6);
    }
}
