//! How the memory of workers grows with the requests that they serve: the same processes are read again after each
//! step.

use std::collections::BTreeMap;

use lastdrop_model::Sample;
use lastdrop_model::examination::Growth;
use lastdrop_probe::group::ProcessGroup;

use crate::observe::members::Members;

/// Larger pools are left out: reading a worker costs half a millisecond.
const MOST_WORKERS: usize = 60;

/// Private and resident memory of each worker by process id, bytes.
type Sizes = BTreeMap<i32, (u64, u64)>;

/// Memory readings, each with the number of requests answered before.
#[derive(Debug, Default)]
pub struct Readings {
    servers: Vec<(String, Vec<(u64, Sizes)>)>,
    /// Resident memory of each server's master at the last reading.
    masters: BTreeMap<String, u64>,
}

impl Readings {
    /// Reads the memory of all workers, after `requests` answered requests.
    pub fn read(&mut self, members: &Members, requests: u64) {
        if self.servers.is_empty() {
            self.servers = members.all.iter().map(|m| (m.called.clone(), Vec::new())).collect();
        }
        for (member, (_, readings)) in members.all.iter().zip(&mut self.servers) {
            let mut group = ProcessGroup::new(member.found.master, false, member.found.helpers);
            group.look(true, &mut Sample::default());
            let workers = group.worker_looks();
            if let Some(master) = group.memory().iter().find(|m| m.pid == member.found.master) {
                self.masters.insert(member.called.clone(), master.rss);
            }
            // A database fills its cache, and a JVM its configured heap: their growth says nothing.
            let fills = member.found.kind.database.is_some() || member.found.is_jvm();
            if workers.len() > MOST_WORKERS || fills {
                continue;
            }
            let size = |w: &lastdrop_model::WorkerSample| Some((w.pid, (w.private_bytes?, w.rss_bytes?)));
            readings.push((requests, workers.iter().filter_map(size).collect()));
        }
    }

    /// Returns the memory that each server's workers gained per request, of those that lived through all readings. The
    /// first reading is left out, before which caches were filled.
    #[must_use]
    pub fn growth(&self) -> Vec<Growth> {
        let of = |(server, readings): &(String, Vec<(u64, Sizes)>)| {
            let readings = readings.get(1..).filter(|r| r.len() >= 3)?;
            let (first, last) = (readings.first()?, readings.last()?);
            let lived: Vec<i32> = first
                .1
                .keys()
                .filter(|pid| readings.iter().all(|(_, sizes)| sizes.contains_key(pid)))
                .copied()
                .collect();
            let requests = last.0.saturating_sub(first.0);
            if lived.is_empty() || requests < 50 {
                return None;
            }
            let sum = |at: &Sizes, of: fn(&(u64, u64)) -> u64| {
                lived.iter().filter_map(|pid| at.get(pid)).map(of).sum::<u64>() as f64
            };
            let slope = |a: &(u64, Sizes), b: &(u64, Sizes), of: fn(&(u64, u64)) -> u64| {
                let n = b.0.saturating_sub(a.0) as f64 * lived.len() as f64 / first.1.len().max(1) as f64;
                (n >= 1.0).then(|| (sum(&b.1, of) - sum(&a.1, of)) / n)
            };
            let parts: Vec<f64> = readings.windows(2).filter_map(|w| slope(&w[0], &w[1], |s| s.0)).collect();
            let least = parts.iter().copied().fold(f64::INFINITY, f64::min);
            Some(Growth {
                server: server.clone(),
                workers: lived.len() as u64,
                requests,
                private_bytes: slope(first, last, |s| s.0)?,
                resident_bytes: slope(first, last, |s| s.1)?,
                least_private_bytes: if least.is_finite() { least } else { 0.0 },
                steps_private_bytes: parts,
                gained_bytes: sum(&last.1, |s| s.0) - sum(&first.1, |s| s.0),
                worker_private_bytes: sum(&last.1, |s| s.0) / lived.len() as f64,
                worker_resident_bytes: sum(&last.1, |s| s.1) / lived.len() as f64,
                master_resident_bytes: self.masters.get(server).copied().unwrap_or(0) as f64,
            })
        };
        self.servers.iter().filter_map(of).collect()
    }
}
