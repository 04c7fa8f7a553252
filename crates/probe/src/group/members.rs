//! Finds which processes belong to a group: which were started in it, and which have ended.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::files::fds_limit;
use super::{MemberProcess, ProcessGroup};
use crate::stat::{Stat, all_pids, newest_pid, of_ticks, ran_ns};

/// Groups of up to this many processes keep each `stat` file open between samples: opening it costs more than reading
/// it.
const KEEP_OPEN: usize = 300;
/// How often all of /proc is scanned again, because pids may have been reused.
const RESCAN: Duration = Duration::from_secs(15);

impl ProcessGroup {
    /// Brings the list of processes up to date.
    pub(super) fn find(&mut self, now: Instant) {
        // Do not use up descriptors that connections may need.
        let spare = i32::try_from(std::process::id()).ok().and_then(fds_limit).unwrap_or(0);
        let keep_open = self.members.len() <= KEEP_OPEN && spare > 8 * KEEP_OPEN as u64;
        let newest = newest_pid();
        if self.scanned.is_none_or(|t| now - t > RESCAN) {
            self.scanned = Some(now);
            self.others.clear();
        } else if newest.is_some() && newest == self.newest_pid {
            // No process was started since the last sample; only ended ones have to be found.
            self.members.retain(|pid, member| {
                let file = member.file.take().or_else(|| Stat::open(*pid));
                let stat = file.as_ref().and_then(Stat::read).filter(|s| s.start_ticks == member.stat.start_ticks);
                member.file = file.filter(|_| keep_open);
                stat.is_some_and(|s| {
                    member.stat = s;
                    true
                })
            });
            return;
        }
        self.newest_pid = newest;
        let mut seen = HashSet::new();
        let mut new: HashMap<i32, Stat> = HashMap::new();
        for pid in all_pids() {
            if self.others.contains(&pid) {
                seen.insert(pid);
                continue;
            }
            if let Some(member) = self.members.get_mut(&pid) {
                let file = member.file.take().or_else(|| Stat::open(pid));
                // Zombies have no numbers any more.
                match file.as_ref().and_then(Stat::read) {
                    Some(stat) if member.stat.start_ticks == stat.start_ticks => {
                        member.stat = stat;
                        member.file = file.filter(|_| keep_open);
                        seen.insert(pid);
                        continue;
                    }
                    _ => self.members.remove(&pid),
                };
            }
            if let Some(stat) = Stat::open(pid).as_ref().and_then(Stat::read) {
                seen.insert(pid);
                new.insert(pid, stat);
            }
        }
        self.others.retain(|pid| seen.contains(pid));
        self.members.retain(|pid, _| seen.contains(pid));
        loop {
            let ours: Vec<i32> = new
                .iter()
                .filter(|(pid, s)| **pid == self.master || self.members.contains_key(&s.parent))
                .map(|(pid, _)| *pid)
                .collect();
            if ours.is_empty() {
                break;
            }
            for pid in ours {
                if let Some(stat) = new.remove(&pid) {
                    let ran = ran_ns(pid).unwrap_or_else(|| of_ticks(stat.ticks));
                    let member = MemberProcess {
                        first: (ran, now),
                        ran_ns: ran,
                        stat,
                        file: None,
                        helper: false,
                        run_ns: None,
                        cpu_cores: None,
                        run_delay: None,
                        memory: None,
                        read: None,
                        fds: None,
                        fds_limit: None,
                        ended: false,
                    };
                    self.members.insert(pid, member);
                }
            }
        }
        self.others.extend(new.into_keys());
    }
}
