//! The memory of a group's processes, read in turn: the expensive number.

use std::time::{Duration, Instant};

use super::{Group, Unchanged};
use crate::ProbeError;
use crate::host::thread_cpu;
use crate::memory;
use crate::stat::{Stat, page_bytes};

/// Processor time that a look may spend on reading memory, once every process has been read. It is not measured by the clock: where
/// the processors are full a look waits for them, and a look that finds new workers has walked all of /proc before.
const MEMORY_BUDGET: Duration = Duration::from_micros(2500);
/// The same until then, once the allowance below is used up.
const FIRST_MEMORY_BUDGET: Duration = Duration::from_millis(7);
/// The same while there is some: workers of an interpreter with 200 MB take 15 ms each, and a pool of twelve has to be known within a
/// doctor's step.
const GENEROUS_MEMORY_BUDGET: Duration = Duration::from_millis(60);
/// But no look reads memory for longer than this.
const LONGEST: Duration = Duration::from_millis(200);
/// No number of a worker's memory gets older than this at one look a second, whatever the budget.
const OLDEST_MEMORY: f64 = 30.0;
/// Memory that nothing was seen to change is read again after this all the same: processes outside of the group may have
/// come to share it.
const TRUST_UNCHANGED: Duration = Duration::from_secs(60);
/// Most that page faults of the others may have changed a worker's share, for it to count as unchanged.
const UNCHANGED_SHARE: f64 = 0.005;

/// Processor time for memory that has never been read, over all looks. Where workers come and go all the time it is used up soon.
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
    /// Comes with each look.
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

impl Group {
    /// Marks the memory that cannot have changed since it was read as known now: its process had no page fault, and
    /// those of the others, each of which may have unshared a page, would not matter. In an idle pool that is all of it.
    fn trust_unchanged(&mut self, now: Instant, group_faults: u64) {
        for member in self.members.values_mut() {
            let (Some((memory, known)), Some((at, then))) = (&mut member.memory, &member.read) else { continue };
            // Of a page with two users, the one that stays gets the other half.
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
        // Never read comes first, then the oldest.
        order.sort_by_key(|(_, at)| *at);
        let is_unread = order.iter().any(|(_, at)| at.is_none());
        let budget = self.allowance.budget(is_unread);
        // What a look owes beyond a whole number is owed by the next ones.
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
                        let unchanged = Unchanged { faults, rss_pages, group_faults, group_changes: self.changes };
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
            // It stops with the first process after the budget.
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
