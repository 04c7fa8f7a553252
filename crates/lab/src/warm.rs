//! Gives every worker of a fresh pool one request before it is measured.
//!
//! As many connections as there are workers are opened, each with a request that lacks its last line: a worker that
//! takes one waits for the rest and cannot take another, so each connection is with a worker of its own. (A connection
//! without any byte would not do: Apache asks the kernel to hold it back until data comes.) Then all are completed.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::{KeepAlive, Plan, Setting};
use lastdrop_wire::{Timed, Wire};

/// How long all of it may take.
const LIMIT: Duration = Duration::from_secs(20);

/// How a cell or a trial is warmed before it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Warmth {
    /// Each initial worker has one request.
    Each,
    /// This much of the load itself.
    Load(Duration),
}

impl std::fmt::Display for Warmth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Warmth::Each => f.write_str("each"),
            Warmth::Load(d) => write!(f, "{}s", d.as_secs_f64()),
        }
    }
}

/// Warm-up where the initial workers will not live to the end of the measurement, so that warming them means nothing:
/// the pool has to reach the pace at which it is recycled. Apache's spawning takes about 10 s to get there.
pub const RECYCLING_WARM_UP: Duration = Duration::from_secs(15);

/// The warming that makes sense: each worker, unless `requests` use up the initial ones, recycled at `recycle`.
#[must_use]
pub fn warmth(recycle: Option<&Setting>, workers: usize, requests: u64, load: Duration) -> Warmth {
    match recycle.and_then(Setting::count) {
        Some(age) if age > 0 && requests >= (age as u64).saturating_mul(workers as u64) => Warmth::Load(load),
        _ => Warmth::Each,
    }
}

/// A pool that has had the same number of workers for so long is complete.
const SAME_FOR: Duration = Duration::from_millis(250);
const COMPLETE_LIMIT: Duration = Duration::from_secs(10);

/// Waits until servers that were just started have all their workers, so that these do not become more: they answer when
/// the first is there. Gives how many there are.
pub fn complete_pool(workers: impl Fn() -> usize) -> usize {
    let deadline = Instant::now() + COMPLETE_LIMIT;
    let (mut count, mut since) = (workers(), Instant::now());
    while since.elapsed() < SAME_FOR && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
        let now = workers();
        if now != count {
            (count, since) = (now, Instant::now());
        }
    }
    count
}

/// Sends one request to each of `workers` workers; says how many answered.
#[must_use]
pub fn warm_each(plan: &Plan, workers: usize) -> usize {
    let deadline = Instant::now() + LIMIT;
    let Ok(address) = lastdrop_load::resolve(&plan.url) else { return 0 };
    let closing = Plan { keepalive: KeepAlive::Off, ..plan.clone() };
    let Some(request) = lastdrop_load::preview(&closing).ok().and_then(|p| p.requests.into_iter().next()) else {
        return 0;
    };
    // Without the end of its head a request is not one yet.
    let head_end = request.windows(4).position(|w| w == b"\r\n\r\n").map_or(request.len(), |p| p + 2);
    let mut open: Vec<Wire> = (0..workers)
        .filter_map(|_| {
            let left = deadline.saturating_duration_since(Instant::now());
            let stream = TcpStream::connect_timeout(&address, left.min(Duration::from_secs(5))).ok()?;
            let timed = Timed::new(stream, deadline.saturating_duration_since(Instant::now()));
            // A worker that has shaken hands waits for the rest as well.
            let mut wire =
                if plan.url.tls { Wire::to_anybody(timed, &plan.url.host).ok()? } else { Wire::Plain(timed) };
            wire.write(&request[..head_end]).ok()?;
            Some(wire)
        })
        .collect();
    // Time for the workers to take what lies in the queue.
    thread::sleep(Duration::from_millis(50));
    open.retain_mut(|wire| wire.write(&request[head_end..]).is_ok());
    open.iter_mut().map(|wire| usize::from(read_to_end(wire))).sum()
}

fn read_to_end(wire: &mut Wire) -> bool {
    let mut buffer = [0u8; 16 * 1024];
    let mut any = false;
    loop {
        match wire.read(&mut buffer) {
            Ok(0) => return any,
            Ok(_) => any = true,
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recycled_workers_are_warmed_by_load() {
        let load = Duration::from_secs(15);
        let w = |age: i64, requests| warmth(Some(&Setting::Count(age)), 50, requests, load);
        assert_eq!(w(10, 5000), Warmth::Load(load));
        assert_eq!(w(5000, 5000), Warmth::Each);
        assert_eq!(w(0, 5000), Warmth::Each);
        assert_eq!(warmth(None, 50, 5000, load), Warmth::Each);
    }
}
