//! Memory that master and workers share, mapped before the fork: counters and a scoreboard.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::config::MAX_WORKERS;

/// Path of the status page: `?auto` in the format of Apache's mod_status, `?json` for programs.
pub const STATUS_PATH: &str = "/server-status";

#[derive(Debug, Default)]
pub struct Counters {
    pub connections: AtomicU64,
    pub requests: AtomicU64,
    /// Complete answers written, errors included.
    pub answered: AtomicU64,
    pub errors: AtomicU64,
    pub closes: AtomicU64,
    pub resets: AtomicU64,
    pub hangs: AtomicU64,
    /// Requests whose client closed the connection before the answer.
    pub abandoned: AtomicU64,
    pub bad_requests: AtomicU64,
    pub status_requests: AtomicU64,
    pub forks: AtomicU64,
    pub busy: AtomicU32,
    pub generation: AtomicU32,
    /// Nanoseconds on the monotonic clock; 0 before the first request.
    pub first_request_ns: AtomicU64,
}

/// The counters as JSON on the status page.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CountersView {
    pub connections: u64,
    pub requests: u64,
    pub answered: u64,
    pub errors: u64,
    pub closes: u64,
    pub resets: u64,
    pub hangs: u64,
    pub abandoned: u64,
    pub bad_requests: u64,
    pub status_requests: u64,
    pub forks: u64,
    pub generation: u32,
    pub scoreboard: String,
    /// The live workers.
    #[serde(default)]
    pub workers: Vec<WorkerView>,
}

/// A worker as JSON on the status page.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerView {
    pub pid: i32,
    pub state: char,
    /// Requests served since the worker started.
    pub requests: u64,
    /// Seconds since the present request began, or else the last one.
    pub request_s: f64,
}

#[derive(Debug)]
pub struct Slot {
    pub pid: AtomicI32,
    /// A letter of Apache's scoreboard.
    pub state: AtomicU8,
    pub requests: AtomicU64,
    /// When the present request began, or else the last one; nanoseconds on the monotonic clock.
    pub since_ns: AtomicU64,
}

#[derive(Debug)]
pub struct Shared {
    pub counters: Counters,
    slots: [Slot; MAX_WORKERS as usize],
    /// Slots that the present settings use.
    pub pool: AtomicU32,
}

pub(crate) fn monotonic_ns() -> u64 {
    use nix::sys::time::TimeValLike;
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(0, |t| t.num_nanoseconds() as u64)
}

impl Shared {
    /// Maps the structure into memory that stays shared over forks, for the life of the process.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub fn map() -> nix::Result<&'static Shared> {
        let size = NonZeroUsize::new(size_of::<Shared>()).expect("the structure has fields");
        // SAFETY: a fresh anonymous mapping, zero-filled, page-aligned and never unmapped; all fields are atomics, for
        // which zero is a value.
        unsafe {
            let at = nix::sys::mman::mmap_anonymous(
                None,
                size,
                nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE,
                nix::sys::mman::MapFlags::MAP_SHARED,
            )?;
            Ok(at.cast::<Shared>().as_ref())
        }
    }

    pub fn slot(&self, index: usize) -> &Slot {
        &self.slots[index]
    }

    pub fn set_state(&self, index: usize, letter: u8) {
        self.slots[index].state.store(letter, Ordering::Relaxed);
    }

    /// The scoreboard as mod_status prints it: one letter for each slot, `.` for a slot without a process.
    pub fn scoreboard(&self) -> String {
        let pool = (self.pool.load(Ordering::Relaxed) as usize).min(self.slots.len());
        self.slots[..pool]
            .iter()
            .map(|s| {
                let state = s.state.load(Ordering::Relaxed);
                if s.pid.load(Ordering::Relaxed) == 0 || state == 0 { '.' } else { char::from(state) }
            })
            .collect()
    }

    pub fn view(&self) -> CountersView {
        let c = &self.counters;
        let get = |a: &AtomicU64| a.load(Ordering::SeqCst);
        CountersView {
            connections: get(&c.connections),
            requests: get(&c.requests),
            answered: get(&c.answered),
            errors: get(&c.errors),
            closes: get(&c.closes),
            resets: get(&c.resets),
            hangs: get(&c.hangs),
            abandoned: get(&c.abandoned),
            bad_requests: get(&c.bad_requests),
            status_requests: get(&c.status_requests),
            forks: get(&c.forks),
            generation: c.generation.load(Ordering::SeqCst),
            scoreboard: self.scoreboard(),
            workers: self.workers(),
        }
    }

    fn workers(&self) -> Vec<WorkerView> {
        let now = monotonic_ns();
        let pool = (self.pool.load(Ordering::Relaxed) as usize).min(self.slots.len());
        self.slots[..pool]
            .iter()
            .filter(|s| s.pid.load(Ordering::Relaxed) != 0)
            .map(|s| WorkerView {
                pid: s.pid.load(Ordering::Relaxed),
                state: char::from(s.state.load(Ordering::Relaxed)),
                requests: s.requests.load(Ordering::Relaxed),
                request_s: now.saturating_sub(s.since_ns.load(Ordering::Relaxed)) as f64 / 1e9,
            })
            .collect()
    }

    /// The status page in the format of mod_status `?auto`.
    pub fn auto_page(&self) -> String {
        let v = self.view();
        let idle = v.scoreboard.chars().filter(|c| *c == '_').count();
        let busy = v.scoreboard.chars().filter(|c| !"_.".contains(*c)).count();
        format!(
            "ServerVersion: lastdrop-target/{}\nServerMPM: prefork\nParentServerConfigGeneration: {}\n\
             Total Accesses: {}\nBusyWorkers: {busy}\nIdleWorkers: {idle}\nScoreboard: {}\n",
            env!("CARGO_PKG_VERSION"),
            v.generation,
            v.requests,
            v.scoreboard
        )
    }
}
