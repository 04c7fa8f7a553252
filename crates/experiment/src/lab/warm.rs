//! Gives every worker of a fresh pool one request before it is measured.
//!
//! It opens as many connections as there are workers, each with a request that lacks its last line. A worker that
//! accepts one waits for the rest and cannot accept another, so each connection has its own worker. (A connection
//! without any byte would not do: Apache lets the kernel hold it back until data comes.) Then all requests are
//! completed.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::{KeepAlive, Plan, Setting};
use lastdrop_wire::{DeadlineSocket, Wire};

use crate::lab::clock::{Clock, Stopwatch};

/// How long the whole warm-up may take.
const LIMIT: Duration = Duration::from_secs(20);

/// How a cell or a trial is warmed up before it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarmUpMethod {
    /// One request for each initial worker.
    Each,
    /// The load itself, for this long.
    Load(Duration),
}

impl std::fmt::Display for WarmUpMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WarmUpMethod::Each => f.write_str("each"),
            WarmUpMethod::Load(d) => write!(f, "{}s", d.as_secs_f64()),
        }
    }
}

/// Duration of a warm-up by load, for pools whose initial workers end before the measurement does. The pool has to
/// reach the pace at which it is recycled; Apache's spawning takes about 10 s for that.
pub const RECYCLING_WARM_UP: Duration = Duration::from_secs(15);

/// Returns the warm-up that makes sense: each worker, unless `requests` use up the initial workers, which end after
/// `recycle` requests.
#[must_use]
pub fn warmth(recycle: Option<&Setting>, workers: usize, requests: u64, load: Duration) -> WarmUpMethod {
    match recycle.and_then(Setting::count) {
        Some(age) if age > 0 && requests >= (age as u64).saturating_mul(workers as u64) => WarmUpMethod::Load(load),
        _ => WarmUpMethod::Each,
    }
}

/// A pool is complete once its number of workers has not changed for this long.
const SAME_FOR: Duration = Duration::from_millis(250);
const COMPLETE_LIMIT: Duration = Duration::from_secs(10);

/// Waits until servers that were just started have all their workers: they answer as soon as the first worker exists.
/// Returns the number of workers.
pub fn complete_pool(clock: &dyn Clock, workers: impl Fn() -> usize) -> usize {
    let whole = Stopwatch::start(clock);
    let (mut count, mut same) = (workers(), Stopwatch::start(clock));
    while same.elapsed() < SAME_FOR && whole.elapsed() < COMPLETE_LIMIT {
        clock.sleep(Duration::from_millis(20));
        let now = workers();
        if now != count {
            (count, same) = (now, Stopwatch::start(clock));
        }
    }
    count
}

/// Sends one request to each of `workers` workers and returns how many responded.
#[must_use]
pub fn warm_each(plan: &Plan, workers: usize) -> usize {
    let deadline = Instant::now() + LIMIT;
    let Ok(address) = lastdrop_load::resolve(&plan.url) else { return 0 };
    let closing = Plan { keepalive: KeepAlive::Off, ..plan.clone() };
    let Some(request) = lastdrop_load::preview(&closing).ok().and_then(|p| p.requests.into_iter().next()) else {
        return 0;
    };
    // Without the end of its header, a request is incomplete.
    let head_end = request.windows(4).position(|w| w == b"\r\n\r\n").map_or(request.len(), |p| p + 2);
    let mut open: Vec<Wire> = (0..workers)
        .filter_map(|_| {
            let left = deadline.saturating_duration_since(Instant::now());
            let stream = TcpStream::connect_timeout(&address, left.min(Duration::from_secs(5))).ok()?;
            let timed = DeadlineSocket::new(stream, deadline.saturating_duration_since(Instant::now()));
            // A worker that has completed the TLS handshake also waits for the rest.
            let mut wire =
                if plan.url.tls { Wire::client_unverified(timed, &plan.url.host).ok()? } else { Wire::Plain(timed) };
            wire.write(&request[..head_end]).ok()?;
            Some(wire)
        })
        .collect();
    // Gives the workers time to accept from the queue.
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
        assert_eq!(w(10, 5000), WarmUpMethod::Load(load));
        assert_eq!(w(5000, 5000), WarmUpMethod::Each);
        assert_eq!(w(0, 5000), WarmUpMethod::Each);
        assert_eq!(warmth(None, 50, 5000, load), WarmUpMethod::Each);
    }
}
