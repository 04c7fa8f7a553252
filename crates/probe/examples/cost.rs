//! Measures what sampling costs: samples process PID once per second for SECONDS and prints the share of a core that it
//! used. `benches/probe` runs it against a pool of 200 workers.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::thread;
use std::time::{Duration, Instant};

use lastdrop_probe::namespace::ConnectionTables;
use lastdrop_probe::sampler::{Detail, SampledServer, Sampler};

fn main() {
    let mut words = std::env::args().skip(1).filter_map(|w| w.parse::<i32>().ok());
    let (Some(master), Some(seconds)) = (words.next(), words.next()) else {
        eprintln!("usage: cost PID SECONDS");
        std::process::exit(2);
    };
    let subject = SampledServer {
        master,
        helpers: &[],
        listeners: Vec::new(),
        status: None,
        url: None,
        walks: ConnectionTables::default(),
    };
    let mut sampler = Sampler::new(&subject, Detail::Timeline);
    let start = Instant::now();
    let mut workers = 0;
    for second in 1..=seconds {
        let look = sampler.sample(start.elapsed().as_secs_f64(), false);
        workers = look.worker_count;
        thread::sleep((start + Duration::from_secs(second as u64)).saturating_duration_since(Instant::now()));
    }
    let oldest = sampler.workers().iter().filter_map(|w| w.memory_age_s).fold(0.0, f64::max);
    println!(
        "{workers} workers: {:.3} % of a core, memory at most {oldest:.0} s old; not read: {:?}",
        sampler.cost_cores() * 100.0,
        sampler.unread()
    );
}
