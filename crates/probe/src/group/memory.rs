//! Reads the memory of a group's processes in turn, because it is the expensive number.

use std::time::{Duration, Instant};

use super::{MemoryInputs, ProcessGroup};
use crate::ProbeError;
use crate::host::thread_cpu;
use crate::memory;
use crate::stat::{Stat, page_bytes};

/// Processor time that one sample may spend on reading memory, once every process has been read. Wall time would not
/// do: on full processors a sample waits for them, and a sample that finds new workers has just scanned all of /proc.
const MEMORY_BUDGET: Duration = Duration::from_micros(2500);
/// Like `MEMORY_BUDGET`, until every process has been read, once the allowance below is used up.
const FIRST_MEMORY_BUDGET: Duration = Duration::from_millis(7);
/// Like `MEMORY_BUDGET`, while the allowance lasts. Workers of an interpreter with 200 MB take 15 ms each, and a pool
/// of twelve has to be read within one step of `doctor`.
const GENEROUS_MEMORY_BUDGET: Duration = Duration::from_millis(60);
/// Longest wall time that one sample may spend on reading memory.
const LONGEST: Duration = Duration::from_millis(200);
/// Maximum age of a worker's memory in seconds, at one sample per second, whatever the budget.
const OLDEST_MEMORY: f64 = 30.0;
/// Memory that seems unchanged is read again after this time all the same: processes outside the group may have come to
/// share it.
const TRUST_UNCHANGED: Duration = Duration::from_secs(60);
/// Memory still counts as unchanged if page faults of other processes changed at most this share of it.
const UNCHANGED_SHARE: f64 = 0.005;

/// Processor time for memory that has never been read, over all samples. If workers come and go all the time, it is
/// used up soon.
#[derive(Debug)]
pub(super) struct Allowance {
    left: Duration,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { left: Allowance::MOST }
    }
}

impl Allowance {
    const MOST: Duration = Duration::from_millis(400);
    /// Added with each sample.
    const A_LOOK: Duration = Duration::from_millis(1);

    fn budget(&self, is_unread: bool) -> Duration {
        if is_unread { FIRST_MEMORY_BUDGET.max(self.left.min(GENEROUS_MEMORY_BUDGET)) } else { MEMORY_BUDGET }
    }

    fn spend(&mut self, spent: Duration, is_unread: bool) {
        if is_unread {
            self.left = self.left.saturating_sub(spent);
        }
        self.left = (self.left + Allowance::A_LOOK).min(Allowance::MOST);
    }
}

impl ProcessGroup {
    /// Marks memory as current if it cannot have changed since it was read. Its own process had no page fault, and the
    /// page faults of the others, each of which may have unshared a page, are too few to matter. In an idle pool this
    /// covers all processes.
    fn trust_unchanged(&mut self, now: Instant, group_faults: u64) {
        for member in self.members.values_mut() {
            let (Some((memory, known)), Some((at, then))) = (&mut member.memory, &member.read) else { continue };
            // If one of two users of a page unshares it, the other is charged the second half.
            let moved = group_faults.saturating_sub(then.group_faults) as f64 * page_bytes() as f64 / 2.0;
            if now - *at < TRUST_UNCHANGED
                && then.faults == member.stat.faults
                && then.rss_pages == member.stat.rss_pages
                && then.group_changes == self.changes
                && moved <= memory.pss as f64 * UNCHANGED_SHARE
            {
                *known = now;
            }
        }
    }

    pub(super) fn read_memory(&mut self, now: Instant, all: bool) {
        let group_faults = self.members.values().map(|m| m.stat.faults).sum();
        self.trust_unchanged(now, group_faults);
        let mut order: Vec<(i32, Option<Instant>)> = self
            .members
            .iter()
            .map(|(pid, m)| (*pid, m.memory.map(|(_, at)| at)))
            .filter(|(_, at)| all || *at != Some(now))
            .collect();
        // Processes that were never read come first, then those read longest ago.
        order.sort_by_key(|(_, at)| *at);
        let is_unread = order.iter().any(|(_, at)| at.is_none());
        let budget = self.allowance.budget(is_unread);
        // The fraction beyond a whole number is carried over to the next samples.
        self.memory_owed = self.memory_owed.fract() + order.len() as f64 / OLDEST_MEMORY;
        let at_least = self.memory_owed as usize;
        let (began, before) = (Instant::now(), thread_cpu());
        let is_over = || thread_cpu().saturating_sub(before) > budget || began.elapsed() > LONGEST;
        for (done, (pid, _)) in order.into_iter().enumerate() {
            if !all && done >= at_least && is_over() {
                break;
            }
            match memory::of_process(pid) {
                Ok(memory) => {
                    if let Some(member) = self.members.get_mut(&pid) {
                        member.memory = Some((memory, Instant::now()));
                        let Stat { faults, rss_pages, .. } = member.stat;
                        let unchanged = MemoryInputs { faults, rss_pages, group_faults, group_changes: self.changes };
                        member.read = Some((now, unchanged));
                    }
                }
                Err(ProbeError::Gone(_)) => {
                    if let Some(member) = self.members.get_mut(&pid) {
                        member.ended = true;
                    }
                }
                Err(e) => {
                    self.refused = Some(e.to_string());
                    break;
                }
            }
        }
        self.allowance.spend(thread_cpu().saturating_sub(before), is_unread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_workers_are_read_soon_and_workers_that_come_and_go_do_not_cost_that_for_ever() {
        let mut allowance = Allowance::default();
        let each = Duration::from_millis(15);
        let (mut read, mut looks) = (0, 0);
        while read < 12 {
            // Reading stops with the first process after the budget.
            let n = allowance.budget(true).as_millis() / each.as_millis() + 1;
            read += n;
            looks += 1;
            allowance.spend(each * u32::try_from(n).expect("few"), true);
        }
        assert!(looks <= 3, "{looks}");
        for _ in 0..100 {
            allowance.spend(allowance.budget(true), true);
        }
        assert_eq!((allowance.budget(true), allowance.budget(false)), (FIRST_MEMORY_BUDGET, MEMORY_BUDGET));
    }
}
